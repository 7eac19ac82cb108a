"""The simulated large run of `bench.scale`, small: the real parts together, and nothing in them grows with the run."""

from pathlib import Path
from statistics import median

import pytest

from bench.simulation import Load, Run
from metrics import read
from metrics.recompute import recompute

SMALL = Load(
    engines=4,
    slots=8,
    prompts_per_step=8,
    group_size=4,
    groups_per_ticket=2,
    mean_tokens=12,
    max_tokens=48,
    ranks=2,
    microbatches=2,
    max_async=2,
    step_s=1.0,
    steps=120,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return Run(SMALL, Path(tmp_path_factory.mktemp("scale"))).go()


def test_every_step_is_trained_and_the_books_balance(run):
    assert [cost.step for cost in run.costs] == list(range(1, 121))
    series = read.series(run.folder)["columns"]
    assert series["ledger/trained"][-1] == 120 * SMALL.samples_per_step
    bins = ("trained", "zero_advantage", "max_async", "canceled", "error", "filtered", "in_flight")
    assert series["ledger/started"][-1] == sum(series[f"ledger/{name}"][-1] for name in bins)
    assert max(series["off_policy_steps_max"]) == 2
    assert recompute(run.folder).differences == []


def test_the_number_of_messages_of_a_step_does_not_depend_on_its_samples(run):
    a_step = {kind: count / SMALL.steps for kind, count in run.meters.messages.items()}
    assert a_step["metrics.log_samples"] == a_step["metrics.log_step"] == a_step["admission.step_done"] == 1
    tickets = SMALL.prompts_per_step / SMALL.groups_per_ticket
    assert tickets <= a_step["stream.ticket"] < 3 * tickets, "a discarded group's place is a ticket, too"


def test_no_part_remembers_more_or_works_more_in_the_last_steps_than_in_the_first(run):
    held = run.held()
    assert held.pop("bytes of the gate") < 1_500 + 16 * run.meters.messages["stream.ticket"] * 1.2
    assert held.pop("groups running") == 0
    assert max(held.values()) <= SMALL.max_async + 2, held
    first, last = run.costs[10:50], run.costs[-45:-5]  # the very last batches are made before
    for part in ("batcher", "metrics", "rollout"):
        early, late = (median(cost.cpu_s.get(part, 0.0) for cost in costs) for costs in (first, last))
        assert late < 2 * early, f"{part}: {early:.4f} s a step at first, {late:.4f} s at last"
