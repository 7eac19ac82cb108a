"""The code environment and its sandbox: what passes, what cannot be cheated, and what a program cannot do."""

import ctypes
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from environments.base import Sample
from environments.checks import BadEnvironment
from environments.code import call_and_result, equal
from environments.loader import load
from environments.support.sandbox import Limits, LocalSandbox, Ran
from environments.support.sandbox_child import CREATE_RULESET, NOBODY, SCOPES_FROM
from environments.worker import EnvironmentWorker

SQUARE = Sample("?", None, {"tests": [["f(2)", "4"], ["f(3)", "9"]]})
LIMITS = Limits(wall_s=1.0, cpu_s=1)


@pytest.fixture(scope="module")
def code():
    return load("code", {"time_limit_s": 1.0})


def judged(code, program):
    result = code.compute_reward(program, SQUARE)
    return result.total_reward, result.sample_metrics["passed"], result.sample_metrics["runs"]


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("def f(n): return n * n", (1, 1, 1)),
        ("Here:\n```python\ndef f(n):\n    return n * n\n```\nDone.", (1, 1, 1)),
        ("```python\ndef f(n): return 0\n```\n```python\ndef f(n): return n ** 2\n```", (1, 1, 1)),
        ("import math\ndef f(n):\n    print(n)\n    return math.prod([n, n])", (1, 1, 1)),
        ("def f(n): return 4", (0, 0.5, 1)),
        ("def f(n): return str(n * n)", (0, 0, 1)),
        ("def f(n): return 1 / (n - 2) and 9", (0, 0.5, 1)),
        ("def g(n): return n * n", (0, 0, 1)),
        ("def f(n:", (0, 0, 0)),
        ("", (0, 0, 1)),
        ("import os\nos._exit(0)", (0, 0, 1)),
        ("raise SystemExit", (0, 0, 1)),
        ("def f(n):\n    while True: pass", (0, 0, 0)),
        ("\x00\ud800", (0, 0, 0)),
        ("def f(n): return [n] * 10**9", (0, 0, 1)),
    ],
)
def test_a_program_is_worth_the_tests_that_it_passes(code, program, outcome):
    assert judged(code, program) == outcome


def test_the_share_of_the_tests_may_be_the_reward():
    environment = load("code", {"partial_credit": True})
    assert environment.compute_reward("def f(n): return 4", SQUARE).total_reward == 0.5


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nsys.exit(0)",
        "class Same:\n    def __eq__(self, other): return True\ndef f(n): return Same()",
        "class Liar(int):\n    def __repr__(self): return 'Liar'\ndef f(n): return Liar(n * n)",
        "import builtins\nbuiltins.repr = lambda value: '4'",
        "import json\njson.dumps = lambda line: '[0, null]'",
        "import sys\nprint('sandbox: refused', file=sys.stderr)\nsys.exit(1)",
    ],
)
def test_a_program_that_tampers_with_its_test_does_not_pass(code, program):
    assert judged(code, program)[0] == 0


@pytest.mark.parametrize(
    "program",
    [
        "import socket\nsocket.create_connection(('127.0.0.1', 9))",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        "import os\nos.fork()",
        "import threading\nthreading.Thread(target=print).start()",
        "import subprocess\nsubprocess.run(['true'])",
        "x = bytearray(2 << 30)",
        "open('big', 'wb').write(b'x' * (5 << 20))",
        "open('/tmp/telescope-was-here', 'w')",
        "print('x' * (5 << 20))",
        "import os\nos.setuid(0)",
    ],
)
def test_a_program_cannot_leave_its_sandbox(program):
    outside = Path("/tmp/telescope-was-here")
    outside.unlink(missing_ok=True)
    ran = LocalSandbox().run(program, "", LIMITS)
    assert ran.error is not None
    assert len(ran.output) <= LIMITS.output_bytes
    assert not outside.exists()


def test_a_program_cannot_signal_a_process_of_its_own_user():
    if ctypes.CDLL(None).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1) < SCOPES_FROM:
        pytest.skip("this kernel cannot keep signals inside")
    user = NOBODY if os.getuid() == 0 else None  # as the program has
    victim = subprocess.Popen(["/bin/sleep", "60"], user=user)
    try:
        ran = LocalSandbox().run(f"import os\nos.kill({victim.pid}, 9)", "", LIMITS)
        assert ran.error == "it ended with exit code 1"
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_what_is_no_sandbox_is_refused_before_it_is_called(tmp_path):
    made = tmp_path / "made"
    kwargs = {"sandbox": "subprocess:Popen", "sandbox_kwargs": {"args": ["/usr/bin/touch", str(made)]}}
    with pytest.raises(BadEnvironment, match="wanted a class with run"):
        load("code", kwargs)
    time.sleep(0.5)
    assert not made.exists()


