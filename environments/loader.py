"""Find an environment by name and build it with its settings; refuse what it does not take.

A name is one of four things: a file or folder of this folder, an entry point of an installed package (group
`telescope.environments`), "package.module:Class" or ":function", or the path of a file, which ends in ".py". A path is
never searched for: it is the file that somebody wrote down, on the command line or in a configuration file, and
configurations that come over HTTP may not name one (app/api.py).
"""

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from environments.base import BaseEnvironment, Sample
from environments.checks import BadEnvironment, raised, ranges, shown
from environments.function import FunctionEnvironment
from environments.multi_turn import MultiTurnEnvironment, State
from environments.support.optional import remedy

Loaded = BaseEnvironment | FunctionEnvironment

ENTRY_POINTS = "telescope.environments"

# Files and folders of this folder that are not environments.
MACHINERY = frozenset(
    {"base", "batch", "check", "checks", "child", "function", "listing", "loader", "multi_turn", "parts", "pool"}
    | {"process", "score", "support", "tool_calls", "tool_schema", "tools", "turn", "worker"}
)
# Types of settings that are checked, and the types of the JSON values that are of them.
PLAIN: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    str: (str,),
    NoneType: (NoneType,),
}
BASES = frozenset({"environments.base", "environments.multi_turn", "environments.tools"})


def available() -> list[str]:
    """The environments that need no path: those of this folder, and those that installed packages offer."""
    return sorted({*_own(), *_offered()})


def is_multi_turn(name: str) -> bool:
    """Whether an environment answers back. Imports it, builds nothing."""
    target, _ = _target(name)
    return inspect.isclass(target) and issubclass(target, MultiTurnEnvironment)


def load(name: str, kwargs: Mapping[str, Any]) -> Loaded:
    """The environment of that name (see above), built with these settings. Raises BadEnvironment with the reason."""
    target, module = _target(name)
    if not inspect.isfunction(target):
        return _built(name, target, kwargs)
    if kwargs:
        raise BadEnvironment(f"environment {name!r} is a bare function and takes no settings, got {sorted(kwargs)}")
    return _function(name, target, module)


def is_path(name: str) -> bool:
    """Whether a name is the path of a file: it ends in ".py", or in ".py:Class"."""
    return name.endswith(".py") or ".py:" in name


def absolute(name: str) -> str:
    """The same name; a path, which another process may read in another folder, from the root."""
    if not is_path(name):
        return name
    path, colon, attribute = name.rpartition(":") if not name.endswith(".py") else (name, "", "")
    return f"{Path(path).expanduser().absolute()}{colon}{attribute}"


def _own() -> list[str]:
    """Files and packages in this folder."""
    folder = Path(__file__).parent
    found = [*folder.glob("*.py"), *(init.parent for init in folder.glob("*/__init__.py"))]
    names = (path.stem for path in found)
    return [name for name in names if name.isidentifier() and name not in MACHINERY and not name.startswith("_")]


def _offered() -> dict[str, str]:
    """Entry points by name: "package.module" or "package.module:Class"."""
    return {point.name: point.value for point in metadata.entry_points(group=ENTRY_POINTS) if point.name.isidentifier()}


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
    except BadEnvironment as error:
        raise BadEnvironment(f"environment {name!r}: {error}") from error
    except Exception as error:
        raise BadEnvironment(f"environment {name!r} cannot be built with {dict(kwargs)}: {raised(error)}") from error
    environment.name = name
    return environment


def _target(name: str) -> tuple[Any, ModuleType]:
    if is_path(name):
        path, _, attribute = name.partition(".py:")
        return _chosen(name, _file(name, path if not attribute else f"{path}.py"), attribute)
    if ":" in name:
        path, _, attribute = name.partition(":")
        return _chosen(name, _module(name, path), attribute or " ")
    if name in _own():
        return _chosen(name, _module(name, f"environments.{name}"), "")
    if name in (offered := _offered()):
        path, _, attribute = offered[name].partition(":")
        return _chosen(name, _module(name, path), attribute)
    raise BadEnvironment(
        f"environment {name!r} is unknown; available: {', '.join(available())}{_nearest(name, available())}; "
        'for one elsewhere write "package.module:Class" or the path of a .py file'
    )


def _chosen(name: str, module: ModuleType, attribute: str) -> tuple[Any, ModuleType]:
    """What a module offers under this name; without a name, the one environment that it defines."""
    if not attribute:
        return _only_one(name, module), module
    if not attribute.isidentifier() or not hasattr(module, attribute):
        raise BadEnvironment(f"environment {name!r}: module {module.__name__!r} has no {shown(attribute)}")
    return _usable(name, getattr(module, attribute)), module


