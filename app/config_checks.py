"""Combinations of settings that are refused, each with a sentence that says what to change."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from app.config_errors import Problem
from app.prompts import weight_at

if TYPE_CHECKING:
    from app.config import Config, EntryConfig

POLICY_GRADIENT = ("grpo", "rloo", "reinforce_pp", "dr_grpo")
WITHOUT_DEVIATION = ("rloo", "dr_grpo")


def problems(config: "Config") -> list[Problem]:
    """Everything that is wrong with a config whose fields are each right."""
    checks = (
        _ratios,
        _advantages,
        _algorithm_only,
        _support,
        _bounds,
        _lengths,
        _filters,
        _batch,
        _environments,
        _evals,
    )
    return [problem for check in checks for problem in check(config)]


def _ratios(config: "Config") -> Iterator[Problem]:
    algorithm, has_dual_clip = config.algorithm, config.clip_ratio_c is not None
    if config.ppo_clip_ref_logprobs == "rollout" and config.use_tis:
        yield Problem(
            "ppo_clip_ref_logprobs",
            "'rollout' together with use_tis: true would count the importance correction twice; "
            "set ppo_clip_ref_logprobs: batch (decoupled PPO) or use_tis: false",
        )
    if config.use_ppo_clip and algorithm in ("cispo", "sapo"):
        yield Problem(
            "use_ppo_clip",
            f"true with {algorithm}, which bounds the ratio in its own way; set false or another algorithm",
        )
    if has_dual_clip and algorithm == "cispo":
        yield Problem("clip_ratio_c", "the dual clip never applies to cispo; set clip_ratio_c: null")
    if has_dual_clip and not config.use_ppo_clip and algorithm in POLICY_GRADIENT:
        yield Problem(
            "clip_ratio_c",
            "the dual clip never binds without a ratio; set use_ppo_clip: true or clip_ratio_c: null",
        )


def _advantages(config: "Config") -> Iterator[Problem]:
    algorithm, norm = config.algorithm, config.advantage_norm
    if algorithm == "reinforce_pp" and norm != "batch":
        yield Problem(
            "advantage_norm",
            f"'{norm}' with reinforce_pp, which normalises over the step; set batch or leave it out",
        )
    elif algorithm in WITHOUT_DEVIATION and norm != "none":
        yield Problem(
            "advantage_norm",
            f"'{norm}' with {algorithm}, which divides by no deviation; set none or leave it out",
        )
    elif algorithm not in WITHOUT_DEVIATION and norm == "none":
        yield Problem("advantage_norm", f"'none' with {algorithm}; set group or batch, or algorithm: dr_grpo")
    if config.group_size == 1 and norm != "batch":
        yield Problem(
            "group_size",
            f"got 1, but {algorithm} compares a completion with its siblings; "
            "set at least 2, or algorithm: reinforce_pp",
        )


def _algorithm_only(config: "Config") -> Iterator[Problem]:
    """Settings that one algorithm alone reads, or that one alone fixes."""
    if config.algorithm == "gspo" and config.aggregation != "sequence_mean":
        yield Problem(
            "aggregation",
            f"'{config.aggregation}' with gspo, whose loss is per sequence; set sequence_mean",
        )
    for key in ("sapo_tau_pos", "sapo_tau_neg"):
        is_default = getattr(config, key) == type(config).model_fields[key].default
        if config.algorithm != "sapo" and not is_default:
            yield Problem(
                key,
                f"only sapo reads it and algorithm is {config.algorithm}; remove it or set algorithm: sapo",
            )


def _support(config: "Config") -> Iterator[Problem]:
    """Below top_p 1 the engine renormalises over the nucleus: other probabilities than the trainer's."""
    uses = {
        "use_tis: true": config.use_tis,
        "ppo_clip_ref_logprobs: rollout": config.ppo_clip_ref_logprobs == "rollout",
        "seq_is_masking": config.seq_is_masking is not None,
        "kl_reference: rollout": config.kl_penalty_tau > 0 and config.kl_reference == "rollout",
    }
    used = [setting for setting, is_used in uses.items() if is_used]
    own = {f"environments.{i}.top_p": entry.top_p for i, entry in enumerate(config.environments)}
    for key, top_p in ({"top_p": config.top_p} | own).items():
        if top_p is not None and top_p < 1 and used:
            yield Problem(
                key,
                f"got {top_p:g} together with {' and '.join(used)}: the engine's and the trainer's "
                "probabilities would be over different tokens; set top_p: 1.0 or switch the other off",
            )


