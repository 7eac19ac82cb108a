"""What the trainer measures inside a step (contract section 3), and what is derived from it.

Each is carried as sums and counts through micro-batches and ranks and divided once; the trainer does that. "Trained
tokens" are tokens sampled by the policy and not masked out of the loss.
"""

from metrics.registry import measured

TOKENS = "trained tokens of the step"
SUMS = "sum and count over micro-batches and ranks, divided once"
NO_LOGPROBS = "the engine gave no log-probabilities"
NO_TOKENS = "no trained token"


def trainer(
    key: str,
    definition: str,
    *,
    section: str = "General",
    unit: str = "",
    population: str = TOKENS,
    reduction: str = SUMS,
    absent_when: str,
    **more: object,
) -> None:
    measured(
        key,
        definition,
        section=section,
        unit=unit,
        population=population,
        reduction=reduction,
        absent_when=absent_when,
        source="trainer",
        **more,
    )


trainer(
    "entropy",
    "Mean of −Σ p ln p of the full softmax of logits / temperature.",
    unit="nats",
    absent_when=NO_TOKENS,
    healthy=(0.01, None),
)
trainer(
    "kl_divergence_inference",
    "Mean of exp(d) − 1 − d with d = log-probability of the trainer − log-probability of the rollout: "
    "the k3 estimate of KL(rollout ‖ current), with the weights at the start of the step.",
    unit="nats",
    absent_when=NO_LOGPROBS,
    healthy=(0.0, 0.1),
    lower_is_better=True,
)
trainer(
    "grad_norm",
    "Global L2 norm of the gradient over all shards, before clipping.",
    population="optimiser updates of the step",
    reduction="mean over the updates",
    absent_when="the update was skipped",
)
trainer(
    "learning_rate",
    "The rate that this step used (not the next one's).",
    population="the step",
    reduction="none",
    absent_when="never",
)
trainer(
    "loss/policy",
    "The policy objective that was optimised. With one update on fresh data it is near "
    "−mean(advantage) = 0: it does not show progress.",
    section="loss",
    absent_when=NO_TOKENS,
    reduction="the algorithm's own aggregation, global",
)
trainer(
    "loss/kl_penalty",
    "The KL penalty before its coefficient.",
    section="loss",
    unit="nats",
    absent_when="the term is off",
)
trainer(
    "loss/entropy_bonus",
    "The entropy term before its coefficient.",
    section="loss",
    unit="nats",
    absent_when="the term is off",
)
for side, where in (("low", "below"), ("high", "above")):
    trainer(
        f"clip/{side}_fraction",
        f"Share of trained tokens where the clip binds in the advantage's direction, {where} "
        "(sequences for GSPO). 0 by construction on the first update of fresh data.",
        section="clip",
        unit="fraction",
        absent_when="the algorithm has no clip",
        healthy=(0.0, 0.3),
    )
trainer(
    "importance/mean",
    "Mean of the weights w = exp(log-probability at step start − log-probability of the rollout).",
    section="importance",
    absent_when=NO_LOGPROBS,
    healthy=(0.9, 1.1),
)
trainer(
    "importance/max",
    "Largest importance weight.",
    section="importance",
    absent_when=NO_LOGPROBS,
    reduction="max over micro-batches and ranks",
    healthy=(None, 100.0),
    lower_is_better=True,
)
trainer(
    "importance/ess_fraction",
    "Effective sample size over the number of tokens: (Σw)² / (n Σw²).",
    section="importance",
    unit="fraction",
    absent_when=NO_LOGPROBS,
    healthy=(0.5, 1.0),
)
trainer(
    "importance/capped_fraction",
    "Share of trained tokens whose importance weight lies outside the cap.",
    section="importance",
    unit="fraction",
    absent_when=NO_LOGPROBS,
    healthy=(0.0, 0.3),
    lower_is_better=True,
)
CURRENT = "trained tokens whose version is the trainer's current one"
trainer(
    "mismatch/logprob_abs_mean",
    "Mean of |log-probability of the trainer − log-probability of the rollout|.",
    section="mismatch",
    unit="nats",
    population=CURRENT,
    absent_when="no such token",
    healthy=(0.0, 0.02),
    lower_is_better=True,
)
trainer(
    "mismatch/logprob_abs_max",
    "Largest |log-probability of the trainer − log-probability of the rollout|.",
    section="mismatch",
    unit="nats",
    population=CURRENT,
    absent_when="no such token",
    lower_is_better=True,
    reduction="max over micro-batches and ranks",
)
trainer(
    "probe/logprob_abs_max",
    "Largest |log-probability of the engine − log-probability of the trainer| on the probe prompt "
    "after the weights were pushed.",
    section="probe",
    unit="nats",
    population="tokens of the probe prompt, every replica",
    reduction="max over replicas",
    absent_when="the probe is off",
    lower_is_better=True,
)
trainer(
    "tokens/trained",
    "Tokens that entered the loss.",
    section="tokens",
    unit="tokens",
    reduction="sum over micro-batches and ranks",
    absent_when="never",
)
trainer(
    "tokens/padding",
    "Positions computed by the trainer that hold no token of a sample.",
    section="tokens",
    unit="tokens",
    population="the step",
    reduction="sum over micro-batches and ranks",
    absent_when="never",
    lower_is_better=True,
)

