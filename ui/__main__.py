"""`python -m ui --runs DIR --port P`: look at runs without a cluster; nothing can be started or stopped from it."""

import argparse
import os
import sys
from pathlib import Path

import uvicorn

from ui.app import build
from ui.guard import check_bind


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ui", description=__doc__)
    default = os.environ.get("TELESCOPE_RUNS") or "~/telescope_runs"
    parser.add_argument("--runs", default=default, help="folder of runs (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="another host needs TELESCOPE_TOKEN (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8001, help="(default: %(default)s)")
    chosen = parser.parse_args(argv)
    root = Path(chosen.runs).expanduser().absolute()
    try:
        check_bind(chosen.host)
    except ValueError as error:
        print(f"python -m ui: {error}", file=sys.stderr)
        return 2
    print(f"Telescope shows {root} at http://{chosen.host}:{chosen.port}/", flush=True)
    uvicorn.run(build(root, None), host=chosen.host, port=chosen.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
