"""Run directories of every format that was ever written still open, and those of a newer one are refused by number."""

import json
import shutil
from pathlib import Path

import pytest

from app import config, run_dir
from app.run_dir import FORMAT, RunError
from metrics import read
from metrics.recompute import recompute

DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture
def old(tmp_path) -> Path:
    """A copy of the run that the first format's version wrote."""
    shutil.copytree(DATA / "format-1", tmp_path / "runs")
    [run] = (tmp_path / "runs").iterdir()
    return run


def rewritten(run: Path, **fields: object) -> None:
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | fields))


def test_there_is_a_run_of_every_format():
    assert {path.name for path in DATA.glob("format-*")} == {f"format-{number}" for number in range(1, FORMAT + 1)}
    assert set(run_dir.MIGRATIONS) == set(range(1, FORMAT))


def test_a_run_of_the_first_format_opens_with_its_numbers(old):
    [run] = run_dir.list_runs(old.parent)
    record = run.record()
    assert (record["format"], record["state"], record["steps"], record["phase"]) == (FORMAT, "finished", 2, None)
    assert config.load(run.config_path).prompts_per_step == 2
    series = read.series(run.path)
    assert series["columns"]["reward_mean"] == [0.5, 0.5]
    assert series["columns"]["tokens_completion_mean"] == [6.25, 10.0]
    assert series["columns"]["ledger/trained"] == [4.0, 8.0]
    assert read.samples(run.path, limit=10)[0]["token_ids"].list.len().min() > 0
    assert recompute(run.path).differences == []


def test_a_record_of_an_older_format_is_read_and_written_as_the_newest(old, monkeypatch):
    monkeypatch.setattr(run_dir, "FORMAT", 3)
    monkeypatch.setattr(
        run_dir,
        "MIGRATIONS",
        {1: lambda record: record | {"notes": "one"}, 2: lambda r: r | {"notes": r["notes"] + " two"}},
    )
    [run] = run_dir.list_runs(old.parent)
    assert (run.record()["format"], run.record()["notes"]) == (3, "one two")
    run.update(tags=["kept"])
    written = json.loads((old / "run.json").read_text())
    assert (written["format"], written["notes"], written["tags"]) == (3, "one two", ["kept"])


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (FORMAT + 1, f"it has format {FORMAT + 1}, and this version reads those up to {FORMAT}; use the version"),
        (0, "format is 0, wanted a number from 1"),
        ("1", "format is '1', wanted a number from 1"),
        (True, "format is True, wanted a number from 1"),
    ],
)
def test_what_is_no_format_of_this_version_is_refused_and_not_touched(old, number, words):
    rewritten(old, format=number)
    before = (old / "run.json").read_bytes()
    [run] = run_dir.list_runs(old.parent)
    with pytest.raises(RunError, match=words):
        run.record()
    with pytest.raises(RunError, match=words):
        run.update(notes="x")
    assert (old / "run.json").read_bytes() == before
