import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from hostile import SLEEPER

from environments.base import Sample
from environments.batch import REWARD_COLUMNS, table_of
from environments.checks import BadEnvironment
from environments.worker import EnvironmentWorker

LIMIT_S = 1.0


@pytest.fixture(scope="module")
def hostile():
    with EnvironmentWorker("hostile:Hostile", {}, limit_s=LIMIT_S) as worker:
        yield worker


@pytest.fixture(scope="module")
def hostile_async():
    with EnvironmentWorker("hostile:HostileAsync", {}, limit_s=LIMIT_S) as worker:
        yield worker


def batch(*completions):
    return table_of([Sample("p")] * len(completions), completions)


def outcome(table):
    return list(zip(table["reward"].to_pylist(), table["error"].to_pylist(), strict=True))


def error_of(worker, completion):
    ((reward, error),) = outcome(worker.score(batch(completion)))
    assert reward is None
    return error


@pytest.mark.parametrize(
    ("completion", "reward"),
    [("True", 1.0), ("np.float32", 0.5), ("np.bool", 1.0), ("0-d", 0.25), ("fraction", 0.25), ("bare", 0.75)],
)
def test_scalars_of_every_kind_are_rewards(hostile, completion, reward):
    assert outcome(hostile.score(batch(completion))) == [(reward, None)]


@pytest.mark.parametrize(
    ("completion", "error"),
    [
        ("None", "unscored: compute_reward() returned None"),
        ("total None", "unscored: total_reward is None"),
        ("{}", "TypeError: compute_reward() must return a RewardResult or a number, got {} (dict)"),
        ("'1'", "TypeError: total_reward must be a number, got '1' (str)"),
        ("bare '1'", "TypeError: compute_reward() must return a RewardResult or a number, got '1' (str)"),
        ("nan", "ValueError: total_reward must be finite, got nan (float)"),
        ("inf", "ValueError: total_reward must be finite, got -inf (float)"),
        ("bare nan", "ValueError: compute_reward() must return a finite number, got nan (float)"),
        ("complex", "TypeError: total_reward must be a number, got (1+2j) (complex)"),
        ("1-d", "TypeError: total_reward must be a number, got array([3.]) (ndarray)"),
        ("list", "TypeError: total_reward must be a number, got [1.0] (list)"),
        ("metric nan", "ValueError: sample_metrics['a'] must be finite, got nan (float)"),
        ("metric '1'", "TypeError: sample_metrics['a'] must be a number, got '1' (str)"),
        ("metrics list", "TypeError: sample_metrics must be a dict of numbers, got [('a', 1.0)] (list)"),
        (
            "metric a//b",
            "ValueError: sample metric 'a//b' (str): every part between '/' needs at least one character",
        ),
        ("metric control", "ValueError: sample metric 'a\\n' (str): a name may not hold control characters"),
        ("metric reward", "sample metric 'reward': the name belongs to a built-in metric; choose another"),
        ("metric 7", "TypeError: sample metric: a name must be a string, got 7 (int)"),
        ("tag list", "TypeError: tags must be a dict of texts, got 'level' (str): ['hard'] (list)"),
        ("divide", "compute_reward() failed: ZeroDivisionError: division by zero"),
        ("surly", "compute_reward() failed: Surly: an error that cannot be shown"),
        ("sys.exit", "compute_reward() failed: SystemExit: bye"),
    ],
)
def test_what_is_no_reward_is_an_error_that_says_so(hostile, completion, error):
    found = error_of(hostile, completion)
    assert found.endswith(error)
    assert found.startswith(("environment 'hostile:Hostile': compute_reward() failed: ", "unscored: "))


def test_a_huge_reward_or_name_is_refused_in_short(hostile):
    assert "total_reward must fit into a float" in error_of(hostile, "huge")
    assert "a name has at most 200 characters, got 201" in error_of(hostile, "metric long")
    assert len(error_of(hostile, "huge text")) == 2_000


