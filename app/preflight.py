"""What can be known to be wrong before anything expensive starts."""

import importlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.chat import continuation, render
from app.config import Config, EntryConfig, EvalConfig
from app.model_cache import BadPolicy
from app.policy import prepare
from app.policy import tokenizer as load_tokenizer
from environments.base import Sample, Split
from environments.checks import BadEnvironment
from environments.loader import load as load_environment
from environments.multi_turn import MultiTurnEnvironment

logger = logging.getLogger("telescope")
CHECKED_PROMPTS = 200
STREAM_CPUS = 0.2  # what the stages of the stream reserve together, and some room
BLOCK_TOKENS = 128  # vLLM on CPU gives memory to sequences in blocks of at most so many tokens


class Refused(ValueError):
    """The run cannot begin; the message says what to change."""


def check_environments(config: Config) -> None:
    """Every environment can be built and has prompts; evals have held-out ones; the backend can be imported."""
    trained: dict[str, str] = {}
    for entry in config.environments:
        samples = samples_of(entry, "train")
        if not samples:
            raise Refused(f"environment {entry.label!r} has no training samples with kwargs {entry.kwargs}")
        trained |= {sample.problem_id: entry.label for sample in samples} if config.evals else {}
    for evaluation in config.evals:
        check_held_out(evaluation, trained)
    _check_backend(config.backend)


def check_held_out(entry: EvalConfig, trained: Mapping[str, str]) -> None:
    """The eval has prompts, and no environment of the run trains on one of them. trained: problem id → environment."""
    samples = samples_of(entry, "eval")[: entry.num_samples]
    if not samples:
        raise Refused(
            f"eval {entry.label!r}: environment {entry.name!r} has no eval samples with kwargs {entry.kwargs}; give it "
            "a held-out split, or leave the eval out"
        )
    for sample in samples:
        if sample.problem_id in trained:
            raise Refused(
                f"eval {entry.label!r}: its problem {sample.problem_id} is also trained on, by environment "
                f"{trained[sample.problem_id]!r}: {sample.prompt!r:.200}"
            )


def samples_of(entry: EntryConfig, split: Split) -> Sequence[Sample]:
    """The samples of a split. What a user's code does wrong, even `sys.exit()`, is a refusal that names it."""
    who = f"environment {entry.label!r}"
    try:
        found = load_environment(entry.name, entry.kwargs).samples(split)
    except BadEnvironment as error:
        raise Refused(str(error)) from error
    except (Exception, SystemExit) as error:
        raise Refused(
            f"{who} with kwargs {entry.kwargs}: samples({split!r}) raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, Sequence) or not all(isinstance(sample, Sample) for sample in found):
        raise Refused(f"{who}: samples({split!r}) must return a list of Sample, got {type(found).__name__}")
    return found


def _check_backend(name: str) -> None:
    if name == Config.model_fields["backend"].default:
        return  # ours is there, and importing it takes seconds
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise Refused(f"backend {name!r} cannot be imported: {error}") from error
    if not hasattr(found, "train_step"):
        raise Refused(f"backend {name!r} has no train_step; subclass app.trainer:Trainer")


def policy_of(config: Config) -> Path | str:
    """The folder (or hub name) of the policy, built first where the config names one of ours."""
    try:
        return prepare(config.model, list(config.environments), config.seed)
    except (BadEnvironment, BadPolicy, NotImplementedError) as error:  # the last: no worked examples
        raise Refused(str(error)) from error


def check_prompts(config: Config, model: Path | str) -> str:
    """The first prompts of each environment fit; returns the tokenizer's end token, "" where it has none."""
    tokenizer = load_tokenizer(model)
    splits: list[tuple[EntryConfig, Split]] = [(entry, "train") for entry in config.environments]
    for entry, split in [*splits, *((entry, "eval") for entry in config.evals)]:
        for sample in samples_of(entry, split)[:CHECKED_PROMPTS]:
            try:
                length = len(render(tokenizer, sample.prompt))
            except BadPolicy as error:
                raise Refused(f"environment {entry.label!r}, {sample.prompt!r:.200}: {error}") from error
            if length > config.max_prompt_tokens:
                raise Refused(
                    f"environment {entry.label!r}: a prompt has {length} tokens, max_prompt_tokens is "
                    f"{config.max_prompt_tokens}; raise it (and seq_len, where set): {sample.prompt!r:.200}"
                )
        _check_replies(entry, tokenizer)
    return tokenizer.eos_token or ""


def _check_replies(entry: EntryConfig, tokenizer: Any) -> None:
    """The model's chat template knows the roles in which a multi-turn environment answers."""
    environment = load_environment(entry.name, entry.kwargs)
    for role in environment.reply_roles if isinstance(environment, MultiTurnEnvironment) else ():
        try:
            continuation(tokenizer, [{"role": role, "content": "x"}], (), is_closed=True)
        except BadPolicy as error:
            raise Refused(
                f"environment {entry.label!r} answers as {role!r}: {error}; set its reply_roles to what the "
                "model knows, like ('user',)"
            ) from error


def metric_ranges(config: Config) -> list[dict[str, Any]]:
    """What metrics must know of each environment and eval, by label; an eval of a label of both adds its pass_k."""
    evals = {entry.label: entry for entry in config.evals}
    entries = evals | {entry.label: entry for entry in config.environments}
    return [
        {
            "name": label,
            "reward_min": entry.reward_min,
            "reward_max": entry.reward_max,
            "metrics_ranges": load_environment(entry.name, entry.kwargs).metrics_ranges,
            **({"pass_k": list(evals[label].pass_k)} if label in evals else {}),
        }
        for label, entry in entries.items()
    ]


def use_gpu(config: Config, resources: Mapping[str, float], trains: bool = True) -> bool:
    """Whether this run uses GPUs; refuses one that asks for more than the cluster has. An evaluation trains not."""
    gpus = resources.get("GPU", 0)
    num_workers = config.num_workers if trains else 0
    chosen = gpus > 0 if config.use_gpu == "auto" else config.use_gpu
    wanted = reserved(config, chosen, trains)
    if wanted.get("GPU", 0) > gpus:
        raise Refused(
            f"use_gpu: {num_workers} workers and {config.num_engines} engines of "
            f"{config.engine.tensor_parallel} need {wanted['GPU']:g} GPUs, the cluster has {gpus:g}; lower num_workers "
            "or num_engines, or set use_gpu: false"
        )
    if wanted.get("CPU", 0) > resources.get("CPU", 0):
        raise Refused(
            f"{num_workers} workers and {config.num_engines} engines reserve {wanted['CPU'] - STREAM_CPUS:g} CPUs, the "
            f"cluster has {resources.get('CPU', 0):g}; lower num_workers, num_engines, cpus_per_worker or engine.cpus"
        )
    return bool(chosen)


def engine_gpus(config: Config) -> float:
    """GPUs that Ray reserves for one engine."""
    return config.engine.tensor_parallel if config.engine.tensor_parallel > 1 else config.engine.gpus


def reserved(config: Config, on_gpu: bool, trains: bool = True) -> dict[str, float]:
    """What Ray reserves for the run, by resource: GPUs, or where it uses none CPUs."""
    num_workers = config.num_workers if trains else 0
    if on_gpu:
        return {"GPU": num_workers * config.gpus_per_worker + config.num_engines * engine_gpus(config)}
    return {"CPU": num_workers * config.cpus_per_worker + config.num_engines * config.engine.cpus + STREAM_CPUS}


def check_engine(config: Config, model: Path | str, use_gpu: bool, nodes: Sequence[float]) -> None:
    """The longest sample fits the model's positions. On CPU it also fits the key-value cache, and the engines fit the
    memory of the nodes, in bytes."""
    file = Path(model) / "config.json"
    if not file.is_file():
        return  # a hub name: the engine checks it when it has the model
    shape = json.loads(file.read_text())
    positions = shape.get("max_position_embeddings")
    length = config.engine.max_model_len
    if positions is not None and length > positions:
        raise Refused(
            f"engine.max_model_len is {length}, but {model} was made for {positions} positions; lower "
            "max_prompt_tokens or max_tokens"
        )
    if not use_gpu:
        _check_cache(config, shape)
        weights_bytes = sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))
        _check_memory(config, weights_bytes, nodes)


