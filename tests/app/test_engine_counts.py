import pytest

from app.engine import Loaded
from app.engine_counts import NOTHING, engine_metrics
from app.publish import Publisher


def counts(**values: float) -> dict[str, float]:
    return NOTHING | values


def test_the_sums_of_all_engines_are_divided_once():
    now = {
        "a": counts(steps=10, running=40, waiting=5, kv_cache=2.0, prompt_tokens=100, cached_tokens=50, preemptions=3),
        "b": counts(steps=30, running=40, waiting=0, kv_cache=6.0, prompt_tokens=300, cached_tokens=10),
    }
    before = {"a": counts(steps=5, running=20, waiting=5, kv_cache=1.0, preemptions=1)}
    assert engine_metrics(now, before) == {
        "engine/steps": 35,
        "engine/running": pytest.approx(60 / 35),
        "engine/waiting": 0,
        "engine/kv_cache": pytest.approx(7 / 35),
        "engine/prefix_cache_hits": pytest.approx(60 / 400),
        "engine/preemptions": 2,
    }


def test_of_an_engine_that_is_gone_nothing_is_counted():
    """Its last steps are not known: no difference may become negative."""
    before = {"dead": counts(steps=100, running=700), "alive": counts(steps=4, running=4)}
    found = engine_metrics({"alive": counts(steps=6, running=14), "new": counts(steps=2, running=2)}, before)
    assert (found["engine/steps"], found["engine/running"]) == (4, 3)


def test_an_engine_that_misses_a_push_is_not_counted_from_its_start_again():
    publisher = Publisher.__new__(Publisher)
    publisher.counts = {}

    def steps(**engines: float) -> float:
        loads = [Loaded(name, 0.0, 1.0, counts(steps=count)) for name, count in engines.items()]
        return publisher._engines_did(loads)["engine/steps"]

    assert [steps(a=100, b=100), steps(a=110), steps(a=120, b=120)] == [200, 10, 30]


def test_without_a_step_or_a_prompt_there_is_no_value():
    idle = {"a": counts(steps=7, running=9, prompt_tokens=64)}
    assert engine_metrics(idle, idle) == {}
    assert "engine/prefix_cache_hits" not in engine_metrics({"a": counts(steps=8, prompt_tokens=64)}, idle)
