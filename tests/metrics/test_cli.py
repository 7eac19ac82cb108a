"""python -m metrics: export a run, make its numbers again."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from metrics import read
from metrics.__main__ import main
from metrics.export import export
from metrics.journal import append_line
from metrics.recompute import recompute
from metrics.registry import OWNER
from metrics.schema import samples_table, spans_table
from metrics.store import Store
from tests.metrics.builders import core, group, sample, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs"), steps=9, environments=("sums", "words"), resume_at=6)


def test_recompute_finds_no_difference_in_a_run(run, capsys):
    assert main(["recompute", str(run)]) == 0
    assert "0 differ" in capsys.readouterr().out


def test_recompute_makes_every_number_again_but_those_that_the_trainer_gave(run):
    """Of every key of docs/metrics.md that the run has."""
    given = [key for key, metric in OWNER.items() if metric.source == "trainer"]
    columns = read.series(run)["columns"]
    assert len(set(columns) & set(given)) >= 15
    rows = pl.concat(pl.read_parquet(path) for path in (run / "metrics" / "series").glob("*.parquet"))
    report = recompute(run)
    assert report.num_given == rows.filter(pl.col("key").is_in(given)).height
    assert report.num_equal == len(rows) - report.num_given > 1000


def test_recompute_is_a_command(run):
    done = subprocess.run([sys.executable, "-m", "metrics", "recompute", str(run)], capture_output=True, text=True)
    assert (done.returncode, "0 differ" in done.stdout) == (0, True), done.stderr


def test_recompute_finds_a_changed_number(tmp_path, capsys):
    one = core(tmp_path)
    one.log_samples("b", 1, samples_table(group([0.0, 1.0])))
    one.log_step("trainer", 1, 1, {"entropy": 1.0}, spans_table([]), 2)
    one.store.add_values([(1, "reward_mean", 0.9)], attempt=1, source="forger", seq=1, time_s=0.0)
    one.close("finished")
    assert main(["recompute", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "attempt 1 step 1 reward_mean: logged 0.9, from the rows 0.5" in said
    assert "1 differ; 1 values were given by the trainer" in said


def test_recompute_names_what_is_damaged(tmp_path, capsys):
    run = write_run(tmp_path, steps=3)
    target = sorted((run / "metrics" / "samples").glob("*.parquet"))[0]
    target.write_bytes(b"")
    assert main(["recompute", str(run)]) == 1
    assert f"damaged: samples/{target.name}" in capsys.readouterr().err


@pytest.mark.parametrize("lag", [0, 1])
def test_a_run_that_never_made_a_step_is_exported_and_recomputed(tmp_path, lag, capsys):
    one = core(tmp_path, config={"max_async_rollout": lag})
    one.log_eval("eval", 0, 0, {}, samples_table([sample(step=0, outcome="eval", reward=1.0)]))
    assert main(["recompute", str(tmp_path)]) == 0
    assert export(tmp_path, "samples", "csv", tmp_path / "out.csv") == 0
    assert export(tmp_path, "series", "csv", tmp_path / "series.csv") == 1


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert main(["recompute", str(tmp_path)]) == 2
    assert "give the path of a run directory, not the run's id alone" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["csv", "parquet", "json"])
@pytest.mark.parametrize("table", ["series", "samples", "evals", "spans"])
def test_every_table_is_exported_in_every_format(run, tmp_path, kind, table, capsys):
    target = tmp_path / f"out.{kind}"
    assert main(["export", str(run), f"--{kind}", "--table", table, "--output", str(target)]) == 0
    counts = {"series": 10, "samples": 9 * 16, "evals": 12 * 2, "spans": 9 * 13}
    assert f"{counts[table]} rows of {table}" in capsys.readouterr().out
    assert target.stat().st_size > 0


@pytest.mark.parametrize("kind", ["csv", "parquet", "json"])
@pytest.mark.parametrize(("output", "why"), [("nowhere/x", "No such file"), (".", "irectory")])
def test_a_file_that_cannot_be_written_is_refused(run, tmp_path, kind, output, why, capsys):
    target = tmp_path / output
    assert main(["export", str(run), f"--{kind}", "--output", str(target)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"{target}: cannot be written (")
    assert why in error
    assert error.count("\n") == 1


def three_kinds(tmp_path: Path) -> Path:
    one = core(tmp_path / "run")
    for step, value in enumerate([math.nan, math.inf, None, 0.0, -math.inf], 1):
        one.log_step("trainer", step, step, {"a": value, "b": 1.0}, spans_table([]), 0)
    one.close("finished")
    return tmp_path / "run"


def test_absent_zero_and_not_finite_are_told_apart_in_every_format(tmp_path):
    run = three_kinds(tmp_path)
    for kind in ("csv", "parquet", "json"):
        export(run, "series", kind, tmp_path / kind)
    assert (
        str(pl.read_csv(tmp_path / "csv", schema_overrides={"a": pl.String})["a"].to_list())
        == "['NaN', 'inf', None, '0.0', '-inf']"
    )
    assert str(pl.read_parquet(tmp_path / "parquet")["a"].to_list()) == "[nan, inf, None, 0.0, -inf]"
    found = json.loads((tmp_path / "json").read_text(), parse_constant=pytest.fail)
    assert found["columns"]["a"] == [None, None, None, 0.0, None]
    assert found["nonfinite"] == {"a": [[1, "nan"], [2, "inf"], [5, "-inf"]]}


def test_the_commands_name_what_is_not_finite_and_do_not_fall_over_it(tmp_path, capsys):
    run = three_kinds(tmp_path)
    assert main(["recompute", str(run)]) == 0
    store = Store(run)
    store.add_values(
        [(5, "tokens/generated", math.nan), (5, "discarded_count", math.inf)],
        attempt=1,
        source="forger",
        seq=1,
        time_s=0.0,
    )
    store.close()
    assert main(["recompute", str(run)]) == 1
    said = capsys.readouterr().out
    assert "attempt 1 step 5 tokens/generated: logged nan, from the rows 0" in said
    assert "attempt 1 step 5 discarded_count: logged inf, from the rows 0" in said
    target = tmp_path / "out.csv"
    assert main(["export", str(run), "--csv", "--output", str(target)]) == 0
    assert [row["a"] for row in csv.DictReader(target.read_text().splitlines())] == ["NaN", "inf", "", "0.0", "-inf"]


def test_text_that_looks_like_a_number_stays_text(tmp_path):
    one = core(tmp_path / "run")
    one.log_samples(
        "b", 1, samples_table([sample(completion="NaN", reward=math.nan, rollout_logprobs=[-0.5, -math.inf])])
    )
    export(tmp_path / "run", "samples", "json", tmp_path / "out.json")
    row = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)
    assert (row["completion"], row["reward"], row["rollout_logprobs"]) == (
        "NaN",
        {"nonfinite": "nan"},
        [-0.5, {"nonfinite": "-inf"}],
    )


def test_an_export_holds_every_point(run, tmp_path):
    export(run, "series", "parquet", tmp_path / "out.parquet")
    frame = pl.read_parquet(tmp_path / "out.parquet")
    columns = read.series(run)["columns"]
    assert frame["reward_mean"].to_list() == columns["reward_mean"]
    assert set(frame.columns) - {"step", "time"} == set(columns)


@pytest.mark.parametrize("kind", ["csv", "parquet", "json"])
def test_an_export_of_a_damaged_table_names_the_part_and_writes_the_rest(tmp_path, kind, capsys):
    run = write_run(tmp_path, steps=4)
    target = sorted((run / "metrics" / "samples").glob("*.parquet"))[1]
    target.write_bytes(target.read_bytes()[:-1])
    output = tmp_path / "out"
    assert main(["export", str(run), f"--{kind}", "--table", "samples", "--output", str(output)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"damaged: samples/{target.name}: ")
    assert "48 rows of samples" in said.out
    assert main(["export", str(run), f"--{kind}", "--output", str(output)]) == 0  # another table is whole


def test_what_a_damaged_run_says_cannot_act_on_the_terminal(tmp_path, capsys):
    core(tmp_path).close("finished")
    item = {"file": "\x1b[2J.parquet", "level": 0, "first_row": 0, "last_row": 0, "bytes": 1, "sha256": ""}
    line = item | {"attempts": [1, 1], "steps": [1, 1], "messages": {}}
    append_line(tmp_path / "metrics" / "series" / "manifest.jsonl", line)
    assert main(["export", str(tmp_path), "--csv", "--output", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert said.err == "damaged: series/\\x1b[2J.parquet: the file is missing\n"
    assert "\x1b" not in said.out


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"]


def test_no_text_of_an_exported_csv_is_a_formula(tmp_path):
    one = core(tmp_path / "run")
    rows = [sample(sample_id=i, completion=text, prompt="fine", reward=-1.0) for i, text in enumerate(FORMULAS)]
    one.log_samples("b", 1, samples_table(rows))
    one.log_step("trainer", 1, 1, {"=cmd|calc": -0.5, "'=cmd|calc": 0.5}, spans_table([]), len(rows))
    export(tmp_path / "run", "samples", "csv", tmp_path / "samples.csv")
    with (tmp_path / "samples.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [row["completion"] for row in found] == [f"'{text}" for text in FORMULAS]
    assert {(row["prompt"], row["reward"]) for row in found} == {("fine", "-1.0")}
    export(tmp_path / "run", "series", "csv", tmp_path / "series.csv")
    head, values = (tmp_path / "series.csv").read_text().splitlines()
    assert "'=cmd|calc" in head.split(",")
    assert "=cmd|calc" not in head.split(",")
    assert "-0.5" in values.split(",")


def test_recompute_holds_sample_metrics_against_the_rows(tmp_path, capsys):
    one = core(tmp_path)
    one.log_samples("b", 1, samples_table(group([0.0, 1.0], sample_metrics={"x": 1.0})))
    one.log_step("trainer", 1, 1, {}, spans_table([]), 2)
    names = {"sums": ["y"]}
    one.store.add_values([(1, "y_mean", 1.0)], attempt=1, source="f", seq=1, time_s=0.0, sample_metrics=names)
    one.close("finished")
    assert main(["recompute", str(tmp_path)]) == 1
    assert "y_mean: logged 1.0, from the rows None" in capsys.readouterr().out
