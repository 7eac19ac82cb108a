"""An append-only file of JSON lines, each with its own checksum: `<crc32 in 8 hex digits> <json>`.

A line that a kill cut short has no newline and is ignored by readers; the next writer removes it. A line whose checksum
does not hold is named, and the lines after it are still read.
"""

import errno
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson


@dataclass(frozen=True)
class Lines:
    items: list[Any]
    damaged: list[int]
    """Numbers (from 1) of lines whose checksum does not hold."""
    complete_bytes: int
    """Length of the file up to and including its last newline."""


def read_lines(path: Path) -> Lines:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Lines([], [], 0)
    complete = data.rfind(b"\n") + 1
    items, damaged = [], []
    for number, line in enumerate(data[:complete].split(b"\n")[:-1], 1):
        if line[8:9] == b" " and line[:8] == checksum(line[9:]):
            items.append(orjson.loads(line[9:]))
        else:
            damaged.append(number)
    return Lines(items, damaged, complete)


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
