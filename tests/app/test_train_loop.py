"""What ends a run from inside the training loop."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from app import train_loop
from app.failure import reason_of
from app.train_loop import SelfCheckError, Worker, refuse_red

TIED = {
    "check": "groups_tied",
    "ok": False,
    "step": 2,
    "value": 0.0,
    "threshold": 1.0,
    "message": "4 of 4 groups have all rewards equal",
    "hint": "no group can teach anything",
    "level": "warn",
    "is_floor": True,
}
FINE = TIED | {"check": "probe", "ok": True}


def test_a_red_check_ends_the_run_when_the_configuration_names_it():
    refuse_red([FINE, TIED], [])
    refuse_red([FINE, TIED], ["probe", "mismatch"])
    with pytest.raises(SelfCheckError) as failure:
        refuse_red([FINE, TIED], ["probe", "groups_tied"])
    assert reason_of(failure.value) == (
        "SelfCheckError: step 2: self-check groups_tied: 4 of 4 groups have all rewards equal (value 0, at least 1); "
        "likely cause: no group can teach anything"
    )


@pytest.mark.parametrize(("rank", "did"), [(0, ["stored", "sealed", "all there"]), (1, ["all there"])])
def test_no_rank_goes_on_before_the_checkpoint_of_the_step_is_sealed(monkeypatch, rank, did):
    """Else a rank that fails in the next step ends the run while the first is still sealing."""
    seen: list[str] = []
    config = SimpleNamespace(keep_last=1, keep_every=0)
    stored = partial(seen.append, "stored")
    worker = SimpleNamespace(rank=rank, config=config, trainer=None, cursor=None, cpu_group=None, stored=stored)
    monkeypatch.setattr(train_loop.checkpoint, "seal", lambda *_: seen.append("sealed"))
    monkeypatch.setattr(train_loop.dist, "barrier", lambda group: seen.append("all there"))
    Worker.seal(worker, None, SimpleNamespace(step=2))
    assert seen == []
    Worker.seal(worker, Path("step_000002"), SimpleNamespace(step=2))
    assert seen == did
