"""The text of single tokens, from the tokenizer file that a run keeps; without one, tokens are shown by number."""

import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

PLACES = ("tokenizer.json", "tokenizer/tokenizer.json")
MOST = 20_000
logger = logging.getLogger(__name__)


def pieces(run_dir: Path, ids: list[int]) -> list[str] | None:
    tokenizer = _tokenizer(run_dir)
    if tokenizer is None:
        return None
    return [tokenizer.decode([token], skip_special_tokens=False) for token in ids[:MOST]]


@lru_cache(maxsize=8)
def _loaded(file: Path, _changed_at: float) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower for a damaged file
        logger.warning("%s: not readable (%s); tokens are shown by number", file, error)
        return None


def _tokenizer(run_dir: Path) -> Any:
    for place in PLACES:
        file = run_dir / place
        if file.is_file():
            return _loaded(file, file.stat().st_mtime)
    return None
