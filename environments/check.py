"""What can be known about an environment before GPU hours are spent on it: `python -m environments check NAME`.

Its code runs in processes that are killed when they take too long. Nothing here knows a model: whoever has a tokenizer
hands over `length_of`.
"""

import random
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from environments.base import Prompt, Sample, decode_prompt
from environments.batch import table_of
from environments.checks import BadEnvironment
from environments.listing import Listing, all_ids, listing
from environments.worker import START_LIMIT_S, EnvironmentWorker

Level = Literal["ok", "warn", "fail"]
RANDOM_CHARACTERS = 24
SHOWN = 60


@dataclass(frozen=True)
class Finding:
    """One line of the report. `fail` makes the environment unfit, `warn` leaves something unknown."""

    level: Level
    what: str
    text: str


@dataclass(frozen=True)
class Wish:
    """What to check: an environment, with the limits of the run that it is meant for."""

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    reward_max: float | None = None
    num_samples: int = 64
    limit_s: float = 10.0
    length_of: Callable[[Prompt], int] | None = None
    max_prompt_tokens: int | None = None


Kind = Literal["gold", "empty", "random", "swapped"]
Case = tuple[Kind, Sample, Sequence[str]]
"""A reply to a sample, by turns."""


@dataclass(frozen=True)
class Reply:
    """A reply that was judged: which kind of reply to which sample, and the columns of its judgement."""

    kind: Kind
    sample: Sample
    reward: float | None
    metrics: Mapping[str, float]
    error: str | None
    seconds: float


def check(wish: Wish, say: Callable[[str], None] = lambda doing: None) -> list[Finding]:
    """Every finding, in the order of the report. Raises BadEnvironment when there is nothing to check.

    `say` hears what is being done, before it is: code that hangs costs its limit each time.
    """
    say(f"listing its samples twice, at most {START_LIMIT_S:g} s each time")
    first, second = (
        listing(wish.name, wish.kwargs, num_samples=wish.num_samples, limit_s=START_LIMIT_S, hash_seed=seed)
        for seed in (0, 1)
    )
    found = [_ids(first), _disjoint(first), _same_twice(first, second)]
    found += _prompts(wish, first)
    replies, again = _judged_twice(wish, first, say)
    found += [
        *_gold(wish, replies),
        *_worthless(replies),
        *_all_equal(wish, replies),
        _metrics(replies, first.metrics_ranges),
    ]
    return [*found, _same_rewards(replies, again), _latency(wish, replies), _failures(replies)]


def _ids(listed: Listing) -> Finding:
    counts = {split: len(ids) for split, ids in listed.ids.items()}
    said = f"{counts['train']} train, {counts['eval']} eval"
    double = [one for one, count in Counter(all_ids(listed)).items() if count > 1]
    if not counts["train"]:
        return Finding("fail", "samples", f"{said}: nothing to train on")
    if double:
        same = "the same prompt and answer"
        like = _named(listed, double[0])
        return Finding("fail", "samples", f"{said}: {len(double)} stand more than once ({same}), like {like}")
    return Finding("ok", "samples", f"{said}, each of its own")


def _disjoint(listed: Listing) -> Finding:
    both = set(listed.ids["train"]) & set(listed.ids["eval"])
    if both:
        like = _named(listed, min(both))
        return Finding("fail", "held out", f"{len(both)} eval samples are also trained on, like {like}")
    if not listed.ids["eval"]:
        return Finding("warn", "held out", "there is no eval split: the run cannot be evaluated on it")
    return Finding("ok", "held out", "no eval sample is trained on")


def _named(listed: Listing, problem_id: str) -> str:
    """The prompt of a sample, where it is one of the first; else its id."""
    known = (sample for pairs in listed.golden.values() for sample, _ in pairs)
    return next((_short(sample.prompt) for sample in known if sample.problem_id == problem_id), problem_id)


def _same_twice(first: Listing, second: Listing) -> Finding:
    if first.ids == second.ids:
        return Finding("ok", "same samples", "in two processes, in the same order")
    kind = "other samples" if set(all_ids(first)) != set(all_ids(second)) else "another order"
    why = "draw with a seed, and make no list from a set"
    return Finding("fail", "same samples", f"{kind} in a second process: no run could be resumed or repeated; {why}")


