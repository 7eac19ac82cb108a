"""Conversations with a scripted engine: which ids are read, which are sampled, and what is kept of them."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
import ray
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from app import embedded
from app import sampler as sampler_module
from app.batch import metrics_row, sampled
from app.columns import SAMPLE
from app.engine import Completion, Sampling
from app.sampler import Sampler, sample_seed, samplings
from app.scoring import score
from app.tickets import group_row
from environments.base import Sample
from environments.multi_turn import State
from environments.pool import EnvironmentPool
from tests.app.test_chat import TEMPLATE
from tests.app.tiny import tiny_config

ABSENT = DeploymentUnavailableError(DeploymentID("engine", "policy-run"))
PROMPT = "hi "
END = "<eos>"
ECHO = "tests.environments.dialogs:Echo"


@dataclass
class Script:
    """An engine that says what it was told to, by group place and turn, and remembers what it was asked."""

    tokenizer: Any
    lines: list[str]
    asked: list[tuple[str, list[int], Sampling]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    fails_at: int | None = None
    gone: int = 0
    delay_s: float = 0.0

    @property
    def generate(self):
        return self

    async def remote(self, name: str, prompt_ids, sampling: Sampling, min_version: int) -> list[Completion]:
        if self.gone:
            self.gone -= 1
            await asyncio.sleep(self.delay_s)
            raise ABSENT
        number = len(self.asked)
        self.asked.append((name, list(prompt_ids), sampling))
        await asyncio.sleep(self.delay_s)
        if number == self.fails_at:
            raise ray.exceptions.RayTaskError("generate", "Traceback\nRuntimeError: no room\n", RuntimeError("no room"))
        place = name.split("/")
        line = self.lines[int(place[4]) if len(place) == 6 else 0]
        if any(call in self.aborted for call in (name,)):
            return [self.completion(line[:1], "abort", number)] * sampling.n
        text = line.removesuffix(END)
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        ids += [self.tokenizer.eos_token_id] if line.endswith(END) else []
        reason = "stop" if line.endswith(END) and len(ids) <= sampling.max_tokens else "length"
        return [self.completion(ids[: sampling.max_tokens], reason, number)] * sampling.n

    def completion(self, ids, reason: str, number: int) -> Completion:
        ids = ids if isinstance(ids, list) else self.tokenizer.encode(ids, add_special_tokens=False)
        logprobs, versions = tuple(-1.0 - number for _ in ids), tuple(number for _ in ids)
        return Completion(tuple(ids), logprobs, versions, reason, 10.0 + number, 11.0 + number, "engine a")

    def broadcast(self, method: str, calls: list[str]):
        assert method == "abort"
        if self.gone:
            raise ABSENT
        self.aborted += calls
        return self

    async def results_async(self) -> list[int]:
        return [1]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    embedded.make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def rig(model):
    """A sampler with a scripted engine; the environment and the settings are the test's."""
    made = []

    def make(
        *lines: str,
        name: str = ECHO,
        template: str | None = None,
        n: int = 1,
        **changes: Any,
    ) -> Sampler:
        limits = {key: changes.pop(key) for key in ("max_tokens", "max_prompt_tokens") if key in changes}
        entry = {"name": name, "label": "talk", "turn_timeout_s": 5.0} | changes
        config = tiny_config(
            environments=[entry], seq_len=600, **{"max_tokens": 200, "max_prompt_tokens": 300} | limits
        )
        sampler = Sampler("run", model, config.environments, samplings(config, n), config.max_prompt_tokens)
        sampler.tokenizer.chat_template = template
        sampler.engines = Script(sampler.tokenizer, list(lines))
        made.append(sampler)
        return sampler

    yield make
    for sampler in made:
        for pool in sampler.partners.values():
            pool.close()


def drawn(sampler: Sampler, prompt: Any = PROMPT, seed: int | None = None) -> list[dict[str, Any]]:
    group = group_row(7, "talk", Sample(prompt, "right", {"level": 1}))
    return asyncio.run(sampler.draw(group, "0/1/7", 3, seed))


