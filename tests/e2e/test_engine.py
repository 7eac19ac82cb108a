"""One real vLLM engine on Ray Serve, and a trainer's weights on their way into it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
import ray
import torch
from ray import serve
from transformers import AutoModelForCausalLM

from app import admission, embedded, engine
from app.batch import BatchBuilder
from app.engine import Sampling
from app.engine_counts import engine_metrics
from app.publish import PROBE_PROMPT_TOKENS, PROBE_TOLERANCE
from app.rollout import Rollout
from app.run_context import RunContext
from app.run_dir import application_of
from app.scoring import score
from app.tickets import group_row
from app.weight_group import EnginesClient, WeightGroup
from app.weights import STORE_NAME, WeightStore, buckets
from environments.base import Sample
from tests.app.tiny import save_tiny_model, tiny_config
from tests.e2e.forgetful import Forgetful
from tests.e2e.talkers import Slow
from tests.e2e.test_runs import core_pid

pytestmark = pytest.mark.stack

RUN = "e2e-engine"
NAMESPACE = f"telescope-{RUN}"
PROMPT = [(7 + 13 * i) % 32 for i in range(PROBE_PROMPT_TOKENS)]
TEMPERATURE = 0.7
SLOTS = 6
ROUNDING = 1e-4  # of log-probabilities in float32: two implementations differ by about 1e-5
OTHER_WEIGHTS = 1e-2  # what one `change_weights` makes at least
LONG = 340  # tokens of a completion that a push shall meet: some tenths of a second


class Holder:
    """What a push needs of a trainer."""

    rank, device, dtype = 0, torch.device("cpu"), torch.float32

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def full_parameters(self, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, weight.detach().to(device)) for name, weight in self.policy.named_parameters())


@dataclass
class Rig:
    folder: Path
    handle: Any
    store: Any
    model: Any

    def publish(self, version: int, names: Any = lambda name: True) -> list[engine.Loaded]:
        """Publishes those of the model's parameters whose names are wanted, and loads them into every engine."""
        parameters = [(n, p.detach()) for n, p in self.model.named_parameters() if names(n)]
        refs = ray.get(self.store.publish.remote(version, *buckets(parameters, limit=10_000)))
        assert len(refs) > 1, "several buckets, as with a large model"
        return self.handle.broadcast("load_weights", list(refs), version).results(timeout_s=120)

    def group(self) -> WeightGroup:
        """The process group of this process, as a trainer of one rank, and the engines."""
        trainer = Holder(self.model)
        call = lambda method, *a: self.handle.broadcast(method, *a).results(timeout_s=120)  # noqa: E731
        return WeightGroup(trainer, EnginesClient(call, engine.engine_died), 1)  # type: ignore[arg-type]

    def change_weights(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)

    def draw(self, n: int = 4, max_tokens: int = 12, **changes: Any) -> list[engine.Completion]:
        sampling = Sampling(n, max_tokens, TEMPERATURE, 1.0, **{"stop_token_ids": ()} | changes)
        return self.handle.generate.remote(f"call {time.monotonic_ns()}", PROMPT, sampling, 0).result(timeout_s=120)

    def begin(self, key: str, n: int = 4) -> Any:
        """Long completions, of which the first tokens are there when this returns."""
        response = self.handle.generate.remote(key, PROMPT, Sampling(n, LONG, TEMPERATURE, 1.0, ()), 0)
        self.has_requests(1)
        time.sleep(0.1)
        return response

    def has_requests(self, at_least: int) -> None:
        """Returns once the engine has so many unfinished requests."""
        end = time.monotonic() + 60
        while self.handle.running.remote().result(timeout_s=10) < at_least:
            assert time.monotonic() < end, f"the engine did not get {at_least} requests within 60 s"

    def disagreement(self) -> float:
        """Largest difference of log-probability between the engine's tokens and the model."""
        return max(self._difference(completion) for completion in self.draw())

    @torch.no_grad()
    def _difference(self, completion: engine.Completion) -> float:
        ids = torch.tensor([[*PROMPT, *completion.token_ids]])
        logprobs = torch.log_softmax(self.model(ids).logits[0] / TEMPERATURE, -1)[len(PROMPT) - 1 : -1]
        mine = logprobs.gather(-1, ids[0, len(PROMPT) :, None])[:, 0]
        return (mine - torch.tensor(completion.logprobs)).abs().max().item()


