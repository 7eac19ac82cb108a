"""One sample whole: its texts (clipped when they are long), its turns, its tokens, and its maps as plain objects."""

import json
from pathlib import Path
from typing import Any

from ui.tokens import pieces

CLIP = 20_000
TEXTS = ("prompt", "completion")
PER_TOKEN = ("token_ids", "trained_mask", "rollout_logprobs", "trainer_logprobs", "versions")


def whole_sample(directory: Path, row: dict[str, Any]) -> dict[str, Any]:
    sample = plain_row(row)
    for name in TEXTS:
        value = sample[name]
        sample[name] = {"text": value[:CLIP], "length": len(value), "turns": turns(value) if name == "prompt" else None}
    sample["turns"] = [turn | {"text": turn["text"][:CLIP]} for turn in sample.get("turns") or []]
    num_tokens = len(sample.get("token_ids") or [])
    sample["num_token_ids"] = num_tokens
    for name in PER_TOKEN:
        if sample.get(name):
            sample[name] = sample[name][:CLIP]
    sample.pop("prompt_ids", None)
    sample["pieces"] = pieces(directory, sample.get("token_ids") or [])
    return sample


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    maps = {name: as_dict(row.get(name)) for name in ("sample_metrics", "golden_answers", "tags")}
    return {**row, **maps, **{name: as_text(row.get(name)) for name in TEXTS}}


def as_dict(value: Any) -> dict[str, Any]:
    """A map column comes back as a dict or as a list of {key, value}, by the reader; absent keys stay absent."""
    if not value:
        return {}
    pairs = value.items() if isinstance(value, dict) else ((item["key"], item["value"]) for item in value)
    return {str(key): item for key, item in pairs if item is not None}


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def turns(prompt: str) -> list[dict[str, str]] | None:
    """A prompt stored as a JSON list of chat messages, as messages; None for a plain text."""
    if not prompt.startswith("[{") or len(prompt) > 2_000_000:
        return None
    try:
        messages = json.loads(prompt)
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(message, dict) and "content" in message for message in messages):
        return None
    return [
        {"role": str(message.get("role", ""))[:40], "content": as_text(message["content"])[:CLIP]}
        for message in messages
    ]


def last_turn(prompt: str) -> str:
    messages = turns(prompt)
    return messages[-1]["content"] if messages else prompt
