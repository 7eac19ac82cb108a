"""Where the policy comes from, and how it is asked.

A policy is built here, unpacked from a Python package, a local folder, or a model of the hub. Whatever the source, it
ends as a folder in Hugging Face format that the engine and the trainer both load.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from app import embedded, smollm2
from app.model_cache import BadPolicy, cached

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
GENERIC_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that are nothing but the folder's tokenizer.json."""
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
"""What is fetched from the hub: no pickles and no code."""


class EnvironmentChoice(Protocol):
    """What the embedded policy must know of an environment; an entry of the config has it."""

    @property
    def name(self) -> str: ...

    @property
    def kwargs(self) -> Any: ...


def prepare(model: str, environments: Sequence[EnvironmentChoice], seed: int) -> Path:
    """The folder of the policy: "embedded", "smollm2", a local folder, or a model of the hub by its name."""
    if model == "embedded":
        chosen = [(entry.name, dict(entry.kwargs)) for entry in environments]
        return cached(embedded.key(chosen, seed), lambda folder: embedded.build(folder, chosen, seed))
    if model == "smollm2":
        return cached(smollm2.key(), smollm2.build)
    folder = Path(model).expanduser()
    if folder.exists() or model.startswith(("/", ".", "~")) or model.count("/") != 1:
        return checked_folder(folder)
    return _from_hub(model)


def checked_folder(folder: Path) -> Path:
    """The folder, if it holds a model that can be loaded without running foreign code."""
    if not folder.is_dir():
        raise BadPolicy(
            f"model {str(folder)!r}: there is no such folder; wanted 'embedded', 'smollm2', a folder in Hugging "
            "Face format, or a name of the model hub like 'owner/model'"
        )
    files = {path.name for path in folder.iterdir()}
    lacking = [] if "config.json" in files else ["config.json"]
    if not files & set(TOKENIZER_FILES):
        lacking.append(f"a tokenizer ({' or '.join(TOKENIZER_FILES)})")
    if not any(name.endswith(".safetensors") for name in files):
        lacking.append("weights (*.safetensors)")
    if lacking:
        raise BadPolicy(
            f"model {str(folder)!r}: the folder lacks {', '.join(lacking)}; save the model and its tokenizer there "
            "with save_pretrained()"
        )
    return folder.absolute()


def _from_hub(name: str) -> Path:
    """A model of the hub, from its local cache, or fetched unless HF_HUB_OFFLINE says not to."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return checked_folder(Path(snapshot_download(name, allow_patterns=HUB_FILES)))
    except LocalEntryNotFoundError as error:
        raise BadPolicy(
            f"model {name!r} is not in the local cache of the model hub and could not be fetched (HF_HUB_OFFLINE set, "
            "or no connection); fetch it once where there is a connection, or give a local folder"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise BadPolicy(f"model {name!r} cannot be had from the model hub: {error}") from error


def tokenizer(path: str | Path) -> Any:
    """The tokenizer of a policy's folder."""
    try:
        return _tokenizer_class(Path(path)).from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise BadPolicy(f"model {str(path)!r}: its tokenizer cannot be loaded: {error}") from error


def vocabulary_size(path: str | Path) -> int:
    """How many tokens the model tells apart."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(path, trust_remote_code=False).get_text_config().vocab_size


def _tokenizer_class(folder: Path) -> Any:
    """The generic class where the folder asks for it: a lookup would import torch, seconds in each process."""
    import transformers

    settings = folder / "tokenizer_config.json"
    asked = json.loads(settings.read_text(encoding="utf-8")).get("tokenizer_class") if settings.is_file() else None
    if asked in GENERIC_TOKENIZERS and (folder / "tokenizer.json").is_file():
        return transformers.PreTrainedTokenizerFast
    return transformers.AutoTokenizer


def end_token_ids(tokenizer: Any, path: str | Path) -> tuple[int, ...]:
    """Every token that ends a turn: the tokenizer's, and those of the model's generation config."""
    ends = {tokenizer.eos_token_id}
    settings = Path(path) / "generation_config.json"
    if settings.is_file():
        listed = json.loads(settings.read_text(encoding="utf-8")).get("eos_token_id")
        ends |= set(listed if isinstance(listed, list) else [listed])
    return tuple(sorted(ends - {None}))
