"""Conversations as token ids. Text of a message never becomes a control token, which could forge a turn.

A prompt is rendered once. What follows a turn of the policy is rendered alone, as what the chat template puts after
that turn, and joined to the ids as they were sampled: nothing that was said is ever tokenised again.
"""

from collections.abc import Collection, Sequence
from typing import Any

from app.model_cache import BadPolicy
from environments.base import Message, Prompt


def render(tokenizer: Any, prompt: Prompt) -> list[int]:
    """The ids of a prompt. Text of the prompt never becomes a control token, which could forge a turn.

    With a chat template, a text is one user message. Without one, it is the text after whatever the tokenizer
    begins a text with. Raises BadPolicy for a prompt that the model cannot be asked.
    """
    _refuse_surrogates(prompt)
    if tokenizer.chat_template is None:
        return _plain_ids(tokenizer, prompt)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    harmless = [message | {"content": "x"} for message in messages]
    wanted = _num_control(tokenizer, _template_ids(tokenizer, harmless))
    ids = _template_ids(tokenizer, messages)
    if _num_control(tokenizer, ids) != wanted:
        ids = _piecewise_ids(tokenizer, messages)
    _refuse_control(tokenizer, ids, wanted, messages)
    return ids


def continuation(tokenizer: Any, messages: Sequence[Message], ends: Collection[int], is_closed: bool) -> list[int]:
    """The ids between the policy's last token and its next one: what ends its turn, the messages, what opens the next.

    ends: the tokens that end a turn. is_closed: the policy's last token is one of them, so that none is added.
    Without a chat template, the messages' texts follow each other after the end token.
    """
    _refuse_surrogates(list(messages))
    if tokenizer.chat_template is None:
        text = "".join(message["content"] for message in messages)
        ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        _refuse_control(tokenizer, ids, 0, list(messages))
        return ids if is_closed or tokenizer.eos_token_id is None else [tokenizer.eos_token_id, *ids]
    # A name is the environment's, for people: a template that prints it would print what it likes.
    bare = [{"role": message["role"], "content": message["content"]} for message in messages]
    ids = _following_ids(tokenizer, bare)
    return ids[_length_of_end(tokenizer, bare, ends) :] if is_closed else ids


def reads_on(tokenizer: Any, before: list[Message], completion: str, after: list[Message]) -> bool:
    """Whether the template, rendering the conversation anew, begins with what was read and said before.

    Templates that drop earlier thoughts or trim a turn do not: then a chat API would show the policy another text than
    the one it was trained on.
    """
    if tokenizer.chat_template is None:
        return True
    return _template_text(tokenizer, after).startswith(_template_text(tokenizer, before) + completion)


OPENING: list[Message] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "\ue0000\ue001"}]


def _following_ids(tokenizer: Any, messages: list[Message]) -> list[int]:
    """The ids of what the template puts after a turn of the policy and before its next one."""
    harmless = [message | {"content": "x"} for message in messages]
    wanted = _num_control(tokenizer, tokenizer.encode(_following(tokenizer, harmless), add_special_tokens=False))
    ids = tokenizer.encode(_following(tokenizer, messages), add_special_tokens=False)
    if _num_control(tokenizer, ids) != wanted:
        ids = _piecewise_ids(tokenizer, messages, OPENING)
    _refuse_control(tokenizer, ids, wanted, messages)
    return ids


def _following(tokenizer: Any, messages: list[Message]) -> str:
    _, found, text = _template_text(tokenizer, [*OPENING, *messages]).partition(OPENING[-1]["content"])
    if not found:
        raise BadPolicy(f"messages {_short(messages)}: the chat template drops or moves the policy's own turn")
    return text


def _length_of_end(tokenizer: Any, messages: list[Message], ends: Collection[int]) -> int:
    """How many of the following ids only end the policy's turn."""
    marked = [messages[0] | {"content": _mark(1)}, *messages[1:]]
    lead = tokenizer.encode(_following(tokenizer, marked).partition(_mark(1))[0], add_special_tokens=False)
    return next((place + 1 for place, token in enumerate(lead) if token in ends), 0)


def _plain_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    if not isinstance(prompt, str):
        raise BadPolicy(
            f"prompt {_short(prompt)} is a list of messages, but the model has no chat template; "
            "use an environment with text prompts, or a model with a chat template"
        )
    ids = tokenizer.encode(prompt, split_special_tokens=True)
    _refuse_control(tokenizer, ids, _num_control(tokenizer, tokenizer.encode("")), prompt)
    return ids


def _template_ids(tokenizer: Any, messages: list[Message]) -> list[int]:
    return tokenizer.encode(_template_text(tokenizer, messages), add_special_tokens=False)


def _template_text(tokenizer: Any, messages: list[Message]) -> str:
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except TemplateError as error:
        raise BadPolicy(f"prompt {_short(messages)} does not fit the model's chat template: {error}") from error


def _piecewise_ids(tokenizer: Any, messages: list[Message], opening: Sequence[Message] = ()) -> list[int]:
    """Encode the template's own text and the messages' texts apart, so that only the former has control tokens.

    With an opening, the ids of what follows its last content.
    """
    marks = [_mark(index + 1) for index in range(len(messages))]
    marked = [message | {"content": mark} for message, mark in zip(messages, marks, strict=True)]
    text = _template_text(tokenizer, [*opening, *marked])
    text = text.partition(opening[-1]["content"])[2] if opening else text
    ids: list[int] = []
    for message, mark in zip(messages, marks, strict=True):
        before, found, text = text.partition(mark)
        if not found or mark in text:
            raise BadPolicy(f"prompt {_short(messages)}: the chat template drops, moves or repeats a message")
        ids += tokenizer.encode(before, add_special_tokens=False)
        ids += tokenizer.encode(message["content"], add_special_tokens=False, split_special_tokens=True)
    return ids + tokenizer.encode(text, add_special_tokens=False)


def _mark(number: int) -> str:
    """A text that no model writes, of characters that no alphabet uses."""
    return f"\ue000{number}\ue001"


def _refuse_surrogates(said: Prompt) -> None:
    """A string of Python may hold half of a UTF-16 pair, which no encoding has and no tokenizer takes."""
    text = said if isinstance(said, str) else "".join(message["role"] + message["content"] for message in said)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadPolicy(
            f"prompt {_short(said)} holds {text[error.start]!r}, half of a surrogate pair, which is no character of a "
            "text; mend or leave out the sample"
        ) from error


def _refuse_control(tokenizer: Any, ids: Sequence[int], wanted: int, said: Prompt) -> None:
    if _num_control(tokenizer, ids) != wanted:
        raise BadPolicy(f"prompt {_short(said)} holds text that this tokenizer can only read as control tokens")


def _num_control(tokenizer: Any, ids: Sequence[int]) -> int:
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    control = (special | set(tokenizer.all_special_ids)) - {tokenizer.unk_token_id}
    return sum(number in control for number in ids)


def _short(prompt: Prompt) -> str:
    text = repr(prompt)
    return text if len(text) <= 120 else text[:119] + "…"