def test_a_metric_that_is_none_is_absent_for_that_sample(hostile):
    table = hostile.score(batch("metric None", "fine"))
    assert table["sample_metrics"].to_pylist() == [[("b", 0.0)], []]


def test_texts_are_written_out_and_cleaned(hostile):
    table = hostile.score(batch("texts"))
    assert table["golden_answers"].to_pylist() == [[("answer", "4")]]
    assert table["tags"].to_pylist() == [[("level", "?hard")]]


def test_the_table_comes_back_with_the_reward_columns_in_the_same_order(hostile):
    table = batch("fine", "divide", "fine").append_column("group", pa.array([7, 8, 9]))
    scored = hostile.score(hostile.score(table))
    assert scored.column_names == [*table.column_names, *REWARD_COLUMNS.names]
    assert scored.schema.field("sample_metrics").type == pa.map_(pa.string(), pa.float64())
    assert scored["group"].to_pylist() == [7, 8, 9]
    assert scored["reward"].to_pylist() == [1.0, None, 1.0]
    assert hostile.score(table.slice(0, 0)).schema == scored.schema


def test_times_are_of_the_shared_monotonic_clock(hostile):
    before = time.monotonic()
    table = hostile.score(batch("fine", "divide"))
    starts, ends = table["reward_start_s"].to_pylist(), table["reward_end_s"].to_pylist()
    assert before < starts[0] <= ends[0] <= starts[1] <= ends[1] < time.monotonic()


@pytest.mark.parametrize(
    ("completion", "error"),
    [
        ("busy", "reward took longer than 1 s; its process was replaced"),
        ("sleep", "reward took longer than 1 s; its process was replaced"),
        ("exit", "its process ended with exit code 3"),
        ("segfault", "its process was killed by SIGSEGV"),
        ("interrupt", "its process was killed by SIGINT"),
    ],
)
def test_a_hang_or_a_crash_costs_its_row_only(hostile, completion, error):
    started = time.monotonic()
    found = outcome(hostile.score(batch("fine", "fine", completion, "fine")))
    assert found == [(1.0, None), (1.0, None), (None, f"environment 'hostile:Hostile': {error}"), (1.0, None)]
    assert time.monotonic() - started < 10


def test_every_hang_is_bounded_and_nothing_is_left_running(hostile):
    found = hostile.score(batch("busy", "busy", "fine"))
    assert found["reward"].to_pylist() == [None, None, 1.0]
    spans = [
        end - start
        for start, end in zip(
            found["reward_start_s"].to_pylist()[:2], found["reward_end_s"].to_pylist()[:2], strict=True
        )
    ]
    assert all(LIMIT_S <= span < LIMIT_S + 3 for span in spans)
    mine = [child for child in psutil.Process().children() if "environments.child" in child.cmdline()]
    assert all(child.cpu_percent(0.2) < 50 for child in mine)


def test_what_a_hanging_call_has_started_ends_with_it(hostile):
    found = hostile.score(batch("starts another", "fine"))
    assert found["reward"].to_pylist() == [None, 1.0]
    running = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert SLEEPER not in running


def test_the_limit_is_a_limit_of_each_call_not_of_the_batch():
    with EnvironmentWorker("hostile:HostileAsync", {}, limit_s=0.5) as worker:  # 0.05 s a call, 16 at a time
        assert worker.score(batch(*["fine"] * 200))["error"].null_count == 200


def test_async_rewards_wait_together(hostile_async):
    started = time.monotonic()
    assert hostile_async.score(batch(*["fine"] * 64))["reward"].to_pylist() == [1.0] * 64
    assert time.monotonic() - started < 2.5  # 64 waits of 0.05 s one after the other take 3.2 s


def test_an_async_hang_is_cancelled_without_losing_the_process(hostile_async):
    (_, first), (reward, error) = outcome(hostile_async.score(batch("await", "fine")))
    assert first == "environment 'hostile:HostileAsync': compute_reward() took longer than 1 s"
    assert (reward, error) == (1.0, None)