@pytest.fixture(scope="module")
def rig(ray_cluster, serve_url, tmp_path_factory) -> Iterator[Rig]:
    folder: Path = save_tiny_model(tmp_path_factory.mktemp("model"))
    embedded.make_tokenizer().save_pretrained(folder)  # the model knows digits, spaces and signs of it
    config = tiny_config(
        max_prompt_tokens=160,
        max_tokens=LONG,
        seq_len=LONG + 160,
        num_engines=1,
        engine={"max_num_seqs": SLOTS},
        weight_transfer="group",  # whose engines read buckets, too
    )
    store = WeightStore.options(name=STORE_NAME, namespace=NAMESPACE).remote()
    handle = engine.deploy(config, RUN, folder, NAMESPACE, use_gpu=False, engine_class=Forgetful)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rig = Rig(folder, handle, store, model)
    rig.publish(0)
    yield rig
    serve.delete(application_of(RUN))
    ray.kill(store)


def test_log_probabilities_are_those_of_the_temperature(rig):
    assert rig.disagreement() < ROUNDING


def test_the_sockets_of_an_engine_leave_no_files_behind(rig):
    replica = psutil.Process(core_pid(RUN)).parent()
    sockets = [one.laddr for one in replica.net_connections("unix") if "/vllm-" in one.laddr]
    assert sockets
    assert not [path for path in sockets if Path(path).parent.exists()]


def test_ten_pushes_all_arrive_whole(rig):
    for version in range(1, 11):
        rig.change_weights()
        assert rig.disagreement() > OTHER_WEIGHTS
        rig.publish(version)
        assert rig.disagreement() < ROUNDING
        assert set(rig.draw()[0].versions) == {version}


def test_what_an_engine_does_between_two_pushes_is_counted(rig):
    [before] = rig.publish(11)
    rig.draw(n=4, max_tokens=12)
    [after] = rig.publish(12)
    found = engine_metrics({after.engine: after.counts}, {before.engine: before.counts})
    # A request runs on after each of its tokens but the last.
    assert found["engine/running"] * found["engine/steps"] == pytest.approx(4 * 11)
    assert 12 <= found["engine/steps"] <= 48
    assert 0 < found["engine/kv_cache"] < 1
    assert 0 <= found["engine/prefix_cache_hits"] <= 3 * 128 / (4 * PROBE_PROMPT_TOKENS), "the push emptied the cache"
    assert (found["engine/waiting"], found["engine/preemptions"]) == (0, 0)


def test_a_push_without_the_tied_embedding_is_found_out(rig):
    rig.change_weights()
    rig.publish(20, names=lambda name: "embed_tokens" not in name)
    assert rig.disagreement() > PROBE_TOLERANCE["float32"]
    rig.publish(21)
    assert rig.disagreement() < ROUNDING


def test_a_prefix_cache_that_outlives_its_weights_is_found_out(rig):
    rig.draw()
    rig.change_weights()
    rig.handle.keep_cache.remote(True).result(timeout_s=60)
    rig.publish(30)
    assert rig.disagreement() > PROBE_TOLERANCE["float32"]
    rig.handle.keep_cache.remote(False).result(timeout_s=60)
    rig.publish(31)
    assert rig.disagreement() < ROUNDING


def test_an_older_version_never_replaces_a_newer_one(rig):
    rig.publish(40)
    rig.publish(39)
    assert set(rig.draw()[0].versions) == {40}


def test_generation_goes_on_across_a_push_and_each_token_says_its_version(rig):
    response = rig.begin("across")
    rig.change_weights()
    rig.publish(50)
    for completion in response.result(timeout_s=120):
        assert len(completion.token_ids) == len(completion.logprobs) == len(completion.versions) == LONG
        assert sorted(completion.versions) == list(completion.versions)
        assert set(completion.versions) == {40, 50}


def test_strict_updates_let_running_completions_end_first_and_mix_no_versions(rig):
    """Requests come all the time; 20 updates neither hang nor lose one."""
    rig.handle.set_weight_update.remote("strict").result(timeout_s=60)
    calls = []
    for version in range(51, 71):
        sampling = Sampling(2, 60, TEMPERATURE, 1.0, ())
        calls += [rig.handle.generate.remote(f"strict {version} {i}", PROMPT, sampling, 0) for i in range(2)]
        rig.publish(version)
    rig.handle.set_weight_update.remote("in_flight").result(timeout_s=60)
    completions = [completion for call in calls for completion in call.result(timeout_s=120)]
    assert len(completions) == 80
    assert all(len(set(completion.versions)) == 1 for completion in completions)
    assert len({completion.versions[0] for completion in completions}) > 1
    assert rig.handle.running.remote().result(timeout_s=10) == 0


