import importlib
import sys

import pytest

from environments import loader
from environments.checks import BadEnvironment
from environments.function import FunctionEnvironment
from environments.loader import available, load


def refused(name, kwargs=None):
    with pytest.raises(BadEnvironment) as caught:
        load(name, kwargs or {})
    return str(caught.value)


def test_the_folder_is_the_list():
    assert available() == ["countdown", "reverse_text", "sums"]


def test_an_environment_knows_its_name_and_settings():
    environment = load("hostile:Settings", {"size": 2})
    assert (environment.name, environment.size, environment.level) == ("hostile:Settings", 2, "easy")


def test_an_unknown_name_lists_the_known_ones():
    assert refused("countdwn").startswith(
        "environment 'countdwn' is unknown; available: countdown, reverse_text, sums; did you mean 'countdown'?"
    )


@pytest.mark.parametrize("name", ["", "../sums", "base", "worker", "a/b", "x\n", "__init__", "su ms"])
def test_only_environment_files_are_environments(name):
    assert "is unknown; available:" in refused(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:Thing", "there is no module 'nowhere' on the path"),
        ("hostile.deeper:Thing", "there is no module 'hostile.deeper' on the path"),
        ("hostile:Thing", "module 'hostile' has no 'Thing' (str)"),
        ("hostile:VALUES", "must name an environment class or a function, got {"),
        ("../x:Thing", "'../x' is not the name of a module"),
        ("hostile:WrongSignature", "compute_reward must take (completion, sample, eos_token)"),
        ("hostile:WrongRange", "metrics_ranges: 'a': 'min' must be below 'max', got 1.0 and 1.0"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(name, message):
    assert message in refused(name)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        (
            "hostile:Settings",
            {"size": 1, "levle": 2},
            "environment 'hostile:Settings' has no setting 'levle' (str); accepted: size, level; did you mean 'level'?",
        ),
        ("hostile:Settings", {}, "environment 'hostile:Settings' needs the settings size"),
        ("hostile:Hostile", {"a": 1}, "has no setting 'a' (str); accepted: none"),
        ("hostile:lengths", {"a": 1}, "is a bare function and takes no settings, got ['a']"),
        (
            "hostile:Settings",
            {"size": 0},
            "cannot be built with {'size': 0}: ValueError: size must be at least 1, got 0",
        ),
    ],
)
def test_settings_are_checked_by_name(name, kwargs, message):
    assert message in refused(name, kwargs)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module and give back its name."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def write(text):
        name = f"made_{tmp_path.name.replace('-', '_')}_{len(made)}"
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        made.append(name)
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)


def test_a_missing_package_is_named(module):
    name = module("import no_such_package\n")
    assert "needs the package 'no_such_package', which is not installed" in refused(f"{name}:Thing")


def test_a_module_that_fails_to_import_says_why(module):
    assert "cannot be imported: ZeroDivisionError" in refused(f"{module('1 / 0')}:Thing")
    assert "cannot be imported: SyntaxError" in refused(f"{module('def')}:Thing")


def test_a_bare_function_may_bring_samples_and_ranges(module):
    name = module(
        "from environments.base import Sample\n"
        "metrics_ranges = {'a': {'min': 0, 'invert': True}}\n"
        "def samples(split): return [Sample(split)]\n"
        "def reward(batch): return [1.0] * len(batch['prompt'])\n"
    )
    environment = load(f"{name}:reward", {})
    assert isinstance(environment, FunctionEnvironment)
    assert environment.samples("eval")[0].prompt == "eval"
    assert environment.metrics_ranges == {"a": {"min": 0.0, "invert": True}}


def test_a_bare_function_without_samples_says_so():
    with pytest.raises(ValueError, match=r"'hostile:lengths' is a bare function without samples to train on"):
        load("hostile:lengths", {}).samples("train")


def test_a_new_file_in_the_folder_is_found(tmp_path, monkeypatch):
    import environments

    monkeypatch.setattr(loader, "__file__", str(tmp_path / "loader.py"))
    monkeypatch.setattr(environments, "__path__", [*environments.__path__, str(tmp_path)])
    (tmp_path / "shout.py").write_text("def reward(batch): return [float(c.isupper()) for c in batch['completion']]")
    (tmp_path / "neither.py").write_text("x = 1")
    (tmp_path / "with-dash.py").write_text("def reward(batch): return [0.0]")
    assert available() == ["neither", "shout"]
    assert load("shout", {}).name == "shout"
    assert "must define one environment class or one function reward(batch), got neither" in refused("neither")
    for name in available():
        sys.modules.pop(f"environments.{name}")
