"""app.loss: numbers of each algorithm, gradients, and what must not change a loss."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.config import Config, from_dict
from app.loss import (
    KL,
    LOSSES,
    count,
    dual_clip,
    importance_correction,
    needs_prox_pass,
    needs_reference,
    policy_loss,
    sequence_mask,
)
from app.loss_statistics import total
from app.tokens import Denominators, Tokens
from tests.app.tiny import token_logprobs

# The same cases every time, and a busy machine is no failure.
PROPERTY = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], max_examples=80)
torch.set_num_threads(1)

NOW = [0.5, 0.25, 0.8]
ENGINE = [0.5, 0.5, 0.4]
ALGORITHMS = sorted(LOSSES)


def config(**changes) -> Config:
    """A config whose loss is the plain one; each test names only what it is about."""
    plain = {"name": "test", "model": "embedded", "steps": 1, "environments": [{"name": "sums"}]}
    return from_dict(plain | {"use_tis": False, "max_tokens": 10, "max_prompt_tokens": 10} | changes)


def clip_config(**changes) -> Config:
    """The bounds of the worked example: eL .4, eH .5, ratios against the engine's log-probabilities."""
    return config(clip_low=0.4, clip_high=0.5, ppo_clip_ref_logprobs="rollout", **changes)


def logs(probabilities) -> torch.Tensor:
    return torch.tensor([math.log(p) for p in probabilities], dtype=torch.float64)


def one_sample(advantage: float = 1.0, **columns) -> Tokens:
    """The worked example: one sample of three trained tokens whose ratios are 1, 0.5 and 2."""
    lp = logs(NOW).requires_grad_()
    plain = {
        "logprobs": lp,
        "rollout_logprobs": logs(ENGINE),
        "prox_logprobs": lp.detach(),
        "advantages": torch.full((3,), advantage, dtype=torch.float64),
        "segments": torch.zeros(3, dtype=torch.long),
    }
    return Tokens(**plain | columns)


def run(tokens: Tokens, settings: Config) -> tuple[float, list[float], dict[str, float]]:
    """(loss, gradient by log-probability, metrics) of a batch in one piece."""
    loss, sums = policy_loss(tokens, settings, count(tokens, settings))
    gradient = torch.autograd.grad(loss, tokens.logprobs)[0]
    return loss.item(), gradient.tolist(), sums.values()


# The numbers of the worked example.


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "reinforce_pp", "dr_grpo"])
@pytest.mark.parametrize(("advantage", "expected"), [(1.0, -1.0), (-1.0, 1.2)])
def test_ppo_clip(algorithm, advantage, expected):
    loss, _, _ = run(one_sample(advantage), clip_config(algorithm=algorithm, use_ppo_clip=True))
    assert loss == pytest.approx(expected)


def test_ppo_clip_stops_the_gradient_where_it_binds():
    settings = clip_config(use_ppo_clip=True)
    assert run(one_sample(1.0), settings)[1] == pytest.approx([-1 / 3, -0.5 / 3, 0.0])
    assert run(one_sample(-1.0), settings)[1] == pytest.approx([1 / 3, 0.0, 2 / 3])


def test_clip_fractions_count_the_binding_side_only():
    settings = clip_config(use_ppo_clip=True)
    up, down = run(one_sample(1.0), settings)[2], run(one_sample(-1.0), settings)[2]
    assert (up["clip/low_fraction"], up["clip/high_fraction"]) == pytest.approx((0.0, 1 / 3))
    assert (down["clip/low_fraction"], down["clip/high_fraction"]) == pytest.approx((1 / 3, 0.0))


def test_dual_clip_bounds_the_loss_of_negative_advantages():
    loss, gradient, metrics = run(one_sample(-1.0), clip_config(use_ppo_clip=True, clip_ratio_c=1.5))
    assert loss == pytest.approx(1.03333, abs=5e-6)
    assert metrics["clip/dual_fraction"] == pytest.approx(0.33333, abs=5e-6)
    assert gradient == pytest.approx([1 / 3, 0.0, 0.0])


def test_dual_clip_never_touches_positive_advantages():
    with_dual = run(one_sample(1.0), clip_config(use_ppo_clip=True, clip_ratio_c=1.5))
    assert with_dual[0] == pytest.approx(-1.0)
    assert with_dual[1] == run(one_sample(1.0), clip_config(use_ppo_clip=True))[1]
    assert with_dual[2]["clip/dual_fraction"] == 0.0


