"""`python -m environments check`: every fault is found by the finding that is named after it, and nothing else is."""

import pytest

from environments import check as checking
from environments.__main__ import main
from environments.check import Wish, check
from environments.checks import BadEnvironment

NUM = 6


def findings(name, **changes):
    return {found.what: found for found in check(Wish(f"faulty:{name}", **{"num_samples": NUM, **changes}))}


def not_ok(name, **changes):
    """What is not in order, but for the prompts: nobody counts tokens here."""
    return {
        what: found.level
        for what, found in findings(name, **changes).items()
        if found.level != "ok" and what != "prompts"
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Sound", {}),
        ("Prints", {}),
        ("SameId", {"samples": "fail", "held out": "fail"}),
        ("NoSplit", {"samples": "fail", "held out": "fail"}),
        ("NoEval", {"held out": "warn"}),
        ("FromSet", {"same samples": "fail"}),
        ("WrongGold", {"gold answers": "fail"}),
        ("NoGold", {"gold answers": "warn", "different rewards": "warn"}),
        ("Constant", {"gold answers": "warn", "different rewards": "warn"}),
        ("Generous", {"the empty reply": "fail", "random characters": "fail", "another's gold": "fail"}),
        ("OutOfRange", {"metrics": "fail"}),
        ("SometimesNamed", {"metrics": "warn"}),
        ("Undeclared", {}),
        ("Moody", {"gold answers": "fail", "same rewards": "fail"}),
        ("TupleInMemory", {"gold answers": "warn", "failures": "fail"}),
        ("Raises", {"failures": "fail", "random characters": "fail", "another's gold": "fail"}),
    ],
)
def test_a_fault_is_found(name, expected):
    assert not_ok(name) == expected


def test_samples_of_no_seed_are_other_samples():
    found = findings("Unseeded")["same samples"]
    assert (found.level, found.text.split(" in ")[0]) == ("fail", "other samples")


def test_the_report_has_numbers():
    found = findings("WrongGold")
    assert found["samples"].text == "20 train, 20 eval, each of its own"
    assert found["gold answers"].text == "2 of 6 do not get the maximum 1, like 'Say 0.': 0"
    assert found["failures"].text.startswith("none of ")
    assert findings("Undeclared")["metrics"].text == (
        "the same for every reply; exact: in their ranges; without a range: length"
    )
    assert findings("NoSplit")["held out"].text.endswith(" eval samples are also trained on, like 'Say 0.'")


def test_a_time_is_told_in_its_own_unit():
    assert [checking._time(seconds) for seconds in (0.0000123, 0.9994, 0.9996, 12.345)] == [
        "0.0123 ms",
        "999 ms",
        "1 s",
        "12.3 s",
    ]


def test_a_maximum_that_is_never_reached_is_found():
    assert findings("Sound", reward_max=2.0)["gold answers"].text == (
        "6 of 6 do not get the maximum 2, like 'Say 0.': 1"
    )


def test_a_constant_reward_is_told_and_is_a_fault_where_it_is_the_maximum():
    found = findings("Constant")["different rewards"]
    assert found.text.startswith("all 12 replies that were tried score 1: nothing is learnt")
    assert findings("Constant", reward_max=1.0)["different rewards"].level == "fail"
    assert "different rewards" not in findings("Sound")


def test_prompts_are_held_against_the_limit():
    long = findings("Sound", length_of=len, max_prompt_tokens=6)["prompts"]
    assert (long.level, long.text) == ("fail", "the longest: 7 to 7 tokens, limit 6: 12 are too long")
    assert findings("Sound", length_of=len, max_prompt_tokens=7)["prompts"].level == "ok"


def test_a_hang_is_killed_and_reported():
    found = findings("Hangs", limit_s=0.5, num_samples=1)
    assert found["failures"].level == "fail"
    assert "took longer than 0.5 s" in found["failures"].text


