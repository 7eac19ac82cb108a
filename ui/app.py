"""The whole dashboard as one FastAPI application."""

import errno
import gc
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.requests import Request
from starlette.routing import Match, Route

from ui import data, infra, kept, rollouts, runs, static_files, timeline
from ui.guard import Guard, token_from_environment
from ui.history import Histories

logger = logging.getLogger(__name__)
FAULTS = 5
"""How many faults of one request are told."""
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


def build(root: Path, jobs: Any, routers: Iterable[APIRouter] = ()) -> FastAPI:
    """The data API under /data and the pages at /.

    `jobs` is an app.jobs.Jobs, or None to show runs without controlling them. `routers` are further routes for the
    same application: they share its guard, and they have to come before the pages, which answer every other address.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from ui.shell import mount  # Gradio reads its settings when it is imported

    static = f"/static/{static_files.version()}"
    app = without_pages(root, jobs, routers)
    app.mount(static, static_files.files(), name="static")
    return mount(app, root, jobs, static)


def spared(app: FastAPI) -> FastAPI:
    """The application of a process that serves nothing else: what is loaded by now stays for good, so the garbage
    collector no longer looks through it. Doing so took a sixth of the CPU of a refresh."""
    gc.collect()
    gc.freeze()
    return app


def without_pages(root: Path, jobs: Any, routers: Iterable[APIRouter] = ()) -> FastAPI:
    """The routes and their guard alone."""
    app = FastAPI(title="Telescope", docs_url="/api/docs", openapi_url="/api/openapi.json", redoc_url=None)
    app.add_middleware(Guard, token=token_from_environment())
    app.add_exception_handler(OSError, _unreadable)
    app.add_exception_handler(RequestValidationError, _undeclared)
    histories = Histories()
    for part in (
        data.routes(root, histories),
        rollouts.routes(root),
        timeline.routes(root),
        kept.routes(root),
        runs.routes(root, jobs),
        infra.routes(),
    ):
        app.include_router(part, prefix="/data")
    for router in routers:
        app.include_router(router)
    for area in ("data", "api"):
        app.add_api_route(f"/{area}/{{rest:path}}", _refused, methods=METHODS, include_in_schema=False)
    return app


def _refused(request: Request) -> JSONResponse:
    """What is under /data and /api but no route of theirs: the pages would answer all of it with 404."""
    partly = [route for route in request.app.routes if route.matches(request.scope)[0] is Match.PARTIAL]
    methods = {method for route in partly if isinstance(route, Route) for method in route.methods or ()}
    if not methods:
        return JSONResponse({"detail": f"{request.url.path[:120]!r}: there is no such address"}, 404)
    allowed = ", ".join(sorted(methods))
    detail = f"{request.method} {request.url.path[:120]!r}: {allowed} is wanted"
    return JSONResponse({"detail": detail}, 405, headers={"Allow": allowed})


async def _undeclared(_request: Request, error: Any) -> JSONResponse:
    """A request that is not as declared: where, what is wanted and what came. FastAPI's own answer repeats all of what
    came, and fails when a NaN is in it."""
    faults = error.errors()
    said = [_fault(one) for one in faults[:FAULTS]]
    more = [f"and {len(faults) - FAULTS} more"] if len(faults) > FAULTS else []
    return JSONResponse({"detail": "; ".join(said + more)}, 422)


def _fault(one: dict[str, Any]) -> str:
    where = ascii(".".join(map(str, one["loc"][1:])) or one["loc"][0])[1:-1][:80]  # a key may hold anything
    if one["type"] == "json_invalid":
        return f"the body is not JSON: {one['ctx']['error']} at character {where}"
    return f"{where}: {one['msg']}, got {one['input']!r:.60}"


async def _unreadable(_request: Request, error: Exception) -> JSONResponse:
    """A run may be removed while it is looked at, or belong to somebody else: a sentence, and never a traceback."""
    name = getattr(error, "filename", None) or error
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return JSONResponse({"detail": f"{name}: no longer there"}, 404)
    if isinstance(error, PermissionError) or getattr(error, "errno", None) == errno.EROFS:
        return JSONResponse({"detail": f"{name}: the dashboard's user may not read or write it"}, 403)
    logger.error("a file could not be used", exc_info=error)
    return JSONResponse({"detail": f"{name}: {getattr(error, 'strerror', None) or error}"}, 500)