def test_dual_clip_reaches_gspo_and_sapo():
    tokens = one_sample(-1.0, rollout_logprobs=logs([0.05, 0.025, 0.08]))
    assert run(tokens, clip_config(algorithm="gspo", clip_ratio_c=1.5))[0] == pytest.approx(1.5)
    assert run(tokens, clip_config(algorithm="sapo", clip_ratio_c=1.5))[0] == pytest.approx(1.5)


def test_cispo():
    loss, gradient, _ = run(one_sample(), clip_config(algorithm="cispo"))
    assert loss == pytest.approx(0.61988, abs=5e-6)
    assert gradient == pytest.approx([-1 / 3, -0.6 / 3, -1.5 / 3])


def test_gspo_gives_every_token_the_ratio_of_its_sample():
    loss, gradient, metrics = run(one_sample(), clip_config(algorithm="gspo"))
    assert loss == pytest.approx(-1.0)
    assert gradient == pytest.approx([-1 / 3] * 3)
    assert (metrics["clip/low_fraction"], metrics["clip/high_fraction"]) == (0.0, 0.0)


def test_gspo_counts_clips_by_sample():
    lp = logs([0.5, 0.5, 0.5, 0.5]).requires_grad_()
    tokens = Tokens(
        logprobs=lp,
        prox_logprobs=lp.detach(),
        rollout_logprobs=logs([0.25, 0.25, 0.25, 0.5]),
        advantages=torch.ones(4, dtype=torch.float64),
        segments=torch.tensor([7, 7, 7, 3]),
    )
    loss, _, metrics = run(tokens, clip_config(algorithm="gspo"))
    assert metrics["clip/high_fraction"] == 0.5
    assert loss == pytest.approx(-(1.5 + 1.0) / 2)


@pytest.mark.parametrize(("advantage", "expected"), [(1.0, -2.14480), (-1.0, 2.04757)])
def test_sapo(advantage, expected):
    loss, _, _ = run(one_sample(advantage), clip_config(algorithm="sapo"))
    assert loss == pytest.approx(expected, abs=5e-6)


def test_unclipped_policy_gradient_has_the_gradient_of_minus_lp_times_advantage():
    loss, gradient, metrics = run(one_sample(2.0), config())
    assert loss == pytest.approx(-2.0)
    assert gradient == pytest.approx([-2 / 3] * 3)
    assert not any(key.startswith("clip/") for key in metrics)


def test_truncated_importance_correction():
    tokens = one_sample()
    settings = config(use_tis=True, tis_cap=2.0)
    weights = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    losses = -tokens.logprobs.detach() * importance_correction(weights, settings)
    assert losses.mean().item() == pytest.approx(0.61086, abs=5e-6)
    _, gradient, metrics = run(tokens, settings)
    assert gradient == pytest.approx([-1 / 3, -0.5 / 3, -2 / 3])
    assert metrics["importance/mean"] == pytest.approx(1.16667, abs=5e-6)
    assert metrics["importance/max"] == pytest.approx(2.0)
    assert metrics["importance/ess_fraction"] == pytest.approx(3.5**2 / (3 * 5.25))


@pytest.mark.parametrize(
    ("mode", "floor", "cap", "expected"),
    [
        ("truncate", 0.0, 1.5, [1.0, 0.5, 1.5]),
        ("truncate", 0.75, 1.5, [1.0, 0.75, 1.5]),
        ("icepop", 0.0, 1.5, [1.0, 0.5, 0.0]),
        ("icepop", 0.75, 3.0, [1.0, 0.0, 2.0]),
    ],
)
def test_importance_weights_outside_the_bounds(mode, floor, cap, expected):
    settings = config(use_tis=True, tis_mode=mode, tis_floor=floor, tis_cap=cap)
    _, gradient, metrics = run(one_sample(), settings)
    assert gradient == pytest.approx([-weight / 3 for weight in expected])
    capped = sum(weight not in (1.0, 0.5, 2.0) for weight in expected)
    assert metrics["importance/capped_fraction"] == pytest.approx(capped / 3)


def test_importance_clamps_the_difference_before_exponentiating():
    settings = config(use_tis=True, tis_cap=100.0, tis_logprob_clamp=0.1)
    assert run(one_sample(), settings)[1] == pytest.approx([-1 / 3, -math.exp(-0.1) / 3, -math.exp(0.1) / 3])


