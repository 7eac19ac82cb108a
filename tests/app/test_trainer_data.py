"""From the batcher's shares to the trainer's packs: which tokens are trained, and at which temperature."""

import pyarrow as pa
import pytest
import torch

from app.batch import SHARE, BatchBuilder
from app.logprobs import scaled_logits
from app.trainer_data import Pack, read_share
from tests.app.tiny import scored, tiny_config

TOKENS = [11, 12, 21, 22, 23, 13]
SAMPLED = [True, True, False, False, False, True]


def packs(*environments: str, shares_prompts: bool = True, **config) -> list[Pack]:
    """The packs of a step with one conversation of each of these environments in every group."""
    entries = [{"name": "sums", "label": "hot"}, {"name": "sums", "label": "cold", "temperature": 0.5}]
    builder = BatchBuilder(tiny_config(environments=entries, prompts_per_step=len(environments), **config), 1, 1)
    said = {
        "token_ids": TOKENS,
        "sampled": SAMPLED,
        "rollout_logprobs": [-1.0, -2.0, 0.0, 0.0, 0.0, -3.0],
        "versions": [0, 0, -1, -1, -1, 0],
    }
    for group_id, env in enumerate(environments):
        builder.add([scored(group_id, index, float(index), env=env, **said) for index in range(4)])
    share = pa.Table.from_pylist(builder.take().shares, schema=SHARE)
    return read_share(share, shares_prompts).packs


@pytest.mark.parametrize(
    "how", [{}, {"shares_prompts": False}, {"packing": False}], ids=["prompts shared", "in line", "padded"]
)
def test_however_samples_are_laid_out_each_token_is_predicted_by_the_one_before_it(how):
    (pack,) = packs("hot", "hot", seq_len=128, **how)
    ids, positions = pack.token_ids.flatten()[pack.sources], pack.position_ids.flatten()[pack.sources]
    assert pack.targets.tolist() == [11, 12, 13] * 8
    # The two groups have prompts of their own that end with the same token.
    assert ids.tolist() == [5, 11, 23] * 8
    assert positions.tolist() == [2, 3, 7] * 8


def test_a_prompt_stands_once_and_its_samples_follow():
    (pack,) = packs("hot", "hot", seq_len=128)
    assert pack.layout is not None
    assert pack.layout.prompts == [(3, [6, 6, 6, 6])] * 2
    assert pack.token_ids.shape == pack.position_ids.shape == (1, 2 * (3 + 4 * 6))
    assert pack.token_ids[0, :9].tolist() == [1, 4, 5, *TOKENS]
    assert pack.position_ids[0, :15].tolist() == [*range(9), *range(3, 9)]
    assert pack.padding_tokens == 0
    assert len(pack.sources.unique()) < len(pack.sources), "the first tokens of a group have one source"


def test_a_group_that_a_pack_does_not_hold_has_its_prompt_in_each():
    prompts = [pack.layout.prompts for pack in packs("hot", seq_len=16, max_prompt_tokens=4, max_tokens=12)]
    assert prompts == [[(3, [6, 6])], [(3, [6, 6])]]


def test_tokens_of_the_environment_are_read_and_never_trained():
    (pack,) = packs("hot", seq_len=64)
    of_one = pack.sequences == pack.sequences[0]
    assert pack.targets[of_one].tolist() == [11, 12, 13]
    assert pack.rollout_logprobs[of_one].tolist() == [-1.0, -2.0, -3.0]
    assert pack.versions.unique().tolist() == [0]
    assert pack.token_ids.shape == (1, 3 + 4 * len(TOKENS))
    # The logits that predict the last token are those of the environment's last.
    assert pack.token_ids.flatten()[pack.sources[of_one]].tolist() == [5, 11, 23]


def test_a_log_probability_that_the_engine_could_not_give_is_not_a_number_and_its_token_is_trained():
    builder = BatchBuilder(tiny_config(prompts_per_step=1, seq_len=64), 1, 1)
    said = {"token_ids": [11, 12, 13], "rollout_logprobs": [-0.25, None, float("-inf")], "versions": [0, 0, 0]}
    builder.add([scored(0, index, float(index), **said) for index in range(4)])
    batch = builder.take()
    (pack,) = read_share(pa.Table.from_pylist(batch.shares, schema=SHARE)).packs
    assert repr(pack.rollout_logprobs[:3].tolist()) == "[-0.25, nan, -inf]"
    assert pack.targets[:3].tolist() == [11, 12, 13]
    assert batch.rows["rollout_logprobs"][0].as_py() == [-0.25, None, float("-inf")]


def test_a_pack_of_one_temperature_has_one():
    assert [pack.temperatures for pack in packs("cold", seq_len=64)] == [0.5]
    assert [pack.temperatures for pack in packs("hot", seq_len=64, temperature=0.7)] == [0.7]


def test_a_pack_of_several_temperatures_has_one_a_token():
    (pack,) = packs("hot", "cold", seq_len=128)
    assert pack.temperatures.shape == (len(pack.targets), 1)
    by_sample = {int(s): t.item() for s, t in zip(pack.sequences, pack.temperatures, strict=True)}
    assert sorted(by_sample.values()) == [0.5] * 4 + [1.0] * 4


def test_each_row_of_logits_is_divided_by_its_own_temperature():
    logits = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    assert scaled_logits(logits, torch.tensor([[1.0], [0.5]])).tolist() == [[1.0, 2.0], [2.0, 4.0]]
    assert scaled_logits(logits, 1) is logits


def test_a_mask_of_another_length_than_the_tokens_is_refused():
    builder = BatchBuilder(tiny_config(prompts_per_step=1), 1, 1)
    builder.add([scored(0, index, float(index), sampled=[True]) for index in range(4)])
    with pytest.raises(ValueError, match="1 values for"):
        builder.take()