@pytest.mark.parametrize("completion", ["busy", "exit"])
def test_among_async_calls_the_guilty_one_is_found(hostile_async, completion):
    found = outcome(hostile_async.score(batch("fine", completion, *["fine"] * 4)))
    assert [reward for reward, _ in found] == [1.0, None, 1.0, 1.0, 1.0, 1.0]
    assert "hostile:HostileAsync" in found[1][1]


def test_the_process_is_light_and_knows_nothing_of_ray(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with EnvironmentWorker("hostile_light:Modules", {}, limit_s=LIMIT_S) as worker:
        table = worker.score(batch("x"))
    assert table["tags"].to_pylist() == [[("heavy", ""), ("ray", "")]]


def test_a_worker_starts_in_a_blink():
    started = time.monotonic()
    EnvironmentWorker("reverse_text", {}, limit_s=LIMIT_S).close()
    assert time.monotonic() - started < 5


def test_what_an_environment_prints_disturbs_nothing(hostile):
    assert outcome(hostile.score(batch("print"))) == [(1.0, None)]


def test_sample_and_end_token_arrive_as_they_were():
    messages = [{"role": "user", "content": "2+2?"}]
    samples = [Sample(messages, {"x": [1, None]}, {"level": 3}), Sample("messages:é", "4")]
    with EnvironmentWorker("hostile_light:Picky", {}, limit_s=LIMIT_S, eos_token="</s>") as worker:
        table = worker.score(table_of(samples, ["4</s>", "4"]))
    assert table["reward"].to_pylist() == [1.0, 0.0]
    assert table["tags"].to_pylist() == [
        [("sample", repr((messages, {"x": [1, None]}, {"level": 3})))],
        [("sample", repr(("messages:é", "4", {})))],
    ]


def test_columns_that_are_not_json_or_null_are_row_errors(hostile):
    table = pa.table(
        {"prompt": ["p", "p", None], "completion": ["fine", None, "fine"], "answer": ["{", None, None]},
    )
    (_, first), (_, second), third = outcome(hostile.score(table))
    assert "column 'answer' must hold JSON, got '{' (str)" in first
    assert "the row has no completion" in second
    assert third == (1.0, None)


def test_a_table_that_cannot_be_scored_is_refused(hostile):
    with pytest.raises(ValueError, match=r"needs the columns \['completion'\], got \['prompt'\]"):
        hostile.score(pa.table({"prompt": ["p"]}))
    with pytest.raises(TypeError, match="column 'completion' must hold strings, got int64"):
        hostile.score(pa.table({"prompt": ["p"], "completion": [1]}))


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        (
            "sum",
            {},
            "environment 'sum' is unknown; available: calculator, code, countdown, gsm8k, ",
        ),
        (
            "hostile:Stuck",
            {},
            "environment 'hostile:Stuck': its process ended with exit code 5 while starting",
        ),
        (
            "hostile:Stuck",
            {"how": "sys.exit"},
            "environment 'hostile:Stuck': its process ended with exit code 4 while starting",
        ),
        (
            "hostile:Stuck",
            {"how": "interrupt"},
            "environment 'hostile:Stuck': its process was killed by SIGINT while starting",
        ),
        ("hostile:Settings", {"size": 0}, "size must be at least 1, got 0"),
        ("hostile:Settings", {"size": {1}}, "settings must be JSON values"),
    ],
)
def test_an_environment_that_cannot_start_is_refused_at_once(name, kwargs, message):
    with pytest.raises(BadEnvironment) as caught:
        EnvironmentWorker(name, kwargs, limit_s=LIMIT_S)
    assert message in str(caught.value)


