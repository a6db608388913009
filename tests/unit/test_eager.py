"""Coroutines that are begun at once: what waits for nothing needs no task, and what waits goes on as a task does."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from capellini.model.eager import Going, begun

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="none")


async def test_what_waits_for_nothing_is_over_at_once() -> None:
    async def work() -> int:
        return 3

    assert begun(work()) == 3


async def test_what_it_raises_before_its_first_wait_is_raised_here() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        begun(work())


async def test_the_rest_goes_on_as_a_task_when_what_it_waits_for_is_there() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        await asyncio.sleep(0)
        return await future + 1

    going = begun(work())
    assert isinstance(going, Going)
    task = asyncio.get_running_loop().create_task(going)
    future.set_result(1)
    assert await task == 2


async def test_others_may_wait_for_the_same_meanwhile() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        return await future

    going = begun(work())
    assert isinstance(going, Going)
    other = asyncio.create_task(work())
    await asyncio.sleep(0)
    future.set_result(5)
    assert (await going, await other) == (5, 5)


async def test_the_rest_can_be_cancelled_even_before_its_first_turn() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    seen: list[str] = []

    async def work() -> int:
        try:
            return await future
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    going = begun(work())
    assert isinstance(going, Going)
    task = asyncio.get_running_loop().create_task(going)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_it_runs_in_the_context_that_it_is_given_before_and_after_its_first_wait() -> None:
    async def work() -> str:
        NAME.set("own")
        await asyncio.sleep(0)
        return NAME.get()

    context = contextvars.copy_context()
    going = begun(work(), context)
    assert isinstance(going, Going) and NAME.get() == "none"
    assert await asyncio.get_running_loop().create_task(going, context=context) == "own"
