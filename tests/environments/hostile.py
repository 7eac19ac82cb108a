"""Environments that misbehave, each in its own way; the completion says how."""

import asyncio
import ctypes
import os
import subprocess
import sys
import time
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pyarrow as pa

from environments.base import RewardResult, Sample, SingleTurnEnvironment

VALUES = {
    "None": None,
    "{}": {},
    "total None": RewardResult(None),
    "True": RewardResult(True),
    "np.float32": RewardResult(np.float32(0.5)),
    "np.bool": RewardResult(np.bool_(True)),
    "0-d": RewardResult(np.array(0.25)),
    "1-d": RewardResult(np.array([3.0])),
    "fraction": RewardResult(Fraction(1, 4)),
    "bare": 0.75,
    "'1'": RewardResult("1"),
    "bare '1'": "1",
    "nan": RewardResult(float("nan")),
    "inf": RewardResult(float("-inf")),
    "bare nan": float("nan"),
    "complex": RewardResult(1 + 2j),
    "huge": RewardResult(10**400),
    "list": RewardResult([1.0]),
    "metric None": RewardResult(1.0, {"a": None, "b": 0.0}),
    "metric nan": RewardResult(1.0, {"a": float("nan")}),
    "metric '1'": RewardResult(1.0, {"a": "1"}),
    "metrics list": RewardResult(1.0, [("a", 1.0)]),
    "metric a//b": RewardResult(1.0, {"a//b": 1.0}),
    "metric control": RewardResult(1.0, {"a\n": 1.0}),
    "metric long": RewardResult(1.0, {"a" * 201: 1.0}),
    "metric reward": RewardResult(1.0, {"reward": 1.0}),
    "metric 7": RewardResult(1.0, {7: 1.0}),
    "texts": RewardResult(1.0, {}, {"answer": 4, "none": None}, {"level": "\ud800hard"}),
    "tag list": RewardResult(1.0, {}, {}, {"level": ["hard"]}),
}


class Surly(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


SLEEPER = ["/bin/sleep", "3607"]


def act(what: str) -> None:
    """Do the bad thing that a completion names."""
    if what == "busy":
        while True:
            pass
    if what == "sleep":
        time.sleep(3600)
    if what == "starts another":
        subprocess.run(SLEEPER, check=False)
    if what == "exit":
        os._exit(3)
    if what == "segfault":
        ctypes.string_at(0)
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "sys.exit":
        sys.exit("bye")
    if what == "divide":
        1 / 0  # noqa: B018
    if what == "surly":
        raise Surly
    if what == "print":
        print("noise " * 10_000)
    if what == "huge text":
        raise ValueError("x" * 1_000_000)


class Hostile(SingleTurnEnvironment):
    def compute_reward(self, completion: str, sample: Sample, eos_token: str = ""):
        act(completion)
        return VALUES.get(completion, RewardResult(1.0))


class HostileAsync(SingleTurnEnvironment):
    async def compute_reward(self, completion: str, sample: Sample, eos_token: str = ""):
        await asyncio.sleep(0.05)
        if completion == "await":
            await asyncio.sleep(3600)
        act(completion)
        return RewardResult(1.0)


class Settings(SingleTurnEnvironment):
    def __init__(self, size: int, *, level: str = "easy", **kwargs) -> None:
        super().__init__(**kwargs)
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.size, self.level = size, level


class WrongSignature(SingleTurnEnvironment):
    def compute_reward(self, completion: str) -> float:
        return 1.0


class WrongRange(SingleTurnEnvironment):
    metrics_ranges: ClassVar = {"a": {"min": 1, "max": 1}}


class Stuck(SingleTurnEnvironment):
    def __init__(self, how: str = "os._exit") -> None:
        if how == "sys.exit":
            sys.exit(4)
        if how == "interrupt":
            raise KeyboardInterrupt
        os._exit(5)


def lengths(batch):
    for completion in batch["completion"]:
        act(completion)
    return np.array([float(len(completion)) for completion in batch["completion"]])


def from_table(batch: pa.Table) -> pa.Table:
    count = batch.num_rows
    metrics = pa.array([[("words", 2.0)]] * count, type=pa.map_(pa.string(), pa.float64()))
    return batch.append_column("reward", pa.array([0.5] * count)).append_column("sample_metrics", metrics)


def returns(batch: dict):
    """The completion of the first row names what is returned."""
    count = len(batch["completion"])
    return {
        "none in list": [None] * count,
        "nan in list": [float("nan")] * count,
        "strings": ["1"] * count,
        "none": None,
        "number": 1.0,
        "too many": [1.0] * (count + 1),
        "no column": {"score": [1.0] * count},
        "metrics": {"reward": [1] * count, "sample_metrics": [{"a": 2}] * count},
    }[batch["completion"][0]]
