"""What callers of log queues may ask for by mistake, or only look at: it is said, and nothing is changed by it."""

from __future__ import annotations

import pytest

from capellini.model import chunks
from capellini.model.dues import due_of
from capellini.model.errors import Invalid, NotFound
from capellini.model.log import LogService
from capellini.model.message import NewMessage
from capellini.model.service import Done, ExtendItem, NackItem, Problem, Put
from capellini.node.node import Node

WAIT_S = 10.0


def log_of(node: Node) -> LogService:
    assert node.service.log is not None
    return node.service.log


async def test_no_put_is_for_one_group_alone(node: Node) -> None:
    """The attribute that dead letters carry on their way back is not for others: all other groups would lose it."""
    await node.service.create("feed", "log")
    log = log_of(node)
    own = {"capellini-group": "a", "color": "red"}
    bad, good = await node.service.put("feed", [NewMessage(b"1", own), NewMessage(b"2", {"color": "capellini-group"})])
    assert isinstance(bad, Problem) and bad.error == "invalid" and "capellini-group" in bad.says
    assert isinstance(good, Put)
    (later,) = await node.service.put("feed", [NewMessage(b"3", own, delay_s=1)])
    assert isinstance(later, Problem) and later.error == "invalid"
    with pytest.raises(Invalid, match="capellini-group"):
        await log.append("feed", chunks.pack([b"4", b"5"], [None, own]))
    await log.append("feed", chunks.pack([b"6"], [{"about": "capellini-group"}]))
    await log.create_group("feed", "b")
    (first,) = await node.service.get("feed@b", 1, WAIT_S)
    (second,) = await node.service.get("feed@b", 1, WAIT_S)
    assert [(first.body, first.attributes), (second.body, second.attributes)] == [
        (b"2", {"color": "capellini-group"}), (b"6", {"about": "capellini-group"}),
    ]  # fmt: skip


async def test_a_producer_that_counts_from_0_is_told_so(node: Node) -> None:
    """Its first chunk was taken for one that had come before, and confirmed, and was nowhere."""
    await node.service.create("feed", "log")
    log = log_of(node)
    for producer, sequence in ((b"p" * 16, 0), (chunks.NO_PRODUCER, 1)):
        with pytest.raises(Invalid, match=f"sequence {sequence} "):
            await log.append("feed", chunks.pack([b"1"], None, producer, sequence))
    assert not (await log.append("feed", chunks.pack([b"1"], None, b"p" * 16, 1))).duplicate


async def test_a_put_that_names_a_group_is_refused(node: Node) -> None:
    await node.service.create("feed", "log")
    await log_of(node).create_group("feed", "g")
    with pytest.raises(Invalid, match="all groups"):
        await node.service.put("feed@g", [NewMessage(b"1")])
    assert await log_of(node).extents("feed") == []


async def test_receipts_of_another_group_are_stale_and_those_for_no_group_are_told_so(node: Node) -> None:
    await node.service.create("feed", "log")
    log = log_of(node)
    for group in ("g", "other"):
        await log.create_group("feed", group)
    await log.seek_group("feed", "g", "earliest")  # a version that the others do not have
    await node.service.put("feed", [NewMessage(b"1")])
    (held,) = await node.service.get("feed@g", 1, WAIT_S)
    for name in ("feed@other", "feed"):
        (answer,) = await node.service.ack(name, [held.receipt])
        assert isinstance(answer, Problem) and answer.error == "stale", (name, answer)
    with pytest.raises(NotFound, match="no group nope"):
        await node.service.ack("feed@nope", [held.receipt])
    (answer,) = await node.service.ack("feed@g", [held.receipt])
    assert isinstance(answer, Done)


async def test_a_receipt_proves_nothing_for_another_one_of_the_same_call(node: Node) -> None:
    """Deliveries of two groups, or of one before and after a seek, may have the same numbers."""
    await node.service.create("feed", "log")
    log = log_of(node)
    for group in ("g", "other"):
        await log.create_group("feed", group)
    await node.service.put("feed", [NewMessage(b"1"), NewMessage(b"2")])
    foreign = await node.service.get("feed@other", 2, WAIT_S)
    before = await node.service.get("feed@g", 2, WAIT_S)
    await log.seek_group("feed", "g", "earliest")
    held = await node.service.get("feed@g", 2, WAIT_S)
    for wrong in (before[1], foreign[1]):
        good, bad = await node.service.extend(
            "feed@g", [ExtendItem(held[0].receipt, 60.0), ExtendItem(wrong.receipt, 60.0)]
        )
        assert isinstance(good, Done)
        assert isinstance(bad, Problem) and bad.error == "stale"
    bad, good = await node.service.ack("feed@g", [before[1].receipt, held[0].receipt])
    assert isinstance(bad, Problem) and bad.error == "stale"
    assert isinstance(good, Done)
    (answer,) = await node.service.ack("feed@g", [held[1].receipt])
    assert isinstance(answer, Done)


