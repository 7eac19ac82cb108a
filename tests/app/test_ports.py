"""A port that two programs listen on: Linux lets those share it that ask for it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.local_ray import PortInUse, check_unshared

LISTEN = """
import socket, sys
with socket.socket() as listener:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((sys.argv[2], int(sys.argv[1])))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()
"""
SISTER = [sys.executable, "-c", LISTEN]
STRANGER = ["sh", "-c", '"$0" "$@"; exit', *SISTER]
"""The shell waits for it: it is no child of ours."""


@contextmanager
def listener(words: list[str], port: int, host: str = "127.0.0.1") -> Iterator[int]:
    """A process that listens until the block is left; gives its port."""
    with subprocess.Popen(
        [*words, str(port), host], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


@pytest.fixture(autouse=True)
def worker(monkeypatch):
    """This process stands for the raylet as well: its children are the workers."""
    monkeypatch.setattr(os, "getppid", os.getpid)


def test_a_port_of_our_own_alone_is_fine():
    with listener(SISTER, 0) as port:
        check_unshared(port)


def test_a_port_that_another_program_shares_is_refused():
    with listener(SISTER, 0) as port, listener(STRANGER, port), pytest.raises(PortInUse, match=f"port {port} is also"):
        check_unshared(port)


def test_where_none_of_ours_listens_the_port_is_anybodys():
    with listener(STRANGER, 0) as port:
        check_unshared(port)


@pytest.mark.parametrize("host", ["127.0.0.2", "0.0.0.0"])
def test_whoever_listens_at_another_or_every_address_takes_no_request_from_ours(host):
    with listener(SISTER, 0) as port, listener(STRANGER, port, host):
        check_unshared(port)


def test_a_port_of_every_address_is_shared_with_who_has_it_at_one():
    with listener(SISTER, 0, "0.0.0.0") as port, listener(STRANGER, port), pytest.raises(PortInUse, match="by process"):
        check_unshared(port)
