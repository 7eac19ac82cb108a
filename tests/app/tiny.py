"""A tiny policy and stream samples for tests of the core."""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from app.config import Config, from_dict
from app.logprobs import entropies, scaled_logits, target_logprobs

VOCABULARY = 32


def tiny_config(**changes: Any) -> Config:
    """A run of 4 prompts × 4 completions; each test names only what it is about."""
    plain = {
        "name": "test",
        "model": "unused",
        "steps": 4,
        "environments": [{"name": "sums"}],
        "prompts_per_step": 4,
        "group_size": 4,
        "max_prompt_tokens": 16,
        "max_tokens": 16,
        "seq_len": 64,
        "learning_rate": 1e-2,
    }
    return from_dict(plain | changes)


def save_tiny_model(folder: Path) -> Path:
    """Two layers, tied embeddings, random weights from a fixed seed."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=None,  # a test that wants an end says which
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    return folder


def token_logprobs(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float, *, entropy_grad: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """(T, V) logits, (T,) ids → (T,) log-probabilities and (T,) entropies, as the trainer makes them."""
    scaled = scaled_logits(logits, temperature)
    return target_logprobs(scaled, targets), entropies(scaled, with_grad=entropy_grad)


def scored(group_id: int, index: int, reward: float | None, **changes: Any) -> dict[str, Any]:
    """A sample as the environment stage hands it to the batcher."""
    length = 3 + (5 * group_id + 3 * index) % 9
    tokens = [(7 * group_id + 5 * index + 3 * t) % (VOCABULARY - 3) + 3 for t in range(length)]
    plain = {
        "group_id": group_id,
        "sample_id": group_id * 4 + index,
        "env": "sums",
        "problem_id": f"p{group_id}",
        "prompt": "1+1=",
        "prompt_text": "1+1=",
        "prompt_ids": [1, 4 + group_id % 20, 5],
        "completion": "2",
        "token_ids": tokens,
        "rollout_logprobs": [-3.4 + 0.01 * t for t in range(length)],
        "versions": [0] * length,
        "finish": "stop",
        "error": None,
        "engine": "engine a",
        "generate_start_s": 1.0,
        "generate_end_s": 2.0,
        "num_turns": 1,
        "truncated_turns": 0,
        "reward": reward,
        "sample_metrics": [("correct", reward)] if reward is not None else [],
        "golden_answers": [],
        "tags": [],
        "reward_start_s": 2.0,
        "reward_end_s": 2.1,
    }
    return plain | changes


def group(group_id: int, rewards: list[float | None], **changes: Any) -> list[dict[str, Any]]:
    return [scored(group_id, index, reward, **changes) for index, reward in enumerate(rewards)]
