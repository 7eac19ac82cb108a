"""The rollout engine: vLLM's AsyncLLM in a Ray Serve deployment of the run's own.

Tokens in, tokens out. Each completion comes back with the log-probability and the weights version of every token.
One call draws a whole group: per call the handle costs more than vLLM does.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from app.clock import Clock
from app.config import Config
from app.engine_counts import NOTHING, Counts, stat_logger
from app.preflight import engine_gpus
from app.run_context import answer, answered
from app.run_dir import application_of
from app.weights import store, transfer_backend

CPU_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # keeps the executor inside the core process: two processes, not three
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # two threads starve at barriers as soon as another process wants a core
    "TORCH_COMPILE_DISABLE": "1",  # otherwise the first request with log-probabilities compiles for 10 s
}
ENGINE_RETURN_S = 300
"""Longest time that a caller waits for the replacement of an engine that died."""
PREFILL_TOKENS = 2048
"""Tokens that an engine on the CPU computes at once, unless one prompt may be longer."""
WEIGHTS_LIMIT_S = 300
"""Longest time that published weights may take to arrive."""
WEIGHTS_POLL_S = 0.5
UNPUSHED = "default"
"""vLLM's name for the weights that it loaded by itself."""
ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "TOKENIZERS_PARALLELISM": "false"}
PAUSE_MODES = {"in_flight": "keep", "strict": "wait"}
"""Our `weight_update` → what vLLM does with running requests."""


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn. `seeds`, one a completion, make a draw repeatable."""

    n: int
    max_tokens: int
    temperature: float
    top_p: float
    stop_token_ids: tuple[int, ...]
    seeds: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Completion:
    """One completion exactly as sampled; the three tuples have one entry a token."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: str  # stop | length | abort
    start_s: float  # on the run's clock
    end_s: float
    engine: str | None  # None where it reached none


@dataclass(frozen=True)
class Loaded:
    """An engine's answer to a push."""

    engine: str
    start_s: float  # on the run's clock
    end_s: float
    counts: Counts
    """What the engine has done since its start, by app.engine_counts."""


def not_begun(engine: str | None, at_s: float) -> Completion:
    """What comes of a request that is aborted before an engine has begun with it."""
    return Completion((), (), (), "abort", at_s, at_s, engine)


