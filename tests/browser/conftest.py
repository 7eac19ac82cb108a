"""A real Chromium against a real server on a free loopback port, with runs written by the product's own store.

What is missing is installed where that is possible; where it is not, the tests are skipped with a line that says what
to install. In continuous integration (CI=true) they fail instead.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.browser.runs import hostile_run, many_keys_run, ranged_run
from tests.metrics.builders import write_run

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TOOLS = ROOT / "build" / "node"
SHOTS = ROOT / "build" / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome")
START_S = 90
FLOW_S = 240


@pytest.fixture(scope="session")
def browser_tools() -> SimpleNamespace:
    """Node, playwright-core, axe-core and Chromium."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        give_up("node and npm are not installed (apt-get install nodejs npm)")
    if chromium() is None:
        install_chromium()
    if not (TOOLS / "node_modules" / "playwright-core").is_dir():
        install_packages()
    SHOTS.mkdir(parents=True, exist_ok=True)
    return SimpleNamespace(chromium=chromium(), modules=TOOLS / "node_modules")


def give_up(reason: str) -> None:
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"browser tests cannot run: {reason}")
    pytest.skip(f"browser tests: {reason}")


def chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def install_chromium() -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        give_up("Chromium is not installed (apt-get install chromium)")
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            give_up(f"{' '.join(command)} failed: {done.stderr[-300:]}")


def install_packages() -> None:
    TOOLS.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "package.json", TOOLS / "package.json")
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"]
    done = subprocess.run(command, cwd=TOOLS, capture_output=True, text=True, timeout=600)
    if done.returncode:
        give_up(f"npm install failed: {done.stderr[-300:]}")


class Server:
    """`python -m ui` in a process of its own; it can be stopped and started again on the same port."""

    def __init__(self, runs: Path, **environment: str) -> None:
        self.runs, self.environment = runs, environment
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Server":
        command = [sys.executable, "-m", "ui", "--runs", str(self.runs), "--port", str(self.port)]
        self.process = subprocess.Popen(command, cwd=ROOT, env=os.environ | self.environment)
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            assert self.process.poll() is None, "the dashboard ended while starting"
            try:
                urllib.request.urlopen(f"{self.url}/data/runs", timeout=5).close()
                return self
            except urllib.error.HTTPError:
                return self  # it answers, and asks for its token
            except OSError:
                time.sleep(0.2)
        raise TimeoutError(f"the dashboard did not answer within {START_S} s")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)
            self.process = None


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, browser_tools: SimpleNamespace) -> Iterator[SimpleNamespace]:
    root = tmp_path_factory.mktemp("browser-runs")
    mixed = write_run(
        root, name="mixed", steps=36, groups=6, group_size=8, environments=("sums", "countdown"), resume_at=20, seed=5
    )
    runs = SimpleNamespace(
        plain=write_run(root, name="plain", steps=30, groups=4, group_size=8, seed=3).name,
        mixed=mixed.name,
        failed=write_run(root, name="failed", steps=12, groups=2, state="failed", seed=1).name,
        hostile=hostile_run(root).name,
        wide=many_keys_run(root).name,
        ranged=ranged_run(root).name,
    )
    served = Server(root).start()
    yield SimpleNamespace(url=served.url, root=root, runs=runs, tools=browser_tools)
    served.stop()


@pytest.fixture(scope="session")
def flow(browser_tools: SimpleNamespace) -> Callable[..., dict]:
    """Run one script of flows/ against a dashboard; its assertions are in it, its findings come back.

    `on` maps words to what is done when the script says them on a line of their own.
    """

    def run(
        name: str,
        url: str,
        on: Mapping[str, Callable[[], object]] | None = None,
        limit_s: float = FLOW_S,
        **facts: object,
    ) -> dict:
        environment = os.environ | {
            "NODE_PATH": str(browser_tools.modules),
            "CHROMIUM": browser_tools.chromium,
            "SHOTS": str(SHOTS),
            "BASE": url,
            "FACTS": json.dumps(facts),
        }
        command = ["node", str(HERE / "flows" / f"{name}.js")]
        said = []
        with (
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ) as process,
            ending(process, limit_s),
        ):
            for line in process.stdout or ():
                said.append(line)
                if line.strip() in (on or {}):
                    (on or {})[line.strip()]()
        assert process.returncode == 0, f"{name}:\n{''.join(said)[-7000:]}"
        return json.loads(said[-1])

    return run


@contextmanager
def ending(process: "subprocess.Popen[str]", limit_s: float) -> Iterator[None]:
    """A script that does not end is ended."""
    timer = threading.Timer(limit_s, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