@pytest.mark.parametrize(("estimator", "expected"), [("k1", 0.0), ("k2", 0.16015), ("k3", 0.16667)])
def test_kl_estimators(estimator, expected):
    tokens = one_sample(0.0, reference_logprobs=logs(ENGINE))
    assert KL[estimator](tokens.logprobs - logs(ENGINE)).mean().item() == pytest.approx(expected, abs=5e-6)
    for reference in ("rollout", "initial"):
        settings = config(kl_penalty_tau=0.5, kl_estimator=estimator, kl_reference=reference)
        loss, _, metrics = run(tokens, settings)
        assert metrics["loss/kl_penalty"] == pytest.approx(expected, abs=5e-6)
        assert loss == pytest.approx(0.5 * expected, abs=5e-6)


def test_kl_divergence_inference_is_measured_at_the_start_of_the_step():
    moved = one_sample(logprobs=logs([0.1, 0.1, 0.1]).requires_grad_(), prox_logprobs=logs(NOW))
    assert run(moved, config())[2]["kl_divergence_inference"] == pytest.approx(0.166667, abs=5e-7)


def test_kl_divergence_inference_is_of_the_engine_from_the_trainer():
    tokens = one_sample(prox_logprobs=logs([0.5] * 3), rollout_logprobs=logs([0.25] * 3))
    assert run(tokens, config())[2]["kl_divergence_inference"] == pytest.approx(1 - math.log(2))


def test_entropy_of_two_symbols():
    logits = torch.stack([logs([p, 1 - p]) for p in NOW])
    logprobs, entropy = token_logprobs(logits, torch.zeros(3, dtype=torch.long), 1.0)
    assert entropy.mean().item() == pytest.approx(0.585295, abs=5e-7)
    assert logprobs.exp().tolist() == pytest.approx(NOW)
    assert run(one_sample(entropy=entropy), config())[2]["entropy"] == pytest.approx(0.585295, abs=5e-7)


def test_entropy_bonus_lowers_the_loss():
    entropy = torch.tensor([0.1, 0.2, 0.6], dtype=torch.float64, requires_grad=True)
    settings = config(entropy_coef=0.5)
    tokens = one_sample(0.0, entropy=entropy)
    loss, sums = policy_loss(tokens, settings, count(tokens, settings))
    loss.backward()
    assert loss.item() == pytest.approx(-0.15)
    assert sums.values()["loss/entropy_bonus"] == pytest.approx(0.3)
    assert entropy.grad.tolist() == pytest.approx([-0.5 / 3] * 3)


# Logits.


def test_temperature_divides_the_logits():
    logits = torch.tensor([[2.0, 0.0]])
    logprobs, entropy = token_logprobs(logits, torch.tensor([0]), 2.0)
    p = 1 / (1 + math.exp(-1.0))
    assert logprobs.item() == pytest.approx(math.log(p))
    assert entropy.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p))


def test_logits_of_half_precision_are_widened_first():
    logits = torch.tensor([[8.0, 8.03125, 0.0]], dtype=torch.bfloat16)
    logprobs, entropy = token_logprobs(logits, torch.tensor([1]), 1.0)
    assert (logprobs.dtype, entropy.dtype) == (torch.float32, torch.float32)


def test_impossible_tokens_leave_the_entropy_finite():
    logits = torch.tensor([[0.0, 0.0, -math.inf], [0.0, -500.0, 500.0]], requires_grad=True)
    _, entropy = token_logprobs(logits, torch.tensor([0, 2]), 1.0, entropy_grad=True)
    assert entropy.tolist() == pytest.approx([math.log(2), 0.0])
    assert token_logprobs(logits, torch.tensor([0, 2]), 1.0)[1].tolist() == pytest.approx([math.log(2), 0.0])
    entropy[1].backward()
    assert logits.grad[1].isfinite().all()


def test_no_rows_give_no_values():
    logprobs, entropy = token_logprobs(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long), 1.0)
    assert (logprobs.shape, entropy.shape) == ((0,), (0,))


# Gradients against autograd's finite differences. Stopped gradients have formulas of their own above.

