"""Whether two mathematical answers are the same, judged by math-verify in a process of its own.

An answer comes from a model and may be anything: `9^{9^{9}}` keeps SymPy busy for ever, inside one operation that no
signal interrupts. The process is killed when a comparison takes too long, and is limited in memory.
"""

import contextlib
import importlib.util
import json
import logging
import os
import re
import resource
import select
import subprocess
import sys
import threading
import time
import weakref
from fractions import Fraction
from functools import cache
from typing import IO, Any

from environments.checks import BadEnvironment
from environments.process import inherited
from environments.support.optional import remedy

START_LIMIT_S = 60.0
MEMORY_BYTES = 2 << 30
MAX_ANSWER = 300
MAX_DIGITS = 100
NUMBER = re.compile(r"(-?)(?:(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?|\\d?frac\{(\d+)\}\{(\d+)\}|(\d+)/(\d+))", re.ASCII)
BOXED = r"\boxed{"


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{…}` of a text; None without one, or where its braces are not closed."""
    start = text.rfind(BOXED)
    if start < 0:
        return None
    depth, begin = 1, start + len(BOXED)
    for place in range(begin, min(len(text), begin + 2 * MAX_ANSWER)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin:place].strip()
    return None


def plain_number(answer: str) -> Fraction | None:
    """The value of an integer, a decimal number or a fraction; None for anything else."""
    text = answer.strip().strip("$").replace("\\!", "").replace(" ", "")
    found = NUMBER.fullmatch(text) if len(text) <= MAX_DIGITS else None
    if found is None:
        return None
    sign, whole, decimals, above, below, over, under = found.groups()
    if whole is not None:
        value = Fraction(whole.replace(",", "") + (decimals or ""))
    elif int(below or under) == 0:
        return None
    else:
        value = Fraction(int(above or over), int(below or under))
    return -value if sign else value


def same(right: str, given: str, limit_s: float) -> bool:
    """Whether `given` is the answer `right`. TimeoutError when that cannot be told within `limit_s`.

    ChildProcessError when the comparing process ends at it, for example for want of memory.
    """
    numbers = plain_number(right), plain_number(given)
    if None not in numbers:
        return numbers[0] == numbers[1]
    if len(given) > MAX_ANSWER:
        return False
    return right.strip() == given.strip() or _checker(limit_s).same(right, given)


def check_installed() -> None:
    """BadEnvironment with the remedy where math-verify is missing."""
    if importlib.util.find_spec("math_verify") is None:
        raise BadEnvironment(f"needs the package 'math_verify', which is not installed; {remedy('math_verify')}")


class Checker:
    """One math-verify process, started when first needed and again after it had to be killed."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.finalizer: weakref.finalize[..., Checker] | None = None

    def same(self, right: str, given: str) -> bool:
        with self.lock:
            process = self.process or self._start()
            request = {"right": right, "given": given, "limit_s": self.limit_s}
            _send(process, request)
            try:
                return bool(self._answer(process, self.limit_s))
            except TimeoutError:
                raise TimeoutError(f"comparing with {given[:80]!r} took longer than {self.limit_s:g} s") from None
            except EOFError:
                how = f"ended with exit code {process.returncode}"
                raise ChildProcessError(f"the math-verify process {how} at {given[:80]!r}; see the log") from None

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "environments.support.math_answers"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=inherited(), bufsize=0)
        self.process, self.finalizer = process, weakref.finalize(self, _kill, process)
        try:
            self._answer(process, START_LIMIT_S)
        except TimeoutError:
            raise RuntimeError(f"the math-verify process did not start within {START_LIMIT_S:g} s") from None
        except EOFError:
            how = f"ended with exit code {process.returncode}"
            raise RuntimeError(f"the math-verify process {how} before it was ready; see the log") from None
        return process

    def _answer(self, process: subprocess.Popen[bytes], limit_s: float) -> Any:
        """The next line. TimeoutError or EOFError (the process died) without one; the process is then replaced."""
        assert process.stdout is not None
        assert self.finalizer is not None
        try:
            return json.loads(_line(process.stdout, time.monotonic() + limit_s))
        except (TimeoutError, EOFError):
            self.finalizer()  # kills, once, and is forgotten
            self.process = None
            raise


_checker = cache(Checker)


def _send(process: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # a dead process has no answer, which is how it is found out
        process.stdin.write(json.dumps(request).encode() + b"\n")


def _line(stream: IO[bytes], deadline_s: float) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        left_s = max(0.0, deadline_s - time.monotonic())
        if not select.select([stream], [], [], left_s)[0]:
            raise TimeoutError
        if not (data := os.read(stream.fileno(), 4096)):
            raise EOFError
        line += data
    return line


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # does nothing to one that has ended
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)  # the library logs what it could not parse, which is what a model wrote
    from math_verify import parse, verify

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print('"ready"', file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        _limit_cpu(request["limit_s"])
        # Its own limits are off: they are signals, which do not interrupt one long operation.
        right, given = (
            parse(f"\\boxed{{{request[name]}}}", parsing_timeout=None, raise_on_error=False)
            for name in ("right", "given")
        )
        print(json.dumps(bool(verify(right, given, timeout_seconds=None))), file=answers)


def _limit_cpu(limit_s: float) -> None:
    """Be ended by the kernel some time after the limit, even when nobody is left to do it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime + 2 * limit_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


if __name__ == "__main__":
    main()
