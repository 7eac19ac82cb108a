"""app.config: what is accepted, what is refused, and what the reader is told."""

import math
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.config import RESUMABLE, Config, ConfigError, Section, check_name, dump, from_dict, load, refuse_files
from app.config_text import MAX_DEPTH, parse, write

# The same cases every time, and a busy machine is no failure.
PROPERTY = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

ROOT = Path(__file__).parents[2]
SMALLEST = "name: demo\nmodel: embedded\nsteps: 10\nenvironments:\n  - name: sums\n"
ALGORITHMS = ["grpo", "rloo", "reinforce_pp", "dr_grpo", "cispo", "gspo", "sapo"]


def config(*overrides: str, **changes) -> Config:
    """A small valid config; each test names only what it is about."""
    plain = {"name": "demo", "model": "embedded", "steps": 10, "environments": [{"name": "sums"}]}
    return from_dict(plain | changes, overrides)


def refusal(*overrides: str, **changes) -> list[str]:
    """The lines of the error, without the source."""
    with pytest.raises(ConfigError) as caught:
        config(*overrides, **changes)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


@pytest.fixture
def file(tmp_path):
    def write_file(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return path

    return write_file


def file_refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    text = str(caught.value)
    assert text.startswith(f"{path}:\n  ")
    return text.split("\n  ", 1)[1]


# Files.


def test_the_smallest_file_loads_and_the_rest_is_defaults(file):
    loaded = load(file(SMALLEST))
    assert (loaded.name, loaded.steps, loaded.group_size, loaded.algorithm) == ("demo", 10, 8, "grpo")
    assert (loaded.environments[0].label, loaded.environments[0].weight) == ("sums", 1.0)


# configs/ also holds files for Ray Serve and for evaluations.
RUNS = [path for path in sorted((ROOT / "configs").glob("*.y*ml")) if "\nenvironments:" in path.read_text()]


def test_every_run_in_configs_loads():
    assert [path.name for path in RUNS if load(path).steps < 1] == []
    assert {"demo.yaml", "gpu.yaml", "smollm2.yaml"} <= {path.name for path in RUNS}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SMALLEST + "seed: 1\nseed: 2\n", 'line 7, column 1: found duplicate key "seed"; keep one of the two'),
        ("x: !!python/object/apply:os.system ['touch pwned']", "line 1: a tag (!...) is refused"),
        ("x: !!float 1", "line 1: a tag (!...) is refused"),
        ("x: &a [1]\ny: 2", "line 1: an anchor (&...) is refused"),
        ("x: *a", "line 1: an alias (*...) is refused"),
        ("%YAML 1.1\n---\nx: yes", "line 1: a directive (%...) is refused"),
        ("a: 1\n---\nb: 2", "line 2, column 1: but found another document"),
        ("[" * 5000, f"line 1: nested more than {MAX_DEPTH} levels deep"),
        ("a: [1", "not valid YAML: line 1, column 6: expected ',' or ']'"),
        ("a:\n\tb: 1", "not valid YAML: line 2, column 1: found character '\\t' that cannot start any token"),
        ("a: \x00", "not valid YAML: unacceptable character #x0000"),
        ("", "got null, wanted a mapping of keys to values, as in 'steps: 100'"),
        ("- 1", "got a list of 1, wanted a mapping"),
        ("applications: []", "this is a Ray Serve file, not a run's config"),
        ("a: " + "x" * 1_000_000, "characters of YAML, wanted at most 1000000"),
    ],
)
def test_files_that_are_not_plain_yaml_are_refused_with_the_place(file, text, words):
    assert words in file_refusal(file(text))


def test_a_tag_never_runs_anything(tmp_path, monkeypatch, file):
    monkeypatch.chdir(tmp_path)
    file_refusal(file(SMALLEST + "x: !!python/object/apply:os.system ['touch pwned']\n"))
    assert not (tmp_path / "pwned").exists()


