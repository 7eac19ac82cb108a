"""Advantages, losses and gradients beside those of TRL's GRPOTrainer, on completions that it sampled itself.

Needs the extra `trl` (requirements/trl.lock); docs/algorithms.md says where the two differ on purpose.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="the extra trl is not installed: docs/development.md")
pytestmark = pytest.mark.filterwarnings("ignore")

from app.advantage import advantages  # noqa: E402 - after the skip
from app.config import Config, from_dict  # noqa: E402
from app.embedded import make_tokenizer  # noqa: E402
from app.fsdp import logits_at  # noqa: E402
from app.loss import count, policy_loss  # noqa: E402
from app.tokens import Tokens  # noqa: E402
from tests.app.tiny import token_logprobs  # noqa: E402

PROMPTS = ("12+34=", "56+78=", "90+12=", "34+56=")
GROUP, LENGTH, TEMPERATURE = 4, 12, 0.8

# Where the definitions coincide: TRL's arguments → ours.
SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "token mean": ({"loss_type": "dapo"}, {"aggregation": "token_mean"}),
    "sequence mean": ({"loss_type": "grpo"}, {"aggregation": "sequence_mean"}),
    "constant": (
        {"loss_type": "dr_grpo", "scale_rewards": "none"},
        {"algorithm": "dr_grpo", "aggregation": "token_sum_norm"},
    ),
    "higher clip": ({"loss_type": "dapo", "epsilon_high": 0.28}, {"clip_high": 0.28}),
    "dual clip": ({"loss_type": "dapo", "delta": 1.3}, {"clip_ratio_c": 1.3}),
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.1},
        {"algorithm": "cispo", "clip_high": 0.1, "use_ppo_clip": False},
    ),
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05, "epsilon_high": 0.05},
        {"algorithm": "gspo", "clip_low": 0.05, "clip_high": 0.05},
    ),
    "sapo": (
        {"loss_type": "sapo"},
        {"algorithm": "sapo", "aggregation": "sequence_mean", "use_ppo_clip": False},
    ),
    "k3 penalty": (
        {"loss_type": "dapo", "beta": 0.3, "use_bias_correction_kl": False},
        {"kl_penalty_tau": 0.3, "kl_estimator": "k3"},
    ),
    "entropy bonus": ({"loss_type": "dapo", "entropy_coef": 0.1}, {"entropy_coef": 0.1}),
}


def reward(completions: list[str], **columns: Any) -> list[float]:
    """Different within most groups, equal within some."""
    return [float(len(set(text)) % 3) for text in completions]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder, tokenizer = tmp_path_factory.mktemp("model"), make_tokenizer()
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def trl_trainer(model: Path, out: Path, **arguments: Any) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    batch = len(PROMPTS) * GROUP
    args = GRPOConfig(
        output_dir=str(out),
        per_device_train_batch_size=batch,
        num_generations=GROUP,
        max_completion_length=LENGTH,
        temperature=TEMPERATURE,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        **{"beta": 0.0} | arguments,
    )
    rows = Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS])
    trainer = GRPOTrainer(model=str(model), reward_funcs=reward, args=args, train_dataset=rows)
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def sampled(trainer: Any) -> dict[str, Any]:
    """A batch that TRL generated and scored; its old log-probabilities are moved, so that ratios are not all one."""
    torch.manual_seed(1)
    trainer.model.train()
    rows = [{"prompt": prompt} for prompt in PROMPTS for _ in range(GROUP)]
    batch = trainer._generate_and_score_completions(rows)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    width = batch["completion_ids"].size(1)
    now = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, width)[0].detach()
    batch["old_per_token_logps"] = now + 0.4 * torch.randn_like(now)
    if "ref_per_token_logps" in batch:
        batch["ref_per_token_logps"] = now + 0.3 * torch.randn_like(now)
    return batch


def ours(trainer: Any, batch: dict[str, Any], config: Config, values: torch.Tensor) -> torch.Tensor:
    """Our loss on the same tokens, with our own forward pass."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    rows, places = batch["completion_mask"].bool().nonzero(as_tuple=True)
    num_prompt, width = batch["prompt_ids"].size(1), ids.size(1)
    positions = torch.arange(width).expand(len(ids), -1)
    logits = logits_at(trainer.model, ids, positions, rows * width + num_prompt + places - 1)
    chosen = batch["completion_mask"].bool()
    logprobs, entropy = token_logprobs(
        logits, batch["completion_ids"][chosen], TEMPERATURE, entropy_grad=config.entropy_coef > 0
    )
    old = batch["old_per_token_logps"][chosen]
    reference = batch["ref_per_token_logps"][chosen] if "ref_per_token_logps" in batch else None
    tokens = Tokens(logprobs, old, values[rows], rows, None, old, reference, entropy)
    return policy_loss(tokens, config, count(tokens, config))[0]


def our_config(**changes: Any) -> Config:
    plain = {
        "name": "test",
        "model": "unused",
        "steps": 1,
        "environments": [{"name": "sums"}],
        "group_size": GROUP,
        "max_tokens": LENGTH,
        "temperature": TEMPERATURE,
        "use_tis": False,
        "use_ppo_clip": True,
    }
    return from_dict(plain | changes)


@pytest.mark.parametrize("case", SAME)
def test_advantages_loss_and_gradient_are_those_of_trl(case, model, tmp_path):
    theirs, changes = SAME[case]
    trainer, config = trl_trainer(model, tmp_path, **theirs), our_config(**changes)
    batch = sampled(trainer)
    assert batch["prompt_mask"].all(), "prompts of one length: TRL pads on the left, we on the right"
    rewards = reward(trainer.processing_class.batch_decode(batch["completion_ids"], skip_special_tokens=True))
    groups = [i // GROUP for i in range(len(rewards))]
    values = torch.tensor(advantages(rewards, groups, config.algorithm, config.advantage_norm))
    assert values.tolist() == pytest.approx(batch["advantages"].tolist(), abs=1e-5)
    assert values.abs().max() > 0.5

    parameters = list(trainer.model.parameters())
    expected = trainer._compute_loss(trainer.model, batch)
    found = ours(trainer, batch, config, values)
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)
    gradients = [torch.autograd.grad(loss, parameters) for loss in (found, expected)]
    largest = max(gradient.abs().max().item() for gradient in gradients[1])
    assert largest > 1e-3
    for mine, its in zip(*gradients, strict=True):
        assert (mine - its).abs().max() <= 1e-5 * max(1.0, largest)
