"""A table that only grows: Parquet segments in a folder, and a manifest that says which of them count.

    <folder>/manifest.jsonl                     one line a segment (see `Segment`), in metrics/journal.py's format
    <folder>/000000000000-000000000059.L0.parquet   rows 0 to 59

A segment is written aside, renamed, and only then entered in the manifest: it is there whole or it does not count. So a
kill after any byte loses at most what was not acknowledged. Appends are not forced to the disk one by one (a killed
process loses nothing; a crash of the whole machine may damage the last seconds, which the checksums show); merged
segments are, before those they replace are deleted. Every FAN_IN small segments are merged into one of the next level,
so a table of many steps is a few files.
"""

import hashlib
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from metrics.ids import Ids
from metrics.journal import Follower, Lines, append_line, repair, rewrite, write_durably

FAN_IN = 16
MANIFEST = "manifest.jsonl"
Meta = dict[str, Any]


class DamagedSegment(Exception):
    """A segment that is missing, short or changed. The message names the file."""


@dataclass(frozen=True)
class Segment:
    """One line of the manifest."""

    file: str
    level: int
    first_row: int
    last_row: int
    bytes: int
    sha256: str
    attempts: list[int]
    steps: list[int]
    """Smallest and largest step of the rows; empty for a segment without rows."""
    messages: dict[str, list[list[int]]]
    """Per source, the ranges of message numbers whose rows are in here."""
    meta: Meta = field(default_factory=dict)
    replaces: list[str] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        return self.last_row - self.first_row + 1

    def touches(self, first_step: int, last_step: int) -> bool:
        return bool(self.steps) and self.steps[0] <= last_step and self.steps[1] >= first_step


@dataclass(frozen=True)
class Manifest:
    segments: list[Segment]
    damaged_lines: list[int]


class ManifestReader:
    """A manifest that may still grow; each line of it is parsed once. For several threads."""

    def __init__(self, path: Path) -> None:
        self.follower, self.lock = Follower(path), Lock()
        self.live: dict[str, Segment] = {}
        self.damaged: list[int] = []
        self.found = Manifest([], [])

    def read(self) -> Manifest:
        """The segments that count, in the order of their rows; the same object while nothing changes."""
        with self.lock:
            news = self.follower.news()
            if news is not None:
                if news.is_whole:
                    self.live, self.damaged = {}, []
                self.take(news.lines)
                ordered = sorted(self.live.values(), key=lambda segment: segment.first_row)
                self.found = Manifest(ordered, sorted(self.damaged))
            return self.found

    def take(self, lines: Lines) -> None:
        self.damaged += lines.damaged
        for number, item in zip(lines.numbers, lines.items, strict=True):
            segment = segment_of(item)
            if segment is None:
                self.damaged.append(number)
                continue
            for name in segment.replaces:
                self.live.pop(name, None)
            self.live[segment.file] = segment


def segment_of(item: Any) -> Segment | None:
    """A line of a manifest; None for one that is no segment, or that points out of its folder."""
    try:
        segment = Segment(**item)
        numbers = [segment.level, segment.first_row, segment.last_row, segment.bytes, *segment.attempts, *segment.steps]
        shape = len(segment.attempts), len(segment.steps)
    except TypeError:
        return None
    is_right = shape in ((2, 0), (2, 2)) and all(isinstance(number, int) for number in numbers)
    is_here = isinstance(segment.file, str) and Path(segment.file).name == segment.file
    has_maps = isinstance(segment.messages, dict) and isinstance(segment.meta, dict)
    has_names = isinstance(segment.replaces, list) and all(isinstance(name, str) for name in segment.replaces)
    return segment if is_right and is_here and has_maps and has_names else None


def read_manifest(folder: Path) -> Manifest:
    """The manifest as it is now."""
    return ManifestReader(folder / MANIFEST).read()


def segment_bytes(folder: Path, segment: Segment) -> bytes:
    """The segment's bytes, checked against the manifest. FileNotFoundError when it was merged away meanwhile."""
    data = (folder / segment.file).read_bytes()
    if len(data) != segment.bytes:
        raise DamagedSegment(f"{folder.name}/{segment.file}: {len(data)} bytes, the manifest says {segment.bytes}")
    if hashlib.sha256(data).hexdigest() != segment.sha256:
        raise DamagedSegment(f"{folder.name}/{segment.file}: its checksum is not the manifest's")
    return data


def read_segment(folder: Path, segment: Segment, columns: list[str] | None = None) -> pl.DataFrame:
    """Its rows; of these columns, those that the version which wrote it knew."""
    data = io.BytesIO(segment_bytes(folder, segment))
    if columns is not None:
        known = pl.read_parquet_schema(data)
        columns = [name for name in columns if name in known]
        data.seek(0)
    return pl.read_parquet(data, columns=columns)


