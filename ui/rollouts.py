"""Routes for samples: the groups of a step, one sample with all its parts, and the rest of a long text."""

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response

from metrics import read
from ui import groups
from ui.names import FARTHEST, run_dir
from ui.replies import as_json, reply
from ui.sample import TEXTS, as_text, plain_row, whole_sample

Step = Annotated[int, Query(ge=0, le=FARTHEST)]
Id = Annotated[int, Query(ge=-FARTHEST, le=FARTHEST)]


def routes(root: Path) -> APIRouter:
    api = APIRouter()
    of_steps(api, root)
    of_samples(api, root)
    as_files(api, root)
    return api


def of_steps(api: APIRouter, root: Path) -> None:
    @api.get("/bias")
    def bias(run: str) -> Response:
        """What selection throws away: drop rates by environment and by length of the completion."""
        return reply({"rows": read.bias(run_dir(root, run)).to_dicts()})

    @api.get("/groups")
    def page(wanted: Annotated[groups.Wanted, Query()]) -> Response:
        """One page of the groups of a step, each with its samples in brief."""
        if wanted.sort not in groups.SORTS:
            raise HTTPException(400, f"sort {wanted.sort[:40]!r}: one of {', '.join(groups.SORTS)}")
        return reply(groups.page(run_dir(root, wanted.run), wanted))


def of_samples(api: APIRouter, root: Path) -> None:
    @api.get("/sample")
    def sample(run: str, step: Step, sample_id: Id, outcome: str | None = None, attempt: Id | None = None) -> Response:
        """Everything about one sample; long texts are clipped and say how long they are.

        Evaluated completions are numbered on their own: `outcome=eval` looks among them.
        """
        directory = run_dir(root, run)
        return reply(whole_sample(directory, _row(directory, step, sample_id, outcome, attempt=attempt)))

    @api.get("/text")
    def text(
        run: str,
        step: Step,
        sample_id: Id,
        field: str,
        outcome: str | None = None,
        offset: int = Query(0, ge=0, le=FARTHEST),
        limit: int = Query(200_000, ge=1, le=4_000_000),
    ) -> Response:
        """A stretch of a prompt or a completion that was too long to send at once."""
        if field not in TEXTS:
            raise HTTPException(400, f"field {field[:40]!r}: one of {', '.join(TEXTS)}")
        row = _row(run_dir(root, run), step, sample_id, outcome, columns=[field])
        value = as_text(row[field])
        return reply({"text": value[offset : offset + limit], "offset": offset, "length": len(value)})


def _row(directory: Path, step: int, sample_id: int, outcome: str | None, **more: Any) -> dict[str, Any]:
    table = "eval" if outcome == "eval" else None
    frame, _ = read.samples(directory, step=step, sample_id=sample_id, outcome=table, limit=1, **more)
    if not frame.height:
        raise HTTPException(404, f"run {directory.name!r}: step {step} has no sample {sample_id}")
    return frame.row(0, named=True)


def as_files(api: APIRouter, root: Path) -> None:
    @api.get("/samples_file")
    def samples_file(run: str, step: Step, outcome: str | None = None) -> Response:
        """The samples of a step as JSON lines; `</` is written so that no reader can take it for markup."""
        outcomes = outcome.split(",") if outcome else None
        frame, _ = read.samples(run_dir(root, run), step=step, outcome=outcomes, limit=None)
        lines = [as_json(plain_row(row)) for row in frame.iter_rows(named=True)]
        body = b"\n".join(lines).replace(b"</", b"<\\/")
        headers = {"Content-Disposition": f'attachment; filename="samples-step-{step}.jsonl"'}
        return Response(body, media_type="application/x-ndjson", headers=headers)
