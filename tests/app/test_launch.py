import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from app import evaluate, launch, local_ray, progress, run_dir, train
from app.jobs import Status
from app.progress import Progress
from tests.metrics.builders import write_run

GONE_LIMIT_S = 15
SMALL = """
name: small
model: embedded
steps: 4
environments:
  - {name: sums, reward_min: 0.0, reward_max: 1.0}
"""


def series(*rows: dict) -> dict:
    """What the metrics reader gives for these steps, counted from 0."""
    keys = {key for row in rows for key in row}
    columns = {key: [row.get(key) for row in rows] for key in keys}
    return {"steps": list(range(len(rows))), "columns": columns, "late": {}}


def step(reward: float, **more: float) -> dict:
    return {
        "reward_mean": 0.9,
        "generated/reward_mean": reward,
        "timing_step_total": 2.0,
        "tokens/generated": 500.0,
        **more,
    }


def test_the_line_tells_step_reward_speed_and_time_left():
    seen = Progress(40)
    assert seen.line() == "step 0/40"
    assert seen.feed(series({}, step(0.25), step(0.5)))
    assert seen.line() == "step 2/40 · reward 0.500 · 250 tokens/s · 1 min 16 s left"
    assert not seen.feed(series({}, step(0.25), step(0.5)))


def test_the_summary_compares_held_out_reward_and_accounts_for_every_sample():
    seen = Progress(2)
    seen.feed(
        series(
            {"eval/sums/reward_mean": 0.31},
            step(0.4, **{"ledger/trained": 64.0, "ledger/zero_advantage": 0.0}),
            step(0.9, **{"ledger/trained": 128.0, "ledger/zero_advantage": 8.0, "eval/sums/reward_mean": 0.93}),
        )
    )
    assert seen.summary(75.4, 31.0) == [
        ("held-out reward, sums", "0.310 → 0.930"),
        ("steps", "2 of 2"),
        ("wall time", "1 min 15 s (31 s to the first step)"),
        ("tokens generated", "1,000"),
        ("samples", "trained 128, zero_advantage 8"),
    ]


def test_the_log_of_a_run_tells_how_far_it_is(tmp_path, caplog):
    caplog.set_level("INFO")
    run = write_run(tmp_path, name="told", steps=3, groups=2)
    with progress.logged(run, steps=4):
        pass
    assert [line.partition(" · ")[0] for line in caplog.messages] == ["step 3/4"]


def test_a_step_whose_eval_is_ahead_of_its_own_numbers_is_not_done():
    seen = Progress(2)
    assert seen.feed(series({}, step(0.25), {"eval/sums/reward_mean": 0.3}))
    assert seen.line() == "step 1/2 · reward 0.250 · 250 tokens/s · 2 s left"
    assert seen.feed({"steps": [2], "columns": {key: [value] for key, value in step(0.5).items()}, "late": {}})
    assert seen.line() == "step 2/2 · reward 0.500 · 250 tokens/s · 0 s left"
    assert seen.summary(1.0, None)[0] == ("held-out reward, sums", "0.300")


def test_the_summary_says_how_to_get_at_the_weights_or_that_there_are_none(tmp_path):
    run = run_dir.RunDir(tmp_path)
    assert launch.weights(run).startswith("none kept: no checkpoint was due; checkpoint_every")
    for step, files in ((5, ["place.json"]), (10, ["place.json"]), (15, [])):
        folder = run.checkpoints / f"step_{step:06d}"
        folder.mkdir(parents=True)
        for name in files:
            (folder / name).touch()
    assert launch.weights(run) == f"of step 10: {sys.executable} -m app.export {tmp_path} NEW_FOLDER"


def test_an_eval_that_took_longer_than_its_step_is_counted():
    seen = Progress(2)
    seen.feed(series({"eval/sums/reward_mean": 0.3}, step(0.4)))
    seen.feed(
        {"steps": [2], "columns": {"generated/reward_mean": [0.5]}, "late": {"eval/sums/reward_mean": [[1, 0.6]]}}
    )
    assert seen.summary(1.0, None)[0] == ("held-out reward, sums", "0.300 → 0.600")


def test_a_run_without_evals_shows_its_training_reward_and_one_without_steps_shows_none():
    seen = Progress(2)
    assert seen.summary(3.0, None) == [("steps", "0 of 2"), ("wall time", "3 s")]
    seen.feed(series({}, step(0.4), step(0.9)))
    assert seen.summary(3.0, 1.0)[0] == ("reward while training", "0.400 → 0.900")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7260, "2 h 1 min")]
)
def test_durations(seconds, text):
    assert progress.duration(seconds) == text


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    return str(file)