def test_pushes_over_the_process_group_arrive_whole_while_completions_go_on(rig):
    group = rig.group()
    for version in (71, 72, 73):
        rig.change_weights()
        assert rig.disagreement() > OTHER_WEIGHTS
        [loaded] = group.send(version)
        assert 0 < loaded.end_s - loaded.start_s < 60
        assert rig.disagreement() < ROUNDING
        assert set(rig.draw()[0].versions) == {version}
    response = rig.begin("group")
    group.send(74)
    assert {v for completion in response.result(timeout_s=120) for v in completion.versions} == {73, 74}
    kept = dict(group.source.kept)
    assert kept.keys() == dict(rig.model.named_parameters()).keys(), "what the store gets, for engines that come late"


def test_an_aborted_call_returns_its_tokens_and_its_slots_are_free_within_a_second(rig):
    """As many requests come out as went in, and those that were not meant are not touched."""
    old = rig.begin("old")
    new = rig.handle.generate.remote("new", PROMPT, Sampling(4, LONG, TEMPERATURE, 1.0, ()), 0)
    start = time.monotonic()
    assert rig.handle.broadcast("abort", ["old", "unknown"]).results(timeout_s=60) == [1]
    aborted = old.result(timeout_s=10)
    assert rig.handle.running.remote().result(timeout_s=10) <= 4
    assert time.monotonic() - start < 1
    assert [completion.finish_reason for completion in aborted] == ["abort"] * 4
    assert all(len(c.token_ids) == len(c.logprobs) == len(c.versions) for c in aborted)
    assert [completion.finish_reason for completion in new.result(timeout_s=60)] == ["length"] * 4
    assert rig.handle.running.remote().result(timeout_s=10) == 0


def test_a_request_that_is_aborted_while_it_waits_returns_without_tokens(rig):
    ahead = 4 * SLOTS  # seconds of work: a slow abort does not come too late
    first = rig.begin("first", ahead)
    waiting = rig.handle.generate.remote("waiting", PROMPT, Sampling(ahead + 1, LONG, TEMPERATURE, 1.0, ()), 0)
    rig.has_requests(ahead + 1)  # which the first never are
    rig.handle.broadcast("abort", ["waiting"]).results(timeout_s=60)
    assert {(c.finish_reason, c.token_ids) for c in waiting.result(timeout_s=10)} == {("abort", ())}
    assert [completion.finish_reason for completion in first.result(timeout_s=60)] == ["length"] * ahead


def test_a_call_waits_for_the_weights_that_it_asks_for(rig):
    sampling = Sampling(2, 5, TEMPERATURE, 1.0, ())
    early = rig.handle.generate.remote("early", PROMPT, sampling, 75)
    with pytest.raises(TimeoutError):
        early.result(timeout_s=1.5)
    rig.publish(75)
    assert [set(completion.versions) for completion in early.result(timeout_s=60)] == [{75}] * 2


def test_a_call_that_is_made_again_while_it_runs_is_another_one(rig):
    calls = [rig.handle.generate.remote("twice", PROMPT, Sampling(2, 60, TEMPERATURE, 1.0, ()), 0) for _ in range(2)]
    assert [len(c.token_ids) for call in calls for c in call.result(timeout_s=60)] == [60] * 4


def test_a_call_that_is_aborted_while_its_engine_catches_up_is_never_begun(rig):
    rig.handle.catch_up_slowly.remote(1.0).result(timeout_s=60)
    late = rig.handle.generate.remote("late", PROMPT, Sampling(3, 200, TEMPERATURE, 1.0, ()), 10**6)
    time.sleep(0.3)
    assert rig.handle.broadcast("abort", ["late"]).results(timeout_s=60) == [1]
    assert [(c.finish_reason, c.token_ids) for c in late.result(timeout_s=10)] == [("abort", ())] * 3
    rig.handle.catch_up_slowly.remote(0.0).result(timeout_s=60)
    assert (
        rig.handle.generate.remote("late", PROMPT, Sampling(1, 5, TEMPERATURE, 1.0, ()), 0)
        .result(timeout_s=60)[0]
        .finish_reason
        == "length"
    ), "the name is free again"


