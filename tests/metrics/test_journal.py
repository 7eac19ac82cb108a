"""A journal that is followed: every line is parsed once, and what was replaced or changed is noticed."""

import os
from pathlib import Path

import pytest

from metrics import journal
from metrics.journal import Follower, JournalReader, append_line, rewrite


@pytest.fixture
def parsed_bytes(monkeypatch) -> list[int]:
    """Sizes of what is parsed, in order."""
    sizes: list[int] = []
    parse = journal.parsed

    def counting(data: bytes, first: int = 1):
        sizes.append(len(data))
        return parse(data, first)

    monkeypatch.setattr(journal, "parsed", counting)
    return sizes


def filled(path: Path, items: range) -> Path:
    for item in items:
        append_line(path, {"item": item})
    return path


def items(reader: JournalReader) -> list[int]:
    return [item["item"] for item in reader.read().items]


def test_what_is_appended_is_parsed_and_nothing_else(tmp_path, parsed_bytes):
    path = filled(tmp_path / "j", range(1000))
    follower = Follower(path)
    assert follower.news().is_whole
    del parsed_bytes[:]
    assert follower.news() is None
    size = path.stat().st_size
    filled(path, range(1000, 1002))
    news = follower.news()
    assert (news.lines.items, news.lines.numbers) == ([{"item": 1000}, {"item": 1001}], [1001, 1002])
    assert parsed_bytes == [path.stat().st_size - size]


def test_half_a_line_is_read_once_it_is_whole(tmp_path):
    path = filled(tmp_path / "j", range(3))
    reader = JournalReader(path)
    line = journal.encoded({"item": 3})
    for place in range(0, len(line), 7):
        with path.open("ab") as file:
            file.write(line[place : place + 7])
        assert items(reader) == list(range(4 if place + 7 >= len(line) else 3))


def test_a_journal_that_was_rewritten_is_read_from_its_beginning(tmp_path):
    path = filled(tmp_path / "j", range(9))
    reader = JournalReader(path)
    assert items(reader) == list(range(9))
    rewrite(path, [{"item": 7}, {"item": 8}])
    assert items(reader) == [7, 8]
    filled(path, range(9, 12))
    assert items(reader) == [7, 8, 9, 10, 11]


@pytest.mark.parametrize("count", [2, 9, 30])
def test_another_content_of_the_same_file_is_read_from_its_beginning(tmp_path, count):
    path = filled(tmp_path / "j", range(9))
    reader = JournalReader(path)
    items(reader)
    path.write_bytes(filled(tmp_path / "other", range(100, 100 + count)).read_bytes())
    assert items(reader) == list(range(100, 100 + count))


def test_a_line_that_was_damaged_later_is_named(tmp_path):
    path = filled(tmp_path / "j", range(5))
    reader = JournalReader(path)
    items(reader)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))  # also where the clock of the file system is coarse
    assert (items(reader), reader.read().damaged) == ([0, 1, 3, 4], [3])
    filled(path, range(5, 6))
    assert (items(reader), reader.read().damaged) == ([0, 1, 3, 4, 5], [3])


def test_a_file_may_come_later_and_go(tmp_path):
    path = tmp_path / "j"
    reader = JournalReader(path)
    assert items(reader) == []
    filled(path, range(2))
    assert items(reader) == [0, 1]
    path.unlink()
    assert items(reader) == []
