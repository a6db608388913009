"""Requests of one client made slow on purpose: the schedule that a guard is there for, every time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from capellini.model.errors import Unknown
from capellini.store.interface import Store


@contextmanager
def slow(
    store: Store, operation: str, *, before_s: float = 0.0, after_s: float = 0.0, lost: bool = False
) -> Iterator[None]:
    """While this lasts, requests begun arrive `before_s` later, and their answers come `after_s` later, or are
    lost."""
    real = getattr(store, operation)

    async def late(request: Any) -> Any:
        await asyncio.sleep(before_s)
        answer = await real(request)
        await asyncio.sleep(after_s)
        if lost:
            raise Unknown("the answer was lost on purpose")
        return answer

    setattr(store, operation, late)
    try:
        yield
    finally:
        setattr(store, operation, real)
