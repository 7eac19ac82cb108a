"""Models that are made on this machine, kept in a folder so that each is made once."""

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

logger = logging.getLogger(__name__)


class BadPolicy(ValueError):
    """A model that is not there or cannot be used, or a prompt that it cannot be asked."""


def root() -> Path:
    return Path(os.environ.get("TELESCOPE_CACHE") or "~/.cache/telescope").expanduser()


def cached(key: str, build: Callable[[Path], None]) -> Path:
    """The folder named by the key. The first to ask builds it, aside; whoever asks meanwhile waits."""
    folder = root() / key
    try:
        root().mkdir(parents=True, exist_ok=True)
        with _locked(root() / f"{key}.lock"):
            if not folder.exists():
                _build_aside(folder, build)
    except OSError as error:
        raise BadPolicy(
            f"the policy cannot be kept in {root()}: {error}; make room there, or set TELESCOPE_CACHE to a folder "
            "that can be written"
        ) from error
    return folder


def _build_aside(folder: Path, build: Callable[[Path], None]) -> None:
    """Under the lock: build next to the final place and rename, so that a folder is always complete."""
    for leftover in folder.parent.glob(f"{folder.name}.part-*"):
        shutil.rmtree(leftover)  # of a build that was interrupted
    aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    try:
        build(aside)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one process at a time; the kernel gives it back when that process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("another process is preparing %s; waiting for it", path.stem)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
