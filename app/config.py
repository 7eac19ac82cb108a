"""One run, described completely: read from YAML 1.2, refused early, frozen after.

Three layers, the later one wins: the defaults below, a file, `key=value` overrides. A value that follows from
others when it is left out (or null) is filled in before checking, so the copy that a run saves is complete.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from app import config_checks, config_text
from app.config_entries import (
    EntryConfig,
    EnvironmentConfig,
    EvalConfig,
    choices_of_this_machine,
    evals_of_environments,
)
from app.config_errors import ConfigError, Problem, Problems, changes, explain, shown
from app.config_section import Count, CountOrZero, Fraction, NotNegative, Positive, Section
from app.filters import FiltersConfig

__all__ = [
    "Config",
    "ConfigError",
    "EngineConfig",
    "EntryConfig",
    "EnvironmentConfig",
    "EvalConfig",
    "FiltersConfig",
    "Section",
    "check_name",
    "dump",
    "from_dict",
    "load",
    "refuse_files",
    "resumed",
]

Algorithm = Literal["grpo", "rloo", "reinforce_pp", "dr_grpo", "cispo", "gspo", "sapo"]

SelfCheck = Literal[
    "ledger_balance",
    "group_advantage_sum",
    "on_policy_ratio",
    "on_policy_kl",
    "mismatch",
    "probe",
    "engine_version",
    "entropy_collapse",
    "groups_tied",
    "finite_values",
    "updates_done",
    "engine_logprobs",
    "metrics_keep_up",
    "scored_samples",
    "one_bin",
    "late_rows",
    "samples_missing",
    "steps_skipped",
    "sample_metrics",
    "store",
]

NAME_RULE = (
    "a name has 1 to 63 characters, each one of a-z, A-Z, 0-9, '.', '_' and '-', begins and ends with a "
    "letter or digit, and is not a device name (con, prn, aux, nul, com0-9, lpt0-9)"
)
NAME = re.compile(
    r"(?!(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|\Z))[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?",
    re.IGNORECASE | re.ASCII,
)
BACKEND_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)

# From the papers. GSPO's ratio is a mean over a sequence, so 100 times closer to 1; CISPO has no lower bound.
CLIP_DEFAULTS = {"gspo": (3e-4, 4e-4), "cispo": (1.0, 4.0)}
NORM_DEFAULTS = {"reinforce_pp": "batch", "rloo": "none", "dr_grpo": "none"}

# What a resumed run may change: where and how it computes, not what is learnt from what.
RESUMABLE = (
    "num_workers",
    "cpus_per_worker",
    "gpus_per_worker",
    "use_gpu",
    "trainer_threads",
    "num_engines",
    "engine",
    "seq_len",
    "gradient_checkpointing",
    "weight_transfer",
    "checkpoint_every",
    "keep_last",
    "keep_every",
    "stall_timeout_s",
    "priority",
)


def check_name(name: str) -> str:
    """The one rule for names that become folders; returns the name or raises ValueError with the rule."""
    if not NAME.fullmatch(name):
        raise ValueError(NAME_RULE)
    return name


class SeqMaskConfig(Section):
    low: NotNegative
    """Lowest allowed geometric mean of a sample's trainer/engine probability ratio."""
    high: Positive
    """Highest allowed one."""


class EngineConfig(Section):
    kv_cache_mb: Count = 160
    """Memory of the key-value cache of one engine on CPU, in MiB. Sequences that it has no room for wait."""
    max_model_len: Count
    """Longest prompt plus completion, in tokens; by default max_prompt_tokens + max_tokens."""
    max_num_seqs: Count = 128
    """Most sequences that one engine decodes at once."""
    enforce_eager: bool = True
    """Skip graph capture and compilation: starts faster, decodes slower on GPUs."""
    cpus: NotNegative = 0.4
    """CPUs that Ray reserves for one engine without GPUs; a fraction lets two runs share a laptop."""
    gpus: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a GPU that Ray reserves for an engine without tensor parallelism; below 1 a trainer can have the rest.
    gpu_memory_utilization has to leave room for it."""
    tensor_parallel: Count = 1
    """GPUs that share one engine."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Share of a GPU's memory that one engine takes."""


class WandbConfig(Section):
    project: Annotated[str, Field(min_length=1)]
    """Weights & Biases project."""
    mode: Literal["online", "offline"] = "online"
    """offline writes the W&B files without a network."""
    entity: str | None = None
    """W&B user or team; the account's default when null."""


