"""app.attention beside the attention of transformers, which masks what a token may not see."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen2MoeConfig

from app.attention import NAME, Layout, check
from app.fsdp import logits_at

SHAPE = {
    "vocab_size": 32,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9, 8]]
SAMPLES = [[[10, 11, 12], [13], [14, 15, 16, 17, 18]], [[19, 20], [21, 22, 23]]]
MODELS = {
    "grouped heads": LlamaConfig(**SHAPE),
    "sliding window": MistralConfig(**SHAPE, sliding_window=4),
}


@pytest.fixture(params=MODELS, ids=str)
def policies(request) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The same weights with our attention and with that of transformers."""
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(MODELS[request.param], attn_implementation="eager")
    mine = copy.deepcopy(theirs)
    mine.set_attn_implementation(NAME)
    return mine, theirs


def alone(policy: torch.nn.Module) -> torch.Tensor:
    """The logits behind the tokens of each sample, and of the last of its prompt: each sample by itself."""
    found = []
    for prompt, samples in zip(PROMPTS, SAMPLES, strict=True):
        for sample in samples:
            ids = torch.tensor([prompt + sample])
            found.append(policy(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :])
    return torch.cat(found)


def shared(policy: torch.nn.Module) -> torch.Tensor:
    """The same of one row in which each prompt stands once."""
    ids, positions, sources = [], [], []
    for prompt, samples in zip(PROMPTS, SAMPLES, strict=True):
        ids += prompt
        positions += range(len(prompt))
        last = len(ids) - 1
        for sample in samples:
            sources += [last, *range(len(ids), len(ids) + len(sample))]
            ids += sample
            positions += range(len(prompt), len(prompt) + len(sample))
    layout = Layout([(len(p), [len(s) for s in samples]) for p, samples in zip(PROMPTS, SAMPLES, strict=True)])
    return logits_at(policy, torch.tensor([ids]), torch.tensor([positions]), torch.tensor(sources), layout)


def gradients(policy: torch.nn.Module, logits: torch.Tensor) -> dict[str, torch.Tensor]:
    policy.zero_grad()
    (torch.log_softmax(logits, -1) * torch.arange(logits.numel()).reshape(logits.shape).sin()).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in policy.named_parameters()}


def test_samples_that_share_a_prompt_have_the_logits_and_gradients_of_samples_alone(policies):
    mine, theirs = policies
    logits, wanted = shared(mine), alone(theirs)
    assert torch.allclose(logits, wanted, atol=1e-5)
    expected = gradients(theirs, wanted)
    for name, gradient in gradients(mine, logits).items():
        assert torch.allclose(gradient, expected[name], atol=1e-4), name


def test_a_row_without_a_layout_is_one_sample(policies):
    mine, theirs = policies
    assert torch.allclose(alone(mine), alone(theirs), atol=1e-5)


def test_a_sample_sees_nothing_of_its_neighbours(monkeypatch):
    torch.manual_seed(0)
    policy = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE), attn_implementation=NAME)
    before = shared(policy)
    monkeypatch.setitem(globals(), "SAMPLES", [[SAMPLES[0][0], [30], SAMPLES[0][2]], SAMPLES[1]])
    moved = (before - shared(policy)).abs().max(-1).values > 1e-6
    assert moved.nonzero()[:, 0].tolist() == [5]  # after the four of the first sample and that of the prompt


def test_a_policy_with_other_attention_is_refused_before_samples_see_each_other():
    policy = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE), attn_implementation="sdpa")
    with pytest.raises(RuntimeError, match="0 of the policy's 2 layers use the trainer's attention"):
        shared(policy)


@pytest.mark.parametrize("more", [{"softcap": 30.0}, {"s_aux": torch.zeros(6)}])
def test_attention_that_is_more_than_this_is_refused(more):
    policy = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE), attn_implementation=NAME)
    with pytest.raises(
        NotImplementedError,
        match=r"LlamaAttention has .*, which the trainer's attention of packed samples does not know",
    ):
        policy(input_ids=torch.tensor([PROMPTS[0]]), use_cache=False, **more)


def test_a_window_that_only_the_mask_would_tell_is_refused_for_longer_samples():
    """Qwen2-MoE does not hand it to its attention."""
    config = Qwen2MoeConfig(**SHAPE, use_sliding_window=True, sliding_window=4, max_window_layers=0, num_experts=4)
    policy = AutoModelForCausalLM.from_config(config, attn_implementation=NAME)
    policy(input_ids=torch.tensor([[1, 2, 3, 4]]), use_cache=False)
    with pytest.raises(
        NotImplementedError, match=r"Qwen2MoeAttention has a sliding window, which .* set packing=false"
    ):
        shared(policy)


@pytest.mark.parametrize("other", ["chunked_attention", "linear_attention"])
def test_layers_through_which_packed_samples_would_see_each_other_are_refused(other):
    """Their masks are made by transformers for the attention that it knows."""
    shape = Qwen2Config(**SHAPE, layer_types=["full_attention", other])
    with pytest.raises(NotImplementedError, match=f"has layers of {other}, which the trainer's attention"):
        check(shape)
    check(Qwen2Config(**SHAPE, layer_types=["full_attention", "sliding_attention"]))
