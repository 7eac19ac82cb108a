"""Calls to all engines while some of them come and go."""

import time

import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from app import publish
from app.publish import Publisher

ABSENT = DeploymentUnavailableError(DeploymentID("engine", "policy-run"))


class Engines:
    """Dies at the end of its first `deaths` calls, each of which takes `call_s`."""

    def __init__(self, deaths: int, call_s: float = 0.0) -> None:
        self.deaths, self.call_s, self.calls = deaths, call_s, 0

    def broadcast(self, method: str, *arguments: object) -> "Engines":
        self.calls += 1
        return self

    def results(self, timeout_s: float) -> list[str]:
        time.sleep(self.call_s)
        if self.calls <= self.deaths:
            raise ABSENT
        return ["loaded"]


def publisher(monkeypatch, engines: Engines) -> Publisher:
    monkeypatch.setattr(publish, "ENGINE_POLL_S", 0.05)
    monkeypatch.setattr(publish, "ENGINE_RETURN_S", 0.1)
    made = Publisher.__new__(Publisher)
    made.engines = engines
    return made


def test_a_replacement_is_waited_for_from_the_death_on_and_not_from_the_call(monkeypatch):
    assert publisher(monkeypatch, Engines(deaths=1, call_s=0.2))._every_engine("load_weights") == ["loaded"]


def test_a_replacement_that_does_not_come_ends_the_wait_by_name(monkeypatch):
    engines = Engines(deaths=10**9)
    with pytest.raises(RuntimeError, match=r"load_weights: an engine died: .*, and none came back within 0.1 s"):
        publisher(monkeypatch, engines)._every_engine("load_weights")
    assert engines.calls == 3