def test_a_conversation_that_is_too_old_is_canceled_and_a_younger_one_goes_on(rig, tmp_path):
    """Two steps of the trainer during the first turns of one, one step during those of the other."""
    talk = {"name": "tests.e2e.talkers:Slow", "label": "talk", "max_turn_tokens": 8}
    config = tiny_config(
        environments=[talk], prompts_per_step=1, group_size=2, max_tokens=200, seq_len=360, max_async_rollout=1
    )
    gate = admission.Admission.options(name=admission.GATE_NAME, namespace=NAMESPACE).remote(1, 1, config.steps, 1)
    stage = Rollout(config, RunContext(RUN, tmp_path, 1, str(rig.folder)), seed=None)

    def ticket(number: int) -> pa.Table:
        row = {"ticket": number, "epoch": 0, "version": number}
        return pa.Table.from_pylist([row | {"groups": [group_row(number, "talk", Sample("1 2 "))]}])

    async def begun(number: int) -> None:
        while f"0/{number}/{number}" not in stage.sampler.calls:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # a turn takes 0.3 s

    async def both() -> list[list[dict[str, Any]]]:
        old = asyncio.create_task(stage(ticket(0)))
        await begun(0)
        await gate.step_done.remote(1)
        young = asyncio.create_task(stage(ticket(1)))
        await begun(1)
        assert not old.done()
        await gate.step_done.remote(2)
        drawn = [await asyncio.wait_for(old, 10), await asyncio.wait_for(young, 60)]
        stage.watching.cancel()
        return [one["samples"][0].as_py() for one in drawn]

    ray.get(gate.begin.remote(0, admission.Cursor()))
    try:
        old, young = asyncio.run(both())
    finally:
        ray.kill(gate)
        stage.sampler.partners["talk"].close()
    for sample in old:
        assert (sample["finish"], sample["error"]) == ("abort", None)
        assert 1 <= sample["num_turns"] < Slow.max_turns
        assert 0 < len(sample["token_ids"]) == len(sample["sampled"]) == len(sample["versions"])
    assert {(sample["finish"], sample["num_turns"]) for sample in young} == {("max_turns", Slow.max_turns)}
    assert rig.handle.running.remote().result(timeout_s=10) == 0
    BatchBuilder(config, 3, 1).add(score(old, {}))
    assert {sample["outcome"] for sample in old} == {"canceled"}


def test_slots_are_refilled_as_single_samples_end(rig):
    """Six slots, 24 samples of many lengths: while one waits, no slot is empty for longer than one engine step."""
    rig.handle.take_busy.remote().result(timeout_s=60)
    samples = rig.draw(n=24, max_tokens=120, stop_token_ids=(3,))
    busy = rig.handle.take_busy.remote().result(timeout_s=60)
    assert len({len(sample.token_ids) for sample in samples}) > 6
    assert max(running for running, _ in busy) == SLOTS
    free = [SLOTS - running for running, waiting in busy if waiting]
    assert len(free) > 20
    assert sum(free) <= 24, "an empty slot is taken in the next step"


def test_a_cut_completion_says_so_and_ends_with_what_was_sampled(rig):
    cut = rig.draw(n=1, max_tokens=3)[0]
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 3)
    stopped = rig.draw(n=1, max_tokens=200, stop_token_ids=tuple(range(16)))[0]
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids[-1] < 16


def test_seeds_repeat_a_draw(rig):
    one, other = rig.draw(n=2, seeds=(5, 6)), rig.draw(n=2, seeds=(5, 6))
    assert [c.token_ids for c in one] == [c.token_ids for c in other]
    assert one[0].token_ids != one[1].token_ids


def test_many_seeded_prompts_at_once_do_not_end_an_engine(rig):
    """vLLM rewinds the generator of a request whose prompt it cuts, and torch's on the CPU has no way back."""
    command = [sys.executable, "-m", "tests.e2e.seeded_prefill", str(rig.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_replica_that_dies_is_replaced_by_one_with_the_newest_weights(rig):
    rig.change_weights()
    group = rig.group()
    group.send(79)
    rig.publish(80)
    os.kill(core_pid(RUN), signal.SIGKILL)
    deadline = time.monotonic() + 240
    while True:
        try:
            completion = rig.draw(n=1)[0]
            break
        except (ray.exceptions.RayError, RuntimeError):
            assert time.monotonic() < deadline, "no engine came back within 240 s"
            time.sleep(1)
    assert set(completion.versions) == {80}
    assert rig.disagreement() < ROUNDING
    rig.change_weights()
    assert rig.disagreement() > OTHER_WEIGHTS
    group.send(82)  # the group is made anew with the engine that is there
    assert rig.disagreement() <= 1e-4


def test_engines_whose_run_is_gone_remove_themselves(rig):
    """The last test here: the weight store ends with the driver of its run."""
    ray.kill(rig.store)
    deadline = time.monotonic() + 60
    while application_of(RUN) in serve.status().applications:
        assert time.monotonic() < deadline, "the engines are still there after 60 s"
        time.sleep(0.5)
