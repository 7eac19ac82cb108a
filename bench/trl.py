"""Our loop beside TRL's GRPOTrainer on the load of bench.loop, in turn: CPU and wall seconds a step, samples a second,
and the sampled tokens a step, which say whether both had the same load.

    python -m bench.trl [--rounds 2] [--steps 20] [key=value …]

Same model, prompts, reward, group size, lengths and float32; one thread for each process that computes. TRL generates
with transformers, as it does without a GPU, and is one process; ours are all processes of the cluster. Needs the extra
trl (docs/development.md).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from app.chat import render
from app.config import Config, from_dict
from app.policy import prepare, tokenizer
from bench.family import Family
from bench.loop import CONFIG, WARM_UP_STEPS, Cost, measure, tokens, whole
from environments.loader import load


def trl_steps(config: Config) -> list[tuple[float, float, int]]:
    """(CPU seconds, monotonic seconds, sampled tokens so far) at the end of each step of TRL, in this process."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    entry = config.environments[0]
    environment: Any = load(entry.name, entry.kwargs)
    model = str(prepare(config.model, list(config.environments), config.seed))
    words = tokenizer(model)
    samples = {as_text(words, sample.prompt): sample for sample in environment.samples("train")}
    family, readings, lengths = Family(), [], []

    def reward(
        prompts: list[str], completions: list[str], completion_ids: list[list[int]], **columns: Any
    ) -> list[float]:
        lengths.extend(map(len, completion_ids))
        pairs = zip(prompts, completions, strict=True)
        return [environment.compute_reward(text, samples[prompt]).total_reward for prompt, text in pairs]

    class Clock(TrainerCallback):
        def on_step_end(self, *arguments: Any, **named: Any) -> None:
            readings.append((family.cpu_s(), time.monotonic(), sum(lengths)))

    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="bench-trl-"),
        per_device_train_batch_size=config.prompts_per_step * config.group_size,
        num_generations=config.group_size,
        max_completion_length=config.max_tokens,
        max_steps=config.steps,
        learning_rate=config.learning_rate,
        temperature=config.temperature,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in samples]),
        processing_class=words,
        callbacks=[Clock()],
    ).train()
    return readings


def as_text(words: Any, prompt: str) -> str:
    """What TRL, which applies no chat template to a text, reads as the ids that our sampler makes of the prompt."""
    ids = render(words, prompt)
    for text in (prompt, words.decode(ids)):
        if words(text)["input_ids"] == ids:
            return text
    raise ValueError(f"TRL cannot read the ids that our sampler makes of {prompt!r}: {ids}")


def of_trl(overrides: list[str]) -> tuple[Cost, float]:
    """What a step costs, and its sampled tokens."""
    command = [sys.executable, "-m", "bench.trl", "--child", *overrides]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=environment)
    readings = json.loads(done.stdout.splitlines()[-1])
    first, last = readings[WARM_UP_STEPS - 1], readings[-1]
    steps = len(readings) - WARM_UP_STEPS
    cpu_s, wall_s, sampled = ((end - start) / steps for start, end in zip(first, last, strict=True))
    return Cost(cpu_s, wall_s), sampled


def report(overrides: list[str], rounds: int, config: Config) -> None:
    samples = config.prompts_per_step * config.group_size
    for number in range(1, rounds + 1):
        readings, run = measure(config.steps, overrides)
        found = {"ours": (whole(readings), tokens(run)), "TRL": of_trl([*overrides, f"steps={config.steps}"])}
        for name, (cost, sampled) in found.items():
            print(
                f"round {number}  {name:<5} CPU s a step {cost.cpu_s:7.2f}   wall s {cost.wall_s:7.2f}   "
                f"samples/s {samples / cost.wall_s:7.1f}   tokens {sampled:6.0f}   load {os.getloadavg()[0]:.1f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args()
    config = from_dict(CONFIG | {"steps": options.steps}, options.overrides)
    if options.child:
        print(json.dumps(trl_steps(config)))
    else:
        report(options.overrides, options.rounds, config)


if __name__ == "__main__":
    main()