DIFFERENTIABLE = [
    {"algorithm": "grpo", "use_ppo_clip": True},
    {"algorithm": "grpo", "use_ppo_clip": True, "clip_ratio_c": 1.2},
    {"algorithm": "grpo", "use_ppo_clip": True, "use_tis": True, "aggregation": "sequence_mean"},
    {"algorithm": "gspo", "clip_low": 0.2, "clip_high": 0.2},
    {"algorithm": "gspo", "clip_low": 0.2, "clip_high": 0.2, "use_tis": True, "tis_mode": "icepop"},
    {"algorithm": "sapo"},
    {"algorithm": "sapo", "aggregation": "token_sum_norm", "kl_penalty_tau": 0.3, "kl_estimator": "k1"},
    {"algorithm": "sapo", "kl_penalty_tau": 0.3, "kl_estimator": "k2", "kl_reference": "rollout"},
    {"algorithm": "sapo", "kl_penalty_tau": 0.3, "kl_estimator": "k3", "entropy_coef": 0.2},
]


@pytest.mark.parametrize("changes", DIFFERENTIABLE, ids=lambda changes: " ".join(map(str, changes.values())))
def test_gradient_by_the_logits_is_that_of_finite_differences(changes):
    settings = config(**changes)
    torch.manual_seed(0)
    logits = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 4, (7,))
    other = torch.randn(3, 7, dtype=torch.float64) * 0.4 - 1.5
    advantages = torch.tensor([1.0, 1.0, 1.0, -0.7, -0.7, 0.4, 0.4], dtype=torch.float64)

    def loss(logits):
        logprobs, entropy = token_logprobs(logits, targets, 1.3, entropy_grad=True)
        tokens = Tokens(logprobs, other[0], advantages, torch.tensor([0, 0, 0, 1, 1, 2, 2]))
        tokens = replace(tokens, prox_logprobs=other[1], reference_logprobs=other[2], entropy=entropy)
        return policy_loss(tokens, settings, count(tokens, settings))[0]

    assert torch.autograd.gradcheck(loss, logits)


@pytest.mark.parametrize("algorithm", ["grpo", "cispo"])
def test_stopped_gradients_are_the_weight_times_the_score(algorithm):
    settings = config(algorithm=algorithm, clip_low=0.4, clip_high=0.5)
    logits = torch.tensor([[0.3, -0.2, 0.9]], dtype=torch.float64, requires_grad=True)
    logprobs, _ = token_logprobs(logits, torch.tensor([1]), 1.0)
    prox = logprobs.detach() - math.log(2)
    one = torch.ones(1, dtype=torch.float64)
    tokens = Tokens(logprobs, prox, one * 0.7, torch.tensor([0]), prox_logprobs=prox)
    policy_loss(tokens, settings, Denominators(1, 1))[0].backward()
    weight = 1.5 if algorithm == "cispo" else 1.0
    score = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64) - logits.detach().softmax(-1)[0]
    assert logits.grad[0].tolist() == pytest.approx((-weight * 0.7 * score).tolist())


# A second implementation, in plain floats and loops, that shares no code with the first.


def expected_loss(samples: list[dict], settings: Config) -> float:
    """The objective of whole samples: dicts of lists now, prox, engine, initial, entropy and a float advantage."""
    samples = [sample for sample in samples if sample["now"] and _inside(sample, settings)]
    num_tokens = sum(len(sample["now"]) for sample in samples)
    if not num_tokens:
        return 0.0
    per_sample = [_expected_tokens(sample, settings) for sample in samples]
    if settings.aggregation == "token_mean":
        return sum(map(sum, per_sample)) / num_tokens
    if settings.aggregation == "sequence_mean":
        return sum(sum(losses) / len(losses) for losses in per_sample) / len(samples)
    return sum(map(sum, per_sample)) / (len(samples) * settings.max_tokens)


def _inside(sample: dict, settings: Config) -> bool:
    mask = settings.seq_is_masking
    if mask is None:
        return True
    gaps = [p - e for p, e in zip(sample["prox"], sample["engine"], strict=True)]
    return mask.low <= math.exp(sum(gaps) / len(gaps)) <= mask.high


def _expected_tokens(sample: dict, settings: Config) -> list[float]:
    reference = sample["engine" if settings.ppo_clip_ref_logprobs == "rollout" else "prox"]
    gaps = [now - ref for now, ref in zip(sample["now"], reference, strict=True)]
    if settings.algorithm == "gspo":
        gaps = [sum(gaps) / len(gaps)] * len(gaps)
    return [_expected_token(sample, i, math.exp(gap), settings) for i, gap in enumerate(gaps)]


