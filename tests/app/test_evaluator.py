"""When an eval is due, what it draws, and that it is of one version of the weights. The engine is scripted."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pytest

from app import embedded, preflight
from app.engine import Completion, Sampling
from app.evaluate import Policy, table, values_of
from app.evaluator import Evals, WeightsMoved, due
from tests.app.tiny import tiny_config


@dataclass
class Adder:
    """An engine that adds up. Every second completion of a prompt is wrong; its weights change after `moves_after`."""

    tokenizer: Any
    version: int
    moves_after: int = 10_000
    asked: list[Sampling] = field(default_factory=list)

    @property
    def generate(self):
        return self

    async def remote(self, name: str, prompt_ids, sampling: Sampling, min_version: int) -> list[Completion]:
        self.asked.append(sampling)
        version = self.version + (len(self.asked) > self.moves_after)
        assert version >= min_version
        digits = self.tokenizer.decode(prompt_ids, skip_special_tokens=True).rstrip("=").split("+")
        return [self.completion(str(sum(map(int, digits)) + place % 2), version) for place in range(sampling.n)]

    def completion(self, text: str, version: int) -> Completion:
        ids = (*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id)
        return Completion(ids, tuple(-1.0 for _ in ids), tuple(version for _ in ids), "stop", 1.0, 2.0, "engine a")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    embedded.make_tokenizer().save_pretrained(folder)
    return str(folder)


SUMS = {"name": "sums", "num_samples": 3, "pass_k": [1, 4]}
OWN = {"temperature": 0, "top_p": 0.9, "max_tokens": 8}
GREEDY = {"name": "sums", "label": "greedy", "num_samples": 2, "eval_every": 4} | OWN


@pytest.fixture
def evals(model):
    config = tiny_config(steps=7, seed=5, evals=[{**SUMS, "eval_every": 2}, GREEDY])
    made = Evals(config, "run", model, "<eos>")
    yield made
    made.close()


def evaluated(evals, version, step, **engine):
    evals.sampler.engines = Adder(evals.sampler.tokenizer, version, **engine)
    return asyncio.run(evals.evaluate(step, due(evals.config, step)))


@pytest.mark.parametrize(
    ("step", "labels"),
    [(0, ["sums", "greedy"]), (1, []), (2, ["sums"]), (3, []), (4, ["sums", "greedy"]), (7, ["sums", "greedy"])],
)
def test_evals_are_before_every_so_many_steps_and_after(evals, step, labels):
    assert [entry.label for entry in due(evals.config, step)] == labels
    assert due(tiny_config(steps=7), step) == []


def test_an_eval_asks_held_out_prompts_and_tells_of_which_weights(evals):
    done = evaluated(evals, version=4, step=4)
    rows = pl.DataFrame(done.rows)
    assert rows.group_by("env").len().sort("env").rows() == [("greedy", 2), ("sums", 12)]
    assert set(rows["outcome"]) == {"eval"}
    assert set(rows["step"]) == {4}
    assert done.values == {"eval/sums/weights_version": 4.0, "eval/greedy/weights_version": 4.0}
    assert done.end_s >= done.start_s
    [entry] = evals.config.environments
    trained = {sample.problem_id for sample in preflight.samples_of(entry, "train")}
    assert trained & set(rows["problem_id"]) == set()


def test_each_eval_samples_in_its_own_way_and_the_same_every_time(evals):
    evaluated(evals, version=4, step=4)
    first = evals.sampler.engines.asked
    evaluated(evals, version=4, step=4)
    assert first == evals.sampler.engines.asked
    assert {(s.n, s.temperature, s.top_p, s.max_tokens) for s in first} == {(4, 1.0, 1.0, 16), (1, 0.0, 0.9, 8)}
    assert len({seeds for s in first for seeds in s.seeds}) == 12, "the two evals share prompts, and so their seeds"


def test_the_numbers_are_those_of_the_contract(evals):
    done = evaluated(evals, version=4, step=4)
    values = values_of(evals.config, done)
    assert values["eval/sums/reward_mean"] == 0.5
    assert values["eval/sums/reward_stderr"] == 0.0
    assert (values["eval/sums/pass@4/reward"], values["eval/sums/pass^4/reward"]) == (1.0, 0.0)
    assert "eval/sums/pass@2/reward" not in values
    assert values["eval/greedy/reward_mean"] == 1.0
    lines = list(table(evals.config, Policy("m"), values))
    assert lines[0] == "sums: 3 prompts, 4 completions each, step 0"
    assert [line.split() for line in lines[1:4:2]] == [
        ["metric", "mean", "±", "error", "pass@1", "pass^1", "pass@4", "pass^4"],
        ["reward", "0.5", "0", "0.5", "0.5", "1", "0"],
    ]


def test_an_eval_during_which_the_weights_change_is_none(evals):
    with pytest.raises(WeightsMoved, match="the eval of step 4 was sampled with the weights of versions 4 to 5"):
        evaluated(evals, version=4, step=4, moves_after=2)
    with pytest.raises(WeightsMoved, match="the eval of step 2 was sampled with the weights of versions 3 to 3"):
        evaluated(evals, version=3, step=2)
