"""How the executor of the stream waits: with Ray Data's own code, and a stand-in for the calls into Ray."""

from typing import Any
from unittest.mock import Mock

import pytest
from ray.data import DataContext
from ray.data._internal.execution import streaming_executor_state as executor_state
from ray.data._internal.execution.interfaces import RefBundle
from ray.data._internal.execution.metadata_fetcher import InlineMetadataFetcher, MetadataFetcher
from ray.data._internal.execution.streaming_executor import StreamingExecutor

from app import stream
from app.stream import EagerWait, _EagerRay

pytestmark = pytest.mark.usefixtures("own_ray_of_the_executor")


@pytest.fixture
def own_ray_of_the_executor(monkeypatch):
    monkeypatch.setattr(executor_state, "ray", executor_state.ray)


class Waits:
    """`ray.wait` with answers that are given, and a list of the questions."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    def wait(self, tasks: list[str], **asked: Any) -> tuple[list[str], list[str]]:
        self.asked.append(asked)
        ready = self.answers.pop(0)
        return ready, [task for task in tasks if task not in ready]


def test_a_wait_ends_with_the_first_task_and_takes_those_that_are_ready_with_it():
    ray = Waits(["b"], ["b", "c"])
    ready, rest = _EagerRay(ray).wait(["a", "b", "c"], num_returns=3, timeout=0.1, fetch_local=False)
    assert (ready, rest) == (["b", "c"], ["a"])
    first, second = ray.asked
    assert (first["num_returns"], first["timeout"]) == (1, stream.IDLE_S)
    assert (second["num_returns"], second["timeout"]) == (3, 0)


def test_without_anything_ready_the_executor_goes_on_after_a_while():
    ray = Waits([])
    assert _EagerRay(ray).wait(["a"], num_returns=1, timeout=0.1, fetch_local=False) == ([], ["a"])
    assert len(ray.asked) == 1


def test_a_task_that_is_ready_but_may_not_be_read_does_not_spin(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(stream.time, "sleep", slept.append)
    _EagerRay(Waits(["a"], ["a"])).wait(["a"], num_returns=1, timeout=0.1, fetch_local=False)
    assert slept == [stream.GATHER_S]


def test_ray_datas_executor_waits_this_way(monkeypatch):
    executor = StreamingExecutor(DataContext.get_current())
    assert isinstance(executor._metadata_fetcher, MetadataFetcher)
    EagerWait().before_execution_starts(executor)
    assert isinstance(executor._metadata_fetcher, InlineMetadataFetcher)

    ray = Waits([])
    monkeypatch.setattr(executor_state, "ray", _EagerRay(ray))
    operator: Any = Mock(get_active_tasks=lambda: [Mock(get_waitable=lambda: "a")], has_next=lambda: False)
    executor_state.process_completed_tasks({operator: Mock(op=operator)}, [], 0, Mock(), executor._metadata_fetcher)
    assert [asked["timeout"] for asked in ray.asked] == [stream.IDLE_S]


def test_what_the_splitter_hands_on_reaches_the_trainer_within_the_same_step():
    rank_0 = RefBundle([], owns_blocks=True, schema=None, output_split_idx=0)
    made = [rank_0]
    splitter: Any = Mock(has_next=lambda: bool(made), get_next=made.pop)
    state = Mock()
    EagerWait().on_execution_step(Mock(_topology={splitter: state}))
    state.add_output.assert_called_once_with(rank_0)