def _expected_token(sample: dict, i: int, ratio: float, settings: Config) -> float:
    now, advantage = sample["now"][i], sample["advantage"]
    bounded = min(max(ratio, 1 - settings.clip_low), 1 + settings.clip_high)
    if settings.algorithm == "cispo":
        loss = -bounded * now * advantage
    elif settings.algorithm == "sapo":
        tau = settings.sapo_tau_pos if advantage > 0 else settings.sapo_tau_neg
        loss = -4 / tau / (1 + math.exp(-tau * (ratio - 1))) * advantage
    elif settings.algorithm == "gspo" or settings.use_ppo_clip:
        loss = max(-ratio * advantage, -bounded * advantage)
    else:
        loss = -advantage
    if settings.clip_ratio_c is not None and advantage < 0:
        loss = min(loss, -settings.clip_ratio_c * advantage)
    if settings.use_tis:
        weight = math.exp(sample["prox"][i] - sample["engine"][i])
        kept = min(max(weight, settings.tis_floor), settings.tis_cap)
        loss *= kept if settings.tis_mode == "truncate" or kept == weight else 0.0
    other = sample["initial" if settings.kl_reference == "initial" else "engine"][i]
    gap = now - other
    kl = {"k1": gap, "k2": gap * gap / 2, "k3": math.exp(-gap) - 1 + gap}[settings.kl_estimator]
    return loss + settings.kl_penalty_tau * kl - settings.entropy_coef * sample["entropy"][i]


LOGPROB = st.floats(-3.0, -0.05)


@st.composite
def batches(draw) -> list[dict]:
    """Up to six samples of up to five trained tokens; some have none."""
    samples = []
    for _ in range(draw(st.integers(1, 6))):
        size = draw(st.integers(0, 5))
        column = st.lists(LOGPROB, min_size=size, max_size=size)
        sample = {name: draw(column) for name in ("now", "prox", "engine", "initial")}
        entropy = [-value for value in draw(column)]
        samples.append(sample | {"entropy": entropy, "advantage": draw(st.sampled_from([-1.3, -0.2, 0.0, 0.5, 1.1]))})
    return samples


@st.composite
def loss_configs(draw) -> Config:
    """Any combination of algorithm, modifiers and terms that the config accepts."""
    algorithm = draw(st.sampled_from(ALGORITHMS))
    use_tis = draw(st.booleans())
    clips = algorithm not in ("cispo", "gspo", "sapo") and draw(st.booleans())
    dual = draw(st.booleans()) and (clips or algorithm in ("gspo", "sapo"))
    return config(
        algorithm=algorithm,
        aggregation=None
        if algorithm == "gspo"
        else draw(st.sampled_from(["token_mean", "sequence_mean", "token_sum_norm"])),
        use_ppo_clip=clips,
        clip_low=0.3,
        clip_high=0.4,
        clip_ratio_c=1.4 if dual else None,
        ppo_clip_ref_logprobs="batch" if use_tis else draw(st.sampled_from(["batch", "rollout"])),
        use_tis=use_tis,
        tis_mode=draw(st.sampled_from(["truncate", "icepop"])),
        tis_floor=draw(st.sampled_from([0.0, 0.6])),
        seq_is_masking=draw(st.sampled_from([None, {"low": 0.5, "high": 2.0}])),
        kl_penalty_tau=draw(st.sampled_from([0.0, 0.3])),
        kl_estimator=draw(st.sampled_from(["k1", "k2", "k3"])),
        kl_reference=draw(st.sampled_from(["initial", "rollout"])),
        entropy_coef=draw(st.sampled_from([0.0, 0.1])),
    )


COLUMNS = {
    "logprobs": "now",
    "prox_logprobs": "prox",
    "rollout_logprobs": "engine",
    "reference_logprobs": "initial",
    "entropy": "entropy",
}


