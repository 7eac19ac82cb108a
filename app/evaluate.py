"""Evaluate a policy by itself: what the evals of a run would say of it.

    python -m app.evaluate MODEL_OR_RUN [CONFIG] [key=value …] [--out FILE.parquet]

MODEL_OR_RUN is a model as a configuration would name it, or a run directory, of which the newest checkpoint is taken.
CONFIG lists `evals`; what it says of training is not looked at. Without it, a run is evaluated by its own. Uses the Ray
cluster that RAY_ADDRESS names, or a local one. Exit status: 0 evaluated, 1 failed, 2 refused before it began.
"""

import argparse
import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import polars as pl
import pyarrow.parquet as pq
import ray
from ray import serve

from app import config as configuration
from app import preflight
from app.config import Config, ConfigError
from app.config_errors import Problem
from app.engine import deploy, dtype_name
from app.evaluator import Evals, Evaluated
from app.failure import reason_of
from app.run_context import answer, connect, node_memory
from app.run_dir import RunDir, RunError, application_of, namespace_of
from app.sealed import newest, step_of
from app.text_table import line
from app.weights import STORE_NAME, WeightStore, buckets
from metrics.evals import eval_metrics
from metrics.values import asked_pass_k, maxima

logger = logging.getLogger("telescope")
PUBLISH_TIMEOUT_S = 600


@dataclass(frozen=True)
class Policy:
    """What is evaluated: a model, and the weights of a checkpoint over its own."""

    model: str
    checkpoint: Path | None = None

    @property
    def step(self) -> int:
        return 0 if self.checkpoint is None else step_of(self.checkpoint)


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        policy, config = _chosen(options)
        for entry in config.evals:
            preflight.check_held_out(entry, {})
        model = preflight.policy_of(config)
        eos_token = preflight.check_prompts(config, model)
    except (ConfigError, RunError, preflight.Refused) as error:
        print(error, file=sys.stderr)
        return 2
    try:
        done = evaluate(config, policy, str(model), eos_token)
    except preflight.Refused as error:
        print(error, file=sys.stderr)
        return 2
    except Exception as error:
        logger.exception("the evaluation failed")
        print(f"the evaluation failed: {reason_of(error)}", file=sys.stderr)
        return 1
    pq.write_table(done.rows, options.out)
    values = values_of(config, done)
    print("\n".join(table(config, policy, values)))
    print(f"rows: {options.out}")
    return 0 if all(f"eval/{entry.label}/reward_mean" in values for entry in config.evals) else 1


def evaluate(config: Config, policy: Policy, model: str, eos_token: str) -> Evaluated:
    """Starts engines with the policy's weights, evaluates, and takes everything down again."""
    was_connected = ray.is_initialized()
    connect()
    run_id = f"evaluate-{secrets.token_hex(4)}"
    try:
        use_gpu = preflight.use_gpu(config, ray.cluster_resources(), trains=False)
        preflight.check_engine(config, model, use_gpu, node_memory())
        weights = WeightStore.options(name=STORE_NAME, namespace=namespace_of(run_id)).remote()  # type: ignore[attr-defined]
        if policy.checkpoint is not None:
            arrays = buckets(_restored(model, policy.checkpoint, dtype_name(config, use_gpu)))
            answer(weights.publish.remote(policy.step, *arrays), PUBLISH_TIMEOUT_S, "the weight store")
        with _engines(config, run_id, model, use_gpu):
            evals = Evals(config, run_id, model, eos_token)
            try:
                return asyncio.run(evals.evaluate(policy.step, config.evals))
            finally:
                evals.close()
    finally:
        if not was_connected:
            ray.shutdown()


def values_of(config: Config, done: Evaluated) -> dict[str, float]:
    """The eval/* metrics, as a run would log them."""
    rows = pl.from_arrow(done.rows)
    assert isinstance(rows, pl.DataFrame)
    ranges = preflight.metric_ranges(config)
    return done.values | eval_metrics(rows, maxima(ranges), asked_pass_k(ranges))