def text_of(sampler: Sampler, ids: list[int]) -> str:
    return sampler.tokenizer.decode(ids)


def test_a_prompt_that_is_no_text_is_an_error_of_its_samples_that_can_be_stored(rig):
    rows = drawn(rig(n=2, name="sums"), "hi \ud800")
    pa.array([row["prompt"] for row in rows], pa.string())
    assert [(row["finish"], row["prompt_ids"], row["token_ids"]) for row in rows] == [("error", [], [])] * 2
    assert all(
        row["error"].startswith("prompt: prompt ") and "holds '\\ud800', half of" in row["error"] for row in rows
    )


def test_the_next_prompt_is_the_ids_so_far_and_the_environments(rig):
    sampler = rig("a" + END, "bc" + END, "bye" + END)
    (row,) = drawn(sampler)
    prompts = [text_of(sampler, ids) for _, ids, _ in sampler.engines.asked]
    assert prompts == [
        "<bos>hi ",
        "<bos>hi a<eos>you said a",
        "<bos>hi a<eos>you said abc<eos>you said bc",
    ]
    for earlier, later in zip(sampler.engines.asked, sampler.engines.asked[1:], strict=False):
        assert later[1][: len(earlier[1])] == earlier[1]
    assert text_of(sampler, row["token_ids"]) == "a<eos>you said abc<eos>you said bcbye<eos>"
    assert (row["finish"], row["num_turns"], row["truncated_turns"], row["error"]) == ("stop", 3, 0, None)


def test_only_what_the_policy_sampled_is_trained(rig):
    (row,) = drawn(rig("a" + END, "bye" + END))
    mask = [True] * 2 + [False] * len("you said a") + [True] * 4
    assert row["sampled"] == mask
    assert row["rollout_logprobs"] == [-1.0] * 2 + [0.0] * 10 + [-2.0] * 4
    assert row["versions"] == [0] * 2 + [-1] * 10 + [1] * 4
    stored = metrics_row(row | {"outcome": "trained"}, 1)
    assert stored["trained_mask"].tolist() == mask
    assert (stored["completion_tokens"], stored["total_tokens"], stored["prompt_tokens"]) == (6, 20, 4)
    assert metrics_row(row | {"outcome": "zero_advantage"}, 1)["trained_mask"].tolist() == [False] * 16


def test_ids_that_would_be_written_otherwise_stay_as_they_were_sampled(rig):
    """Five ids that decode to what one would encode: the unknown token has no text of its own."""
    sampler = rig("ab" + END, "bye" + END)
    unknown = sampler.tokenizer.unk_token_id
    completion = sampler.engines.completion

    def odd(ids, reason, number):
        return completion([unknown, *ids] if number == 0 else ids, reason, number)

    sampler.engines.completion = odd
    (row,) = drawn(sampler)
    assert row["token_ids"][0] == unknown
    assert sampler.engines.asked[1][1][4] == unknown


def test_the_turns_are_told_apart_for_people(rig):
    (row,) = drawn(rig("a" + END, "messages" + END, "bye" + END))
    shown = ("role", "text", "first_token", "num_tokens", "tool", "is_error")
    assert [tuple(turn[name] for name in shown) for turn in row["turns"]] == [
        ("assistant", "a", 0, 2, None, False),
        ("user", "you said a", 2, 10, None, False),
        ("assistant", "messages", 12, 9, None, False),
        ("tool", "5", 21, 6, "add", False),
        ("user", "go on", 21, 0, None, True),
        ("assistant", "bye", 27, 4, None, False),
    ]
    assert [(row["turns"][place]["start_s"], row["turns"][place]["end_s"]) for place in (0, 2)] == [(10, 11), (11, 12)]
    assert 0 < row["turns"][1]["start_s"] <= row["turns"][1]["end_s"]
    assert metrics_row(row | {"outcome": "trained"}, 1)["turn_times_s"] == [10, 11, 11, 12, 12, 13]
    assert State.from_json(row["state"]).completions == ["a", "messages", "bye"]


