"""app.checkpoint: which checkpoints are whole, and which are kept. What is in them: tests/app/test_trainer.py."""

import json
from types import SimpleNamespace

from app.admission import Cursor
from app.checkpoint import ResumePoint, seal
from app.sealed import newest, step_of, whole


def sealed(folder, steps, **keep):
    """Checkpoints written and sealed at these steps, in this order."""
    for step in steps:
        path = folder / f"step_{step:06d}"
        path.mkdir()
        (path / "0.distcp").write_text("weights")
        seal(path, SimpleNamespace(updates=2 * step), ResumePoint(step, Cursor(4 * step, (1,))), **keep)
    return [step_of(path) for path in whole(folder)]


def test_the_last_are_kept_and_those_of_multiples_for_good(tmp_path):
    assert sealed(tmp_path / "a", [], keep_last=2) == []
    (tmp_path / "b").mkdir()
    assert sealed(tmp_path / "b", range(1, 11), keep_last=2, keep_every=4) == [4, 8, 9, 10]
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [f"step_{s:06d}" for s in (4, 8, 9, 10)]


def test_only_the_last_are_kept_by_default(tmp_path):
    assert sealed(tmp_path, range(1, 6), keep_last=2) == [4, 5]


def test_the_newest_is_the_highest_step_and_one_without_a_seal_is_none(tmp_path):
    sealed(tmp_path, [999_999, 1_000_000], keep_last=9)
    (tmp_path / "step_2000000").mkdir()
    assert step_of(newest(tmp_path)) == 1_000_000


def test_the_seal_says_where_the_run_stands(tmp_path):
    sealed(tmp_path, [3], keep_last=1)
    place = json.loads((tmp_path / "step_000003" / "place.json").read_text())
    assert (place["step"], place["updates"], place["next_group"], place["missing"]) == (3, 6, 12, [1])
