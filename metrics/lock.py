"""One writer a run. The operating system holds the lock: it is free the moment its process is gone, however it went."""

import fcntl
import json
import os
import socket
import time
from pathlib import Path


class RunIsBeingWritten(RuntimeError):
    """Another process has the run open for writing. The message names its pid and host."""


class RunLock:
    """Held from construction to `release`. Waits a moment for a predecessor that is being killed right now."""

    def __init__(self, path: Path, *, wait_s: float = 0.0) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + wait_s
        while not self.try_lock():
            if time.monotonic() >= deadline:
                os.close(self.descriptor)
                raise RunIsBeingWritten(refusal(path))
            time.sleep(0.05)
        os.truncate(self.descriptor, 0)
        os.pwrite(self.descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)

    def try_lock(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def refusal(path: Path) -> str:
    run = path.parent.parent.name
    try:
        holder = json.loads(path.read_text())
        who = f"pid {holder['pid']} on host {holder['host']}"
    except (ValueError, KeyError, OSError):
        who = "another process"
    return f"run {run!r} is being written by {who}; stop that one first, or start a run with another name"
