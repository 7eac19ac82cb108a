"""Draws the samples of a group from the run's engines: one answer each, or a conversation each with its environment.

Prompts become ids once, here; completions come back as ids and are never tokenised again. A failure is data.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from app.chat import continuation, reads_on, render
from app.clock import Clock
from app.config import Config, EntryConfig
from app.conversation import Conversation
from app.engine import ENGINE_RETURN_S, Completion, Sampling, engine_died, not_begun
from app.model_cache import BadPolicy
from app.policy import end_token_ids, tokenizer
from app.run_dir import application_of
from environments.base import decode_prompt
from environments.loader import is_multi_turn
from environments.multi_turn import State
from environments.pool import EnvironmentPool
from environments.score import Row, sample_of
from environments.turn import Spoken

ENGINE_POLL_S = 8.0


class EnvironmentFailed(Exception):
    """The environment did not answer a turn; the text is the reason."""


class EngineFailed(Exception):
    """No engine answered a call; the text is the reason."""


class Sampler:
    """Draws one group at a time. Used by the rollout stage and by evals. `samplings` are by label of an environment."""

    def __init__(
        self,
        run_id: str,
        model: str | Path,
        environments: Sequence[EntryConfig],
        samplings: Mapping[str, Sampling],
        max_prompt_tokens: int,
    ) -> None:
        self.run_id = run_id
        self.tokenizer = tokenizer(model)
        self.ends = end_token_ids(self.tokenizer, model)
        self.samplings = {label: replace(one, stop_token_ids=self.ends) for label, one in samplings.items()}
        self.max_prompt_tokens = max_prompt_tokens
        self.entries = {entry.label: entry for entry in environments}
        self.partners = {
            entry.label: EnvironmentPool(
                entry.name, entry.kwargs, limit_s=entry.turn_timeout_s, processes=entry.processes
            )
            for entry in environments
            if is_multi_turn(entry.name)
        }
        self.clock = Clock()
        self.calls: dict[str, set[str]] = {}  # key of a group that is being drawn → its calls in the engines
        self.aborted: set[str] = set()

    @cached_property
    def engines(self) -> DeploymentHandle:
        """Looked up when first used: a sampler may be made before the engines are ready."""
        return serve.get_app_handle(application_of(self.run_id))

    async def draw(self, group: dict[str, Any], key: str, min_version: int, seed: int | None) -> list[dict[str, Any]]:
        """The group's samples as rows of `SAMPLE`. A failure is data: rows with `finish` error and the reason."""
        samples = range(self.samplings[group["env"]].n)
        try:
            prompt_ids = self.prompt_ids(group)
        except ValueError as error:
            group = group | {"prompt_text": ""}
            return [self._row(group, index, Conversation([], 0), f"prompt: {error}") for index in samples]
        group = group | {"prompt_text": self._text(prompt_ids, skip_special_tokens=False)}
        self.calls[key] = set()
        try:
            if group["env"] not in self.partners:
                return await self._answers(group, key, prompt_ids, min_version, seed)
            # Each its own calls: a sample that takes long does not hold the places of its siblings.
            return await asyncio.gather(
                *[self._talk(group, index, key, prompt_ids, min_version, seed) for index in samples]
            )
        finally:
            del self.calls[key]
            self.aborted.discard(key)

    def prompt_ids(self, group: dict[str, Any]) -> list[int]:
        """Token ids of the group's prompt. Raises ValueError when it is too long or cannot be rendered."""
        ids = render(self.tokenizer, decode_prompt(group["prompt"]))
        if len(ids) > self.max_prompt_tokens:
            raise ValueError(
                f"{group['problem_id']} has {len(ids)} tokens, max_prompt_tokens is {self.max_prompt_tokens}"
            )
        return ids

    async def abort(self, keys: Sequence[str]) -> None:
        """Ends the drawing of these groups: their samples come back with what they have, as `abort`."""
        self.aborted.update(key for key in keys if key in self.calls)
        calls = [call for key in keys for call in self.calls.get(key, ())]
        if not calls:
            return
        try:
            await self.engines.broadcast("abort", calls).results_async()
        except (ray.exceptions.RayError, RayServeException) as error:
            if not engine_died(error):  # with an engine its calls have ended
                raise

    async def _answers(
        self, group: dict[str, Any], key: str, prompt_ids: list[int], min_version: int, seed: int | None
    ) -> list[dict[str, Any]]:
        """One turn each, in one call: per call the handle costs more than the engine does."""
        sampling = self.samplings[group["env"]]
        if seed is not None:
            seeds = tuple(sample_seed(seed, group["group_id"], i) for i in range(sampling.n))
            sampling = replace(sampling, seeds=seeds)
        talks = [Conversation(prompt_ids, sampling.max_tokens) for _ in range(sampling.n)]
        error = None
        try:
            completions = await self._complete(key, key, prompt_ids, sampling, min_version)
            for talk, done in zip(talks, completions, strict=True):
                talk.say(done, self._text(done.token_ids))
                talk.finish = done.finish_reason
        except EngineFailed as problem:
            error = str(problem)
        return [self._row(group, index, talk, error) for index, talk in enumerate(talks)]

    async def _talk(
        self, group: dict[str, Any], index: int, key: str, prompt_ids: list[int], min_version: int, seed: int | None
    ) -> dict[str, Any]:
        """A conversation between the policy and the environment."""
        label = group["env"]
        talk = Conversation(prompt_ids, self.samplings[label].max_tokens, self.entries[label].max_turn_tokens)
        state = State(sample_of(Row(group["prompt"], None, group["answer"], group["metadata"]))).to_json()
        error = None
        try:
            while talk.finish is None:
                place = (group["group_id"], index, talk.num_turns)
                seeds = None if seed is None else (sample_seed(seed, *place),)
                sampling = replace(self.samplings[label], n=1, max_tokens=talk.turn_tokens, seeds=seeds)
                call = f"{key}/{index}/{talk.num_turns}"
                (done,) = await self._complete(key, call, talk.ids, sampling, min_version)
                state = await self._answered(label, talk, done, state, key)
        except (EnvironmentFailed, EngineFailed) as problem:
            error = str(problem)
        except BadPolicy as problem:
            error = f"turn {talk.num_turns}: {problem}"
        return self._row(group, index, talk, error) | {"state": state, **_told(talk)}

    async def _answered(self, label: str, talk: Conversation, done: Completion, state: str, key: str) -> str:
        """Adds the policy's turn and what the environment says to it; returns the state after both."""
        text, before = self._text(done.token_ids), State.from_json(state).messages
        talk.say(done, text)
        if done.finish_reason == "abort":
            talk.finish = "abort"
            return state
        turn = await self.partners[label].turn(Spoken(state, text))
        times_s = (self.clock.of(turn.start_s), self.clock.of(turn.end_s))
        if turn.state is None:
            raise EnvironmentFailed(turn.error)
        if turn.end is not None:
            talk.hear(turn.reply, [], times_s)
            talk.finish = done.finish_reason if turn.end == "done" else turn.end
        else:
            after = State.from_json(turn.state).messages
            talk.prefix_breaks += not reads_on(self.tokenizer, before, text, after)
            ids = continuation(self.tokenizer, turn.reply, self.ends, done.finish_reason == "stop")
            talk.finish = None if talk.hear(turn.reply, ids, times_s) else "length"
        if key in self.aborted and talk.finish is None:
            talk.finish = "abort"
        return turn.state

    async def _complete(
        self, key: str, call: str, prompt_ids: list[int], sampling: Sampling, min_version: int
    ) -> list[Completion]:
        waited_s = 0.0  # for replacements only: a call may take long before its engine dies
        for attempt in count(1):
            if key in self.aborted:  # while it waited for the replacement of an engine
                return [not_begun(None, self.clock.now())] * sampling.n
            name = f"{call}/{attempt}"
            self.calls[key].add(name)
            try:
                return await self.engines.generate.remote(name, prompt_ids, sampling, min_version)
            except Exception as error:  # the border where an engine's failure becomes data
                # A dead engine is replaced by Serve; any other error would come again.
                if waited_s >= ENGINE_RETURN_S or not engine_died(error):
                    raise EngineFailed(f"engine: {type(error).__name__}: {_last_line(error)}") from error
                pause_s = min(attempt, ENGINE_POLL_S)
                await asyncio.sleep(pause_s)
                waited_s += pause_s
            finally:
                self.calls[key].discard(name)
        raise AssertionError("unreachable")

    def _text(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        # Of an array, not a list: transformers looks at each item of a list, which takes longer than to decode it.
        array = np.asarray(ids, dtype=np.int64)
        return self.tokenizer.decode(array, skip_special_tokens=skip_special_tokens)

    def _row(self, group: dict[str, Any], index: int, talk: Conversation, error: str | None) -> dict[str, Any]:
        """A sample with what there is of it: a row of `SAMPLE`."""
        return group | {
            "sample_id": group["group_id"] * self.samplings[group["env"]].n + index,
            "prompt_ids": talk.prompt_ids,
            "completion": talk.turns[0]["text"] if len(talk.turns) == 1 else self._text(talk.token_ids),
            "token_ids": talk.token_ids,
            "rollout_logprobs": talk.logprobs,
            "versions": talk.versions,
            "finish": "error" if error is not None else talk.finish,
            "error": error,
            "engine": talk.engine,
            "generate_start_s": talk.start_s,
            "generate_end_s": talk.end_s,
            "num_turns": talk.num_turns,
            "truncated_turns": talk.truncated_turns,
            **dict.fromkeys(("sampled", "turns", "prefix_breaks", "state")),  # of conversations only
        }


def _told(talk: Conversation) -> dict[str, Any]:
    """What only conversations have."""
    return {"sampled": talk.sampled, "turns": talk.turns, "prefix_breaks": talk.prefix_breaks}


def samplings(config: Config, n: int) -> dict[str, Sampling]:
    """How each environment's completions are drawn, by label."""
    return {
        entry.label: sampling_of(config, entry, n, config.temperature_of(entry.label)) for entry in config.environments
    }


def sampling_of(config: Config, entry: EntryConfig, n: int, temperature: float) -> Sampling:
    """How an entry's completions are drawn: by its own settings, else the run's."""
    return Sampling(
        n=n,
        max_tokens=entry.max_tokens or config.max_tokens,
        temperature=temperature,
        top_p=entry.top_p or config.top_p,
        stop_token_ids=(),
    )


def sample_seed(seed: int, *place: int) -> int:
    """The engine's seed of one completion: the same for the same run seed, group, place in the group, and turn."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *place))).encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1


def _last_line(error: Exception) -> str:
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), repr(error))