async def test_no_group_is_made_by_a_look(node: Node) -> None:
    """A group that nobody reads would keep all messages for the whole retention."""
    await node.service.create("feed", "log", {"delivery_limit": 2})
    log = log_of(node)
    ids = [each.id for each in await node.service.put("feed", [NewMessage(b"1")]) if isinstance(each, Put)]
    assert [each.id for each in await node.service.peek("feed", 10)] == ids
    assert isinstance((await node.service.ack("feed", ["nonsense"]))[0], Problem)
    for look in (
        node.service.dead("feed", 10), node.service.redrive("feed"), node.service.statistics("feed@default"),
        log.show_group("feed", "default"), log.purge_dead("feed", "default"),
    ):  # fmt: skip
        with pytest.raises(NotFound, match="no group default"):
            await look
    assert await log.groups("feed") == []
    (message,) = await node.service.get("feed", 1, WAIT_S)
    assert [group.name for group in await log.groups("feed")] == ["default"]
    assert (await log.show_group("feed", "default"))[1].in_flight == 1 and message.body == b"1"


async def test_a_group_that_may_have_dead_letters_and_has_none_says_none(node: Node) -> None:
    await node.service.create("feed", "log", {"delivery_limit": 2})
    log = log_of(node)
    await node.service.get("feed")  # makes the default group
    assert await node.service.dead("feed", 10) == []
    assert await log.merge_dead("feed", "default") == 0
    await log.purge_dead("feed", "default")
    await node.service.change("feed", {"delivery_limit": 0})
    with pytest.raises(NotFound, match="delivery_limit"):
        await node.service.dead("feed", 10)


async def test_a_look_tells_what_waits_and_how_often_it_came(node: Node) -> None:
    await node.service.create("feed", "log")
    log = log_of(node)
    await log.create_group("feed", "g")
    await log.create_group("feed", "late", options={"delay_s": 600})
    await node.service.put("feed", [NewMessage(b"1"), NewMessage(b"2"), NewMessage(b"3")])
    held = await node.service.get("feed@g", 2, WAIT_S)
    answers = await node.service.nack("feed@g", [NackItem(held[0].receipt, 600.0), NackItem(held[1].receipt, 0.0)])
    assert all(isinstance(each, Done) for each in answers)
    seen = await node.service.peek("feed@g", 10)
    assert [(each.body, each.state, each.deliveries) for each in seen] == [
        (b"1", "delayed", 1), (b"2", "ready", 1), (b"3", "ready", 0),
    ]  # fmt: skip
    assert seen[0].visible_at is not None and seen[0].visible_at > seen[0].put_at + 500
    assert [each.state for each in await node.service.peek("feed@late", 10)] == ["delayed"] * 3


async def test_what_was_put_into_a_new_queue_can_be_had_at_once(node: Node) -> None:
    """Whoever asks while this node is taking a new extent waits for that, and is not told that there is nothing."""
    for number in range(10):
        await node.service.create(f"feed{number}", "log")
        await log_of(node).create_group(f"feed{number}", "g")
        await node.service.put(f"feed{number}", [NewMessage(b"1")])
        assert [each.body for each in await node.service.get(f"feed{number}@g")] == [b"1"], number


async def test_a_group_that_is_there_says_so_when_it_is_made_with_another_start(node: Node) -> None:
    await node.service.create("feed", "log")
    log = log_of(node)
    assert (await log.create_group("feed", "g")).says == (await log.create_group("feed", "g")).says == ""
    again = await log.create_group("feed", "g", start="latest")
    assert (again.start_at, again.version) == (0.0, 1) and "was there before" in again.says


async def test_a_seek_before_what_is_kept_names_the_time_from_which_on_it_is(node: Node) -> None:
    await node.service.create("feed", "log")
    log = log_of(node)
    await log.create_group("feed", "g")
    await node.service.put("feed", [NewMessage(b"1")])
    opened_at = (await log.extents("feed"))[0].opened_at
    says = (await log.seek_group("feed", "g", 1.0)).says
    assert due_of(says.split()[2]) == pytest.approx(opened_at, abs=0.001) and "not kept" in says
    assert [each.body for each in await node.service.get("feed@g", 1, WAIT_S)] == [b"1"]


async def test_wrong_names_of_groups_and_no_attribute_to_order_by_are_said(node: Node) -> None:
    await node.service.create("feed", "log")
    for call in (log_of(node).create_group("feed", "b d"), node.service.get("feed@b d")):
        with pytest.raises(Invalid, match="'b d' is not the name of a group"):
            await call
    with pytest.raises(Invalid, match="order_by"):
        await node.service.create("lines", "log", {"mode": "cp", "ordered": "group", "order_by": ""})
