"""Route for the machines: this host now, and Ray's nodes and actors where a cluster is connected."""

import sys
import time
from typing import Any

import psutil
from fastapi import APIRouter, Response

from ui.replies import reply


def routes() -> APIRouter:
    api = APIRouter()
    psutil.cpu_percent(interval=None)  # the first call has nothing to compare with and says 0

    @api.get("/infra")
    def infra() -> Response:
        return reply({"at": time.time(), "host": host(), "ray": cluster()})

    return api


def host() -> dict[str, Any]:
    """CPU since the last call, memory and disk of the machine that serves the dashboard."""
    memory, disk = psutil.virtual_memory(), psutil.disk_usage("/")
    return {
        "cpu_percent": psutil.cpu_percent(interval=None),
        "num_cpus": psutil.cpu_count() or 0,
        "load": list(psutil.getloadavg()),
        "memory_used": memory.total - memory.available,
        "memory_total": memory.total,
        "disk_used": disk.used,
        "disk_total": disk.total,
    }


def cluster() -> dict[str, Any] | None:
    """Resources, nodes and living actors; None when this process is not connected to a cluster.

    Ray is asked only when it is already imported: a dashboard without a cluster must not start one.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    from ray.util import state

    actors = state.list_actors(limit=200, detail=False, raise_on_missing_output=False)
    return {
        "total": ray.cluster_resources(),
        "available": ray.available_resources(),
        "nodes": [
            {"name": node.get("NodeName", ""), "alive": bool(node.get("Alive")), "resources": node.get("Resources", {})}
            for node in ray.nodes()
        ],
        "actors": [
            {"class": actor.class_name, "name": actor.name, "state": actor.state, "pid": actor.pid}
            for actor in sorted(actors, key=lambda actor: (actor.state != "ALIVE", actor.class_name))
        ],
    }