def test_a_port_in_use_is_said_before_anything_is_started(config, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TELESCOPE_RUNS", str(tmp_path / "runs"))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert launch.main([config, "--port", str(port)]) == 2
    assert f"port {port} on 127.0.0.1 is not free" in (error := capsys.readouterr().err)
    assert f"--port {port + 1}, or `make demo PORT={port + 1}`" in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_ends_the_program_is_an_interruption(number, config, monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(launch.sys, name, getattr(launch.sys, name))  # a closed terminal is given up
    monkeypatch.setattr(launch, "_interrupted_at", -launch.ONE_INTERRUPT_S)
    monkeypatch.setattr(launch, "launch", lambda *_: signal.raise_signal(number))
    as_started = signal.signal(number, signal.SIG_DFL)  # these tests may have been started to outlive their terminal
    try:
        assert launch.main([config, f"--port={local_ray.free_ports(1)[0]}"]) == launch.INTERRUPTED
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, as_started)


def test_a_program_that_shall_outlive_its_terminal_does(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in launch._ends()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_make_hands_on_the_port_and_the_overrides():
    root = Path(launch.__file__).parent.parent
    words = ["make", "-n", "demo", "PORT=18001", "ARGS=steps=20 seed=1"]
    told = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout
    assert "app.launch configs/demo.yaml --port 18001 steps=20 seed=1\n" in told


@pytest.mark.parametrize("port", ["0", "65536", "99999", "-1", "²", "1" * 5000, "x"])
def test_what_is_no_port_is_refused(port, config, capsys):
    with pytest.raises(SystemExit, match="2"):
        launch.main([config, f"--port={port}"])
    assert "whole number from 1 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (launch, ["a.yaml", "seed=1", "--port", "18000", "steps=20"]),
        (train, ["a.yaml", "seed=1", "steps=20"]),
        (evaluate, ["model", "a.yaml", "seed=1", "--out", "rows.parquet", "steps=20"]),
    ],
)
def test_options_may_stand_between_the_overrides(program, words):
    options = program._options(words)
    assert (options.config, options.overrides) == ("a.yaml", ["seed=1", "steps=20"])


