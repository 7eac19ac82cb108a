"""The trainer backend: one policy, one optimiser, one `train_step` a batch.

Make your own by subclassing it, and name the class in the config's `backend`:

    class MyTrainer(Trainer):
        def train_step(self, trainer_data):
            values = super().train_step(trainer_data)
            return values | {"my section/weights/embedding_norm": ...}

Every rank runs the same calls in the same order; what `train_step` returns is the same on all ranks.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from app.attention import NAME
from app.config import Config
from app.engine import dtype_name
from app.fsdp import CPU, attention, build_policy, full_parameters, gradient_norm, logits_at
from app.logprobs import entropies, scaled_logits, target_logprobs
from app.loss import count, needs_prox_pass, needs_reference, policy_loss
from app.loss_statistics import total
from app.reduce import Sums
from app.schedule import learning_rate
from app.spans import Spans
from app.tokens import Denominators, Tokens
from app.trainer_data import Pack, TrainerData
from metrics.schema import DUMMY

BAD_UPDATES_LIMIT = 3


class Trainer:
    """FSDP2 over the default process group, AdamW, float32 master weights."""

    def __init__(self, config: Config, model: str, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.own_share = float(self.rank == 0)  # of a count that is the same on every rank
        self.dtype = getattr(torch, dtype_name(config, device.type == "cuda"))
        self.shares_prompts = attention(device, self.dtype, config.packing) == NAME
        self.policy: Any = build_policy(model, device, self.dtype, config.gradient_checkpointing, config.packing)
        self.reference: PreTrainedModel | None = None
        if needs_reference(config):
            self.reference = build_policy(model, device, self.dtype, packing=config.packing).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
        )
        self.updates = 0  # optimiser updates so far: the place in the learning-rate schedule
        self.bad_updates = 0  # in a row
        self.spans = Spans(f"trainer {self.rank}", torch.cuda.synchronize if device.type == "cuda" else None)

    def train_step(self, trainer_data: TrainerData) -> dict[str, float]:
        """Trains one batch; returns the step metrics, reduced over micro-batches and ranks as sums and counts."""
        sums = total([])
        for key in ("tokens/padding", "train/skipped_updates", "train/nonfinite_gradients"):
            sums.add_sum(key, 0)
        updates = [[self._on_device(pack) for pack in packs] for packs in trainer_data.updates or [[]]]
        firsts = [sum(map(len, updates[:i])) for i in range(len(updates))]  # micro-batches count through a step
        prox = [self._prox(packs, first) for packs, first in zip(updates, firsts, strict=True)]
        for packs, old, first in zip(updates, prox, firsts, strict=True):
            self._update(packs, old, trainer_data, sums, first)
        return self._reduced(sums)

    def learning_rate(self) -> float:
        """The rate of the next update."""
        return learning_rate(
            self.updates + 1,
            peak=self.config.learning_rate,
            total=self.config.total_updates,
            schedule=self.config.lr_schedule,
            warmup=self.config.warmup_steps * self.config.minibatches,
            min_ratio=self.config.min_lr_ratio,
        )

    @torch.no_grad()
    def logprobs(self, token_ids: list[int], num_prompt: int) -> list[float]:
        """The policy's log-probabilities of the tokens after the first `num_prompt`. A collective."""
        ids = torch.tensor(token_ids, device=self.device)
        places = torch.arange(len(token_ids), device=self.device)
        logits = logits_at(self.policy, ids[None], places[None], places[num_prompt - 1 : -1])
        scaled = scaled_logits(logits, self.config.temperature)
        return target_logprobs(scaled, ids[num_prompt:]).tolist()

    def full_parameters(self, device: torch.device = CPU) -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor on `device`) in the arithmetic of the engines. A collective."""
        return full_parameters(self.policy, self.dtype, device)

    @torch.no_grad()
    def _prox(self, packs: list[Pack], first: int) -> list[Tensor | None]:
        """Log-probabilities by the weights at the start of the step; None where the update's own pass gives them."""
        if not needs_prox_pass(self.config):
            return [None] * len(packs)
        return [self._forward(self.policy, pack, i, "forward")[0] for i, pack in enumerate(packs, first)]

    def _update(self, packs: list[Pack], prox: list[Tensor | None], data: TrainerData, sums: Sums, first: int) -> None:
        """One optimiser update over its micro-batches."""
        rate = self.learning_rate()
        sums.add_mean("learning_rate", rate, 1)
        with self.spans.measure("prepare_tensors"):
            denominators = self._denominators(packs, prox, data)
        if denominators.tokens == 0:
            sums.add_sum("train/skipped_updates", self.own_share)
            return
        self.optimizer.zero_grad(set_to_none=True)
        for i, (pack, old) in enumerate(zip(packs, prox, strict=True)):
            self.policy.set_requires_gradient_sync(i == len(packs) - 1)
            self._backward(pack, old, denominators, data, sums, first + i)
        self._optimize(rate, data, sums)

    def _backward(
        self,
        pack: Pack,
        prox: Tensor | None,
        denominators: Denominators,
        data: TrainerData,
        sums: Sums,
        number: int,
    ) -> None:
        """Forward, loss and backward of one micro-batch."""
        logprobs, scaled, link = self._forward(self.policy, pack, number, "forward")
        with self._measure("compute_entropy", pack, number):
            entropy = entropies(scaled, with_grad=self.config.entropy_coef > 0)
        reference = self._reference_logprobs(pack, number)
        with self._measure("loss_computation", pack, number):
            tokens = _tokens(pack, data, logprobs, logprobs.detach() if prox is None else prox)
            tokens = replace(tokens, entropy=entropy, reference_logprobs=reference)
            loss, own = policy_loss(tokens, self.config, denominators)
            sums.merge(own)
            sums.add_sum("tokens/padding", pack.padding_tokens)
        with self._measure("backward", pack, number):
            # FSDP averages gradients over ranks; the denominators are global.
            (loss * self.world + link).backward()

    def _optimize(self, rate: float, data: TrainerData, sums: Sums) -> None:
        with self.spans.measure("optimizer"):
            norm = gradient_norm(self.policy, self.config.max_grad_norm)
            if not math.isfinite(norm):
                self._refuse(norm, data, sums)
                return
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        self.updates += 1
        self.bad_updates = 0
        sums.add_mean("grad_norm", norm, 1)

    def _refuse(self, norm: float, data: TrainerData, sums: Sums) -> None:
        """A gradient that is not finite moves neither the weights nor the schedule."""
        self.bad_updates += 1
        sums.add_sum("train/skipped_updates", self.own_share)
        sums.add_sum("train/nonfinite_gradients", self.own_share)
        if self.bad_updates >= BAD_UPDATES_LIMIT:
            raise FloatingPointError(
                f"step {data.step}: the gradient norm is {norm}, for update {self.bad_updates} in a row; "
                f"lower learning_rate or look at samples {data.sample_ids[:20]}"
            )

    def _forward(
        self, policy: PreTrainedModel, pack: Pack, number: int, kind: str
    ) -> tuple[Tensor, Tensor, Tensor | float]:
        """((N,) log-probabilities of the targets, (N, V) scaled logits, link).

        link is 0 and ties a dummy pack to the graph: every rank must take part in the backward pass.
        """
        with self._measure(kind, pack, number):
            logits = logits_at(policy, pack.token_ids, pack.position_ids, pack.sources, pack.layout)
            scaled = scaled_logits(logits[: pack.targets.numel()], pack.temperatures)
            return target_logprobs(scaled, pack.targets), scaled, 0.0 if pack.targets.numel() else logits.sum() * 0.0

    @torch.no_grad()
    def _reference_logprobs(self, pack: Pack, number: int) -> Tensor | None:
        if self.reference is None:
            return None
        return self._forward(self.reference, pack, number, "compute_kl")[0]

    def _denominators(self, packs: list[Pack], prox: list[Tensor | None], data: TrainerData) -> Denominators:
        """Counts over all ranks: what the sums of the update are divided by, once."""
        own = Denominators(0, 0)
        for pack, old in zip(packs, prox, strict=True):
            own += count(_tokens(pack, data, pack.rollout_logprobs, old), self.config)
        counts = torch.tensor([own.tokens, own.sequences], dtype=torch.int64, device=self.device)
        dist.all_reduce(counts)
        return Denominators(*counts.tolist())

    def _reduced(self, sums: Sums) -> dict[str, float]:
        added = torch.tensor(sums.added(), dtype=torch.float64, device=self.device)
        dist.all_reduce(added)
        return sums.reduced(added.tolist(), self._largest(sums.largest())).values()

    def _largest(self, own: list[float]) -> list[float]:
        """The largest over ranks; NaN where one has NaN, which MAX itself may lose."""
        values = torch.tensor(own, dtype=torch.float64, device=self.device)
        undefined = values.isnan()
        both = torch.stack([values.masked_fill(undefined, -math.inf), undefined.double()])
        dist.all_reduce(both, dist.ReduceOp.MAX)
        return both[0].masked_fill(both[1] > 0, math.nan).tolist()

    def _on_device(self, pack: Pack) -> Pack:
        with self.spans.measure("data_to_device"):
            return pack.to(self.device)

    def _measure(self, kind: str, pack: Pack, number: int) -> AbstractContextManager[None]:
        return self.spans.measure(kind, number, None if pack.targets.numel() else DUMMY)


def _tokens(pack: Pack, data: TrainerData, logprobs: Tensor, prox: Tensor | None) -> Tokens:
    return Tokens(
        logprobs=logprobs,
        rollout_logprobs=pack.rollout_logprobs,
        advantages=pack.advantages,
        segments=pack.sequences,
        prox_logprobs=prox,
        current=pack.versions == data.version,
    )
