"""The copy of a run directory at a URL: a run at every moment, and the same run when it is fetched."""

import logging
import shutil
import threading
from pathlib import Path

import pytest

from app import mirror, run_dir
from app.config import ConfigError, refuse_files
from app.mirror import Mirror, MirrorError, fetch, mirrored
from app.run_dir import RunDir
from metrics import read
from metrics.recompute import recompute
from metrics.schema import samples_table
from metrics.segments import read_manifest, segment_bytes
from metrics.store import TABLES, Store
from tests import s3
from tests.app.tiny import tiny_config
from tests.metrics.builders import sample

SEALED = {"__0_0.distcp", ".metadata", "place.json"}


@pytest.fixture
def run(tmp_path) -> RunDir:
    return run_dir.create(
        tmp_path / "runs",
        name="demo",
        config_yaml="steps: 3\n",
        steps=3,
        model="embedded",
        environments=["sums"],
        algorithm="grpo",
    )


def begun(run: RunDir) -> Store:
    store = Store(run.path)
    store.begin(1, 0, {"config": {}, "environments": [], "num_slots": 1})
    return store


def add_step(store: Store, step: int) -> None:
    store.add_values([(step, "reward_mean", float(step))], attempt=1, source="trainer/1", seq=step, time_s=float(step))


def missing(copy: Path) -> list[str]:
    """Segments that the copy's manifests name and that are not there whole."""
    wrong = []
    for table in TABLES:
        folder = copy / "metrics" / table
        for segment in read_manifest(folder).segments:
            try:
                segment_bytes(folder, segment)
            except (FileNotFoundError, ValueError) as error:
                wrong.append(f"{table}/{segment.file}: {error}")
    return wrong


def seal(run: RunDir, step: int) -> None:
    folder = run.checkpoints / f"step_{step:06d}"
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"weights %d" % step)
    (folder / ".metadata").write_bytes(b"where the weights are")
    (folder / "place.json").write_text(f'{{"step": {step}}}')


def unseal(run: RunDir, step: int) -> None:
    """Removes a checkpoint as the trainer does: the seal first."""
    folder = run.checkpoints / f"step_{step:06d}"
    (folder / "place.json").unlink()
    shutil.rmtree(folder)


def test_the_copy_is_a_run_at_every_moment_while_segments_are_merged(run, tmp_path, monkeypatch):
    """Between any two files that are copied, the writer stores three steps; every sixteenth merges sixteen segments."""
    store, target = begun(run), tmp_path / "far"
    copy, steps = Mirror(run.path, target.as_uri()), iter(range(1, 10_000))
    write = copy._write

    def write_while_the_run_goes_on(name, data):
        write(name, data)
        for _ in range(3):
            add_step(store, next(steps))
        assert missing(target / run.id) == []

    monkeypatch.setattr(copy, "_write", write_while_the_run_goes_on)
    for _ in range(12):
        copy.sync()
    done = next(steps) - 1
    assert done > 100
    monkeypatch.setattr(copy, "_write", write)
    copy.sync()
    assert missing(target / run.id) == []
    assert copy.sync() == 0, "what has not changed is not copied again"
    assert read.series(target / run.id)["last_step"] == done
    ours = {path.name for path in (run.path / "metrics" / "series").iterdir()}
    assert {path.name for path in (target / run.id / "metrics" / "series").iterdir()} == ours
    store.close()


def test_checkpoints_that_are_removed_during_each_pass_keep_nothing_else_back(run, tmp_path, monkeypatch):
    """Between any two files that are copied, a checkpoint is sealed and the one before it removed."""
    store, far = begun(run), tmp_path / "far"
    add_step(store, 1)
    seal(run, 0)
    copy, steps = Mirror(run.path, far.as_uri()), iter(range(10_000))
    write = copy._write

    def write_while_checkpoints_come_and_go(name, data):
        write(name, data)
        assert all({file.name for file in one.parent.iterdir()} == SEALED for one in far.rglob("place.json"))
        step = next(steps)
        seal(run, step + 1)
        unseal(run, step)

    monkeypatch.setattr(copy, "_write", write_while_checkpoints_come_and_go)
    copy.sync()
    assert read.series(far / run.id)["last_step"] == 1
    monkeypatch.setattr(copy, "_write", write)
    copy.sync()
    assert [file.parent.name for file in (far / run.id).rglob("place.json")] == [f"step_{next(steps):06d}"]
    store.close()


def test_a_fetched_run_is_the_run(run, tmp_path):
    store = begun(run)
    store.add_samples(samples_table([sample(), sample(sample_id=2)]), attempt=1, source="batcher/1", seq=1)
    for step in range(1, 40):
        add_step(store, step)
    seal(run, 20)
    store.close()
    Mirror(run.path, (tmp_path / "far").as_uri()).sync()
    fetched = fetch((tmp_path / "far" / run.id).as_uri(), tmp_path / "other")
    assert fetched == tmp_path / "other" / run.id
    assert run_dir.open_run(tmp_path / "other", run.id).record() == run.record()
    assert read.series(fetched) == read.series(run.path)
    assert {file.name for file in (fetched / "checkpoints" / "step_000020").iterdir()} == SEALED
    assert (fetched / "checkpoints" / "step_000020" / "__0_0.distcp").read_bytes() == b"weights 20"
    assert recompute(fetched).differences == recompute(run.path).differences
    with pytest.raises(MirrorError, match="exists already"):
        fetch((tmp_path / "far" / run.id).as_uri(), tmp_path / "other")