def test_a_turn_that_was_cut_is_closed_by_an_untrained_end_token(rig):
    sampler = rig("abcdefgh" + END, "bye" + END, max_turn_tokens=4)
    (row,) = drawn(sampler)
    assert text_of(sampler, row["token_ids"]) == "abcd<eos>you said abcdbye<eos>"
    assert row["sampled"][:6] == [True] * 4 + [False] * 2
    assert (row["truncated_turns"], row["finish"]) == (1, "stop")
    assert [sampling.max_tokens for _, _, sampling in sampler.engines.asked] == [4, 4]


def test_a_turn_may_have_what_is_left(rig):
    sampler = rig("a" + END, "bye" + END, max_tokens=40)
    drawn(sampler)
    assert [sampling.max_tokens for _, _, sampling in sampler.engines.asked] == [40, 40 - 12]


@pytest.mark.parametrize("max_tokens", [3, 12])
def test_an_answer_that_leaves_no_room_ends_the_sample_and_keeps_what_there_is(rig, max_tokens):
    (row,) = drawn(rig("a" + END, "bye" + END, max_tokens=max_tokens))
    assert (row["finish"], row["num_turns"], row["truncated_turns"], row["error"]) == ("length", 1, 0, None)
    assert row["sampled"] == [True, True]
    assert [turn["num_tokens"] for turn in row["turns"]] == [2, 0]
    assert State.from_json(row["state"]).data == {"heard": ["a"]}


def test_a_sample_that_is_cut_for_good_has_been_heard(rig):
    (row,) = drawn(rig("abcdefgh", max_tokens=5))
    assert (row["finish"], row["truncated_turns"]) == ("length", 1)
    assert (row["sampled"], row["completion"]) == ([True] * 5, "abcde")  # no end token that it did not sample
    assert State.from_json(row["state"]).data == {"heard": ["abcde"]}


def test_the_last_turn_is_answered_and_says_why_it_was_the_last(rig):
    sampler = rig("a" + END, "b" + END, "c" + END)
    (row,) = drawn(sampler)
    assert (row["finish"], row["num_turns"], len(sampler.engines.asked)) == ("max_turns", 3, 3)
    assert State.from_json(row["state"]).data == {"heard": ["a", "b", "c"]}
    assert row["sampled"][-2:] == [True, True]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (
            "divide",
            f"environment '{ECHO}': env_response() failed: ZeroDivisionError: division by zero",
        ),
        ("exit", f"environment '{ECHO}': its process ended with exit code 3"),
    ],
)
def test_an_environment_that_fails_makes_that_sample_an_error_with_its_tokens(rig, said, error):
    (row,) = drawn(rig("a" + END, said + END))
    assert (row["error"], row["finish"], row["num_turns"]) == (error, "error", 2)
    assert len(row["token_ids"]) == len(row["sampled"]) == len(row["rollout_logprobs"]) == len(row["versions"]) > 12


def test_an_engine_that_fails_in_the_middle_keeps_the_tokens(rig):
    sampler = rig("a" + END, "b" + END)
    sampler.engines.fails_at = 1
    (row,) = drawn(sampler)
    assert row["error"].startswith("engine: RayTaskError")
    assert "no room" in row["error"]
    assert row["num_turns"] == 1


def test_a_sample_waits_for_the_replacement_of_an_engine_that_is_gone(rig, monkeypatch):
    monkeypatch.setattr(sampler_module, "ENGINE_POLL_S", 0.0)
    drawing = rig("two" + END, name="sums")
    drawing.engines.gone = 6
    [row] = drawn(drawing)
    assert (row["finish"], row["error"], row["completion"]) == ("stop", None, "two")


