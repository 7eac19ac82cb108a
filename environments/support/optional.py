"""Packages that only some environments need, and the extra of ours that brings each."""

import importlib
from types import ModuleType

from environments.checks import BadEnvironment

EXTRAS = {"datasets": "hub", "math_verify": "math", "reasoning_gym": "reasoning"}


def remedy(package: str) -> str:
    """How to get a missing package."""
    extra = EXTRAS.get(package.partition(".")[0])
    return f'install it with: pip install "telescope-on-ray[{extra}]"' if extra else "install it"


def require(package: str) -> ModuleType:
    """Import a package that an environment needs only for some of its settings."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        missing = error.name or package
        raise BadEnvironment(f"needs the package {missing!r}, which is not installed; {remedy(package)}") from error
