"""One command from nothing to a trained policy: `python -m app.launch configs/demo.yaml`, or `make demo`.

Starts a Ray of its own, the dashboard and the run, shows how it goes, and takes everything down again, also when it
is interrupted. The run directory stays.
"""

import argparse
import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from app import config as configs
from app import local_ray, preflight, run_dir, sealed
from app.config import Config, ConfigError
from app.jobs import Jobs, Run, Status
from app.local_ray import LocalRay, PortInUse
from app.preflight import Refused
from app.progress import Progress
from app.run_dir import RunDir, RunError

POLL_S = 1.0
PLAIN_LINE_EVERY_S = 10.0  # where lines cannot be overwritten
ONE_INTERRUPT_S = 2.0
FAILED, REFUSED, INTERRUPTED = 1, 2, 130
ENDED = {
    "status": "DEPLOY_FAILED",
    "message": "its Serve has ended, as it does where another program listens on its port",
}


class Interrupted(BaseException):
    """Ctrl-C, SIGTERM or a closed terminal. Not an Exception: nothing on the way may take it for a failure."""


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    before = {number: signal.signal(number, _interrupt) for number in _ends()}
    try:
        config = configs.load(options.config, options.overrides)
        local_ray.check_port(options.port, _another(options.port))
        return launch(config, options.port)
    except (ConfigError, PortInUse, RunError, Refused) as error:
        print(error, file=sys.stderr)
        return REFUSED
    except Interrupted:
        say("interrupted; everything that was started has been stopped")
        return INTERRUPTED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def launch(config: Config, port: int) -> int:
    """Everything between the checks and the exit status."""
    began = time.monotonic()
    root = run_dir.root_of(config.runs_dir)
    run_dir.check_root(root)
    os.environ.update(local_ray.ENVIRONMENT | {"TELESCOPE_RUNS": str(root)})
    say(f"preparing the policy {config.model!r} (made once, then kept)")
    preflight.policy_of(config)
    say("starting Ray")
    run: Run | None = None
    progress = Progress(config.steps)
    try:
        with local_ray.local_ray(num_cpus=max(2, os.cpu_count() or 2)) as cluster:
            dashboard = Dashboard(cluster, port)
            run = Jobs(cluster.dashboard_url, root).submit(config)
            say(f"run {run.id}: starting the engine and the trainer")
            with _stopped_at_the_end(run):
                status, first_step_s = _follow(run, progress, dashboard, began)
    finally:
        if run is not None:
            run.status()  # a driver that had to be killed could not write its end
    return _report(run, status, progress, time.monotonic() - began, first_step_s)


class Dashboard:
    """The control plane, deployed as `serve deploy configs/serve.yaml` does. The run does not need it."""

    def __init__(self, cluster: LocalRay, port: int) -> None:
        from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

        self.url = f"http://127.0.0.1:{port}"
        self.client = ServeSubmissionClient(cluster.dashboard_url)
        # Before the run is submitted: whoever starts Serve decides its port.
        self.client.deploy_applications(
            {
                "proxy_location": "HeadOnly",
                "http_options": {"host": "127.0.0.1", "port": port},
                "applications": [{"name": "telescope", "route_prefix": "/", "import_path": "app.serve:app"}],
            }
        )
        self.announced = False

    def announce(self) -> str | None:
        """What to tell, once: where it is, or why it did not start."""
        if self.announced:
            return None
        try:
            found = self.client.get_serve_details()["applications"].get("telescope", ENDED)
        except (OSError, RuntimeError):  # Ray's own server is busy: asked again at the next look
            return None
        self.announced = found["status"] in ("RUNNING", "DEPLOY_FAILED", "UNHEALTHY")
        if not self.announced:
            return None
        if found["status"] == "RUNNING":
            return f"dashboard: {self.url} (until the run ends: Stop on its page ends both, as Ctrl-C does)"
        return f"the dashboard did not start, the run goes on without it: {found['message'][-1000:]}"