def test_a_missing_file_names_the_nearest_one(tmp_path):
    (tmp_path / "demo.yaml").write_text(SMALLEST)
    assert file_refusal(tmp_path / "demos.yaml") == f"no such file; did you mean '{tmp_path / 'demo.yaml'}'?"
    assert file_refusal(tmp_path / "x.yaml") == f"no such file; {tmp_path} has demo.yaml"
    assert "there is no folder" in file_refusal(tmp_path / "none" / "demo.yaml")


def test_a_folder_and_bytes_are_refused(tmp_path):
    assert "Is a directory" in file_refusal(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    assert "not UTF-8 text (byte 9)" in file_refusal(tmp_path / "latin.yaml")


def test_numbers_are_those_of_yaml_1_2(file):
    loaded = load(file(SMALLEST + "learning_rate: 1e-6\nseed: 010\ntis_cap: 4\n"))
    assert (loaded.learning_rate, loaded.seed, loaded.tis_cap) == (1e-6, 10, 4.0)
    assert type(loaded.tis_cap) is float


# Keys and values.


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("group_sise", "did you mean 'group_size'?"),
        ("group-size", "did you mean 'group_size'?"),
        ("Group_Size", "did you mean 'group_size'?"),
        ("kv_cache_mb", "did you mean 'engine.kv_cache_mb'?"),
        ("optimizer", "the nearest known key is "),
        ("x" * 500, "unknown key"),
        ("a\x1b[31mb", "unknown key"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(key, words):
    (line,) = refusal(**{key: 1})
    assert words in line
    assert line.isprintable()
    assert len(line) < 250


def test_unknown_keys_in_sections_are_named_with_their_path():
    assert refusal(engine={"kv_cache": 1}) == ["engine.kv_cache: unknown key; did you mean 'kv_cache_mb'?"]
    assert refusal(environments=[{"name": "sums", "wieght": 1}]) == [
        "environments.0.wieght: unknown key; did you mean 'weight'?"
    ]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("learning_rate", "1e-6", "got '1e-6', wanted a number; remove the quotes"),
        ("learning_rate", True, "got true, wanted a number"),
        ("learning_rate", math.nan, "got .nan, wanted a finite number"),
        ("learning_rate", math.inf, "got .inf, wanted a finite number"),
        ("learning_rate", "nan", "got 'nan', wanted a finite number"),
        ("learning_rate", "-inf", "got '-inf', wanted a finite number"),
        ("learning_rate", 1e300, "got 1e+300, wanted at most 1"),
        ("prompts_per_step", 100_000_000, "got 100000000, wanted at most 1000000"),
        ("group_size", "nan", "got 'nan', wanted a whole number"),
        ("learning_rate", -1, "got -1, wanted a number above 0"),
        ("learning_rate", None, "got null, wanted a number"),
        ("group_size", 8.0, "got 8.0, wanted a whole number; write 8"),
        ("group_size", 8.5, "got 8.5, wanted a whole number"),
        ("group_size", True, "got true, wanted a whole number"),
        ("group_size", "8", "got '8', wanted a whole number; remove the quotes"),
        ("group_size", 0, "got 0, wanted at least 1"),
        ("group_size", 2**31, "got 2147483648, wanted at most 2147483647"),
        ("steps", [1], "got a list of 1, wanted a whole number"),
        ("use_tis", "yes", "got 'yes', wanted true or false; YAML 1.2 has no yes, no, on or off"),
        ("use_tis", 1, "got 1, wanted true or false"),
        ("use_gpu", 1, "got 1; wanted auto, true or false"),
        ("use_gpu", "cuda", "got 'cuda', wanted one of auto, true, false"),
        (
            "algorithm",
            "grop",
            "wanted one of grpo, rloo, reinforce_pp, dr_grpo, cispo, gspo, sapo; did you mean 'grpo'?",
        ),
        ("model", "", "got '', wanted text"),
        ("model", "a\nb", "got 'a\\nb'; wanted printable characters only"),
        ("model", date(2001, 1, 1), "wanted text; put it in quotes"),
        ("temperature", 0, "got 0, wanted a number above 0"),
        ("top_p", 1.5, "got 1.5, wanted at most 1"),
        ("adam_beta1", 1.0, "got 1.0, wanted a number below 1"),
        ("engine", [], "got a list of 0, wanted a section of keys"),
        ("engine", None, "got null, wanted a section of keys"),
        ("wandb", "on", "got 'on', wanted a section of keys"),
        ("environments", [], "got a list of 0, wanted at least 1 entry"),
        ("environments", {"name": "sums"}, "got a section with name, wanted a list"),
        ("backend", "trainer.py", "wanted 'package.module:Class'"),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_value(key, value, words):
    (line,) = refusal(**{key: value})
    assert line.startswith(f"{key}: ")
    assert words in line


def test_a_missing_key_says_what_it_is_for():
    with pytest.raises(ConfigError) as caught:
        from_dict({"name": "demo"}, source="request")
    assert str(caught.value).splitlines() == [
        "request:",
        "  model: missing; 'embedded', 'smollm2', a folder in Hugging Face format, or a model's name on the hub.",
        "  steps: missing; Trainer steps of the run.",
        "  environments: missing; What is learnt, and in which proportion.",
    ]


def test_several_errors_are_all_listed_with_their_lines(file):
    text = SMALLEST + "group_sise: 4\nlearning_rate: '1e-6'\nengine:\n  max_num_seqs: 0\n"
    assert file_refusal(file(text)).split("\n  ") == [
        "learning_rate (line 7): got '1e-6', wanted a number; remove the quotes",
        "engine.max_num_seqs (line 9): got 0, wanted at least 1",
        "group_sise (line 6): unknown key; did you mean 'group_size'?",
    ]


def test_an_error_has_its_problems_one_by_one_and_survives_pickling():
    with pytest.raises(ConfigError) as caught:
        config(steps=0, seed=-1)
    again = pickle.loads(pickle.dumps(caught.value))
    assert [problem.key for problem in again.problems] == ["seed", "steps"]
    assert str(again) == str(caught.value)


def test_a_config_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        config().steps = 3


def sections(of: type[Section] = Section) -> Iterator[type[Section]]:
    for section in of.__subclasses__():
        yield section
        yield from sections(section)


def test_every_field_has_a_sentence():
    fields = [(section, name) for section in sections() for name in section.model_fields]
    silent = [(section, name) for section, name in fields if not section.model_fields[name].description]
    assert silent == []
    assert len(fields) > 80


# Names.


@pytest.mark.parametrize("name", ["a", "demo", "ok..name", "nightly-3", "A_b.c-9", "console", "com10", "x" * 63, "7"])
def test_good_names(name):
    assert check_name(name) == name
    assert config(name=name).name == name


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            ".",
            "..",
            "../x",
            "a/../../b",
            "/etc/x",
            "a\\..\\b",
            "con",
            "CON",
            "nul.txt",
            "lpt1",
            "x" * 64,
            "x" * 300,
        ),
        *("a\0b", "a\n", "\na", "a b", ".hidden", "-rf", "a.", "é", "a\u202eb", "%2e%2e", "~", "$HOME"),
    ],
)
def test_bad_names_are_refused_by_one_rule_that_is_told(name):
    with pytest.raises(ValueError, match="a name has 1 to 63 characters"):
        check_name(name)
    (line,) = refusal(name=name)
    assert line.startswith("name: got ")
    assert "a name has 1 to 63 characters" in line
    assert line.isprintable()


