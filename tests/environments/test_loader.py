import importlib
import sys

import pytest

from environments import loader
from environments.checks import BadEnvironment
from environments.function import FunctionEnvironment
from environments.loader import available, load

NAMES = ["calculator", "code", "countdown", "gsm8k", "math", "reasoning_gym", "reverse_text", "sums", "wordle"]


def refused(name, kwargs=None):
    with pytest.raises(BadEnvironment) as caught:
        load(name, kwargs or {})
    return str(caught.value)


def test_the_folder_is_the_list():
    assert available() == NAMES


def test_an_environment_knows_its_name_and_settings():
    environment = load("hostile:Settings", {"size": 2})
    assert (environment.name, environment.size, environment.level) == ("hostile:Settings", 2, "easy")


def test_an_unknown_name_lists_the_known_ones():
    assert refused("countdwn").startswith(
        f"environment 'countdwn' is unknown; available: {', '.join(NAMES)}; did you mean 'countdown'?"
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
        (
            "hostile:Settings",
            {"size": "1"},
            "environment 'hostile:Settings': setting 'size' must be int, got '1' (str)",
        ),
        ("sums", {"terms": 5.0}, "environment 'sums': setting 'terms' must be int, got 5.0 (float)"),
        ("sums", {"terms": True}, "environment 'sums': setting 'terms' must be int, got True (bool)"),
        ("sums", {"sure": None}, "environment 'sums': setting 'sure' must be float, got None (NoneType)"),
        ("math", {"path": 5}, "environment 'math': setting 'path' must be str | None, got 5 (int)"),
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
    assert "needs the package 'no_such_package', which is not installed; install it" in refused(f"{name}:Thing")


def test_a_missing_package_of_an_extra_says_which_extra(module, monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)  # as if it were not installed
    name = module("import math_verify\n")
    remedy = 'which is not installed; install it with: pip install "telescope-on-ray[math]"'
    assert f"needs the package 'math_verify', {remedy}" in refused(f"{name}:Thing")


@pytest.mark.parametrize("name", ["math", "gsm8k"])
def test_boxed_answers_without_their_checker_are_refused_before_the_first_of_them(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    assert (
        "needs the package 'math_verify', which is not installed; install it with: pip install \"telescope"
        in refused(name)
    )


def test_a_package_that_only_a_setting_needs_is_named_when_it_is_set(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    environment = load("gsm8k", {"dataset_name": "some/words"})
    with pytest.raises(BadEnvironment, match=r'needs the package .datasets.*"telescope-on-ray\[hub\]"'):
        environment.samples("train")


def test_a_module_that_fails_to_import_says_why(module):
    assert "cannot be imported: ZeroDivisionError" in refused(f"{module('1 / 0')}:Thing")
    assert "cannot be imported: SyntaxError" in refused(f"{module('def')}:Thing")


SHOUT = "def reward(batch): return [float(c.isupper()) for c in batch['completion']]\n"
CLASSES = """
from environments.base import Sample, SingleTurnEnvironment
class One(SingleTurnEnvironment):
    def __init__(self, size: int = 1): self.size = size
    def samples(self, split): return [Sample(split)]
    def compute_reward(self, completion, sample, eos_token=""): return 1.0
"""


def test_the_path_of_a_file_is_a_name(tmp_path, monkeypatch):
    (tmp_path / "my-own.py").write_text(CLASSES)
    monkeypatch.chdir(tmp_path)
    for name in ("my-own.py", "./my-own.py", str(tmp_path / "my-own.py"), "my-own.py:One"):
        environment = load(name, {"size": 3})
        assert (environment.name, environment.size) == (name, 3)
    assert "has no setting 'sise' (str); accepted: size" in refused("my-own.py", {"sise": 1})
    assert "has no 'Two' (str)" in refused("my-own.py:Two")


def test_a_file_that_is_not_there_or_fails_says_so(tmp_path):
    assert "there is no file" in refused("nowhere/thing.py")
    (tmp_path / "bad.py").write_text("1 / 0")
    for _ in range(2):  # what failed is not kept as if it had been imported
        assert "cannot be imported: ZeroDivisionError" in refused(str(tmp_path / "bad.py"))


def test_a_path_is_never_searched_for(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    assert "there is no file" in refused("own.py")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with entry points, as pip would leave it."""
    (tmp_path / "acme_environments.py").write_text(CLASSES)
    about = tmp_path / "acme_environments-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-environments\nVersion: 1.0\n")
    points = ("acme = acme_environments:One", "acme_all = acme_environments", "sums = acme_environments:One")
    (about / "entry_points.txt").write_text("\n".join(["[telescope.environments]", *points, "bad-name = nowhere", ""]))
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("acme_environments", None)


def test_an_installed_package_offers_environments(installed):
    assert {"acme", "acme_all", "sums"} <= set(available())
    assert "bad-name" not in available()
    assert load("acme", {"size": 2}).size == load("acme_all", {"size": 2}).size == 2
    assert type(load("sums", {})).__name__ == "Sums", "a file of our own comes before a package's"


def test_a_folder_is_an_environment(tmp_path, monkeypatch):
    import environments

    monkeypatch.setattr(loader, "__file__", str(tmp_path / "loader.py"))
    monkeypatch.setattr(environments, "__path__", [*environments.__path__, str(tmp_path)])
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "__init__.py").write_text("from environments.large.parts import One\n")
    (tmp_path / "large" / "parts.py").write_text(CLASSES)
    (tmp_path / "data").mkdir()
    (tmp_path / "with-dash.py").write_text(SHOUT)
    assert available() == ["large"]
    assert load("large", {"size": 4}).size == 4
    for name in ("environments.large", "environments.large.parts"):
        sys.modules.pop(name)


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