def test_a_checkpoint_that_is_removed_loses_its_seal_first(run, tmp_path, monkeypatch):
    copy = Mirror(run.path, (tmp_path / "far").as_uri())
    seal(run, 10)
    copy.sync()
    for file in (run.checkpoints / "step_000010").iterdir():
        file.unlink()
    removed: list[str] = []
    delete = copy.system.delete_file
    monkeypatch.setattr(copy, "system", copy.system)

    class Watched:
        def delete_file(self, path):
            removed.append(path.rpartition("/")[2])
            delete(path)

        def __getattr__(self, name):
            return getattr(mirror.fs.LocalFileSystem(), name)

    copy.system = Watched()  # type: ignore[assignment]
    copy.sync()
    assert removed[0] == "place.json"
    assert set(removed) == SEALED


def test_a_seal_comes_after_its_weights_and_its_numbers_and_the_state_of_the_run_last(run, tmp_path, monkeypatch):
    store, copy, written = begun(run), Mirror(run.path, (tmp_path / "far").as_uri()), []
    add_step(store, 10)
    seal(run, 10)
    write = copy._write
    monkeypatch.setattr(copy, "_write", lambda name, data: (written.append(name), write(name, data)))
    copy.sync()
    store.close()
    sealing = written.index("checkpoints/step_000010/place.json")
    assert written.index("checkpoints/step_000010/__0_0.distcp") < sealing
    assert max(place for place, name in enumerate(written) if name.startswith("metrics/")) < sealing
    assert written[-1] == "run.json"


def test_the_end_of_a_run_is_copied(run, tmp_path):
    with mirrored(run.path, (tmp_path / "far").as_uri()):
        run.end("finished")
    assert RunDir(tmp_path / "far" / run.id).state == "finished"
    assert not [thread for thread in threading.enumerate() if thread.name == "mirror"]


def test_a_store_that_fails_meanwhile_ends_no_run_and_is_caught_up_with(run, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(mirror, "EVERY_S", 0.01)
    real, failures = Mirror.sync, [OSError("no route")]

    def sync(self):
        if failures:
            raise failures.pop()
        return real(self)

    monkeypatch.setattr(Mirror, "sync", sync)
    with caplog.at_level(logging.WARNING, "telescope"), mirrored(run.path, (tmp_path / "far").as_uri()):
        run.update(notes="later")
    assert RunDir(tmp_path / "far" / run.id).record()["notes"] == "later"
    assert "trying again: no route" in caplog.text


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://key:secret@bucket/runs", "environment variables"),
        ("s3://bucket/runs?secret_key=x", "environment variables"),
        ("nowhere://bucket", "wanted a URL like"),
        ("runs", "wanted a URL like"),
    ],
)
def test_a_url_that_is_none_or_holds_a_secret_is_refused_and_not_repeated(url, words):
    with pytest.raises(MirrorError, match=words) as refused:
        mirror.opened(url)
    assert "secret" not in str(refused.value)


def test_a_place_that_cannot_be_written_is_refused_before_the_run_begins(run, tmp_path):
    (tmp_path / "far").write_text("a file")
    with pytest.raises(MirrorError, match="cannot be written"), mirrored(run.path, (tmp_path / "far").as_uri()):
        pytest.fail("the run began")


def test_a_url_without_a_run_is_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert mirror.main([(tmp_path / "empty").as_uri(), str(tmp_path / "runs")]) == 2
    assert "there is no run.json" in capsys.readouterr().err


def test_over_http_no_place_to_copy_to_can_be_chosen():
    with pytest.raises(ConfigError, match="for the command line to choose"):
        refuse_files(tiny_config(mirror="s3://elsewhere/runs"))


@pytest.mark.stack
def test_an_s3_server_holds_a_run_that_can_be_fetched(run, tmp_path):
    with s3.server():
        with pytest.raises(MirrorError, match="cannot be written"):
            Mirror(run.path, "s3://telescope/runs").check()
        s3.make_bucket("telescope")
        store = begun(run)
        with mirrored(run.path, "s3://telescope/runs"):
            for step in range(1, 40):
                add_step(store, step)
            seal(run, 20)
            store.close()
            run.end("finished")
        fetched = fetch(f"s3://telescope/runs/{run.id}", tmp_path / "other")
    assert RunDir(fetched).state == "finished"
    assert read.series(fetched) == read.series(run.path)
    assert missing(fetched) == []
    assert (fetched / "checkpoints" / "step_000020" / "__0_0.distcp").read_bytes() == b"weights 20"
