"""The job: one training run from its config to its end.

    python -m app.train CONFIG [key=value …]
    python -m app.train --run-dir DIRECTORY [--resume [key=value …]]

Runs on the Ray cluster it is submitted to (`ray job submit … -- python -m app.train …`), or on a local one of its own.
Exit status: 0 finished, 1 failed, 2 refused before it began, 130 stopped.
"""

import argparse
import importlib.util
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import ray
from ray import serve
from ray.serve import exceptions as serve_exceptions

from app import config as configuration
from app import preflight, turn
from app.admission import GATE_NAME, Admission
from app.advantage import formula
from app.config import Config, ConfigError
from app.engine import deploy, dtype_name
from app.evaluator import ACTOR_NAME as EVALUATOR
from app.evaluator import Evaluator
from app.failure import reason_of
from app.mirror import MirrorError, mirrored
from app.progress import logged
from app.run_context import RunContext, answer, connect, node_memory
from app.run_dir import RunDir, RunError, application_of, create_for
from app.sealed import newest, step_of
from app.stall import watchdog
from app.weights import STORE_NAME, WeightStore
from metrics import actor as metrics_actor

logger = logging.getLogger("telescope")
ACTOR_TIMEOUT_S = 120


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    try:
        run_dir, config = _run_of(options)
    except (ConfigError, RunError) as error:
        print(error, file=sys.stderr)
        return 2
    _log_to(run_dir.driver_log)
    print(f"run directory: {run_dir.path}", flush=True)
    signal.signal(signal.SIGTERM, _stop)
    try:
        with run_dir.writer():
            return _mirrored(run_dir, config)
    except RunError as error:
        print(error, file=sys.stderr)
        return 2


def _mirrored(run_dir: RunDir, config: Config) -> int:
    try:
        with mirrored(run_dir.path, config.mirror):
            return _recorded(run_dir, config)
    except MirrorError as error:
        run_dir.end("failed", str(error))
        print(error, file=sys.stderr)
        return 2


def _recorded(run_dir: RunDir, config: Config) -> int:
    """Runs, and leaves the outcome and its reason in the run directory whatever happens."""
    try:
        run(config, run_dir)
    except KeyboardInterrupt:
        logger.info("stopped")
        _end(run_dir, "stopped", "stopped on request")
        return 130
    except preflight.Refused as error:
        print(error, file=sys.stderr)
        _end(run_dir, "failed", str(error))
        return 2
    except Exception as error:  # the outermost border: the reason must reach the run directory
        reason = reason_of(error)
        logger.exception("the run failed")
        print(f"the run failed: {reason}", file=sys.stderr)
        _end(run_dir, "failed", reason)
        return 1
    logger.info("finished")
    _end(run_dir, "finished")
    return 0


def _end(run_dir: RunDir, state: str, reason: str | None = None) -> None:
    """Writes the end down. Where the disk is full, the job API does so when there is room, from what was printed."""
    try:
        run_dir.end(state, reason)
    except OSError as error:
        print(f"{run_dir.path}: its state cannot be written: {error}", file=sys.stderr)
        print(f"the run {state}{f': {reason}' if reason else ''}", file=sys.stderr)