def packed(samples: list[dict], order: list[int], padding: int, leaves: dict[int, torch.Tensor]) -> Tokens:
    """Samples as one micro-batch, each after `padding` untrained tokens that are full of rubbish."""
    rubbish = torch.full((padding,), math.nan, dtype=torch.float64)
    columns: dict[str, list[torch.Tensor]] = {name: [] for name in [*COLUMNS, "advantages"]}
    sizes = [len(samples[i]["now"]) for i in order]
    for i in order:
        for column, name in COLUMNS.items():
            values = leaves[i] if name == "now" else torch.tensor(samples[i][name], dtype=torch.float64)
            columns[column] += [rubbish, values]
        columns["advantages"] += [rubbish, torch.full_like(leaves[i].detach(), samples[i]["advantage"])]
    empty = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    flags = [torch.arange(padding + size) >= padding for size in sizes]
    numbers = [torch.full((padding + size,), i) for i, size in zip(order, sizes, strict=True)]
    return Tokens(
        **{name: torch.cat([empty, *parts]) for name, parts in columns.items()},
        trained=torch.cat([torch.zeros(0, dtype=torch.bool), *flags]),
        segments=torch.cat([torch.zeros(0, dtype=torch.long), *numbers]),
    )


def optimise(samples: list[dict], cut: list[list[int]], padding: int, settings: Config):
    """(loss, gradient of each sample, metrics) of an update that is cut into micro-batches."""
    leaves = {
        i: torch.tensor(sample["now"], dtype=torch.float64, requires_grad=True) for i, sample in enumerate(samples)
    }
    microbatches = [packed(samples, order, padding, leaves) for order in cut]
    denominators = sum((count(tokens, settings) for tokens in microbatches), Denominators(0, 0))
    loss, parts = 0.0, []
    for tokens in microbatches:
        part, sums = policy_loss(tokens, settings, denominators)
        part.backward()
        loss += part.item()
        parts.append(sums)
    zero = torch.zeros(0, dtype=torch.float64)
    gradient = torch.cat([zero, *(leaf.grad if leaf.grad is not None else leaf * 0 for leaf in leaves.values())])
    return loss, gradient.tolist(), total(parts)


@PROPERTY
@given(batches(), loss_configs())
def test_every_combination_agrees_with_plain_loops(samples, settings):
    loss, _, sums = optimise(samples, [list(range(len(samples)))], 0, settings)
    assert loss == pytest.approx(expected_loss(samples, settings), rel=1e-9, abs=1e-12)
    metrics = sums.values()
    parts = {
        "loss/policy": 1.0,
        "loss/kl_penalty": settings.kl_penalty_tau,
        "loss/entropy_bonus": -settings.entropy_coef,
    }
    assert sum(factor * metrics.get(key, 0.0) for key, factor in parts.items()) == pytest.approx(loss, abs=1e-12)


@PROPERTY
@given(batches(), loss_configs(), st.randoms(use_true_random=False), st.integers(1, 4), st.integers(0, 3))
def test_microbatches_packing_order_padding_and_ranks_change_nothing(samples, settings, random, pieces, padding):
    order = list(range(len(samples)))
    whole = optimise(samples, [order], 0, settings)
    random.shuffle(order)
    cut = [order[piece::pieces] for piece in range(pieces)]
    loss, gradient, sums = optimise(samples, cut, padding, settings)
    assert loss == pytest.approx(whole[0], rel=1e-12, abs=1e-13)
    assert gradient == pytest.approx(whole[1], rel=1e-12, abs=1e-13)
    assert sums.values() == pytest.approx(whole[2].values(), rel=1e-12, abs=1e-13)
    assert all(map(math.isfinite, [loss, *gradient, *sums.values().values()]))


# Aggregation and masks.


def two_samples(**columns) -> Tokens:
    """Two tokens of sample 0 with advantage 1 and eight of sample 1 with advantage -1, all on-policy."""
    lp = torch.full((10,), -1.0, dtype=torch.float64, requires_grad=True)
    plain = {
        "logprobs": lp,
        "prox_logprobs": lp.detach(),
        "rollout_logprobs": lp.detach(),
        "advantages": torch.tensor([1.0] * 2 + [-1.0] * 8, dtype=torch.float64),
        "segments": torch.tensor([0] * 2 + [1] * 8),
    }
    return Tokens(**plain | columns)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("token_mean", (8 - 2) / 10), ("sequence_mean", 0.0), ("token_sum_norm", (8 - 2) / (2 * 10))],
)
def test_aggregations(aggregation, expected):
    assert run(two_samples(), config(aggregation=aggregation))[0] == pytest.approx(expected)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_untrained_tokens_leave_numerator_and_denominator(aggregation):
    trained = torch.tensor([True] * 2 + [False] * 8)
    loss, gradient, metrics = run(two_samples(trained=trained), config(aggregation=aggregation))
    assert loss == pytest.approx(-1.0)
    assert gradient == pytest.approx([-0.5] * 2 + [0.0] * 8)
    assert metrics["tokens/trained"] == 2


