"""How fast each algorithm learns the demo's task, and what staleness does to it.

    python -m bench.learning algorithms [--seeds 3]     algorithm × seed
    python -m bench.learning staleness [--seeds 3]      batches ahead 0, 1, 2, 4, with and without importance correction
    … --real                                            the whole system (two to three minutes a run on two cores)

Without --real: the real prompts, environment, batch builder, advantages, loss and trainer in one process; only Ray and
vLLM are replaced, by a plain sampler whose weights are as many batches behind as asked for. That says how reward rises
with steps, and nothing about wall time. Prints one line a run: held-out reward before and at the end, its best, and the
first step by which it had reached 0.9 of its best, with the seconds until then, evaluations included.
"""

import argparse
import os
import random
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa

from app import local_ray
from app.batch import SHARE, Batch, BatchBuilder
from app.config import Config, load
from app.jobs import Jobs
from app.policy import end_token_ids, prepare, tokenizer
from app.prompts import PromptOrder
from app.trainer_data import read_share
from environments.loader import load as load_environment

ALGORITHMS = ("grpo", "rloo", "reinforce_pp", "dr_grpo", "cispo", "gspo", "sapo")
AHEAD = (0, 1, 2, 4)
DEMO = Path(__file__).parent.parent / "configs" / "demo.yaml"


@dataclass(frozen=True)
class Point:
    """What is known of a policy after a step: its held-out reward, and the seconds since training began."""

    reward: float
    seconds: float


Curve = dict[int, Point]


