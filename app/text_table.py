"""Tables for people who read a terminal."""

from collections.abc import Sequence


def line(name: str, cells: Sequence[str]) -> str:
    """A row: a name, then cells of ten characters, right-aligned."""
    return f"  {name:<24}" + "".join(f"{cell:>10}" for cell in cells)
