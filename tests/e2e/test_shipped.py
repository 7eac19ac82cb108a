"""Every environment that ships is trained on for a few steps, evaluated, and its rollouts are judged again.

One run with all of them: the embedded policy says little that is right, but each of them must ask, judge and be
trained on. What is known of one in detail stands in tests/environments.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from app import config as configuration
from app.config import EnvironmentConfig
from app.jobs import Run
from app.policy import prepare
from environments.loader import available
from metrics.recompute import recompute
from tests.e2e.test_runs import columns, finished, jobs, rows, small_run  # noqa: F401 - jobs is a fixture
from tests.environments.packages import provide, require

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "calculator": {"plain": True},
    "code": {"num_train": 40, "num_eval": 4, "time_limit_s": 2.0, "partial_credit": True},
    "countdown": {"num_numbers": 2, "num_train": 40, "num_eval": 4},
    "gsm8k": {},
    "math": {},
    "reasoning_gym": {"num_train": 40, "num_eval": 4},
    "reverse_text": {},
    "sums": {},
    "wordle": {"max_turns": 3},
}


FROM_BUILD = {"reasoning_gym": "tests.e2e.gym:ReasoningGym"}
"""Its package is not in the environment of the tests."""


def at_hand() -> list[str]:
    return [name for name in SMALL if name not in FROM_BUILD or provide(name) is None]


def asked_of(name: str) -> None:
    """Of an environment whose package is not at hand, nothing can be asked."""
    if name in FROM_BUILD:
        require(name)


@pytest.fixture(scope="module")
def model() -> str:
    return str(prepare("embedded", [EnvironmentConfig(name="sums", label="sums")], 0))


@pytest.fixture(scope="module")
def run(jobs, model) -> Run:  # noqa: F811
    limits = {"max_turn_tokens": 8}
    entries = [
        {"name": FROM_BUILD.get(name, name), "label": name, "kwargs": SMALL[name]} | limits for name in at_hand()
    ]
    config = small_run(
        name="shipped",
        model=model,
        environments=entries,
        evals=[{"name": name, "eval_every": 10, "num_samples": 2} for name in at_hand()],
        steps=2,
        prompts_per_step=16,
        group_size=2,
        max_prompt_tokens=256,
        max_tokens=200,
        seq_len=512,
        checkpoint_every=2,
    )
    return finished(jobs.submit(config))


def test_all_that_ship_are_here():
    assert set(available()) == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_an_environment_is_trained_on(run, name):
    asked_of(name)
    trained = rows(run, outcome="trained", env=name)
    assert len(trained) >= 2
    assert trained["reward"].null_count() == 0
    assert rows(run, env=name)["outcome"].unique().to_list() == ["trained"]
    assert trained["sample_metrics"].null_count() == 0


@pytest.mark.parametrize("name", SMALL)
def test_an_environment_is_evaluated_before_and_after_with_the_weights_of_one_step(run, name):
    asked_of(name)
    values = columns(run)
    assert set(values[f"eval/{name}/reward_mean"]) == {0, 2}
    assert values[f"eval/{name}/weights_version"] == {0: 0.0, 2: 2.0}


def test_conversations_have_turns(run):
    assert set(rows(run, env="wordle")["num_turns"]) <= {1, 2, 3}
    assert max(rows(run, env="wordle")["num_turns"]) > 1


def test_every_number_follows_from_the_rows(run):
    assert recompute(run.directory.path).differences == []


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_stored_rollouts_are_judged_again_to_the_same_rewards(run, tmp_path):
    """With the environment that judged them, conversations included; and with another one, to others."""
    for name in ("sums", "wordle", "math"):
        out = tmp_path / f"{name}.parquet"
        where = ["--env", name, "--kwargs", json.dumps(SMALL[name]), "--out", str(out), "--processes", "1"]
        done = command("environments", "score", str(run.directory.path), "--environment", name, *where)
        assert done.returncode == 0, done.stderr
        again = pl.from_arrow(pq.read_table(out))
        assert again["reward"].to_list() == again["old_reward"].to_list()
        assert len(again) == len(rows(run, env=name))
        assert again["error"].null_count() == len(again)


def test_another_environment_judges_stored_rollouts_otherwise(run, tmp_path):
    other = tmp_path / "length.py"
    other.write_text("def reward(batch): return [float(len(c)) if c else 1 / 0 for c in batch['completion']]\n")
    done = command("environments", "score", str(run.directory.path), "--environment", str(other), "--env", "sums")
    assert done.returncode == 0, done.stderr
    stored = rows(run, env="sums")
    line = next(line for line in done.stdout.splitlines() if line.strip().startswith("sums"))
    _, count, old, new, _, largest, errors = line.split()
    lengths = stored["completion"].str.len_chars()
    assert (int(count), int(errors)) == (len(stored), int((lengths == 0).sum()))
    assert float(old) == pytest.approx(stored["reward"].mean(), rel=1e-3, abs=1e-3)
    assert float(new) == pytest.approx(lengths.filter(lengths > 0).mean(), rel=1e-3)
    assert float(largest) <= lengths.max()


def test_a_checkpoint_is_evaluated_by_itself_to_what_the_run_said(run, tmp_path, monkeypatch):
    """The same prompts, seeds and weights: the numbers of the run's last eval."""
    monkeypatch.setenv("RAY_ADDRESS", os.environ["RAY_ADDRESS"])
    out = tmp_path / "rows.parquet"
    done = command("app.evaluate", str(run.directory.path), "--out", str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    rows_again = pl.from_arrow(pq.read_table(out))
    assert set(rows_again["versions"].explode().drop_nulls()) <= {2, -1}
    last = columns(run)
    for name in at_hand():
        mean = rows_again.filter(pl.col("env") == name)["reward"].mean()
        assert mean == pytest.approx(last[f"eval/{name}/reward_mean"][2]), name
    assert "sums: 2 prompts, 1 completions each, step 2" in done.stdout


def test_a_model_is_evaluated_by_a_list_of_evals(ray_cluster, model, tmp_path):
    out = tmp_path / "rows.parquet"
    evals = ["evals.0.num_samples=4", "evals.1.num_samples=3"]
    done = command("app.evaluate", model, "configs/eval.yaml", *evals, "--out", str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    found = pl.from_arrow(pq.read_table(out))
    assert found.group_by("env").len().sort("env").rows() == [("reverse_text", 3), ("sums", 16)]
    assert set(found["outcome"]) == {"eval"}
    assert "pass^4" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "configs/eval.yaml"], "there is no such folder"),
        (["nowhere"], "is no run directory: give a configuration that lists evals"),
        (["smollm2", "FILE"], "evals: there are none: list at least one"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused(words, message, tmp_path):
    (tmp_path / "own.yaml").write_text("max_tokens: 8\n")
    done = command("app.evaluate", *(str(tmp_path / "own.yaml") if word == "FILE" else word for word in words))
    assert done.returncode == 2
    assert message in done.stderr


def test_the_configurations_of_shipped_environments_name_them():
    for name in SMALL:
        file = ROOT / "configs" / f"{name}.yaml"
        if name not in ("countdown", "reverse_text", "sums"):  # gpu.yaml, smollm2.yaml and demo.yaml
            assert {entry.name for entry in configuration.load(file).environments} == {name}
