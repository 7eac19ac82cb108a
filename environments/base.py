"""What an environment is: samples to answer, and a reward for each answer.

Adding one is adding one file to this folder with a class that follows SingleTurnEnvironment, MultiTurnEnvironment
(environments/multi_turn.py) or ToolEnvironment (environments/tools.py), or, in the simplest case, a function
`reward(batch)`.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

from environments.checks import shown

Split = Literal["train", "eval"]
Message = dict[str, Any]
"""`role` and `content`; what an environment says may also have a `name` (of a tool) and `is_error`."""
Prompt = str | list[Message]
WorkedExample = tuple[str, str | Sequence[str]]
"""A prompt and what to say to it; a list is a conversation: the policy, the environment, the policy, and so on."""
MapFn = Callable[[Any], Any]


@dataclass(frozen=True)
class Sample:
    """One thing to ask: a text, or chat messages of `role` and `content`. Answer, metadata: JSON values."""

    prompt: Prompt
    answer: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str) and not is_messages(self.prompt):
            wanted = "a text or a list of messages with 'role' and 'content' texts"
            raise TypeError(f"Sample.prompt must be {wanted}, got {shown(self.prompt)}")
        if not isinstance(self.metadata, Mapping):
            raise TypeError(f"Sample.metadata must be a dict, got {shown(self.metadata)}")

    @cached_property
    def problem_id(self) -> str:
        """The same for the same prompt and answer, in every run and split."""
        content = json.dumps([self.prompt, self.answer], sort_keys=True, default=str)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class RewardResult:
    """What an answer was worth. A total or a metric of None means: could not be judged. It is not a zero."""

    total_reward: float | None
    sample_metrics: Mapping[str, float | None] = field(default_factory=dict)
    golden_answers: Mapping[str, str | None] = field(default_factory=dict)
    tags: Mapping[str, str | None] = field(default_factory=dict)


class Environment(Protocol):
    """What a run needs of an environment, whether it is a class of its own or a bare function."""

    name: str
    metrics_ranges: Any

    def samples(self, split: Split) -> Sequence[Sample]: ...

    def map_fn(self, eos_token: str = "") -> MapFn: ...


class BaseEnvironment:
    """What all environment classes have in common. Settings are the keyword arguments of `__init__`."""

    name: str = ""
    metrics_ranges: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(self, **kwargs: Any) -> None:
        if kwargs:
            raise TypeError(f"{type(self).__name__} takes no setting {', '.join(map(repr, sorted(kwargs)))}")

    def check_settings(self) -> None:
        """Called once it is built: raises ValueError where what it was built with cannot work."""

    def samples(self, split: Split) -> Sequence[Sample]:
        """The samples of a split: always the same, and no sample in both."""
        raise NotImplementedError(f"{type(self).__name__} must define samples(split)")

    def worked_examples(self, seed: int) -> Iterator[WorkedExample]:
        """Endless examples to warm up an untrained policy; none of an eval sample."""
        raise NotImplementedError(
            f"environment {self.name or type(self).__name__!r} has no worked_examples(seed), on which the "
            "embedded policy is warmed up; add them or choose another model"
        )

    def gold_completion(self, sample: Sample) -> str | Sequence[str] | None:
        """A completion that deserves the highest reward (of a conversation: the policy's turns), None if none is known.

        `python -m environments check` holds the rewards against it; training never sees it.
        """
        return None

    def map_fn(self, eos_token: str = "") -> MapFn:
        """For `dataset.map_batches(env.map_fn(), batch_format="pyarrow")`: adds the reward columns."""
        from environments.batch import (
            score_table,
        )  # so that a process that scores single rows needs no pyarrow

        def score(table: Any) -> Any:
            return score_table(self, table, eos_token)

        return score


class SingleTurnEnvironment(BaseEnvironment):
    """One prompt, one completion, one reward."""

    def compute_reward(
        self, completion: str, sample: Sample, eos_token: str = ""
    ) -> RewardResult | Awaitable[RewardResult]:
        """Judge one completion. May be `async def`. None, or an exception, leaves it unscored."""
        raise NotImplementedError(f"{type(self).__name__} must define compute_reward(completion, sample, eos_token)")


def is_messages(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(_is_message, value))


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and set(value) == {"role", "content"}
        and all(isinstance(part, str) for part in value.values())
    )


def encode_prompt(prompt: Prompt) -> str:
    """A prompt as the text of one column. A text stays itself unless it could be mistaken for messages."""
    if not isinstance(prompt, str):
        return "messages:" + json.dumps(prompt)
    return "text:" + prompt if prompt.startswith(("messages:", "text:")) else prompt


def decode_prompt(column: str) -> Prompt:
    """The inverse of `encode_prompt`. A foreign text that only begins like messages stays a text."""
    kind, _, rest = column.partition(":")
    if kind != "messages":
        return rest if kind == "text" else column
    try:
        messages = json.loads(rest)
    except (ValueError, RecursionError):
        return column
    return messages if is_messages(messages) else column
