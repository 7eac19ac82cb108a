"""Small programming problems: a text, a solution, and calls with their results."""

import random
from collections.abc import Callable
from itertools import product

Problem = tuple[str, str, list[tuple[str, str]]]
NUM_TESTS = 6

# By the kind of its argument {x}: what is asked of it and {k}, and the body of the solution.
TEMPLATES: dict[str, tuple[tuple[str, str], ...]] = {
    "list": (
        ("the sum of the numbers in {x} that are above {k}", "sum(v for v in {x} if v > {k})"),
        ("{x} with every number multiplied by {k}", "[v * {k} for v in {x}]"),
        ("how many numbers in {x} can be divided by {k}", "sum(v % {k} == 0 for v in {x})"),
        ("the numbers of {x} that differ from {k}, in their order", "[v for v in {x} if v != {k}]"),
        ("the {k} largest numbers of {x}, largest first", "sorted({x}, reverse=True)[:{k}]"),
        ("{x} turned to the left by {k} places", "{x}[{k} % len({x}):] + {x}[:{k} % len({x})]"),
        ("whether {x} holds the number {k}", "{k} in {x}"),
    ),
    "text": (
        ("{x} repeated {k} times", "{x} * {k}"),
        ("the characters of {x} whose index can be divided by {k}", "{x}[::{k}]"),
        ("{x} without its first {k} characters", "{x}[{k}:]"),
        ("how many words of {x} are longer than {k} letters", "sum(len(w) > {k} for w in {x}.split())"),
    ),
    "number": (
        ("{x} to the power of {k}", "{x} ** {k}"),
        ("the remainder of {x} divided by {k}", "{x} % {k}"),
        ("the sum of all multiples of {k} from 1 to {x}", "sum(range({k}, {x} + 1, {k}))"),
        (
            "the digits of {x} in base {k}, lowest first, as a list",
            "(lambda n: [n // {k} ** i % {k} for i in range(64) if n >= {k} ** i])({x})",
        ),
    ),
}
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
    templates = [(kind, *template) for kind, some in TEMPLATES.items() for template in some]
    every = list(product(templates, range(2, 10), NAMES, ARGUMENTS))
    if count > len(every):
        raise ValueError(f"only {len(every)} problems can be made; lower num_train or num_eval, or give a path")
    return [_problem(rng, *chosen) for chosen in rng.sample(every, count)]


def _problem(rng: random.Random, template: tuple[str, str, str], k: int, name: str, argument: str) -> Problem:
    kind, asked, body = template
    expression = body.format(x=argument, k=k)
    function = eval(f"lambda {argument}: {expression}")  # one of TEMPLATES, with a name and a number put in
    values = [ARGUMENT[kind](rng) for _ in range(NUM_TESTS)]
    tests = [(f"{name}({value!r})", repr(function(value))) for value in values]
    wanted = asked.format(x=f"the {kind} `{argument}`", k=k)
    return (
        f"Write a function `{name}({argument})` that returns {wanted}.",
        f"def {name}({argument}):\n    return {expression}",
        tests,
    )
