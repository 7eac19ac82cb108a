"""Environment code in a process of its own: a call that hangs or crashes costs its sample and nothing else."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from environments.batch import rows_of, with_scores
from environments.checks import BadEnvironment, shown
from environments.child import Link
from environments.process import Closed, inherited
from environments.score import MAX_CONCURRENT, Row, Score, failed
from environments.turn import Spoken, Turn, failed_turn

START_LIMIT_S = 60.0
"""Longest time for importing and building an environment, and for a call to begin."""

MAX_LIMIT_S = 86_400.0
"""A day: beyond it a limit is a mistake, and far beyond it the operating system refuses to wait."""

EXIT_GRACE_S = 5.0
"""Time for a process that closed its connection to end by itself, even on a busy machine: its exit code tells more."""

ASYNC_GRACE_S = 1.0
"""An async call that passes its limit is first cancelled from within; after this, its process is killed."""

Unit = tuple[int, ...]
"""The rows of one call: a single row of an environment class, or all rows for a bare function."""


class Lost(Exception):
    """The process was killed or died. `units` were being worked on, since `start_s`."""

    def __init__(self, reason: str, units: Sequence[Unit], start_s: float | None) -> None:
        super().__init__(reason)
        self.reason, self.units, self.start_s = reason, list(units), start_s


@dataclass(frozen=True)
class Work:
    """One kind of call: how it is named in an error, and what its result and its failure are."""

    noun: str
    result: Callable[..., Any]
    failed: Callable[[str, str, float | None, float | None], Any]


WORK = {"score": Work("reward", Score, failed), "turn": Work("env_response", Turn, failed_turn)}
Results = dict[int, Any]


class EnvironmentWorker(Closed):
    """Scores tables, and answers turns, with an environment that runs in a child process.

    Every call has `limit_s` seconds of wall-clock time from when its work starts. A call that raises, takes
    longer, returns something that is no reward, or takes its process down becomes a row with a null reward
    and an error text; the process is replaced and the other rows are scored. When several async calls share a
    process that hangs or dies, they are repeated one at a time to find the guilty one.
    """

    def __init__(self, name: str, kwargs: Mapping[str, Any], *, limit_s: float, eos_token: str = "") -> None:
        if not 0 < limit_s <= MAX_LIMIT_S:  # false for nan, too
            raise ValueError(
                f"environment {name!r}: the time limit must be a positive number of seconds, at most {MAX_LIMIT_S:g}, "
                f"got {limit_s}"
            )
        self.name, self.limit_s = name, limit_s
        self._greeting = _greeting(name, kwargs, limit_s, eos_token)
        self._lock = threading.Lock()
        self._closed = False
        self._child: _Child | None = _Child(name, self._greeting, limit_s)
        self._is_function = self._child.is_function
        self.is_async = self._child.is_async

    def score(self, table: pa.Table) -> pa.Table:
        """The same rows in the same order, with the reward columns."""
        return with_scores(table, self._results("score", rows_of(table)))

    def turns(self, spoken: Sequence[Spoken]) -> list[Turn]:
        """What the environment answers to each of these turns of the policy; for a MultiTurnEnvironment."""
        return self._results("turn", spoken)

    def close(self) -> None:
        """End the child process. Scoring afterwards is an error; closing again is not."""
        with self._lock:
            self._closed = True
            self._drop_child()

    def _results(self, kind: str, items: Sequence[Row] | Sequence[Spoken]) -> list[Any]:
        with self._lock:
            if self._closed:
                raise ValueError(f"the worker of environment {self.name!r} is closed")
            results = self._all(kind, items)
        return [results[index] for index in range(len(items))]

    def _all(self, kind: str, items: Sequence[Any]) -> Results:
        results: Results = {}
        alone: list[Unit] = [(index,) for index in range(len(items))]
        pending = [([tuple(range(len(items)))] if self._is_function else alone, MAX_CONCURRENT)]
        while pending:
            left, width = pending.pop()
            try:
                again = self._work(kind, left, items, width, results) if left else []
            except Lost as lost:
                again = [(index,) for unit in lost.units for index in unit]
                if len(again) == 1:  # nobody else was at work: this one is guilty
                    results[again[0][0]] = WORK[kind].failed(self.name, lost.reason, lost.start_s, time.monotonic())
                    again = []
            pending += [(units, size) for units, size in ((left, width), (again, 1)) if units]
        return results

    def _work(self, kind: str, left: list[Unit], items: Sequence[Any], width: int, results: Results) -> list[Unit]:
        """Do the units that are left, taking each off the list. Returns those to repeat row by row."""
        try:
            self._child = self._child or _Child(self.name, self._greeting, self.limit_s)
        except BadEnvironment as error:
            gone = WORK[kind].failed(self.name, f"cannot be started again: {error}", None, None)
            results.update({index: gone for unit in left for index in unit})
            left.clear()
            return []
        again: list[Unit] = []
        try:
            for unit, found, reason in self._child.answers(kind, left, items, width):
                if reason is not None and len(unit) > 1:
                    again += [(index,) for index in unit]
                else:
                    results.update(zip(unit, found, strict=True))
        except Lost as lost:
            left[:] = [unit for unit in left if unit not in lost.units]
            self._drop_child()
            raise
        except BaseException:  # also Ctrl-C: a process in the middle of a call cannot take another
            self._drop_child()
            raise
        return again

    def _drop_child(self) -> None:
        if self._child is not None:
            self._child.end()
        self._child = None


def _greeting(name: str, kwargs: Mapping[str, Any], limit_s: float, eos_token: str) -> dict[str, Any]:
    greeting = {"name": name, "kwargs": dict(kwargs), "limit_s": limit_s, "eos_token": eos_token}
    try:
        json.dumps(greeting)
    except (TypeError, ValueError) as error:
        raise BadEnvironment(
            f"environment {name!r}: settings must be JSON values, got {shown(kwargs)}: {error}"
        ) from None
    return greeting


class _Child:
    """One running child process."""

    def __init__(self, name: str, greeting: dict[str, Any], limit_s: float) -> None:
        self.name, self.limit_s = name, limit_s
        self._process, connection, lifeline = _spawn()
        self._link = Link(connection)
        self.end = weakref.finalize(self, _end, self._process, connection, lifeline)
        try:
            self._link.send(greeting)
            answer = self._link.receive(time.monotonic() + START_LIMIT_S)
        except TimeoutError:
            self.end()
            raise BadEnvironment(f"environment {name!r} was not ready within {START_LIMIT_S:g} s") from None
        except EOFError:
            raise BadEnvironment(f"environment {name!r}: its process {self._fate()} while starting") from None
        if "failed" in answer:
            self.end()
            raise BadEnvironment(answer["failed"])
        self.is_function, self.is_async = answer["is_function"], answer["is_async"]

    def answers(
        self, kind: str, left: list[Unit], items: Sequence[Any], width: int
    ) -> Iterator[tuple[Unit, list[Any], str | None]]:
        """The results of each call as it ends, and why it failed as a whole. `left` shrinks with them."""
        calls = [(unit, [list(vars(items[index]).values()) for index in unit]) for unit in left]
        self._link.send({"work": kind, "calls": calls, "width": width})
        working: dict[Unit, float] = {}
        while left:
            news, indices, *rest = self._next(WORK[kind].noun, working, left)
            unit = tuple(indices)
            if news == "start":
                working[unit] = rest[0]
                continue
            del working[unit]
            left.remove(unit)
            yield unit, [WORK[kind].result(**result) for result in rest[0]], rest[1]

    def _next(self, noun: str, working: dict[Unit, float], left: list[Unit]) -> Any:
        """The next message; Lost when there is none in time, or the process is gone."""
        since_s = min(working.values(), default=None)
        grace_s = ASYNC_GRACE_S if self.is_async else 0.0
        deadline_s = time.monotonic() + START_LIMIT_S if since_s is None else since_s + self.limit_s + grace_s
        try:
            return self._link.receive(deadline_s)
        except TimeoutError:
            reason = f"{noun} took longer than {self.limit_s:g} s; its process was replaced"
        except EOFError:
            reason = f"its process {self._fate()}"
        # Without a call at work, the next in line must have been the cause.
        raise Lost(reason, list(working) or left[:1], since_s)

    def _fate(self) -> str:
        """How a process ended that has closed its connection."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_GRACE_S)
        if self._process.poll() is None:
            self.end()
            return "closed its connection without ending, and was killed"
        self.end()
        code = self._process.returncode
        if code == -signal.SIGKILL:
            return "was killed by SIGKILL, perhaps for want of memory"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _spawn() -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Start a child in a session of its own. It dies when `lifeline`, which only we hold, is closed."""
    ours, theirs = socket.socketpair()
    watched, lifeline = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "environments.child", str(theirs.fileno()), str(watched)],
            pass_fds=(theirs.fileno(), watched),
            stdin=subprocess.DEVNULL,
            env=inherited(),
            start_new_session=True,
        )
    finally:
        theirs.close()
        os.close(watched)
    return process, ours, lifeline


def _end(process: subprocess.Popen[bytes], connection: socket.socket, lifeline: int) -> None:
    """Kill the child and everything it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    connection.close()
    os.close(lifeline)
