"""The tokens of one sample, as they come: what the policy read, what it said, and which is which.

The next prompt is always the tokens so far, so the arrays that are trained are those that the engine saw. Pure: no
tokenizer, no engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from environments.base import Message

if TYPE_CHECKING:
    from app.engine import Completion

Times = tuple[float | None, float | None]
"""When something began and ended, seconds on the run's clock."""

NO_VERSION = -1
"""Weights version of a token that no policy sampled."""


@dataclass
class Conversation:
    """One sample of at most `max_tokens` tokens after its prompt, the policy's and the environment's together.

    sampled: per token after the prompt, whether the policy sampled it; the three lists are as long as `token_ids`.
    turns: what was said, for people (metrics.schema `turns`). finish: why it ended, None while it goes on.
    """

    prompt_ids: list[int]
    max_tokens: int
    max_turn_tokens: int | None = None
    token_ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)
    truncated_turns: int = 0
    prefix_breaks: int = 0
    engine: str | None = None
    start_s: float | None = None
    end_s: float | None = None
    finish: str | None = None

    @property
    def ids(self) -> list[int]:
        """What the policy reads next."""
        return [*self.prompt_ids, *self.token_ids]

    @property
    def num_turns(self) -> int:
        """Turns of the policy."""
        return sum(turn["role"] == "assistant" for turn in self.turns)

    @property
    def turn_tokens(self) -> int:
        """How many tokens the next turn may have."""
        left = self.max_tokens - len(self.token_ids)
        return left if self.max_turn_tokens is None else min(left, self.max_turn_tokens)

    def say(self, done: "Completion", text: str) -> None:
        """The policy's turn, exactly as it was sampled."""
        self._turn({"role": "assistant", "content": text}, len(done.token_ids), (done.start_s, done.end_s))
        self._extend(done.token_ids, done.logprobs, done.versions, is_sampled=True)
        self.truncated_turns += done.finish_reason == "length"
        self.engine, self.end_s = done.engine, done.end_s
        self.start_s = done.start_s if self.start_s is None else self.start_s

    def hear(self, messages: Sequence[Message], ids: Sequence[int], times_s: Times = (None, None)) -> bool:
        """The environment's turn. False, and no token of it is kept, where the policy would have no room to answer."""
        fits = len(self.token_ids) + len(ids) < self.max_tokens
        kept = ids if fits else []
        for number, message in enumerate(messages):
            # The tokens between two turns of the policy belong together: they are told of the first message.
            self._turn(message, 0 if number else len(kept), times_s)
        self._extend(kept, [0.0] * len(kept), [NO_VERSION] * len(kept), is_sampled=False)
        return fits

    def _turn(self, message: Message, num_tokens: int, times_s: Times) -> None:
        said = {"role": message["role"], "text": message["content"]}
        place = {"first_token": len(self.token_ids), "num_tokens": num_tokens}
        extras = {"tool": message.get("name"), "is_error": message.get("is_error", False)}
        self.turns.append(said | place | extras | {"start_s": times_s[0], "end_s": times_s[1]})

    def _extend(
        self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int], *, is_sampled: bool
    ) -> None:
        if not len(ids) == len(logprobs) == len(versions):
            raise ValueError(f"{len(ids)} tokens with {len(logprobs)} log-probabilities and {len(versions)} versions")
        self.token_ids.extend(ids)
        self.sampled.extend([is_sampled] * len(ids))
        self.logprobs.extend(logprobs)
        self.versions.extend(versions)
