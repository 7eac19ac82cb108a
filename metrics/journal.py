"""An append-only file of JSON lines, each with its own checksum: `<crc32 in 8 hex digits> <json>`.

A line that a kill cut short has no newline and is ignored by readers; the next writer removes it. A line whose checksum
does not hold is named, and the lines after it are still read.
"""

import errno
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import orjson

GUARD_BYTES = 64
"""What follows these last bytes of what was read is taken for an addition to it."""


@dataclass(frozen=True)
class Lines:
    items: list[Any]
    numbers: list[int]
    """Of each item the number of its line, from 1."""
    damaged: list[int]
    """Numbers of lines whose checksum does not hold."""
    complete_bytes: int
    """Length up to and including the last newline."""


def read_lines(path: Path) -> Lines:
    try:
        return parsed(path.read_bytes())
    except FileNotFoundError:
        return parsed(b"")


def parsed(data: bytes, first: int = 1) -> Lines:
    """The lines of a journal or of its end, the first of them with this number."""
    complete = data.rfind(b"\n") + 1
    items, numbers, damaged = [], [], []
    for number, line in enumerate(data[:complete].split(b"\n")[:-1], first):
        if line[8:9] == b" " and line[:8] == checksum(line[9:]):
            items.append(orjson.loads(line[9:]))
            numbers.append(number)
        else:
            damaged.append(number)
    return Lines(items, numbers, damaged, complete)


@dataclass(frozen=True)
class News:
    lines: Lines
    is_whole: bool
    """The file was read from its beginning: what was known of it before no longer counts."""


class Follower:
    """A journal that others append to, each line of it parsed once.

    The whole file is parsed again when it was replaced, got shorter, or does not go on where it ended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stamp: tuple[int, int, int] | None = None
        self.end, self.num_lines, self.guard = 0, 0, b""

    def news(self) -> News | None:
        """What has come since the last call; None when nothing has."""
        try:
            if stamp_of(self.path.stat()) == self.stamp:
                return None
            with self.path.open("rb") as file:
                stamp = stamp_of(os.fstat(file.fileno()))
                added = self.added(file) if self.goes_on(stamp) else None
                return self.taken(stamp, file.read() if added is None else added, added is None)
        except FileNotFoundError:
            return None if self.stamp in (None, NO_FILE) else self.taken(NO_FILE, b"", True)

    def goes_on(self, stamp: tuple[int, int, int]) -> bool:
        return self.stamp is not None and stamp[0] == self.stamp[0] and stamp[1] > self.stamp[1]

    def added(self, file: BinaryIO) -> bytes | None:
        file.seek(self.end - len(self.guard))
        data = file.read()
        if data.startswith(self.guard):
            return data[len(self.guard) :]
        file.seek(0)
        return None

    def taken(self, stamp: tuple[int, int, int], data: bytes, is_whole: bool) -> News:
        if is_whole:
            self.end, self.num_lines, self.guard = 0, 0, b""
        lines = parsed(data, self.num_lines + 1)
        self.stamp = stamp
        self.end += lines.complete_bytes
        self.num_lines += len(lines.items) + len(lines.damaged)
        self.guard = (self.guard + data[: lines.complete_bytes])[-GUARD_BYTES:]
        return News(lines, is_whole)


class JournalReader:
    """A journal that may still grow, all its lines. For several threads."""

    def __init__(self, path: Path) -> None:
        self.follower, self.lock = Follower(path), Lock()
        self.found = parsed(b"")

    def read(self) -> Lines:
        with self.lock:
            news = self.follower.news()
            if news is not None:
                self.found = news.lines if news.is_whole else joined(self.found, news.lines)
            return self.found


def joined(known: Lines, more: Lines) -> Lines:
    return Lines(
        [*known.items, *more.items],
        [*known.numbers, *more.numbers],
        [*known.damaged, *more.damaged],
        known.complete_bytes + more.complete_bytes,
    )


NO_FILE = (0, 0, 0)


def stamp_of(stat: os.stat_result) -> tuple[int, int, int]:
    """Inode, size and time of change: one of them differs when the file does."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def append_line(path: Path, item: Any) -> None:
    """One write call. A line that does not fit on the disk is taken back, so that the next one begins on a new line."""
    line = encoded(item)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        before = os.fstat(descriptor).st_size
        if os.write(descriptor, line) != len(line):
            os.ftruncate(descriptor, before)
            raise OSError(errno.ENOSPC, "no room for the next line; free some space", str(path))
    finally:
        os.close(descriptor)


def rewrite(path: Path, items: list[Any]) -> None:
    """Replace the whole file at once: a reader sees the old lines or the new ones."""
    aside = path.with_name(path.name + ".tmp")
    write_durably(aside, b"".join(encoded(item) for item in items))
    aside.replace(path)


def repair(path: Path) -> None:
    """Cut off the half line that a killed writer left."""
    if path.exists():
        lines = read_lines(path)
        if path.stat().st_size > lines.complete_bytes:
            os.truncate(path, lines.complete_bytes)


def write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def encoded(item: Any) -> bytes:
    body = orjson.dumps(item, option=orjson.OPT_NON_STR_KEYS)
    return checksum(body) + b" " + body + b"\n"


def checksum(body: bytes) -> bytes:
    return f"{zlib.crc32(body):08x}".encode()
