"""Loops beside the serving go on after what nobody expected."""

from __future__ import annotations

import asyncio
import logging

import pytest

from capellini.node.background import Background


@pytest.mark.parametrize("error", [ValueError("a row that nobody can read"), asyncio.CancelledError("of another")])
async def test_a_loop_that_fails_is_told_of_and_begins_anew(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    begun = 0
    again = asyncio.Event()

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise error
        again.set()
        await asyncio.Event().wait()

    background = Background(work, again_s=0.0)
    with caplog.at_level(logging.ERROR, "capellini.node"):
        background.start()
        await asyncio.wait_for(again.wait(), 5)
    await background.stop()
    assert begun == 2
    assert "begins anew" in caplog.text
    assert str(error) in caplog.text