def test_with_a_run_all_words_are_changes():
    options = train._options(["--run-dir", "a=b", "seq_len=9", "--resume", "num_workers=2"])
    assert (options.run_dir, options.config, options.overrides) == ("a=b", None, ["seq_len=9", "num_workers=2"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give either a config or --run-dir"),
        (["a.yaml", "--resume"], "--resume goes with --run-dir"),
        (["--run-dir", "a", "num_workers=2"], "--run-dir takes overrides with --resume only"),
    ],
)
def test_words_that_say_nothing_clear_are_refused(words, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        train._options(words)
    assert said in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_started(config, capsys):
    port = str(local_ray.free_ports(1)[0])
    assert launch.main([config, "runs_dir=/proc/telescope", "--port", port]) == 2
    assert "runs_dir '/proc/telescope': cannot be written" in capsys.readouterr().err


def test_a_bad_configuration_is_said_before_anything_is_started(config, capsys):
    before = signal.getsignal(signal.SIGINT)
    assert launch.main([config, "stepps=4"]) == 2
    assert signal.getsignal(signal.SIGINT) is before
    assert "did you mean 'steps'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ('environments.0.kwargs={"foo": 1}', "environment 'sums' has no setting 'foo' (str); accepted: "),
        ("environments.0.name=os:system", "environment 'os:system' must name an environment class or a function"),
        ("environments.0.name=FOLDER/broken.py", "broken.py' cannot be imported: SyntaxError"),
        ("environments.0.name=countdown", "environment 'countdown' has no worked_examples(seed)"),
    ],
)
def test_an_environment_that_cannot_be_used_is_one_sentence(override, said, config, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TELESCOPE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("TELESCOPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "broken.py").write_text("def reward(:\n")
    port = str(local_ray.free_ports(1)[0])
    assert launch.main([config, override.replace("FOLDER", str(tmp_path)), "--port", port]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_dashboard_whose_serve_ended_is_told_once_and_the_run_goes_on(monkeypatch):
    class Ended:
        def __init__(self, url: str) -> None: ...

        def deploy_applications(self, wanted: dict) -> None: ...

        def get_serve_details(self) -> dict:
            return {"applications": {}}

    monkeypatch.setattr("ray.dashboard.modules.serve.sdk.ServeSubmissionClient", Ended)
    dashboard = launch.Dashboard(SimpleNamespace(dashboard_url=""), 8000)
    assert "the run goes on without it: its Serve has ended" in (dashboard.announce() or "")
    assert dashboard.announce() is None


def test_a_moment_in_which_ray_does_not_answer_for_the_dashboard_ends_nothing(monkeypatch):
    class Busy:
        def __init__(self, url: str) -> None: ...

        def deploy_applications(self, wanted: dict) -> None: ...

        def get_serve_details(self) -> dict:
            raise RuntimeError("Request failed with status code 503")

    monkeypatch.setattr("ray.dashboard.modules.serve.sdk.ServeSubmissionClient", Busy)
    dashboard = launch.Dashboard(SimpleNamespace(dashboard_url=""), 8000)
    assert dashboard.announce() is None
    assert not dashboard.announced


def test_every_step_is_read_once_and_exactly(monkeypatch):
    """A whole curve of many steps would be thinned: its sums are not those of the run."""
    asked: list[int | None] = []
    parts = [series({}, step(0.25)), {"steps": [2], "columns": {k: [v] for k, v in step(0.5).items()}, "late": {}}]

    def metrics(since: int | None) -> dict:
        asked.append(since)
        return parts.pop(0)

    statuses = iter([Status("running"), Status("finished")])
    monkeypatch.setattr(launch, "POLL_S", 0.0)
    waits: list[bool] = []
    run = SimpleNamespace(status=lambda: next(statuses), metrics=metrics, wait=lambda: waits.append(True))
    seen = Progress(2)
    assert launch._follow(run, seen, SimpleNamespace(announce=lambda: None), 0.0)[0] == "finished"
    assert asked == [None, 1]
    assert waits == [True], "for the log, before the cluster that has it is gone"
    assert ("tokens generated", "1,000") in seen.summary(1.0, None)


@pytest.mark.parametrize(
    ("available", "shared", "store"), [(16, 100, 2000), (16, 2, 1000), (1, 100, 500), (16, 0.1, 500), (99, 100, 4000)]
)
def test_rays_objects_get_a_part_of_the_free_memory_within_bounds(monkeypatch, available, shared, store):
    """Gigabytes that are free, and what lies in shared memory."""
    free = SimpleNamespace(available=int(available * 1e9), free=int(shared * 1e9))
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    monkeypatch.setattr("shutil.disk_usage", lambda path: free)
    assert local_ray.store_mb() == store


@pytest.mark.stack
def test_a_local_ray_of_ones_own_leaves_no_process_behind(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)  # another cluster may be there: this one must not join it
    with local_ray.local_ray(num_cpus=1, object_store_mb=100) as cluster:
        script = "import ray; ray.init(); from ray import serve; serve.start(http_options={'port': 0})"
        environment = {**os.environ, **local_ray.ENVIRONMENT, "RAY_ADDRESS": cluster.address}
        subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True, timeout=120)
        members = local_ray.family(cluster.folder)
        assert len(members) > 8
        assert any("ray::ServeController" in " ".join(process.cmdline()) for process in members)
    assert [process.pid for process in members if local_ray._is_alive(process)] == []
    assert not cluster.folder.exists()


LAUNCHER = """
from app import local_ray

with local_ray.local_ray(num_cpus=1, object_store_mb=100) as cluster:
    print(cluster.folder, flush=True)
    input()
"""


@pytest.mark.stack
def test_the_local_ray_of_a_killed_program_ends_within_seconds():
    words = [sys.executable, "-c", LAUNCHER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        folder = Path(launcher.stdout.readline().strip())
        members = local_ray.family(folder)
        launcher.kill()
    assert len(members) > 4
    end = time.monotonic() + GONE_LIMIT_S
    while left := [process.pid for process in members if local_ray._is_alive(process)]:
        assert time.monotonic() < end, f"{left} are there {GONE_LIMIT_S} s after the program was killed"
        time.sleep(0.1)
    while folder.exists():
        assert time.monotonic() < end, f"{folder} is there {GONE_LIMIT_S} s after the program was killed"
        time.sleep(0.1)
