"""One real vLLM engine on Ray Serve, and a trainer's weights on their way into it."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray import serve
from transformers import AutoModelForCausalLM

from app import engine
from app.engine import Sampling
from app.publish import PROBE_PROMPT_TOKENS, PROBE_TOLERANCE
from app.run_dir import application_of
from app.weights import STORE_NAME, WeightStore, buckets
from tests.app.tiny import save_tiny_model, tiny_config
from tests.e2e.forgetful import Forgetful

pytestmark = pytest.mark.stack

RUN = "e2e-engine"
NAMESPACE = f"telescope-{RUN}"
PROMPT = [(7 + 13 * i) % 32 for i in range(PROBE_PROMPT_TOKENS)]
TEMPERATURE = 0.7


@dataclass
class Rig:
    handle: Any
    store: Any
    model: Any

    def publish(self, version: int, names: Any = lambda name: True) -> None:
        """Publishes those of the model's parameters whose names are wanted, and loads them into every engine."""
        parameters = [(n, p.detach()) for n, p in self.model.named_parameters() if names(n)]
        refs = ray.get(self.store.publish.remote(version, *buckets(parameters, limit=10_000)))
        assert len(refs) > 1, "several buckets, as with a large model"
        self.handle.broadcast("load_weights", list(refs), version).results(timeout_s=120)

    def change_weights(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)

    def draw(self, n: int = 4, max_tokens: int = 12, **changes: Any) -> list[engine.Completion]:
        sampling = Sampling(n, max_tokens, TEMPERATURE, 1.0, **{"stop_token_ids": ()} | changes)
        return self.handle.generate.remote(f"call {time.monotonic_ns()}", PROMPT, sampling, 0).result(timeout_s=120)

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
    config = tiny_config(max_prompt_tokens=160, max_tokens=200, seq_len=360, num_engines=1)
    store = WeightStore.options(name=STORE_NAME, namespace=NAMESPACE).remote()
    handle = engine.deploy(config, RUN, folder, NAMESPACE, use_gpu=False, engine_class=Forgetful)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rig = Rig(handle, store, model)
    rig.publish(0)
    yield rig
    serve.delete(application_of(RUN))
    ray.kill(store)


def test_log_probabilities_are_those_of_the_temperature(rig):
    assert rig.disagreement() <= 1e-5


def test_ten_pushes_all_arrive_whole(rig):
    for version in range(1, 11):
        rig.change_weights()
        assert rig.disagreement() > 1e-2
        rig.publish(version)
        assert rig.disagreement() <= 1e-5
        assert set(rig.draw()[0].versions) == {version}


def test_a_push_without_the_tied_embedding_is_found_out(rig):
    rig.change_weights()
    rig.publish(20, names=lambda name: "embed_tokens" not in name)
    assert rig.disagreement() > PROBE_TOLERANCE["float32"]
    rig.publish(21)
    assert rig.disagreement() <= 1e-5


def test_a_prefix_cache_that_outlives_its_weights_is_found_out(rig):
    rig.draw()
    rig.change_weights()
    rig.handle.keep_cache.remote(True).result(timeout_s=60)
    rig.publish(30)
    assert rig.disagreement() > PROBE_TOLERANCE["float32"]
    rig.handle.keep_cache.remote(False).result(timeout_s=60)
    rig.publish(31)
    assert rig.disagreement() <= 1e-5


def test_an_older_version_never_replaces_a_newer_one(rig):
    rig.publish(40)
    rig.publish(39)
    assert set(rig.draw()[0].versions) == {40}


def test_generation_goes_on_across_a_push_and_each_token_says_its_version(rig):
    response = rig.handle.generate.remote("across", PROMPT, Sampling(4, 200, TEMPERATURE, 1.0, ()), 0)
    time.sleep(0.3)
    rig.change_weights()
    rig.publish(50)
    for completion in response.result(timeout_s=120):
        assert len(completion.token_ids) == len(completion.logprobs) == len(completion.versions) == 200
        assert sorted(completion.versions) == list(completion.versions)
        assert set(completion.versions) == {40, 50}


def test_an_aborted_call_returns_its_tokens_and_frees_its_slots(rig):
    response = rig.handle.generate.remote("old", PROMPT, Sampling(4, 200, TEMPERATURE, 1.0, ()), 0)
    time.sleep(0.2)
    assert rig.handle.broadcast("abort", ["old", "unknown"]).results(timeout_s=60) == [1]
    completions = response.result(timeout_s=10)
    assert {completion.finish_reason for completion in completions} == {"abort"}
    assert rig.handle.running.remote().result(timeout_s=10) == 0


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


def test_a_replica_that_dies_is_replaced_by_one_with_the_newest_weights(rig):
    rig.change_weights()
    rig.publish(60)
    pid = rig.handle.core_pids.remote().result(timeout_s=60)[0]
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 240
    while True:
        try:
            completion = rig.draw(n=1)[0]
            break
        except (ray.exceptions.RayError, RuntimeError):
            assert time.monotonic() < deadline, "no engine came back within 240 s"
            time.sleep(1)
    assert set(completion.versions) == {60}
    assert rig.disagreement() <= 1e-5
