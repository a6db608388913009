"""Ordered delivery: lines of messages, on the desk alone and through nodes in virtual time."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.unit.log_world import (
    LogNode,
    attributes_in,
    bodies_in,
    crash,
    drained,
    pull,
    put,
    settle,
    settle_of,
    simulated,
    until,
)

from capellini.model.errors import Unavailable
from capellini.model.log import LogParcel
from capellini.queues.log import ordering
from capellini.queues.log.desk import Desk, Picked, Standing
from capellini.queues.log.ordering import ByGroup, Total, key_of
from capellini.queues.log.pages import Pages
from capellini.store.simulation.loop import run

COLORS = ("red", "blue", "green", None)


class Lined:
    """A desk with a line for each color (or one for all), fed as an owner feeds it."""

    def __init__(self, ordered: str, colors: list[str | None], pages: Pages | None = None, limit: int = 0) -> None:
        self.colors = colors
        standing: Standing = Total() if ordered == "total" else ByGroup()
        self.desk = Desk(Pages() if pages is None else pages, limit, standing)
        self.desk.recover()

    def picks(self, most: int) -> list[Picked]:
        desk = self.desk
        if isinstance(desk.standing, ByGroup):
            while desk.standing.at_hand < most and not desk.standing.full and desk.out < len(self.colors):
                for part in desk.left(desk.out, desk.out + 1):
                    if part.moving:
                        desk.standing.moves(part.first, self.colors[part.first])
                    else:
                        desk.standing.line_up(part.first, self.colors[part.first], part.deliveries)
                desk.out += 1
        return desk.picks(most, 0, len(self.colors))

    def take(self, most: int, until_ms: int = 1_000) -> dict[int, int]:
        """Number: its delivery, in the order in which they were handed out."""
        found: dict[int, int] = {}
        for one in self.picks(most):
            delivery = self.desk.fly(one.first, one.end, one.deliveries + 1, until_ms)
            found.update(dict.fromkeys(range(one.first, one.end), delivery))
        return found

    def ack(self, taken: dict[int, int], *numbers: int) -> None:
        for number in numbers or list(taken):
            assert self.desk.ack(taken[number], [(number, number + 1)])
        self.durable()

    def nack(self, taken: dict[int, int], *numbers: int, at_ms: int = 0) -> None:
        for number in numbers or list(taken):
            assert self.desk.nack(taken[number], [(number, number + 1)], at_ms)

    def durable(self) -> None:
        if (call := self.desk.settling()) is not None:
            call()


def test_a_group_waits_for_its_earlier_message_while_others_go_on() -> None:
    lined = Lined("group", ["red", "blue", "red", "blue", None, "red"])
    first = lined.take(1)
    assert list(first) == [0]
    second = lined.take(9)
    assert list(second) == [1, 3, 4]  # blue, and what names no group
    assert lined.take(9) == {}
    lined.ack(first)
    assert list(lined.take(9)) == [2, 5]


def test_messages_of_one_group_may_come_together_in_order() -> None:
    lined = Lined("group", ["red"] * 4)
    taken = lined.take(3)
    assert list(taken) == [0, 1, 2]
    lined.ack(taken, 2, 1)
    assert lined.take(9) == {}
    lined.ack(taken, 0)
    assert list(lined.take(9)) == [3]


@pytest.mark.parametrize("ordered", ["group", "total"])
def test_what_comes_back_waits_for_the_rest_of_its_delivery_and_goes_first(ordered: str) -> None:
    lined = Lined(ordered, ["red"] * 6)
    taken = lined.take(4)
    lined.nack(taken, 1)
    lined.ack(taken, 0, 2)
    assert lined.take(9) == {}
    lined.nack(taken, 3)
    assert lined.picks(9) == [Picked(1, 2, 1), Picked(3, 4, 1)]  # nothing new with what came back


@pytest.mark.parametrize("ordered", ["group", "total"])
def test_while_the_front_waits_its_line_waits(ordered: str) -> None:
    lined = Lined(ordered, ["red"] * 3)
    taken = lined.take(2)
    lined.nack(taken, 0, at_ms=700)
    lined.nack(taken, 1, at_ms=0)
    lined.desk.roll(699)
    assert lined.take(9) == {}
    assert lined.desk.next_ms() == 700
    lined.desk.roll(700)
    assert list(lined.take(9)) == [0, 1]


@pytest.mark.parametrize("ordered", ["group", "total"])
def test_a_line_goes_on_only_when_its_ack_is_durable(ordered: str) -> None:
    lined = Lined(ordered, ["red"] * 3)
    taken = lined.take(1)
    lined.desk.ack(taken[0], [(0, 1)])
    assert lined.take(9) == {}
    durable = lined.desk.settling()
    assert durable is not None and lined.take(9) == {}
    durable()
    assert list(lined.take(9)) == [1, 2]


@pytest.mark.parametrize("ordered", ["group", "total"])
def test_a_dead_letter_frees_its_line_when_it_has_arrived(ordered: str) -> None:
    lined = Lined(ordered, ["red"] * 3, limit=1)
    lined.nack(lined.take(1))
    assert lined.take(9) == {}
    assert lined.desk.letters(9) == [0]
    lined.desk.buried(0, 1)
    assert lined.take(9) == {}
    lined.durable()
    assert list(lined.take(9)) == [1, 2]


@pytest.mark.parametrize("ordered", ["group", "total"])
def test_a_message_that_fails_again_and_again_takes_no_others_with_it(ordered: str) -> None:
    lined = Lined(ordered, ["red"] * 4, limit=3)
    lined.nack(lined.take(1))
    for _ in range(2):
        taken = lined.take(9)
        assert list(taken) == [0]
        lined.nack(taken)
    assert lined.desk.letters(9) == [0]


def test_a_new_owner_keeps_the_order_of_what_was_left() -> None:
    pages = Pages()
    pages.finish(1, 2)
    pages.count(2, 3, 2)
    pages.move(0, 1)
    lined = Lined("group", ["red", "red", "blue", "red", "blue"], pages)
    assert lined.picks(9) == [Picked(2, 3, 2)]  # red waits for the dead letters
    lined.desk.buried(0, 1)
    lined.durable()
    assert lined.picks(9) == [Picked(3, 4, 0)]


def test_looking_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "MOST_KNOWN", 100)
    lined = Lined("group", ["red"] * 500 + ["blue"])
    taken = lined.take(1)
    assert lined.take(9) == {}
    assert lined.desk.out == 100  # blue is not seen
    for number in range(401):
        lined.ack(taken)
        taken = lined.take(1)
        assert list(taken) == [number + 1]
    assert list(lined.take(1)) == [500]


def test_lines_that_are_empty_are_forgotten() -> None:
    lined = Lined("group", [f"group {number}" for number in range(50)] * 2)
    while taken := lined.take(7):
        lined.ack(taken)
    standing = lined.desk.standing
    assert isinstance(standing, ByGroup)
    assert (standing._lines, standing._out, standing.at_hand, standing.ready, standing.waiting) == ({}, {}, 0, 0, 0)


def test_long_names_of_groups_are_known_by_a_hash() -> None:
    long = "x" * 5_000
    assert key_of("short") == "short" and key_of(None) is None
    assert len(key_of(long) or "") < 64
    assert key_of(long) == key_of("x" * 5_000) != key_of(long + "y")


@pytest.mark.parametrize("ordered", ["group", "total"])
@pytest.mark.parametrize("seed", range(25))
def test_nothing_overtakes_whatever_happens(ordered: str, seed: int) -> None:
    """The rule itself: what is delivered had all before it in its line finished durably, or in front of it in the same
    delivery. And in the end nothing is left."""
    chance = random.Random(f"{ordered}/{seed}")
    colors = [chance.choice(COLORS) for _ in range(120)]
    lined = Lined(ordered, colors, limit=chance.choice((0, 0, 3)))
    now_ms, sure = 0, set[int]()
    held: list[tuple[int, int]] = []  # (number, delivery)
    stirred = 700
    for step in range(6_000):
        now_ms += chance.randrange(4)
        lined.desk.roll(now_ms)
        act = chance.choice(("take", "ack", "ack", "nack", "durable", "bury", "crash" if step < stirred else "ack"))
        if act == "take":
            picks = lined.picks(chance.randrange(1, 12))
            order, short = list[int](), False
            for one in picks:
                middle = one.first if short else chance.choice((one.end, chance.randrange(one.first, one.end + 1)))
                if middle > one.first:
                    until_ms = now_ms + chance.randrange(1, 40)
                    delivery = lined.desk.fly(one.first, middle, one.deliveries + 1, until_ms)
                    order += range(one.first, middle)
                    held += [(number, delivery) for number in range(one.first, middle)]
                lined.desk.put_back(middle, one.end, one.deliveries)
                short = short or middle < one.end
            _check_order(ordered, colors, order, sure)
        elif act == "durable":
            before = {number for number in range(lined.desk.out) if number in lined.desk.pages}
            lined.durable()
            sure |= before
        elif act == "bury" and (letters := lined.desk.letters(5)):
            number = chance.choice(letters)
            lined.desk.buried(number, number + 1)
        elif act == "crash" and chance.random() < 0.02:  # a new owner knows what was durable
            pages, desk = Pages(), lined.desk
            for number in sure:
                pages.finish(number, number + 1)
            for part in desk.pages.open():
                if part.deliveries:
                    pages.count(part.first, part.end, part.deliveries)
                if part.moving:
                    pages.move(part.first, part.end)
            lined, held = Lined(ordered, colors, pages, desk.limit), []
        elif act in ("ack", "nack") and held:
            number, delivery = held.pop(chance.randrange(len(held)))
            if act == "ack":
                lined.desk.ack(delivery, [(number, number + 1)])
            elif step < stirred:
                lined.desk.nack(delivery, [(number, number + 1)], now_ms + chance.choice((0, 0, 20)))
        if len(sure) == len(colors):
            break
    assert len(sure) == len(colors)


def _check_order(ordered: str, colors: list[str | None], order: list[int], sure: set[int]) -> None:
    assert order == sorted(order)
    for place, number in enumerate(order):
        color = colors[number]
        if ordered == "group" and color is None:
            continue
        before = [one for one in range(number) if ordered == "total" or colors[one] == color]
        assert set(before) <= sure | set(order[:place]), f"{number} came before {before}"


# Through nodes


async def _grouped(nodes: dict[str, LogNode], **options: Any) -> LogNode:
    node = next(iter(nodes.values()))
    await (await node.queue()).create_group("g", "earliest", options)
    return node


def _color(name: str | None) -> dict[str, str] | None:
    return None if name is None else {"color": name}


def _names(parcels: list[LogParcel]) -> list[str]:
    return [body.decode() for body in bodies_in(parcels)]


def test_a_queue_ordered_by_group_holds_back_only_that_group() -> None:
    async def work() -> None:
        _, nodes = await simulated("a", mode="cp", ordered="group", order_by="color")
        node = await _grouped(nodes)
        colors = ["red", "blue", "red", None, "blue", "red"]
        await put(node, [f"m{at}".encode() for at in range(6)], [_color(color) for color in colors])
        red = await pull(node, count=1)
        assert _names(red) == ["m0"]
        rest = await pull(node, count=9)
        assert _names(rest) == ["m1", "m3", "m4"]
        assert [one and one["color"] for one in attributes_in(rest)] == ["blue", None, "blue"]
        assert await pull(node, wait_s=0.5) == []
        await settle(node, red, "nack", value_ms=300)
        assert await pull(node, wait_s=0.1) == []
        again = await pull(node)
        assert (_names(again), again[0].deliveries) == (["m0"], 2)
        await settle(node, again)
        assert _names(await pull(node)) == ["m2", "m5"]

    run(work(), 1)


def test_a_waiting_consumer_is_woken_when_a_line_goes_on() -> None:
    async def work() -> None:
        _, nodes = await simulated("a", mode="cp", ordered="total")
        node = await _grouped(nodes)
        await put(node, [b"1", b"2"])
        first = await pull(node, count=1)
        assert node.client is not None
        waiting = node.client.spawn(pull(node, wait_s=20.0))
        await node.clock.sleep(1.0)
        before_s = node.clock.elapsed_s()
        await settle(node, first)
        assert _names(await waiting) == ["2"]
        assert node.clock.elapsed_s() - before_s < 0.4  # sooner than the next look

    run(work(), 1)


async def _put_surely(node: LogNode, bodies: list[bytes]) -> None:
    """While a chain is being taken over nothing is changed."""

    async def there() -> bool:
        try:
            await put(node, bodies)
            return True
        except Unavailable:
            return False

    await until(node.clock, there)


def test_a_total_order_holds_over_extents_nacks_and_owners() -> None:
    async def work() -> None:
        _, nodes = await simulated("abc", mode="cp", ordered="total", visibility_s=2.0)
        await _grouped(nodes)
        chance = random.Random(5)
        for at in range(40):
            node = chance.choice(list(nodes.values()))
            await _put_surely(node, [f"{at}.{one}".encode() for one in range(3)])
            if at in (15, 30):  # the next extent of the chain is another's
                (writer,) = [one for one in nodes.values() if (await one.queue()).writers.accepting()]
                crash(writer, nodes)
        sent = [f"{at}.{one}" for at in range(40) for one in range(3)]
        assert len((await next(iter(nodes.values())).queue()).extents.known()) == 3
        finished: list[str] = []
        while len(finished) < len(sent):
            node = chance.choice(list(nodes.values()))
            parcels = await pull(node, count=chance.randrange(1, 9), wait_s=3.0)
            names = _names(parcels)
            assert names == sent[len(finished) :][: len(names)]
            if chance.random() < 0.3:
                await settle(node, parcels, "nack", value_ms=50)
            else:
                await settle(node, parcels)
                finished += names

    run(work(), 3)


def test_the_next_extent_of_a_chain_is_read_as_soon_as_the_one_before_is_finished() -> None:
    async def work() -> None:
        _, nodes = await simulated("a", mode="cp", ordered="total", extent_bytes=65_536)
        node = await _grouped(nodes)
        for at in range(60):
            await put(node, [f"{at}".encode().ljust(20_000, b".")])
        assert len((await node.queue()).extents.known()) > 12
        before_s = node.clock.elapsed_s()
        found = []
        while len(found) < 60:
            parcels = await pull(node, count=3)
            found += [name.rstrip(".") for name in _names(parcels)]
            await settle(node, parcels)
        assert found == [str(at) for at in range(60)]
        assert node.clock.elapsed_s() - before_s < 4.0  # not half a second for each extent

    run(work(), 1)


def test_a_successor_delivers_nothing_before_what_its_predecessor_had_out() -> None:
    async def work() -> None:
        _, nodes = await simulated("ab", mode="cp", ordered="group", order_by="color", visibility_s=60.0)
        node = await _grouped(nodes)
        colors = ["red", "blue"] * 5
        await put(node, [f"m{at}".encode() for at in range(10)], [_color(color) for color in colors])
        taken = await pull(node, count=1)
        blue = await pull(node, count=2)
        assert (_names(taken), _names(blue)) == (["m0"], ["m1", "m3"])
        await settle(node, [blue[0]])
        crash(node, nodes)
        (other,) = nodes.values()
        names = [name.decode() for name in await drained(other, wait_s=20.0)]
        assert [name for name in names if int(name[1:]) % 2 == 0] == ["m0", "m2", "m4", "m6", "m8"]
        assert [name for name in names if int(name[1:]) % 2] == ["m3", "m5", "m7", "m9"]

    run(work(), 2)


def test_a_dead_letter_lets_its_group_go_on() -> None:
    async def work() -> None:
        _, nodes = await simulated("a", mode="cp", ordered="group", order_by="color")
        node = await _grouped(nodes, delivery_limit=1)
        await put(node, [b"bad", b"good"], [_color("red")] * 2)
        await settle(node, await pull(node, count=1), "nack")
        assert _names(await pull(node)) == ["good"]
        assert await node.dead("q.g.dead") == [b"bad"]

    run(work(), 1)


def test_a_filter_does_not_hold_up_a_line() -> None:
    async def work() -> None:
        _, nodes = await simulated("a", mode="cp", ordered="group", order_by="color")
        node = await _grouped(nodes, filter={"size": ["big"]})
        sizes = ["small", "big", "small", "big"]
        await put(node, [f"m{at}".encode() for at in range(4)], [{"color": "red", "size": size} for size in sizes])
        assert _names(await pull(node, count=1)) == ["m1"]
        assert await pull(node, wait_s=0.2) == []

    run(work(), 1)


def test_later_ones_of_a_delivery_can_be_acked_though_an_earlier_one_came_back() -> None:
    async def work() -> None:
        _, nodes = await simulated("a", mode="cp", ordered="total", visibility_s=5.0)
        node = await _grouped(nodes)
        await put(node, [b"0", b"1", b"2", b"3"])
        (parcel,) = await pull(node, count=3)
        queue = await node.queue()
        await queue.settle("g", [settle_of(parcel, "nack", [(0, 1)], 0)])
        assert await pull(node, wait_s=1.0) == []  # 1 and 2 are out
        (done,) = await queue.settle("g", [settle_of(parcel, "ack", [(1, 2)])])
        assert done.ranges == [(1, 2)]
        assert _names(await pull(node)) == ["0"]
        await until(node.clock, lambda: _is_next(node, 0), 3.0)

    run(work(), 1)


async def _is_next(node: LogNode, number: int) -> bool:
    (owner,) = (await node.queue()).readers.owners.values()
    return owner.desk.pages.next == number
