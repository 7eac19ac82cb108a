"""Reading tables while they may be written: verified segments, kept in memory, and damaged ones named.

Segments never change once written, so a decoded one is kept (up to CACHED_BYTES over all runs), and manifests and
journals are followed: a delta reads only files and lines that are new.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import polars as pl

from metrics.journal import NO_FILE, JournalReader, Lines, stamp_of
from metrics.segments import MANIFEST, DamagedSegment, Manifest, ManifestReader, Segment, read_segment, segment_bytes

CACHED_BYTES = 256 * 2**20
SUMMARY_BYTES = 64 * 2**10
"""What a kept summary is taken to weigh."""
RETRIES = 20


@dataclass(frozen=True)
class Found:
    known: Manifest
    """The manifest that was read by."""
    frames: list[pl.DataFrame]
    segments: list[Segment]
    """Of each frame the segment that it was."""
    damaged: list[str]
    """What could not be read, in words: a segment or a line of the manifest."""


class Cache:
    """Values by key, the oldest unused given up first when they take too many bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.items: OrderedDict[tuple, tuple[object, int]] = OrderedDict()
        self.num_bytes = 0
        self.lock = Lock()

    def get(self, key: tuple) -> object | None:
        with self.lock:
            if key not in self.items:
                return None
            self.items.move_to_end(key)
            return self.items[key][0]

    def put(self, key: tuple, value: object, num_bytes: int) -> None:
        with self.lock:
            if key in self.items:
                self.num_bytes -= self.items.pop(key)[1]
            self.items[key] = (value, num_bytes)
            self.num_bytes += num_bytes
            while self.num_bytes > self.max_bytes and len(self.items) > 1:
                self.num_bytes -= self.items.popitem(last=False)[1][1]

    def clear(self) -> None:
        with self.lock:
            self.items.clear()
            self.num_bytes = 0


SEGMENTS = Cache(CACHED_BYTES)
JOURNALS = Cache(16 * 2**20)
VERIFIED = Cache(2**20)
SUMMARIES = Cache(16 * 2**20)


def forget() -> None:
    """Give up everything that is kept in memory."""
    for cache in (SEGMENTS, JOURNALS, VERIFIED, SUMMARIES):
        cache.clear()


def manifest(folder: Path) -> Manifest:
    """The folder's manifest; what was read of it before is not read again."""
    return followed(folder / MANIFEST, ManifestReader)


def journal(path: Path) -> Lines:
    """The lines of a journal; those that were read before are not read again. Not to be changed."""
    return followed(path, JournalReader)


def followed(path: Path, make: Callable[[Path], JournalReader | ManifestReader]) -> Any:
    reader = JOURNALS.get((str(path),)) or make(path)
    assert isinstance(reader, JournalReader | ManifestReader)
    found = reader.read()
    JOURNALS.put((str(path),), reader, reader.follower.end + 1)
    return found


def stamps(*paths: Path) -> tuple[tuple[int, int, int], ...]:
    """Of each file what changes when the file does."""
    return tuple(stamp_of(path.stat()) if path.exists() else NO_FILE for path in paths)


def remembered(name: tuple[str, ...], stamped: object, work: Callable[[], Any]) -> Any:
    """The result of `work`, kept while the stamps of what it reads stay the same. Not to be changed."""
    kept = SUMMARIES.get(name)
    if isinstance(kept, tuple) and kept[0] == stamped:
        return kept[1]
    result = work()
    SUMMARIES.put(name, (stamped, result), SUMMARY_BYTES)
    return result


def read(
    folder: Path, wanted: Callable[[Segment], bool], columns: list[str] | None = None, *, keep: bool = True
) -> Found:
    """The frames of the wanted segments. A segment that is merged away during the reading is found in the new
    manifest."""
    for _ in range(RETRIES):
        known = manifest(folder)
        try:
            return read_all(
                folder,
                known,
                [segment for segment in known.segments if segment.num_rows and wanted(segment)],
                columns,
                keep,
            )
        except FileNotFoundError:
            if manifest(folder) is known:
                return read_all(
                    folder,
                    known,
                    [s for s in known.segments if s.num_rows and wanted(s)],
                    columns,
                    keep,
                    missing_ok=True,
                )
    raise RuntimeError(f"{folder}: its segments were merged {RETRIES} times while it was read; try again")


def read_all(
    folder: Path,
    known: Manifest,
    segments: list[Segment],
    columns: list[str] | None,
    keep: bool,
    missing_ok: bool = False,
) -> Found:
    frames, good = [], []
    damaged = [f"{folder.name}/{MANIFEST}: line {number} is damaged" for number in known.damaged_lines]
    for segment in segments:
        try:
            frames.append(decoded(folder, segment, columns, keep))
            good.append(segment)
        except DamagedSegment as error:
            damaged.append(str(error))
        except FileNotFoundError:
            if not missing_ok:
                raise
            damaged.append(f"{folder.name}/{segment.file}: the file is missing")
    return Found(known, frames, good, damaged)


def decoded(folder: Path, segment: Segment, columns: list[str] | None, keep: bool) -> pl.DataFrame:
    key = (str(folder), segment.file, segment.sha256, tuple(columns or ()))
    kept = SEGMENTS.get(key)
    if isinstance(kept, pl.DataFrame):
        return kept
    frame = read_segment(folder, segment, columns)
    if keep:
        SEGMENTS.put(key, frame, int(frame.estimated_size()) + 1)
    return frame


def verified_path(folder: Path, segment: Segment) -> Path:
    """The segment's file, its checksum held against the manifest once in this process: for reading parts of a big
    file."""
    path = folder / segment.file
    stat = path.stat()
    key = (str(path), segment.sha256, stat.st_size, stat.st_mtime_ns)
    if VERIFIED.get(key) is None:
        segment_bytes(folder, segment)
        VERIFIED.put(key, True, 1)
    return path
