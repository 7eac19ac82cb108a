"""Environments that answer back: the policy and the environment take turns, and the whole conversation is rewarded.

    class Guess(MultiTurnEnvironment):
        max_turns = 5

        def env_response(self, messages, state):
            guess = messages[-1]["content"].strip()
            state.data["right"] = guess == state.sample.answer
            return None if state.data["right"] else "Wrong. Again: "

        def compute_reward(self, state):
            return RewardResult(float(state.data["right"]), {"guesses": len(state.completions)})

After each turn of the policy: `is_done`, then `env_response`, then `is_done` again. `env_response` is called after the
last of `max_turns` turns too, so that `state.data` always knows the policy's last word; nothing is sampled after it.
It runs in a process that can be killed, within the entry's `turn_timeout_s`; what it raises makes the sample an error.
"""

import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.base import (
    BaseEnvironment,
    Message,
    RewardResult,
    Sample,
    decode_prompt,
    encode_prompt,
)

Reply = str | list[Message] | None
MOST_TURNS = 1_000


@dataclass
class State:
    """One conversation so far.

    turns: everything said after the prompt, the policy's turns with the role `assistant`. To read: what an environment
    does to it has no effect, because what was said was said. data: the environment's memory of this conversation, its
    to change; JSON values (lists, not tuples; texts as keys), since each turn may run in another process.
    """

    sample: Sample
    turns: list[Message] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def messages(self) -> list[Message]:
        """The prompt and all turns; a text prompt is a message of the user."""
        prompt = self.sample.prompt
        return [*([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt), *self.turns]

    @property
    def completions(self) -> list[str]:
        """What the policy said, turn by turn."""
        return [turn["content"] for turn in self.turns if turn["role"] == "assistant"]

    def to_json(self) -> str:
        """Raises TypeError where `data` would come back from JSON as something else."""
        data = json.dumps(self.data)
        if json.loads(data) != self.data:
            raise TypeError("state.data must hold JSON values: lists, not tuples; texts as keys; no nan")
        sample = [encode_prompt(self.sample.prompt), self.sample.answer, dict(self.sample.metadata)]
        return json.dumps({"sample": sample, "turns": self.turns, "data": self.data})

    @classmethod
    def from_json(cls, text: str) -> "State":
        content = json.loads(text)
        prompt, answer, metadata = content["sample"]
        return cls(Sample(decode_prompt(prompt), answer, metadata), content["turns"], content["data"])


class MultiTurnEnvironment(BaseEnvironment):
    """A conversation of at most `max_turns` turns of the policy, and one reward for all of it."""

    max_turns: int = 8
    reply_roles: Sequence[str] = ("user",)
    """The roles of its messages: tried out with the model's chat template before a run."""

    def __init__(self, max_turns: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_turns = self.max_turns if max_turns is None else max_turns

    def check_settings(self) -> None:
        if type(self.max_turns) is not int or not 1 <= self.max_turns <= MOST_TURNS:
            raise ValueError(f"max_turns must be 1 to {MOST_TURNS}, got {self.max_turns!r}")

    def env_response(self, messages: list[Message], state: State) -> Reply | Awaitable[Reply]:
        """What the environment says to the policy's last turn, `messages[-1]`. May be `async def`.

        A text is one message of the user. A message has `role` (user, tool or system), `content`, and if it likes
        `name` and `is_error`, which are shown on the dashboard. None ends the conversation.
        """
        raise NotImplementedError(f"{type(self).__name__} must define env_response(messages, state)")

    def is_done(self, state: State) -> bool:
        """Whether the conversation is over: asked before and after `env_response`."""
        return False

    def compute_reward(self, state: State) -> RewardResult | Awaitable[RewardResult]:
        """Judge the finished conversation. May be `async def`. None, or an exception, leaves it unscored."""
        raise NotImplementedError(f"{type(self).__name__} must define compute_reward(state)")

    def conversation_metrics(self, state: State) -> Mapping[str, float | None]:
        """Sample metrics that come with every reward; those of `compute_reward` win over them."""
        return {}
