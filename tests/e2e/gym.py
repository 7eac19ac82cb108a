"""reasoning-gym as the processes of a run find it: in the folder that the tests install it into."""

from tests.environments.packages import provide

if (problem := provide("reasoning_gym")) is not None:
    raise ImportError(problem)

from environments.reasoning_gym import ReasoningGym

__all__ = ["ReasoningGym"]
