"""The sync client's thread: nobody who calls while it ends waits for ever."""

from __future__ import annotations

import asyncio
import threading

import pytest

from capellini.client.connecting import connect
from capellini.client.sync import _Loop
from capellini.model.errors import Unavailable


def test_a_call_that_comes_while_the_thread_ends_is_refused_and_does_not_wait_for_ever() -> None:
    loop = _Loop()
    ending, go_on = threading.Event(), threading.Event()
    said: list[str] = []

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ending.set()
            go_on.wait(10)
            raise

    def call(work: object) -> None:
        try:
            loop.run(work)  # type: ignore[arg-type]
        except Unavailable as error:
            said.append(error.says)

    threads = [threading.Thread(target=call, args=(slow_to_end(),), daemon=True)]
    threads[0].start()
    while not asyncio.all_tasks(loop.loop):
        pass
    stopping = threading.Thread(target=loop.stop, daemon=True)
    stopping.start()
    assert ending.wait(10)
    late = threading.Thread(target=call, args=(asyncio.sleep(3600),), daemon=True)
    late.start()
    late.join(0.2)  # it is refused, or handed over
    go_on.set()
    for each in (*threads, stopping, late):
        each.join(10)
        assert not each.is_alive()
    assert len(said) == 2


def test_a_closed_client_says_so_whatever_is_called() -> None:
    client = connect("http://127.0.0.1:1", patience_s=0)
    client.close()
    for call in (lambda: client.show_queue("jobs"), lambda: client.consume("jobs", print)):
        with pytest.raises(Unavailable, match="closed"):
            call()
