"""What a reader pays for what is new, and that deltas put together are the whole curve."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metrics import journal, read, reader
from metrics import series as curves
from metrics.export import export
from metrics.schema import spans_table
from metrics.segments import FAN_IN, MANIFEST
from metrics.store import Store
from tests.metrics.builders import core

KEYS = [f"key_{i}" for i in range(10)]


def opened(run_dir: Path, attempt: int = 1, resume_step: int = 0) -> Store:
    store = Store(run_dir)
    store.begin(attempt, resume_step, {"config": {}, "environments": [], "num_slots": 1})
    return store


def log(store: Store, step: int, attempt: int = 1, keys: list[str] = KEYS, **more: Any) -> None:
    seq = more.get("seq", step)
    values = [(step, key, float(attempt * 1000 + step)) for key in keys]
    store.add_values(values, attempt=attempt, source="t", seq=seq, time_s=float(seq))


class Cost:
    """What reading costs: bytes of journals parsed and rows of segments looked at, from the disk or from memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parsed_bytes = self.rows = 0
        parse, decode = journal.parsed, reader.decoded

        def parsing(data: bytes, first: int = 1):
            self.parsed_bytes += len(data)
            return parse(data, first)

        def decoding(folder, segment, *more):
            self.rows += segment.num_rows
            return decode(folder, segment, *more)

        monkeypatch.setattr(journal, "parsed", parsing)
        monkeypatch.setattr(reader, "decoded", decoding)

    def taken(self) -> tuple[int, int]:
        cost = self.parsed_bytes, self.rows
        self.parsed_bytes = self.rows = 0
        return cost


def costs_of_polls(run_dir: Path, steps: range, monkeypatch) -> list[tuple[int, int]]:
    """(bytes parsed, rows looked at) of a delta after each of these steps, on a run that has the steps before them."""
    store = opened(run_dir)
    for step in range(1, steps.start):
        log(store, step)
    read.series(run_dir)
    costs = []
    with monkeypatch.context() as patch:
        cost = Cost(patch)
        for step in steps:
            log(store, step)
            cost.taken()  # what the writer read
            found = read.series(run_dir, since=step - 1)
            assert (found["steps"], found["late"], found["last_step"]) == ([step], {}, step)
            costs.append(cost.taken())
    store.close()
    return costs


def test_a_delta_reads_the_new_line_and_the_new_rows_however_long_the_run_is(tmp_path, monkeypatch):
    """Except where the writer just merged segments: every FAN_IN steps, and then in proportion to what was merged."""
    short = costs_of_polls(tmp_path / "short", range(FAN_IN + 2, 2 * FAN_IN), monkeypatch)
    long = costs_of_polls(tmp_path / "long", range(3 * FAN_IN**2 + 2, 3 * FAN_IN**2 + FAN_IN), monkeypatch)
    assert {rows for _, rows in (*short, *long)} == {len(KEYS)}
    assert max(size for size, _ in long) < 1.1 * max(size for size, _ in short) < 1500


def test_deltas_of_a_whole_run_read_every_line_once_and_each_row_a_few_times(tmp_path, monkeypatch):
    steps = FAN_IN**2 + 40
    costs = costs_of_polls(tmp_path, range(2, steps), monkeypatch)
    rows = sum(looked_at for _, looked_at in costs)
    assert rows <= 5 * steps * len(KEYS)  # once when new, and twice for each level of merging
    assert sum(size for size, _ in costs) < 1500 * steps


def test_a_delta_of_a_resumed_run_reads_the_new_rows_too(tmp_path, monkeypatch):
    store = opened(tmp_path)
    for step in range(1, 30):
        log(store, step)
    store.close()
    store = opened(tmp_path, attempt=2, resume_step=10)
    for step in range(11, 21):
        log(store, step, attempt=2, seq=100 + step)
    read.series(tmp_path)
    cost = Cost(monkeypatch)
    for step in range(21, 24):
        log(store, step, attempt=2, seq=100 + step)
        cost.taken()
        found = read.series(tmp_path, since=step - 1)
        assert (found["steps"], found["late"], found["last_step"]) == ([step], {}, step)
        assert cost.taken()[1] == len(KEYS)