# Overrides.


def test_overrides_win_and_reach_into_sections_and_lists():
    loaded = config(
        "learning_rate=1e-6",
        "engine.kv_cache_mb=64",
        "environments.0.weight=2",
        "environments.0.kwargs.level=[1, hard]",
        "seq_is_masking={low: 0.5, high: 2}",
        "wandb.project=p",
        "use_gpu=false",
        learning_rate=1e-3,
    )
    assert (loaded.learning_rate, loaded.engine.kv_cache_mb, loaded.use_gpu) == (1e-6, 64, False)
    assert (loaded.environments[0].weight, loaded.environments[0].kwargs) == (2.0, {"level": [1, "hard"]})
    assert (loaded.seq_is_masking.high, loaded.wandb.project) == (2.0, "p")


def test_overrides_leave_what_was_given_alone():
    data = {"name": "demo", "model": "m", "steps": 1, "environments": [{"name": "sums", "kwargs": {"a": 1}}]}
    from_dict(data, ["environments.0.kwargs.a=2"])
    assert data["environments"][0]["kwargs"] == {"a": 1}


def test_null_brings_a_derived_default_back():
    assert config("seq_len=null", seq_len=4096).seq_len == 512


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["seed=1", "seed=2"], "override 'seed=2': the key is given twice; keep one"),
        (["engine={}", "engine.kv_cache_mb=1"], "overlaps with the override of engine"),
        (["engine.kv_cache_mb=1", "engine={}"], "overlaps with the override of engine.kv_cache_mb"),
        (["seed"], "override 'seed': wanted key=value"),
        (["a..b=1"], "wanted key=value"),
        (["=1"], "wanted key=value"),
        (["environments.1.weight=2"], "environments is a list of 1; wanted a number from 0 to 0, got '1'"),
        (["environments.-1.weight=2"], "environments is a list of 1; wanted a number from 0 to 0, got '-1'"),
        (["name.x=3"], "name = 'demo' has no keys below it"),
        (["steps=[1"], "not valid YAML"),
        (["steps=!!int 3"], "a tag (!...) is refused"),
    ],
)
def test_overrides_that_cannot_be_applied_are_refused(overrides, words):
    assert words in refusal(*overrides)[0]


