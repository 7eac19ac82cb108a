"""python -m metrics export RUN | recompute RUN | docs: a run's numbers as a file, checked against its rows,
explained. Exit 1: a number differs, or a part of the run is damaged (named on stderr; the rest is still written)."""

import argparse
import sys
from pathlib import Path

from metrics.docs import page
from metrics.export import FORMATS, TABLES, export
from metrics.read import damaged
from metrics.recompute import recompute
from metrics.store import FOLDER

DOCS = Path(__file__).parent.parent / "docs" / "metrics.md"
SHOWN = 50


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.command == "docs":
        return docs(options.check)
    run_dir = Path(options.run)
    if not (run_dir / FOLDER).is_dir():
        print(
            f"{run_dir}: no run here (there is no folder {FOLDER!r} in it); give the path of a run directory, "
            "not the run's id alone; it is in the folder that holds the runs, ~/telescope_runs or $TELESCOPE_RUNS",
            file=sys.stderr,
        )
        return 2
    return run_export(run_dir, options) if options.command == "export" else run_recompute(run_dir)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m metrics", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    one = commands.add_parser("export", help="write a run's table to a file")
    one.add_argument("run", help="run directory")
    kinds = one.add_mutually_exclusive_group(required=True)
    for kind in FORMATS:
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind)
    one.add_argument("--table", choices=TABLES, default="series")
    one.add_argument("--output", help="file to write; by default <table>.<format> in the current folder")
    again = commands.add_parser(
        "recompute", help="make every number again from the stored rows; exit 1 when one differs"
    )
    again.add_argument("run", help="run directory")
    written = commands.add_parser("docs", help=f"write {DOCS.name}")
    written.add_argument("--check", action="store_true", help="only say whether it is current")
    return top


def run_export(run_dir: Path, options: argparse.Namespace) -> int:
    target = Path(options.output or f"{options.table}.{options.kind}")
    try:
        count = export(run_dir, options.table, options.kind, target)
    except OSError as error:
        why = error.strerror or error
        print(f"{target}: cannot be written ({why}); --output takes a file in a folder that is there", file=sys.stderr)
        return 2
    print(f"{target}: {count} rows of {options.table}")
    return named(damaged(run_dir, [options.table]))


def named(broken: list[str]) -> int:
    """Says what could not be read; the exit status."""
    for text in broken:
        print(f"damaged: {printable(text)}", file=sys.stderr)
    return 1 if broken else 0


def printable(text: object) -> str:
    """Without characters that a terminal acts on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def run_recompute(run_dir: Path) -> int:
    report = recompute(run_dir)
    for difference in report.differences[:SHOWN]:
        print(printable(difference))
    if len(report.differences) > SHOWN:
        print(f"… and {len(report.differences) - SHOWN} more")
    print(
        f"{report.num_equal} values follow from the stored rows, {len(report.differences)} differ; "
        f"{report.num_given} values were given by the trainer"
    )
    return max(named(report.damaged), 1 if report.differences else 0)


def docs(check: bool) -> int:
    if check:
        current = DOCS.exists() and DOCS.read_text(encoding="utf-8") == page()
        print(f"{DOCS.name} is {'current' if current else 'out of date: run python -m metrics docs'}")
        return 0 if current else 1
    DOCS.write_text(page(), encoding="utf-8")
    print(f"wrote {DOCS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