def _bounds(config: "Config") -> Iterator[Problem]:
    floor, cap, mask = config.tis_floor, config.tis_cap, config.seq_is_masking
    if not floor <= 1 <= cap:
        yield Problem(
            "tis_cap",
            f"[tis_floor, tis_cap] = [{floor:g}, {cap:g}] must hold 1, the weight of an on-policy token",
        )
    if mask is not None and not mask.low <= 1 <= mask.high:
        yield Problem(
            "seq_is_masking",
            f"[low, high] = [{mask.low:g}, {mask.high:g}] must hold 1, the ratio of an on-policy sample",
        )


def _lengths(config: "Config") -> Iterator[Problem]:
    limits = f"{config.max_prompt_tokens} + {config.max_tokens} = {config.max_sample_tokens}"
    for key, size in (("seq_len", config.seq_len), ("engine.max_model_len", config.engine.max_model_len)):
        if size < config.max_sample_tokens:
            yield Problem(
                key,
                f"got {size}, wanted at least max_prompt_tokens + max_tokens = {limits}; "
                "raise it, lower a limit, or leave it out",
            )


def _filters(config: "Config") -> Iterator[Problem]:
    """Filters that could never apply."""
    longest, rule, repetition = config.engine.max_model_len, config.filters.overlong_penalty, config.filters.repetition
    if rule is not None and rule.buffer > rule.max:
        yield Problem("filters.overlong_penalty.buffer", f"got {rule.buffer}, wanted at most max = {rule.max}")
    elif rule is not None and rule.max - rule.buffer >= longest:
        yield Problem(
            "filters.overlong_penalty",
            f"begins at max - buffer = {rule.max - rule.buffer} tokens; lower max: engine.max_model_len is {longest}",
        )
    if repetition is not None and repetition.window > longest:
        yield Problem(
            "filters.repetition.window", f"got {repetition.window}, wanted at most engine.max_model_len = {longest}"
        )


def _batch(config: "Config") -> Iterator[Problem]:
    num_samples = config.prompts_per_step * config.group_size
    if config.max_off_policy_steps < config.max_async_rollout:
        yield Problem(
            "max_off_policy_steps",
            f"got {config.max_off_policy_steps}, below max_async_rollout = {config.max_async_rollout}: "
            "samples would be made only to be discarded; raise it or leave it out",
        )
    if config.prompts_per_step % config.groups_per_ticket:
        yield Problem(
            "groups_per_ticket",
            f"got {config.groups_per_ticket}, wanted a divisor of prompts_per_step {config.prompts_per_step}",
        )
    if config.minibatches > num_samples:
        yield Problem("minibatches", f"got {config.minibatches}, wanted at most the step's {num_samples} samples")
    if config.warmup_steps > config.steps:
        yield Problem(
            "warmup_steps",
            f"got {config.warmup_steps}, wanted at most steps = {config.steps}; lower it or raise steps",
        )


def _environments(config: "Config") -> Iterator[Problem]:
    yield from _entries(config, "environments", config.environments)
    yield from _curricula(config)


def _evals(config: "Config") -> Iterator[Problem]:
    yield from _entries(config, "evals", config.evals)
    for i, entry in enumerate(config.evals):
        if max(entry.pass_k) > entry.completions:
            yield Problem(
                f"evals.{i}.pass_k",
                f"got {max(entry.pass_k)}, which needs as many completions, not {entry.completions}; raise completions",
            )


def _entries(config: "Config", section: str, entries: "Sequence[EntryConfig]") -> Iterator[Problem]:
    first: dict[str, int] = {}
    for i, entry in enumerate(entries):
        low, high, label = entry.reward_min, entry.reward_max, entry.label
        if low is not None and high is not None and low >= high:
            yield Problem(f"{section}.{i}.reward_min", f"got {low:g}, wanted less than reward_max = {high:g}")
        if label in first:
            yield Problem(
                f"{section}.{i}.label",
                f"'{label}' is also the label of {section}.{first[label]}; give each entry its own label",
            )
        first.setdefault(label, i)
        if entry.max_tokens is not None and entry.max_tokens > config.max_tokens:
            yield Problem(
                f"{section}.{i}.max_tokens",
                f"got {entry.max_tokens}, wanted at most the run's max_tokens = {config.max_tokens}; raise that",
            )


def _curricula(config: "Config") -> Iterator[Problem]:
    """At every step some environment is drawn: weights are linear between their points, so the points tell."""
    points = sorted({step for entry in config.environments for step, _ in entry.curriculum or ()})
    for step in points:
        if sum(weight_at(entry, step) for entry in config.environments) <= 0:
            yield Problem("environments", f"all weights are 0 at step {step:g}; give one of them a weight there")
