import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from app import run_dir
from app.run_dir import RunDir, RunError


def new(root: Path, name: str = "demo") -> RunDir:
    return run_dir.create(
        root,
        name=name,
        config_yaml="steps: 3\n",
        steps=3,
        model="embedded",
        environments=["sums"],
        algorithm="grpo",
    )


def test_a_new_run_is_pending_and_holds_what_made_it(tmp_path):
    run = new(tmp_path)
    record = run.record()
    assert (record["id"], record["name"], record["state"], record["attempt"]) == (
        run.id,
        "demo",
        "pending",
        1,
    )
    assert record["environments"] == ["sums"]
    assert record["versions"]["python"].startswith("3.1")
    assert {"ray", "torch", "transformers"} <= set(record["versions"])
    assert run.config_path.read_text() == "steps: 3\n"
    assert sorted(path.name for path in run.path.iterdir()) == [
        "checkpoints", "config.yaml", "logs", "metrics", "run.json"
    ]  # fmt: skip


def test_the_same_name_twice_makes_two_runs(tmp_path):
    first, second = new(tmp_path), new(tmp_path)
    assert first.id != second.id
    assert {run.id for run in run_dir.list_runs(tmp_path)} == {first.id, second.id}


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "a/../../b",
        "/etc/x",
        "a\\..\\b",
        "..",
        ".",
        "",
        "con",
        "NUL.txt",
        "x" * 300,
        "a\0b",
        "a\n",
        "-x",
        "a b",
    ],
)
def test_a_name_that_is_not_one_plain_component_is_refused_with_the_rule(tmp_path, name):
    with pytest.raises(ValueError, match="1 to 63 characters"):
        new(tmp_path, name)
    with pytest.raises(RunError):
        run_dir.open_run(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_two_dots_inside_a_name_are_fine(tmp_path):
    assert run_dir.open_run(tmp_path, new(tmp_path, "ok..name").id).record()["name"] == "ok..name"


def test_a_link_in_the_root_is_not_followed(tmp_path):
    run = new(tmp_path / "elsewhere")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(run.path)
    assert run_dir.list_runs(tmp_path / "runs") == []
    with pytest.raises(RunError, match="'link' is not in"):
        run_dir.open_run(tmp_path / "runs", "link")


def test_the_first_final_state_wins(tmp_path):
    run = new(tmp_path)
    run.update(state="running", started_at=1.0)
    assert run.end("stopped", "by hand")
    assert not run.end("failed", "the driver noticed too late")
    assert (run.record()["state"], run.record()["reason"]) == ("stopped", "by hand")
    with pytest.raises(RunError, match="is stopped and cannot become running; resume it"):
        run.update(state="running")


def test_an_ended_run_is_in_no_phase_of_its_start(tmp_path):
    run = new(tmp_path)
    run.update(state="starting")
    run.enter("checking the prompts")
    assert run.record()["phase"] == "checking the prompts"
    run.end("stopped", "by hand")
    assert run.record()["phase"] is None
    run.enter("waiting for the first batch")  # a worker that has not heard of the end
    assert run.record()["phase"] is None


def test_only_an_ended_run_is_reopened_and_gets_the_next_attempt(tmp_path):
    run = new(tmp_path)
    with pytest.raises(RunError, match="is pending; only an ended run"):
        run.reopen()
    run.end("failed", "killed")
    assert run.reopen() == 2
    record = run.record()
    assert (record["state"], record["reason"], record["ended_at"], record["attempt"]) == (
        "pending",
        None,
        None,
        2,
    )


@pytest.mark.parametrize("fields", [{"stat": "running"}, {"id": "x"}, {"state": "done"}])
def test_run_json_takes_known_fields_and_states_only(tmp_path, fields):
    run = new(tmp_path)
    with pytest.raises(RunError):
        run.update(**fields)
    assert run.state == "pending"


def test_writers_of_different_fields_do_not_lose_each_other(tmp_path):
    run = new(tmp_path)
    script = textwrap.dedent("""
        import sys; from pathlib import Path; from app.run_dir import RunDir
        run, key = RunDir(Path(sys.argv[1])), sys.argv[2]
        for i in range(50): run.update(**{key: [str(i)] if key == "tags" else str(i)})
    """)
    writers = [subprocess.Popen([sys.executable, "-c", script, str(run.path), key]) for key in ("notes", "tags")]
    seen = []
    while any(writer.poll() is None for writer in writers):
        seen.append(run.record()["format"])  # never a half-written file
    assert [writer.returncode for writer in writers] == [0, 0]
    assert (run.record()["notes"], run.record()["tags"]) == ("49", ["49"])
    assert set(seen) == {1}


def test_a_second_writer_is_refused_with_pid_and_host_of_the_first(tmp_path):
    run = new(tmp_path)
    script = "import sys; from pathlib import Path; from app.run_dir import RunDir\n"
    script += "with RunDir(Path(sys.argv[1])).writer(): print('have it', flush=True); sys.stdin.read()"
    first = subprocess.Popen(
        [sys.executable, "-c", script, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with first:
        assert first.stdout.readline() == b"have it\n"
        assert run.has_writer()
        with (
            pytest.raises(RunError, match=rf"written by pid {first.pid} on {os.uname().nodename}"),
            run.writer(),
        ):
            pass
        first.kill()
    assert not run.has_writer()
    with run.writer():
        assert run.record()["pid"] == os.getpid()


@pytest.mark.parametrize("root", ["file/runs", "/proc/telescope"])
def test_a_root_that_cannot_be_written_is_named_with_the_remedy(tmp_path, root):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot be written .* set runs_dir .* or \$TELESCOPE_RUNS"):
        new(tmp_path / root)


def test_damaged_run_json_is_named_and_does_not_hide_the_other_runs(tmp_path):
    good, bad = new(tmp_path), new(tmp_path)
    (bad.path / "run.json").write_text('{"id": ')
    assert {run.id for run in run_dir.list_runs(tmp_path)} == {good.id, bad.id}
    with pytest.raises(RunError, match=r"run\.json: not readable as the record"):
        bad.record()


def test_where_runs_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TELESCOPE_RUNS", str(tmp_path))
    assert run_dir.root_of() == tmp_path
    assert run_dir.root_of("/elsewhere") == Path("/elsewhere")
    monkeypatch.delenv("TELESCOPE_RUNS")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_dir.root_of() == tmp_path / "telescope_runs"


def test_a_failed_write_leaves_the_old_file(tmp_path):
    run = new(tmp_path)
    with pytest.raises(ValueError, match="Out of range"):
        run.update(created_at=float("nan"))
    assert json.loads((run.path / "run.json").read_text())["id"] == run.id
    assert not list(run.path.glob(".run.json*"))
