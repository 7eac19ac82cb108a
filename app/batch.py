"""The batch of a step: which finished samples are trained, with which advantages, packed for which rank.

Every sample that arrives leaves in exactly one bin. Pure: no Ray, no torch.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from app.advantage import advantages, tied, usable
from app.config import Config
from app.conversation import NO_VERSION
from app.filters import RAW_REWARD, overlong_penalty, reason
from app.packing import minibatches, pack, pack_groups, rows, share
from metrics.schema import SAMPLES, samples_table

GROUP_RELATIVE_MINIMUM = 2

# One rank's share of a step, flat: `update_packs` cuts the packs into optimiser updates, `pack_sequences` the sequences
# into packs, `sequence_tokens` the tokens into sequences. Prompt and completion ids follow each other in `token_ids`;
# `trained` is False for the prompt and for what an environment said.
SHARE = pa.schema(
    [
        ("step", pa.int64()),
        ("padded", pa.bool_()),  # a pack is rows of one sequence each, padded on the right; else one row of all of them
        ("update_packs", pa.list_(pa.int32())),
        ("pack_sequences", pa.list_(pa.int32())),
        ("sequence_tokens", pa.list_(pa.int32())),
        ("prompt_tokens", pa.list_(pa.int32())),  # how many of them are the prompt
        ("sample_ids", pa.list_(pa.int64())),
        ("advantages", pa.list_(pa.float64())),
        ("temperatures", pa.list_(pa.float64())),  # at which each sequence was sampled
        ("token_ids", pa.list_(pa.int32())),
        ("trained", pa.list_(pa.bool_())),
        ("rollout_logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("groups", pa.list_(pa.int64())),  # every group that this step used up, trained or not
        ("samples_message", pa.int64()),  # number of the message with this step's rows to the metrics actor
    ]
)


@dataclass
class Batch:
    """A complete step: its rows for the metrics actor and one share a rank."""

    step: int
    rows: pa.Table
    shares: list[dict[str, Any]]


@dataclass
class BatchBuilder:
    """Collects groups until a step is complete. `step` counts from 1; `ranks` is the number of trainer workers.

    The oldest groups go first. A discarded group is given back, and a fresh prompt takes its place, up to
    `max_discards_per_step` batches of them; after that the batch gets smaller, so that a run in which nothing can be
    learnt still moves.
    """

    config: Config
    step: int
    ranks: int
    vocab_size: int | None = None  # for the gibberish filter only
    shares_prompts: bool = True  # the trainer computes a prompt once for the samples of a group that share a pack
    kept: list[tuple[int, list[dict[str, Any]]]] = field(default_factory=list)  # with the version of its ticket
    discarded: list[list[dict[str, Any]]] = field(default_factory=list)
    returned: int = 0  # groups of the step that fresh ones replace
    lost: int = 0  # places that stay empty
    settled: Counter[int] = field(default_factory=Counter)  # groups taken or discarded, by the version of their ticket

    def add(self, samples: list[dict[str, Any]], version: int = 0) -> int:
        """Takes a finished group of a ticket of `version`; returns how many groups to give back (0 or 1).

        Ask `complete` after every one, and as long as it says yes.
        """
        self._judge(samples)
        if any(sample["outcome"] == "trained" for sample in samples):
            self.kept.append((version, samples))
            return 0
        self.discarded.append(samples)
        self.settled[version] += 1
        if self.returned < self.config.max_discards_per_step * self.config.prompts_per_step:
            self.returned += 1
            return 1
        self.lost += 1
        return 0

    def complete(self, admitted_since: Callable[[int], Sequence[int]] | None = None) -> bool:
        """Whether the step can be taken.

        admitted_since(version): how many groups have tickets of at most that version, of the next, and so on until the
        newest. Given, a step is not taken while it would leave more of some age than later steps have places for.
        """
        size, oldest = self.config.prompts_per_step, self.step - 1 - self.config.max_off_policy_steps
        if len(self.kept) + self.lost < size:
            return False
        if admitted_since is None:
            return True
        gone = self.settled + Counter(sorted(version for version, _ in self.kept)[:size])
        return all(
            admitted - sum(count for version, count in gone.items() if version <= oldest + later) <= later * size
            for later, admitted in enumerate(admitted_since(oldest))
        )

    def take(self) -> Batch:
        """The complete step; the builder goes on with the next one."""
        chosen = self._oldest()
        trained = [s for samples in chosen for s in samples if s["outcome"] == "trained"]
        values = advantages(
            [s["reward"] for s in trained],
            [s["group_id"] for s in trained],
            self.config.algorithm,
            self.config.advantage_norm,
        )
        for sample, value in zip(trained, values, strict=True):
            sample["advantage"] = value
            sample["temperature"] = self.config.temperature_of(sample["env"])
        everything = [s for samples in (*chosen, *self.discarded) for s in samples]
        batch = Batch(self.step, _rows(everything, self.step), self.shares(trained, everything))
        self.step += 1
        self.discarded, self.returned = [], 0
        self._forget()
        return batch

    def _forget(self) -> None:
        """Versions before the oldest that a step can still use are counted together."""
        oldest, settled = self.step - 1 - self.config.max_off_policy_steps, Counter[int]()
        for version, count in self.settled.items():
            settled[max(version, oldest)] += count
        self.settled = settled

    def _oldest(self) -> list[list[dict[str, Any]]]:
        """Takes out the groups of this step, in an order that does not depend on that of arrival."""
        size = self.config.prompts_per_step
        self.kept.sort(key=lambda entry: (entry[0], entry[1][0]["group_id"]))
        self.settled.update(version for version, _ in self.kept[:size])
        chosen, self.kept = [samples for _, samples in self.kept[:size]], self.kept[size:]
        self.lost -= size - len(chosen)
        for sample in (sample for samples in chosen for sample in samples):
            sample["off_policy_steps"] = self._age(sample)  # it may have waited since it was judged
            if sample["outcome"] == "trained" and sample["off_policy_steps"] > self.config.max_off_policy_steps:
                raise RuntimeError(f"sample {sample['sample_id']} became too old while it waited for step {self.step}")
        return sorted(chosen, key=lambda samples: samples[0]["group_id"])

    def _judge(self, samples: list[dict[str, Any]]) -> None:
        """Gives every sample of a group its outcome and reason."""
        for sample in samples:
            sample["advantage"] = None
            sample["off_policy_steps"] = self._age(sample)
            self._penalise(sample)
            sample["outcome"], sample["outcome_reason"] = self._own_outcome(sample)
        alive = [s for s in samples if s["outcome"] == "trained"]
        needed = GROUP_RELATIVE_MINIMUM if len(samples) > 1 else 1
        if 0 < len(alive) < needed:
            cause = Counter(s["outcome"] for s in samples if s["outcome"] != "trained").most_common(1)[0][0]
            _settle(alive, cause, f"only {len(alive)} of {len(samples)} samples of its group can be trained")
        elif self.config.discard_group_zero_advantage and len(alive) > 1 and tied([s["reward"] for s in alive]):
            _settle(alive, "zero_advantage", "all rewards of its group are equal")

    def _own_outcome(self, sample: dict[str, Any]) -> tuple[str, str | None]:
        if sample["finish"] == "abort":
            return "canceled", "stopped while generating: too old to be trained"
        if sample["error"] is not None:
            return "error", sample["error"]
        if sample["off_policy_steps"] is not None and sample["off_policy_steps"] > self.config.max_off_policy_steps:
            return "max_async", f"{sample['off_policy_steps']} steps off-policy"
        if not usable(sample["reward"]):
            return "error", f"reward {sample['reward']} cannot be averaged"
        if len(sample["token_ids"]) == 0:
            return "filtered", "no token was sampled"
        why = self._filter_reason(sample)
        return ("trained", None) if why is None else ("filtered", why)

    def _filter_reason(self, sample: dict[str, Any]) -> str | None:
        if not self.config.filters.judge:
            return None
        own = sampled(sample)
        tokens, logprobs = (np.asarray(sample[name])[own].tolist() for name in ("token_ids", "rollout_logprobs"))
        return reason(self.config.filters, sample["finish"] == "length", tokens, logprobs, self.vocab_size)

    def _penalise(self, sample: dict[str, Any]) -> None:
        """A long completion loses reward before it is compared; the environment's own is kept as a sample metric."""
        rule = self.config.filters.overlong_penalty
        if rule is None or not usable(sample["reward"]):
            return
        sample["sample_metrics"] = dict(sample["sample_metrics"] or {}) | {RAW_REWARD: sample["reward"]}
        sample["reward"] += overlong_penalty(int(sampled(sample).sum()), rule.max, rule.buffer, rule.factor)

    def _age(self, sample: dict[str, Any]) -> int | None:
        """Off-policy steps: the version being trained minus the oldest of the tokens that the policy sampled."""
        versions = np.asarray(sample["versions"], np.int64)
        own = versions[versions != NO_VERSION]
        return self.step - 1 - int(own.min()) if own.size else None

    def shares(self, trained: list[dict], everything: list[dict]) -> list[dict[str, Any]]:
        """Each rank's share of the trained samples, as rows of `SHARE`; everything: all that the step used up."""
        groups = sorted({s["group_id"] for s in everything})
        padded = not self.config.packing
        common = {"step": self.step, "padded": padded, "groups": groups, "samples_message": self.step}
        parts = minibatches(len(trained), self.config.minibatches, f"{self.config.seed}/{self.step}")
        updates = [self._packed([trained[i] for i in part]) for part in parts]
        return [common | _flat([update[rank] for update in updates]) for rank in range(self.ranks)]

    def _packed(self, samples: list[dict]) -> list[list[list[dict]]]:
        """rank → pack → samples of one optimiser update."""
        lengths, seq_len = [_length(s) for s in samples], self.config.seq_len
        if not self.config.packing:
            packs = rows(lengths, seq_len)
        elif self.shares_prompts:
            prompts, groups = [len(s["prompt_ids"]) for s in samples], [s["group_id"] for s in samples]
            packs = pack_groups(prompts, lengths, groups, seq_len)
            for before, i in (pair for one in packs for pair in pairwise(one)):
                if groups[before] == groups[i]:
                    lengths[i] -= prompts[i]  # it stands before the other
        else:
            packs = pack(lengths, seq_len)
        return [[[samples[i] for i in one] for one in own] for own in share(packs, lengths, self.ranks)]