trainer(
    "clip/dual_fraction",
    "Share of trained tokens with a negative advantage where the dual clip bounds the loss (sequences for GSPO).",
    section="clip",
    unit="fraction",
    absent_when="no dual clip",
    healthy=(0.0, 0.1),
)
trainer(
    "importance/masked_fraction",
    "Share of samples left out of the loss because their sequence importance weight lies outside the allowed range.",
    section="importance",
    unit="fraction",
    population="trained samples of the step",
    absent_when="the sequence mask is off",
    healthy=(0.0, 0.2),
    lower_is_better=True,
)
COUNTED = "sum over micro-batches and ranks"
trainer(
    "rollout/bad_logprobs",
    "Trained tokens whose log-probability from the engine is not finite; they leave every ratio.",
    section="rollout",
    unit="tokens",
    reduction=COUNTED,
    absent_when="never",
    healthy=(None, 0.0),
    lower_is_better=True,
)
trainer(
    "train/skipped_updates",
    "Optimiser updates that were left out: no token to train, or a gradient that is not finite.",
    section="train",
    unit="updates",
    population="optimiser updates of the step",
    reduction=COUNTED,
    absent_when="never",
    healthy=(None, 0.0),
    lower_is_better=True,
)
trainer(
    "train/nonfinite_gradients",
    "Optimiser updates whose gradient norm is not finite; neither the weights nor the schedule moved.",
    section="train",
    unit="updates",
    population="optimiser updates of the step",
    reduction=COUNTED,
    absent_when="never",
    healthy=(None, 0.0),
    lower_is_better=True,
)
trainer(
    "metrics/unacknowledged",
    "Messages to the metrics actor that were not stored yet at the end of the step; the loop then waited for them.",
    section="metrics",
    unit="messages",
    population="messages of the training loop",
    reduction="count",
    absent_when="there was none, or the loop had waited for it before (first step, after a checkpoint, with stop_on)",
    healthy=(None, 0.0),
    lower_is_better=True,
)

ROWS = "every sample of the step, trained or not"


def derived(key: str, definition: str, **fields: object) -> None:
    measured(
        key,
        definition,
        reduction="sum over samples" if key.startswith("tokens/") else "count / seconds",
        source="step",
        **fields,
    )


derived(
    "tokens/generated",
    "Tokens sampled by the policy, over all turns.",
    section="tokens",
    unit="tokens",
    population=ROWS,
    absent_when="never",
)
derived(
    "tokens/prompt",
    "Tokens of the prompts, once for each completion.",
    section="tokens",
    unit="tokens",
    population=ROWS,
    absent_when="never",
)
derived(
    "throughput/trained_tokens_per_s",
    "tokens/trained / timing_step_total.",
    section="throughput",
    unit="tokens/s",
    population=TOKENS,
    absent_when="no step span",
)
derived(
    "throughput/samples_per_s",
    "Trained samples / timing_step_total.",
    section="throughput",
    unit="samples/s",
    population="trained samples",
    absent_when="no step span",
)
