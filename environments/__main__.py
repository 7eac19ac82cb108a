"""python -m environments list | check | score: environments before a run, and stored rollouts judged anew.

    python -m environments check NAME [--kwargs JSON] [--config FILE]
    python -m environments score RUN --environment NAME|package.module:Class|FILE.py [--out FILE.parquet]

NAME is what a configuration would say. Exit status: 0 fit, 1 not fit (or nothing could be scored), 2 it cannot be done.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from environments.check import Finding, Wish, check
from environments.checks import BadEnvironment
from environments.loader import available


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except ValueError as error:  # BadEnvironment, ConfigError, RunError: what a person can put right
        print(error, file=sys.stderr)
        return 2


def _list(options: argparse.Namespace) -> int:
    print("\n".join(available()))
    return 0


def _check(options: argparse.Namespace) -> int:
    fit = True
    for wish in _wishes(options):
        print(f"environment {wish.name}" + (f" with {json.dumps(dict(wish.kwargs))}" if wish.kwargs else ""))
        for finding in _findings(wish):
            print(f"  {finding.level:4}  {finding.what:17} {finding.text}")
            fit &= finding.level != "fail"
    return 0 if fit else 1


def _findings(wish: Wish) -> list[Finding]:
    try:
        return check(wish, lambda doing: print(f"        {doing}", file=sys.stderr, flush=True))
    except BadEnvironment as error:
        return [Finding("fail", "can be used", str(error))]


def _wishes(options: argparse.Namespace) -> Iterator[Wish]:
    if options.config is None:
        if options.name is None:
            raise ValueError("name an environment, or give --config FILE to check all of its environments")
        yield Wish(options.name, options.kwargs or {}, options.reward_max, options.samples, options.limit_s)
        return
    from app import config as configuration
    from app.prompt_length import length_of

    config = configuration.load(options.config)
    entries = [one for one in config.environments if options.name in (None, one.name, one.label)]
    if not entries:
        raise ValueError(f"{options.config}: no environment is called {options.name!r}")
    count = length_of(config)
    for entry in entries:
        kwargs = entry.kwargs if options.kwargs is None else options.kwargs
        best = entry.reward_max if options.reward_max is None else options.reward_max
        limits: dict[str, Any] = {"length_of": count, "max_prompt_tokens": config.max_prompt_tokens}
        yield Wish(entry.name, kwargs, best, options.samples, entry.reward_timeout_s, **limits)


def _score(options: argparse.Namespace) -> int:
    from app.rescore import rescore

    return rescore(
        options.run_dir,
        options.environment,
        options.kwargs or {},
        step=options.step,
        env=options.env,
        limit_s=options.limit_s,
        processes=options.processes,
        out=options.out,
    )


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m environments", description=(__doc__ or "").split("\n")[0])
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="names of the environments that need no path").set_defaults(run=_list)
    one = commands.add_parser("check", help="whether an environment is fit for a run")
    one.add_argument("name", nargs="?", help="as in a configuration; with --config also a label")
    one.add_argument("--config", metavar="FILE", help="check the environments of this configuration, with its limits")
    one.add_argument("--samples", type=int, default=64, help="samples to try replies on")
    one.add_argument("--reward-max", type=float, help="highest reward; by default the highest that a gold answer gets")
    one.set_defaults(run=_check)
    again = commands.add_parser("score", help="judge a run's stored rollouts with another environment")
    again.add_argument("run_dir", metavar="RUN", help="run directory")
    again.add_argument("--environment", required=True, help="name, package.module:Class or path of a .py file")
    again.add_argument("--step", type=int, help="only rollouts of this step")
    again.add_argument("--env", metavar="LABEL", help="only rollouts of this environment of the run")
    again.add_argument("--out", metavar="FILE.parquet", help="write every rollout with its old and new reward")
    again.add_argument("--processes", type=int, help="processes that judge; by default one a CPU")
    again.set_defaults(run=_score)
    for command in (one, again):
        command.add_argument("--kwargs", type=_mapping, metavar="JSON", help="settings of the environment")
        command.add_argument("--limit-s", type=float, default=10.0, help="longest time of one reward, in seconds")
    return top


def _mapping(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"wanted a JSON object, got {text!r}: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"wanted a JSON object, got {text!r}")
    return found


if __name__ == "__main__":
    sys.exit(main())