def _prompts(wish: Wish, listed: Listing) -> Iterator[Finding]:
    prompts = [decode_prompt(text) for split in listed.longest.values() for text in split]
    if wish.length_of is None or not prompts:
        longest = max((len(text) for split in listed.longest.values() for text in split), default=0)
        yield Finding("warn", "prompts", f"at most {longest} characters; tokens are counted with --config FILE")
        return
    try:
        lengths = sorted(map(wish.length_of, prompts))
    except ValueError as error:
        yield Finding("fail", "prompts", str(error))
        return
    said = f"the longest: {lengths[len(lengths) // 2]} to {lengths[-1]} tokens, limit {wish.max_prompt_tokens}"
    over = sum(length > (wish.max_prompt_tokens or length) for length in lengths)
    yield Finding("fail" if over else "ok", "prompts", said + (f": {over} are too long" if over else ""))


def _judged_twice(wish: Wish, listed: Listing, say: Callable[[str], None]) -> tuple[list[Reply], list[Reply]]:
    """Every reply, and those again that could be judged."""
    cases = _cases([pair for split in listed.golden.values() for pair in split][: wish.num_samples], listed.max_turns)
    if not cases:
        raise BadEnvironment(f"environment {wish.name!r} has no samples with kwargs {dict(wish.kwargs)}")
    say(f"judging {len(cases)} replies, at most {wish.limit_s:g} s each")
    with EnvironmentWorker(wish.name, wish.kwargs, limit_s=wish.limit_s) as worker:
        once = _judged(worker, cases, listed.max_turns)
        sound = [case for case, reply in zip(cases, once, strict=True) if reply.error is None]
        say(f"judging {len(sound)} of them a second time")
        again = _judged(worker, sound, listed.max_turns)
    return once, again


def _judged(worker: EnvironmentWorker, cases: Sequence[Case], max_turns: int) -> list[Reply]:
    if not cases:
        return []
    samples, said = [sample for _, sample, _ in cases], [turns for _, _, turns in cases]
    table = table_of(samples, said if max_turns > 1 else [turns[0] for turns in said])
    return [
        Reply(kind, sample, row["reward"], dict(row["sample_metrics"]), row["error"], _seconds(row))
        for (kind, sample, _), row in zip(cases, worker.score(table).to_pylist(), strict=True)
    ]


def _seconds(row: Mapping[str, Any]) -> float:
    return 0.0 if row["reward_end_s"] is None else row["reward_end_s"] - row["reward_start_s"]


def _cases(golden: Sequence[tuple[Sample, Sequence[str] | None]], max_turns: int) -> list[Case]:
    """Per sample: its golden turns, nothing, characters at random, and the golden turns of another one."""
    rng = random.Random("environments.check")
    cases: list[Case] = []
    for sample, gold in golden:
        cases += [("gold", sample, gold)] if gold is not None else []
        noise = ["".join(rng.choices(string.printable[:95], k=RANDOM_CHARACTERS)) for _ in range(max_turns)]
        cases += [("empty", sample, [""] * max_turns), ("random", sample, noise)]
    known = [(sample, gold) for sample, gold in golden if gold is not None]
    cases += [("swapped", sample, other) for (sample, gold), (_, other) in pairwise(known) if gold != other]
    return cases


def _gold(wish: Wish, replies: Sequence[Reply]) -> Iterator[Finding]:
    gold = [reply for reply in replies if reply.kind == "gold"]
    if not gold:
        yield Finding(
            "warn", "gold answers", "gold_completion(sample) gives none: whether a right answer is rewarded is unknown"
        )
        return
    rewards = [reply.reward for reply in gold if reply.reward is not None]
    best = wish.reward_max if wish.reward_max is not None else max(rewards, default=None)
    wrong = [reply for reply in gold if reply.reward is None or reply.reward != best]
    if wrong:
        got = wrong[0].error or f"{wrong[0].reward:g}"
        said = f"{len(wrong)} of {len(gold)} do not get the maximum" + ("" if best is None else f" {best:g}")
        yield Finding("fail", "gold answers", f"{said}, like {_short(wrong[0].sample.prompt)}: {got}")
    else:
        yield Finding("ok", "gold answers", f"{len(gold)} of {len(gold)} get the maximum {best:g}")


