"""The one border where environment code may fail. A failure becomes a row with a reason, never a zero."""

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from environments.base import BaseEnvironment, RewardResult, Sample, SingleTurnEnvironment, decode_prompt
from environments.checks import error_text, name_of, number, numbers, raised, shown, texts
from environments.multi_turn import MultiTurnEnvironment, State
from environments.turn import at_once, replayed

MAX_CONCURRENT = 16
"""Calls of an async reward that are awaited at the same time."""


@dataclass(frozen=True)
class Row:
    """One completion to judge, as it stands in the batch: answer and metadata are JSON texts."""

    prompt: str | None
    completion: str | None
    answer: str | None = None
    metadata: str | None = None
    state: str | None = None
    """JSON of the finished conversation."""
    completions: list[str] | None = None
    """The policy's turns, where a conversation is to be played again."""


@dataclass(frozen=True)
class Score:
    """The judgement of one row. Without a reward, `error` says why. Times are time.monotonic() seconds."""

    reward: float | None = None
    sample_metrics: Mapping[str, float] = field(default_factory=dict)
    golden_answers: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    start_s: float | None = None
    end_s: float | None = None


def failed(name: str, reason: str, start_s: float | None = None, end_s: float | None = None) -> Score:
    return Score(error=error_text(f"environment {name!r}: {reason}"), start_s=start_s, end_s=end_s)


def is_async(environment: Any) -> bool:
    """Whether calls of this environment wait for something, so that several can wait together."""
    methods = (getattr(environment, name, None) for name in ("compute_reward", "env_response"))
    return any(inspect.iscoroutinefunction(method) for method in methods)


def score_row(environment: BaseEnvironment, row: Row, eos_token: str = "") -> Score:
    """Judge one row in this thread. An async reward gets an event loop of its own."""

    async def finished(result: Any) -> Any:
        return await result

    start_s = time.monotonic()
    try:
        judge, state = at_once(prepared(environment, row, eos_token))
        result = judge()
        if inspect.isawaitable(result):
            result = asyncio.run(finished(result))
        score = with_conversation(environment, state, judged(result))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - environment code may raise anything, SystemExit too
        score = _caught(environment, error)
    return replace(score, start_s=start_s, end_s=time.monotonic())


async def score_row_async(environment: BaseEnvironment, row: Row, eos_token: str, limit_s: float | None) -> Score:
    """Judge one row beside others in this event loop; the limit counts from here."""
    start_s = time.monotonic()
    try:
        async with asyncio.timeout(limit_s) as limit:
            judge, state = await prepared(environment, row, eos_token)
            result = judge()
            score = with_conversation(
                environment, state, judged(await result if inspect.isawaitable(result) else result)
            )
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - environment code may raise anything, SystemExit too
        if limit.expired():
            score = failed(name_of(environment), f"compute_reward() took longer than {limit_s:g} s")
        else:
            score = _caught(environment, error)
    return replace(score, start_s=start_s, end_s=time.monotonic())


async def prepared(environment: BaseEnvironment, row: Row, eos_token: str) -> tuple[Callable[[], Any], State | None]:
    """The call that judges a row, and the conversation to judge where it is one.

    A row without a stored state is played again: the environment answers to what the policy said.
    """
    if isinstance(environment, SingleTurnEnvironment):
        return partial(environment.compute_reward, _completion(row), sample_of(row), eos_token), None
    assert isinstance(environment, MultiTurnEnvironment)
    if row.state is not None:
        state = State.from_json(row.state)
    else:
        said = [_completion(row)] if row.completions is None else row.completions
        state = await replayed(environment, sample_of(row), [text.removesuffix(eos_token) for text in said])
    return partial(environment.compute_reward, state), state


def with_conversation(environment: BaseEnvironment, state: State | None, score: Score) -> Score:
    if not isinstance(environment, MultiTurnEnvironment) or state is None:
        return score
    own = numbers(environment.conversation_metrics(state), "conversation_metrics")
    return replace(score, sample_metrics=own | dict(score.sample_metrics))


def judged(result: Any) -> Score:
    """What compute_reward() returned, checked; raises where it is not a reward."""
    if result is None:
        return Score(error="unscored: compute_reward() returned None")
    if not isinstance(result, RewardResult):
        result = _bare_number(result)
    score = Score(
        reward=number(result.total_reward, "total_reward"),
        sample_metrics=numbers(result.sample_metrics, "sample_metrics"),
        golden_answers=texts(result.golden_answers, "golden_answers"),
        tags=texts(result.tags, "tags"),
    )
    return score if score.reward is not None else replace(score, error="unscored: total_reward is None")


def _bare_number(result: Any) -> RewardResult:
    try:
        return RewardResult(number(result, "it"))
    except TypeError:
        raise TypeError(f"compute_reward() must return a RewardResult or a number, got {shown(result)}") from None
    except ValueError:
        raise ValueError(f"compute_reward() must return a finite number, got {shown(result)}") from None


def _caught(environment: Any, error: BaseException) -> Score:
    return failed(name_of(environment), f"compute_reward() failed: {raised(error)}")


def _completion(row: Row) -> str:
    if row.completion is None:
        raise ValueError("the row has no completion")
    return row.completion


def sample_of(row: Row) -> Sample:
    return Sample(
        prompt=decode_prompt(row.prompt or ""),
        answer=_json(row.answer, "answer"),
        metadata=_json(row.metadata, "metadata") or {},
    )


def _json(text: str | None, column: str) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"column {column!r} must hold JSON, got {shown(text)}: {error}") from None
