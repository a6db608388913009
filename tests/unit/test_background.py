"""Loops beside the serving."""

from __future__ import annotations

import asyncio

import pytest

from capellini.node import background
from capellini.node.background import Background


async def test_a_loop_that_fails_begins_anew_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "AGAIN_S", 0.0)
    begun, again = 0, asyncio.Event()

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise ArithmeticError("nobody has thought of this")
        again.set()
        await asyncio.Event().wait()

    loop = Background(work)
    loop.start()
    await asyncio.wait_for(again.wait(), 5)
    await loop.stop()
    assert begun == 2
    assert "nobody has thought of this" in caplog.text