def run(config: Config, run_dir: RunDir) -> None:
    """One attempt: checks, engines and actors, training, and everything taken down again."""
    run_dir.update(state="starting", started_at=time.time(), job_id=os.environ.get("TELESCOPE_JOB_ID"))
    run_dir.enter("checking the environments")
    preflight.check_environments(config)
    run_dir.enter("preparing the policy")
    model = preflight.policy_of(config)
    run_dir.enter("checking the prompts")
    eos_token = preflight.check_prompts(config, model)
    _keep_tokenizer(Path(model), run_dir)
    run_dir.enter("connecting to Ray")
    connect()
    for number in (signal.SIGTERM, signal.SIGINT):  # again: Ray's own handlers take nothing down
        signal.signal(number, _stop)
    if not config.checkpoint_every:
        logger.warning("checkpoint_every is 0: when the run ends its weights are gone, and it cannot be resumed")
    use_gpu = preflight.use_gpu(config, ray.cluster_resources())
    preflight.check_engine(config, model, use_gpu, node_memory())
    attempt = run_dir.record()["attempt"]
    context = RunContext(run_dir.id, run_dir.path, attempt, str(model), eos_token, shares_prompts(config, use_gpu))
    actors: dict[str, Any] = {}  # kept in hand: an actor without a handle is ended
    state = "failed"
    try:
        actors[GATE_NAME] = _gate(config, context)
        turn.wait(preflight.reserved(config, use_gpu), config.priority, actors[GATE_NAME], run_dir)
        run_dir.enter("starting the engines")
        _start_actors(config, context, actors, use_gpu)
        with _engines(config, context, actors[GATE_NAME], use_gpu), watchdog(config, context, actors[GATE_NAME]):
            from app.fit import fit  # takes seconds, which the engines have meanwhile

            run_dir.update(state="running")
            with logged(run_dir.path, config.steps):
                fit(config, context, use_gpu)
        state = "finished"
    except KeyboardInterrupt:
        state = "stopped"
        raise
    finally:
        _take_down(context, actors, state)


def shares_prompts(config: Config, use_gpu: bool) -> bool:
    """Whether `app.fsdp.attention` takes our own, as far as it can be known without torch."""
    takes_flash = use_gpu and dtype_name(config, use_gpu) != "float32"
    return not (takes_flash and importlib.util.find_spec("flash_attn"))


def _keep_tokenizer(model: Path, run_dir: RunDir) -> None:
    """With it the dashboard can show the text of a token wherever the run directory goes."""
    if (model / "tokenizer.json").is_file():
        shutil.copy(model / "tokenizer.json", run_dir.path / "tokenizer.json")


def _gate(config: Config, context: RunContext) -> Any:
    pace = (config.prompts_per_step, config.max_async_rollout, config.steps, config.groups_per_ticket)
    return _named(Admission, GATE_NAME, context, *pace)


def _start_actors(config: Config, context: RunContext, actors: dict[str, Any], use_gpu: bool) -> None:
    """Starts the run's other named actors; they end with the job."""
    actors[STORE_NAME] = _named(WeightStore, STORE_NAME, context)
    if config.evals:
        actors[EVALUATOR] = _named(Evaluator, EVALUATOR, context, config, context)
    checkpoint = newest(context.checkpoints) if context.attempt > 1 else None
    actors["metrics"] = metrics_actor.start(
        context.run_dir,
        name="metrics",
        namespace=context.namespace,
        attempt=context.attempt,
        resume_step=step_of(checkpoint) if checkpoint else 0,
        config=config.model_dump()
        | {"dtype": dtype_name(config, use_gpu), "advantage_formula": formula(config.algorithm, config.advantage_norm)},
        environments=preflight.metric_ranges(config),
        num_slots=config.num_engines * config.engine.max_num_seqs,
        wandb=config.wandb.model_dump() if config.wandb else None,
        tensorboard=config.tensorboard,
    )
    answer(actors[GATE_NAME].progress.remote(), ACTOR_TIMEOUT_S, "the admission actor")
    answer(actors[STORE_NAME].latest.remote(), ACTOR_TIMEOUT_S, "the weight store")


def _named(kind: Any, name: str, context: RunContext, *arguments: Any) -> Any:
    return kind.options(name=name, namespace=context.namespace).remote(*arguments)