@pytest.mark.parametrize("limit_s", [0, -1, float("nan"), float("inf"), 1e300, 86_401])
def test_a_limit_must_be_a_positive_time(limit_s):
    with pytest.raises(ValueError, match="the time limit must be a positive number of seconds"):
        EnvironmentWorker("reverse_text", {}, limit_s=limit_s)


def test_a_closed_worker_says_so():
    worker = EnvironmentWorker("reverse_text", {}, limit_s=LIMIT_S)
    worker.close()
    worker.close()
    with pytest.raises(ValueError, match="the worker of environment 'reverse_text' is closed"):
        worker.score(batch("x"))


def test_calls_from_several_threads_do_not_mix(hostile):
    found = {}

    def score(number):
        found[number] = hostile.score(batch(*["divide"] * number, "fine"))["reward"].to_pylist()

    threads = [threading.Thread(target=score, args=(number,)) for number in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [None] * number + [1.0] for number in range(1, 6)}


def test_a_busy_child_does_not_outlive_its_parent():
    code = (
        "import psutil, threading, time\n"
        "from environments.base import Sample\n"
        "from environments.batch import table_of\n"
        "from environments.worker import EnvironmentWorker\n"
        "worker = EnvironmentWorker('hostile:Hostile', {}, limit_s=60)\n"
        "print(psutil.Process().children()[0].pid, flush=True)\n"
        "worker.score(table_of([Sample('p')], ['busy']))\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE
    )
    with parent:
        child = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.3)
        parent.send_signal(signal.SIGKILL)
    child.wait(timeout=5)


def test_a_bare_function_scores_a_batch():
    with EnvironmentWorker("hostile:lengths", {}, limit_s=LIMIT_S) as worker:
        assert worker.score(batch("a", "bcd"))["reward"].to_pylist() == [1.0, 3.0]
        assert worker.score(batch()).num_rows == 0


@pytest.mark.parametrize("completion", ["busy", "divide", "exit"])
def test_a_bad_row_of_a_bare_function_costs_only_itself(completion):
    with EnvironmentWorker("hostile:lengths", {}, limit_s=LIMIT_S) as worker:
        found = outcome(worker.score(batch("a", completion, "bcd")))
    assert [reward for reward, _ in found] == [1.0, None, 3.0]
    assert found[1][1].startswith("environment 'hostile:lengths': ")


def test_a_bare_function_may_ask_for_a_table_and_give_one_back():
    with EnvironmentWorker("hostile:from_table", {}, limit_s=LIMIT_S) as worker:
        table = worker.score(batch("a", "b"))
    assert table["reward"].to_pylist() == [0.5, 0.5]
    assert table["sample_metrics"].to_pylist() == [[("words", 2.0)]] * 2


@pytest.mark.parametrize(
    ("completion", "error"),
    [
        ("none in list", "unscored: reward() gave None for this row"),
        ("nan in list", "ValueError: total_reward must be finite, got nan (float)"),
        ("strings", "TypeError: total_reward must be a number, got '1' (str)"),
        ("none", "TypeError: reward() must return one reward a row as a list or array, got None (NoneType)"),
        ("number", "TypeError: reward() must return one reward a row as a list or array, got 1.0 (float)"),
        ("too many", "ValueError: reward() must return one reward a row: 1 wanted, got 2"),
        ("no column", "ValueError: reward() must return a column 'reward', got ['score'] (list)"),
    ],
)
def test_what_a_bare_function_may_not_return(returns, completion, error):
    found = outcome(returns.score(batch(completion, completion)))
    assert [reward for reward, _ in found] == [None, None]
    assert all(text.endswith(error) for _, text in found)


@pytest.fixture(scope="module")
def returns():
    with EnvironmentWorker("hostile:returns", {}, limit_s=LIMIT_S) as worker:
        yield worker


def test_a_bare_function_may_add_metrics(returns):
    table = returns.score(batch("metrics", "metrics"))
    assert table["sample_metrics"].to_pylist() == [[("a", 2.0)]] * 2
