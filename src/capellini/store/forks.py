"""Files that a forked child must not keep: it would hold a folder that its parent has left, and answer for nobody. A
connection that lives on in a child does not end with its owner: whoever asked waits in vain.

In the child the empty device takes their place: their numbers stay taken, so that nobody there closes another file by
them.

RocksDB keeps threads for the whole process, and a child has none of them: what it opens would wait for ever as soon as
there is something to flush, and what it inherited, when it exits (or end it with a segmentation fault). So it opens
nothing, its parent's objects stay for as long as it lives, and its exit ends with Python's part.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterable
from weakref import WeakSet

Files = Callable[[], Iterable[int]]
_kept: set[int] = set()
_asked: set[Files] = set()
_lasting: WeakSet[object] = WeakSet()
_threads: list[int] = []  # the process that has them, once there are any


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


def last_in_children(owner: object) -> None:
    """It has threads behind it. What it holds is never ended in a child, not even when that exits."""
    _lasting.add(owner)
    _threads[:] = [os.getpid()]


def threads_lost() -> bool:
    """Is this a child of a process that had them?"""
    return bool(_threads) and _threads[0] != os.getpid()


def _in_child() -> None:
    for owner in _lasting:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))  # a reference that nothing gives back
    libc = ctypes.CDLL(None)
    if _threads and hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)  # called first, with the status: RocksDB's own would wait for its threads
    empty = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for file in [*_kept, *(file for files in _asked for file in files())]:
        with contextlib.suppress(OSError):
            os.dup2(empty, file, inheritable=False)
    os.close(empty)
    _kept.clear()
    _asked.clear()


os.register_at_fork(after_in_child=_in_child)