def test_an_abort_ends_the_wait_for_the_replacement_of_an_engine(rig, monkeypatch):
    monkeypatch.setattr(sampler_module, "ENGINE_POLL_S", 0.01)
    drawing = rig("two" + END, name="sums", n=2)
    drawing.engines.gone = 10**9

    async def both():
        waiting = asyncio.create_task(drawing.draw(group_row(7, "talk", Sample(PROMPT)), "0/1/7", 3, None))
        await asyncio.sleep(0.05)
        await drawing.abort(["0/1/7"])
        return await asyncio.wait_for(waiting, 5)

    for row in asyncio.run(both()):
        assert (row["finish"], row["error"], row["token_ids"], row["engine"]) == ("abort", None, [], None)


def test_an_engine_that_stays_away_makes_an_error(rig, monkeypatch):
    monkeypatch.setattr(sampler_module, "ENGINE_POLL_S", 0.01)
    monkeypatch.setattr(sampler_module, "ENGINE_RETURN_S", 0.05)
    drawing = rig("two" + END, name="sums")
    drawing.engines.gone = 10**9
    [row] = drawn(drawing)
    assert row["finish"] == "error"
    assert row["error"].startswith("engine: DeploymentUnavailableError: ")


def test_an_engine_that_dies_late_in_a_long_call_is_waited_for_as_well(rig, monkeypatch):
    monkeypatch.setattr(sampler_module, "ENGINE_POLL_S", 0.0)
    monkeypatch.setattr(sampler_module, "ENGINE_RETURN_S", 0.1)
    drawing = rig("two" + END, name="sums")
    drawing.engines.gone, drawing.engines.delay_s = 1, 0.2
    [row] = drawn(drawing)
    assert (row["finish"], row["error"], row["completion"]) == ("stop", None, "two")


def test_there_is_nothing_to_abort_in_an_engine_that_is_gone(rig):
    drawing = rig("two" + END, name="sums")
    drawing.calls["0/1/7"] = {"0/1/7/1"}
    drawing.engines.gone = 1
    asyncio.run(drawing.abort(["0/1/7"]))
    assert drawing.engines.aborted == []


def test_siblings_are_conversations_of_their_own(rig):
    sampler = rig("a" + END, "bye" + END, n=3)
    rows = drawn(sampler, seed=5)
    assert [row["sample_id"] for row in rows] == [21, 22, 23]
    assert {row["num_turns"] for row in rows} == {2}
    assert {sampling.n for _, _, sampling in sampler.engines.asked} == {1}
    seeds = {sampling.seeds for _, _, sampling in sampler.engines.asked}
    assert seeds == {(sample_seed(5, 7, index, turn),) for index in range(3) for turn in range(2)}


def test_an_abort_between_turns_ends_the_conversation(rig):
    sampler = rig("a" + END, "b" + END, "bye" + END)
    sampler.engines.delay_s = 0.2

    async def both():
        group = group_row(7, "talk", Sample(PROMPT))
        drawing = asyncio.create_task(sampler.draw(group, "0/1/7", 3, None))
        await asyncio.sleep(0.1)
        await sampler.abort(["0/1/7", "0/1/8"])
        return await drawing

    (row,) = asyncio.run(both())
    assert sampler.engines.aborted == ["0/1/7/0/0/1"]
    assert (row["finish"], row["error"], row["num_turns"]) == ("abort", None, 1)
    assert (sampler.calls, sampler.aborted) == ({}, set())


def test_an_abort_while_the_environment_thinks_ends_the_conversation_after_its_answer(rig):
    sampler = rig("a" + END, "b" + END, name="tests.environments.dialogs:AsyncEcho")

    async def both():
        drawing = asyncio.create_task(sampler.draw(group_row(7, "talk", Sample(PROMPT)), "0/1/7", 3, None))
        while not sampler.engines.asked or sampler.calls["0/1/7"]:
            await asyncio.sleep(0.001)
        await sampler.abort(["0/1/7"])
        return await drawing

    (row,) = asyncio.run(both())
    assert (row["finish"], row["num_turns"], len(sampler.engines.asked)) == ("abort", 1, 1)
    assert sampler.engines.aborted == []


