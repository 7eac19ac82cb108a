import ast
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from app import stall
from app.stall import Member, dump, report, verdict, waits_for

SLEEPS = "import time\ndef waits_for_the_other():\n    time.sleep(60)\nprint('up', flush=True)\nwaits_for_the_other()"


@pytest.fixture
def sleeper():
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


def freeze(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGSTOP)
    end = time.monotonic() + 10
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED and time.monotonic() < end:
        time.sleep(0.01)


def test_the_stack_of_a_process_at_work_says_where_it_is(sleeper):
    [member] = dump("node-of-this-test", {sleeper.pid: "trainer"})
    assert (member.role, member.pid, member.node) == ("trainer", sleeper.pid, "node-of-")
    assert "waits_for_the_other" in member.stack


def test_a_frozen_process_is_named_first_and_its_stack_is_read_all_the_same(sleeper):
    freeze(sleeper)
    driver = Member("a driver", 1, "here", "sleeping", "waits")
    members = [driver, *dump("here", {sleeper.pid: "trainer of rank 1"})]
    assert verdict(members) == f"trainer of rank 1 (pid {sleeper.pid} on here) is stopped"
    text = report(members)
    assert text.startswith(f"== trainer of rank 1 · pid {sleeper.pid} on here · stopped\n")
    assert "waits_for_the_other" in text.split("== a driver")[0]


def test_what_a_process_started_belongs_to_it(sleeper):
    by_role = {member.role: member.pid for member in dump("here", {os.getpid(): "engine"})}
    assert by_role["engine"] == os.getpid()
    assert sleeper.pid in [m.pid for m in dump("here", {os.getpid(): "engine"}) if m.role.startswith("engine › python")]


def test_a_process_that_is_gone_is_said_to_be_gone(sleeper):
    sleeper.kill()
    sleeper.wait()
    assert verdict(dump("here", {sleeper.pid: "engine"})) == f"engine (pid {sleeper.pid} on here) is gone"


def test_processes_that_are_all_alive_are_not_accused():
    assert verdict([Member("engine", 1, "here", "sleeping", "")]) == "every process of it is alive"


TRAINER = """Process 7: ray::RayTrainWorker
Python v3.11.7 (/usr/bin/python3.11)

Thread 7 (idle): "MainThread"
    main_loop (ray/_private/worker.py:1020)
Thread 9 (idle): "TrainingThread"
    wait (threading.py:331)
    Future.result (concurrent/futures/_base.py:451)
    Ahead.__next__ (app/train_loop.py:212)
    Worker.batches (app/train_loop.py:96)
    run (app/train_loop.py:39)"""


@pytest.mark.parametrize(
    ("stack", "whom"),
    [
        (TRAINER, "a batch of rollouts"),
        (
            "    Link.receive (environments/child.py:64)\n    _Child._next (environments/worker.py:230)",
            "its environment's",
        ),
        (
            "    barrier (torch/distributed/distributed_c10d.py:9)\n    Worker.finish_evals (app/train_loop.py:8)",
            "ranks",
        ),
        (
            "    wait_tensor (torch/distributed/_functional_collectives.py:9)\n    Publisher.push (app/publish.py:8)",
            "ranks",  # a weight that is gathered for a push
        ),
        ("    answer (app/run_context.py:7)\n    Worker.finish_evals (app/train_loop.py:8)", "the evaluator"),
        ("    answer (app/run_context.py:7)\n    Publisher.push (app/publish.py:50)", "the weight store"),
        ("    WeightGroup.send (app/weight_group.py:140)\n    Publisher.push (app/publish.py:50)", "the engines"),
        ("    push (elsewhere/publish.py:7)", None),
    ],
)
def test_a_stack_says_for_whom_its_process_waits(stack, whom):
    member = Member("trainer", 7, "here", "sleeping", stack)
    assert waits_for(member) is None if whom is None else whom in waits_for(member)


def test_the_verdict_has_who_is_frozen_and_then_who_waits():
    frozen = Member("engine", 3, "here", "stopped", TRAINER)  # its own stack is of no interest
    assert verdict([Member("trainer", 7, "here", "sleeping", TRAINER), frozen]) == (
        "engine (pid 3 on here) is stopped; trainer (pid 7 on here) waits for a batch of rollouts"
    )


def test_every_wait_that_is_known_by_its_frame_is_in_the_code():
    root = Path(stall.__file__).parents[1]
    for file, function in stall.WAITS:
        names = {
            node.name for node in ast.walk(ast.parse((root / file).read_text())) if isinstance(node, ast.FunctionDef)
        }
        assert function in names, f"{file} has no {function}: rename it in app/stall.py as well"


class Counter:
    """Stands for the admission actor: counts up to a number and then stays there."""

    def __init__(self, last: int) -> None:
        self.last, self.now, self.progress = last, 0, self

    def remote(self) -> int:
        self.now = min(self.now + 1, self.last)
        return self.now


STOOD = "no step was finished for 0.3 s (stall_timeout_s)"
NEVER_STARTED = "engines and trainer did not start within 0.6 s"


@pytest.mark.parametrize(("last", "said"), [(3, STOOD), (1, NEVER_STARTED), (10**9, None)])
def test_only_a_run_without_progress_is_ended_and_the_start_has_a_limit_of_its_own(monkeypatch, last, said):
    monkeypatch.setattr(stall, "WATCH_PERIOD_S", 0.01)
    monkeypatch.setattr(stall, "START_LIMIT_S", 0.6)
    monkeypatch.setattr(stall.ray, "get", lambda value, timeout: value)
    over = threading.Event()
    threading.Timer(2.0, over.set).start()
    assert stall._standstill(Counter(last), 0.3, over) == said
