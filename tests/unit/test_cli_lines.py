"""Lines as `capellini put` reads them: all of them, none invented, as they come, and never more than it can hold."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from capellini.cli import put as verb
from capellini.cli.lines import LINE_MOST, PIECE_BYTES, lines_of
from capellini.cli.main import capellini


def read(data: bytes) -> list[bytes]:
    return [line for part in lines_of(io.BytesIO(data)) for line in part]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"one\ntwo", [b"one", b"two"]),
        (b"\n\none\r\n\r\n", [b"", b"", b"one", b""]),
        (b"a\rb\r\r\n", [b"a\rb\r"]),
        (bytes(range(256)), [bytes(range(10)), bytes(range(11, 256))]),
    ],
)
def test_lines_end_with_a_line_feed_or_both(data: bytes, lines: list[bytes]) -> None:
    assert read(data) == lines


def test_lines_that_lie_across_pieces_are_whole() -> None:
    lines = [b"%d" % number * (number % 50) for number in range(60_000)]
    assert len(b"\n".join(lines)) > 5 * PIECE_BYTES
    assert read(b"\n".join(lines)) == [line.removesuffix(b"\r") for line in lines]


def test_of_a_line_that_no_queue_takes_only_so_much_is_kept_as_shows_it() -> None:
    first, long, last = read(b"first\n" + b"x" * (2 * LINE_MOST) + b"\nlast")
    assert (first, last) == (b"first", b"last")
    assert LINE_MOST < len(long) < LINE_MOST + 10


def test_a_line_that_no_queue_takes_is_never_cut_to_one_that_fits() -> None:
    (long,) = read(b"x" * LINE_MOST + b"\r\r" + b"y" * 100)
    assert len(long) > LINE_MOST


def test_what_a_pipe_has_brought_is_there_before_it_ends() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as source:
        parts = lines_of(source)
        os.write(writing, b"one\ntwo\nth")
        found: list[bytes] = []
        while len(found) < 2:
            found += next(parts)
        assert found == [b"one", b"two"]
        os.write(writing, b"ree\nrest")
        os.close(writing)
        assert [line for part in parts for line in part] == [b"three", b"rest"]


def test_a_pipe_that_is_faster_than_its_reader_is_held_back() -> None:
    reading, writing = os.pipe()
    written = 0

    def write() -> None:
        nonlocal written
        for _ in range(200):
            written += os.write(writing, b"x" * 65_535 + b"\n")
        os.close(writing)

    writer = threading.Thread(target=write)
    with open(reading, "rb") as source:
        parts = lines_of(source)
        writer.start()
        count = len(next(parts))
        writer.join(0.5)  # it cannot end: nobody takes what it writes
        assert writer.is_alive() and written < 100 * 65_536
        count += sum(len(part) for part in parts)
        writer.join()
    assert count == 200


class Broken(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        raise OSError(5, "Input/output error")


def test_what_cannot_be_read_is_said() -> None:
    with pytest.raises(click.ClickException, match="cannot be read: Input/output error"):
        list(lines_of(Broken()))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["work", "log"])
def test_where_lines_break_off_it_is_said_how_many_were_put(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ["--at", f"rocks:{tmp_path / 'data'}"]
    assert CliRunner().invoke(capellini, ["queue", "create", "jobs", "--kind", kind, *at]).exit_code == 0

    def breaks_off(source: object) -> Iterator[list[bytes]]:
        yield [b"one", b"two"]
        yield from lines_of(Broken())  # type: ignore[arg-type]

    monkeypatch.setattr(verb, "lines_of", breaks_off)
    done = CliRunner().invoke(capellini, ["put", "jobs", "--lines", *at])
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "of the lines before line 3, 2 were put; of those from it on some may be",
        "Error: the lines cannot be read: Input/output error",
    ]