def table(config: Config, policy: Policy, values: Mapping[str, float]) -> Iterator[str]:
    """The lines that a person reads: a table for each eval, a line for each metric."""
    for entry in config.evals:
        own = {
            key.removeprefix(f"eval/{entry.label}/"): value for key, value in values.items() if _is_of(entry.label, key)
        }
        passes = [f"{kind}{k}" for k in entry.pass_k for kind in ("pass@", "pass^")]
        yield f"{entry.label}: {entry.num_samples} prompts, {entry.completions} completions each, step {policy.step}"
        yield line("metric", ["mean", "± error", *passes])
        for name in sorted(key.removesuffix("_requested_mean") for key in own if key.endswith("_requested_mean")):
            keys = [f"{name}_mean", f"{name}_stderr", *(f"{k}/{name}" for k in passes)]
            yield line(name, [f"{own[key]:.4g}" if key in own else "-" for key in keys])
        yield f"  problems without a judged completion: {own.get('errored', 0):g}"


def _is_of(label: str, key: str) -> bool:
    return key.startswith(f"eval/{label}/")


@contextmanager
def _engines(config: Config, run_id: str, model: str, use_gpu: bool) -> Iterator[None]:
    try:
        deploy(config, run_id, model, namespace_of(run_id), use_gpu)
        yield
    finally:
        serve.delete(application_of(run_id))


def _restored(model: str, checkpoint: Path, dtype: str) -> Iterator[tuple[str, Any]]:
    """(name, parameter) of the model with the weights of a checkpoint of its training."""
    import torch
    from transformers import AutoModelForCausalLM

    from app.export import load_weights
    from app.fsdp import full_parameters

    policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    load_weights(checkpoint, policy)
    return full_parameters(policy, getattr(torch, dtype))


def _chosen(options: argparse.Namespace) -> tuple[Policy, Config]:
    """The policy, and the configuration of its evaluation. Raises ConfigError and RunError with what to change."""
    run = RunDir(Path(options.model))
    if not (run.path / "run.json").is_file():
        if options.config is None:
            raise RunError(f"{options.model!r} is no run directory: give a configuration that lists evals")
        return Policy(options.model), _config(Path(options.config), options.overrides, options.model)
    trained = configuration.load(run.config_path)
    checkpoint = newest(run.checkpoints)
    if checkpoint is None:
        raise RunError(
            f"run {run.id!r} has no checkpoint; set checkpoint_every, or evaluate its model {trained.model!r}"
        )
    file = run.config_path if options.config is None else Path(options.config)
    # The embedded policy is made for the environments of its training.
    model = trained.model if trained.model != "embedded" else str(preflight.policy_of(trained))
    return Policy(model, checkpoint), _config(file, options.overrides, model)


def _config(path: Path, overrides: list[str], model: str) -> Config:
    """A configuration with what an evaluation needs; what only training needs is filled in."""
    data = configuration.data_of(path)
    evals = data.get("evals")
    if not evals or not isinstance(evals, list):
        raise ConfigError(str(path), [Problem("evals", "there are none: list at least one, such as [{name: sums}]")])
    shown = [entry for entry in evals if isinstance(entry, Mapping)]
    environments = [{key: entry[key] for key in ("name", "label", "kwargs") if key in entry} for entry in shown]
    needed = {"name": "evaluation", "steps": 1, "environments": environments}
    return configuration.from_dict({**needed, **data, "model": model}, overrides, str(path))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m app.evaluate", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", metavar="MODEL_OR_RUN", help="a model, or a run directory")
    config = "a YAML file that lists evals (by default the run's own), then key=value with dotted keys"
    parser.add_argument("words", metavar="[CONFIG] [key=value …]", nargs="*", help=config)
    parser.add_argument("--out", default="evaluation.parquet", help="file for the rows (default: %(default)s)")
    options = parser.parse_intermixed_args(arguments)  # options may stand between the overrides
    if not Path(options.out).parent.is_dir():
        parser.error(f"--out {options.out}: there is no folder {Path(options.out).parent}")
    named = options.words[:1] if options.words and "=" not in options.words[0] else []
    options.config, options.overrides = (*named, None)[0], options.words[len(named) :]
    return options


if __name__ == "__main__":
    sys.exit(main())
