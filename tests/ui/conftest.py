"""Runs to look at, and the dashboard as an application without a server."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from tests.metrics.builders import write_run
from ui.app import build, without_pages

HOME = "http://127.0.0.1"


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A finished run with a NaN at step 7, one of three environments that was resumed at 8, and one that failed."""
    root = tmp_path_factory.mktemp("runs")
    return SimpleNamespace(
        root=root,
        plain=write_run(root, name="plain", steps=12, groups=3, seed=1).name,
        mixed=write_run(
            root, name="mixed", steps=14, groups=3, environments=("sums", "countdown", "letters"), resume_at=8, seed=2
        ).name,
        failed=write_run(root, name="failed", steps=8, groups=2, state="failed", seed=3).name,
    )


@pytest.fixture(scope="session")
def dashboard(runs: SimpleNamespace) -> Iterator[TestClient]:
    """The routes without the pages, which take a second to make."""
    with TestClient(without_pages(runs.root, None), base_url=HOME) as client:
        yield client


@pytest.fixture(scope="session")
def pages(runs: SimpleNamespace) -> Iterator[TestClient]:
    with TestClient(build(runs.root, None), base_url=HOME) as client:
        yield client


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of runs that a test may write to."""
    return tmp_path / "runs"
