"""What the vLLM engines did from one push of weights to the next: all their requests, those of evals and of the probe
too. Each engine adds its steps up, the sums of the engines are added and divided once."""

from metrics.registry import measured

STEPS = "engine steps since the push before, of the replicas that answer this one (one that died takes its own along)"
MEAN = "sum over the engine steps of all replicas, divided by their number"
NO_STEPS = "no engine made a step"


def engine(key: str, definition: str, *, unit: str, reduction: str = MEAN, absent_when: str = NO_STEPS) -> None:
    measured(
        f"engine/{key}",
        definition,
        section="engine",
        unit=unit,
        population=STEPS,
        reduction=reduction,
        absent_when=absent_when,
        source="trainer",
    )


engine("running", "Requests in the batch of an engine, after a step, on average.", unit="requests")
engine(
    "waiting",
    "Requests that wait for a place in the batch of an engine, after a step, on average. Far above 0, more engines or "
    "a larger engine.max_num_seqs would answer sooner.",
    unit="requests",
)
engine(
    "kv_cache",
    "Share of an engine's key-value cache in use, after a step, on average. Near 1, requests wait for memory or lose "
    "it to others.",
    unit="fraction",
)
engine(
    "prefix_cache_hits",
    "Share of the prompt tokens of new requests whose keys and values were in the prefix cache. It holds whole "
    "blocks (of 128 tokens on a CPU), and every push empties it.",
    unit="fraction",
    reduction="sum of the cached tokens divided by sum of the prompt tokens",
    absent_when="no request was begun",
)
engine(
    "preemptions",
    "Requests whose keys and values were dropped and are computed again: all that run at a push with weight_update "
    "in_flight, others for want of key-value cache.",
    unit="requests",
    reduction="sum over the replicas",
)
engine(
    "steps",
    "Steps (forward passes) of the engines.",
    unit="steps",
    reduction="sum over the replicas",
)