def test_all_bad_overrides_are_listed():
    assert len(refusal("seed", "name.x=3", "steps=[1")) == 3


def test_a_wrong_override_is_told_from_the_file(file):
    assert "seed (override): got 'x', wanted a whole number" in file_refusal(file(SMALLEST + "seed: 1\n"), "seed=x")
    assert "lr (override): unknown key" in file_refusal(file(SMALLEST), "lr=1")


def test_a_name_that_looks_like_a_number_must_be_quoted():
    assert "got 123, wanted text; put it in quotes" in refusal("name=123")[0]
    assert config("name='123'").name == "123"


# Derived values.


def test_lengths_are_derived_from_the_limits():
    loaded = config(max_prompt_tokens=100, max_tokens=28)
    assert (loaded.max_sample_tokens, loaded.seq_len, loaded.engine.max_model_len) == (128, 128, 128)
    assert config(max_tokens=28, engine={"max_num_seqs": 4}).engine.max_model_len == 284


def test_staleness_is_bounded_by_the_run_ahead():
    assert (config().max_off_policy_steps, config(max_async_rollout=3).max_off_policy_steps) == (1, 3)
    assert config(max_async_rollout=0).max_off_policy_steps == 0


@pytest.mark.parametrize(
    ("algorithm", "norm", "aggregation", "clip"),
    [
        ("grpo", "group", "token_mean", (0.2, 0.2)),
        ("sapo", "group", "token_mean", (0.2, 0.2)),
        ("cispo", "group", "token_mean", (1.0, 4.0)),
        ("gspo", "group", "sequence_mean", (3e-4, 4e-4)),
        ("reinforce_pp", "batch", "token_mean", (0.2, 0.2)),
        ("rloo", "none", "token_mean", (0.2, 0.2)),
        ("dr_grpo", "none", "token_mean", (0.2, 0.2)),
    ],
)
def test_each_algorithm_has_its_own_defaults(algorithm, norm, aggregation, clip):
    loaded = config(algorithm=algorithm)
    assert (loaded.advantage_norm, loaded.aggregation) == (norm, aggregation)
    assert (loaded.clip_low, loaded.clip_high) == clip