def test_nothing_is_read_again_while_nothing_changes(tmp_path, monkeypatch):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "run.json").write_text('{"started_at": 1.0}')
    store = opened(run_dir)
    for step in range(1, 50):
        log(store, step)
    first = (read.catalog(run_dir), read.runs(tmp_path)[0]["latest"], read.series(run_dir, since=49)["steps"])
    cost = Cost(monkeypatch)
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail(f"{self} was read"))
    assert (
        read.catalog(run_dir),
        read.runs(tmp_path)[0]["latest"],
        read.series(run_dir, since=49)["steps"],
    ) == first
    assert read.runs(tmp_path)[0]["elapsed_s"] > 1e9  # what the clock changes is made anew
    assert cost.taken() == (0, 0)
    monkeypatch.undo()
    log(store, 50, keys=["new"])
    store.close()
    assert "new" in {entry["key"] for entry in read.catalog(run_dir)}
    assert read.runs(tmp_path)[0]["last_step"] == 50


class Follower:
    """A reader that only asks for what is new, as the dashboard does."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.rev, self.points = run_dir, -1, {}

    def poll(self) -> None:
        since = max((step for step, _ in self.points), default=None)
        found = read.series(self.run_dir, since=since)
        if found["rev"] != self.rev and since is not None:
            self.points, found = {}, read.series(self.run_dir)
        self.rev = found["rev"]
        for key, column in found["columns"].items():
            self.points |= {
                (step, key): value for step, value in zip(found["steps"], column, strict=True) if value is not None
            }
        for key, late in found["late"].items():
            self.points |= {(step, key): value for step, value in late}


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(moves=st.lists(st.sampled_from("sssselpprk"), min_size=3, max_size=60), random=st.randoms(use_true_random=False))
def test_deltas_put_together_are_the_curve(tmp_path_factory, moves, random):
    """s: a step; e: an eval of the next step, before it; l: a late value; p: a poll; r: a resume; k: a step skipped."""
    run_dir = tmp_path_factory.mktemp("run")
    attempt, step = 1, 0
    store, follower = opened(run_dir), Follower(run_dir)
    for seq, move in enumerate(moves):
        if move == "s":
            step += 1
            log(store, step, attempt, seq=seq)
        elif move == "e":
            log(store, step + 1, attempt, ["eval/a/reward_mean"], seq=seq)
        elif move == "l":
            log(store, random.randint(0, step), attempt, ["late"], seq=seq)
        elif move == "k":
            step += 1
        elif move == "r":
            store.close()
            step, attempt = random.randint(0, step), attempt + 1
            store = opened(run_dir, attempt, step)
        else:
            follower.poll()
    store.close()
    follower.poll()
    reader.forget()
    whole = read.series(run_dir)
    expected = {
        (at, key): value
        for key, column in whole["columns"].items()
        for at, value in zip(whole["steps"], column, strict=True)
        if value is not None
    }
    assert follower.points == expected


@pytest.mark.parametrize("first", [1, 4 - FAN_IN])
def test_a_step_that_was_never_logged_is_a_place_to_go_on_from(tmp_path, first):
    store = opened(tmp_path)
    for step in [*range(first, 3), 5]:
        log(store, step)
    store.close()
    assert len(list((tmp_path / "metrics" / "series").glob("*.L1.parquet"))) == (first < 1)
    for since in (3, 4):
        found = read.series(tmp_path, since=since)
        assert (found["steps"], found["late"]) == ([5], {})


def test_a_damaged_segment_does_not_make_a_reader_begin_again(tmp_path):
    store = opened(tmp_path)
    for step in range(1, 6):
        log(store, step)
    target = sorted((tmp_path / "metrics" / "series").glob("*.parquet"))[1]
    target.write_bytes(b"rubbish")
    assert len(read.series(tmp_path)["damaged"]) == 1
    log(store, 6)
    store.close()
    assert read.series(tmp_path)["rev"] == read.series(tmp_path, since=5)["rev"]


@pytest.mark.parametrize(
    "line",
    [
        {"file": "../../x.parquet"},
        {"file": "/etc/passwd"},
        {"file": 3},
        {"strange": 1},
        {"steps": [1]},
        {"steps": None},
        {"attempts": [1, "2"]},
        {"last_row": "9"},
        {"meta": []},
        {"replaces": 5},
        {"replaces": [["x.parquet"]]},
    ],
)
def test_a_line_of_the_manifest_that_is_no_segment_of_its_folder_is_named(tmp_path, line):
    store = opened(tmp_path)
    log(store, 1)
    store.close()
    path = tmp_path / "metrics" / "series" / MANIFEST
    item = journal.read_lines(path).items[0]
    journal.append_line(path, item | line)
    assert read.series(tmp_path)["damaged"] == ["series/manifest.jsonl: line 2 is damaged"]
    assert read.series(tmp_path)["steps"] == [1]


def test_damaged_lines_of_attempts_and_checks_are_named(tmp_path):
    opened(tmp_path).close()
    for name in ("attempts.jsonl", "checks.jsonl"):
        with (tmp_path / "metrics" / name).open("ab") as file:
            file.write(b"00000000 rubbish\n")
    assert read.damaged(tmp_path) == ["attempts.jsonl: line 2 is damaged", "checks.jsonl: line 1 is damaged"]


STRANGE = ["[train] loss", "loss (nats)", "a%b", "a:b", "a?b#c", "потери", "損失/訓練", "🎯/acc", "my.loss", "Val mIoU"]
STRANGE += ["a`b", 'a"b', "a'b", "a{b}", "SELECT", "energy (eV/A)", "=1+1", "<b>x</b>", "__proto__", "step", "time"]


def test_a_strange_key_has_the_curve_of_a_plain_one(tmp_path):
    store = opened(tmp_path)
    for step in range(1, FAN_IN + 3):
        log(store, step, keys=["plain", *STRANGE])
    store.close()
    columns = read.series(tmp_path)["columns"]
    assert all(read.series(tmp_path, keys=[key])["columns"] == {key: columns["plain"]} for key in STRANGE)
    assert sorted(entry["key"] for entry in read.catalog(tmp_path)) == sorted(["plain", *STRANGE])
    for kind in ("csv", "json", "parquet"):
        assert export(tmp_path, "series", kind, tmp_path / kind) == FAN_IN + 2
    assert pl.read_parquet(tmp_path / "parquet", columns=["SELECT"])["SELECT"].to_list() == columns["plain"]


def test_a_clock_that_is_set_back_changes_no_order_and_no_duration(tmp_path):
    moments = iter([1000.0, 2000.0, -2600.0, -1600.0])
    one = core(tmp_path, clock=lambda: next(moments))
    for step in range(1, 5):
        span = {"step": step, "lane": "trainer 0", "kind": "step", "start_s": step - 1.0, "end_s": float(step)}
        one.log_step("t", step, step, {"a": float(step)}, spans_table([span]), 0)
        assert read.series(tmp_path, since=step - 1)["steps"] == [step]
    one.close("finished")
    found = read.series(tmp_path)
    assert (found["steps"], found["columns"]["a"]) == ([1, 2, 3, 4], [1.0, 2.0, 3.0, 4.0])
    assert found["columns"]["timing_step_total"] == [1.0] * 4
    assert read.elapsed({"started_at": 2000.0, "ended_at": 1000.0}) == 0.0


def test_many_keys_and_steps_are_spread_out_in_parts(tmp_path, monkeypatch):
    from metrics import series

    store = opened(tmp_path)
    for step in range(1, 8):
        log(store, step)
    store.close()
    whole = read.series(tmp_path)
    monkeypatch.setattr(series, "CELLS", 15)
    assert read.series(tmp_path) == whole


ROWS = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.floats(1, 9),
        st.sampled_from("abc"),
        st.one_of(st.floats(-9, 9), st.sampled_from([float("nan"), float("inf"), float("-inf")])),
    ),
    max_size=30,
)


OF_ONE_STEP = st.builds(lambda step, rows: [(step, *row[1:]) for row in rows], st.integers(0, 6), ROWS)


@given(st.one_of(ROWS, OF_ONE_STEP))
def test_the_loop_over_few_rows_gives_what_the_arrays_give(rows):
    schema = {"step": pl.Int64, "time": pl.Float64, "key": pl.String, "value": pl.Float64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    loop = curves.columns_of(frame, curves.FEW + 1)
    assert loop == curves.columns_of(frame, curves.FEW)
    assert len(loop["steps"]) == len({step for step, *_ in rows})
