"""Small programming problems: a text, a solution, and calls with their results."""

import random
from collections.abc import Callable

Problem = tuple[str, str, list[tuple[str, str]]]
NUM_TESTS = 6

# A problem of {k}, the body of its solution, and which kind of argument it takes.
TEMPLATES: tuple[tuple[str, str, str], ...] = (
    ("returns the sum of the numbers in the list {x} that are above {k}", "sum(v for v in {x} if v > {k})", "list"),
    ("returns the list {x} with every number multiplied by {k}", "[v * {k} for v in {x}]", "list"),
    ("returns how many numbers in the list {x} can be divided by {k}", "sum(v % {k} == 0 for v in {x})", "list"),
    (
        "returns the numbers of the list {x} that differ from {k}, in their order",
        "[v for v in {x} if v != {k}]",
        "list",
    ),
    ("returns the {k} largest numbers of the list {x}, largest first", "sorted({x}, reverse=True)[:{k}]", "list"),
    ("returns the list {x} turned to the left by {k} places", "{x}[{k} % len({x}):] + {x}[:{k} % len({x})]", "list"),
    ("returns whether the list {x} holds the number {k}", "{k} in {x}", "list"),
    ("returns the text {x} repeated {k} times", "{x} * {k}", "text"),
    ("returns the characters of the text {x} whose index can be divided by {k}", "{x}[::{k}]", "text"),
    ("returns the text {x} without its first {k} characters", "{x}[{k}:]", "text"),
    (
        "returns how many words of the text {x} are longer than {k} letters",
        "sum(len(w) > {k} for w in {x}.split())",
        "text",
    ),
    ("returns the number {x} to the power of {k}", "{x} ** {k}", "number"),
    ("returns the remainder of the number {x} divided by {k}", "{x} % {k}", "number"),
    ("returns the sum of all multiples of {k} from 1 to the number {x}", "sum(range({k}, {x} + 1, {k}))", "number"),
    (
        "returns the digits of the number {x} in base {k}, lowest first, as a list",
        "(lambda n: [n // {k} ** i % {k} for i in range(64) if n >= {k} ** i])({x})",
        "number",
    ),
)
NAMES = ("solve", "compute", "answer", "process", "calculate")
ARGUMENTS = ("x", "value", "data", "given", "item")
WORDS = ("river", "stone", "light", "a", "of", "cloud", "green", "to", "mountain", "sea", "old", "bridge")


def numbers(rng: random.Random) -> list[int]:
    return [rng.randint(-9, 12) for _ in range(rng.randint(1, 8))]


def text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 5)))


ARGUMENT: dict[str, Callable[[random.Random], object]] = {
    "list": numbers,
    "text": text,
    "number": lambda rng: rng.randint(0, 60),
}


def problems(rng: random.Random, count: int) -> list[Problem]:
    """`count` different problems. ValueError when there are not so many."""
    every = [
        (template, k, name, argument)
        for template in TEMPLATES
        for k in range(2, 10)
        for name in NAMES
        for argument in ARGUMENTS
    ]
    if count > len(every):
        raise ValueError(f"only {len(every)} problems can be made; lower num_train or num_eval, or give a path")
    return [_problem(rng, *chosen) for chosen in rng.sample(every, count)]


def _problem(rng: random.Random, template: tuple[str, str, str], k: int, name: str, argument: str) -> Problem:
    asked, body, kind = template
    expression = body.format(x=argument, k=k)
    function = eval(f"lambda {argument}: {expression}")  # one of TEMPLATES, with a name and a number put in
    values = [ARGUMENT[kind](rng) for _ in range(NUM_TESTS)]
    tests = [(f"{name}({value!r})", repr(function(value))) for value in values]
    problem = f"Write a function `{name}({argument})` that {asked.format(x=f'`{argument}`', k=k)}."
    return problem, f"def {name}({argument}):\n    return {expression}", tests