def test_updates_are_steps_times_minibatches():
    assert config(minibatches=3).total_updates == 30


def test_an_environment_may_be_a_file_which_is_kept_by_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = config(environments=[{"name": "own.py"}, {"name": "./more/two.py:Second"}, {"name": "one.py:One"}])
    names = ["own.py", "more/two.py:Second", "one.py:One"]
    assert [e.name for e in loaded.environments] == [f"{tmp_path}/{name}" for name in names]
    assert [e.label for e in loaded.environments] == ["own", "two", "one"]
    monkeypatch.chdir("/")
    assert from_dict(parse(dump(loaded))[0]) == loaded


def test_an_eval_of_an_environment_takes_over_its_settings_and_none_of_its_sampling_temperature():
    short = {
        "name": "sums",
        "label": "short",
        "kwargs": {"terms": 3},
        "max_tokens": 9,
        "temperature": 0.5,
        "weight": 2.0,
    }
    evals = [{"name": "short", "pass_k": [1, 4]}, {"name": "short", "label": "greedy", "temperature": 0, "kwargs": {}}]
    loaded = config(environments=[short], evals=[*evals, {"name": "countdown"}])
    first, greedy, other = loaded.evals
    assert (first.name, first.label, first.kwargs, first.max_tokens) == ("sums", "short", {"terms": 3}, 9)
    assert (first.temperature, first.completions) == (1.0, 4)
    assert (greedy.name, greedy.label, greedy.kwargs, greedy.completions) == ("sums", "greedy", {}, 1)
    assert (other.name, other.label, other.max_tokens) == ("countdown", "countdown", None)
    assert from_dict(parse(dump(loaded))[0]) == loaded


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"name": "sums", "weight": 1}, "evals.1.weight: unknown key"),
        ({"name": "sums"}, "evals.1.label: 'sums' is also the label of evals.0; give each entry its own label"),
        ({"name": "x", "pass_k": []}, "evals.1.pass_k: got a list of 0, wanted at least 1 entry"),
        (
            {"name": "x", "pass_k": [4], "completions": 2},
            "evals.1.pass_k: got 4, which needs as many completions, not 2",
        ),
        ({"name": "x", "eval_every": 0}, "evals.1.eval_every: got 0, wanted at least 1"),
        ({"name": "x", "max_tokens": 9999}, "evals.1.max_tokens: got 9999, wanted at most the run's max_tokens = 256"),
        ("sums", "evals.1: got 'sums', wanted a section of keys"),
    ],
)
def test_an_eval_that_makes_no_sense_is_refused(entry, words):
    (line,) = refusal(evals=[{"name": "sums"}, entry])
    assert line.startswith(words)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"path": "/etc/passwd"}, "kwargs.path: a file of this machine is for the command line to choose"),
        ({"eval_path": "x"}, "kwargs.eval_path: a file of this machine is for the command line to choose"),
        ({"dataset_name": "/root"}, "kwargs.dataset_name: wanted the name of a data set on the hub"),
        ({"dataset_name": "../x"}, "kwargs.dataset_name: wanted the name of a data set on the hub"),
        ({"sandbox": "subprocess:Popen"}, "kwargs.sandbox: what runs a model's code is for the command line"),
        ({"sandbox_kwargs": {"allow_network": True}}, "kwargs.sandbox_kwargs: what runs a model's code is for"),
    ],
)
def test_over_a_network_neither_files_nor_a_sandbox_can_be_chosen(kwargs, message):
    loaded = config(environments=[{"name": "sums"}, {"name": "code", "kwargs": kwargs}])
    with pytest.raises(ConfigError, match=re.escape(f"environments.1.{message}")):
        refuse_files(loaded)
    loaded = config(environments=[{"name": "sums"}], evals=[{"name": "sums"}, {"name": "code", "kwargs": kwargs}])
    with pytest.raises(ConfigError, match=re.escape(f"evals.1.{message}")):
        refuse_files(loaded)
    harmless = {"name": "code", "kwargs": {"dataset_name": "openai/gsm8k", "seed": 1}}
    refuse_files(config(environments=[harmless], evals=[harmless]))