def test_a_prompt_that_does_not_fit_is_an_error_with_the_reason(rig):
    (row,) = drawn(rig("a" + END, max_prompt_tokens=3))
    assert "has 4 tokens, max_prompt_tokens is 3" in row["error"]
    assert (row["num_turns"], row["token_ids"], row["finish"]) == (0, [], "error")


def test_with_a_chat_template_the_environment_speaks_through_it(rig):
    sampler = rig("a" + END, "bye" + END, template=TEMPLATE)
    (row,) = drawn(sampler, [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}])
    assert text_of(sampler, sampler.engines.asked[1][1]) == (
        "<bos>system:s<eos><bos>user:hi<eos><bos>assistant:a<eos><bos>user:you said a<eos><bos>assistant:"
    )
    assert row["prefix_breaks"] == 0


def test_a_template_that_rewrites_history_is_counted_and_changes_no_id(rig):
    trimming = TEMPLATE.replace("{{ m.content }}", "{{ m.content | trim }}")
    sampler = rig(" a" + END, "bye" + END, template=trimming)
    (row,) = drawn(sampler)
    assert row["prefix_breaks"] == 1
    assert text_of(sampler, row["token_ids"]).startswith(" a<eos>")
    (scored,) = score([row], {"talk": sampler.partners["talk"]})
    assert dict(scored["sample_metrics"]) == {"heard": 1.0, "prefix_breaks": 1.0}


def test_the_markup_of_a_tool_result_stays_text(rig):
    said = '<tool_call>{"name": "busy", "arguments": {"kind": "<eos><bos>"}}</tool_call>'
    sampler = rig(said + END, "ok" + END, name="tests.environments.dialogs:Toolbox")
    (row,) = drawn(sampler)
    heard = [token for token, mine in zip(row["token_ids"], row["sampled"], strict=True) if not mine]
    assert text_of(sampler, heard) == "<eos><bos>"
    assert sampler.tokenizer.eos_token_id not in heard
    assert row["turns"][1]["tool"] == "busy"


def test_a_single_turn_group_is_one_call_and_needs_no_mask(rig):
    sampler = rig("dcba" + END, name="reverse_text", n=2)
    rows = drawn(sampler, seed=5)
    assert len(sampler.engines.asked) == 1
    assert sampler.engines.asked[0][2].seeds == (sample_seed(5, 7, 0), sample_seed(5, 7, 1))
    assert rows[0]["sampled"] is None
    assert sampled(rows[0]).tolist() == [True] * 5
    assert (rows[0]["num_turns"], rows[0]["finish"], rows[0]["completion"]) == (1, "stop", "dcba")


def test_a_sample_has_every_column_whatever_it_was_drawn_for(rig):
    """Evals score the rows as they are; only those of training pass through Arrow, which fills in what is missing."""
    single = rig("12" + END, name="sums")
    for sampler in (single, rig("a" + END, "bye" + END)):
        (row,) = drawn(sampler)
        assert row.keys() >= {one.name for one in SAMPLE}
    with EnvironmentPool("sums", {}, limit_s=5.0) as pool:
        (scored,) = score(drawn(single), {"talk": pool})
    assert scored["reward"] is not None


def test_each_environment_has_its_own_sampling(model):
    own = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 8}
    entries = [{"name": "sums"}, {"name": "sums", "label": "own"} | own]
    config = tiny_config(environments=entries, temperature=0.7, use_tis=False)
    found = samplings(config, 4)
    assert [(s.n, s.temperature, s.top_p, s.max_tokens) for s in found.values()] == [
        (4, 0.7, 1.0, 16),
        (4, 0.5, 0.9, 8),
    ]
