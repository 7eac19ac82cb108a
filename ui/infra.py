"""Route for the machines: this host now, and Ray's nodes and actors where a cluster is connected."""

import re
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import psutil
from fastapi import APIRouter, Response

from ui.gpus import gpus
from ui.replies import reply

BOOKKEEPING = re.compile(r"node:.*|.+_group_(\d+_)?[0-9a-f]{36}")
"""Resources that Ray makes of each node and of each placement group: parts of the others, counted again."""


def routes() -> APIRouter:
    api = APIRouter()
    cpu = CpuMeter()

    @api.get("/infra")
    def infra() -> Response:
        machine = {"cpu_percent": cpu.percent(), **host(), "gpus": gpus()}
        return reply({"at": time.time(), "host": machine, "ray": cluster()})

    return api


class CpuMeter:
    """Share of the machine's CPU that was busy since the last call (psutil's own counts by thread, and requests are
    answered by many)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen, self._percent = psutil.cpu_times(), 0.0

    def percent(self) -> float:
        with self._lock:
            now = psutil.cpu_times()
            total = sum(now) - sum(self._seen)
            if total > 0.1:  # several pages ask at once: two that follow each other closely see the same
                idle = now.idle - self._seen.idle + getattr(now, "iowait", 0) - getattr(self._seen, "iowait", 0)
                self._percent = round(100 * min(1.0, max(0.0, 1 - idle / total)), 1)
                self._seen = now
            return self._percent


def host() -> dict[str, Any]:
    """Memory and disk of the machine that serves the dashboard."""
    memory, disk = psutil.virtual_memory(), psutil.disk_usage("/")
    return {
        "num_cpus": psutil.cpu_count() or 0,
        "load": list(psutil.getloadavg()),
        "memory_used": memory.total - memory.available,
        "memory_total": memory.total,
        "disk_used": disk.used,
        "disk_total": disk.total,
    }


def cluster() -> dict[str, Any] | None:
    """Resources, nodes and living actors, or `problem` with why Ray cannot say them; None when this process is not
    connected to a cluster.

    Ray is asked only when it is already imported: a dashboard without a cluster must not start one.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    from ray.util.state.exception import RayStateApiException

    try:
        return _resources_and_actors(ray)
    except (OSError, RuntimeError, ValueError, RayStateApiException, ray.exceptions.RayError) as error:
        return {"problem": f"Ray does not say what the cluster has ({type(error).__name__}): {error}"}


def _resources_and_actors(ray: Any) -> dict[str, Any]:
    from ray.util import state

    address = ray.get_runtime_context().gcs_address  # a machine may have more than one Ray
    actors = state.list_actors(address=address, limit=200, detail=False, raise_on_missing_output=False)
    return {
        "total": resources(ray.cluster_resources()),
        "available": resources(ray.available_resources()),
        "nodes": [
            {
                "name": node.get("NodeName", ""),
                "alive": bool(node.get("Alive")),
                "resources": resources(node.get("Resources", {})),
            }
            for node in ray.nodes()
        ],
        "actors": [
            {"class": actor.class_name, "name": actor.name, "state": actor.state, "pid": actor.pid}
            for actor in sorted(actors, key=lambda actor: (actor.state != "ALIVE", actor.class_name))
        ],
    }


def resources(found: Mapping[str, float]) -> dict[str, float]:
    """What a cluster was given, by name."""
    return {name: amount for name, amount in found.items() if not BOOKKEEPING.fullmatch(name)}
