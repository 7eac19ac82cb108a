"""What ends a run from inside the training loop."""

import pytest

from app.failure import reason_of
from app.train_loop import SelfCheckError, refuse_red

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