class Table:
    """The writing side of one table. There is one writer at a time; the store's lock sees to that."""

    def __init__(
        self,
        folder: Path,
        *,
        sort_merged_by: list[str],
        merge_meta: Callable[[list[Meta]], Meta],
        max_merged_bytes: int,
        row_group_size: int,
    ) -> None:
        self.folder = folder
        self.sort_merged_by = sort_merged_by
        self.merge_meta = merge_meta
        self.max_merged_bytes = max_merged_bytes
        self.row_group_size = row_group_size
        folder.mkdir(parents=True, exist_ok=True)
        repair(folder / MANIFEST)
        manifest = read_manifest(folder)
        self.seen: dict[str, Ids] = {}
        self.open_levels: dict[int, list[Segment]] = {}
        self.next_row = 0
        for segment in manifest.segments:
            self.remember(segment)
        self.clear_leftovers(manifest)

    def remember(self, segment: Segment) -> None:
        for source, ranges in segment.messages.items():
            self.seen[source] = Ids([*self.seen.get(source, Ids()).as_list(), *ranges])
        self.next_row = max(self.next_row, segment.last_row + 1)
        self.open_levels.setdefault(segment.level, []).append(segment)
        self.seal(segment.level)

    def clear_leftovers(self, manifest: Manifest) -> None:
        """Files of a killed writer that never counted. Kept under another name when the manifest itself is damaged."""
        known = {segment.file for segment in manifest.segments}
        for path in [*self.folder.glob("*.parquet"), *self.folder.glob("*.tmp")]:
            if path.name not in known:
                if manifest.damaged_lines and path.suffix == ".parquet":
                    path.rename(path.with_name(path.name + ".unlisted"))
                else:
                    path.unlink()

    def has(self, source: str, seq: int) -> bool:
        return source in self.seen and seq in self.seen[source]

    def append(self, rows: pa.Table, *, attempt: int, source: str, seq: int, meta: Meta) -> Segment:
        """Store the rows of one message. When this returns they are readable, and survive a kill of this process."""
        first, last = self.next_row, self.next_row + rows.num_rows - 1
        numbered = rows.append_column(
            pa.field("attempt", pa.int32(), False), pa.repeat(pa.scalar(attempt, pa.int32()), rows.num_rows)
        )
        numbered = numbered.append_column(
            pa.field("row", pa.int64(), False), pa.array(range(first, last + 1), pa.int64())
        )
        steps = rows["step"].to_pylist()
        entry = {
            "level": 0,
            "first_row": first,
            "last_row": last,
            "attempts": [attempt, attempt],
            "steps": [min(steps), max(steps)] if steps else [],
            "messages": {source: [[seq, seq]]},
            "meta": meta,
        }
        name = f"{first:012d}-{max(last, first):012d}.L0"
        if not rows.num_rows:
            name = f"{first:012d}-empty-{hashlib.sha256(f'{source} {seq}'.encode()).hexdigest()[:8]}.L0"
        segment = self.write(numbered, f"{name}.parquet", entry, durable=False)
        append_line(self.folder / MANIFEST, vars(segment))
        self.remember(segment)
        self.merge_full_levels()
        return segment

    def write(self, rows: pa.Table, name: str, entry: dict[str, Any], *, durable: bool) -> Segment:
        sink = io.BytesIO()
        pq.write_table(rows, sink, compression="zstd", row_group_size=self.row_group_size)
        data = sink.getvalue()
        aside = self.folder / f"{name}.tmp"
        if durable:
            write_durably(aside, data)
        else:
            aside.write_bytes(data)
        aside.rename(self.folder / name)
        return Segment(file=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), **entry)

    def seal(self, level: int) -> None:
        """Forget segments that are too big to be merged: memory stays bounded however long the run is."""
        waiting = self.open_levels[level]
        if len(waiting) >= FAN_IN and sum(segment.bytes for segment in waiting[:FAN_IN]) > self.max_merged_bytes:
            self.open_levels[level] = waiting[FAN_IN:]

    def merge_full_levels(self) -> None:
        level = 0
        while len(self.open_levels.get(level, [])) >= FAN_IN:
            self.merge(level)
            level += 1

    def merge(self, level: int) -> None:
        parts = self.open_levels[level]
        self.open_levels[level] = []
        good = [(segment, frame) for segment in parts if (frame := self.readable(segment)) is not None]
        if len(good) < 2:
            return
        old = [segment for segment, _ in good]
        frames = [frame for _, frame in good]
        frame = pl.concat(frames, how="diagonal").sort(self.sort_merged_by, maintain_order=True)
        merged = self.write(
            frame.to_arrow(), merged_name(old, level + 1), merged_entry(old, level + 1, self.merge_meta), durable=True
        )
        append_line(self.folder / MANIFEST, vars(merged))
        for segment in old:
            (self.folder / segment.file).unlink(missing_ok=True)
        self.open_levels.setdefault(level + 1, []).append(merged)
        self.seal(level + 1)
        if level >= 1:
            self.shorten_manifest()

    def shorten_manifest(self) -> None:
        """Leave out what was merged. A manifest with damaged lines stays as it is: readers go on naming them."""
        found = read_manifest(self.folder)
        if not found.damaged_lines:
            rewrite(self.folder / MANIFEST, [vars(segment) for segment in found.segments])

    def readable(self, segment: Segment) -> pl.DataFrame | None:
        """None for a damaged segment: it stays where it is, for the reader to name and for a person to look at."""
        try:
            return read_segment(self.folder, segment)
        except (DamagedSegment, FileNotFoundError):
            return None


def merged_name(old: list[Segment], level: int) -> str:
    return f"{old[0].first_row:012d}-{max(segment.last_row for segment in old):012d}.L{level}.parquet"


def merged_entry(old: list[Segment], level: int, merge_meta: Callable[[list[Meta]], Meta]) -> dict[str, Any]:
    steps = [step for segment in old for step in segment.steps]
    attempts = [attempt for segment in old for attempt in segment.attempts]
    return {
        "level": level,
        "first_row": min(segment.first_row for segment in old),
        "last_row": max(segment.last_row for segment in old),
        "attempts": [min(attempts), max(attempts)],
        "steps": [min(steps), max(steps)] if steps else [],
        "messages": merged_messages(segment.messages for segment in old),
        "meta": merge_meta([segment.meta for segment in old]),
        "replaces": [segment.file for segment in old],
    }


def merged_messages(parts: Iterable[dict[str, list[list[int]]]]) -> dict[str, list[list[int]]]:
    together: dict[str, list[list[int]]] = {}
    for part in parts:
        for source, ranges in part.items():
            together.setdefault(source, []).extend(ranges)
    return {source: Ids(ranges).as_list() for source, ranges in together.items()}