def test_sequence_mask_drops_whole_samples_from_both_sides():
    rollout = torch.tensor([-1.0] * 2 + [-3.0] * 8, dtype=torch.float64)
    tokens = two_samples(rollout_logprobs=rollout)
    settings = config(seq_is_masking={"low": 0.5, "high": 2.0})
    assert sequence_mask(tokens, 0.5, 2.0).tolist() == [True] * 2 + [False] * 8
    assert count(tokens, settings) == Denominators(tokens=2, sequences=1)
    loss, _, metrics = run(tokens, settings)
    assert loss == pytest.approx(-1.0)
    assert metrics["importance/masked_fraction"] == 0.5
    assert metrics["importance/mean"] == pytest.approx(1.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_fully_masked_batch_counts_nothing_and_moves_nothing(algorithm):
    settings = config(algorithm=algorithm, kl_penalty_tau=0.1, kl_reference="rollout", entropy_coef=0.1, use_tis=True)
    tokens = two_samples(trained=torch.zeros(10, dtype=torch.bool), entropy=torch.ones(10, dtype=torch.float64))
    assert count(tokens, settings) == Denominators(0, 0)
    loss, gradient, metrics = run(tokens, settings)
    assert (loss, gradient) == (0.0, [0.0] * 10)
    assert metrics == {"rollout/bad_logprobs": 0.0, "tokens/trained": 0.0}


def test_an_empty_microbatch_adds_nothing_to_a_full_one():
    settings = config(kl_penalty_tau=0.1, kl_reference="rollout")
    none = torch.zeros(0, dtype=torch.float64)
    empty = Tokens(none.requires_grad_(), none, none, torch.zeros(0, dtype=torch.long), prox_logprobs=none.detach())
    full = two_samples()
    denominators = count(full, settings)
    loss, sums = policy_loss(empty, settings, denominators)
    loss.backward()
    assert loss.item() == 0.0
    alone = policy_loss(full, settings, denominators)[1]
    assert total([alone, sums]).values() == alone.values()


def test_denominators_of_nothing_for_a_full_microbatch_are_refused():
    with pytest.raises(ValueError, match="wanted the sum over all of them"):
        policy_loss(two_samples(), config(), Denominators(0, 0))


# Log-probabilities that are missing or not finite.


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_bad_rollout_logprob_leaves_the_ratios_and_is_counted(algorithm, bad):
    rollout = logs(ENGINE)
    rollout[2] = bad
    settings = config(
        algorithm=algorithm,
        use_tis=True,
        kl_penalty_tau=0.1,
        kl_reference="rollout",
        seq_is_masking={"low": 0.1, "high": 10.0},
    )
    loss, gradient, metrics = run(one_sample(rollout_logprobs=rollout), settings)
    assert all(map(math.isfinite, [loss, *gradient, *metrics.values()]))
    assert metrics["rollout/bad_logprobs"] == 1
    assert metrics["importance/mean"] == pytest.approx((1.0 + 0.5) / 2)
    assert metrics["tokens/trained"] == 3


def test_a_token_without_rollout_logprob_trains_as_if_on_policy():
    rollout = logs(ENGINE)
    rollout[2] = math.nan
    tokens = one_sample(rollout_logprobs=rollout)
    assert run(tokens, config(use_tis=True))[1] == pytest.approx([-1 / 3, -0.5 / 3, -1 / 3])
    assert run(tokens, clip_config(use_ppo_clip=True))[1] == pytest.approx([-1 / 3, -0.5 / 3, -1 / 3])


def test_a_token_without_rollout_logprob_leaves_its_samples_ratio():
    rollout = logs(ENGINE)
    rollout[2] = math.nan
    loss, gradient, _ = run(one_sample(rollout_logprobs=rollout), clip_config(algorithm="gspo"))
    assert loss == pytest.approx(-math.sqrt(0.5))
    assert gradient == pytest.approx([-math.sqrt(0.5) / 2, -math.sqrt(0.5) / 2, 0.0])


def test_a_sample_without_any_rollout_logprob_has_ratio_one_and_is_not_masked():
    nothing = torch.full((3,), math.nan, dtype=torch.float64)
    tokens = one_sample(rollout_logprobs=nothing)
    assert run(tokens, clip_config(algorithm="gspo"))[0] == -1.0
    assert sequence_mask(tokens, 0.9, 1.1).tolist() == [True] * 3


def test_without_any_rollout_logprob_their_metrics_are_absent():
    nothing = torch.full((3,), math.nan, dtype=torch.float64)
    metrics = run(one_sample(rollout_logprobs=nothing, current=torch.ones(3, dtype=torch.bool)), config())[2]
    assert metrics == {"loss/policy": pytest.approx(-1.0), "rollout/bad_logprobs": 3.0, "tokens/trained": 3.0}


def test_a_bad_logprob_of_the_trainer_is_not_hidden():
    for column in ("logprobs", "prox_logprobs"):
        bad = logs(NOW)
        bad[1] = math.nan
        tokens = one_sample(**{column: bad.requires_grad_(column == "logprobs")})
        settings = config(use_ppo_clip=True, use_tis=True)
        assert math.isnan(policy_loss(tokens, settings, count(tokens, settings))[0].item())


def test_a_huge_ratio_times_no_advantage_is_zero():
    tokens = one_sample(0.0, rollout_logprobs=torch.full((3,), -900.0, dtype=torch.float64))
    for algorithm in ALGORITHMS:
        loss, gradient, _ = run(tokens, clip_config(algorithm=algorithm, use_ppo_clip=algorithm == "grpo"))
        assert (loss, gradient) == (0.0, pytest.approx([0.0] * 3))


def test_ratios_are_clamped_at_twenty_nats():
    tokens = one_sample(-1.0, rollout_logprobs=torch.full((3,), -900.0, dtype=torch.float64))
    loss, _, _ = run(tokens, clip_config(use_ppo_clip=True))
    assert loss == pytest.approx(math.exp(20))


def test_mismatch_is_over_tokens_of_the_current_weights_only():
    tokens = one_sample(current=torch.tensor([True, True, False]))
    metrics = run(tokens, config())[2]
    assert metrics["mismatch/logprob_abs_mean"] == pytest.approx(math.log(2) / 2)
    assert metrics["mismatch/logprob_abs_max"] == pytest.approx(math.log(2))
    stale = run(one_sample(current=torch.zeros(3, dtype=torch.bool)), config())[2]
    assert not any(key.startswith("mismatch/") for key in stale)


# What the trainer asks.


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, False), ({"minibatches": 2}, True), ({"seq_is_masking": {"low": 0.5, "high": 2.0}}, True)],
)
def test_a_pass_before_the_update_is_needed_when_the_weights_move_or_samples_are_masked(changes, expected):
    assert needs_prox_pass(config(**changes)) is expected


