"""What is wrong with a config, in words that say what to do."""

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError


class Problem(NamedTuple):
    """One thing that is wrong: the dotted key ('' for the whole) and a sentence that says what to do."""

    key: str
    message: str


class Problems(ValueError):
    """Several problems found by one validator."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems


class ConfigError(ValueError):
    """A config that is refused; the text lists every problem, `problems` has them one by one."""

    def __init__(self, source: str, problems: Sequence[Problem], origins: Mapping[str, str] | None = None) -> None:
        super().__init__(source, list(problems), dict(origins or {}))
        self.source = source
        self.problems = list(problems)
        self.origins = dict(origins or {})

    def __str__(self) -> str:
        return "\n".join([f"{self.source}:", *(f"  {self._line(problem)}" for problem in self.problems)])

    def _line(self, problem: Problem) -> str:
        if not problem.key:
            return problem.message
        origin = self.origins.get(problem.key)
        where = f" ({origin})" if origin else ""
        return f"{shown_key(problem.key)}{where}: {problem.message}"


WANTED = {
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a section of keys",
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
    "finite_number": "a finite number",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "at most {le}",
    "string_too_short": "text",
    "string_too_long": "at most {max_length} characters",
    "too_short": "at least {min_length} entry",
    "invalid-json-value": "text, a number, true, false, null, a list or a mapping",
    "invalid_key": "a key that is text",
}


MOST_PROBLEMS = 50


def explain(error: ValidationError, data: Any, model: type[BaseModel]) -> list[Problem]:
    """Pydantic's errors in our words, each key once; of very many the first: each is compared with all known keys."""
    problems: dict[Problem, None] = {}
    found = error.errors(include_url=False)
    for item in found[:MOST_PROBLEMS]:
        inner = item.get("ctx", {}).get("error")
        if isinstance(inner, Problems):
            problems |= dict.fromkeys(inner.problems)
        else:
            problems[_problem(item, data, model)] = None
    more = len(found) - MOST_PROBLEMS
    return [*problems, *([Problem("", f"and {more} more")] if more > 0 else [])]


def _problem(item: Any, data: Any, model: type[BaseModel]) -> Problem:
    loc = _real_path(item["loc"], data)
    key = ".".join(map(str, loc))
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    section = _section_at(model, loc[:-1])
    if kind == "extra_forbidden":
        return Problem(key, _unknown(str(loc[-1]), section, model))
    if kind == "missing":
        description = section.model_fields[str(loc[-1])].description if section else None
        return Problem(key, f"missing{f'; {description}' if description else ''}")
    if kind == "literal_error":
        return Problem(key, _not_a_choice(value, _choices(model, loc)))
    if kind == "value_error":
        return Problem(key, f"got {shown(value)}; {context['error']}")
    if kind == "float_type" and _is_text_of(value, lambda number: not math.isfinite(number)):
        kind = "finite_number"  # YAML's own is .nan: nan is text, but meant as a number
    wanted = WANTED[kind].format(**context) if kind in WANTED else item["msg"]
    return Problem(key, f"got {shown(value)}, wanted {wanted}{_remedy(kind, value)}")


def _real_path(loc: tuple[int | str, ...], data: Any) -> list[int | str]:
    """The part of a pydantic location that exists in the data, plus one key: it also names union branches."""
    path: list[int | str] = []
    for part in loc:
        path.append(part)
        if _has(data, part):
            data = data[part]
        else:
            return path if isinstance(data, Mapping) else path[:-1]
    return path


def _has(data: Any, part: int | str) -> bool:
    if isinstance(data, list):
        return isinstance(part, int) and part < len(data)
    return isinstance(data, Mapping) and part in data


def _section_at(model: type[BaseModel], loc: Sequence[int | str]) -> type[BaseModel] | None:
    section: type[BaseModel] | None = model
    for part in loc:
        if isinstance(part, int):
            continue
        field = section.model_fields.get(part) if section else None
        section = section_in(field.annotation) if field else None
    return section


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a field of this type holds, also in a list or where it may be null."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for argument in get_args(annotation) if (found := section_in(argument))), None)


