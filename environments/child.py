"""The process that runs one environment for an EnvironmentWorker: calls in, results out, over one socket.

It must start in a blink: it imports neither ray nor torch, and pyarrow or NumPy only for a bare function.
Messages are lines of JSON. The parent kills this process whenever a call takes too long.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from environments.base import BaseEnvironment
from environments.checks import name_of, raised
from environments.function import FunctionEnvironment
from environments.loader import load
from environments.score import Row, Score, failed, is_async, score_row, score_row_async
from environments.turn import Spoken, Turn, turn_async, turn_now

Unit = Sequence[int]
Item = Row | Spoken
"""What is worked on: a row to judge, or a turn of the policy to answer."""
ITEMS = {"score": Row, "turn": Spoken}


class Link:
    """Lines of JSON over a connected socket. Receives wait no longer than a deadline; sends never block."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._received = bytearray()
        self._unsent = bytearray()
        self._lines: list[bytearray] = []

    def send(self, message: Any) -> None:
        """Queue a message; `receive` and `flush` move the bytes."""
        self._unsent += json.dumps(message).encode() + b"\n"

    def flush(self) -> None:
        while self._unsent:
            select.select([], [self._socket], [])
            self._push()

    def receive(self, deadline_s: float | None = None) -> Any:
        """The next message. Raises TimeoutError at the deadline (time.monotonic) and EOFError at the end."""
        while not self._lines:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            if left_s == 0.0:
                raise TimeoutError
            wants_write = [self._socket] if self._unsent else []
            can_read, can_write, _ = select.select([self._socket], wants_write, [], left_s)
            if can_read:
                self._pull()
            if can_write:
                self._push()
        try:
            return json.loads(self._lines.pop(0))
        except ValueError as error:  # somebody else wrote into our socket: there is nothing left to trust
            raise EOFError from error

    def _pull(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
        except OSError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        *lines, self._received = (self._received + data).split(b"\n")
        self._lines.extend(lines)

    def _push(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:  # the other side is gone; the next receive says so
            sent = len(self._unsent)
        del self._unsent[:sent]


def main() -> None:
    connection, lifeline = (int(number) for number in sys.argv[1:3])
    _die_with_parent(lifeline)
    _be_killed_first_when_memory_runs_out()
    os.dup2(2, 1)  # what an environment prints goes to the log, whatever the parent's stdout is used for
    link = Link(socket.socket(fileno=connection))
    request = link.receive()
    try:
        environment = load(request["name"], request["kwargs"])
    except Exception as error:  # noqa: BLE001 - importing and building run environment code
        link.send({"failed": str(error)})
        link.flush()
        return
    link.send({"is_function": isinstance(environment, FunctionEnvironment), "is_async": is_async(environment)})
    link.flush()
    _serve(link, environment, request["eos_token"], request["limit_s"])


def _die_with_parent(lifeline: int) -> None:
    """Be ended by the kernel when the parent's end of the pipe closes, even in the middle of a busy loop."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _be_killed_first_when_memory_runs_out() -> None:
    setting = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):  # not Linux, or not allowed
        setting.write_text(str(max(500, int(setting.read_text()))))


def _serve(link: Link, environment: Any, eos_token: str, limit_s: float) -> None:
    loop = asyncio.new_event_loop()  # one for the whole life: environments may keep sessions bound to it
    while True:
        try:
            request = link.receive()
        except EOFError:
            return
        item = ITEMS[request["work"]]
        calls = [(unit, [item(*values) for values in items]) for unit, items in request["calls"]]
        if is_async(environment):
            loop.run_until_complete(_together(link, environment, calls, request["width"], eos_token, limit_s))
        else:
            for unit, items in calls:
                _start(link, unit)
                _finish(link, unit, *_one_call(environment, items, eos_token))


def _one_call(environment: Any, items: list[Item], eos_token: str) -> tuple[list[Score | Turn], str | None]:
    if isinstance(environment, BaseEnvironment):
        return [_now(environment, item, eos_token) for item in items], None
    try:
        return environment.score_batch(items), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - environment code may raise anything, SystemExit too
        reason = f"reward() failed: {raised(error)}"
        return [failed(name_of(environment), reason) for _ in items], reason


def _now(environment: Any, item: Item, eos_token: str) -> Score | Turn:
    return turn_now(environment, item) if isinstance(item, Spoken) else score_row(environment, item, eos_token)


async def _together(
    link: Link,
    environment: Any,
    calls: list[tuple[Unit, list[Item]]],
    width: int,
    eos_token: str,
    limit_s: float,
) -> None:
    slots = asyncio.Semaphore(width)

    async def one(unit: Unit, item: Item) -> None:
        async with slots:
            _start(link, unit)
            if isinstance(item, Spoken):
                result: Score | Turn = await turn_async(environment, item, limit_s)
            else:
                result = await score_row_async(environment, item, eos_token, limit_s)
            _finish(link, unit, [result], None)

    await asyncio.gather(*(one(unit, item) for unit, items in calls for item in items))


def _start(link: Link, unit: Unit) -> None:
    link.send(["start", list(unit), time.monotonic()])
    link.flush()


def _finish(link: Link, unit: Unit, results: list[Score | Turn], reason: str | None) -> None:
    link.send(["done", list(unit), [asdict(result) for result in results], reason])
    link.flush()


if __name__ == "__main__":
    main()
