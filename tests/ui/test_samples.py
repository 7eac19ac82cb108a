"""Samples, timeline and logs as the pages ask for them."""

import json

import polars as pl
import pytest
from fastapi.testclient import TestClient

from metrics.schema import samples_table, spans_table
from tests.metrics.builders import START, core, sample, write_run_json
from ui.app import without_pages
from ui.sample import CLIP, as_dict, last_turn, turns
from ui.timeline import bars_of, packed


def test_a_page_of_groups_counts_what_the_filters_leave(dashboard, runs):
    every = dashboard.get("/data/groups", params={"run": runs.plain, "step": 3}).json()
    assert (every["num_groups"], every["num_samples"]) == (3, 12)
    assert sum(every["outcomes"].values()) == 12
    right = dashboard.get("/data/groups", params={"run": runs.plain, "step": 3, "low": 0.5}).json()
    rewards = [sample["reward"] for group in right["groups"] for sample in group["samples"]]
    assert set(rewards) <= {1.0}
    assert right["num_samples"] == len(rewards)
    assert right["rewards"] == every["rewards"]


def test_with_one_environment_chosen_the_others_can_still_be_chosen(dashboard, runs):
    found = dashboard.get("/data/groups", params={"run": runs.mixed, "step": 3, "env": "sums"}).json()
    assert {group["env"] for group in found["groups"]} == {"sums"}
    assert set(found["rewards"]) == {"sums"}
    assert len(found["envs"]) > 1


def test_groups_come_sorted_and_in_pages_from_the_server(dashboard, runs):
    params = {"run": runs.plain, "step": 9, "sort": "reward", "descending": True, "limit": 2}
    first = dashboard.get("/data/groups", params=params).json()
    second = dashboard.get("/data/groups", params=params | {"offset": 2}).json()
    means = [group["reward_mean"] for group in first["groups"] + second["groups"]]
    assert (len(first["groups"]), len(second["groups"])) == (2, 1)
    assert means == sorted(means, key=lambda mean: -1 if mean is None else mean, reverse=True)


def test_samples_can_be_coloured_by_one_of_their_metrics(dashboard, runs):
    page = dashboard.get("/data/groups", params={"run": runs.plain, "step": 2, "by": "tries"}).json()
    values = {sample["value"] for group in page["groups"] for sample in group["samples"]}
    assert page["metrics"] == ["carry", "correct", "tries"]
    assert values <= {1.0, 2.0, 3.0}


def test_a_text_is_searched_as_text_not_as_a_pattern(dashboard, runs):
    params = {"run": runs.plain, "step": 3}
    some = dashboard.get("/data/groups", params=params | {"search": "what is"}).json()
    none = dashboard.get("/data/groups", params=params | {"search": "What.*is"}).json()
    assert (some["num_samples"], none["num_samples"]) == (12, 0)


def test_one_sample_has_all_its_parts(dashboard, runs):
    page = dashboard.get("/data/groups", params={"run": runs.plain, "step": 4, "outcome": "trained"}).json()
    chosen = page["groups"][0]["samples"][0]["sample_id"]
    sample = dashboard.get("/data/sample", params={"run": runs.plain, "step": 4, "sample_id": chosen}).json()
    assert sample["sample_metrics"]["correct"] == sample["reward"]
    assert sample["prompt"]["text"].startswith("What is ")
    assert len(sample["token_ids"]) == len(sample["trained_mask"]) == len(sample["rollout_logprobs"])
    assert len(sample["token_ids"]) == sample["completion_tokens"] == sample["num_token_ids"]
    assert sample["golden_answers"]["answer"].isdigit()
    assert sample["pieces"] is None


def test_a_conversation_comes_turn_by_turn(root):
    said = [
        ("assistant", "<b>call</b>", None, False),
        ("tool", "x" * 30_000, "add", True),
        ("assistant", "7", None, False),
    ]
    places = {"first_token": 0, "num_tokens": 4}
    spoken = [{"role": r, "text": text, "tool": tool, "is_error": bad, **places} for r, text, tool, bad in said]
    directory = root / "talk-20260301-120000-0001"
    writer = core(directory)
    writer.log_samples("batcher/1", 1, samples_table([sample(turns=spoken), sample(sample_id=1)]))
    writer.log_step("trainer/1", 1, 1, {}, spans_table([]), 2)
    writer.close("finished")
    write_run_json(directory, "talk", "finished", START, 1, 1, 1, ("sums",))
    with TestClient(without_pages(root, None), base_url="http://127.0.0.1") as client:
        found = [
            client.get("/data/sample", params={"run": directory.name, "step": 1, "sample_id": i}).json() for i in (0, 1)
        ]
    assert [(turn["role"], turn["tool"], turn["is_error"]) for turn in found[0]["turns"]] == [
        ("assistant", None, False),
        ("tool", "add", True),
        ("assistant", None, False),
    ]
    assert [len(turn["text"]) for turn in found[0]["turns"]] == [11, CLIP, 1]
    assert found[1]["turns"] == []


def test_an_evaluated_completion_is_found_among_evaluations(dashboard, runs):
    page = dashboard.get("/data/groups", params={"run": runs.plain, "step": 5, "outcome": "eval"}).json()
    assert page["outcomes"].keys() == {"eval"}
    chosen = page["groups"][0]["samples"][0]["sample_id"]
    params = {"run": runs.plain, "step": 5, "sample_id": chosen, "outcome": "eval"}
    assert dashboard.get("/data/sample", params=params).json()["outcome"] == "eval"


