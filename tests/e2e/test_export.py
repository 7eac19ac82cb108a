"""A checkpoint of two FSDP workers as a Hugging Face folder, loaded by transformers and by vLLM."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from app import export
from app.engine import CPU_ENVIRONMENT
from app.run_dir import RunDir, RunError, create_for
from tests.app.test_trainer import train
from tests.app.tiny import save_tiny_model, tiny_config
from tests.app.trainer_process import PROBE

pytestmark = pytest.mark.stack

VLLM = """
import json, sys
from vllm import LLM, SamplingParams
engine = LLM(sys.argv[1], skip_tokenizer_init=True, enforce_eager=True, max_model_len=64, dtype="float32",
             kv_cache_memory_bytes=64 << 20)
params = SamplingParams(max_tokens=8, temperature=0, logprobs=0, detokenize=False, ignore_eos=True)
done = engine.generate([{"prompt_token_ids": json.loads(sys.argv[2])}], params, use_tqdm=False)[0].outputs[0]
print(json.dumps([list(done.token_ids), [step[t].logprob for t, step in zip(done.token_ids, done.logprobs)]]))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[RunDir, list[float]]:
    """A run directory with the checkpoint of two workers, and their log-probabilities of PROBE."""
    folder = tmp_path_factory.mktemp("trainer")
    model = save_tiny_model(folder / "model")
    steps = train(folder, 2, {"plain": {"save": True}})["plain"]
    (model / "tokenizer.json").write_text("{}")
    config = tiny_config(model=str(model), runs_dir=str(folder / "runs"), checkpoint_every=3)
    run = create_for(config)
    shutil.copytree(folder / "step_000003", run.checkpoints / "step_000003")
    return run, steps[-1]["probe"]


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "policy"
    assert export.main([str(run[0].path), str(out)]) == 0
    return out


def test_transformers_loads_it_with_the_weights_of_the_trainer(run, folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    logprobs = torch.log_softmax(model(torch.tensor([PROBE])).logits[0], -1)[:-1]
    mine = logprobs.gather(-1, torch.tensor(PROBE[1:])[:, None])[:, 0].tolist()
    assert mine == pytest.approx(run[1], abs=1e-5)
    assert (folder / "tokenizer.json").exists()


def test_vllm_loads_it_and_gives_the_same_log_probabilities(folder):
    done = subprocess.run(
        [sys.executable, "-c", VLLM, str(folder), json.dumps(PROBE)],
        env=os.environ | CPU_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    tokens, logprobs = json.loads(done.stdout.splitlines()[-1])
    model = AutoModelForCausalLM.from_pretrained(folder)
    logits = model(torch.tensor([PROBE + tokens])).logits[0, len(PROBE) - 1 : -1]
    mine = torch.log_softmax(logits, -1).gather(-1, torch.tensor(tokens)[:, None])[:, 0].tolist()
    assert logprobs == pytest.approx(mine, abs=1e-4)


def test_half_precision_is_written_when_asked_for(run, tmp_path):
    export.export(run[0], tmp_path / "half", dtype="bfloat16")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype="auto").dtype == torch.bfloat16


def test_what_cannot_be_exported_is_refused_with_a_reason(run, folder, tmp_path, capsys):
    with pytest.raises(RunError, match=r"no checkpoint of step 2; it has those of 3"):
        export.export(run[0], tmp_path / "x", step=2)
    with pytest.raises(RunError, match="exists already"):
        export.export(run[0], folder)
    assert export.main([str(tmp_path), str(tmp_path / "x")]) == 2
    assert "neither a run directory nor the id of a run" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    assert export.main([str(run[0].path), "/proc/x/model"]) == 2
    assert "/proc/x/model: cannot be written" in capsys.readouterr().err
