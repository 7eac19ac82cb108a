"""A weight push: gather from all ranks, publish, load into every engine, and prove that they arrived."""

import time
from typing import Any

import ray
import torch.distributed as dist
from ray import serve
from ray.serve.exceptions import RayServeException

from app.config import Config
from app.engine import ENGINE_RETURN_S, Loaded, Sampling, dtype_name, engine_died
from app.engine_counts import Counts, engine_metrics
from app.run_context import RunContext, answer
from app.run_dir import application_of
from app.spans import Spans
from app.trainer import Trainer
from app.weights import buckets, store
from metrics.checks import PROBE_LIMIT, PROBE_LIMIT_LOW_PRECISION

LOAD_TIMEOUT_S = 600
ENGINE_POLL_S = 1.0
PROBE_TOKENS = 8
# Over one block of the prefix cache (128 tokens on CPU): a cache that outlived its weights is found out as well.
PROBE_PROMPT_TOKENS = 144
# Largest |Δ log p| between engine and trainer with the same weights: rounding in float32; bfloat16 rounds much more.
PROBE_TOLERANCE = {"float32": PROBE_LIMIT, "bfloat16": PROBE_LIMIT_LOW_PRECISION}


class StaleWeights(RuntimeError):
    """An engine answers with other weights than the trainer's."""


class Publisher:
    """Pushes the trainer's weights. Every rank calls `push`; rank 0 talks to the engines."""

    def __init__(self, config: Config, context: RunContext, trainer: Trainer) -> None:
        self.config = config
        self.trainer = trainer
        self.rank = dist.get_rank()
        self.tolerance = PROBE_TOLERANCE[dtype_name(config, trainer.device.type == "cuda")]
        self.published: Any = None
        self.counts: dict[str, Counts] = {}  # of each engine, at the last push
        if self.rank == 0:
            self.engines: Any = serve.get_app_handle(application_of(context.run_id))
            self.store = store(context.namespace)
        self.group: Any = self._joined() if config.weight_transfer == "group" else None

    def push(self, version: int, spans: Spans) -> dict[str, float]:
        """Publishes the weights as `version`; returns what the engines did since the push before, and the probe's
        result, as metrics. A collective."""
        loads = self._through_objects(version, spans) if self.group is None else self._through_group(version, spans)
        if self.rank == 0:
            start_s, end_s = min(load.start_s for load in loads), max(load.end_s for load in loads)
            spans.add("weight_sync_inference", start_s, end_s, lane="weights")
        return self._engines_did(loads) | (self._probe(version) if self.config.probe else {})

    def _engines_did(self, loads: list[Loaded]) -> dict[str, float]:
        now = {load.engine: load.counts for load in loads}
        values = engine_metrics(now, self.counts)
        self.counts |= now  # an engine that misses a push goes on from what it had
        return values

    def _joined(self) -> Any:
        from app.weight_group import EnginesClient, WeightGroup  # imports vLLM, seconds in the trainer's process

        client = EnginesClient(self._once, engine_died) if self.rank == 0 else None
        return WeightGroup(self.trainer, client, self.config.engine.tensor_parallel)

    def _through_objects(self, version: int, spans: Spans) -> list[Loaded]:
        with spans.measure("weight_sync_trainer"):
            arrays = list(buckets(self.trainer.full_parameters())) if self.rank == 0 else self._gather_only()
            if self.rank != 0:
                return []
            published = self.store.publish.remote(version, *arrays)
            refs = answer(published, LOAD_TIMEOUT_S, "the weight store")
        return self._every_engine("load_weights", list(refs), version)

    def _through_group(self, version: int, spans: Spans) -> list[Loaded]:
        """The store gets the weights after the engines: only one that comes later reads them there."""
        with spans.measure("weight_sync_trainer"):
            loads = self.group.send(version)
            if self.rank != 0:
                return []
            if self.published is not None:
                answer(self.published, LOAD_TIMEOUT_S, "the weight store")
            self.published = self.store.publish.remote(version, *buckets(self.group.source.kept))
        return loads

    def _gather_only(self) -> list[Any]:
        for _ in self.trainer.full_parameters(self.trainer.device):  # nothing is kept, so nothing is copied
            pass
        return []

    def _probe(self, version: int) -> dict[str, float]:
        """Each engine continues a fixed prompt; the trainer must give its tokens the same probabilities."""
        prompt = self._prompt()
        drawn: list[Any] = [self._continuations(version, prompt) if self.rank == 0 else None]
        dist.broadcast_object_list(drawn)
        worst = 0.0
        for engine, token_ids, logprobs in drawn[0]:
            mine = self.trainer.logprobs([*prompt, *token_ids], len(prompt))
            difference = max(abs(a - b) for a, b in zip(mine, logprobs, strict=True))
            worst = max(worst, difference)
            if not difference <= self.tolerance:
                raise StaleWeights(
                    f"version {version}: {engine} and the trainer disagree by {difference:.3g} in log-probability "
                    f"(allowed: {self.tolerance:g}): its weights, prefix cache or temperature are not the trainer's"
                )
        return {"probe/logprob_abs_max": worst}

    def _every_engine(self, method: str, *arguments: Any) -> list[Any]:
        """The replies of all engines. One that dies meanwhile is replaced by Serve, and the replacement is asked.

        Asking twice does no harm: an engine ignores a version that it has, and a completion is only drawn again.
        """
        waited_s = 0.0  # for replacements only: a call may take long before its engine dies
        while True:
            try:
                replies = self.engines.broadcast(method, *arguments).results(timeout_s=LOAD_TIMEOUT_S)
                if replies:
                    return replies
                problem = "no engine is running"
            except (ray.exceptions.RayError, RayServeException) as error:
                if not engine_died(error):
                    raise
                problem = f"an engine died: {type(error).__name__}"
            if waited_s >= ENGINE_RETURN_S:
                raise RuntimeError(
                    f"{method}: {problem}, and none came back within {ENGINE_RETURN_S} s; see its log under /tmp/ray, "
                    "and lower engine.max_num_seqs or engine.kv_cache_mb if it ran out of memory"
                )
            time.sleep(ENGINE_POLL_S)
            waited_s += ENGINE_POLL_S

    def _once(self, method: str, *arguments: Any) -> list[Any]:
        """The same for what may not be asked twice; an engine that dies is an error here."""
        return self.engines.broadcast(method, *arguments).results(timeout_s=LOAD_TIMEOUT_S)

    def _prompt(self) -> list[int]:
        vocabulary = self.trainer.policy.config.vocab_size
        length = min(PROBE_PROMPT_TOKENS, self.config.engine.max_model_len - PROBE_TOKENS)
        return [(7 + 13 * i) % vocabulary for i in range(max(1, length))]

    def _continuations(self, version: int, prompt: list[int]) -> list[tuple[str, list[int], list[float]]]:
        sampling = Sampling(
            n=1, max_tokens=PROBE_TOKENS, temperature=self.config.temperature, top_p=1.0, stop_token_ids=()
        )

        replies = self._every_engine("generate", f"probe/{version}", prompt, sampling, version)
        return [(one.engine, list(one.token_ids), list(one.logprobs)) for (one,) in replies]