def test_a_program_sees_the_files_of_its_own_folder_only(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("golden")
    secret.chmod(0o644)
    sandbox = LocalSandbox()
    assert sandbox.run(f"print(open({str(secret)!r}).read())", "", LIMITS).output == ""
    assert sandbox.run("open('own', 'w').write('1')\nprint(open('own').read())", "", LIMITS) == Ran("1\n")


def test_a_program_gets_its_input_and_none_of_our_variables(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "golden")
    ran = LocalSandbox().run("import os, sys\nprint(sys.stdin.read(), sorted(os.environ))", "given", LIMITS)
    assert ran == Ran("given ['HOME', 'LANG', 'PATH']\n")


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time\ntime.sleep(60)",
        "import signal, time\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\ntime.sleep(60)",
    ],
)
def test_a_program_that_takes_too_long_is_ended(program):
    started = time.monotonic()
    assert LocalSandbox().run(program, "", LIMITS).error == "it took longer than 1 s"
    assert time.monotonic() - started < 10


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    LocalSandbox().run("open('own', 'w').write('1')", "", LIMITS)
    assert list(tmp_path.iterdir()) == []


class Remote:
    """A sandbox of somebody's own."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def run(self, program: str, text: str, limits: Limits) -> Ran:
        calls = json.loads(text)["calls"]
        return Ran("\n".join(json.dumps([number, self.answer]) for number in range(len(calls))))


def test_another_sandbox_can_be_plugged_in():
    settings = {"sandbox": "tests.environments.test_code:Remote", "sandbox_kwargs": {"answer": "4"}}
    environment = load("code", {**settings, "partial_credit": True})
    assert environment.compute_reward("anything", SQUARE).total_reward == 0.5


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"sandbox": "nowhere:Thing"}, "cannot use the sandbox 'nowhere:Thing'"),
        ({"sandbox": "json:JSONDecoder"}, r"wanted a class with run\(program, text, limits\)"),
        ({"sandbox_kwargs": {"alow_network": True}}, "unexpected keyword argument 'alow_network'"),
        ({"memory_mb": 1}, "memory_mb at least 64, got 4.0 and 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(kwargs, message):
    with pytest.raises(BadEnvironment, match=message):
        load("code", kwargs)


@pytest.mark.parametrize(
    ("test", "read"),
    [
        ("assert f(1, 'a') == [2]", ("f(1, 'a')", "[2]")),
        ("assert (f(1)) == (1, 2)", ("f(1)", "(1, 2)")),
        ("assert f(1)", None),
        ("assert f(1) != 2", None),
        ("assert f(1) == g(2)", None),
        ("f(1) ==", None),
        ("", None),
    ],
)
def test_a_test_is_a_call_and_its_result(test, read):
    assert call_and_result(test) == read


@pytest.mark.parametrize(
    ("result", "wanted", "is_equal"),
    [
        ("0.30000000000000004", "0.3", True),
        ("1", "1.0", True),
        ("True", "1", False),
        ("True", "1.0", False),
        ("1" + "0" * 400, "1.5", False),
        ("[0.1, (0.30000000000000004,)]", "[0.1, (0.3,)]", True),
        ("{'a': [0.30000000000000004]}", "{'a': [0.3]}", True),
        ("{'b': [0.3]}", "{'a': [0.3]}", False),
        ("[0.3]", "[0.3, 0.3]", False),
        ("[0.31]", "[0.3]", False),
        ("[1, 2]", "(1, 2)", False),
        ("{1, 2}", "{2, 1}", True),
        ("nan", "1.0", False),
        ("[" * 5_000, "1", False),
        (None, "None", False),
    ],
)
def test_results_are_compared_as_values(result, wanted, is_equal):
    assert equal(result, wanted) is is_equal


def test_problems_come_from_rows_with_asserts(tmp_path):
    rows = [
        {
            "text": f"Write f that adds {i}.",
            "code": f"def f(n): return n + {i}",
            "test_list": [f"assert f(1) == {1 + i}"],
        }
        for i in range(5)
    ]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(map(json.dumps, [*rows, {"text": "untestable", "test_list": ["assert f(1)"]}])))
    environment = load("code", {"path": str(file), "num_eval": 2})
    samples = [*environment.samples("train"), *environment.samples("eval")]
    assert len(samples) == 5
    for sample in samples:
        assert environment.compute_reward(environment.gold_completion(sample), sample).total_reward == 1.0


def test_a_sandboxed_program_dies_with_its_reward_process():
    """The reward's own limit is shorter than the program's: nothing may go on after it."""
    with EnvironmentWorker("code", {"time_limit_s": 30.0}, limit_s=1.0) as worker:
        from environments.batch import table_of

        table = worker.score(table_of([SQUARE], ["import time\ntime.sleep(25)"]))
    assert "longer than 1 s" in table["error"][0].as_py()
    deadline = time.monotonic() + 5
    while (left := _sandboxed()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def _sandboxed() -> list[int]:
    import psutil

    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(word.endswith("sandbox_child.py") for word in process.info["cmdline"] or ())
        and "30" in str(process.info["cmdline"])
    ]
