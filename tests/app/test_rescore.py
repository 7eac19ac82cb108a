"""Stored rollouts, judged again: which rows, with which answers, and what is told of it. Ray Data is in tests/e2e."""

import polars as pl
import pytest

from app import rescore
from app.config import from_dict
from app.rescore import Judge, problems, report, rollouts
from environments.loader import load
from environments.multi_turn import State
from environments.turn import at_once, replayed
from metrics.schema import samples_table
from tests.metrics.builders import core, sample

CONFIG = {
    "name": "stored",
    "model": "embedded",
    "steps": 2,
    "environments": [{"name": "sums"}, {"name": "wordle", "label": "words", "kwargs": {"max_turns": 2}}],
}


@pytest.fixture(scope="module")
def known():
    return problems(from_dict(CONFIG))


def row(env, problem, number, completion, **given):
    ids = {"group_id": number, "sample_id": number, "problem_id": problem.problem_id}
    return sample(env=env, prompt="as the policy read it", completion=completion, **ids, **given)


@pytest.fixture(scope="module")
def run_dir(known, tmp_path_factory):
    """Two sums, a game of wordle, a sum that nobody knows, and one that was canceled, in two steps."""
    sums = [one for (env, _), one in known.items() if env == "sums"]
    word = next(one for (env, _), one in known.items() if env == "words")
    turns = [{"role": role, "text": text, "first_token": 0, "num_tokens": 1} for role, text in said_in(word.answer)]
    strange = sums[0].__class__("1+1=", "2")
    folder = tmp_path_factory.mktemp("run")
    rows = [
        row("sums", sums[0], 0, sums[0].answer, reward=1.0),
        row("sums", sums[1], 1, f"{sums[1].answer} or 9", reward=0.0, step=2),
        row("words", word, 2, "all in one", reward=0.9, turns=turns),
        row("sums", strange, 3, "2", reward=1.0),
        row("sums", sums[2], 4, None, reward=None, outcome="canceled"),
    ]
    writer = core(folder, environments=("sums", "words"))
    writer.log_samples("batcher", 1, samples_table(rows))
    writer.store.close()
    return folder


def said_in(answer):
    return [("assistant", "wrong"), ("user", "\nwrong XXXXX. Your guess: "), ("assistant", answer)]


def judged(run_dir, known, name, kwargs, **where):
    table, num_unknown = rollouts(run_dir, known, where.get("step"), where.get("env"))
    stage = Judge(name, kwargs, 5.0)
    try:
        return pl.DataFrame(stage(table).drop_columns(["prompt", "metadata", "turns"])), num_unknown
    finally:
        stage.worker.close()


def test_a_rollout_is_judged_with_the_answer_of_its_problem(run_dir, known):
    found, num_unknown = judged(run_dir, known, "sums", {}, env="sums")
    assert found.select("step", "old_reward", "reward").rows() == [(1, 1.0, 1.0), (2, 0.0, 0.0)]
    assert num_unknown == 1
    assert len(judged(run_dir, known, "sums", {}, env="sums", step=2)[0]) == 1


def test_a_conversation_is_played_again(run_dir, known):
    found, _ = judged(run_dir, known, "wordle", {"max_turns": 2}, env="words")
    assert found.select("old_reward", "reward").rows() == [(0.9, pytest.approx(0.9))]
    word = next(one for (env, _), one in known.items() if env == "words")
    state: State = at_once(replayed(load("wordle", {}), word, ["wrong", word.answer]))
    assert state.completions == ["wrong", word.answer]


def test_another_environment_judges_otherwise_and_its_errors_are_told(run_dir, known, tmp_path):
    other = tmp_path / "other.py"
    other.write_text("def reward(batch): return [1 / (len(c) - 1) for c in batch['completion']]\n")
    found, num_unknown = judged(run_dir, known, str(other), {}, env="sums")
    lines = list(report(found, num_unknown))
    assert lines[0].split() == ["environment", "rollouts", "old", "mean", "new", "mean", "changed", "largest", "errors"]
    first = found["reward"][0]
    assert first is None or first == 1.0, "a sum has one digit or two"
    assert lines[1].split()[:3] == ["sums", "2", "0.5"]
    assert int(lines[1].split()[-1]) == found["error"].count()
    assert lines[-1].startswith("  1 rollouts were left out")


def test_counts_are_told_as_whole_numbers():
    num = 16_070
    columns = {"env": ["sums"] * num, "old_reward": [0.0] * num, "reward": [1.0] * num}
    told = list(report(pl.DataFrame(columns).with_columns(error=pl.lit(None, pl.String)), 0))
    assert told[1].split() == ["sums", "16070", "0", "1", "16070", "1", "0"]


def test_what_cannot_be_judged_is_refused_before_anything_starts(run_dir, known, monkeypatch):
    monkeypatch.setattr(rescore, "connect", lambda **_: pytest.fail("Ray was started"))
    with pytest.raises(ValueError, match="there is no run here"):
        rescore.rescore(str(run_dir), "sums", {})
