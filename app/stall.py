"""Ends a run that does not get on, and leaves the stacks of its processes so that the cause can be read."""

import logging
import os
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
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from app.config import Config
from app.run_context import RunContext
from app.run_dir import application_of

logger = logging.getLogger("telescope")
WATCH_PERIOD_S = 2.0
GATE_TIMEOUT_S = 120
LIST_TIMEOUT_S = 20
DUMP_TIMEOUT_S = 20
NODE_TIMEOUT_S = 120


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
        if _stands_still(gate, config.stall_timeout_s, over):
            reasons.append(_explain(config, context))
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


def _stands_still(gate: Any, limit_s: float, over: threading.Event) -> bool:
    """Waits until nothing has moved for the limit (True) or the run is over (False)."""
    done, since = None, time.monotonic()
    while not over.wait(WATCH_PERIOD_S):
        try:
            now = ray.get(gate.progress.remote(), timeout=min(GATE_TIMEOUT_S, limit_s))
        except ray.exceptions.RayError:  # a time-out is one, too
            now = done  # a gate that does not answer makes no progress either
        if now != done:
            done, since = now, time.monotonic()
        elif time.monotonic() - since > limit_s:
            return True
    return False


def _explain(config: Config, context: RunContext) -> str:
    """Writes the stacks and returns the sentence that the run fails with."""
    file = context.run_dir / "logs" / f"stacks-{context.attempt}.txt"
    sentence = f"no step was finished for {config.stall_timeout_s:g} s (stall_timeout_s)"
    try:
        members = members_of(context)
        file.write_text(report(members), encoding="utf-8")
    except Exception as error:  # the stall itself must be told whatever happens to its explanation
        logger.exception("the stacks could not be written")
        return f"{sentence}; the stacks of its processes could not be written: {type(error).__name__}: {error}"
    return f"{sentence}; {verdict(members)}; the stacks of all its processes: {file}"


def verdict(members: list[Member]) -> str:
    """Which processes cannot be at work, by the operating system's account."""
    frozen = [member for member in members if member.state in (psutil.STATUS_STOPPED, "gone")]
    named = ", ".join(f"{m.role} (pid {m.pid} on {m.node}) is {m.state}" for m in frozen)
    return named or "every process of it is alive"


def report(members: list[Member]) -> str:
    """The stacks of every process, those that cannot be at work first."""
    order = sorted(members, key=lambda m: (m.state not in (psutil.STATUS_STOPPED, "gone"), m.role))
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
