"""What is known about a run: definitions, aggregation, the store, and reading it. Imports neither Ray nor torch."""

from metrics.numbers import gini
from metrics.step import step_metrics

__all__ = ["gini", "step_metrics"]
