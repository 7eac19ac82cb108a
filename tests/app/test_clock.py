"""One clock for several hosts: what is added to a process's own, and how wrong it can be."""

import asyncio
import time

import pytest

from app import clock
from app.clock import Clock, Ping, own_clock


class Elsewhere:
    """An actor on a host whose clock shows `ahead_s` more; its answers take a way there and another back."""

    def __init__(self, ahead_s: float, ways_s: list[tuple[float, float]], name: str = "elsewhere") -> None:
        self.ahead_s, self.ways_s, self.name, self.asked = ahead_s, ways_s, name, 0

    @property
    def clock(self):
        return self

    async def remote(self):
        there_s, back_s = self.ways_s[self.asked % len(self.ways_s)]
        self.asked += 1
        await asyncio.sleep(there_s)
        shown_s = time.monotonic() + self.ahead_s
        await asyncio.sleep(back_s)
        return self.name, shown_s


def test_an_actor_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(clock, "ANSWER_LIMIT_S", 0.01)
    with pytest.raises(TimeoutError, match=r"the weight store did not answer within 0\.01 s"):
        asyncio.run(Clock(Elsewhere(0.0, [(30.0, 0.0)])).refresh_async())


def test_the_difference_is_known_to_half_of_the_fastest_answers_way():
    there = Elsewhere(5_000.0, [(0.05, 0.2), (0.001, 0.012), (0.3, 0.0)])
    one = Clock(there)
    asyncio.run(one.refresh_async())
    assert there.asked == clock.PINGS
    assert one.offset_s == pytest.approx(5_000.0, abs=one.error_s)
    assert 0.0065 <= one.error_s < 0.05
    assert one.now() - time.monotonic() == pytest.approx(5_000.0, abs=one.error_s + 1e-3)
    assert one.of(1.0) == 1.0 + one.offset_s
    assert one.of(None) is None


def test_of_a_process_on_the_same_host_nothing_is_changed_and_it_is_asked_once():
    here = Elsewhere(0.3, [(0.0, 0.0)], name=own_clock())
    one = Clock(here)
    asyncio.run(one.refresh_async())
    asyncio.run(one.refresh_async())
    assert (one.offset_s, one.error_s, here.asked) == (0.0, 0.0, clock.PINGS)


def test_clocks_that_drift_are_compared_again(monkeypatch):
    there = Elsewhere(10.0, [(0.0, 0.0)])
    one = Clock(there)
    asyncio.run(one.refresh_async())
    there.ahead_s = 11.0
    asyncio.run(one.refresh_async())
    assert one.offset_s == pytest.approx(10.0, abs=0.1), "not due yet"
    monkeypatch.setattr(clock.time, "monotonic", lambda at=time.monotonic: at() + clock.REFRESH_S)
    asyncio.run(one.refresh_async())
    assert one.offset_s == pytest.approx(11.0, abs=0.1)


def test_without_a_reference_it_is_the_processs_own():
    one = Clock()
    one.refresh()
    assert one.now() == pytest.approx(time.monotonic(), abs=0.1)


def test_the_fastest_answer_counts():
    one = Clock()
    one.take([Ping("b", 100.0, 0.0, 4.0), Ping("b", 200.0, 10.0, 10.2), Ping("b", 300.0, 20.0, 21.0)])
    assert (one.offset_s, one.error_s) == pytest.approx((189.9, 0.1))