class Config(Section):
    name: str
    """Name of the run; its directory begins with it."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Seeds prompts, sampling, shuffles and initial weights."""
    model: Annotated[str, Field(min_length=1, max_length=500)]
    """'embedded', 'smollm2', a folder in Hugging Face format, or a model's name on the hub."""
    steps: Count
    """Trainer steps of the run."""
    environments: Annotated[list[EnvironmentConfig], Field(min_length=1)]
    """What is learnt, and in which proportion."""

    prompts_per_step: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    """Groups in a batch."""
    group_size: Count = 8
    """Completions sampled per prompt."""
    groups_per_ticket: Count = 1
    """Groups admitted to sampling at once; must divide prompts_per_step."""
    max_prompt_tokens: Count = 256
    """Longest prompt, in tokens; longer ones are errors with a reason."""
    max_tokens: Count = 256
    """Longest completion in tokens, all turns and the environment's words together; longer ones are cut and marked."""
    temperature: Positive = 1.0
    """Sampling temperature; logits are divided by it in the engine and in the trainer."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling; below 1 only without any ratio against the engine's log-probabilities."""

    algorithm: Algorithm = "grpo"
    """Advantage and token loss."""
    advantage_norm: Literal["group", "batch", "none"]
    """Whose standard deviation divides the advantages; by default what the algorithm defines."""
    aggregation: Literal["token_mean", "sequence_mean", "token_sum_norm"]
    """How token losses become one number; by default token_mean, and sequence_mean for gspo."""
    use_ppo_clip: bool = False
    """Clip the probability ratio in grpo, rloo, reinforce_pp and dr_grpo."""
    ppo_clip_ref_logprobs: Literal["batch", "rollout"] = "batch"
    """Denominator of the ratio: the trainer's log-probabilities at the start of the step, or the engine's."""
    clip_low: Fraction
    """The ratio is clipped below 1 - clip_low; by default 0.2 (gspo 0.0003, cispo 1: no lower bound)."""
    clip_high: NotNegative
    """The ratio is clipped above 1 + clip_high; by default 0.2 (gspo 0.0004, cispo 4)."""
    clip_ratio_c: Annotated[float, Field(gt=1)] | None = None
    """Dual clip: where the advantage is negative the loss is at most this times its size; null is off."""
    use_tis: bool = True
    """Multiply token losses by the trainer/engine probability ratio (importance correction)."""
    tis_mode: Literal["truncate", "icepop"] = "truncate"
    """truncate bounds the weight to [tis_floor, tis_cap]; icepop drops tokens outside."""
    tis_cap: Positive = 2.0
    """Largest importance weight."""
    tis_floor: NotNegative = 0.0
    """Smallest importance weight."""
    tis_logprob_clamp: Annotated[float, Field(gt=0, le=80)] = 20.0
    """Bound on the log-probability difference before it is exponentiated."""
    seq_is_masking: SeqMaskConfig | None = None
    """Leave out samples whose mean trainer/engine ratio is outside [low, high]; null is off."""
    kl_penalty_tau: NotNegative = 0.0
    """Weight of the KL penalty; 0 is off."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the penalty; as a loss, k1 has zero gradient in expectation."""
    kl_reference: Literal["rollout", "initial"] = "initial"
    """Pull towards the policy that sampled, or towards the initial one (a second model in memory)."""
    entropy_coef: NotNegative = 0.0
    """Weight of the entropy bonus; 0 is off."""
    sapo_tau_pos: Positive = 1.0
    """Steepness of SAPO's gate for positive advantages."""
    sapo_tau_neg: Positive = 1.05
    """Steepness of SAPO's gate for negative advantages."""

    learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-6
    """Peak learning rate of AdamW."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape after warm-up."""
    warmup_steps: CountOrZero = 0
    """Steps of linear warm-up; the first update already moves."""
    min_lr_ratio: Fraction = 0.0
    """Last rate of linear and cosine, as a share of learning_rate."""
    weight_decay: NotNegative = 0.0
    """AdamW's decoupled weight decay."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of AdamW's first moment."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of AdamW's second moment."""
    adam_eps: Positive = 1e-8
    """AdamW's epsilon."""
    max_grad_norm: Positive = 1.0
    """Global gradient norm above which the gradient is scaled down."""
    minibatches: Count = 1
    """Optimiser updates per step, over shuffled parts of the batch."""

    packing: bool = True
    """Put several samples in one sequence, which attention does not cross, and the prompt of a group only once; false
    pads each sample to the longest of its micro-batch."""
    seq_len: Count
    """Tokens of one micro-batch, padding included; by default max_prompt_tokens + max_tokens."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""

    max_async_rollout: CountOrZero = 1
    """Batches that sampling may run ahead of the trainer; 0 is strictly on-policy."""
    max_off_policy_steps: CountOrZero
    """Samples with an older token are never trained; by default max_async_rollout."""
    stragglers: Literal["wait", "discard"] = "wait"
    """wait: a step waits for completions that would be too old for the next one. discard: they are aborted and
    replaced, so that no step waits, and short completions are favoured."""
    weight_update: Literal["in_flight", "strict"] = "in_flight"
    """in_flight: completions that are running go on with new weights. strict: they end first, so that no turn mixes
    versions, and the engines stand idle meanwhile."""
    weight_transfer: Literal["object_store", "group"] = "object_store"
    """object_store: weights go through Ray's objects and the CPU. group: over a process group of the trainer's first
    rank and the engines, NCCL on GPUs and gloo on CPUs; an engine that dies during a push then ends the attempt."""
    discard_group_zero_advantage: bool = True
    """Do not train groups whose rewards are all equal; fresh prompts replace them."""
    max_discards_per_step: CountOrZero = 4
    """Discarded groups replaced in a step, in multiples of prompts_per_step; then the batch gets smaller."""
    filters: FiltersConfig = FiltersConfig()
    """Completions that are left out of the loss, and a penalty on long ones."""

    num_workers: Count = 1
    """Trainer processes; the model is sharded over them (FSDP)."""
    cpus_per_worker: NotNegative = 0.4
    """CPUs that Ray reserves for one trainer process; a fraction lets two runs share a laptop."""
    gpus_per_worker: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a GPU that Ray reserves for one trainer process. Two processes on one GPU cannot be in one group."""
    use_gpu: Literal["auto", True, False] = "auto"
    """Train and sample on GPUs; auto uses them when Ray has some."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the forward pass; auto is float32 on CPU and bfloat16 on GPU."""
    trainer_threads: Count = 1
    """Threads of one trainer process on CPU."""
    num_engines: Count = 1
    """Inference engines (Ray Serve replicas)."""
    engine: EngineConfig
    """Settings of each engine."""
    evals: list[EvalConfig] = Field(default_factory=list)
    """Evaluations on held-out prompts. One with the label of an environment above takes over its settings."""
    probe: bool = True
    """After each push compare the engine's log-probabilities with the trainer's on a fixed prompt."""

    stop_on: list[SelfCheck] = Field([])
    """Self-checks whose failure ends the run, with the check as the reason; docs/metrics.md says what each of them is.
    Steps then wait until their metrics are stored."""

    checkpoint_every: CountOrZero = 0
    """Steps between checkpoints; 0 writes none."""
    keep_last: Count = 2
    """Newest checkpoints kept on disk."""
    keep_every: CountOrZero = 0
    """Also keep, for good, the checkpoints of steps that are multiples of this; 0 keeps none."""
    backend: str = "app.trainer:Trainer"
    """The trainer's class, 'package.module:Class'."""
    wandb: WandbConfig | None = None
    """Also send scalars to Weights & Biases; null is off."""
    tensorboard: bool = False
    """Also write scalars as TensorBoard event files, to the run directory's folder 'tensorboard'."""
    runs_dir: Annotated[str, Field(min_length=1)] | None = None
    """Where run directories go; null takes $TELESCOPE_RUNS or ~/telescope_runs."""
    mirror: Annotated[str, Field(min_length=1)] | None = None
    """URL (s3://bucket/folder, gs://…) to which the run directory is copied while it grows; null is off."""
    stall_timeout_s: Positive = 600.0
    """Seconds without progress (a step, an eval that training waits for) after which the run fails with a report
    instead of waiting on. The start has at least ten minutes."""

    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    """Runs for which the cluster has no room wait, and start in this order: the highest first, then the oldest."""

    @property
    def max_sample_tokens(self) -> int:
        """Longest sample, prompt and completion."""
        return self.max_prompt_tokens + self.max_tokens

    def temperature_of(self, label: str) -> float:
        """Sampling temperature of the environment with this label."""
        entry = next(entry for entry in self.environments if entry.label == label)
        return self.temperature if entry.temperature is None else entry.temperature

    @property
    def total_updates(self) -> int:
        """Optimiser updates of the whole run."""
        return self.steps * self.minibatches

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, data: Any) -> Any:
        return _fill_derived(dict(data)) if isinstance(data, Mapping) else data

    @field_validator("name")
    @classmethod
    def _name_is_a_folder(cls, name: str) -> str:
        return check_name(name)

    @field_validator("model", "runs_dir", "mirror")
    @classmethod
    def _printable(cls, text: str | None) -> str | None:
        if text is not None and not text.isprintable():
            raise ValueError("wanted printable characters only")
        return text

    @field_validator("use_gpu", mode="before")
    @classmethod
    def _one_is_not_true(cls, use_gpu: Any) -> Any:
        if not isinstance(use_gpu, str | bool):
            raise ValueError("wanted auto, true or false")
        return use_gpu

    @field_validator("backend")
    @classmethod
    def _backend_is_importable(cls, backend: str) -> str:
        if not BACKEND_NAME.fullmatch(backend):
            raise ValueError("wanted 'package.module:Class'")
        return backend

    @model_validator(mode="after")
    def _combinations(self) -> "Config":
        problems = config_checks.problems(self)
        if problems:
            raise Problems(problems)
        return self