def test_an_environments_label_is_its_name_unless_given():
    loaded = config(environments=[{"name": "sums"}, {"name": "my.env:Hard"}, {"name": "sums", "label": "sums hard"}])
    assert [environment.label for environment in loaded.environments] == ["sums", "my.env:Hard", "sums hard"]


# Combinations.


@pytest.mark.parametrize(
    "changes",
    [
        *[{"algorithm": algorithm} for algorithm in ALGORITHMS],
        *[{"algorithm": algorithm, "use_tis": False, "ppo_clip_ref_logprobs": "rollout"} for algorithm in ALGORITHMS],
        *[{"algorithm": a, "use_ppo_clip": True, "clip_ratio_c": 3.0} for a in ("grpo", "rloo", "dr_grpo")],
        *[{"algorithm": a, "advantage_norm": "batch"} for a in ("grpo", "cispo", "gspo", "sapo", "reinforce_pp")],
        {"use_ppo_clip": True, "use_tis": True, "ppo_clip_ref_logprobs": "batch"},
        {"algorithm": "reinforce_pp", "group_size": 1},
        {"algorithm": "grpo", "advantage_norm": "batch", "group_size": 1},
        {"top_p": 0.9, "use_tis": False},
        {"top_p": 0.9, "use_tis": False, "kl_penalty_tau": 0.1, "kl_reference": "initial"},
        {"algorithm": "gspo", "clip_ratio_c": 3.0},
        {"algorithm": "sapo", "clip_ratio_c": 3.0, "sapo_tau_pos": 2.0},
        {"aggregation": "token_sum_norm", "algorithm": "dr_grpo"},
        {"max_async_rollout": 1, "max_off_policy_steps": 4},
        {"evals": [{"name": "sums", "eval_every": 5, "temperature": 0}]},
    ],
    ids=str,
)
def test_accepted_combinations(changes):
    config(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"ppo_clip_ref_logprobs": "rollout"},
            "ppo_clip_ref_logprobs: 'rollout' together with use_tis: true would count the importance correction twice; "
            "set ppo_clip_ref_logprobs: batch (decoupled PPO) or use_tis: false",
        ),
        ({"algorithm": "cispo", "use_ppo_clip": True}, "use_ppo_clip: true with cispo, which bounds the ratio"),
        ({"algorithm": "sapo", "use_ppo_clip": True}, "use_ppo_clip: true with sapo, which bounds the ratio"),
        ({"algorithm": "cispo", "clip_ratio_c": 3.0}, "clip_ratio_c: the dual clip never applies to cispo"),
        ({"clip_ratio_c": 3.0}, "clip_ratio_c: the dual clip never binds without a ratio"),
        ({"algorithm": "reinforce_pp", "advantage_norm": "group"}, "advantage_norm: 'group' with reinforce_pp"),
        ({"algorithm": "rloo", "advantage_norm": "batch"}, "advantage_norm: 'batch' with rloo"),
        ({"algorithm": "dr_grpo", "advantage_norm": "group"}, "advantage_norm: 'group' with dr_grpo"),
        ({"advantage_norm": "none"}, "advantage_norm: 'none' with grpo; set group or batch, or algorithm: dr_grpo"),
        *[
            ({"algorithm": algorithm, "group_size": 1}, f"group_size: got 1, but {algorithm} compares a completion")
            for algorithm in ("grpo", "rloo", "dr_grpo", "cispo", "gspo", "sapo")
        ],
        ({"algorithm": "gspo", "aggregation": "token_mean"}, "aggregation: 'token_mean' with gspo"),
        ({"sapo_tau_neg": 2.0}, "sapo_tau_neg: only sapo reads it and algorithm is grpo"),
        ({"top_p": 0.9}, "top_p: got 0.9 together with use_tis: true"),
        (
            {"top_p": 0.9, "use_tis": False, "ppo_clip_ref_logprobs": "rollout", "use_ppo_clip": True},
            "top_p: got 0.9 together with ppo_clip_ref_logprobs: rollout",
        ),
        (
            {"top_p": 0.9, "use_tis": False, "kl_penalty_tau": 0.1, "kl_reference": "rollout"},
            "top_p: got 0.9 together with kl_reference: rollout",
        ),
        (
            {"top_p": 0.9, "use_tis": False, "seq_is_masking": {"low": 0.5, "high": 2.0}},
            "top_p: got 0.9 together with seq_is_masking",
        ),
        ({"tis_cap": 0.5}, "tis_cap: [tis_floor, tis_cap] = [0, 0.5] must hold 1"),
        ({"tis_floor": 1.5}, "tis_cap: [tis_floor, tis_cap] = [1.5, 2] must hold 1"),
        ({"seq_is_masking": {"low": 2.0, "high": 3.0}}, "seq_is_masking: [low, high] = [2, 3] must hold 1"),
        (
            {"max_prompt_tokens": 3072, "max_tokens": 1024, "seq_len": 4000},
            "seq_len: got 4000, wanted at least max_prompt_tokens + max_tokens = 3072 + 1024 = 4096",
        ),
        (
            {"max_prompt_tokens": 3072, "max_tokens": 1024, "engine": {"max_model_len": 4000}},
            "engine.max_model_len: got 4000, wanted at least max_prompt_tokens + max_tokens = 3072 + 1024 = 4096",
        ),
        (
            {"max_async_rollout": 2, "max_off_policy_steps": 1},
            "max_off_policy_steps: got 1, below max_async_rollout = 2",
        ),
        ({"groups_per_ticket": 3}, "groups_per_ticket: got 3, wanted a divisor of prompts_per_step 16"),
        ({"minibatches": 129}, "minibatches: got 129, wanted at most the step's 128 samples"),
        ({"warmup_steps": 11}, "warmup_steps: got 11, wanted at most steps = 10; lower it or raise steps"),
        (
            {"environments": [{"name": "a", "reward_min": 1, "reward_max": 1}]},
            "environments.0.reward_min: got 1, wanted less than reward_max = 1",
        ),
        (
            {"environments": [{"name": "a"}, {"name": "a", "kwargs": {"hard": True}}]},
            "environments.1.label: 'a' is also the label of environments.0; give each entry its own label",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_refused_combinations(changes, words):
    (line,) = refusal(**changes)
    assert line.startswith(words)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"name": "../x"}, "environments.0.name: got '../x'; wanted the name of a file in environments/"),
        ({"name": "a.b"}, "environments.0.name: got 'a.b'; wanted the name of a file"),
        ({"name": "os.system('x')"}, "environments.0.name: got "),
        ({"name": "a", "label": "a/b"}, "environments.0.label: got 'a/b'; wanted 1 to 100 printable characters"),
        ({"name": "a", "label": "a\n"}, "environments.0.label: got 'a\\n'; wanted 1 to 100 printable characters"),
        ({"name": "loss"}, "environments.0.label: got 'loss'; this is a section of built-in metrics"),
        ({"name": "a", "weight": 0}, "environments.0.weight: got 0, wanted a number above 0"),
        ({"name": "a", "curriculum": []}, "environments.0.curriculum: got a list of 0; wanted [[0, weight], [step,"),
        ({"name": "a", "curriculum": [[1, 1.0]]}, "environments.0.curriculum: got a list of 1; wanted [[0, weight]"),
        ({"name": "a", "curriculum": [[0, 1.0], [0, 2.0]]}, "environments.0.curriculum: got a list of 2; wanted [[0,"),
        ({"name": "a", "curriculum": [[0, 1.0], [9]]}, "environments.0.curriculum: got a list of 2; wanted [[0,"),
        ({"name": "a", "curriculum": [[0, -1.0]]}, "environments.0.curriculum: got a list of 1; wanted weights of at"),
        ({"name": "a", "curriculum": [[0, 1], [9, 0]]}, "environments: all weights are 0 at step 9; give one of them"),
        ({"name": "a", "max_tokens": 9999}, "environments.0.max_tokens: got 9999, wanted at most the run's max_tokens"),
        ({"name": "a", "top_p": 0.9}, "environments.0.top_p: got 0.9 together with use_tis: true"),
        ({"name": "a", "temperature": 0}, "environments.0.temperature: got 0, wanted a number above 0"),
        ({"name": "a", "reward_timeout_s": 1e300}, "environments.0.reward_timeout_s: got 1e+300, wanted at most 86400"),
        ({"name": "a", "turn_timeout_s": 0}, "environments.0.turn_timeout_s: got 0, wanted a number above 0"),
        ({"name": "a", "processes": 0}, "environments.0.processes: got 0, wanted at least 1"),
        ({"name": "a", "kwargs": {"x": [math.inf]}}, "environments.0.kwargs"),
        ({"name": "a", "kwargs": {"x": date(2001, 1, 1)}}, "environments.0.kwargs.x: got datetime.date(2001, 1, 1)"),
        ({"name": "a", "kwargs": {1: 2}}, "environments.0.kwargs.1: got 1, wanted text"),
        ({"label": "a"}, "environments.0.name: missing"),
    ],
    ids=str,
)
def test_refused_environments(entry, words):
    (line,) = refusal(environments=[entry])
    assert line.startswith(words)


