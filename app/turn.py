"""Runs for which the cluster has no room wait for their turn: the highest priority first, then the oldest.

Ray has no priorities: it gives what is free to whoever fits first, and two runs that got half of what they need each
would wait for one another. So a run says in its admission actor that it waits, and starts when nobody stands before it
and everything that it reserves is free. The actor ends with its driver, and with it the place in the queue.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.util import list_named_actors

from app.admission import GATE_NAME, QueuePlace
from app.run_context import answer
from app.run_dir import RunDir, namespace_of

logger = logging.getLogger("telescope")
POLL_S = 2.0
ANSWER_TIMEOUT_S = 30.0
ROUNDING = 1e-6  # Ray adds up fractions


def wait(wanted: Mapping[str, float], priority: int, gate: Any, run_dir: RunDir) -> None:
    """Returns when the run may start. Until then its state is pending, and the reason says what is missing."""
    mine = QueuePlace(-priority, time.time(), run_dir.id, wanted)
    answer(gate.stand.remote(mine), ANSWER_TIMEOUT_S, "the admission actor")
    told: str | None = None
    while (why := what_for(mine, _others(run_dir.id), ray.available_resources(), ray.cluster_resources())) is not None:
        if why != told:
            logger.info(why)
            run_dir.update(state="pending", reason=why, phase=None)
            told = why
        time.sleep(POLL_S)
    answer(gate.stand.remote(replace(mine, is_starting=True)), ANSWER_TIMEOUT_S, "the admission actor")
    if told is not None:
        run_dir.update(state="starting", reason=None)


def what_for(
    mine: QueuePlace, others: Sequence[QueuePlace], free: Mapping[str, float], total: Mapping[str, float]
) -> str | None:
    """What a run waits for, in words; None when it may start.

    What a starting run has reserved already counts twice until its trainer and its engines are there: the next one
    may wait for longer than it must, and does not start too early.
    """
    starting = [place for place in others if place.is_starting]
    ahead = sorted(place for place in others if not place.is_starting and place < mine)
    missing = [f"before it: {', '.join(place.run_id for place in ahead)}"] if ahead else []
    for name, amount in mine.wanted.items():
        left = free.get(name, 0) - sum(place.wanted.get(name, 0) for place in starting)
        if amount > left + ROUNDING:
            missing.append(f"{amount:g} {name} wanted, {max(left, 0):g} of {total.get(name, 0):g} free")
    return f"waits for its turn: {'; '.join(missing)}" if missing else None


def _others(run_id: str) -> list[QueuePlace]:
    """The places of the other runs on this cluster that have not started."""
    asked = [gate.place_in_queue.remote() for gate in _gates(namespace_of(run_id))]
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=ANSWER_TIMEOUT_S) if asked else ([], [])
    return [place for reference in answered if (place := _place(reference)) is not None]


def _gates(mine: str) -> Iterator[Any]:
    for actor in list_named_actors(all_namespaces=True):
        if (
            actor["name"] == GATE_NAME
            and actor["namespace"] != mine
            and actor["namespace"].startswith(namespace_of(""))
        ):
            try:
                yield ray.get_actor(GATE_NAME, namespace=actor["namespace"])
            except ValueError:  # it ended since it was listed
                continue


def _place(reference: Any) -> QueuePlace | None:
    try:
        return ray.get(reference)
    except ray.exceptions.RayActorError:  # a run that has ended meanwhile stands nowhere
        return None