def _module(name: str, path: str) -> ModuleType:
    if not all(part.isidentifier() for part in path.split(".")):
        raise BadEnvironment(f"environment {name!r}: {path!r} is not the name of a module")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and (path == error.name or path.startswith(error.name + ".")):
            raise BadEnvironment(f"environment {name!r}: there is no module {error.name!r} on the path") from error
        raise _lacking(name, error) from error
    except Exception as error:
        raise BadEnvironment(f"environment {name!r} cannot be imported: {raised(error)}") from error


def _file(name: str, path: str) -> ModuleType:
    """The module of a file that is not on the import path, under a name of its own; imported once a process."""
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        raise BadEnvironment(f"environment {name!r}: there is no file {str(file)!r}")
    own = f"environment_of_file_{hashlib.blake2b(str(file).encode(), digest_size=8).hexdigest()}"
    if own in sys.modules:
        return sys.modules[own]
    spec = importlib.util.spec_from_file_location(own, file)
    assert spec is not None
    assert spec.loader is not None  # a name that ends in .py has the loader of source files
    module = sys.modules[own] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[own]
        if isinstance(error, ModuleNotFoundError):
            raise _lacking(name, error) from error
        if isinstance(error, Exception):
            raise BadEnvironment(f"environment {name!r} cannot be imported: {raised(error)}") from error
        raise
    return module


def _lacking(name: str, error: ModuleNotFoundError) -> BadEnvironment:
    lacking = f"needs the package {error.name!r}, which is not installed"
    return BadEnvironment(f"environment {name!r} {lacking}; {remedy(error.name or '')}")


def _only_one(name: str, module: ModuleType) -> Any:
    """The environment that a module defines itself, or, for a package, that is defined in one of its modules."""
    mine = (module.__name__, module.__name__ + ".")
    own = {
        id(value): value
        for value in vars(module).values()
        if _is_environment(value) and (value.__module__ == mine[0] or value.__module__.startswith(mine[1]))
    }
    if not own and inspect.isfunction(getattr(module, "reward", None)):
        return module.reward
    if len(own) != 1:
        raise BadEnvironment(
            f"environment {name!r}: its file must define one environment class or one function "
            f"reward(batch), got {[value.__name__ for value in own.values()] or 'neither'}"
        )
    return next(iter(own.values()))


def _usable(name: str, target: Any) -> Any:
    if _is_environment(target) or inspect.isfunction(target):
        return target
    raise BadEnvironment(f"environment {name!r} must name an environment class or a function, got {shown(target)}")


def _is_environment(value: Any) -> bool:
    """A class with samples of its own: those of base, multi_turn and tools have none."""
    return inspect.isclass(value) and issubclass(value, BaseEnvironment) and value.__module__ not in BASES


def _check_kwargs(name: str, target: type, kwargs: Mapping[str, Any]) -> None:
    settings, hints = accepted(target), _hints(target)
    for key in kwargs:
        if key not in settings:
            raise BadEnvironment(
                f"environment {name!r} has no setting {shown(key)}; accepted: {', '.join(settings) or 'none'}"
                f"{_nearest(key, settings)}"
            )
    for key, value in kwargs.items():
        if not _fits(value, hints.get(key, Any)):
            wanted = inspect.formatannotation(hints[key])
            raise BadEnvironment(f"environment {name!r}: setting {key!r} must be {wanted}, got {shown(value)}")
    missing = [key for key, default in settings.items() if default is inspect.Parameter.empty and key not in kwargs]
    if missing:
        raise BadEnvironment(f"environment {name!r} needs the settings {', '.join(missing)}")


def accepted(target: type) -> dict[str, Any]:
    """The settings a class takes and their defaults, through `**kwargs` up to its bases."""
    settings: dict[str, Any] = {}
    for function in _initialisers(target):
        named = [p for p in _parameters(function) if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        settings = {p.name: p.default for p in named} | settings
    return settings


def _hints(target: type) -> dict[str, Any]:
    """The types of its settings, as far as they are written down and can be read."""
    found: dict[str, Any] = {}
    for function in _initialisers(target):
        try:
            found = get_type_hints(function) | found
        except (NameError, TypeError):  # of names that exist for type checkers only
            continue
    return found


def _initialisers(target: type) -> Iterator[Any]:
    """The `__init__` of a class, and those that it hands `**kwargs` on to."""
    for owner in inspect.getmro(target):
        if "__init__" not in vars(owner) or owner is BaseEnvironment:
            continue
        yield vars(owner)["__init__"]
        if not any(p.kind is p.VAR_KEYWORD for p in _parameters(vars(owner)["__init__"])):
            return


def _parameters(function: Any) -> list[inspect.Parameter]:
    """Without `self`."""
    return list(inspect.signature(function).parameters.values())[1:]


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a JSON value is of a plain type, or one of several; of other types nothing is said."""
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return any(option not in PLAIN or type(value) in PLAIN[option] for option in options)


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
