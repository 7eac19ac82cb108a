"""Writes the policy of a checkpoint as a Hugging Face folder, which transformers and vLLM load.

    python -m app.export RUN OUT [--step N] [--dtype bfloat16]

RUN is a run directory, or the id of a run in the runs folder ($TELESCOPE_RUNS). Without --step: the newest checkpoint.
"""

import argparse
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from app import config
from app.model_cache import BadPolicy
from app.policy import prepare
from app.run_dir import RunDir, RunError, root_of
from app.sealed import step_of, whole

DTYPES = ("float32", "bfloat16", "float16")
NOT_COPIED = (".safetensors", ".bin", ".index.json")


def export(run: RunDir, out: Path, step: int | None = None, dtype: str = "float32") -> Path:
    """Writes the folder `out`, which must not exist; returns the checkpoint that it was made of."""
    from transformers import AutoModelForCausalLM

    if out.exists():
        raise RunError(f"{out} exists already; name a new folder")
    path = chosen(run, step)
    settings = config.load(run.config_path)
    source = Path(prepare(settings.model, list(settings.environments), settings.seed))
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    load_weights(path, model)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:  # so that `out` appears whole or not at all
        aside = Path(folder) / "model"
        aside.mkdir()
        _copy_companions(source, aside)
        model.to(getattr(torch, dtype)).save_pretrained(aside)
        aside.rename(out)
    return path


def chosen(run: RunDir, step: int | None) -> Path:
    """The run's newest whole checkpoint, or that of a step."""
    found = {step_of(path): path for path in whole(run.checkpoints)}
    if not found:
        raise RunError(f"run {run.id!r} has no checkpoint; set checkpoint_every in its config")
    if step is not None and step not in found:
        raise RunError(f"run {run.id!r} has no checkpoint of step {step}; it has those of {', '.join(map(str, found))}")
    return found[max(found) if step is None else step]


def load_weights(path: Path, model: torch.nn.Module) -> None:
    """Loads a checkpoint's weights into a whole model, in one process, whatever number of ranks wrote it."""
    weights = get_model_state_dict(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it should be
        dcp.load({"model": weights}, checkpoint_id=path, no_dist=True)
    set_model_state_dict(model, weights)


def _copy_companions(source: Path, folder: Path) -> None:
    """Everything beside the weights: tokenizer, chat template, generation settings."""
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith(NOT_COPIED):
            shutil.copy(file, folder)


def _run_of(name: str) -> RunDir:
    """A run by its directory or its id."""
    path = Path(name) if (Path(name) / "run.json").is_file() else root_of() / name
    if not (path / "run.json").is_file():
        raise RunError(f"{name!r} is neither a run directory nor the id of a run in {root_of()}")
    return RunDir(path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m app.export", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", help="a run directory or the id of a run")
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("--step", type=int, help="the checkpoint of this step; default: the newest")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    options = parser.parse_args(arguments)
    try:
        path = export(_run_of(options.run), options.out, options.step, options.dtype)
    except (RunError, BadPolicy, config.ConfigError) as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{options.out}: cannot be written: {error.strerror}; name another folder", file=sys.stderr)
        return 2
    print(f"{path.name} is in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