class PolicyEngine:
    """One replica. Serve constructs it, and it is healthy only once it holds the newest weights."""

    clears_cache = True  # at each push: a prefix cache that outlives its weights answers with the old ones

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        model: str,
        engine_args: dict[str, Any],
        namespace: str,
        weight_update: str = "in_flight",
        backend: str = "telescope",
    ) -> None:
        from vllm.config import WeightTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.namespace = namespace
        self.clock = Clock(store(namespace))
        self.tensor_parallel = engine_args.get("tensor_parallel_size", 1)
        self.pause_mode: Any = PAUSE_MODES[weight_update]
        self.name = f"engine {serve.get_replica_context().replica_id.unique_id[:6]}"
        self.version = -1
        self.dying = False
        self.loading = asyncio.Lock()
        self.updating: tuple[int, float] | None = None  # version that comes over the group, and since when
        self.requests: dict[str, list[str]] = {}  # key of a call that has not returned → its requests in the engine
        self.numbers = count()  # of requests: a call that is made again, while the first still runs, has others
        self.aborted: set[str] = set()  # those of them that were aborted
        self.counts = NOTHING.copy()
        arguments = AsyncEngineArgs(
            model=model,
            skip_tokenizer_init=True,
            logprobs_mode="processed_logprobs",  # after temperature: what the token was really sampled from
            weight_transfer_config=WeightTransferConfig(backend=backend),
            **engine_args,
        )
        # vLLM leaves its sockets in this folder for good. Once it has answered they are connected and need no name.
        with tempfile.TemporaryDirectory(prefix="vllm-") as folder:
            os.environ["VLLM_RPC_BASE_PATH"] = folder
            self.engine = AsyncLLM.from_engine_args(arguments, stat_loggers=[stat_logger(self.counts)])
            await self.engine.is_paused()
            del os.environ["VLLM_RPC_BASE_PATH"]
        await self.clock.refresh_async()
        await self.catch_up()

    async def generate(
        self, key: str, prompt_ids: Sequence[int], sampling: Sampling, min_version: int
    ) -> list[Completion]:
        """Draws `sampling.n` completions of one prompt with weights of at least `min_version`."""
        requests = [f"{key}/{next(self.numbers)}" for _ in range(sampling.n)]
        self.requests[key] = requests  # first: it can be aborted while it waits
        try:
            await self._reach(min_version, key)
            return await asyncio.gather(
                *[self._complete(key, request, i, prompt_ids, sampling) for i, request in enumerate(requests)]
            )
        finally:
            self.requests.pop(key, None)
            self.aborted.discard(key)

    async def abort(self, keys: Sequence[str]) -> int:
        """Aborts the calls among `keys` that run here: they return what they have, as `abort`. Returns how many."""
        mine = [key for key in keys if key in self.requests]
        self.aborted.update(mine)
        for key in mine:
            for request in self.requests[key]:
                await self.engine.abort(request)
        return len(mine)

    async def load_weights(self, refs: Sequence[ray.ObjectRef], version: int) -> Loaded:
        """Loads published buckets between two engine steps.

        in_flight: running requests are kept, their key-value cache is recomputed, and their next tokens come from, and
        are recorded as, the new version. strict: they end first, with the old one; those that wait get the new one.
        The prefix cache is cleared, else old weights would go on answering.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        async with self.loading:
            await self.clock.refresh_async()
            start = self.clock.now()
            if version <= self.version:
                return self._loaded(start)
            buckets = await asyncio.gather(
                *[asyncio.to_thread(answer, ref, WEIGHTS_LIMIT_S, "the object store") for ref in refs]
            )
            await self.engine.pause_generation(mode=self.pause_mode, clear_cache=self.clears_cache)
            try:
                await self.engine.start_weight_update()
                for bucket in buckets:
                    with _shared_file(bucket) as path:
                        await self.engine.update_weights(WeightTransferUpdateRequest(update_info={"path": path}))
                await self.engine.finish_weight_update(str(version))
                self.version = version
            finally:
                await self.engine.resume_generation()
            return self._loaded(start)

    async def who(self) -> str:
        """The engine's name, by which the group knows it."""
        return self.name

    async def join_group(self, init_info: dict[str, Any], members: Sequence[str]) -> None:
        """Enters the process group of the trainer's first rank (0) and all engines, in the order of `members`."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        # Replicas are not numbered without gaps, and vLLM's own client tells all engines the same offset.
        place = list(members).index(self.name) * self.tensor_parallel
        told = init_info | {"rank_offset": init_info["rank_offset"] + place}
        await self.engine.shutdown_weight_transfer_engine()
        await self.engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=told))

    async def start_update(self, version: int, members: Sequence[str]) -> bool:
        """Gets ready for the group's next push; False for an engine that is not in the group."""
        await self.loading.acquire()
        await self.clock.refresh_async()
        self.updating = (version, self.clock.now())
        if self.name not in members:
            await self.cancel_update()
            return False
        await self.engine.pause_generation(mode=self.pause_mode, clear_cache=self.clears_cache)
        await self.engine.start_weight_update()
        return True

    async def receive(self, update_info: dict[str, Any]) -> None:
        """Loads what the trainer sends meanwhile: the parameters of `update_info`, in its order."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self.engine.update_weights(WeightTransferUpdateRequest(update_info=update_info))

    async def finish_update(self) -> Loaded:
        """Goes on with the new weights; the times are those of the whole update."""
        assert self.updating is not None, "finish_update before start_update"
        version, start = self.updating
        await self.engine.finish_weight_update(str(version))
        self.version = version
        await self.cancel_update()
        return self._loaded(start)

    def _loaded(self, start_s: float) -> Loaded:
        return Loaded(self.name, start_s, self.clock.now(), self.counts.copy())

    async def cancel_update(self) -> None:
        """Goes on with the weights that are there; does nothing where no update was begun."""
        if self.updating is not None:
            self.updating = None
            await self.engine.resume_generation()
            self.loading.release()

    async def catch_up(self) -> None:
        """Loads the newest published weights, if there are any."""
        version, refs = await answered(store(self.namespace).latest.remote(), WEIGHTS_LIMIT_S, "the weight store")
        if version > self.version:
            await self.load_weights(refs, version)

    async def _reach(self, version: int, key: str) -> None:
        """Returns when the engine has weights of at least this version, or the call is aborted.

        An engine that was not there when they came over the group finds them in the store, some time after the others.
        """
        end = time.monotonic() + WEIGHTS_LIMIT_S
        while self.version < version and key not in self.aborted:
            await self.catch_up()
            if max(self.version, 0) >= version:  # those that it was started with are version 0, pushed or not
                return
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{self.name} has weights of version {self.version}, and those of version {version} were not "
                    f"published within {WEIGHTS_LIMIT_S} s"
                )
            await asyncio.sleep(WEIGHTS_POLL_S)

    async def running(self) -> int:
        """Requests that the engine has not finished."""
        return self.engine.get_num_unfinished_requests()

    async def check_health(self) -> None:
        try:
            await self.engine.check_health()
        except Exception:
            self._leave()
            raise
        self._end_without_run()

    def _end_without_run(self) -> None:
        """Removes the run's engines when its driver is gone and could not: Serve would keep them for ever."""
        try:
            store(self.namespace)
        except ValueError:
            serve.delete(serve.get_replica_context().app_name, _blocking=False)

    async def _complete(
        self, key: str, request: str, index: int, prompt_ids: Sequence[int], sampling: Sampling
    ) -> Completion:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        if key in self.aborted:  # before the engine knew of it
            return not_begun(self.name, self.clock.now())
        params = SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            stop_token_ids=list(sampling.stop_token_ids),
            seed=sampling.seeds[index] if sampling.seeds else None,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        start = self.clock.now()
        output = None
        try:
            # Prepared input is taken at once: a raw prompt waits for a thread, and cannot be aborted meanwhile.
            async for latest in self.engine.generate(tokens_input(list(prompt_ids)), params, request):
                output = latest
        except EngineDeadError:
            self._leave()
            raise
        if output is None:
            raise RuntimeError(f"{self.name}: request {request} ended without an output")
        done = output.outputs[0]
        tokens = tuple(done.token_ids)
        return Completion(
            token_ids=tokens,
            logprobs=_logprobs(done.logprobs, tokens),
            versions=_versions(done.weight_versions, len(tokens)),
            finish_reason=str(done.finish_reason),
            start_s=start,
            end_s=self.clock.now(),
            engine=self.name,
        )

    def _leave(self) -> None:
        """A dead engine core never comes back: exit, so that the router drops this replica and Serve starts another."""
        if not self.dying:
            self.dying = True
            asyncio.get_running_loop().call_later(0.2, os._exit, 1)

    def __del__(self) -> None:
        engine = getattr(self, "engine", None)
        if engine is not None:
            engine.shutdown()