@contextmanager
def _engines(config: Config, context: RunContext, gate: Any, use_gpu: bool) -> Iterator[None]:
    """Starts the engines in a thread of their own: the trainer loads its model at the same time."""
    failures: list[Exception] = []

    def start() -> None:
        try:
            deploy(config, context.run_id, context.model, context.namespace, use_gpu)
            answer(gate.engines_ready.remote(), ACTOR_TIMEOUT_S, "the admission actor")
        except Exception as error:  # noqa: BLE001 - handed to the trainer, which is waiting, and raised below
            failures.append(error)
            answer(gate.engines_ready.remote(str(error)), ACTOR_TIMEOUT_S, "the admission actor")

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        if failures:
            raise failures[0] from error
        raise


def _take_down(context: RunContext, actors: dict[str, Any], state: str) -> None:
    """Closes the run's metrics and removes its engines. Actors end with the job.

    The engines are told first: `ray job stop` may leave us three seconds, and they do not end with the job.
    """
    logger.info("taking down the run's engines and actors")
    _delete_engines(context, waits=False)
    try:
        if "metrics" in actors:
            answer(actors["metrics"].close.remote(state), ACTOR_TIMEOUT_S, "the metrics actor")
    except (ray.exceptions.RayError, TimeoutError):
        logger.exception("the metrics could not be closed; what was acknowledged is stored")
    _delete_engines(context, waits=True)


def _delete_engines(context: RunContext, waits: bool) -> None:
    try:
        serve.delete(application_of(context.run_id), _blocking=waits)
    except (ray.exceptions.RayError, serve_exceptions.RayServeException, RuntimeError, TimeoutError):
        logger.exception("the engines could not be removed; the job API will remove them")


def _run_of(options: argparse.Namespace) -> tuple[RunDir, Config]:
    """The run that was asked for: an existing directory, or a new one for a config."""
    if options.run_dir is None:
        config = configuration.load(options.config, options.overrides)
        return create_for(config), config
    run_dir = RunDir(Path(options.run_dir))
    if run_dir.state != "pending":
        _reopen(run_dir, options.resume, options.overrides)
    elif options.overrides:
        raise RunError(f"run {run_dir.id!r} has not begun, and only what is resumed can be changed; start a new run")
    return run_dir, configuration.load(run_dir.config_path)


def _reopen(run_dir: RunDir, resume: bool, overrides: list[str]) -> None:
    """Makes a run that has begun pending again. Without a new attempt its messages would be taken for repeated ones."""
    run_dir.check_unwritten()
    config = configuration.resumed(run_dir.config_path, overrides)
    run_dir.check_resumable(config)
    if not resume:
        raise RunError(f"run {run_dir.id!r} is {run_dir.state}; add --resume to go on from its newest checkpoint")
    run_dir.check_writable()
    with run_dir.settling():
        run_dir.check_unwritten()
        if run_dir.state == "pending":
            raise RunError(f"run {run_dir.id!r} has just been resumed by another process; nothing was changed")
        run_dir.end("failed", "its driver ended without saying why")  # changes nothing where the end is known
        run_dir.reopen(configuration.dump(config) if overrides else None)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m app.train", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("words", nargs="*", metavar="CONFIG or key=value", help="a YAML file, then overrides")
    parser.add_argument("--run-dir", help="train the run of this directory")
    parser.add_argument("--resume", action="store_true", help="go on from its newest checkpoint; key=value change it")
    options = parser.parse_intermixed_args(arguments)  # options may stand between the overrides
    if options.resume and options.run_dir is None:
        parser.error("--resume goes with --run-dir")
    if not options.words and options.run_dir is None:
        parser.error("give either a config or --run-dir")
    if options.words and options.run_dir is not None and not options.resume:
        parser.error("--run-dir takes overrides with --resume only")
    options.config = None if options.run_dir is not None else options.words[0]
    options.overrides = options.words[0 if options.config is None else 1 :]
    return options


def _log_to(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [logging.FileHandler(file, encoding="utf-8"), logging.StreamHandler(sys.stdout)]
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=handlers, force=True
    )


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # the only exception of a signal handler that gets through a wait inside Ray


if __name__ == "__main__":
    sys.exit(main())
