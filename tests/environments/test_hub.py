"""Data sets by `dataset_name`, read by the real package from folders that are laid out as on the hub."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packages import require

from environments.checks import BadEnvironment
from environments.listing import Listing, listing

pytestmark = pytest.mark.stack

CARD = """---
configs:
- config_name: {name}
  data_files:
  - split: train
    path: {name}/train-*
  - split: test
    path: {name}/test-*
---
"""


@pytest.fixture
def listed(tmp_path, monkeypatch) -> Callable[..., Listing]:
    """What an environment lists in a process of its own, with the package and a cache of the test's own."""
    require("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def make(name: str, **kwargs: Any) -> Listing:
        return listing(name, kwargs, num_samples=9, limit_s=60)

    return make


def parquet(folder: Path, split: str, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}-00000-of-00001.parquet")


def prompts(found: Listing, split: str) -> list[str]:
    return [str(sample.prompt).partition("\n")[0] for sample, _ in found.golden[split]]


def test_the_test_split_of_a_configuration_is_held_out_and_never_trained_on(tmp_path, listed):
    rows = [{"question": f"q{i}", "answer": f"so\n#### {i}"} for i in range(8)]
    parquet(tmp_path / "set" / "main", "train", rows)
    parquet(tmp_path / "set" / "main", "test", rows[:3])
    parquet(tmp_path / "set" / "other", "train", [{"question": "of another configuration", "answer": "#### 1"}])
    (tmp_path / "set" / "README.md").write_text(CARD.format(name="main"))
    found = listed("gsm8k", dataset_name=str(tmp_path / "set"), dataset_config="main")
    assert prompts(found, "eval") == ["q0", "q1", "q2"]
    assert prompts(found, "train") == ["q3", "q4", "q5", "q6", "q7"]
    assert [gold for _, gold in found.golden["eval"]] == [[f"\\boxed{{{i}}}"] for i in range(3)]


def test_without_a_test_split_some_problems_are_drawn_to_be_held_out(tmp_path, listed):
    texts = [{"text": f"Write f, adding {i}.", "test_list": [f"assert f(1) == {1 + i}"]} for i in range(6)]
    parquet(tmp_path / "mbpp" / "data", "train", texts)
    found = listed("code", dataset_name=str(tmp_path / "mbpp"), num_eval=2)
    assert (len(found.ids["eval"]), len(found.ids["train"])) == (2, 4)
    asked = prompts(found, "eval") + prompts(found, "train")
    assert sorted(asked) == [row["text"] for row in texts]


def test_files_that_are_named_after_their_split_are_read(tmp_path, listed):
    (tmp_path / "own").mkdir()
    for split, first in (("train", 0), ("test", 5)):
        rows = [{"problem": f"p{i}", "solution": f"$\\boxed{{{i}}}$"} for i in range(first, first + 2)]
        (tmp_path / "own" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = listed("math", dataset_name=str(tmp_path / "own"))
    assert (prompts(found, "train"), prompts(found, "eval")) == (["p0", "p1"], ["p5", "p6"])


def test_what_cannot_be_read_says_why(tmp_path, listed):
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "test.jsonl").write_text('{"problem": "p", "answer": "1"}')
    with pytest.raises(BadEnvironment, match="has no split 'train', only test"):
        listed("math", dataset_name=str(tmp_path / "held"))
    with pytest.raises(BadEnvironment, match=r"environment 'gsm8k': .*'openai/gsm8k'"):
        listed("gsm8k", dataset_name="openai/gsm8k", dataset_config="main")
