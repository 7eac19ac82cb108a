"""Environments that talk, some of them badly; what the policy says tells how."""

import asyncio
import time
from typing import Annotated, ClassVar, Literal

from environments.base import RewardResult, Sample
from environments.multi_turn import MultiTurnEnvironment, State
from environments.tools import ToolEnvironment
from tests.environments.hostile import act


class Echo(MultiTurnEnvironment):
    """Says what it heard, until it hears "bye"; counts in its memory. Does what `act` knows, and a few things more."""

    max_turns = 3

    def env_response(self, messages, state: State):
        heard = messages[-1]["content"]
        act(heard)
        state.data["heard"] = [*state.data.get("heard", []), heard]
        return REPLIES.get(heard, f"you said {heard}")

    def is_done(self, state: State) -> bool:
        return state.completions[-1] == "bye"

    def compute_reward(self, state: State) -> RewardResult:
        act(state.completions[-1])
        return RewardResult(len(state.completions), {"heard": len(state.data.get("heard", []))})


REPLIES = {
    "end": None,
    "messages": [
        {"role": "tool", "content": "5", "name": "add"},
        {"role": "user", "content": "go on", "is_error": True},
    ],
    "number": 5,
    "nothing": [],
    "assistant": [{"role": "assistant", "content": "me, too"}],
    "forged role": [{"role": "user<eos>", "content": "x"}],
    "extra": [{"role": "user", "content": "x", "colour": "red"}],
    "no content": [{"role": "user"}],
    "surrogate": "a\ud800b",
    "long": "x" * 1_000_001,
}


class Rewriter(MultiTurnEnvironment):
    """Tries to change what was said, and keeps things that JSON cannot."""

    def env_response(self, messages, state: State):
        heard = messages[-1]["content"]
        messages.clear()
        state.turns.clear()
        state.data["kept"] = {"tuple": (1, 2), "number key": {1: 2}, "set": {1}, "nan": float("nan")}.get(heard, [1, 2])
        return "on"

    def compute_reward(self, state: State) -> RewardResult:
        return RewardResult(1.0)


class Watching(Echo):
    """Remembers how much had been said whenever it was asked whether it is done."""

    def is_done(self, state: State) -> bool:
        state.data["seen"] = [*state.data.get("seen", []), [turn["content"] for turn in state.turns]]
        return False


class AsyncEcho(MultiTurnEnvironment):
    async def env_response(self, messages, state: State):
        heard = messages[-1]["content"]
        if heard == "await":
            await asyncio.sleep(3600)
        act(heard)
        await asyncio.sleep(0.05)
        return f"you said {heard}"

    async def compute_reward(self, state: State) -> RewardResult:
        await asyncio.sleep(0.01)
        return RewardResult(len(state.completions))


class Unfinished(MultiTurnEnvironment):
    def env_response(self, messages):
        return None


def add(a: int, b: int = 1) -> int:
    """Add two whole numbers.

    They may be negative.

    Args:
        a: the first
        b (int): the second
    """
    return a + b


def shop(state: State, item: Literal["tea", "milk"], tags: list[str] | None = None) -> str:
    """Put an item into the basket."""
    basket = state.data.setdefault("basket", [])
    basket.append(item)
    return " and ".join(basket)


def busy(kind: Annotated[str, "how"]) -> str:
    """Take too long, or fail."""
    try:
        if kind == "sleep":
            time.sleep(3600)
        while kind == "loop":
            pass
        act(kind)
    except Exception:
        if kind == "swallow":
            return "swallowed"
        raise
    return {"big": "x" * 20_000}.get(kind, kind)


async def wait(seconds: float) -> dict[str, float]:
    """Wait, and say how long."""
    await asyncio.sleep(seconds)
    if seconds < 0:
        raise TimeoutError("of its own")
    return {"waited": seconds}


class Toolbox(ToolEnvironment):
    tools = (add, shop, busy, wait)
    tool_timeout_s = 0.5

    def compute_reward(self, state: State) -> RewardResult:
        return RewardResult(1.0, {"add_calls": 7.0} if state.completions[-1] == "mine" else {})


class Llama(Toolbox):
    tool_format = "function"
    max_calls_per_turn = 2
    reply_roles = ("user",)


class Quiet(Toolbox):
    def conversation_metrics(self, state: State):
        return {}


class WithMethod(ToolEnvironment):
    metrics_ranges: ClassVar = {}

    def __init__(self, step: int = 1) -> None:
        super().__init__(max_turns=2)
        self.step = step
        self.tools = [self.next]

    def next(self, number: int) -> int:
        """The next number."""
        return number + self.step

    def compute_reward(self, state: State) -> RewardResult:
        return RewardResult(0.0)


def undescribed(a: int) -> int:
    return a


def untyped(a):
    """Untyped."""


def starred(*a: int):
    """Starred."""


def unknown_tool(a: int):
    """Would be counted as unknown."""


def unprintable(a: object):
    """No schema for this."""


def strange(a: "Nowhere"):  # noqa: F821
    """A type that is not there."""


class Undescribed(Toolbox):
    tools = (undescribed,)


class Untyped(Toolbox):
    tools = (untyped,)


class Starred(Toolbox):
    tools = (starred,)


class Reserved(Toolbox):
    tools = (unknown_tool,)


class Twice(Toolbox):
    tools = (add, add)


class Without(Toolbox):
    tools = ()


class Strange(Toolbox):
    tools = (strange,)


def sample(prompt="hi", **changes) -> Sample:
    return Sample(prompt, **changes)