def _worthless(replies: Sequence[Reply]) -> Iterator[Finding]:
    """Replies that deserve little: an empty one less than the best, the others less than the gold on average."""
    gold = [reply.reward for reply in replies if reply.kind == "gold" and reply.reward is not None]
    names = {"empty": "the empty reply", "random": "random characters", "swapped": "another's gold"}
    for kind, what in names.items():
        rewards = [reply.reward for reply in replies if reply.kind == kind and reply.reward is not None]
        if not rewards:
            continue
        mean = sum(rewards) / len(rewards)
        as_good = sum(reward >= max(gold) for reward in rewards) if gold else 0
        is_bad = as_good > 0 if kind == "empty" else bool(gold) and mean >= sum(gold) / len(gold)
        often = f"; as much as the best gold answer {as_good} times of {len(rewards)}" if as_good else ""
        yield Finding("fail" if is_bad else "ok", what, f"scores {mean:.3g} on average{often}")


def _all_equal(wish: Wish, replies: Sequence[Reply]) -> Iterator[Finding]:
    """A constant reward without a gold answer; with one, the empty reply that scores as much tells it."""
    rewards = [reply.reward for reply in replies if reply.reward is not None]
    if len(rewards) < 2 or len(set(rewards)) > 1 or any(reply.kind == "gold" for reply in replies):
        return
    is_best = wish.reward_max is not None and rewards[0] >= wish.reward_max
    said = f"all {len(rewards)} replies that were tried score {rewards[0]:g}"
    why = "nothing is learnt where rewards are equal; define gold_completion(sample) to see whether a right one differs"
    yield Finding("fail" if is_best else "warn", "different rewards", f"{said}: {why}")


def _metrics(replies: Sequence[Reply], ranges: Mapping[str, Mapping[str, Any]]) -> Finding:
    judged = [reply for reply in replies if reply.error is None]
    names = {name for reply in judged for name in reply.metrics}
    outside = [
        f"{name} = {value:g}"
        for reply in judged
        for name, value in reply.metrics.items()
        if not _inside(value, ranges.get(name, {}))
    ]
    sometimes = sorted(name for name in names if any(name not in reply.metrics for reply in judged))
    undeclared = sorted(names - set(ranges))
    if outside:
        return Finding("fail", "metrics", f"{len(outside)} values outside of metrics_ranges, like {outside[0]}")
    if sometimes:
        return Finding(
            "warn", "metrics", f"{', '.join(sometimes)}: not there for every reply; means are over those that have it"
        )
    if not names:
        return Finding("ok", "metrics", "there are none beside the reward")
    declared = [f"{', '.join(sorted(names & set(ranges)))}: in their ranges"] if names & set(ranges) else []
    unbounded = [f"without a range: {', '.join(undeclared)}"] if undeclared else []
    return Finding("ok", "metrics", "; ".join(["the same for every reply", *declared, *unbounded]))


def _inside(value: float, bounds: Mapping[str, Any]) -> bool:
    return bounds.get("min", value) <= value <= bounds.get("max", value)


def _same_rewards(once: Sequence[Reply], again: Sequence[Reply]) -> Finding:
    judged = [reply for reply in once if reply.error is None]
    different = [a for a, b in zip(judged, again, strict=True) if (a.reward, a.metrics) != (b.reward, b.metrics)]
    if different:
        one = different[0]
        said = f"{len(different)} of {len(judged)} replies got another reward the second time"
        return Finding("fail", "same rewards", f"{said}, like the {one.kind} one to {_short(one.sample.prompt)}")
    return Finding("ok", "same rewards", "the same when judged twice")


def _latency(wish: Wish, replies: Sequence[Reply]) -> Finding:
    seconds = sorted(reply.seconds for reply in replies)
    p50, p99 = (seconds[min(len(seconds) - 1, int(share * len(seconds)))] for share in (0.5, 0.99))
    said = f"p50 {_time(p50)}, p99 {_time(p99)}, slowest {_time(seconds[-1])}; limit {wish.limit_s:g} s"
    return Finding("warn" if p99 > wish.limit_s / 2 else "ok", "latency", said)


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def _failures(replies: Sequence[Reply]) -> Finding:
    failed = [reply for reply in replies if reply.error is not None]
    if failed:
        said = (
            f"{len(failed)} of {len(replies)} replies were not judged, like the {failed[0].kind} one: {failed[0].error}"
        )
        return Finding("fail", "failures", said)
    return Finding("ok", "failures", f"none of {len(replies)} replies")


def _short(prompt: Prompt) -> str:
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")
