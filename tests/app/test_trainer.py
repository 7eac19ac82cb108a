"""FSDP for real: processes on gloo, the same batch cut in different ways."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.app.tiny import save_tiny_model

HERE = Path(__file__).parent
# Options of trainer_process.py by case; all cases of one number of workers share its processes.
ONE_WORKER: dict[str, dict[str, Any]] = {
    "plain": {},
    "no packing": {"packing": False},
    "small packs": {"seq_len": 32},
    "masked": {"attention": "sdpa"},
    "recomputed": {"gradient_checkpointing": True},
    "half": {"dtype": "bfloat16"},
    "frozen": {"freeze": "layers.0"},
    "nonfinite": {"nonfinite_step": 1, "lr_schedule": "linear"},
    "restarted": {"restart_after": 2},
    "resumed": {"restore": True},
}
TWO_WORKERS: dict[str, dict[str, Any]] = {
    "plain": {"save": True},
    "no packing": {"packing": False},
    "frozen": {"freeze": "layers.0"},
    "reference": {"kl_penalty_tau": 0.1, "kl_reference": "initial"},
    "empty": {"empty_step": 2},
    "nonfinite": {"nonfinite_step": 1, "lr_schedule": "linear"},
    "minibatches": {"minibatches": 2, "use_ppo_clip": True},
    "resumed": {"restore": True},
}

Steps = list[dict[str, float]]


def train(folder: Path, ranks: int, cases: dict[str, dict[str, Any]]) -> dict[str, Steps]:
    """case → the values of each of its three steps; every rank must return the same."""
    meeting = f"file://{tempfile.mkdtemp(dir=folder)}/ranks"
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "trainer_process.py"), str(folder), json.dumps(cases)],
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MEETING": meeting}
            | {"PYTHONPATH": str(HERE.parent.parent), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=240) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    values = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    for other in values[1:]:
        assert other == values[0]
    return values[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trainer")
    save_tiny_model(folder / "model")
    return folder


@pytest.fixture(scope="module")
def two(folder) -> dict[str, Steps]:
    return train(folder, 2, TWO_WORKERS)


@pytest.fixture(scope="module")
def one(folder, two) -> dict[str, Steps]:
    """After `two`, whose checkpoint the case `resumed` goes on from."""
    return train(folder, 1, ONE_WORKER)


COMPARED = ("loss/policy", "grad_norm", "entropy", "kl_divergence_inference", "importance/mean", "tokens/trained")


def assert_same(steps: Steps, others: Steps) -> None:
    for key in COMPARED:
        assert [step[key] for step in steps] == pytest.approx([step[key] for step in others], abs=1e-5), key


@pytest.mark.parametrize("case", ["plain", "no packing"])
def test_two_workers_give_the_loss_and_gradient_of_one(one, two, case):
    assert_same(two[case], one["plain"])


def test_what_one_rank_cannot_compare_no_rank_can(two):
    """NaN on the first of two ranks, on the second, on none."""
    assert two["plain"][-1]["largest"] == "[nan, nan, 3.0]"


@pytest.mark.parametrize("case", ["no packing", "small packs", "masked"])
def test_packing_does_not_change_loss_or_gradient(one, case):
    """masked: each sample with its prompt, kept apart by the mask that transformers makes of the positions."""
    assert_same(one[case], one["plain"])


def test_without_packing_rows_are_padded(one):
    assert one["plain"][0]["tokens/padding"] == 0
    assert 0 < one["no packing"][0]["tokens/padding"] < one["no packing"][0]["tokens/trained"]


def test_recomputed_activations_change_nothing(one):
    assert_same(one["recomputed"], one["plain"])


def test_bfloat16_computes_close_by_and_keeps_float32_master_weights(one):
    half, plain = one["half"], one["plain"]
    assert [step["loss/policy"] for step in half] != [step["loss/policy"] for step in plain]
    for key in ("entropy", "grad_norm", "loss/policy"):
        assert [step[key] for step in half] == pytest.approx([step[key] for step in plain], rel=0.05, abs=0.02), key
    assert half[-1]["master"] == "torch.float32"


def test_frozen_parameters_stay_and_the_others_move(one, two):
    """Tied embeddings included: the head that they are is trained."""
    for steps in (one["frozen"], two["frozen"]):
        assert steps[-1]["moved"] == ["embed_tokens", "layers.1", "norm"]
    assert_same(two["frozen"], one["frozen"])
    assert one["frozen"][0]["grad_norm"] < one["plain"][0]["grad_norm"]


def test_the_policy_learns_what_has_a_positive_advantage(one):
    assert one["plain"][0]["loss/policy"] > one["plain"][-1]["loss/policy"]


def test_a_step_reports_what_it_did(one):
    first = one["plain"][0]
    assert first["learning_rate"] == 0.01
    assert first["tokens/padding"] == 0
    assert first["train/skipped_updates"] == 0
    assert first["mismatch/logprob_abs_max"] > 0


def test_a_model_with_an_initial_reference_starts_at_a_divergence_of_zero(two):
    steps = two["reference"]
    assert steps[0]["loss/kl_penalty"] == pytest.approx(0, abs=1e-6)
    assert steps[1]["loss/kl_penalty"] > 1e-6


def test_an_empty_batch_skips_its_update_and_is_counted(two):
    steps = two["empty"]
    assert [step["train/skipped_updates"] for step in steps] == [0, 1, 0]
    assert "grad_norm" not in steps[1]
    assert steps[1]["tokens/trained"] == 0
    assert "loss/policy" not in steps[1]


def test_the_first_of_several_updates_has_ratio_one_and_the_second_has_not(two):
    """Both count against the log-probabilities of the start of the step, so a clip can only bind in the second."""
    first = two["minibatches"][0]
    assert 0 < first["clip/high_fraction"] + first["clip/low_fraction"] < 1
    assert first["grad_norm"] > 0


@pytest.mark.parametrize("workers", ["one", "two"])
def test_a_gradient_that_is_not_finite_moves_neither_weights_nor_schedule(workers, request):
    steps = request.getfixturevalue(workers)["nonfinite"]
    assert [step["train/nonfinite_gradients"] for step in steps] == [1, 0, 0]
    assert [step["train/skipped_updates"] for step in steps] == [1, 0, 0]
    assert steps[1]["learning_rate"] == steps[0]["learning_rate"]
    assert steps[2]["learning_rate"] < steps[1]["learning_rate"]


def test_a_restarted_trainer_goes_on_as_if_it_had_never_stopped(one):
    assert one["restarted"][-1] == pytest.approx(one["plain"][-1], abs=1e-6)


def test_a_checkpoint_of_two_workers_is_resumed_by_one(one, two):
    assert_same(one["resumed"], two["resumed"])
    assert one["resumed"][0]["grad_norm"] != pytest.approx(one["plain"][0]["grad_norm"], abs=1e-3)
