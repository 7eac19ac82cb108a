"""A Ray cluster of one's own on this machine, beside whatever Ray already runs here, and its complete removal."""

import contextlib
import os
import shutil
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
POLITE_S = 4.0
STOP_LIMIT_S = 20.0
LEAST_STORE_MB, MOST_STORE_MB = 500, 4000
MARK = "TELESCOPE_LOCAL_RAY"
ANY_ADDRESS = {"0.0.0.0", "::"}
ENVIRONMENT = {
    # Unset, Ray turns token authentication on as soon as any program on the machine has left a token behind.
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    # Polling costs CPU all the time: at 0.1 s these two took a seventh of a core. What they delay is seen as late.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # Nobody takes this machine away with notice, and nobody scrapes it.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
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
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "start.log"


def check_port(port: int, remedy: str) -> None:
    """Refuse a port that another program listens on, before anything is started."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortInUse(f"port {port} on 127.0.0.1 is not free ({error.strerror}); {remedy}") from None


def check_unshared(port: int) -> None:
    """Refuse a port on which another program's Serve listens beside that of the Ray to which this worker belongs.

    Proxies of Serve allow it (SO_REUSEPORT): then Linux hands the requests to either. Workers of a Ray have one parent.
    """
    found = [
        one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN and one.laddr.port == port
    ]
    sisters = [one for one in found if _parent_of(one.pid) == os.getppid()]
    ours = {one.laddr.ip for one in sisters}  # on a node without a proxy of ours anybody may have the port
    if ours & ANY_ADDRESS:  # whoever listens at one address gets its requests
        ours |= {one.laddr.ip for one in found}
    others = [str(one.pid or "of another user") for one in found if one.laddr.ip in ours and one not in sisters]
    if others:
        raise PortInUse(
            f"port {port} is also listened on by process {', '.join(others)}, and requests go to either; end it, or "
            "write another http_options.port into configs/serve.yaml and `serve deploy` it before Serve is started"
        )


def _parent_of(pid: int | None) -> int | None:
    try:
        return psutil.Process(pid).ppid() if pid else None
    except psutil.NoSuchProcess:
        return None


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def local_ray(num_cpus: int, object_store_mb: int | None = None) -> Iterator[LocalRay]:
    """Start Ray with its dashboard (Ray Jobs needs it) and take every process of it down again."""
    with tempfile.TemporaryDirectory(prefix="telescope-ray-", ignore_cleanup_errors=True) as name, _guard(name):
        cluster = _start(Path(name), num_cpus, object_store_mb or store_mb())
        try:
            _await_ready(cluster)
            yield cluster
        finally:
            _stop(cluster)


def store_mb() -> int:
    """Megabytes for Ray's objects: an eighth of the free memory, within bounds (a container may have less than it
    sees). Where two versions of the weights do not fit, every push goes through the disk."""
    free = psutil.virtual_memory().available // 8
    shared = Path("/dev/shm")  # where they lie
    if shared.is_dir():
        free = min(free, shutil.disk_usage(shared).free // 2)
    return min(max(LEAST_STORE_MB, free // 1_000_000), MOST_STORE_MB)


@contextlib.contextmanager
def _guard(folder: str) -> Iterator[None]:
    """A process that takes the cluster down should this one be killed, which could not do it any more.

    It reads from a pipe whose other end only we have: that ends when we end, however that happens.
    """
    words = [sys.executable, "-m", "app.local_ray", folder]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True):
        yield


def _start(folder: Path, num_cpus: int, object_store_mb: int) -> LocalRay:
    # All at once, or the same port could be handed out twice.
    gcs, dashboard, agent, client = free_ports(4)
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        "--no-monitor",  # of the autoscaler: there is one machine
        *("--node-ip-address=127.0.0.1", f"--port={gcs}", f"--ray-client-server-port={client}"),
        *("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"),
        *(f"--dashboard-agent-listen-port={agent}", f"--temp-dir={folder}"),
        *("--min-worker-port=0", "--max-worker-port=0"),  # any: the default range is shared by all of the machine
        *(f"--num-cpus={num_cpus}", f"--object-store-memory={object_store_mb * 1_000_000}"),
    ]
    inherited = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment = inherited | ENVIRONMENT | {MARK: str(folder)}
    with (folder / "start.log").open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us: we stop it when its work has been stopped
        )
    return LocalRay(f"127.0.0.1:{gcs}", f"http://127.0.0.1:{dashboard}", process, folder)


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


def family(folder: Path) -> set[psutil.Process]:
    """Every process of the cluster: those that inherited its mark, and their descendants.

    Workers rename themselves, which destroys the mark; a process whose parent is gone has no ancestor: both are needed.
    """
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == str(folder):
                found |= {process, *process.children(recursive=True)}
    return found


def _stop(cluster: LocalRay) -> None:
    """End the cluster: politely first, then for certain. With Serve on it Ray would take half a minute."""
    members = family(cluster.folder)
    cluster.process.terminate()
    psutil.wait_procs(members, timeout=POLITE_S)
    _end(cluster.folder, members)
    cluster.process.wait(timeout=STOP_LIMIT_S)


def _end(folder: Path, members: set[psutil.Process]) -> None:
    """Kill these processes of the cluster, and those that appear meanwhile."""
    end = time.monotonic() + STOP_LIMIT_S
    while left := [process for process in members | family(folder) if _is_alive(process)]:
        if time.monotonic() > end:
            raise RuntimeError(f"processes {[process.pid for process in left]} of the local Ray do not end")
        members.update(left)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def main() -> None:
    """The guard of one cluster: does nothing until whoever started it has ended."""
    folder = Path(sys.argv[1])
    sys.stdin.buffer.read()
    _end(folder, set())
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