def test_the_initial_policy_is_needed_for_its_penalty_only():
    assert not needs_reference(config(kl_reference="initial"))
    assert not needs_reference(config(kl_penalty_tau=0.1, kl_reference="rollout"))
    assert needs_reference(config(kl_penalty_tau=0.1, kl_reference="initial"))


@pytest.mark.parametrize(
    ("changes", "column", "words"),
    [
        ({"use_tis": True}, "prox_logprobs", "use_tis"),
        ({"algorithm": "gspo"}, "prox_logprobs", "gspo's ratio"),
        ({"kl_penalty_tau": 0.1}, "reference_logprobs", "kl_reference: initial"),
        ({"entropy_coef": 0.1}, "entropy", "entropy_coef"),
    ],
)
def test_a_missing_column_is_named(changes, column, words):
    with pytest.raises(ValueError, match=words):
        policy_loss(one_sample(**{column: None}), config(**changes), Denominators(3, 1))


def test_float32_batches_stay_float32():
    tokens = one_sample()
    columns = {
        name: value.float() for name, value in vars(tokens).items() if value is not None and value.is_floating_point()
    }
    single = replace(tokens, **columns | {"advantages": tokens.advantages})
    loss, _ = policy_loss(single, clip_config(use_ppo_clip=True), Denominators(3, 1))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(-1.0)


def test_dual_clip_alone():
    losses = torch.tensor([3.0, 3.0, 0.5])
    assert dual_clip(losses, torch.tensor([-1.0, 1.0, -1.0]), 2.0).tolist() == [2.0, 3.0, 0.5]