def test_the_rest_of_a_text_comes_in_stretches(dashboard, runs):
    page = dashboard.get("/data/groups", params={"run": runs.plain, "step": 4}).json()
    chosen = page["groups"][0]["samples"][0]["sample_id"]
    params = {"run": runs.plain, "step": 4, "sample_id": chosen, "field": "prompt"}
    whole = dashboard.get("/data/text", params=params).json()["text"]
    part = dashboard.get("/data/text", params=params | {"offset": 5, "limit": 2}).json()
    assert part == {"text": whole[5:7], "offset": 5, "length": len(whole)}
    assert dashboard.get("/data/text", params=params | {"field": "token_ids"}).status_code == 400


@pytest.mark.parametrize("params", [{"sort": "x; drop"}, {"limit": 100_000}, {"offset": -1}, {"step": "x"}])
def test_a_question_that_makes_no_sense_is_refused(dashboard, runs, params):
    assert dashboard.get("/data/groups", params={"run": runs.plain, "step": 1} | params).status_code in (400, 422)


def test_a_map_column_reads_the_same_however_it_comes_back():
    assert as_dict({"a": 1.0, "b": None}) == as_dict([{"key": "a", "value": 1.0}]) == {"a": 1.0}
    assert as_dict(None) == {}


def test_a_chat_prompt_becomes_turns_and_a_text_that_only_looks_like_one_does_not():
    chat = '[{"role": "system", "content": "hi"}, {"role": "user", "content": "<b>2+2</b>"}]'
    assert turns(chat) == [{"role": "system", "content": "hi"}, {"role": "user", "content": "<b>2+2</b>"}]
    assert last_turn(chat) == "<b>2+2</b>"
    assert turns("[{" * 100_000) is None
    assert turns('[{"a": 1}]') is None


def test_the_timeline_has_the_spans_and_the_samples_of_its_steps(dashboard, runs):
    found = dashboard.get("/data/timeline", params={"run": runs.plain, "from": 3, "to": 5}).json()
    assert [step["step"] for step in found["steps"]] == [3, 4, 5]
    lengths = {len(found[name]) for name in ("lane", "kind", "start", "end", "step", "text")}
    assert len(lengths) == 1
    by_kind = {found["kinds"][kind] for kind in found["kind"]}
    assert by_kind >= {"generate", "reward", "forward", "backward", "optimizer", "waiting_for_data"}
    assert all(end >= start for start, end in zip(found["start"], found["end"], strict=True))


def test_the_timeline_shows_the_turns_of_a_conversation_and_the_gaps_in_which_its_environment_answers():
    one = {"step": 1, "sample_id": 0, "env": "talk", "completion_tokens": 4, "outcome": "trained"}
    one |= {"generate_start_s": 2.0, "generate_end_s": 11.0, "reward_start_s": None, "reward_end_s": None}
    spans = pl.DataFrame(schema={"kind": pl.String, "start_s": pl.Float64})
    found = bars_of(spans, [one | {"turn_times_s": [2.0, 4.0, 9.0, 11.0]}, one | {"turn_times_s": None}])
    assert (found["lane"], found["start"], found["end"]) == ([0, 0, 1], [2.0, 9.0, 2.0], [4.0, 11.0, 11.0])


def test_the_forward_time_of_the_timeline_is_the_metric_of_the_step(dashboard, runs):
    found = dashboard.get("/data/timeline", params={"run": runs.plain, "from": 4, "to": 4}).json()
    forward = found["kinds"].index("forward")
    bars = zip(found["kind"], found["start"], found["end"], strict=True)
    total = sum(end - start for kind, start, end in bars if kind == forward)
    series = dashboard.get("/data/series", params={"run": runs.plain, "keys": "timing_forward_total"}).json()
    at = series["steps"].index(4)
    assert total == pytest.approx(series["columns"]["timing_forward_total"][at], abs=1e-4)


def test_rows_of_one_slot_never_overlap():
    rows = [{"a": 0.0, "b": 2.0}, {"a": 1.0, "b": 3.0}, {"a": 2.0, "b": 4.0}, {"a": 2.5, "b": 2.6}]
    assert [(slot, row["a"]) for slot, row in packed(rows, "a", "b")] == [(0, 0.0), (0, 2.0), (1, 1.0), (2, 2.5)]


def test_a_timeline_of_too_many_steps_is_refused(dashboard, runs):
    assert dashboard.get("/data/timeline", params={"run": runs.plain, "from": 1, "to": 500}).status_code == 400


def test_samples_as_a_file_are_json_and_no_markup(root):
    directory = root / "file-20260301-120000-0001"
    writer = core(directory)
    text = "</script><img src=x onerror=alert(1)>\u2028"
    writer.log_samples("batcher/1", 1, samples_table([sample(completion=text, golden_answers={"</b>": text})]))
    writer.log_step("trainer/1", 1, 1, {}, spans_table([]), 1)
    writer.close("finished")
    write_run_json(directory, "file", "finished", START, 1, 1, 1, ("sums",))
    with TestClient(without_pages(root, None), base_url="http://127.0.0.1") as client:
        answer = client.get("/data/samples_file", params={"run": directory.name, "step": 1})
    assert "</" not in answer.text
    assert answer.headers["content-disposition"] == 'attachment; filename="samples-step-1.jsonl"'
    (row,) = [json.loads(line) for line in answer.text.split("\n")]
    assert (row["completion"], row["golden_answers"]) == (text, {"</b>": text})


def test_what_selection_throws_away_is_counted(dashboard, runs):
    rows = dashboard.get("/data/bias", params={"run": runs.mixed}).json()["rows"]
    assert {row["by"] for row in rows} == {"all", "environment", "length"}
    assert {row["bucket"] for row in rows if row["by"] == "environment"} <= {"sums", "countdown", "letters"}
