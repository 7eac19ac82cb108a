"""The entries of `environments` and `evals` in a configuration: which environment, and how it is sampled and scored."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, JsonValue, field_validator, model_validator

from app.config_errors import Problem, check_finite
from app.config_section import Count, NotNegative, Positive, Seconds, Section

ENVIRONMENT_NAME = re.compile(r"[A-Za-z_]\w*|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
# A path ends in .py. Made absolute where it is read: a run may work in another folder.
ENVIRONMENT_FILE = re.compile(r"(.+\.py)((?::[A-Za-z_]\w*)?)", re.ASCII)
# Arguments of an environment that name a file of this machine, or the code that keeps a program inside.
LOCAL_KWARGS = {
    "path": "a file of this machine is",
    "eval_path": "a file of this machine is",
    "sandbox": "what runs a model's code is",
    "sandbox_kwargs": "what runs a model's code is",
}
HUB_NAME = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?", re.ASCII)
# Sections of built-in metric keys: an environment of that name could shadow one of them.
RESERVED_LABELS = frozenset(
    {"reward", "generated", "eval", "loss", "clip", "importance", "mismatch", "tokens", "throughput"}
    | {"ledger", "train", "rollout", "probe", "metrics", "engine"}
)


class EntryConfig(Section):
    """What an environment needs, in training as in an eval."""

    name: str
    """A file in environments/, an entry point, an importable 'package.module:Class', or the path of a .py file."""
    label: str
    """The environment's name in metrics; by default its name. Tells two entries of one environment apart."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Nucleus sampling of this environment; null takes the run's."""
    max_tokens: Count | None = None
    """Longest completion of this environment, at most the run's max_tokens; null takes that."""
    max_turn_tokens: Count | None = None
    """Longest turn of the policy in a conversation, in tokens; null is what is left of max_tokens."""
    reward_min: float | None = None
    """Lowest reward this environment can give; sets chart ranges only."""
    reward_max: float | None = None
    """Highest reward this environment can give; sets chart ranges only."""
    kwargs: dict[str, JsonValue] = Field({})
    """Arguments of the environment's constructor."""
    reward_timeout_s: Seconds = 10.0
    """Longest time of one reward, in seconds; then the sample is an error and the process is replaced."""
    turn_timeout_s: Seconds = 30.0
    """Longest time of one answer in a conversation, with its tool calls; then the same happens."""
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    """Processes that run this environment's code side by side."""

    @model_validator(mode="before")
    @classmethod
    def _label_from_name(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("label") is None:
            name = data.get("name")
            return {**data, "label": _label_of(name) if isinstance(name, str) else "unnamed"}
        return data

    @field_validator("name")
    @classmethod
    def _name_is_importable(cls, name: str) -> str:
        # First, for "own.py:One" also reads as a module "py" of a package "own".
        if (file := ENVIRONMENT_FILE.fullmatch(name)) and name.isprintable():
            return f"{Path(file[1]).expanduser().absolute()}{file[2]}"
        if ENVIRONMENT_NAME.fullmatch(name):
            return name
        wanted = "the name of a file in environments/ (without .py), 'package.module:Class', or the path of a .py file"
        raise ValueError(f"wanted {wanted}")

    @field_validator("label")
    @classmethod
    def _label_is_one_key_part(cls, label: str) -> str:
        if not 1 <= len(label) <= 100 or "/" in label or not label.isprintable():
            raise ValueError("wanted 1 to 100 printable characters without '/': it becomes one part of a metric key")
        if label in RESERVED_LABELS:
            raise ValueError("this is a section of built-in metrics; set another label")
        return label

    @field_validator("kwargs")
    @classmethod
    def _kwargs_are_finite(cls, kwargs: dict[str, JsonValue]) -> dict[str, JsonValue]:
        check_finite(kwargs)
        return kwargs


class EnvironmentConfig(EntryConfig):
    weight: Positive = 1.0
    """Share of the prompts, relative to the other entries."""
    curriculum: list[list[float]] | None = None
    """[[step, weight], ...] in place of weight, linear in between; a step here is a batch of prompts drawn."""
    temperature: Positive | None = None
    """Sampling temperature of this environment, in the engine and in the trainer; null takes the run's."""

    @field_validator("curriculum")
    @classmethod
    def _curriculum_is_a_curve(cls, curriculum: list[list[float]] | None) -> list[list[float]] | None:
        if curriculum is None:
            return None
        steps = [point[0] for point in curriculum if len(point) == 2]
        if not steps or len(steps) < len(curriculum) or steps[0] != 0 or steps != sorted(set(steps)):
            raise ValueError("wanted [[0, weight], [step, weight], ...] with rising steps")
        if any(weight < 0 for _, weight in curriculum):
            raise ValueError("wanted weights of at least 0")
        return curriculum


class EvalConfig(EntryConfig):
    eval_every: Count = 10
    """Steps between evaluations; there is one before training and one after it, too."""
    num_samples: Count = 64
    """Prompts: the first ones of the environment's eval split, which never trains."""
    pass_k: Annotated[list[Count], Field(min_length=1)] = Field(default_factory=lambda: [1])
    """For which k to tell how often one of k completions, and all k, are right."""
    completions: Count
    """Completions of each prompt; by default the largest of pass_k."""
    temperature: NotNegative = 1.0
    """Sampling temperature; 0 is greedy."""

    @model_validator(mode="before")
    @classmethod
    def _completions_for_pass_k(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("completions") is not None:
            return data
        wanted = data.get("pass_k", [1])
        are_counts = isinstance(wanted, list) and wanted and all(type(k) is int for k in wanted)
        return {**data, "completions": max(1, *wanted) if are_counts else 1}


def _label_of(name: str) -> str:
    """The label of an environment that has none: its name, or the name of its file."""
    if file := ENVIRONMENT_FILE.fullmatch(name):
        return Path(file[1]).stem
    return name if ENVIRONMENT_NAME.fullmatch(name) else "unnamed"


def evals_of_environments(data: Mapping[str, Any]) -> dict[str, Any]:
    """The evals, those of an environment of the run with its name and settings where they say nothing else."""
    environments, evals = data.get("environments"), data.get("evals")
    if not isinstance(environments, list) or not isinstance(evals, list):
        return {}
    known = {entry.get("label") or entry.get("name"): entry for entry in environments if isinstance(entry, Mapping)}
    shared = EntryConfig.model_fields.keys() - {"name", "label"}
    return {
        "evals": [
            {
                **{key: value for key, value in known[entry["name"]].items() if key in shared},
                "label": entry["name"],
                **entry,
                "name": known[entry["name"]]["name"],
            }
            if isinstance(entry, Mapping) and entry.get("name") in known
            else entry
            for entry in evals
        ]
    }


def choices_of_this_machine(key: str, entry: EntryConfig) -> list[Problem]:
    """What in an entry is for the command line only: files of this machine, and what runs a model's code."""
    if ENVIRONMENT_FILE.fullmatch(entry.name):
        why = "the path of a file is for the command line; use the name of an installed environment"
        return [Problem(f"{key}.name", why)]
    problems = [
        Problem(f"{key}.kwargs.{name}", f"{what} for the command line to choose; leave it out")
        for name, what in LOCAL_KWARGS.items()
        if name in entry.kwargs
    ]
    dataset = entry.kwargs.get("dataset_name")
    if isinstance(dataset, str) and not HUB_NAME.fullmatch(dataset):
        problems.append(Problem(f"{key}.kwargs.dataset_name", "wanted the name of a data set on the hub"))
    return problems
