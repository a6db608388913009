"""Files that a forked child must not keep: it would hold a folder that its parent has left, and answer for nobody. A
connection that lives on in a child does not end with its owner: whoever asked waits in vain.

In the child the empty device takes their place: their numbers stay taken, so that nobody there closes another file by
them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

Files = Callable[[], Iterable[int]]
_kept: set[int] = set()
_asked: set[Files] = set()


def close_in_children(file: int) -> None:
    _kept.add(file)


def forget(file: int) -> None:
    """It is closed."""
    _kept.discard(file)


def ask_in_children(files: Files) -> None:
    """The same for files that come and go: who has them says which are open."""
    _asked.add(files)


def forget_asking(files: Files) -> None:
    _asked.discard(files)


def _in_child() -> None:
    empty = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for file in [*_kept, *(file for files in _asked for file in files())]:
        with contextlib.suppress(OSError):
            os.dup2(empty, file, inheritable=False)
    os.close(empty)
    _kept.clear()
    _asked.clear()


os.register_at_fork(after_in_child=_in_child)
