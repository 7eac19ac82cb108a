"""Running code that nobody has read: the interface, and a provider that uses what Linux offers any process.

A provider of one's own (containers, a remote service) is a class with the same `run`, named in the environment's
settings as "package.module:Class".
"""

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

from environments.checks import BadEnvironment
from environments.support.sandbox_child import UNREADABLE

SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
CHILD = Path(__file__).with_name("sandbox_child.py")
START_S = 2.0
"""What the interpreter may take to start, on top of the time limit of the program."""


@dataclass(frozen=True)
class Limits:
    """Of one program: wall-clock and CPU seconds, bytes of memory, of a file and of its output."""

    wall_s: float = 5.0
    cpu_s: int = 5
    memory_bytes: int = 512 << 20
    file_bytes: int = 1 << 20
    output_bytes: int = 1 << 20


@dataclass(frozen=True)
class Ran:
    """How a program ended. `error` says why it was stopped, or which exit code it had when that was not 0."""

    output: str
    error: str | None = None


class Sandbox(Protocol):
    """Runs Python programs. It must survive anything that they do, and keep to the limits."""

    def run(self, program: str, text: str, limits: Limits) -> Ran:
        """Runs a program with `text` on its standard input; returns what it wrote to its standard output."""
        ...


class LocalSandbox:
    """A process of this machine with resource limits, in an empty folder of its own, without children.

    It has no network where the kernel lets a process give it up; otherwise it refuses to run, unless `allow_network`.
    Started by root, it runs as nobody. Where the kernel has Landlock, it sees the files of Python's library and of its
    own folder only, and from Linux 6.12 on it can signal no process but itself. Otherwise nothing but its user keeps it
    from signalling: not started by root, it can then end any process of the user who started it. It sees the numbers
    of all processes and shares the kernel with them: for code that is hostile rather than wrong, use more.
    """

    def __init__(self, allow_network: bool = False) -> None:
        self.allow_network = allow_network
        self.pythons = [sys.executable, *(python for python in SYSTEM_PYTHONS if Path(python).exists())]

    def run(self, program: str, text: str, limits: Limits) -> Ran:
        """As `Sandbox.run`. RuntimeError when this machine cannot run a program in the way that is described above."""
        with tempfile.TemporaryDirectory(prefix="telescope-sandbox-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            folder.chmod(0o711)
            work = folder / "work"
            work.mkdir()
            work.chmod(0o777)  # whatever the umask: the program may run as another user
            (work / "program.py").write_text(program, encoding="utf-8", errors="replace")
            (work / "program.py").chmod(0o644)
            (folder / "input").write_text(text, encoding="utf-8", errors="replace")
            while (ran := self._run(self.pythons[0], folder, limits)) is None:
                if len(self.pythons) == 1:
                    raise RuntimeError(
                        "the sandbox found no Python that the user 'nobody' can read; do not run as root"
                    )
                self.pythons = self.pythons[1:]
            return ran

    def _run(self, python: str, folder: Path, limits: Limits) -> Ran | None:
        """None where the interpreter's library cannot be read by the user that the program runs as.

        Until the program runs, a pipe is open: it cannot pretend that its own end was the sandbox's refusal.
        """
        ready, told = os.pipe()
        request = asdict(limits) | {"allow_network": self.allow_network, "ready_fd": told}
        command = [python, "-I", "-S", "-B", str(CHILD), json.dumps(request)]
        with os.fdopen(ready, "rb") as pipe, (folder / "errors").open("w+b") as errors:
            try:
                code = _exit_code(command, folder, limits, errors, told)
            finally:
                os.close(told)
            if not pipe.read():
                if code == UNREADABLE:
                    return None
                errors.seek(0)
                said = errors.read(4096).decode("utf-8", "replace").strip()
                raise RuntimeError(f"the sandbox did not start: {said or f'exit code {code}'}")
        with (folder / "output").open("rb") as output:
            return Ran(output.read(limits.output_bytes).decode("utf-8", "replace"), _problem(code, limits))


def _exit_code(command: list[str], folder: Path, limits: Limits, errors: Any, told: int) -> int | None:
    """Runs the process to its end; None when it had to be killed."""
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(folder / "work"), "LANG": "C.UTF-8"}
    with (folder / "input").open("rb") as text, (folder / "output").open("wb") as output:
        try:
            return subprocess.run(
                command,
                stdin=text,
                stdout=output,
                stderr=errors,
                cwd=folder / "work",
                env=variables,
                pass_fds=(told,),
                timeout=limits.wall_s + START_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return None


def _problem(code: int | None, limits: Limits) -> str | None:
    if code in (None, -signal.SIGALRM, -signal.SIGXCPU):
        return f"it took longer than {limits.wall_s:g} s"
    return None if code == 0 else f"it ended with exit code {code}"


@cache
def provider(name: str, settings: str = "{}") -> Sandbox:
    """The sandbox that is named "package.module:Class", built with settings given as JSON."""
    path, _, attribute = name.partition(":")
    try:
        kind: Any = getattr(importlib.import_module(path), attribute)
        # Before the call: calling something else, such as subprocess:Popen, may already do harm.
        if not inspect.isclass(kind) or not callable(getattr(kind, "run", None)):
            raise TypeError("wanted a class with run(program, text, limits)")
        sandbox = cast("Sandbox", kind(**json.loads(settings)))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise BadEnvironment(f"cannot use the sandbox {name!r} with {settings}: {error}") from error
    return sandbox


def settings_text(settings: Mapping[str, Any] | None) -> str:
    return json.dumps(dict(settings or {}), sort_keys=True)