def test_slow_rewards_are_a_warning():
    assert not_ok("Slow", limit_s=0.45, num_samples=2) == {"latency": "warn"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ExitsWhileListing", "its process ended with exit code 7 while listing its samples"),
        ("NoList", r"samples\('train'\) must return a list of Sample, got "),
        ("DictsForSamples", r"must return a list of Sample, got at place 20 {'prompt': 'Say 1\.'} \(dict\)"),
        ("NoJson", "answer and metadata must be JSON values"),
        ("OddGold", "gold_completion must return a text, a list of turns or None, got 7"),
        ("Empty", "has no samples"),
        ("Missing", "has no 'Missing'"),
    ],
)
def test_what_cannot_be_checked_is_refused_with_the_reason(name, message):
    with pytest.raises(BadEnvironment, match=message):
        findings(name)


def test_what_it_does_is_said_with_its_limit_and_a_reply_that_hangs_is_judged_once(capsys):
    assert main(["check", "faulty:Hangs", "--samples", "2", "--limit-s", "0.5"]) == 1
    told = capsys.readouterr()
    assert "listing its samples twice, at most 60 s each time" in told.err
    assert "judging 7 replies, at most 0.5 s each" in told.err
    assert "judging 5 of them a second time" in told.err
    assert "2 of 7 replies were not judged" in told.out


def test_listing_has_a_limit(monkeypatch):
    monkeypatch.setattr(checking, "START_LIMIT_S", 1.5)
    with pytest.raises(BadEnvironment, match=r"listing its samples took longer than 1\.5 s"):
        findings("HangsWhileListing")


def test_the_command_prints_a_report_and_its_status_says_whether_it_is_fit(capsys):
    assert main(["check", "faulty:Sound", "--samples", "4"]) == 0
    report = capsys.readouterr().out
    assert "ok    gold answers      4 of 4 get the maximum 1" in report
    assert main(["check", "faulty:Generous", "--samples", "4"]) == 1
    assert "fail  the empty reply" in capsys.readouterr().out
    assert main(["check", "faulty:Missing"]) == 1
    assert "fail  can be used       environment 'faulty:Missing'" in capsys.readouterr().out


def test_the_command_takes_names_settings_and_limits_from_a_configuration(tmp_path, capsys):
    config = tmp_path / "own.yaml"
    config.write_text(
        "name: own\nmodel: embedded\nsteps: 1\nmax_prompt_tokens: 13\nenvironments:\n"
        "  - {name: sums, label: short, kwargs: {terms: 3, num_train: 100, num_eval: 20}}\n"
        "  - {name: reverse_text, kwargs: {length: 4}}\n"
    )
    assert main(["check", "--config", str(config), "--samples", "4"]) == 1
    report = capsys.readouterr().out
    assert 'environment sums with {"terms": 3' in report
    assert "ok    prompts           the longest: 7 to 7 tokens, limit 13" in report  # one for the start of the text
    assert "fail  prompts           the longest: 15 to 15 tokens, limit 13: 8 are too long" in report
    assert main(["check", "short", "--config", str(config), "--samples", "4"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check"], "name an environment, or give --config FILE"),
        (["check", "nothing", "--config", "configs/demo.yaml"], "no environment is called 'nothing'"),
        (["check", "sums", "--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_settings_are_json(capsys):
    with pytest.raises(SystemExit):
        main(["check", "sums", "--kwargs", "terms=3"])
    assert "wanted a JSON object, got 'terms=3'" in capsys.readouterr().err
    assert main(["check", "sums", "--kwargs", '{"tems": 3}']) == 1
    assert "has no setting 'tems' (str); accepted: terms" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "--environment", "sums"], "there is no run here"),
        (["RUN", "--environment", "sumz"], "environment 'sumz' is unknown"),
        (["RUN", "--environment", "../x.py"], "there is no file"),
        (["RUN", "--environment", "sums", "--step", "99"], "no stored rollout to judge"),
    ],
)
def test_what_cannot_be_judged_again_is_refused(words, message, tmp_path, capsys):
    from app.run_dir import create

    text = "name: r\nmodel: embedded\nsteps: 1\nenvironments:\n  - name: sums\n"
    run = create(
        tmp_path, name="r", config_yaml=text, steps=1, model="embedded", environments=["sums"], algorithm="grpo"
    )
    assert main(["score", *(str(run.path) if word == "RUN" else word for word in words)]) == 2
    assert message in capsys.readouterr().err
