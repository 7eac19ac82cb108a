"""A Ray cluster of one's own on this machine, beside whatever Ray already runs here, and its complete removal."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

START_LIMIT_S = 120.0
STOP_LIMIT_S = 20.0
ENVIRONMENT = {
    # Unset, Ray turns token authentication on as soon as any program on the machine has left a token behind.
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    "RAY_DEDUP_LOGS": "0",
    "TOKENIZERS_PARALLELISM": "false",
}


class PortInUse(RuntimeError):
    """A port that was asked for is taken by another program."""


@dataclass(frozen=True)
class LocalRay:
    address: str  # GCS host:port, for ray.init and RAY_ADDRESS
    dashboard_url: str
    process: subprocess.Popen[bytes]
    log: Path


def check_port(port: int, remedy: str) -> None:
    """Refuse a port that another program listens on, before anything is started."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortInUse(f"port {port} on 127.0.0.1 is not free ({error.strerror}); {remedy}") from None


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def local_ray(num_cpus: int, object_store_mb: int = 500) -> Iterator[LocalRay]:
    """Start Ray with its dashboard (Ray Jobs needs it) and take every process of it down again."""
    with tempfile.TemporaryDirectory(prefix="telescope-ray-", ignore_cleanup_errors=True) as folder:
        cluster = _start(Path(folder), num_cpus, object_store_mb)
        try:
            _await_ready(cluster)
            yield cluster
        finally:
            stop_tree(cluster.process)


def _start(folder: Path, num_cpus: int, object_store_mb: int) -> LocalRay:
    # All at once, or the same port could be handed out twice.
    gcs, dashboard, agent, client = free_ports(4)
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *("--node-ip-address=127.0.0.1", f"--port={gcs}", f"--ray-client-server-port={client}"),
        *("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"),
        *(f"--dashboard-agent-listen-port={agent}", f"--temp-dir={folder}"),
        *(f"--num-cpus={num_cpus}", f"--object-store-memory={object_store_mb * 1_000_000}"),
    ]
    log = folder / "start.log"
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"} | ENVIRONMENT
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us: we stop it when its work has been stopped
        )
    return LocalRay(f"127.0.0.1:{gcs}", f"http://127.0.0.1:{dashboard}", process, log)


def _await_ready(cluster: LocalRay) -> None:
    from app.ray_jobs import NoCluster, connect

    end = time.monotonic() + START_LIMIT_S
    while cluster.process.poll() is None:
        if _listens(cluster.dashboard_url):
            with contextlib.suppress(NoCluster):
                connect(cluster.dashboard_url)
                return
        if time.monotonic() > end:
            raise TimeoutError(f"Ray did not start within {START_LIMIT_S:.0f} s:\n{_tail(cluster.log)}")
        time.sleep(0.2)
    raise RuntimeError(f"Ray ended with code {cluster.process.returncode} while starting:\n{_tail(cluster.log)}")


def _listens(url: str) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) == 0


def _tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def stop_tree(process: subprocess.Popen[bytes], limit_s: float = STOP_LIMIT_S) -> None:
    """End a process and all its descendants: politely first, then for certain."""
    try:
        root = psutil.Process(process.pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(family, timeout=limit_s)
    for member in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(alive, timeout=limit_s)
    process.wait(timeout=limit_s)