def _follow(run: Run, progress: Progress, dashboard: Dashboard, began: float) -> tuple[Status, float | None]:
    """Show the progress until the run ends; returns its state and the seconds until the first step."""
    screen = Screen()
    first_step_s: float | None = None
    while True:
        status = run.status()
        if progress.feed(run.metrics(since=progress.last_step or None)) and first_step_s is None:
            first_step_s = time.monotonic() - began
        if status.final:
            screen.close()
            run.wait()  # for its log, which goes with the cluster
            return status, first_step_s
        if news := dashboard.announce():
            screen.close()
            say(news)
        screen.show(progress.line() if progress.last_step else f"{status.sentence()}, {time.monotonic() - began:.0f} s")
        time.sleep(POLL_S)


class Screen:
    """One line that is kept up to date; where that is impossible, a line now and then."""

    def __init__(self) -> None:
        self.rewrites = sys.stdout.isatty()
        self.shown = ""
        self.shown_at = -PLAIN_LINE_EVERY_S

    def show(self, line: str) -> None:
        if self.rewrites:
            print(f"\r\033[K{line}", end="", flush=True)
        elif line != self.shown and time.monotonic() - self.shown_at >= PLAIN_LINE_EVERY_S:
            print(line, flush=True)
            self.shown, self.shown_at = line, time.monotonic()

    def close(self) -> None:
        if self.rewrites:
            print("\r\033[K", end="", flush=True)


def _report(run: Run, status: Status, progress: Progress, wall_s: float, first_step_s: float | None) -> int:
    table = progress.summary(wall_s, first_step_s)
    table.append(("run directory", str(run.directory.path)))
    table.append(("weights", weights(run.directory)))
    table.append(("see it again", f"{Path(sys.executable)} -m ui --runs {run.directory.path.parent}"))
    if status != "finished":
        print(f"run {run.id} {status.sentence()}", file=sys.stderr)
        print("last lines of its log:\n" + run.logs(tail=15), file=sys.stderr)
    else:
        print(f"run {run.id} finished")
    width = max(len(name) for name, _ in table)
    for name, value in table:
        print(f"  {name:<{width}}  {value}")
    return 0 if status == "finished" else FAILED


def weights(directory: RunDir) -> str:
    """What was learnt that can be used further, and how."""
    newest = sealed.newest(directory.checkpoints)
    if newest is None:
        return "none kept: no checkpoint was due; checkpoint_every says how often one is"
    return f"of step {sealed.step_of(newest)}: {sys.executable} -m app.export {directory.path} NEW_FOLDER"


@contextmanager
def _stopped_at_the_end(run: Run) -> Iterator[None]:
    """When we end early, give the driver time to take down its engines; what is left goes with Ray."""
    try:
        yield
    except BaseException:
        print(flush=True)
        say("stopping the run")
        try:
            run.stop(cleanup=False)  # the cluster goes, and everything on it
        except (OSError, RuntimeError) as error:
            say(f"the run did not stop by itself ({error}); ending its processes")
        raise


def say(text: str) -> None:
    print(text, flush=True)


def _ends() -> list[signal.Signals]:
    """The signals that end us: a closed terminal too, unless we were started to outlive it (nohup)."""
    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if outlives else [signal.SIGHUP])]


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """One Ctrl-C often arrives twice: from the terminal, and passed on by `make` or `timeout`."""
    global _interrupted_at
    if number == signal.SIGHUP:  # nobody reads on: a word to the closed terminal would be an error while stopping
        sys.stdout = sys.stderr = io.StringIO()
    again_after_s, _interrupted_at = time.monotonic() - _interrupted_at, time.monotonic()
    if again_after_s > ONE_INTERRUPT_S:
        raise Interrupted


_interrupted_at = -ONE_INTERRUPT_S


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m app.launch", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("config", help="a YAML file, such as configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", help="key=value, dotted keys")
    parser.add_argument("--port", type=_port, default=8000, help="of the dashboard (default: %(default)s)")
    return parser.parse_intermixed_args(arguments)  # options may stand between the overrides


def _another(port: int) -> str:
    other = port + 1 if port < 65535 else port - 1
    return f"end the program that has it, or choose another: --port {other}, or `make demo PORT={other}`"


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:6]) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; a port is a whole number from 1 to 65535")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
