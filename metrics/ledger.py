"""Every started sample ends in exactly one bin (contract section 5): the books, kept and checked at every step."""

from collections.abc import Mapping

from metrics.registry import measured
from metrics.schema import BINS, Outcome

STARTED = "samples started in the attempt so far"
for outcome in BINS:
    measured(
        f"ledger/{outcome}",
        f"Samples of this attempt in the bin '{outcome}' up to and including this step."
        if outcome is not Outcome.IN_FLIGHT
        else "Samples of this attempt that were started and are in no bin at the end of this step.",
        section="ledger",
        unit="samples",
        population=STARTED,
        reduction="cumulative count",
        absent_when="never",
        source="ledger",
    )
measured(
    "ledger/started",
    "Samples started in this attempt so far; equal to the sum over the bins.",
    section="ledger",
    unit="samples",
    population=STARTED,
    reduction="cumulative count",
    absent_when="never",
    source="ledger",
)


def balance(started: int, ended: Mapping[str, int]) -> dict[str, float]:
    """The ledger/* of a step. What is started and in no bin is in flight; fewer started than ended shows as
    negative."""
    bins = {f"ledger/{name}": float(ended.get(name, 0)) for name in BINS}
    in_flight = started - sum(count for name, count in ended.items() if name != Outcome.IN_FLIGHT)
    return bins | {f"ledger/{Outcome.IN_FLIGHT}": float(in_flight), "ledger/started": float(started)}