class _shared_file:
    """A bucket as a file in shared memory, for as long as the engine's workers read it."""

    def __init__(self, bucket: Any) -> None:
        self.bucket = bucket

    def __enter__(self) -> str:
        folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".safetensors", delete=False) as file:
            file.write(memoryview(self.bucket))
        self.path = file.name
        return self.path

    def __exit__(self, *error: object) -> None:
        Path(self.path).unlink(missing_ok=True)


def _logprobs(candidates: Any, tokens: Sequence[int]) -> tuple[float, ...]:
    """vLLM's candidates of each token (flat) → the log-probability of the one that was sampled: the only one."""
    if tuple(candidates.token_ids) != tuple(tokens):
        raise RuntimeError(f"the engine gave log-probabilities of other tokens than {tokens}: {candidates.token_ids}")
    return tuple(candidates.logprobs)


def _versions(spans: Any, num_tokens: int) -> tuple[int, ...]:
    """vLLM's contiguous version spans → one version a token; 0 for the weights that the engine was started with."""
    versions = [
        0 if span.version == UNPUSHED else int(span.version)
        for span in spans or []
        for _ in range(span.start, span.end)
    ]
    if len(versions) != num_tokens:
        raise RuntimeError(f"the engine gave versions for {len(versions)} of {num_tokens} tokens: {spans}")
    return tuple(versions)


