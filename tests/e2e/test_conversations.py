"""A whole run with conversations and tools: what is trained is exactly what was sampled, turn by turn."""

from typing import Any

import polars as pl
import pytest

from app import embedded, policy
from app.config import EnvironmentConfig
from app.jobs import Run
from metrics.recompute import recompute
from tests.e2e.test_runs import columns, finished, jobs, rows, small_run  # noqa: F401 - jobs is a fixture

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

TALK = {"name": "tests.e2e.talkers:GoingOn", "label": "talk"}
MOODY = {**TALK, "label": "moody", "kwargs": {"moods": True}, "turn_timeout_s": 1.0}
TOOLS = {"name": "tests.e2e.talkers:Calling", "label": "tools"}


@pytest.fixture(scope="module")
def model() -> str:
    chosen = [EnvironmentConfig(**entry) for entry in (TALK, TOOLS)]
    with pytest.MonkeyPatch.context() as shorter:
        shorter.setitem(embedded.RECIPE, "steps", 60)  # knows the forms well, and not all of the sums
        return str(policy.prepare("embedded", chosen, 0))


@pytest.fixture(scope="module")
def run(jobs, model) -> Run:  # noqa: F811
    config = small_run(
        name="conversations",
        model=model,
        environments=[
            TALK | {"max_turn_tokens": 3},
            MOODY | {"processes": 2, "curriculum": [[0, 0.0], [1, 1.0]]},
            TOOLS | {"temperature": 0.8},
        ],
        prompts_per_step=6,
        max_tokens=96,
        seq_len=256,
        max_async_rollout=0,
        evals=[{"name": "talk", "eval_every": 3, "num_samples": 4}],
        steps=3,
    )
    return finished(jobs.submit(config))


def trained(run: Run, env: str) -> pl.DataFrame:
    return rows(run, outcome="trained", env=env)


def test_the_trainer_reads_the_tokens_of_every_turn_as_the_engine_did(run):
    """With masks, ids or temperatures that are off by anything, the log-probabilities could not agree."""
    values = columns(run)
    assert max(values["mismatch/logprob_abs_max"].values()) < 1e-3
    assert all(value == pytest.approx(1, abs=1e-4) for value in values["importance/mean"].values())
    assert set(rows(run)["env"]) == {"talk", "moody", "tools"}


@pytest.mark.parametrize("env", ["talk", "tools"])
def test_what_the_environment_said_is_masked_and_nothing_else(run, model, env):
    tokenizer = policy.tokenizer(model)
    found = trained(run, env)
    assert len(found.filter(pl.col("num_turns") > 1)) > 0
    for row in found.iter_rows(named=True):
        check_tokens(row)
        for turn in row["turns"]:
            first, count = turn["first_token"], turn["num_tokens"]
            assert set(row["trained_mask"][first : first + count]) <= {turn["role"] == "assistant"}
            text = tokenizer.decode(row["token_ids"][first : first + count], skip_special_tokens=True)
            assert text == turn["text"] or count == 0


def check_tokens(row: dict[str, Any]) -> None:
    mask = row["trained_mask"]
    assert len(mask) == len(row["token_ids"]) == len(row["rollout_logprobs"]) == len(row["versions"])
    assert sum(mask) == row["completion_tokens"]
    assert row["total_tokens"] == row["prompt_tokens"] + len(mask)
    tokens = list(zip(row["rollout_logprobs"], row["versions"], mask, strict=True))
    assert {(logprob, version) for logprob, version, mine in tokens if not mine} <= {(0.0, -1)}
    assert min(v for v, mine in zip(row["versions"], mask, strict=True) if mine) == row["step"] - 1
    assert row["off_policy_steps"] == 0


def test_trained_tokens_are_the_completions_of_the_trained_samples(run):
    values = columns(run)
    for (step,), part in rows(run, outcome="trained").group_by("step"):
        assert values["tokens/trained"][step] == part["completion_tokens"].sum()


def test_turns_are_cut_at_their_own_limit(run):
    for row in rows(run, env="talk").iter_rows(named=True):
        lengths = [turn["num_tokens"] for turn in row["turns"] if turn["role"] == "assistant"]
        assert max(lengths, default=0) <= 3
        assert row["truncated_turns"] <= row["num_turns"] <= 2


def test_a_mood_costs_its_conversation_only(run):
    everything = rows(run, env="moody")
    errors = everything.filter((pl.col("outcome") == "error") & ~pl.col("outcome_reason").str.starts_with("only "))
    reasons = set(errors["outcome_reason"].str.replace(r"^environment '.*?': ", ""))
    assert reasons <= {
        "env_response() failed: ZeroDivisionError: a mood",
        "env_response took longer than 1 s; its process was replaced",
        "its process was killed by SIGINT",
    }
    assert len(reasons) > 1
    assert errors["reward"].null_count() == len(errors)
    assert set(errors["num_turns"]) == {1}
    assert len(everything.filter(pl.col("outcome") == "trained")) > 0


def test_tool_metrics_are_sample_metrics(run):
    values = columns(run)
    for name in ("total_tool_calls", "tool_success_rate", "unknown_tool_calls", "add_calls", "prefix_breaks"):
        assert f"tools/{name}_mean" in values, name
    assert max(values["tools/add_calls_max"].values()) >= 1
    turns = [turn for turns in trained(run, "tools")["turns"] for turn in turns]
    results = [turn for turn in turns if turn["role"] == "tool"]
    assert {turn["tool"] for turn in results} <= {"add", None}
    assert all(turn["is_error"] == turn["text"].startswith("error: ") for turn in results)


def test_evals_are_conversations_too(run):
    assert set(columns(run)["eval/talk/reward_mean"]) == {0, 3}
    evaluated = rows(run, outcome="eval", env="talk")
    assert evaluated["turns"].null_count() == 0


def test_the_books_balance_and_every_number_follows_from_the_rows(run):
    values = columns(run)
    bins = ("trained", "zero_advantage", "max_async", "canceled", "error", "filtered", "in_flight")
    for step, started in values["ledger/started"].items():
        assert started == sum(values[f"ledger/{name}"][step] for name in bins)
    assert recompute(run.directory.path).differences == []
