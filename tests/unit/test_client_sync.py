"""The sync client's thread: nobody who calls while it ends waits for ever."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from functools import partial

import pytest
from tests.unit.memory_service import MemoryService

from capellini.client import sync
from capellini.client.aio import AsyncClient
from capellini.client.connecting import connect
from capellini.client.messages import Message
from capellini.client.patient import Patience, PatientService
from capellini.client.sync import Client, _Loop
from capellini.model.clock import RealClock
from capellini.model.errors import Unavailable, Unknown


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
        except (Unavailable, Unknown) as error:
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


def test_what_a_client_that_is_closed_had_begun_may_have_been_done() -> None:
    loop = _Loop()
    begun = threading.Event()

    async def put() -> None:
        begun.set()
        await asyncio.Event().wait()

    def stop() -> None:
        begun.wait(10)
        loop.stop()

    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    with pytest.raises(Unknown, match="may have been done"):
        loop.run(put())
    stopping.join(10)


def test_a_client_whose_end_fails_leaves_no_thread_behind() -> None:
    client = connect("http://127.0.0.1:1", patience_s=0)

    async def fails() -> None:
        raise Unavailable("no")

    client._inner.close = fails  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        client.close()
    assert not client._thread.alive


def test_a_loop_whose_client_is_closed_says_so_also_when_it_can_be_stopped() -> None:
    service = MemoryService()
    client = Client(lambda: AsyncClient[bytes](PatientService(service, Patience(), RealClock(), random.Random(1))))
    client.create_queue("jobs")
    client.put("jobs", b"x")
    begun = threading.Event()
    ended: Future[int] = Future()

    def run() -> None:
        try:
            ended.set_result(client.consume("jobs", lambda _: begun.set(), stop=threading.Event()))
        except BaseException as error:
            ended.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    assert begun.wait(10)
    client.close()
    with pytest.raises(Unavailable, match="closed"):
        ended.result(10)


def consumed(handler: Callable[[Message[bytes]], object]) -> tuple[MemoryService, Future[int]]:
    """How a loop with this handler ends on one message."""
    service = MemoryService()
    patient = PatientService(service, Patience(), RealClock(), random.Random(1))
    client = Client(lambda: AsyncClient[bytes](patient))
    client.create_queue("jobs")
    client.put("jobs", b"x")
    ended: Future[int] = Future()

    def run() -> None:
        try:
            ended.set_result(client.consume("jobs", handler, count=1))
        except BaseException as error:
            ended.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    wait([ended], 10)
    assert ended.done(), "it waits for ever"
    assert client.statistics("jobs").in_flight == 0 and len(service.nacked) == 1  # given back, and the client lives
    client.close()
    return service, ended


@pytest.mark.parametrize("failure", [StopIteration, CancelledError, asyncio.CancelledError, GeneratorExit])
def test_whatever_a_handler_raises_its_message_is_offered_again(failure: type[BaseException]) -> None:
    def handle(message: Message[bytes]) -> None:
        raise failure

    service, ended = consumed(handle)
    assert ended.result() == 0
    (item,) = service.nacked
    assert item.delay_s is not None and item.delay_s > 0


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_handler_that_ends_its_program_ends_the_loop_and_not_the_client(end: type[BaseException]) -> None:
    def handle(message: Message[bytes]) -> None:
        raise end

    _, ended = consumed(handle)
    assert isinstance(ended.exception(), end)


def test_what_a_loop_over_messages_fetched_and_did_not_hand_out_goes_back() -> None:
    service = MemoryService()
    patient = PatientService(service, Patience(), RealClock(), random.Random(1))
    with Client(lambda: AsyncClient[bytes](patient)) as client:
        client.create_queue("jobs")
        client.put_many("jobs", [b"x"] * 5)
        for message in client.messages("jobs", count=5):
            message.ack()
            break
    assert len(service.nacked) == 4 and {item.delay_s for item in service.nacked} == {0.0}


def test_of_clients_that_were_left_open_one_that_cannot_be_closed_keeps_no_other_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clients = [connect("http://127.0.0.1:1", patience_s=0) for _ in range(3)]
    closed: list[int] = []

    async def close(number: int) -> None:
        closed.append(number)
        if number < 2:
            raise (Unavailable("no"), RuntimeError("a bug"))[number]

    for number, client in enumerate(clients):
        client._inner.close = partial(close, number)  # type: ignore[method-assign]
    monkeypatch.setattr(sync, "_open", clients)
    sync._close_all()
    assert closed == [0, 1, 2]
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["no", "a bug"]
    for client in clients:
        client._thread.stop()