def _choices(model: type[BaseModel], loc: Sequence[int | str]) -> list[Any]:
    """What may stand at a place: at a key, or in the list of a key."""
    names = [part for part in loc if isinstance(part, str)]
    section = _section_at(model, names[:-1])
    annotation = section.model_fields[names[-1]].annotation if section else None
    while get_origin(annotation) is list:
        annotation = get_args(annotation)[0]
    return list(get_args(annotation))


def _not_a_choice(value: Any, choices: list[Any]) -> str:
    wanted = ", ".join(choice if isinstance(choice, str) else str(choice).lower() for choice in choices)
    near = _near(value, [choice for choice in choices if isinstance(choice, str)]) if isinstance(value, str) else None
    return f"got {shown(value)}, wanted one of {wanted}{f'; did you mean {near!r}?' if near else ''}"


def _unknown(key: str, section: type[BaseModel] | None, model: type[BaseModel]) -> str:
    """Names the nearest key: first in the same section, then the same word in another one, then any."""
    here = list(section.model_fields) if section else []
    everywhere = {place.split(".")[-1]: place for place in _all_keys(model)}
    word = key.replace("-", "_").lower()
    likely = _near(word, here) or everywhere.get(word)
    if likely:
        return f"unknown key; did you mean '{likely}'?"
    nearest = _near(word, list(everywhere), cutoff=0.0)
    return f"unknown key; the nearest known key is '{everywhere[nearest]}'" if nearest else "unknown key"


def _all_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        inner = section_in(field.annotation)
        keys.append(prefix + name)
        keys += _all_keys(inner, f"{prefix}{name}.") if inner else []
    return keys


def _near(word: str, known: Sequence[str], cutoff: float = 0.7) -> str | None:
    matches = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return matches[0] if matches else None


def _remedy(kind: str, value: Any) -> str:
    if kind in ("float_type", "int_type") and _is_text_of(value, math.isfinite):
        return "; remove the quotes"
    if kind in ("int_type", "int_from_float") and isinstance(value, float) and value.is_integer():
        return f"; write {value:.0f}"
    if kind == "bool_type" and isinstance(value, str):
        return "; YAML 1.2 has no yes, no, on or off"
    if kind == "string_type" and not isinstance(value, Mapping | list | None):
        return "; put it in quotes"
    return ""


def _is_text_of(value: Any, kind: Callable[[float], bool]) -> bool:
    """Whether it is the text of a number of this kind."""
    try:
        return isinstance(value, str) and kind(float(value))
    except ValueError:
        return False


def shown(value: Any) -> str:
    """A value as a reader of YAML would write it, on one line and cut to 80 characters."""
    names: dict[type, Callable[[Any], str]] = {
        type(None): lambda _: "null",
        bool: lambda flag: "true" if flag else "false",
        float: lambda number: f"{number!r}" if math.isfinite(number) else f".{number}",
        list: lambda items: f"a list of {len(items)}",
        dict: lambda items: f"a section with {', '.join(map(str, items)) or 'no keys'}",
    }
    text = names.get(type(value), repr)(value)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 80 else text[:77] + "..."


def changes(before: Any, after: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, value before, value after) of each value that is another, as far inside as both have the place."""
    if isinstance(before, Mapping) and isinstance(after, Mapping) and before.keys() == after.keys():
        items = [(name, before[name], after[name]) for name in before]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        items = [(str(i), was, value) for i, (was, value) in enumerate(zip(before, after, strict=True))]
    else:
        if before != after:
            yield key, before, after
        return
    for name, was, value in items:
        yield from changes(was, value, f"{key}.{name}" if key else name)


def shown_key(key: str) -> str:
    """A dotted key made safe to print: keys come from files and may hold anything."""
    text = key if key.isprintable() else repr(key)
    return text if len(text) <= 120 else text[:117] + "..."


def check_finite(value: Any) -> None:
    """Raise ValueError where nan or an infinity is anywhere inside."""
    if isinstance(value, Mapping):
        for item in value.values():
            check_finite(item)
    elif isinstance(value, list):
        for item in value:
            check_finite(item)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"wanted finite numbers only, got {shown(value)}")
