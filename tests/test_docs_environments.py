"""The examples of docs/environments.md are executed as they stand."""

import re
from pathlib import Path

import pytest

from app.config import from_dict
from app.config_text import parse
from environments.__main__ import main
from environments.base import Sample
from environments.check import Wish, check
from environments.loader import available, load
from environments.turn import at_once, replayed

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def written(tmp_path):
    """The example of that name as a file."""

    def write(name: str) -> str:
        [code] = [block for block in blocks("python") if block.startswith(f'"""{name}:')]
        file = tmp_path / f"{name}_of_the_page.py"
        file.write_text(code)
        return str(file)

    return write


@pytest.mark.parametrize("name", ["number", "prices"])
def test_an_example_passes_the_check(written, name):
    found = check(Wish(written(name), num_samples=10))
    assert [finding for finding in found if finding.level == "fail"] == []
    assert {finding.what: finding.level for finding in found}["gold answers"] == "ok"


def play(environment, answer, *said):
    state = at_once(replayed(environment, Sample("p", answer, {"items": []}), said))
    return state, environment.compute_reward(state)


def test_the_conversation_of_the_page_goes_as_it_says(written):
    number = load(written("number"), {"highest": 50})
    state, result = play(number, 30, "25", "well, 40?", "none", "30")
    replies = [turn["content"] for turn in state.turns if turn["role"] == "user"]
    assert replies == [
        "It is higher than 25. Again: ",
        "It is lower than 40. Again: ",
        "That is no number. Again: ",
    ]
    assert result.total_reward == pytest.approx(0.7)
    assert result.sample_metrics == {"found": 1.0, "guesses": 4.0, "distance": 0}
    assert play(number, 30, "29")[1].total_reward == 0.0
    assert play(number, 30, "none")[1].sample_metrics["distance"] is None


def test_the_tool_of_the_page_is_called_as_it_says(written):
    prices = load(written("prices"), {})
    system = prices.samples("train")[0].prompt[0]["content"]
    assert '"description": "The price of one item, in coins."' in system
    call = '<tool_call>{"name": "price", "arguments": {"item": "%s"}}</tool_call>'
    state, result = play(prices, 12, call % "cheese" + call % "gold", "It costs 12")
    assert [turn["content"] for turn in state.turns[1:3]] == ["12", "error: KeyError: 'gold'"]
    assert result.total_reward == 1.0
    metrics = prices.conversation_metrics(state)
    assert (metrics["price_calls"], metrics["tool_success_rate"]) == (2.0, 0.5)


@pytest.mark.parametrize(("name", "most"), [("number", 60), ("prices", 50)])
def test_an_example_is_short(name, most):
    [code] = [block for block in blocks("python") if block.startswith(f'"""{name}:')]
    assert len([line for line in code.splitlines() if line.strip()]) <= most


def test_the_evals_of_the_page_are_valid():
    [text] = blocks("yaml")
    plain = {
        "name": "page",
        "model": "embedded",
        "steps": 1,
        "environments": [{"name": "sums", "kwargs": {"terms": 4}}],
    }
    config = from_dict(plain | parse(text)[0])
    assert [(entry.label, entry.completions, entry.kwargs) for entry in config.evals] == [
        ("sums", 4, {"terms": 4}),
        ("greedy", 1, {"terms": 4}),
        ("countdown", 1, {"num_numbers": 3}),
    ]


def test_what_ships_is_listed(capsys):
    listed = re.findall(r"^\| `(\w+)` \| .* \| `configs/", PAGE, re.MULTILINE)
    assert sorted(listed) == available()
    assert main(["list"]) == 0
    assert capsys.readouterr().out.split() == available()
