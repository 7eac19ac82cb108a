"""The rollout stage: a Ray Data actor that turns tickets into completions, many at a time.

Prompts become ids once, here; completions come back as ids and are never tokenised again. A completion that can no
longer be trained is aborted in the engine, so that its slot is free at once.
"""

import asyncio
import hashlib
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from app import admission
from app.engine import Completion, Sampling, engine_died
from app.policy import end_token_ids, render, tokenizer
from app.run_dir import application_of
from environments.base import decode_prompt

ENGINE_ATTEMPTS = 4

GROUP = pa.struct(
    [
        ("group_id", pa.int64()),
        ("env", pa.string()),
        ("problem_id", pa.string()),
        ("prompt", pa.string()),  # environments.base.encode_prompt
        ("answer", pa.string()),  # JSON
        ("metadata", pa.string()),  # JSON
    ]
)
SAMPLE = pa.struct(
    [
        *GROUP,
        ("sample_id", pa.int64()),
        ("prompt_text", pa.string()),  # what the policy read
        ("prompt_ids", pa.list_(pa.int32())),
        ("completion", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("rollout_logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("finish", pa.string()),  # stop | length | abort | error
        ("error", pa.string()),
        ("engine", pa.string()),
        ("generate_start_s", pa.float64()),
        ("generate_end_s", pa.float64()),
    ]
)


class Sampler:
    """Draws one group at a time from the run's engines. Used by the rollout stage and by evals."""

    def __init__(self, run_id: str, model: str | Path, sampling: Sampling, max_prompt_tokens: int) -> None:
        self.run_id = run_id
        self.tokenizer = tokenizer(model)
        self.sampling = replace(sampling, stop_token_ids=end_token_ids(self.tokenizer, model))
        self.max_prompt_tokens = max_prompt_tokens

    @cached_property
    def engines(self) -> DeploymentHandle:
        """Looked up when first used: a sampler may be made before the engines are ready."""
        return serve.get_app_handle(application_of(self.run_id))

    async def draw(self, group: dict[str, Any], key: str, min_version: int, seed: int | None) -> list[dict[str, Any]]:
        """The group's samples as rows of `SAMPLE`. A failure is data: rows with `finish` error and the reason."""
        try:
            prompt_ids = self.prompt_ids(group)
        except ValueError as error:
            return self._failed(group, [], f"prompt: {error}")
        try:
            completions = await self._complete(group, key, prompt_ids, min_version, seed)
        except Exception as error:  # noqa: BLE001 - the border where an engine's failure becomes data
            return self._failed(group, prompt_ids, f"engine: {type(error).__name__}: {_last_line(error)}")
        return [self._row(group, index, prompt_ids, done) for index, done in enumerate(completions)]

    def prompt_ids(self, group: dict[str, Any]) -> list[int]:
        """Token ids of the group's prompt. Raises ValueError when it is too long or cannot be rendered."""
        ids = render(self.tokenizer, decode_prompt(group["prompt"]))
        if len(ids) > self.max_prompt_tokens:
            raise ValueError(
                f"{group['problem_id']} has {len(ids)} tokens, max_prompt_tokens is {self.max_prompt_tokens}"
            )
        return ids

    async def abort(self, keys: Iterable[str]) -> None:
        await self.engines.broadcast("abort", list(keys)).results_async()

    async def _complete(
        self, group: dict[str, Any], key: str, prompt_ids: list[int], min_version: int, seed: int | None
    ) -> list[Completion]:
        sampling = self.sampling
        if seed is not None:
            seeds = tuple(sample_seed(seed, group["group_id"], i) for i in range(sampling.n))
            sampling = replace(sampling, seeds=seeds)
        for attempt in range(1, ENGINE_ATTEMPTS + 1):
            try:
                return await self.engines.generate.remote(f"{key}/{attempt}", prompt_ids, sampling, min_version)
            except (ray.exceptions.RayActorError, ray.exceptions.RayTaskError) as error:
                # A dead engine is replaced by Serve; any other error would come again.
                if attempt == ENGINE_ATTEMPTS or not engine_died(error):
                    raise
                await asyncio.sleep(0.5 * 2**attempt)
        raise AssertionError("unreachable")

    def _row(self, group: dict[str, Any], index: int, prompt_ids: list[int], done: Completion) -> dict:
        return self._base(group, index, prompt_ids) | {
            "completion": self.tokenizer.decode(done.token_ids, skip_special_tokens=True),
            "token_ids": done.token_ids,
            "rollout_logprobs": done.logprobs,
            "versions": done.versions,
            "finish": done.finish_reason,
            "error": None,
            "engine": done.engine,
            "generate_start_s": done.start_s,
            "generate_end_s": done.end_s,
        }

    def _failed(self, group: dict[str, Any], prompt_ids: list[int], reason: str) -> list[dict[str, Any]]:
        empty = {"completion": "", "token_ids": [], "rollout_logprobs": [], "versions": [], "finish": "error"}
        nothing = {"engine": None, "generate_start_s": None, "generate_end_s": None}
        return [
            self._base(group, index, prompt_ids) | empty | nothing | {"error": reason}
            for index in range(self.sampling.n)
        ]

    def _base(self, group: dict[str, Any], index: int, prompt_ids: list[int]) -> dict[str, Any]:
        return group | {
            "sample_id": group["group_id"] * self.sampling.n + index,
            "prompt_text": self.tokenizer.decode(prompt_ids),
            "prompt_ids": prompt_ids,
        }


class Rollout:
    """Ray Data stage: one row a ticket in (`groups`), one row a ticket out (`samples`)."""

    def __init__(
        self,
        run_id: str,
        namespace: str,
        model: str,
        sampling: Sampling,
        max_prompt_tokens: int,
        max_off_policy_steps: int,
        seed: int | None,
    ) -> None:
        self.sampler = Sampler(run_id, model, sampling, max_prompt_tokens)
        self.gate = admission.gate(namespace)
        self.max_off_policy_steps = max_off_policy_steps
        self.seed = seed
        self.done = -1
        self.knows_version = asyncio.Event()
        self.watching: asyncio.Task | None = None
        self.running: dict[str, int] = {}  # call key → weights version when it started

    async def __call__(self, batch: pa.Table) -> pa.Table:
        if self.watching is None:
            self.watching = asyncio.get_running_loop().create_task(self._watch())
        await self.knows_version.wait()
        row = batch.to_pylist()[0]
        drawn = await asyncio.gather(*[self._group(group, row["epoch"], row["ticket"]) for group in row["groups"]])
        return _row(row, [sample for samples in drawn for sample in samples])

    async def _group(self, group: dict[str, Any], epoch: int, ticket: int) -> list[dict[str, Any]]:
        key = f"{epoch}/{ticket}/{group['group_id']}"
        self.running[key] = self.done
        try:
            return await self.sampler.draw(group, key, self.done, self.seed)
        finally:
            del self.running[key]

    async def _watch(self) -> None:
        """Aborts what has become too old to be trained, after each step of the trainer."""
        while True:
            self.done = max(self.done, await self.gate.done_after.remote(self.done))
            self.knows_version.set()
            oldest = self.done - self.max_off_policy_steps
            stale = [key for key, version in self.running.items() if version < oldest]
            if stale:
                attempts = range(1, ENGINE_ATTEMPTS + 1)
                await self.sampler.abort(f"{key}/{attempt}" for key in stale for attempt in attempts)


def _row(ticket: dict[str, Any], samples: list[dict[str, Any]]) -> pa.Table:
    """One row: Ray Data cuts a block of several rows into one block a row, so a ticket stays one row."""
    return pa.table(
        {
            "ticket": pa.array([ticket["ticket"]], pa.int64()),
            "epoch": pa.array([ticket["epoch"]], pa.int64()),
            "samples": pa.array([samples], pa.list_(SAMPLE)),
        }
    )


def sample_seed(seed: int, group_id: int, index: int) -> int:
    """The engine's seed of one completion: the same for the same run seed, group and place in the group."""
    digest = hashlib.blake2b(f"{seed}/{group_id}/{index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1


def _last_line(error: Exception) -> str:
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), repr(error))