def _length(sample: dict[str, Any]) -> int:
    return len(sample["prompt_ids"]) + len(sample["token_ids"])


def _settle(samples: list[dict[str, Any]], outcome: str, reason: str) -> None:
    for sample in samples:
        sample["outcome"], sample["outcome_reason"] = outcome, reason


def _flat(updates: list[list[list[dict[str, Any]]]]) -> dict[str, Any]:
    """Updates of packs of samples → the flat columns of `SHARE`. An empty pack is a dummy micro-batch."""
    packs = [one for update in updates for one in update]
    sequences = [sample for one in packs for sample in one]
    return {
        "update_packs": [len(update) for update in updates],
        "pack_sequences": [len(one) for one in packs],
        "sequence_tokens": [_length(s) for s in sequences],
        "prompt_tokens": [len(s["prompt_ids"]) for s in sequences],
        "sample_ids": [s["sample_id"] for s in sequences],
        "advantages": [s["advantage"] for s in sequences],
        "temperatures": [s["temperature"] for s in sequences],
        "token_ids": _per_token(sequences, np.int32, [s["token_ids"] for s in sequences]),
        "trained": _per_token(sequences, np.bool_, [sampled(s) for s in sequences], of_prompt=False),
        "rollout_logprobs": _per_token(sequences, np.float32, [s["rollout_logprobs"] for s in sequences], of_prompt=0),
        "versions": _per_token(sequences, np.int32, [s["versions"] for s in sequences], of_prompt=NO_VERSION),
    }


