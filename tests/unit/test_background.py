"""Loops beside the serving."""

from __future__ import annotations

import asyncio
import logging

import pytest

from capellini.node import background
from capellini.node.background import Background


def test_a_loop_that_failed_begins_again_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "AGAIN_S", 0.0)
    begun = 0

    async def main() -> None:
        goes_on = asyncio.Event()

        async def work() -> None:
            nonlocal begun
            begun += 1
            if begun == 1:
                raise KeyError("a bug")
            goes_on.set()
            await asyncio.Event().wait()

        loop = Background(work)
        loop.start()
        await asyncio.wait_for(goes_on.wait(), 10.0)
        await loop.stop()

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert begun == 2 and "a bug" in caplog.text
