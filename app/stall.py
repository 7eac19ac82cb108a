"""Ends a run that does not get on, says which processes are frozen or gone and who waits for whom, and leaves the
stacks of all of them."""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import ray
from ray import serve
from ray.serve.exceptions import RayServeException
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from app.config import Config
from app.run_context import RunContext
from app.run_dir import application_of

logger = logging.getLogger("telescope")
WATCH_PERIOD_S = 2.0
START_LIMIT_S = 600.0
"""Least time for the engines to start: loading a model takes longer than any step."""
GATE_TIMEOUT_S = 120
LIST_TIMEOUT_S = 20
DUMP_TIMEOUT_S = 20
NODE_TIMEOUT_S = 120
REQUESTS_TIMEOUT_S = 5
SERVE_TIMEOUT_S = 15
WAITS = {
    ("app/train_loop.py", "batches"): "a batch of rollouts",
    ("app/train_loop.py", "finish_evals"): "the evaluator",
    ("app/train_loop.py", "stored"): "the metrics actor",
    ("app/train_loop.py", "step_done"): "the admission actor",
    ("app/publish.py", "_every_engine"): "the engines",
    ("app/weight_group.py", "send"): "the engines",
    ("app/publish.py", "push"): "the weight store",
    ("app/batcher.py", "_log"): "the metrics actor",
    ("app/batcher.py", "_admitted_since"): "the admission actor",
    ("environments/worker.py", "_next"): "its environment's process",
}
"""(file, function) whose frame on a stack says for whom its process waits."""
COLLECTIVES = ("distributed_c10d.py", "_functional_collectives.py", "_fsdp_param_group.py", "_fsdp_collectives.py")
FRAME = re.compile(r"^ +(?:[^ ]*\.)?([^ .]+) \((\S+?):\d+\)$", re.MULTILINE)
"""A frame in py-spy's words: `Worker.batches (app/train_loop.py:95)`."""
CANNOT_WORK = (psutil.STATUS_STOPPED, "gone")


REMEDY = "where it is only slow, raise stall_timeout_s, or lower max_tokens, prompts_per_step or group_size"


class Stalled(RuntimeError):
    """No step was finished for longer than the config allows."""


@dataclass(frozen=True)
class Member:
    """A process of the run: what it is, where, its state in the operating system's words, and its stack."""

    role: str
    pid: int
    node: str
    state: str
    stack: str


@contextmanager
def watchdog(config: Config, context: RunContext, gate: Any) -> Iterator[None]:
    """Raises Stalled in the main thread when no step is finished for `stall_timeout_s`."""
    over, ending = threading.Event(), threading.Lock()
    reasons: list[str] = []

    def wake(_number: int, _frame: FrameType | None) -> None:
        raise Stalled(reasons[0])

    def watch() -> None:
        if sentence := _standstill(gate, config.stall_timeout_s, over):
            reasons.append(_explain(sentence, context))
            with ending:  # once our handler is gone the signal would end the process
                if not over.is_set():
                    os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, wake)
    threading.Thread(target=watch, daemon=True, name="watchdog").start()
    try:
        yield
    finally:
        with ending:
            over.set()
        signal.signal(signal.SIGUSR1, before)


def _standstill(gate: Any, limit_s: float, over: threading.Event) -> str | None:
    """Waits until nothing has moved for the limit, and says so; None when the run is over before."""
    done, moves, since = None, 0, time.monotonic()
    while not over.wait(WATCH_PERIOD_S):
        try:
            now = ray.get(gate.progress.remote(), timeout=min(GATE_TIMEOUT_S, limit_s))
        except ray.exceptions.RayError:  # a time-out is one, too
            now = done  # a gate that does not answer makes no progress either
        still_s = time.monotonic() - since
        if now != done:
            done, moves, since = now, moves + 1, time.monotonic()
        elif moves > 1 and still_s > limit_s:
            return f"no step was finished for {limit_s:g} s (stall_timeout_s)"
        elif still_s > max(limit_s, START_LIMIT_S):  # the first answer was where the run stood, and no move
            return f"engines and trainer did not start within {max(limit_s, START_LIMIT_S):g} s"
    return None


def _explain(sentence: str, context: RunContext) -> str:
    """Writes the stacks and returns the sentence that the run fails with, whole."""
    file = context.run_dir / "logs" / f"stacks-{context.attempt}.txt"
    try:
        members = members_of(context)
        file.write_text(report(members), encoding="utf-8")
    except Exception as error:  # the stall itself must be told whatever happens to its explanation
        logger.exception("the stacks could not be written")
        return f"{sentence}; the stacks of its processes could not be written: {type(error).__name__}: {error}"
    asked = _requests(context)
    return f"{sentence}; {verdict(members)}{asked}; {REMEDY}; the stacks of all its processes: {file}"


