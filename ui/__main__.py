"""`python -m ui --runs DIR --port P`: look at runs without a cluster; nothing can be started or stopped from it."""

import argparse
import os
import sys
from pathlib import Path

import uvicorn

from ui.app import build, spared
from ui.guard import check_bind
from ui.names import whole_number


def port(text: str) -> int:
    number = whole_number(text)
    if number is None or not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; a port is a whole number from 1 to 65535")
    return number


def check_folder(root: Path) -> None:
    """A folder that is not there yet is fine, because the first run makes it; a file or a forbidden one is not."""
    if not root.exists():
        print(f"{root} is not there yet; runs appear as soon as one is started in it", file=sys.stderr, flush=True)
    elif not root.is_dir():
        raise ValueError(f"--runs {root}: is a file; name the folder that holds the runs")
    elif not os.access(root, os.R_OK | os.X_OK):
        raise ValueError(f"--runs {root}: may not be read by this user; change its permissions or name another folder")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ui", description=__doc__)
    default = os.environ.get("TELESCOPE_RUNS") or "~/telescope_runs"
    parser.add_argument("--runs", default=default, help="folder of runs (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="another host needs TELESCOPE_TOKEN (default: %(default)s)")
    parser.add_argument("--port", type=port, default=8001, help="(default: %(default)s)")
    chosen = parser.parse_args(argv)
    root = Path(chosen.runs).expanduser().absolute()
    try:
        check_bind(chosen.host)
        check_folder(root)
    except ValueError as error:
        print(f"python -m ui: {error}", file=sys.stderr)
        return 2
    print(f"Telescope shows {root} at http://{chosen.host}:{chosen.port}/", flush=True)
    uvicorn.run(spared(build(root, None)), host=chosen.host, port=chosen.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
