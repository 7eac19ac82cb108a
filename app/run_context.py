"""What every process of a run needs to find the others: names, directory, attempt."""

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from app.run_dir import namespace_of


def answer(reference: Any, limit_s: float, who: str) -> Any:
    """The result of a remote call; TimeoutError that names who did not answer."""
    try:
        return ray.get(reference, timeout=limit_s)
    except ray.exceptions.GetTimeoutError:
        raise TimeoutError(f"{who} did not answer within {limit_s:g} s") from None


async def answered(reference: Any, limit_s: float, who: str) -> Any:
    """`answer` for an event loop, which goes on meanwhile."""
    try:
        return await asyncio.wait_for(reference, limit_s)
    except ray.exceptions.RayError:
        raise  # what the actor itself raised may be a TimeoutError too
    except TimeoutError:
        raise TimeoutError(f"{who} did not answer within {limit_s:g} s") from None


@dataclass(frozen=True)
class RunContext:
    run_id: str
    run_dir: Path
    attempt: int
    model: str  # folder or hub name of the policy at step 0
    eos_token: str = ""  # the tokenizer's end token, which environments may want to know
    shares_prompts: bool = True  # the trainer computes a prompt once for several samples

    @property
    def namespace(self) -> str:
        """Ray namespace of the run's named actors."""
        return namespace_of(self.run_id)

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    def source(self, name: str) -> str:
        """Sender of messages to the metrics actor. With the attempt: a resumed run sends its steps again."""
        return f"{name}/{self.attempt}"

    def actor(self, name: str) -> Any:
        """A named actor of the run; ValueError when it is not there."""
        return ray.get_actor(name, namespace=self.namespace)

    def metrics(self) -> Any:
        return self.actor("metrics")


def node_memory() -> list[float]:
    """Bytes that Ray has on each node of the cluster."""
    return [node["Resources"].get("memory", 0.0) for node in ray.nodes() if node["Alive"]]


def connect(serves: bool = True) -> None:
    """Connects this process to the cluster that RAY_ADDRESS names, or to a local one of its own."""
    from ray import serve

    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS")
        ray.init(
            address=address,
            runtime_env={"env_vars": _addressed(address)},
            log_to_driver=True,
            logging_level=logging.WARNING,
        )
        if address is None and serves:
            serve.start(proxy_location="Disabled")  # a cluster of the run's own needs no HTTP port


def _addressed(address: str | None) -> dict[str, str]:
    """For the actors: Ray Train's cleaner looks for its cluster, and gives up where it sees a second one."""
    return {"RAY_ADDRESS": address} if address and address != "auto" else {}
