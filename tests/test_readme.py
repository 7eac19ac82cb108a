"""What the pages show is executed, or held against what is there."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app import config_page
from app.config import from_dict
from app.config_text import parse

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def vowels(tmp_path, monkeypatch):
    """The environment of the README, as a module of its own, with the settings of the README's configuration."""
    from environments.loader import load

    [code] = [block for block in blocks("python") if "SingleTurnEnvironment" in block]
    (tmp_path / "vowels_of_the_readme.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return load("vowels_of_the_readme:Vowels", {"length": 6})


def test_the_environment_of_the_readme_works(vowels):
    train, held_out = vowels.samples("train"), vowels.samples("eval")
    assert 450 < len(train) <= 500
    assert 450 < len(held_out) <= 500
    assert not {sample.prompt for sample in train} & {sample.prompt for sample in held_out}
    assert list(train) == list(vowels.samples("train"))
    for sample in train[:50]:
        right = vowels.compute_reward(f"{sample.answer}<eos>", sample, eos_token="<eos>")
        wrong = vowels.compute_reward(f"{sample.answer + 1}", sample)
        prose = vowels.compute_reward("a few", sample)
        assert (right.total_reward, wrong.total_reward, prose.total_reward) == (1.0, 0.5, 0.0)
        assert (wrong.sample_metrics, prose.sample_metrics) == ({"has_number": 1.0}, {"has_number": 0.0})


def test_the_environment_of_the_readme_passes_its_check(vowels, capsys):
    from environments.__main__ import main

    name = "vowels_of_the_readme:Vowels"
    assert main(["check", name, "--kwargs", '{"length": 6}']) == 0, capsys.readouterr().out


def test_the_environment_of_the_readme_is_a_map_function(vowels):
    import pyarrow as pa

    sample = vowels.samples("eval")[0]
    rows = {
        "prompt": [sample.prompt] * 2,
        "completion": [str(sample.answer), "none"],
        "answer": [json.dumps(sample.answer)] * 2,
        "metadata": ["{}"] * 2,
    }
    assert vowels.map_fn()(pa.table(rows))["reward"].to_pylist() == [1.0, 0.0]


def test_the_environment_of_the_readme_is_short():
    [code] = [block for block in blocks("python") if "SingleTurnEnvironment" in block]
    assert len([line for line in code.splitlines() if line.strip()]) <= 24


def test_the_configuration_of_the_readme_is_valid():
    [text] = blocks("yaml")
    data, _ = parse(text)
    config = from_dict(data)
    assert (config.name, config.steps, config.environments[0].kwargs) == ("vowels", 100, {"length": 6})


def test_the_job_api_of_the_readme_exists():
    from app.jobs import Jobs, Run

    [code] = [block for block in blocks("python") if "app.jobs" in block]
    for owner, name in re.findall(r"\b(jobs|run)\.(\w+)\(", code):
        assert callable(getattr(Jobs if owner == "jobs" else Run, name)), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page):
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    named = re.findall(r"\b(?:app|configs|docs|requirements|tests|ui)/[\w/]+\.(?:py|yaml|md|lock|txt|sh)\b", text)
    missing = [name for name in links if not (page.parent / name).exists()]
    missing += [name for name in named if not (ROOT / name).exists()]
    assert missing == []


def test_make_targets_that_the_pages_name_exist():
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:^|`)make ([a-z0-9]+)", page.read_text(), re.MULTILINE)}
    assert named <= targets


def test_the_configuration_page_is_current():
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == config_page.page(), "run `make docs`"


def test_modules_that_the_pages_run_exist():
    named = {
        name
        for page in PAGES
        for name in re.findall(r"python -m ((?:app|environments|ui|metrics)[.\w]*)", page.read_text())
    }
    for name in sorted(named):
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0, name


def test_the_lock_is_exact_and_names_no_place():
    lines = (ROOT / "requirements" / "cpu.lock").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []
    assert len(pins) == len({line.split("==")[0].lower() for line in pins})


def test_the_page_of_algorithms_names_every_algorithm_and_no_key_that_is_not_there():
    from typing import get_args

    from app.config import Algorithm, Config
    from app.config_errors import _all_keys

    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8").split("## Beside TRL")[0]
    named = set(re.findall(r"`([a-z][a-z_0-9]*)(?:: [a-z_0-9]+)?`", page))
    keys = {part for key in _all_keys(Config) for part in key.split(".")}
    values = {value for field in Config.model_fields.values() for value in get_args(field.annotation)}
    assert set(get_args(Algorithm)) <= named
    symbols = {"lp", "lp_beh", "lp_prox", "sg"}
    known = keys | values | symbols | {"filtered", "reward", "reward_before_overlong_penalty"}
    assert named - known == set()
    assert {"use_tis", "stragglers", "weight_update", "overlong_penalty", "aggregation"} <= named