def _requests(context: RunContext) -> str:
    """What the engines have been asked and have not answered; asked in a thread, for Serve itself may be what hangs."""
    said: list[str] = []
    asking = threading.Thread(target=lambda: said.append(_unfinished(context)), daemon=True, name="ask the engines")
    asking.start()
    asking.join(SERVE_TIMEOUT_S)
    return said[0] if said else f"; Serve did not answer within {SERVE_TIMEOUT_S:g} s"


def _unfinished(context: RunContext) -> str:
    try:
        engines: Any = serve.get_app_handle(application_of(context.run_id))
        numbers = engines.broadcast("running").results(timeout_s=REQUESTS_TIMEOUT_S)
    except (ray.exceptions.RayError, RayServeException, TimeoutError) as error:
        return f"; the engines do not answer: {type(error).__name__}"
    if not numbers:
        return "; no engine has started"
    return f"; the engines have {sum(numbers)} unfinished requests"


def verdict(members: list[Member]) -> str:
    """Which processes cannot be at work, by the operating system's account, and who waits for whom."""
    named = [f"{_who(m)} is {m.state}" for m in members if m.state in CANNOT_WORK]
    waiting = [f"{_who(m)} waits for {whom}" for m in members if (whom := waits_for(m)) is not None]
    return "; ".join([", ".join(named) or "every process of it is alive", *waiting])


def _who(member: Member) -> str:
    return f"{member.role} (pid {member.pid} on {member.node})"


def waits_for(member: Member) -> str | None:
    """For whom a process that could work waits: the innermost frame counts that says it."""
    if member.state in CANNOT_WORK:
        return None
    waits = (_wait_of(file, function) for function, file in FRAME.findall(member.stack))
    return next((whom for whom in waits if whom is not None), None)


def _wait_of(file: str, function: str) -> str | None:
    if file.endswith(COLLECTIVES):
        return "the other ranks"
    return next((whom for (its, name), whom in WAITS.items() if file.endswith(its) and function == name), None)


def report(members: list[Member]) -> str:
    """The stacks of every process, those that cannot be at work first."""
    order = sorted(members, key=lambda m: (m.state not in CANNOT_WORK, m.role))
    return "\n\n".join(f"== {m.role} · pid {m.pid} on {m.node} · {m.state}\n{m.stack}" for m in order) + "\n"


def members_of(context: RunContext) -> list[Member]:
    """Every process of the run, on every node, with its stack."""
    here = ray.get_runtime_context().get_node_id()
    by_node: dict[str, dict[int, str]] = {here: {os.getpid(): "driver"}}
    for role, pid, node in _actors(context.run_id):
        by_node.setdefault(node, {})[pid] = role
    others: dict[str, Any] = {
        node: _remote_dump.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            node, roles
        )
        for node, roles in by_node.items()
        if node != here
    }
    found = dump(here, by_node[here])
    for node, answer in others.items():
        try:
            found += ray.get(answer, timeout=NODE_TIMEOUT_S)
        except (ray.exceptions.RayError, TimeoutError) as error:
            stack = f"this node did not answer: {type(error).__name__}"
            found += [Member(role, pid, node[:8], "unknown", stack) for pid, role in by_node[node].items()]
    return found


def _actors(run_id: str) -> Iterator[tuple[str, int, str]]:
    """(role, pid, node) of the job's actors and of the run's Serve replicas."""
    from ray.util.state import list_actors

    job, application = ray.get_runtime_context().get_job_id(), application_of(run_id)
    for actor in list_actors(filters=[("state", "=", "ALIVE")], limit=10_000, timeout=LIST_TIMEOUT_S, detail=True):
        name = actor.name or ""
        its_own = actor.job_id == job or application in name
        if its_own and actor.pid is not None and actor.node_id is not None:
            yield name or actor.class_name, actor.pid, actor.node_id


@ray.remote(num_cpus=0)
def _remote_dump(node: str, roles: dict[int, str]) -> list[Member]:
    return dump(node, roles)


def dump(node: str, roles: dict[int, str]) -> list[Member]:
    """The stacks of these processes of this machine and of all that they started, as a replica starts its engine."""
    found = []
    for pid, role in roles.items():
        try:
            process = psutil.Process(pid)
            family = [(process, role), *((c, f"{role} › {c.name()}") for c in process.children(recursive=True))]
        except psutil.NoSuchProcess:
            found.append(Member(role, pid, node[:8], "gone", "it has ended"))
            continue
        for one, its_role in family:
            with suppress(psutil.NoSuchProcess):  # a child that ended meanwhile
                found.append(Member(its_role, one.pid, node[:8], one.status(), _stack(one.pid)))
    return found


def _stack(pid: int) -> str:
    """The Python stacks of a process, read from outside: a process that is stopped could not write its own."""
    command = [str(Path(sys.executable).with_name("py-spy")), "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DUMP_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its stack cannot be read: {error}"
    return done.stdout.strip() or f"its stack cannot be read: {done.stderr.strip()[-500:]}"
