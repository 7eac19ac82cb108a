import asyncio

import pytest
from ray.exceptions import RayTaskError

from app.run_context import answered


async def told(error: Exception) -> None:
    raise error


def test_a_time_out_of_the_actors_own_stays_what_it_is():
    own = RayTaskError("log_eval", "the disk did not answer", TimeoutError()).as_instanceof_cause()
    assert isinstance(own, TimeoutError)
    with pytest.raises(RayTaskError, match="the disk did not answer"):
        asyncio.run(answered(told(own), 1, "the metrics actor"))
