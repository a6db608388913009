"""Lines as they come: a thread reads, and whoever asks gets all that has come since it asked last.

    pipe or file ──▶ thread: pieces as they come, a few of them kept ──▶ lines of all that is there

So a file is put in large parts, and what a slow pipe brings (`tail -f`) is put when it comes, not when there is a lot
of it. While one part is being put the next is read; a pipe that is faster than the puts is held back.

The file is read below Python's own buffer: a thread that waits in that would hold a lock which the end of the process
needs.
"""

from __future__ import annotations

import io
import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

import click

PIECE_BYTES: Final = 262_144
PIECES: Final = 8  # read ahead
LINE_MOST: Final = 4_194_304  # no queue takes a longer one: only as much of it is kept as shows that


def lines_of(source: BinaryIO) -> Iterator[list[bytes]]:
    """Lists of lines without their ends; never empty ones."""
    pieces: queue.Queue[bytes | OSError] = queue.Queue(PIECES)
    reader = threading.Thread(target=_read, args=(_reading(source), pieces), name="capellini-lines", daemon=True)
    reader.start()
    cutter = _Cutter()
    while True:
        found, over = _waiting(pieces)
        for piece in found:
            cutter.add(piece)
        if over:
            cutter.end()
        if lines := cutter.taken():
            yield lines
        if over:
            return


def _reading(source: BinaryIO) -> Callable[[], bytes]:
    """What there is, of a pipe; an empty answer is the end."""
    try:
        file = source.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return lambda: source.read(PIECE_BYTES)
    return lambda: os.read(file, PIECE_BYTES)


def _read(read: Callable[[], bytes], pieces: queue.Queue[bytes | OSError]) -> None:
    try:
        while piece := read():
            pieces.put(piece)
        pieces.put(b"")
    except OSError as error:
        pieces.put(error)


def _waiting(pieces: queue.Queue[bytes | OSError]) -> tuple[list[bytes], bool]:
    """All that has come, one piece at least; and is that the end?"""
    found: list[bytes] = []
    piece = pieces.get()
    while True:
        if isinstance(piece, OSError):
            raise click.ClickException(f"the lines cannot be read: {piece.strerror}") from piece
        if not piece:
            return found, True
        found.append(piece)
        try:
            piece = pieces.get_nowait()
        except queue.Empty:
            return found, False


class _Cutter:
    """Cuts pieces into lines; what has no end yet is kept."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._open = bytearray()

    def add(self, piece: bytes) -> None:
        first, *rest = piece.split(b"\n")
        self._grow(first)
        if rest:
            self._close()
            *whole, last = rest
            self._lines += [line.removesuffix(b"\r") for line in whole]
            self._grow(last)

    def _grow(self, part: bytes) -> None:
        self._open += part[: LINE_MOST + 2 - len(self._open)]

    def _close(self) -> None:
        self._lines.append(bytes(self._open).removesuffix(b"\r"))  # one: what was cut off stays too long to be put
        self._open.clear()

    def end(self) -> None:
        if self._open:
            self._close()

    def taken(self) -> list[bytes]:
        lines, self._lines = self._lines, []
        return lines
