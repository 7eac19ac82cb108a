"""Pictures of every page from real runs: light, dark and as a phone shows it.

    python -m bench.screenshots --runs FOLDER [--run ID] [--out build/screenshots/real]

The flows are those of the browser tests, so each page is also held to what they assert: silent, offline, accessible.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from metrics import read
from tests.browser.conftest import HERE, SHOTS, TOOLS, Server, chromium, install_packages

FLOWS = ("pages", "phone")
LIMIT_S = 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of runs")
    parser.add_argument("--run", help="id of the run to show (default: the newest)")
    parser.add_argument("--out", type=Path, default=SHOTS / "real")
    chosen = parser.parse_args()
    run_id = chosen.run or read.runs(chosen.runs)[0]["id"]
    chosen.out.mkdir(parents=True, exist_ok=True)
    if not (TOOLS / "node_modules").is_dir():
        install_packages()
    served = Server(chosen.runs.absolute()).start()
    try:
        return max(take(flow, served.url, run_id, chosen.out.absolute()) for flow in FLOWS)
    finally:
        served.stop()


def take(flow: str, url: str, run_id: str, out: Path) -> int:
    environment = os.environ | {
        "NODE_PATH": str(TOOLS / "node_modules"),
        "CHROMIUM": chromium() or "chromium",
        "SHOTS": str(out),
        "BASE": url,
        "FACTS": json.dumps({"run": run_id}),
    }
    done = subprocess.run(["node", str(HERE / "flows" / f"{flow}.js")], env=environment, timeout=LIMIT_S, check=False)
    print(f"{flow}: {'fine' if done.returncode == 0 else 'failed'}; pictures in {out}", flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