class Sampler:
    """Draws groups from a plain copy of the policy, of which `version` says which step's weights it has."""

    def __init__(self, config: Config, model: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.config = config
        self.tokenizer = tokenizer(model)
        self.ends = list(end_token_ids(self.tokenizer, model))
        self.policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.version = 0
        self.environment: Any = load_environment(config.environments[0].name, config.environments[0].kwargs)
        self.train = self.environment.samples("train")
        self.held_out = self.environment.samples("eval")[: config.evals[0].num_samples]
        self.order = PromptOrder([len(self.train)], lambda batch: [1.0], config.seed, config.prompts_per_step)
        self.next_group = 0

    def load(self, trainer: Any, version: int) -> None:
        self.policy.load_state_dict(dict(trainer.full_parameters()), strict=False)
        self.version = version

    def reward(self) -> float:
        """Held-out reward of the weights of the moment."""
        drawn = self._draw([sample.prompt for sample in self.held_out])
        pairs = zip(drawn, self.held_out, strict=True)
        return fmean(self._judge(tokens, sample) for (_, tokens, _), sample in pairs)

    def groups(self, count: int) -> list[list[dict[str, Any]]]:
        """The next groups of the run, scored, as the batcher gets them."""
        numbers = range(self.next_group, self.next_group + count)
        self.next_group += count
        samples = [
            self.train[self.order.at(number).sample] for number in numbers for _ in range(self.config.group_size)
        ]
        drawn = self._draw([sample.prompt for sample in samples])
        rows = [self._row(i, sample, *one) for i, (sample, one) in enumerate(zip(samples, drawn, strict=True))]
        size, first = self.config.group_size, numbers.start
        for i, row in enumerate(rows):
            row |= {"group_id": first + i // size, "sample_id": first * size + i}
        return [rows[i : i + size] for i in range(0, len(rows), size)]

    def _draw(self, prompts: list[str]) -> list[tuple[list[int], list[int], list[float]]]:
        """(prompt ids, sampled ids, log-probabilities) of one completion a prompt."""
        import torch

        ids = [self.tokenizer.encode(prompt) for prompt in prompts]
        width, pad = max(map(len, ids)), self.tokenizer.pad_token_id
        padded = torch.tensor([[pad] * (width - len(one)) + one for one in ids])
        with torch.no_grad():
            out = self.policy.generate(
                padded,
                attention_mask=(padded != pad).long(),
                do_sample=True,
                temperature=self.config.temperature,
                top_k=0,
                max_new_tokens=self.config.max_tokens,
                eos_token_id=self.ends,
                pad_token_id=pad,
                output_scores=True,
                return_dict_in_generate=True,
            )
        logprobs = torch.stack(out.scores, dim=1).log_softmax(-1)
        new = out.sequences[:, width:]
        chosen = logprobs.gather(-1, new[..., None])[..., 0]
        lengths = [self._length(row) for row in new.tolist()]
        return [
            (prompt, row[:length].tolist(), values[:length].tolist())
            for prompt, row, values, length in zip(ids, new, chosen, lengths, strict=True)
        ]

    def _length(self, tokens: list[int]) -> int:
        return next((i + 1 for i, token in enumerate(tokens) if token in self.ends), len(tokens))

    def _judge(self, tokens: list[int], sample: Any) -> float:
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return self.environment.compute_reward(text, sample).total_reward

    def _row(self, index: int, sample: Any, prompt: list[int], tokens: list[int], logprobs: list[float]) -> dict:
        is_ended = tokens[-1] in self.ends
        return {
            "env": self.config.environments[0].label,
            "prompt_text": sample.prompt,
            "prompt_ids": prompt,
            "token_ids": tokens,
            "rollout_logprobs": logprobs,
            "versions": [self.version] * len(tokens),
            "finish": "stop" if is_ended else "length",
            "error": None,
            "reward": self._judge(tokens, sample),
            "sample_metrics": [],
            "num_turns": 1,
            "truncated_turns": int(not is_ended),
        }


def batches(sampler: Sampler, config: Config, ahead: int) -> Iterator[Batch]:
    """Complete batches; groups are drawn up to `ahead` batches before they are trained."""
    builder, waiting = BatchBuilder(config, 1, 1), deque[list[dict[str, Any]]]()
    while True:
        while not builder.complete():
            while len(waiting) <= ahead * config.prompts_per_step:
                waiting += sampler.groups(config.prompts_per_step)
            builder.add(waiting.popleft())
        yield builder.take()


def learn(config: Config) -> Curve:
    """The curve of a run in this process."""
    import torch

    from app.trainer import Trainer

    torch.manual_seed(config.seed)
    random.seed(config.seed)
    model = str(prepare(config.model, list(config.environments), 0))
    sampler, trainer = Sampler(config, model), Trainer(config, model, torch.device("cpu"))
    curve = {0: Point(sampler.reward(), 0.0)}
    start_s = time.monotonic()
    stream = batches(sampler, config, config.max_async_rollout)
    for step in range(1, config.steps + 1):
        (share,) = next(stream).shares
        trainer.train_step(read_share(pa.Table.from_pylist([share], schema=SHARE)))
        sampler.load(trainer, step)
        if step % config.evals[0].eval_every == 0 or step == config.steps:
            curve[step] = Point(sampler.reward(), time.monotonic() - start_s)
    return curve


def real(config: Config) -> Curve:
    """The same of the whole system."""
    os.environ.update(local_ray.ENVIRONMENT)
    with local_ray.local_ray(num_cpus=2) as cluster:
        run = Jobs(cluster.dashboard_url, tempfile.mkdtemp(prefix="bench-learning-")).submit(config)
        status = run.wait()
        if status != "finished":
            raise RuntimeError(f"{status.reason}\n{run.logs(tail=30)}")
    series = run.metrics()
    rewards, seconds = (series["columns"][key] for key in ("eval/sums/reward_mean", "timing_step_total"))
    passed = accumulate(second or 0.0 for second in seconds)
    points = zip(series["steps"], rewards, passed, strict=True)
    return {step: Point(reward, second) for step, reward, second in points if reward is not None}


def line(name: str, curve: Curve) -> str:
    best = max(point.reward for point in curve.values())
    reached = next(step for step, point in curve.items() if point.reward >= 0.9 * best)
    first, last = curve[0], max(curve)
    return (
        f"{name:<40} {first.reward:.3f} -> {curve[last].reward:.3f}   best {best:.3f}   0.9 of it by step "
        f"{reached:>3}, {curve[reached].seconds:5.1f} s   all {last} steps {curve[last].seconds:6.1f} s   "
        f"load {os.getloadavg()[0]:.1f}"
    )


def runs(what: str, seeds: int, algorithms: list[str]) -> Iterator[tuple[str, list[str]]]:
    """(name, overrides of the demo's configuration) of each run."""
    for seed in range(seeds):
        if what == "staleness":
            for ahead, tis in ((ahead, tis) for ahead in AHEAD for tis in (True, False) if ahead or tis):
                words = f"{ahead} ahead, {'with' if tis else 'without'} correction, seed {seed}"
                yield words, [f"max_async_rollout={ahead}", f"use_tis={str(tis).lower()}", f"seed={seed}"]
        else:
            for algorithm in algorithms:
                yield f"{algorithm}, seed {seed}", [f"algorithm={algorithm}", f"seed={seed}", "max_async_rollout=0"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("algorithms", "staleness"))
    parser.add_argument("--real", action="store_true", help="the whole system")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithms", type=lambda text: text.split(","), default=list(ALGORITHMS), help="a,b,c")
    parser.add_argument("overrides", nargs="*", help="key=value of the configuration")
    options = parser.parse_intermixed_args()
    if not options.real:
        _one_process()
    for name, overrides in runs(options.what, options.seeds, options.algorithms):
        config = load(DEMO, [*overrides, *options.overrides])
        print(line(name, (real if options.real else learn)(config)), flush=True)


def _one_process() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/rendezvous", rank=0, world_size=1)


if __name__ == "__main__":
    main()
