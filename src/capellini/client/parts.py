"""Calls on any number of items, in parts: a request holds only so much, and its answer must come in time.

What earlier parts did is done. An error of a later one does not take away what is known of them: it becomes the result
of all that is left, or says how much was done before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from capellini.model.errors import CapelliniError
from capellini.model.message import MAX_BATCH
from capellini.model.service import Done, Problem

V = TypeVar("V")
LETTERS: Final = 100  # moved by one request: each is several steps


async def in_parts(items: list[V], do: Callable[[list[V]], Awaitable[list[Done | Problem]]]) -> list[Done | Problem]:
    """A result for each, in order. Raises only what the first part raises: then there is nothing to tell."""
    results: list[Done | Problem] = []
    for start in range(0, len(items), MAX_BATCH):
        try:
            results += await do(items[start : start + MAX_BATCH])
        except CapelliniError as error:
            if not start:
                raise
            return results + [Problem.of(error)] * (len(items) - start)
    return results


class Moved:
    """How many letters were moved so far. `progress` is called with how many more."""

    def __init__(self, progress: Callable[[int], object] | None) -> None:
        self.count = 0
        self._progress = progress

    async def add(self, part: Awaitable[int]) -> int:
        """Of this part. Its error says how many were moved before: who gets it gets no count."""
        try:
            some = await part
        except CapelliniError as error:
            if not self.count:
                raise
            says = f"{error.says}; {self.count} were moved before that, and stay moved"
            raise type(error)(says, retry_after_s=error.retry_after_s) from error
        self.count += some
        if self._progress is not None:
            self._progress(some)
        return some

    async def up_to(self, count: int | None, move: Callable[[int], Awaitable[int]]) -> int:
        """So many (None: all there are); how many."""
        while count is None or self.count < count:
            asked = LETTERS if count is None else min(LETTERS, count - self.count)
            if await self.add(move(asked)) < asked:
                break
        return self.count
