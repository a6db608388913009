"""Files that a forked child must not keep: it would hold a folder that its parent has left, and answer for nobody."""

from __future__ import annotations

import contextlib
import os

_kept: set[int] = set()


def close_in_children(file: int) -> None:
    _kept.add(file)


def forget(file: int) -> None:
    """It is closed."""
    _kept.discard(file)


def _in_child() -> None:
    for file in _kept:
        with contextlib.suppress(OSError):  # closed since, by whoever forgot to say so
            os.close(file)
    _kept.clear()


os.register_at_fork(after_in_child=_in_child)