def engine_died(error: Exception) -> bool:
    """Whether a failed call means that its replica is gone. Serve starts another; the call may be made again."""
    gone = (ray.exceptions.RayActorError, DeploymentUnavailableError)
    return isinstance(error, gone) or "EngineDeadError" in str(error)


def deploy(
    config: Config,
    run_id: str,
    model: Path | str,
    namespace: str,
    use_gpu: bool,
    engine_class: type[PolicyEngine] = PolicyEngine,
) -> DeploymentHandle:
    """Starts the run's engines and returns when every one is ready.

    Raises RuntimeError with the engine's own reason when one cannot start.
    """
    from ray.serve.config import RequestRouterConfig

    environment = ENVIRONMENT if use_gpu else ENVIRONMENT | CPU_ENVIRONMENT
    backend = transfer_backend(config.weight_transfer, use_gpu)
    router: Any = "ray.serve.experimental.round_robin_router.RoundRobinRouter"
    deployment: Any = serve.deployment(
        engine_class,
        name="engine",
        num_replicas=config.num_engines,
        max_ongoing_requests=4096,
        max_constructor_retry_count=2,
        health_check_period_s=5,
        health_check_timeout_s=60,
        graceful_shutdown_timeout_s=5,
        # The default router splits bursts badly over replicas (57 of 64 requests on one of two).
        request_router_config=RequestRouterConfig(request_router_class=router),
        ray_actor_options={**actor_resources(config, use_gpu), "runtime_env": {"env_vars": environment}},
    )
    try:
        return serve.run(
            deployment.bind(str(model), engine_args(config, use_gpu), namespace, config.weight_update, backend),
            name=application_of(run_id),
            route_prefix=None,
            logging_config={"enable_access_log": False, "log_level": "WARNING"},
        )
    except RuntimeError as error:
        raise RuntimeError(f"the engine did not start: {_reason(run_id, error)}") from error


def actor_resources(config: Config, use_gpu: bool) -> dict[str, float]:
    """What Ray reserves for one engine: GPUs or CPUs. With no CPUs said Serve would take one."""
    return {"num_gpus": engine_gpus(config), "num_cpus": 0} if use_gpu else {"num_cpus": config.engine.cpus}


def engine_args(config: Config, use_gpu: bool) -> dict[str, Any]:
    """Arguments of vLLM for this run on this kind of machine."""
    engine = config.engine
    common = {
        "dtype": dtype_name(config, use_gpu),
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.max_num_seqs,
        "enforce_eager": engine.enforce_eager,
        "tensor_parallel_size": engine.tensor_parallel,
        "seed": config.seed,
        "disable_log_stats": True,  # vLLM's own: app.engine_counts takes what is wanted
    }
    if use_gpu:
        return common | {"gpu_memory_utilization": engine.gpu_memory_utilization}
    # Said in bytes: with nothing said vLLM claims most of the machine's memory.
    # Whole prompts: a seeded request whose prompt is cut into parts makes vLLM rewind its generator, which torch's on
    # the CPU cannot, and the engine dies.
    return common | {
        "kv_cache_memory_bytes": engine.kv_cache_mb << 20,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(engine.max_model_len, PREFILL_TOKENS),
    }


def dtype_name(config: Config, use_gpu: bool) -> str:
    """Arithmetic of the run: what the config says, or what suits the machine."""
    if config.dtype != "auto":
        return config.dtype
    return "bfloat16" if use_gpu else "float32"


def _reason(run_id: str, error: Exception) -> str:
    """The last error of the replica's own traceback: what a person needs to read first."""
    status = serve.status().applications.get(application_of(run_id))
    messages = [deployment.message for deployment in status.deployments.values()] if status else []
    lines = [line.strip() for text in (str(error), *messages) for line in text.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if "Error: " in line]
    # The error's own text may go on: a validation error says what is wrong in its second line.
    return " ".join(lines[errors[-1] :])[:600] if errors else repr(error)
