"""The job API over HTTP: what `app.jobs` offers, as JSON, under /api. The page about it is at /api/docs.

A run is started from a configuration that has been checked, never from a command. JSON is strict: a number that is
not finite arrives as {"nonfinite": "nan"}.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app import config as configuration
from app.config import ConfigError
from app.jobs import Jobs, Run, StopFailed
from app.ray_jobs import NoCluster
from app.run_dir import RunError, RunNotFound
from metrics.schema import marked

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
MOST_LINES = 10_000
MOST_ROWS = 500
MOST_BYTES = 65_536  # of a body that starts a run
FARTHEST = 2**53 - 1
"""The largest step, id or offset that every reader of JSON can hold exactly."""


class Start(BaseModel):
    """What to run: a whole configuration, or the name of one that comes with the product."""

    model_config = ConfigDict(extra="forbid")

    config: dict[str, Any] | str = Field(examples=["demo.yaml"])
    """A configuration as an object, or the name of a file in configs/."""
    overrides: list[str] = Field(default=[], max_length=200, examples=[["steps=20", "environments.0.weight=2"]])
    """`key=value` with dotted keys, as on the command line."""


class Resume(BaseModel):
    """What a run goes on with."""

    model_config = ConfigDict(extra="forbid")

    overrides: list[str] = Field(default=[], max_length=200, examples=[["num_workers=2", "seq_len=1024"]])
    """`key=value` of what it runs on; all else stays as it was."""


class Samples(BaseModel):
    """Which rollouts, and which page of them."""

    step: int | None = Field(None, ge=0, le=FARTHEST)
    env: str | None = None
    outcome: str | None = None
    group_id: int | None = Field(None, ge=-FARTHEST, le=FARTHEST)
    search: str | None = Field(None, max_length=1000, description="text in prompt or completion")
    columns: str | None = Field(None, description="comma-separated; all when left out")
    offset: int = Field(0, ge=0, le=FARTHEST)
    limit: int = Field(50, ge=1, le=MOST_ROWS)


class RunView(BaseModel):
    """A run as it stands now."""

    id: str
    name: str
    state: str
    reason: str | None
    phase: str | None
    steps: int
    attempt: int
    model: str
    environments: list[str]
    algorithm: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    job_id: str | None
    versions: dict[str, str]
    notes: str
    tags: list[str]
    archived: bool


def routes(jobs: Jobs, configs: Path = CONFIGS) -> APIRouter:
    """The job API as routes of another application."""
    api = APIRouter(prefix="/api", tags=["runs"])
    starting(api, jobs, configs)
    listing(api, jobs)
    reading(api, jobs)
    controlling(api, jobs)
    return api


def starting(api: APIRouter, jobs: Jobs, configs: Path) -> None:
    @api.get("/configs")
    def config_names() -> list[str]:
        """Names that can be given as `config` when starting a run."""
        return [file.name for file in sorted(configs.glob("*.yaml")) if "\nenvironments:" in file.read_text("utf-8")]

    @api.post("/runs", status_code=201, dependencies=[Depends(_readable_body)])
    def start(wanted: Start) -> RunView:
        """Check the configuration, make the run directory and queue the run."""
        with _as_http():
            config = wanted.config
            if isinstance(config, str):
                if config not in config_names():
                    raise HTTPException(422, f"config {config[:80]!r}: not one of {', '.join(config_names())}")
                checked = configuration.load(configs / config, wanted.overrides)
            else:
                checked = configuration.from_dict(config, wanted.overrides)
            configuration.refuse_files(checked)
            return _view(jobs.submit(checked))


def listing(api: APIRouter, jobs: Jobs) -> None:
    KnownRun = Annotated[Run, Depends(_finder(jobs))]

    @api.get("/runs")
    def runs() -> list[RunView]:
        """All runs, the newest first."""
        return [view for run in jobs.list() for view in _readable(run)]

    @api.get("/runs/{run_id}")
    def run(run: KnownRun) -> RunView:
        """One run; its state is put right when its driver died without writing it."""
        return _view(run)


def reading(api: APIRouter, jobs: Jobs) -> None:
    KnownRun = Annotated[Run, Depends(_finder(jobs))]

    @api.get("/runs/{run_id}/metrics")
    def metrics(
        run: KnownRun,
        since: Annotated[int | None, Query(ge=0, le=FARTHEST, description="only steps after this one")] = None,
        keys: Annotated[str | None, Query(description="comma-separated; all when left out")] = None,
    ) -> Response:
        """Metrics by step, as columns."""
        with _as_http():
            return strict(run.metrics(keys.split(",") if keys else None, since))

    @api.get("/runs/{run_id}/samples")
    def samples(run: KnownRun, wanted: Annotated[Samples, Query()]) -> Response:
        """Rollouts, one row each, and how many meet the conditions in all."""
        conditions = wanted.model_dump() | {"columns": wanted.columns.split(",") if wanted.columns else None}
        try:
            rows, total = run.samples(**conditions)
        except ValueError as error:  # a column that there is not
            raise HTTPException(422, str(error)) from error
        return strict({"total": total, "offset": wanted.offset, "rows": rows.to_dicts()})

    @api.get("/runs/{run_id}/logs")
    def logs(run: KnownRun, tail: Annotated[int, Query(ge=1, le=MOST_LINES)] = 200) -> dict[str, list[str]]:
        """The last lines that the driver printed."""
        with _as_http():
            return {"lines": run.logs(tail=tail).splitlines()}


def controlling(api: APIRouter, jobs: Jobs) -> None:
    KnownRun = Annotated[Run, Depends(_finder(jobs))]

    @api.post("/runs/{run_id}/stop")
    def stop(run: KnownRun) -> RunView:
        """Stop a run. Answers when it has stopped; an ended run stays as it is."""
        with _as_http():
            run.stop()
            return _view(run)

    @api.post("/runs/{run_id}/resume", dependencies=[Depends(_readable_if_any)])
    def resume(run: KnownRun, wanted: Resume | None = None) -> RunView:
        """Go on with a run that was stopped or failed, from its last checkpoint."""
        with _as_http():
            return _view(jobs.resume(run, wanted.overrides if wanted else ()))


def _finder(jobs: Jobs) -> Callable[[str], Run]:
    """The dependency that turns the `run_id` of an address into a run."""

    def known(run_id: str) -> Run:
        with _as_http():
            return jobs.get(run_id)

    return known


CODES = ((ConfigError, 422), (RunNotFound, 404), (RunError, 409), (StopFailed, 409), (NoCluster, 503))


@contextlib.contextmanager
def _as_http() -> Iterator[None]:
    """Our errors as HTTP: what is wrong with the request, and what is wrong here."""
    try:
        yield
    except (ConfigError, RunError, StopFailed, NoCluster) as error:
        code = next(code for kind, code in CODES if isinstance(error, kind))
        raise HTTPException(code, str(error)) from error


def _view(run: Run) -> RunView:
    with _as_http():
        return _seen(run)


def _seen(run: Run) -> RunView:
    """RunError when run.json is not of this version or damaged."""
    status = run.status()
    try:
        return RunView.model_validate(marked({**run.record(), "state": str(status), "reason": status.reason}))
    except ValidationError as error:
        first = error.errors()[0]
        raise RunError(f"run {run.id!r}: run.json: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _readable(run: Run) -> Iterator[RunView]:
    """The run, or nothing when it is damaged: asked for by its id it says so."""
    with contextlib.suppress(RunError):
        yield _seen(run)


async def _readable_body(request: Request) -> None:
    """A body of a configuration's size, of whole characters, with each key once.

    JSON allows a key twice and readers keep the last: a configuration must not change by that.
    """

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise HTTPException(422, f"key {twice[:80]!r} stands twice; leave one out")
        return found

    sent = request.headers.get("content-type", "nothing")
    if sent.partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, f"the body came as {sent[:80]!r}; send it with 'Content-Type: application/json'")
    body = await request.body()
    if len(body) > MOST_BYTES:
        raise HTTPException(413, f"the body has {len(body):,} bytes; a configuration has at most {MOST_BYTES:,}")
    try:
        json.dumps(json.loads(body, object_pairs_hook=check), ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise HTTPException(422, f"the body is not JSON: {error}; /api/docs says what is wanted") from error


async def _readable_if_any(request: Request) -> None:
    if await request.body():
        await _readable_body(request)


def strict(value: Any) -> Response:
    """JSON without NaN, Infinity and halves of characters, which are marked or escaped instead."""
    return Response(json.dumps(marked(value), allow_nan=False, default=str), media_type="application/json")
