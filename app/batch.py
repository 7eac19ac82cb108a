"""The batch of a step: which finished samples are trained, with which advantages, packed for which rank.

Every sample that arrives leaves in exactly one bin. Pure: no Ray, no torch.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from app.advantage import advantages, tied, usable
from app.config import Config
from app.conversation import NO_VERSION
from app.packing import minibatches, pack, share
from metrics.schema import SAMPLES, samples_table

GROUP_RELATIVE_MINIMUM = 2

# One rank's share of a step, flat: `update_packs` cuts the packs into optimiser updates, `pack_sequences` the sequences
# into packs, `sequence_tokens` the tokens into sequences. Prompt and completion ids follow each other in `token_ids`;
# `trained` is False for the prompt and for what an environment said.
SHARE = pa.schema(
    [
        ("step", pa.int64()),
        ("update_packs", pa.list_(pa.int32())),
        ("pack_sequences", pa.list_(pa.int32())),
        ("sequence_tokens", pa.list_(pa.int32())),
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

    A discarded group is given back, and a fresh prompt takes its place, up to `max_discards_per_step` batches of them;
    after that the batch gets smaller, so that a run in which nothing can be learnt still moves.
    """

    config: Config
    step: int
    ranks: int
    kept: list[list[dict[str, Any]]] = field(default_factory=list)
    discarded: list[list[dict[str, Any]]] = field(default_factory=list)
    lost: int = 0

    def add(self, samples: list[dict[str, Any]]) -> int:
        """Takes a finished group; returns how many groups to give back (0 or 1).

        Ask `complete` after every one: a step that is complete must be taken before the next group.
        """
        if self.complete():
            raise RuntimeError(f"step {self.step} is complete and was not taken")
        self._judge(samples)
        if any(sample["outcome"] == "trained" for sample in samples):
            self.kept.append(samples)
            return 0
        self.discarded.append(samples)
        given_back = len(self.discarded) - self.lost
        if given_back <= self.config.max_discards_per_step * self.config.prompts_per_step:
            return 1
        self.lost += 1
        return 0

    def complete(self) -> bool:
        return len(self.kept) + self.lost == self.config.prompts_per_step

    def take(self) -> Batch:
        """The complete step; the builder goes on with the next one."""
        self.kept.sort(key=lambda samples: samples[0]["group_id"])  # the order of arrival must not matter
        trained = [s for samples in self.kept for s in samples if s["outcome"] == "trained"]
        values = advantages(
            [s["reward"] for s in trained],
            [s["group_id"] for s in trained],
            self.config.algorithm,
            self.config.advantage_norm,
        )
        for sample, value in zip(trained, values, strict=True):
            sample["advantage"] = value
            sample["temperature"] = self.config.temperature_of(sample["env"])
        everything = [s for samples in (*self.kept, *self.discarded) for s in samples]
        batch = Batch(self.step, _rows(everything, self.step), self._shares(trained, everything))
        self.step += 1
        self.kept, self.discarded, self.lost = [], [], 0
        return batch

    def _judge(self, samples: list[dict[str, Any]]) -> None:
        """Gives every sample of a group its outcome and reason."""
        for sample in samples:
            sample["advantage"] = None
            sample["off_policy_steps"] = self._age(sample)
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
        if not sample["token_ids"]:
            return "filtered", "no token was sampled"
        return "trained", None

    def _age(self, sample: dict[str, Any]) -> int | None:
        """Off-policy steps: the version being trained minus the oldest of the tokens that the policy sampled."""
        versions = [version for version in sample["versions"] if version != NO_VERSION]
        return self.step - 1 - min(versions) if versions else None

    def _shares(self, trained: list[dict], everything: list[dict]) -> list[dict[str, Any]]:
        groups = sorted({s["group_id"] for s in everything})
        common = {"step": self.step, "groups": groups, "samples_message": self.step}
        parts = minibatches(len(trained), self.config.minibatches, f"{self.config.seed}/{self.step}")
        updates = [self._packed([trained[i] for i in part]) for part in parts]
        return [common | _flat([update[rank] for update in updates]) for rank in range(self.ranks)]

    def _packed(self, samples: list[dict]) -> list[list[list[dict]]]:
        """rank → pack → samples of one optimiser update."""
        lengths = [len(s["prompt_ids"]) + len(s["token_ids"]) for s in samples]
        packs = pack(lengths, self.config.seq_len) if self.config.packing else [[i] for i in range(len(samples))]
        return [[[samples[i] for i in one] for one in own] for own in share(packs, lengths, self.ranks)]


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
        "sequence_tokens": [len(s["prompt_ids"]) + len(s["token_ids"]) for s in sequences],
        "sample_ids": [s["sample_id"] for s in sequences],
        "advantages": [s["advantage"] for s in sequences],
        "temperatures": [s["temperature"] for s in sequences],
        "token_ids": [t for s in sequences for t in (*s["prompt_ids"], *s["token_ids"])],
        "trained": [t for s in sequences for t in _per_token(s, False, sampled(s))],
        "rollout_logprobs": [t for s in sequences for t in _per_token(s, 0.0, s["rollout_logprobs"])],
        "versions": [t for s in sequences for t in _per_token(s, -1, s["versions"])],
    }


def sampled(sample: dict[str, Any]) -> list[bool]:
    """Per token after the prompt: whether the policy sampled it. Made when the tokens were made."""
    mask = sample.get("sampled")
    return [True] * len(sample["token_ids"]) if mask is None else mask


def _per_token(sample: dict[str, Any], prompt_value: Any, completion_values: Sequence[Any]) -> list[Any]:
    if len(completion_values) != len(sample["token_ids"]):
        raise ValueError(
            f"sample {sample['sample_id']}: {len(completion_values)} values for {len(sample['token_ids'])} tokens"
        )
    return [prompt_value] * len(sample["prompt_ids"]) + list(completion_values)


def _rows(samples: list[dict[str, Any]], step: int) -> pa.Table:
    """Stream samples → rows of `metrics.schema.SAMPLES`."""
    return samples_table(metrics_row(sample, step) for sample in samples)


def metrics_row(sample: dict[str, Any], step: int) -> dict[str, Any]:
    """A scored stream sample as a row of `metrics.schema.SAMPLES`."""
    mask = sampled(sample)
    return {
        **{name: sample.get(name) for name in SAMPLES.names},
        "step": step,
        "prompt": sample["prompt_text"],
        "prompt_tokens": len(sample["prompt_ids"]),
        "completion_tokens": sum(mask),
        "total_tokens": len(sample["prompt_ids"]) + len(mask),
        "stop_reason": sample["finish"],
        "trained_mask": [mine and sample.get("outcome") == "trained" for mine in mask],
    }
