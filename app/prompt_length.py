"""Lengths of prompts in tokens of a configuration's model, without starting anything."""

from collections.abc import Callable

from app import chat, embedded, policy
from app.config import Config
from environments.base import Prompt


def length_of(config: Config) -> Callable[[Prompt], int]:
    """Counts the tokens of a prompt as the run would. Raises BadPolicy when the model is not there."""
    if config.model == "embedded":  # its tokenizer needs no training
        tokenizer = embedded.make_tokenizer()
    else:
        tokenizer = policy.tokenizer(policy.prepare(config.model, config.environments, config.seed))
    return lambda prompt: len(chat.render(tokenizer, prompt))