def _check_cache(config: Config, shape: Mapping[str, Any]) -> None:
    """The key-value cache holds a sequence of the longest length; says so when it holds fewer than may be decoded."""
    engine = config.engine
    length, block = engine.max_model_len, block_bytes(shape)
    needed = -(-length // BLOCK_TOKENS)
    blocks = (engine.kv_cache_mb << 20) // block - 1  # vLLM keeps one empty
    if blocks < needed:
        raise Refused(
            f"engine.kv_cache_mb is {engine.kv_cache_mb}, but one sequence of {length} tokens needs "
            f"{-(-(needed + 1) * block >> 20)} MiB; raise it or lower max_tokens"
        )
    if blocks // needed < engine.max_num_seqs:
        logger.warning(
            "engine.kv_cache_mb %d holds %d sequences of %d tokens, engine.max_num_seqs is %d: longer ones wait for "
            "each other",
            *(engine.kv_cache_mb, blocks // needed, length, engine.max_num_seqs),
        )


def _check_memory(config: Config, weights_bytes: int, nodes: Sequence[float]) -> None:
    """vLLM takes the memory of its cache without asking, and the machine would end one of its processes."""
    engine_bytes = (config.engine.kv_cache_mb << 20) + weights_bytes
    if sum(node // engine_bytes for node in nodes) < config.num_engines:
        there = " + ".join(str(_mib(node)) for node in nodes)
        raise Refused(
            f"engine.kv_cache_mb is {config.engine.kv_cache_mb}: num_engines {config.num_engines} with "
            f"{_mib(engine_bytes)} MiB each, weights included, do not fit the {there} MiB that Ray has; lower "
            "kv_cache_mb or num_engines"
        )


def _mib(size: float) -> int:
    return math.ceil(size / (1 << 20))


def block_bytes(shape: Mapping[str, Any]) -> int:
    """Bytes of the float32 keys and values of a whole block of tokens."""
    heads = shape["num_attention_heads"]
    size = shape.get("head_dim") or shape["hidden_size"] // heads
    return 2 * shape["num_hidden_layers"] * shape.get("num_key_value_heads", heads) * size * 4 * BLOCK_TOKENS
