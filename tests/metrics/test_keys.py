"""Keys and values: what is allowed, and how the others are refused."""

import numpy as np
import pytest

from metrics import keys
from metrics.registry import find
from metrics.values import step_values


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("loss", ("General", "", "loss")),
        ("a/b", ("a", "", "b")),
        ("a/b/c", ("a", "b", "c")),
        ("a/b/c/d", ("a", "b", "c/d")),
    ],
)
def test_slashes_split_a_key(key, parts):
    assert keys.split(key) == parts


@pytest.mark.parametrize(
    "key",
    [
        "[train] loss",
        "loss (nats)",
        "a%b",
        "a:b",
        "a?b#c",
        "потери",
        "損失/訓練",
        "🎯/acc",
        "my.loss",
        "a`b",
        'a"b',
        "a'b",
        "a{b}",
        "SELECT",
    ],
)
def test_any_readable_text_is_a_key(key):
    assert keys.check(key) == key


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("a//b", "empty part"),
        ("/a", "empty part"),
        ("a/", "empty part"),
        ("/", "empty part"),
        ("", "at least one character"),
        (" a", "space"),
        ("a ", "space"),
        ("a/../b", "'..'"),
        ("a\nb", "control character"),
        ("a\x00b", "control character"),
        ("a\udc80b", "surrogate"),
        ("x" * 201, "201 characters"),
        (7, "must be text, got int"),
    ],
)
def test_a_malformed_key_is_refused_with_the_rule(key, rule):
    with pytest.raises(ValueError, match=rule.replace("..", r"\.\.")):
        keys.check(key)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        (True, 1.0),
        (0.5, 0.5),
        (np.float16(1), 1.0),
        (np.bool_(True), 1.0),
        (np.int64(7), 7.0),
        (np.int32(2_000_000_000), 2e9),
        (None, None),
    ],
)
def test_a_scalar_of_any_library_is_a_number(value, expected):
    assert keys.number("a", value) == expected


def test_a_scalar_tensor_is_a_number_and_a_longer_one_is_not():
    import torch  # slow to import, and only this test needs it

    assert keys.number("a", torch.tensor(0.25)) == 0.25
    assert keys.number("a", torch.tensor(3, dtype=torch.bfloat16)) == 3.0
    with pytest.raises(TypeError, match=r"Tensor of shape \(2,\)"):
        keys.number("a", torch.ones(2))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1, 2], "list"),
        ("high", "str"),
        ({}, "dict"),
        (b"x", "bytes"),
        (1 + 2j, "complex"),
        (np.array([1.0, 2.0]), r"ndarray of shape \(2,\)"),
        (np.array([3.0]), r"ndarray of shape \(1,\)"),
        (10**400, "too large"),
    ],
)
def test_anything_else_is_refused_by_name(value, said):
    with pytest.raises(TypeError, match=f"metric 'a'.*{said}"):
        keys.number("a", value)


def test_a_backend_returns_built_in_and_new_keys():
    assert step_values({"entropy": 1, "my/own/key": np.float32(0.5), "off": None}) == {
        "entropy": 1.0,
        "my/own/key": 0.5,
    }


@pytest.mark.parametrize(
    "key",
    [
        "reward_mean",
        "generated/reward_std",
        "reward/sums/reward_mean",
        "ledger/trained",
        "timing_step_total",
        "eval/sums/pass@4/correct",
        "tokens/generated",
    ],
)
def test_a_backend_may_not_return_what_is_made_from_the_rows(key):
    assert find(key) is not None
    with pytest.raises(ValueError, match="built in"):
        step_values({key: 1.0})