def _default_or(data: Mapping[str, Any], key: str) -> Any:
    return data[key] if key in data else Config.model_fields[key].default


def _fill_derived(data: dict[str, Any]) -> dict[str, Any]:
    """Values that follow from others when they are left out or null.

    Where a value they follow from is itself wrong, any valid number will do: that error is reported.
    """
    limits = [_default_or(data, key) for key in ("max_prompt_tokens", "max_tokens")]
    longest = max(1, sum(limits)) if all(type(limit) is int for limit in limits) else 1
    ahead = _default_or(data, "max_async_rollout")
    algorithm = data["algorithm"] if isinstance(data.get("algorithm"), str) else "grpo"
    clip_low, clip_high = CLIP_DEFAULTS.get(algorithm, (0.2, 0.2))
    derived: dict[str, Any] = {
        "advantage_norm": NORM_DEFAULTS.get(algorithm, "group"),
        "aggregation": "sequence_mean" if algorithm == "gspo" else "token_mean",
        "clip_low": clip_low,
        "clip_high": clip_high,
        "seq_len": longest,
        "max_off_policy_steps": max(0, ahead) if type(ahead) is int else 0,
    }
    data |= {key: value for key, value in derived.items() if data.get(key) is None}
    data |= evals_of_environments(data)
    engine = data.setdefault("engine", {})  # null would be all defaults, whatever a file says: it is refused
    if isinstance(engine, Mapping) and engine.get("max_model_len") is None:
        data["engine"] = {**engine, "max_model_len": longest}
    return data


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file and apply `key=value` overrides; raises ConfigError, which lists every problem."""
    document = config_text.read(Path(path))
    return _validated(document, overrides, source=str(path))


def resumed(path: str | Path, overrides: Sequence[str]) -> Config:
    """The config of a run that goes on with these changes; raises ConfigError for what would make it another run."""
    if isinstance(overrides, str):
        raise TypeError(f"overrides: got the text {shown(overrides)}, wanted a list of such texts")
    document, source = config_text.read(Path(path)), f"run {Path(path).parent.name}"
    before, after = _validated(document, (), source).model_dump(), _validated(document, overrides, source)
    problems = [
        Problem(key, f"is {shown(was)}, got {shown(value)}, and cannot change in a resumed run")
        for key, was, value in changes(before, after.model_dump())
        if key.partition(".")[0] not in RESUMABLE
    ]
    if problems:
        remedy = f"start a new run, or change only {', '.join(RESUMABLE)}"
        raise ConfigError(source, [*problems, Problem("", remedy)])
    return after


def from_dict(data: Mapping[str, Any], overrides: Sequence[str] = (), source: str = "config") -> Config:
    """The same for a mapping that is already parsed; `source` is what error messages call it."""
    return _validated(config_text.Document(dict(data), {}), overrides, source)


def refuse_files(config: Config, source: str = "config") -> None:
    """For configurations that come over a network: no environment or data from a file of this machine, no sandbox, no
    place to send a run to."""
    if config.mirror is not None:
        raise ConfigError(source, [Problem("mirror", "where runs are copied is for the command line to choose")])
    for section, entries in (("environments", config.environments), ("evals", config.evals)):
        for i, entry in enumerate(entries):
            if problems := choices_of_this_machine(f"{section}.{i}", entry):
                raise ConfigError(source, problems)


def data_of(path: str | Path) -> dict[str, Any]:
    """What a configuration file says, read and not validated: for one that another version wrote."""
    return config_text.read(Path(path)).data


def dump(config: Config) -> str:
    """The resolved config as YAML; loading it gives an equal Config."""
    return config_text.write(config.model_dump())


def _validated(document: config_text.Document, overrides: Sequence[str], source: str) -> Config:
    data, origins = config_text.apply_overrides(document, overrides, source)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(source, explain(error, data, Config), origins) from None