def sampled(sample: dict[str, Any]) -> np.ndarray:
    """Per token after the prompt: whether the policy sampled it. Made when the tokens were made."""
    mask = sample.get("sampled")
    return np.ones(len(sample["token_ids"]), np.bool_) if mask is None else np.asarray(mask, np.bool_)


def _per_token(
    sequences: Sequence[dict[str, Any]], kind: type, values: Sequence[Any], of_prompt: Any = None
) -> np.ndarray:
    """One value a token, sequence after sequence: `of_prompt` for each of the prompt (None: its ids), then `values`."""
    parts: list[Any] = [np.zeros(0, kind)]
    for sequence, own in zip(sequences, values, strict=True):
        if len(own) != len(sequence["token_ids"]):
            raise ValueError(
                f"sample {sequence['sample_id']}: {len(own)} values for {len(sequence['token_ids'])} tokens"
            )
        prompt = sequence["prompt_ids"]
        parts += [prompt if of_prompt is None else np.full(len(prompt), of_prompt), own]
    return np.concatenate(parts, dtype=kind, casting="unsafe")


def _rows(samples: list[dict[str, Any]], step: int) -> pa.Table:
    """Stream samples → rows of `metrics.schema.SAMPLES`."""
    return samples_table(metrics_row(sample, step) for sample in samples)


def _turn_times(turns: Sequence[dict[str, Any]] | None) -> list[float] | None:
    if turns is None:
        return None
    return [time for turn in turns if turn["role"] == "assistant" for time in (turn["start_s"], turn["end_s"])]


def metrics_row(sample: dict[str, Any], step: int) -> dict[str, Any]:
    """A scored stream sample as a row of `metrics.schema.SAMPLES`."""
    mask = sampled(sample)
    return {
        **{name: sample.get(name) for name in SAMPLES.names},
        "step": step,
        "prompt": sample["prompt_text"],
        "prompt_tokens": len(sample["prompt_ids"]),
        "completion_tokens": int(mask.sum()),
        "total_tokens": len(sample["prompt_ids"]) + len(mask),
        "stop_reason": sample["finish"],
        "turn_times_s": _turn_times(sample.get("turns")),
        "trained_mask": mask if sample.get("outcome") == "trained" else np.zeros_like(mask),
    }
