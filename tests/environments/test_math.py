"""Boxed answers: what is read, what is the same, what takes too long, and where problems come from."""

import json
import re
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from environments.base import Sample
from environments.checks import BadEnvironment
from environments.loader import load
from environments.support.math_answers import Checker, last_boxed, plain_number, same

LIMIT_S = 10.0


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} no, \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{{1}", None),
        (r"\boxed{}", ""),
        ("42", None),
        ("", None),
        (r"\boxed{" + "9" * 100_000 + "}", None),
    ],
)
def test_the_last_boxed_answer_counts(text, boxed):
    assert last_boxed(text) == boxed


@pytest.mark.parametrize(
    ("text", "value"),
    [("42", 42), ("-7", -7), ("1,234,567", 1234567), ("0.50", 0.5), (r"\frac{3}{4}", 0.75), (r"-\dfrac{1}{2}", -0.5)],
)
def test_plain_numbers_are_read_here(text, value):
    assert plain_number(text) == value


@pytest.mark.parametrize("text", ["", "x", "1,23", "1/0", r"\frac{1}{0}", "1e5", "--1", "٣", "9" * 200])
def test_what_is_no_plain_number_is_left_to_the_library(text):
    assert plain_number(text) is None


@pytest.mark.parametrize(
    ("right", "given", "is_same"),
    [
        ("1000", "1,000", True),
        ("0.5", r"\frac{1}{2}", True),
        (r"\frac{3}{4}", "0.75", True),
        ("12x^{2}+3", "3 + 12x^2", True),
        (r"\{-3, 5\}", r"\{5, -3\}", True),
        (r"2\sqrt{2}", r"\sqrt{8}", True),
        ("42", "43", False),
        ("x+1", "x-1", False),
        ("42", "", False),
        ("42", "the answer", False),
        ("42", "\x00\ud800", False),
        ("x", "x" * 1_000, False),
    ],
)
def test_answers_are_the_same_in_meaning(right, given, is_same):
    assert same(right, given, LIMIT_S) is is_same


def test_an_answer_that_never_ends_is_wrong_in_time_and_the_next_is_judged():
    environment = load("math", {"check_limit_s": 1.0})
    sample = Sample("?", "x+1")
    started = time.monotonic()
    result = environment.compute_reward(r"\boxed{9^{9^{9^{9}}}!}", sample)
    assert (result.total_reward, result.sample_metrics["undecided"]) == (0.0, 1.0)
    assert time.monotonic() - started < 20
    assert environment.compute_reward(r"\boxed{1+x}", sample).total_reward == 1.0


@pytest.mark.parametrize("given", ["{" * 140 + "1" + "}" * 140, r"\frac" * 50, r"\left(" * 40, "$" * 200, "\\" * 299])
def test_hostile_latex_is_wrong_and_no_error(given):
    result = load("math", {"check_limit_s": 2.0}).compute_reward(f"\\boxed{{{given}}}", Sample("?", "x+1"))
    assert result.total_reward == 0.0


def test_problems_come_from_json_lines(tmp_path):
    file = tmp_path / "own.jsonl"
    rows = [{"question": f"q{i % 30}", "answer": f"so it is {i % 30}\n#### {i % 30:,}"} for i in range(40)]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    environment = load("gsm8k", {"path": str(file), "num_eval": 5})
    train, held = environment.samples("train"), environment.samples("eval")
    assert (len(train), len(held)) == (25, 5)
    assert not {sample.prompt for sample in train} & {sample.prompt for sample in held}
    assert all(sample.prompt.startswith(f"q{sample.answer}\n") for sample in [*train, *held])


def test_problems_come_from_parquet_with_a_test_file_that_is_never_trained_on(tmp_path):
    rows = [{"problem": f"p{i}", "solution": f"hence $\\boxed{{\\frac{{{i}}}{{7}}}}$"} for i in range(10)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    pq.write_table(pa.Table.from_pylist(rows[:4]), tmp_path / "test.parquet")
    paths = {"path": str(tmp_path / "train.parquet"), "eval_path": str(tmp_path / "test.parquet")}
    environment = load("math", paths)
    assert [sample.answer for sample in environment.samples("eval")] == [rf"\frac{{{i}}}{{7}}" for i in range(4)]
    assert len(environment.samples("train")) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "a"}\n', "a row needs an answer in a column answer or solution, got the columns ['question']"),
        ('{"question": "a", "answer": "1"}\nnonsense\n', "line 2: wanted one JSON object a line"),
        ("[1]\n", "line 1: wanted a JSON object, got [1]"),
        ('{"question": "a", "answer": "1"}\n', "there are 1 different problems; num_eval must be below that, got 200"),
    ],
)
def test_data_that_cannot_be_used_is_refused_with_the_place(tmp_path, text, message):
    (tmp_path / "own.jsonl").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        load("gsm8k", {"path": str(tmp_path / "own.jsonl")}).samples("train")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"path": "a", "dataset_name": "b"}, "give path or dataset_name, not both"),
        ({"eval_path": "a"}, "eval_path needs path"),
        ({"num_eval": 0}, "num_train and num_eval must be at least 1, got 2000 and 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kwargs, message):
    with pytest.raises(BadEnvironment, match=message):
        load("math", kwargs)


def test_a_checker_that_dies_is_not_called_slow_and_is_replaced():
    checker = Checker(LIMIT_S)
    assert checker.same("x+1", "1+x")
    first = checker.process
    first.kill()
    first.wait()
    with pytest.raises(ChildProcessError, match="the math-verify process ended with exit code -9 at 'x'"):
        checker.same("x+1", "x")
    assert checker.same("x+1", "1+x")
    assert checker.process is not first
    second = checker.process
    checker.finalizer()
    assert second.returncode == -9


def test_a_checker_keeps_no_hold_of_those_that_were_killed():
    checker = Checker(LIMIT_S)
    checker.same("x", "x")
    killed = checker.finalizer
    checker.process.kill()
    with pytest.raises(ChildProcessError):
        checker.same("x", "y")
    assert not killed.alive


def test_an_answer_that_ends_the_comparing_process_is_wrong_and_no_error(monkeypatch):
    def ended(*_):
        raise ChildProcessError("ended")

    monkeypatch.setattr("environments.support.math_answers.same", ended)
    result = load("math", {}).compute_reward(r"\boxed{x}", Sample("?", "y"))
    assert (result.total_reward, result.sample_metrics["undecided"]) == (0, 1)