# Writing.


def test_a_resolved_config_says_everything_and_loads_equal(file):
    first = config(
        learning_rate=1e-6,
        algorithm="gspo",
        seq_is_masking={"low": 0.5, "high": 2.0},
        environments=[{"name": "sums", "kwargs": {"text": "1e-6", "yes": ["no", None, 1.5, {"a": True}]}}],
        wandb={"project": "p", "mode": "offline"},
    )
    text = dump(first)
    assert text.startswith("name: demo\nseed: 0\nmodel: embedded\n")
    assert "learning_rate: 1e-06\n" in text
    assert "clip_low: 0.0003\n" in text
    assert load(file(text)) == first


SCALARS = st.one_of(
    st.text(), st.floats(allow_nan=False, allow_infinity=False), st.integers(), st.booleans(), st.none()
)


@PROPERTY
@given(st.dictionaries(st.text(max_size=8), SCALARS | st.lists(SCALARS, max_size=3), max_size=5))
def test_any_plain_data_survives_writing_and_reading(data):
    assert parse(write(data))[0] == data


@PROPERTY
@given(st.dictionaries(st.sampled_from([*Config.model_fields, "nonsense"]), SCALARS | st.lists(SCALARS, max_size=2)))
def test_rubbish_is_refused_in_words_and_never_crashes(data):
    text = ""
    try:
        from_dict(data)
    except ConfigError as error:
        text = str(error)
    assert all(line.isprintable() for line in text.splitlines())


def test_reading_a_config_needs_no_framework():
    code = "import sys, app.config; print(sorted({'torch', 'ray', 'vllm', 'gradio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_field_is_read_somewhere():
    """A setting that nothing reads would be accepted and ignored."""
    files = [file for room in ("app", "ui", "metrics") for file in (ROOT / room).rglob("*.py")]
    text = "\n".join(file.read_text() for file in files if not file.name.startswith("config"))
    words = {word for groups in re.findall(r"""\.get\("(\w+)"|\["(\w+)"\]|\.(\w+)""", text) for word in groups}
    fields = {name for section in sections() for name in section.model_fields}
    assert sorted(fields - words) == []


def test_what_a_resumed_run_may_change_is_told():
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    paragraph = page.partition("**What may change at a resume.**")[2].partition("\n\n")[0]
    told = {name.removesuffix(".…") for name in re.findall(r"`([a-z_]+(?:\.…)?)`", paragraph)}
    assert told == set(RESUMABLE) <= set(Config.model_fields)
