"""Find an environment by name and build it with its settings; refuse what it does not take."""

import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from environments.base import BaseEnvironment, Sample
from environments.checks import BadEnvironment, raised, ranges, shown
from environments.function import FunctionEnvironment
from environments.multi_turn import MultiTurnEnvironment, State

Loaded = BaseEnvironment | FunctionEnvironment

# Files of this folder that are not environments.
MACHINERY = frozenset(
    {"base", "batch", "checks", "child", "function", "loader", "multi_turn", "parts", "pool", "score", "tool_calls"}
    | {"tool_schema", "tools", "turn", "worker"}
)
BASES = frozenset({"environments.base", "environments.multi_turn", "environments.tools"})


def available() -> list[str]:
    """The environments that are files of this folder."""
    files = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(name for name in files if name.isidentifier() and name not in MACHINERY and not name.startswith("_"))


def is_multi_turn(name: str) -> bool:
    """Whether an environment answers back. Imports it, builds nothing."""
    target, _ = _target(name)
    return inspect.isclass(target) and issubclass(target, MultiTurnEnvironment)


def load(name: str, kwargs: Mapping[str, Any]) -> Loaded:
    """A file of this folder by its name, or anything importable as "package.module:Class" or ":function"."""
    target, module = _target(name)
    if not inspect.isfunction(target):
        return _built(name, target, kwargs)
    if kwargs:
        raise BadEnvironment(f"environment {name!r} is a bare function and takes no settings, got {sorted(kwargs)}")
    return _function(name, target, module)


def _function(name: str, target: Any, module: ModuleType) -> FunctionEnvironment:
    declared = ranges(getattr(module, "metrics_ranges", {}), f"environment {name!r}")
    try:
        return FunctionEnvironment(target, name, getattr(module, "samples", None), declared)
    except (TypeError, ValueError) as error:
        raise BadEnvironment(f"environment {name!r}: {error}") from None


def _built(name: str, target: type[BaseEnvironment], kwargs: Mapping[str, Any]) -> BaseEnvironment:
    _check_kwargs(name, target, kwargs)
    ranges(target.metrics_ranges, f"environment {name!r}")
    _check_signatures(name, target)
    try:
        environment = target(**kwargs)
        environment.check_settings()
    except Exception as error:
        raise BadEnvironment(f"environment {name!r} cannot be built with {dict(kwargs)}: {raised(error)}") from error
    environment.name = name
    return environment


def _target(name: str) -> tuple[Any, ModuleType]:
    path, colon, attribute = name.partition(":")
    if colon:
        module = _module(name, path)
        if not attribute.isidentifier() or not hasattr(module, attribute):
            raise BadEnvironment(f"environment {name!r}: module {path!r} has no {shown(attribute)}")
        return _usable(name, getattr(module, attribute)), module
    if name not in available():
        hint = _nearest(name, available())
        raise BadEnvironment(
            f"environment {name!r} is unknown; available: {', '.join(available())}{hint}; "
            'for one elsewhere write "package.module:Class"'
        )
    module = _module(name, f"environments.{name}")
    return _only_one(name, module), module


def _module(name: str, path: str) -> ModuleType:
    if not all(part.isidentifier() for part in path.split(".")):
        raise BadEnvironment(f"environment {name!r}: {path!r} is not the name of a module")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and (path == error.name or path.startswith(error.name + ".")):
            raise BadEnvironment(f"environment {name!r}: there is no module {error.name!r} on the path") from error
        raise BadEnvironment(
            f"environment {name!r} needs the package {error.name!r}, which is not installed; install it"
        ) from error
    except Exception as error:
        raise BadEnvironment(f"environment {name!r} cannot be imported: {raised(error)}") from error


def _only_one(name: str, module: ModuleType) -> Any:
    own = [value for value in vars(module).values() if _is_environment(value) and value.__module__ == module.__name__]
    if not own and inspect.isfunction(getattr(module, "reward", None)):
        return module.reward
    if len(own) != 1:
        raise BadEnvironment(
            f"environment {name!r}: its file must define one environment class or one function "
            f"reward(batch), got {[value.__name__ for value in own] or 'neither'}"
        )
    return own[0]


def _usable(name: str, target: Any) -> Any:
    if _is_environment(target) or inspect.isfunction(target):
        return target
    raise BadEnvironment(f"environment {name!r} must name an environment class or a function, got {shown(target)}")


def _is_environment(value: Any) -> bool:
    """A class with samples of its own: those of base, multi_turn and tools have none."""
    return inspect.isclass(value) and issubclass(value, BaseEnvironment) and value.__module__ not in BASES


def _check_kwargs(name: str, target: type, kwargs: Mapping[str, Any]) -> None:
    settings = accepted(target)
    for key in kwargs:
        if key not in settings:
            raise BadEnvironment(
                f"environment {name!r} has no setting {shown(key)}; accepted: {', '.join(settings) or 'none'}"
                f"{_nearest(key, settings)}"
            )
    missing = [key for key, default in settings.items() if default is inspect.Parameter.empty and key not in kwargs]
    if missing:
        raise BadEnvironment(f"environment {name!r} needs the settings {', '.join(missing)}")


def accepted(target: type) -> dict[str, Any]:
    """The settings a class takes and their defaults, through `**kwargs` up to its bases."""
    settings: dict[str, Any] = {}
    for owner in inspect.getmro(target):
        if "__init__" not in vars(owner) or owner is BaseEnvironment:
            continue
        parameters = list(inspect.signature(vars(owner)["__init__"]).parameters.values())[1:]
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        settings = {p.name: p.default for p in named} | settings
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return settings


def _check_signatures(name: str, target: type[BaseEnvironment]) -> None:
    state = State(Sample(""))
    if issubclass(target, MultiTurnEnvironment):
        _check_signature(name, target, "compute_reward", "state", state)
        _check_signature(name, target, "env_response", "messages, state", [], state)
        _check_signature(name, target, "is_done", "state", state)
    else:
        _check_signature(name, target, "compute_reward", "completion, sample, eos_token", "", Sample(""), "")


def _check_signature(name: str, target: type[BaseEnvironment], method: str, wanted: str, *arguments: Any) -> None:
    try:
        inspect.signature(getattr(target, method)).bind(None, *arguments)
    except TypeError as error:
        raise BadEnvironment(f"environment {name!r}: {method} must take ({wanted}): {error}") from None


def _nearest(word: Any, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
