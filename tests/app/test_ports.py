"""A port that two programs listen on: Linux lets those share it that ask for it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from app.local_ray import PortInUse, check_unshared, local_ray

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


@pytest.mark.stack
def test_a_dashboard_that_refuses_a_shared_port_lets_go_of_it(tmp_path, monkeypatch):
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

    monkeypatch.setenv("TELESCOPE_RUNS", str(tmp_path))
    with listener(STRANGER, 0) as port, local_ray(num_cpus=2, object_store_mb=100) as cluster:
        before = listening(port)
        wanted = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": port},
            "applications": [{"name": "telescope", "route_prefix": "/", "import_path": "app.serve:app"}],
        }
        ServeSubmissionClient(cluster.dashboard_url).deploy_applications(wanted)
        until(lambda: listening(port) > before, "the proxy of Serve listens")
        until(lambda: listening(port) == before, "it has let go of the port")
        logs = [file.read_text() for file in cluster.folder.glob("session_latest/logs/worker-*.err")]
        assert any(f"its Serve ends: port {port} is also listened on" in text for text in logs)


def listening(port: int) -> set[int | None]:
    found = psutil.net_connections("tcp")
    return {one.pid for one in found if one.status == psutil.CONN_LISTEN and one.laddr.port == port}


def until(happened: Callable[[], bool], what: str, limit_s: float = 90) -> None:
    end = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < end, f"not within {limit_s} s: {what}"
        time.sleep(0.1)
