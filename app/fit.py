"""The training part of a run under Ray Train: the loop on every worker, fed by the stream of rollouts."""

import os
import threading
from concurrent.futures import Future, wait

# Read when ray.train is imported: at the default the end of a worker is seen 2 s late.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")

from ray.train import DataConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from app.config import Config
from app.run_context import RunContext
from app.stream import dataset

SIGNAL_S = 0.5


def fit(config: Config, context: RunContext, use_gpu: bool) -> None:
    """Returns after the last step; raises what failed in a worker or in the stream.

    Ray Train waits in a thread of its own. A wait inside Ray swallows what a signal handler raises, and on the main
    thread Ray Train would take Ctrl-C for itself; this wait lets a stop or a stall through at once.
    """
    result: Future[None] = Future()

    def work() -> None:
        try:
            _train(config, context, use_gpu)
        except BaseException as error:  # noqa: BLE001 - raised by the waiting thread
            result.set_exception(error)
        else:
            result.set_result(None)

    threading.Thread(target=work, daemon=True, name="fit").start()
    # Bounded waits: a signal that the kernel hands to another thread does not end a wait of this one.
    while not wait([result], SIGNAL_S).done:
        pass
    result.result()


def _train(config: Config, context: RunContext, use_gpu: bool) -> None:
    def loop(_: dict[str, object]) -> None:
        from app import train_loop  # only a worker needs it: it imports the trainer, seconds in each process

        train_loop.run(config, context)

    resources = {"GPU": config.gpus_per_worker} if use_gpu else {"CPU": config.cpus_per_worker}
    TorchTrainer(
        loop,
        train_loop_config={},
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
        scaling_config=ScalingConfig(num_workers=config.num_workers, use_gpu=use_gpu, resources_per_worker=resources),
        datasets={"rollouts": lambda: dataset(config, context)},
        # With shard locality the splitter would hold blocks back, and a gated stream waits for ever.
        dataset_config=DataConfig(enable_shard_locality=False),
        run_config=RunConfig(
            name=f"attempt-{context.attempt}",
            storage_path=str(context.run_dir / "train"),
            failure_config=FailureConfig(max_failures=0),
        ),
    ).fit()
