"""The client against real nodes and folders: every call, on each address; owners that die, nodes that restart."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.client_processes import drained, folder_owner, poll, running_node

import capellini
from capellini.client import own
from capellini.model.message import NewMessage
from capellini.model.service import Done, Problem, Put
from capellini.store.folder import FolderLock

pytestmark = pytest.mark.slow


@pytest.fixture(params=["http", "rocks", pytest.param("cassandra", marks=pytest.mark.cassandra)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "http":
            return str(request.getfixturevalue("node_address"))
        case "rocks":
            return f"rocks:{tmp_path / 'data'}"
        case _:
            hosts, keyspace = (request.getfixturevalue(name) for name in ("cassandra_address", "shared_keyspace"))
            return f"cassandra://{hosts}/{keyspace}?replication={len(hosts.split(','))}&timeout_s=20"


def test_queues_are_made_changed_paused_and_removed(address: str, queue: str) -> None:
    with capellini.connect(address) as client:
        made = client.create_queue(queue, visibility_s=12)
        assert (made.name, made.kind, made.options["visibility_s"]) == (queue, "work", 12.0)
        assert client.create_queue(queue, visibility_s=12) == made
        with pytest.raises(capellini.Conflict):
            client.create_queue(queue, visibility_s=13)
        assert [each.name for each in client.list_queues(queue)] == [queue]
        assert client.change_queue(queue, visibility_s=20).options["visibility_s"] == 20.0
        paused = client.pause_queue(queue, gets=False)
        assert (paused.puts_paused, paused.gets_paused) == (True, False)
        with pytest.raises(capellini.Paused):
            client.put(queue, b"x")
        client.resume_queue(queue)
        paused = client.pause_queue(queue, puts=True)
        assert (paused.puts_paused, paused.gets_paused) == (True, False)
        client.resume_queue(queue, puts=True)
        client.put(queue, b"x")
        client.purge_queue(queue)
        assert client.get(queue) == []
        client.delete_queue(queue)
        with pytest.raises(capellini.NotFound):
            client.show_queue(queue)
        with pytest.raises(capellini.Invalid):
            client.create_queue("no/such:name")


def test_messages_are_put_got_acked_and_given_back(address: str, queue: str) -> None:
    with capellini.connect(address) as client:
        client.create_queue(queue)
        id = client.put(queue, b"one", attributes={"who": "me"})
        (message,) = client.get(queue, wait_s=5)
        assert (message.id, message.body, message.attributes, message.deliveries) == (id, b"one", {"who": "me"}, 1)
        assert client.get(queue) == []
        message.nack(0)
        (again,) = client.get(queue, wait_s=5)
        assert (again.id, again.deliveries) == (id, 2)
        with pytest.raises(capellini.Stale):
            message.ack()
        until = again.extend(40)
        assert until is not None and until > again.visible_at
        client.ack(queue, again.receipt)  # as text, as another process would
        with pytest.raises(capellini.Stale):
            again.ack()
        with pytest.raises(capellini.Invalid):
            client.ack(queue, "no receipt")


def test_batches_give_a_result_per_item(address: str, queue: str) -> None:
    with capellini.connect(address) as client:
        client.create_queue(queue, body_limit=1_000)
        results = client.put_many(queue, [b"good", bytes(2_000), b"too"])
        assert [type(each) for each in results] == [Put, Problem, Put]
        assert isinstance(results[1], Problem) and results[1].error == "too_large"
        messages = client.get(queue, 10, wait_s=5)
        assert sorted(each.body for each in messages) == [b"good", b"too"]
        forged = "A" * 38
        answers = client.ack_many(queue, [messages[0], messages[1].receipt, messages[0].receipt, forged])
        assert answers[:2] == [Done(), Done()] or answers[1:3] == [Done(), Done()]
        assert isinstance(answers[3], Problem)


def test_more_than_one_request_takes_goes_in_parts(address: str, queue: str) -> None:
    with capellini.connect(address) as client:
        client.create_queue(queue)
        results = client.put_many(queue, [b"%d" % each for each in range(2_500)])
        assert all(isinstance(each, Put) for each in results) and len(results) == 2_500
        assert sorted(drained(client, queue, 2_500), key=int) == [b"%d" % each for each in range(2_500)]


def test_a_key_adds_once(address: str, queue: str) -> None:
    with capellini.connect(address) as client:
        client.create_queue(queue)
        first = client.put(queue, b"x", key="k")
        assert client.put(queue, b"x", key="k") == first
        mixed = client.put_many(queue, [NewMessage(b"x", key="k"), NewMessage(b"y"), NewMessage(b"z", key="l")])
        assert mixed[0] == Put(first, duplicate=True)
        assert sorted(drained(client, queue, 3)) == [b"x", b"y", b"z"]
        assert client.get(queue) == []


def test_a_delayed_message_waits(address: str, queue: str) -> None:
    with capellini.connect(address) as client:
        client.create_queue(queue)
        client.put(queue, b"later", delay_s=30)
        client.put(queue, b"now")
        assert drained(client, queue, 1) == [b"now"]
        assert [(each.body, each.state) for each in client.peek(queue)] == [(b"later", "delayed")]
        with pytest.raises(capellini.Invalid, match="delay_s"):
            client.put(queue, b"never", delay_s=-1)


def test_dead_letters_are_seen_and_sent_again(address: str, queue: str) -> None:
    with capellini.connect(address) as client:
        client.create_queue(f"{queue}-dead")
        client.create_queue(queue, delivery_limit=1, dead_letters=f"{queue}-dead")
        client.put(queue, b"poison")
        (message,) = client.get(queue, wait_s=5)
        message.nack(0)

        def buried() -> bool:
            assert client.get(queue) == []
            return [each.body for each in client.dead(queue)] == [b"poison"]

        poll(buried, "the message is in dead letters")
        assert client.redrive(queue) == 1
        assert drained(client, queue, 1) == [b"poison"]


def test_a_look_inside(address: str, queue: str) -> None:
    with capellini.connect(address) as client:
        client.create_queue(queue)
        id = client.put(queue, b"x")
        assert client.statistics(queue).ready == 1
        assert client.message(queue, id).state
        pointers = client.pointers(queue)
        assert client.buckets(queue)[0].written == 1
        assert client.move_repair(queue, pointers.repair).repair == pointers.repair


def test_codecs_work_on_every_address(address: str, queue: str) -> None:
    with capellini.connect(address, codec="json") as client:
        client.create_queue(queue)
        client.put(queue, {"say": ["hello", 1, None]})
        assert client.get(queue, wait_s=5)[0].body == {"say": ["hello", 1, None]}


def test_threads_share_a_client(address: str, queue: str) -> None:
    with capellini.connect(address) as client:
        client.create_queue(queue)

        def work(number: int) -> None:
            for each in range(20):
                client.put(queue, b"%d-%d" % (number, each))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(drained(client, queue, 160))) == 160


def test_consume_in_threads_acks_what_worked_and_gives_back_what_failed(address: str, queue: str) -> None:
    seen: Counter[bytes] = Counter()

    def handle(message: capellini.Message[bytes]) -> None:
        seen[message.body] += 1
        if message.body == b"3" and seen[b"3"] == 1:
            raise ValueError("not yet")

    with capellini.connect(address) as client:
        client.create_queue(queue)
        client.put_many(queue, [b"%d" % each for each in range(10)])
        assert client.consume(queue, handle, concurrency=4, idle_s=2) == 10
        assert seen[b"3"] == 2 and sum(seen.values()) == 11
        assert client.statistics(queue).in_flight == 0


async def test_the_async_client_batches_and_iterates(address: str, queue: str) -> None:
    async with capellini.connect_async(address, codec="str") as client:
        await client.create_queue(queue)
        ids = await asyncio.gather(*(client.put(queue, str(each)) for each in range(300)))
        assert len(set(ids)) == 300
        found = set()
        async for message in client.messages(queue, count=50):
            found.add(message.body)
            await message.ack()
            if len(found) == 300:
                break
        assert found == {str(each) for each in range(300)}
        assert await client.get(queue) == []


async def test_consume_keeps_a_message_hidden_while_its_handler_runs(address: str, queue: str) -> None:
    release, began = asyncio.Event(), asyncio.Event()

    async def handle(message: capellini.AsyncMessage[bytes]) -> None:
        began.set()
        await release.wait()

    async with capellini.connect_async(address) as client:
        await client.create_queue(queue)
        await client.put(queue, b"long")
        work = asyncio.create_task(client.consume(queue, handle, visibility_s=1.0, count=1))
        await asyncio.wait_for(began.wait(), 30)
        assert await client.get(queue, wait_s=3.0) == []  # three visibilities later nobody else has it
        release.set()
        assert await asyncio.wait_for(work, 30) == 1


async def test_consume_finishes_what_runs_when_told_to_stop(address: str, queue: str) -> None:
    release, began, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(message: capellini.AsyncMessage[bytes]) -> None:
        began.set()
        await release.wait()

    async with capellini.connect_async(address) as client:
        await client.create_queue(queue)
        await client.put_many(queue, [b"a", b"b"])
        work = asyncio.create_task(client.consume(queue, handle, stop=stop))
        await asyncio.wait_for(began.wait(), 30)
        stop.set()
        release.set()
        assert await asyncio.wait_for(work, 30) == 1
        assert (await client.statistics(queue)).ready == 1


async def test_consume_ends_with_an_error_that_waiting_cannot_mend(address: str, queue: str) -> None:
    async def handle(message: capellini.AsyncMessage[bytes]) -> None:
        raise AssertionError("there is no message")

    async with capellini.connect_async(address) as client:
        with pytest.raises(capellini.NotFound):
            await client.consume(queue, handle)


def test_consume_survives_a_restart_of_its_node(tmp_path: Path, queue: str) -> None:
    handled: Counter[bytes] = Counter()
    stop = threading.Event()
    with running_node(tmp_path / "data") as node, capellini.connect(node.address) as client:
        client.create_queue(queue, visibility_s=3)
        client.put_many(queue, [b"before %d" % each for each in range(20)])

        def handle(message: capellini.Message[bytes]) -> None:
            handled[message.body] += 1

        work = threading.Thread(target=lambda: client.consume(queue, handle, concurrency=4, stop=stop), daemon=True)
        work.start()
        poll(lambda: len(handled) >= 5, "the consumer works")
        node.kill()
        node.start()
        after = client.put_many(queue, [b"after %d" % each for each in range(20)])
        assert all(isinstance(each, Put) for each in after)
        poll(lambda: len(handled) == 40, "everything was handled after the restart")
        poll(lambda: client.statistics(queue).in_flight == 0, "everything was acked")
        stop.set()
        work.join(30)
        assert not work.is_alive()


def test_the_first_process_serves_the_others_and_another_takes_over(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with folder_owner(folder, 50) as owner, capellini.connect(f"rocks:{folder}") as client:
        client.put("jobs", b"guest 0")  # joined through the socket
        (held,) = client.get("jobs", wait_s=5)
        assert (folder / "node.sock").is_socket()
        before = drained(client, "jobs", 10)
        owner.kill()
        owner.wait()
        client.create_queue("others")  # freely repeated: by now this process owns the folder
        client.put("jobs", b"guest 1")
        after = drained(client, "jobs", 42)  # the held one comes again when its visibility ends
        everything = Counter(before + after)
        expected = {b"owner %d" % each for each in range(50)} | {b"guest 0", b"guest 1"}
        assert set(everything) == expected
        assert not set(before) & set(after), "an acked message came again"
        assert held.raw in expected


def test_an_owner_that_leaves_in_good_order_is_followed_too(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with folder_owner(folder, 5) as owner, capellini.connect(f"rocks:{folder}") as client:
        assert client.statistics("jobs").ready == 5
        assert owner.stdin is not None
        owner.stdin.close()
        assert owner.wait(30) == 0
        assert sorted(drained(client, "jobs", 5)) == [b"owner %d" % each for each in range(5)]


def test_a_folder_in_use_by_somebody_who_does_not_serve_it_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    lock = FolderLock(folder)
    try:
        with (
            capellini.connect(f"rocks:{folder}", patience_s=0.5) as client,
            pytest.raises(capellini.Unavailable, match=f"in use by process {os.getpid()}.*does not answer"),
        ):
            client.list_queues()
    finally:
        lock.release()


def test_clients_of_one_process_share_a_folder(tmp_path: Path) -> None:
    address = f"rocks:{tmp_path / 'data'}"
    with capellini.connect(address) as first:
        first.create_queue("jobs")
        with capellini.connect(address) as second:
            second.put("jobs", b"x")
            assert drained(first, "jobs", 1) == [b"x"]


def test_a_folder_may_lie_deep(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["a-rather-long-name-of-a-folder"] * 5)
    folder.parent.mkdir(parents=True)
    with folder_owner(folder, 3), capellini.connect(f"rocks:{folder}") as client:
        assert len(drained(client, "jobs", 3)) == 3


def test_a_node_on_a_folder_serves_its_clients_too(tmp_path: Path, queue: str) -> None:
    with (
        running_node(tmp_path / "data") as node,
        capellini.connect(f"rocks:{node.folder}") as joined,
        capellini.connect(node.address) as remote,
    ):
        joined.create_queue(queue)
        joined.put(queue, b"x")
        assert drained(remote, queue, 1) == [b"x"]


def test_without_patience_a_missing_node_is_said_at_once() -> None:
    with (
        capellini.connect("http://127.0.0.1:9", patience_s=0) as client,
        pytest.raises(capellini.Unavailable, match="no connection"),
    ):
        client.list_queues()


def test_messages_come_one_by_one_without_end(node_address: str, queue: str) -> None:
    with capellini.connect(node_address, codec="str") as client:
        client.create_queue(queue)
        client.put_many(queue, ["a", "b", "c"])
        found = []
        for message in client.messages(queue, count=2):
            found.append(message.body)
            message.ack()
            if len(found) == 3:
                break
        assert sorted(found) == ["a", "b", "c"]


async def test_consume_cancelled_once_finishes_and_cancelled_twice_ends(node_address: str, queue: str) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def handle(message: capellini.AsyncMessage[bytes]) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with capellini.connect_async(node_address) as client:
        await client.create_queue(queue)
        await client.put(queue, b"x")
        work = asyncio.create_task(client.consume(queue, handle))
        await asyncio.wait_for(began.wait(), 30)
        work.cancel()
        await asyncio.sleep(0)
        assert not ended.is_set() and not work.done()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(work, 30)
        await asyncio.wait_for(ended.wait(), 30)


def test_calls_that_cannot_work_say_so_for_each_item(queue: str) -> None:
    with capellini.connect("http://127.0.0.1:9", patience_s=0) as client:
        results = client.put_many(queue, [b"a", b"b"])
        assert [each.error for each in results if isinstance(each, Problem)] == ["unavailable"] * 2
        receipts = client.ack_many(queue, ["A" * 38])
        assert [each.error for each in receipts if isinstance(each, Problem)] == ["unavailable"]
        with pytest.raises(capellini.Invalid, match="queue name"):
            client.put("no/queue", b"x")


@pytest.mark.parametrize("value", [5, "\ud800"])
async def test_what_cannot_be_sent_concerns_its_caller_only(node_address: str, queue: str, value: Any) -> None:
    async with capellini.connect_async(node_address) as client:
        await client.create_queue(queue)
        bad, good = await asyncio.gather(
            client.put(queue, b"bad", attributes={"a": value}), client.put(queue, b"good"), return_exceptions=True
        )
        assert isinstance(bad, capellini.Invalid) and bad.says == "attributes are a map of text to text"
        assert good == "0"
        mixed = [NewMessage(b"bad", {"a": value}), NewMessage("text"), NewMessage(b"good")]  # type: ignore[arg-type]
        assert [type(each) for each in await client.put_many(queue, mixed)] == [Problem, Problem, Put]


def test_a_message_is_acked_in_its_own_queue_only(node_address: str, queue: str) -> None:
    with capellini.connect(node_address) as client:
        client.create_queue(queue)
        client.put(queue, b"x")
        (message,) = client.get(queue, wait_s=5)
        with pytest.raises(capellini.Invalid, match=queue):
            client.ack("another", message)
        message.ack()


def test_wrong_options_are_refused() -> None:
    with pytest.raises(capellini.Invalid, match="patients"):
        capellini.connect("rocks:x", patients=1)  # type: ignore[call-overload]
    with pytest.raises(capellini.Invalid, match="codec"):
        capellini.connect("rocks:x", codec="yaml")  # type: ignore[call-overload]
    with pytest.raises(capellini.Invalid, match="address"):
        capellini.connect("nowhere")


def test_a_closed_client_says_so(tmp_path: Path) -> None:
    client = capellini.connect(f"rocks:{tmp_path / 'data'}")
    client.create_queue("jobs")
    client.close()
    with contextlib.closing(client), pytest.raises(capellini.Unavailable, match="closed"):
        client.put("jobs", b"x")


@pytest.mark.cassandra
def test_a_client_that_lives_on_takes_part_in_repair_on_cassandra(
    cassandra_address: str, shared_keyspace: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "MAINTAIN_AFTER_S", 0.05)
    with capellini.connect(f"cassandra://{cassandra_address}/{shared_keyspace}?replication=3&timeout_s=20") as client:
        client.create_queue(queue)
        poll(lambda: (client.pointers(queue).repaired_by or "").startswith("client-"), "the client repairs the queue")
