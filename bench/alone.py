"""The two halves of a finished run's steps, each done again with nothing around it.

    python -m bench.alone engine RUN     vLLM's own loop on the requests of each step
    python -m bench.alone torch RUN      forward, backward and optimiser of a plain model on the step's tokens

Prints one line of JSON: step → [CPU seconds of all processes, wall seconds].
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app import config as configuration
from app.batch import SHARE, BatchBuilder
from app.config import Config
from app.policy import prepare
from app.trainer_data import TrainerData, read_share
from bench.family import Family
from metrics import read

Rows = list[dict[str, Any]]


def steps_of(run: Path, first: int) -> Iterator[tuple[int, Rows]]:
    """The trained samples of each step."""
    rows, _ = read.samples(run, outcome="trained", limit=1_000_000)
    rows = rows.sort("step", "sample_id")
    for step in rows["step"].unique(maintain_order=True).to_list():
        if step >= first:
            yield step, rows.filter(rows["step"] == step).to_dicts()


def measured(run: Path, first: int, work: Callable[[Rows], None]) -> dict[int, list[float]]:
    """CPU and wall seconds of the work of each step; the first one is done once before, unmeasured."""
    steps = list(steps_of(run, first))
    work(steps[0][1])
    family, result = Family(), {}
    for step, rows in steps:
        cpu_s, start_s = family.cpu_s(), time.monotonic()
        work(rows)
        result[step] = [family.cpu_s() - cpu_s, time.monotonic() - start_s]
    return result


def engine_work(config: Config, model: str) -> Callable[[Rows], None]:
    """The step's requests at once, each as long as it was in the run, and seeded where they were."""
    from app.engine import CPU_ENVIRONMENT, ENVIRONMENT, engine_args

    os.environ.update(CPU_ENVIRONMENT | ENVIRONMENT)
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=model,
        skip_tokenizer_init=True,
        logprobs_mode="processed_logprobs",
        **engine_args(config, use_gpu=False),
    )

    def work(rows: Rows) -> None:
        prompts = [{"prompt_token_ids": row["prompt_ids"]} for row in rows]
        engine.generate(prompts, [params(row) for row in rows], use_tqdm=False)
        engine.reset_prefix_cache()

    def params(row: dict[str, Any]) -> SamplingParams:
        return SamplingParams(
            max_tokens=len(row["token_ids"]),
            ignore_eos=True,
            temperature=config.temperature_of(row["env"]),
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            seed=row["sample_id"] if config.max_async_rollout == 0 else None,
        )

    return work


def torch_work(config: Config, model: str) -> Callable[[Rows], None]:
    """What the mathematics of a step costs: no statistics, no sharding, one thread."""
    import torch
    from transformers import AutoModelForCausalLM

    from app.attention import NAME
    from app.fsdp import logits_at

    torch.set_num_threads(config.trainer_threads)
    policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation=NAME).train()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.learning_rate)

    def work(rows: Rows) -> None:
        packs = packed(rows, config).packs
        count = sum(pack.targets.numel() for pack in packs)
        for pack in packs:
            logits = logits_at(policy, pack.token_ids, pack.position_ids, pack.sources, pack.layout)
            logprobs = logits.gather(-1, pack.targets[:, None])[:, 0] - logits.logsumexp(-1)
            (-(logprobs * pack.advantages).sum() / count).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return work


def packed(rows: Rows, config: Config) -> TrainerData:
    """The step's micro-batches, as the run cut them."""
    import pyarrow as pa

    builder = BatchBuilder(config, rows[0]["step"], ranks=1)
    trained = [row | {"temperature": config.temperature_of(row["env"])} for row in rows]
    (share,) = builder.shares(trained, trained)
    return read_share(pa.Table.from_pylist([share], schema=SHARE))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("part", choices=("engine", "torch"))
    parser.add_argument("run", type=Path)
    parser.add_argument("--first", type=int, default=1, help="the first step that is measured")
    options = parser.parse_args()
    config = configuration.load(options.run / "config.yaml")
    model = str(prepare(config.model, list(config.environments), config.seed))
    work = (engine_work if options.part == "engine" else torch_work)(config, model)
    print(json.dumps(measured(options.run, options.first, work)))


if __name__ == "__main__":
    main()
