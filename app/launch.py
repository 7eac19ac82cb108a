"""One command from nothing to a trained policy: `python -m app.launch configs/demo.yaml`, or `make demo`.

Starts a Ray of its own, the dashboard and the run, shows how it goes, and takes everything down again, also when it
is interrupted. The run directory stays.
"""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from app import config as configs
from app import local_ray, policy, run_dir
from app.config import Config, ConfigError
from app.jobs import Jobs, Run, Status
from app.local_ray import LocalRay, PortInUse
from app.policy import BadPolicy
from app.progress import Progress
from app.run_dir import RunError

POLL_S = 1.0
PLAIN_LINE_EVERY_S = 10.0  # where lines cannot be overwritten
FAILED, REFUSED, INTERRUPTED = 1, 2, 130


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM. Not an Exception: nothing on the way may take it for a failure."""


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        config = configs.load(options.config, options.overrides)
        local_ray.check_port(options.port, f"end the program that has it, or choose another: --port {options.port + 1}")
        return launch(config, options.port)
    except (ConfigError, PortInUse, RunError, BadPolicy) as error:
        print(error, file=sys.stderr)
        return REFUSED
    except Interrupted:
        say("interrupted; everything that was started has been stopped")
        return INTERRUPTED


def launch(config: Config, port: int) -> int:
    """Everything between the checks and the exit status."""
    began = time.monotonic()
    root = run_dir.root_of(config.runs_dir)
    os.environ.update(local_ray.ENVIRONMENT | {"TELESCOPE_RUNS": str(root)})
    say(f"preparing the policy {config.model!r} (made once, then kept)")
    policy.prepare(config.model, list(config.environments), config.seed)
    say("starting Ray")
    with local_ray.local_ray(num_cpus=max(2, os.cpu_count() or 2)) as cluster, _connected(cluster, port):
        run = Jobs(cluster.dashboard_url, root).submit(config)
        say(f"run {run.id}: starting the engine and the trainer")
        try:
            _start_dashboard(port)
            progress = Progress(config.steps)
            status, first_step_s = _follow(run, progress, began)
        except BaseException:
            _stop(run)
            raise
    return _report(run, status, progress, time.monotonic() - began, first_step_s)


@contextmanager
def _connected(cluster: LocalRay, port: int) -> Iterator[None]:
    """Be a part of the cluster, with Serve listening on our port before the run could start it on another."""
    import ray
    from ray import serve

    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.WARNING)
    # Ray's own handler for SIGTERM leaves without taking anything down.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        yield
    finally:
        ray.shutdown()


def _start_dashboard(port: int) -> None:
    from ray import serve

    from app.serve import app

    try:
        serve.run(app, name="telescope", route_prefix="/")
        say(f"dashboard: http://127.0.0.1:{port}")
    except RuntimeError as error:
        # The run does not need it, and the reason is said.
        say(f"the dashboard did not start, the run goes on without it: {error}")


def _follow(run: Run, progress: Progress, began: float) -> tuple[Status, float | None]:
    """Show the progress until the run ends; returns its state and the seconds until the first step."""
    screen = Screen()
    first_step_s: float | None = None
    while True:
        status = run.status()
        since = None if status.final else progress.last_step or None
        if progress.feed(run.metrics(since=since)) and first_step_s is None and progress.last_step > 0:
            first_step_s = time.monotonic() - began
        if status.final:
            screen.close()
            return status, first_step_s
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


def _stop(run: Run) -> None:
    """Give the driver the time to take down its engines and close its metrics; what is left goes with Ray."""
    print(flush=True)
    say("stopping the run")
    try:
        run.stop()
    except (OSError, RuntimeError) as error:
        say(f"the run did not stop by itself ({error}); ending its processes")


def say(text: str) -> None:
    print(text, flush=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise Interrupted


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m app.launch", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("config", help="a YAML file, such as configs/demo.yaml")
    parser.add_argument("overrides", nargs="*", help="key=value, dotted keys")
    parser.add_argument("--port", type=int, default=8000, help="of the dashboard (default: %(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
