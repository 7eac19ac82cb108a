"""code: write a Python function; it is called on hidden arguments in a sandbox.

A program is a reply's last ```python block, or the reply as a whole. The sandbox is told the arguments and not the
results: what it gives back is compared here, so a program cannot pass by tampering with the test. Without data of
your own it makes small problems; with `path` or `dataset_name` it reads rows with a text and tests of the form
`assert f(1, 2) == 3`, such as those of MBPP.
"""

import ast
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from environments.base import RewardResult, Sample, SingleTurnEnvironment, Split
from environments.support import code_problems
from environments.support.data import Asked, Row, Sizes, Source, Splits, field
from environments.support.sandbox import Limits, provider, settings_text

FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
MAX_RESULT = 20_000
PROBLEM = ("prompt", "text", "question", "problem")

# Read before the program runs, which may do anything to its streams. Each result is a line of its own.
HARNESS = """
import json, sys
request = json.load(sys.stdin)
results, space = sys.stdout, {"__name__": "solution"}
sys.stdout = sys.stderr
exec(compile(request["program"], "solution.py", "exec"), space)
for number, call in enumerate(request["calls"]):
    try:
        line = [number, repr(eval(call, space))]
    except Exception as error:
        line = [number, None]
    print(json.dumps(line), file=results, flush=True)
"""


class Code(SingleTurnEnvironment):
    """Total reward: 1 when every test passes, else 0; with `partial_credit` the share that passes.

    `runs`: the program ran to its end. `passed`: the share of tests that passed.
    """

    metrics_ranges: ClassVar = {"runs": {"min": 0, "max": 1}, "passed": {"min": 0, "max": 1}}

    def __init__(
        self,
        path: str | None = None,
        eval_path: str | None = None,
        dataset_name: str | None = None,
        dataset_config: str | None = None,
        num_train: int = 500,
        num_eval: int = 100,
        seed: int = 0,
        partial_credit: bool = False,
        sandbox: str = "environments.support.sandbox:LocalSandbox",
        sandbox_kwargs: Mapping[str, Any] | None = None,
        time_limit_s: float = 4.0,
        memory_mb: int = 512,
    ) -> None:
        if time_limit_s <= 0 or memory_mb < 64:
            raise ValueError(
                f"time_limit_s must be above 0 and memory_mb at least 64, got {time_limit_s} and {memory_mb}"
            )
        self.source = Source(path, eval_path, dataset_name, dataset_config)
        self.sizes, self.partial_credit = Sizes(num_train, num_eval, seed), partial_credit
        self.sandbox = (sandbox, settings_text(sandbox_kwargs))
        self.limits = Limits(time_limit_s, math.ceil(time_limit_s), memory_mb << 20)
        provider(*self.sandbox)

    def samples(self, split: Split) -> Sequence[Sample]:
        return (self._given() if self.source.is_given else self._made())[split]

    def compute_reward(self, completion: str, sample: Sample, eos_token: str = "") -> RewardResult:
        tests = sample.metadata["tests"]
        request = json.dumps({"program": program_of(completion, eos_token), "calls": [call for call, _ in tests]})
        ran = provider(*self.sandbox).run(HARNESS, request, self.limits)
        results = results_of(ran.output)
        passed = sum(equal(results.get(number), wanted) for number, (_, wanted) in enumerate(tests)) / len(tests)
        metrics = {"runs": float(ran.error is None), "passed": passed}
        total = passed if self.partial_credit else float(passed == 1)
        return RewardResult(total, metrics, {"solution": sample.answer})

    def gold_completion(self, sample: Sample) -> str | None:
        return None if sample.answer is None else f"```python\n{sample.answer}\n```"

    def worked_examples(self, seed: int) -> Iterator[tuple[str, str]]:
        rng = random.Random(f"code worked {seed}")
        problems = [sample for sample in self.samples("train") if sample.answer is not None]
        while True:
            sample = rng.choice(problems)
            yield str(sample.prompt), sample.answer

    def _made(self) -> Splits:
        problems = code_problems.problems(random.Random(f"code {self.sizes.seed}"), self.sizes.total)
        return self.sizes.of_made([_sample(*problem) for problem in problems])

    def _given(self) -> Splits:
        train, held = ([one for row in rows if (one := _of_row(row))] for rows in self.source.rows())
        if not train:
            raise ValueError("no row has a test of the form 'assert f(1) == 2' in a column tests or test_list")
        return self.sizes.of_given(train, held)


def _sample(problem: str, solution: str | None, tests: Sequence[tuple[str, str]]) -> Sample:
    prompt = f"{problem}\nAnswer with the Python function only, in a ```python block."
    return Sample(prompt, solution, {"tests": [list(test) for test in tests]})


def _of_row(row: Row) -> Asked | None:
    """A row whose tests are of another form is left out."""
    problem = field(row, PROBLEM, "a problem")
    asserts = row.get("tests") or row.get("test_list") or ()
    tests = [test for text in asserts if (test := call_and_result(text)) is not None]
    if not tests:
        return None
    shown = f"{problem}\nFor example: {tests[0][0]} gives {tests[0][1]}"
    return problem, _sample(shown, row.get("solution") or row.get("code"), tests)


def call_and_result(text: str) -> tuple[str, str] | None:
    """`assert f(1) == 2` as ("f(1)", "2"); None for a test of another form."""
    try:
        tree = ast.parse(text.strip()).body[0]
        if not (isinstance(tree, ast.Assert) and isinstance(tree.test, ast.Compare)):
            return None
        [operator], [right] = tree.test.ops, tree.test.comparators
        ast.literal_eval(right)
    except (SyntaxError, ValueError, IndexError, TypeError, RecursionError, MemoryError):
        return None
    return (ast.unparse(tree.test.left), ast.unparse(right)) if isinstance(operator, ast.Eq) else None


def program_of(completion: str, eos_token: str = "") -> str:
    """The last fenced block of a reply, or the reply."""
    text = completion.removesuffix(eos_token)
    return (FENCED.findall(text) or [text])[-1]


def results_of(output: str) -> dict[int, str]:
    """What the harness wrote: the texts of the results by number. Other lines are not its own."""
    found: dict[int, str] = {}
    for line in output.splitlines():
        try:
            number, result = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if isinstance(number, int) and isinstance(result, str):
            found[number] = result
    return found


def equal(result: str | None, wanted: str) -> bool:
    """Whether the text of a result stands for the wanted literal; floats in it may differ by rounding."""
    if result is None or len(result) > MAX_RESULT:
        return False
    try:
        return _equal(ast.literal_eval(result), ast.literal_eval(wanted))
    except (SyntaxError, ValueError, TypeError, OverflowError, RecursionError, MemoryError):
        return False


def _equal(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and type(got) in (int, float):
        return math.isclose(got, wanted, rel_tol=1e-9, abs_tol=1e-12)
    if type(got) is not type(wanted) or got == wanted:
        return type(got) is type(wanted)
    if isinstance(wanted, dict):
        return got.keys() == wanted.keys() and all(_equal(got[key], wanted[key]) for key in wanted)
    return isinstance(wanted, list | tuple) and len(got) == len(wanted) and all(map(_equal, got, wanted))
