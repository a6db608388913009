"""The desk: the messages that a shard's holder has read and that are not finished, in memory. Pure: no store, no clock.

    (read) ─▶ waiting ─its time has come─▶ ready ─taken─▶ in flight ─left─▶ leaving ─durable─▶ (gone)
                 ▲                           ▲  │             │ │              │
                 └────── hidden again ───────┘  └───left──────┼─┴─nacked───────┤ not done after all
                         (nack with delay)                    └─visibility over (again ready)

`LIFE` is the table of it. Offsets number the messages in the order in which they were read; receipts name them. What
is leaving (an ack, a cancel or a move is being made durable) is offered to nobody. Bodies in flight stay in memory for
the next delivery, so there is a limit in bytes, attributes and what surrounds a message included: from there on
nothing is taken until something comes back or is acked. What was handed out and is hidden (nacked with a delay, on its
way to the dead letters) counts with them, not with what waits to be handed out first: else a few thousand hidden ones
would leave no room to read what is due now. So does what was read long before it comes, since a clock was ahead.

Three heaps say what comes next. What is gone or was overtaken stays in them until it is met; once that is the most of
a heap, it is thrown out, so that a message that stays for hours does not keep the traces of all that pass it.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from uuid import UUID

from capellini.queues.timed.positions import ticks_of
from capellini.queues.timed.records import Moving, Name
from capellini.queues.timed.rows import TimedRow

FLYING_BYTES: Final = 64 * 1024 * 1024  # in flight: sixteen of the largest; beyond, consumers must ack first
AROUND_BYTES: Final = 2_048  # of each message: objects (650 measured), heaps, its part of records; so 32,768 in flight
STALE_ENTRIES: Final = 1_000  # that a heap may have beside one for each message, before it is looked through


class State(enum.Enum):
    WAITING = "waiting"
    READY = "ready"
    FLYING = "in_flight"
    LEAVING = "leaving"
    GONE = "gone"


LIFE: Final[dict[tuple[State, str], State]] = {
    (State.WAITING, "come"): State.READY,
    (State.READY, "take"): State.FLYING,
    (State.FLYING, "over"): State.READY,
    (State.FLYING, "hide"): State.WAITING,
    (State.READY, "hide"): State.WAITING,
    (State.LEAVING, "hide"): State.WAITING,
    (State.WAITING, "leave"): State.LEAVING,
    (State.READY, "leave"): State.LEAVING,
    (State.FLYING, "leave"): State.LEAVING,
    (State.LEAVING, "done"): State.GONE,
}


def size_of(row: TimedRow) -> int:
    entry = row.entry
    return (
        AROUND_BYTES + len(entry.body) + sum(len(name) + len(text) for name, text in (entry.attributes or {}).items())
    )


class Message:
    """One message on the desk."""

    __slots__ = ("at_ms", "deliveries", "hidden", "moving", "offset", "proved", "row", "size", "state")

    def __init__(self, offset: int, row: TimedRow, at_ms: int, deliveries: int, moving: Moving | None) -> None:
        self.offset = offset
        self.row = row
        self.at_ms = at_ms  # waiting: when it can be had; in flight: when its visibility ends
        self.deliveries = deliveries
        self.moving = moving
        self.hidden = False  # comes back, or comes much later: counted with what is in flight
        self.proved = False  # its last delivery's receipt is good: not given back, and nobody else has it
        self.state = State.WAITING
        self.size = size_of(row)  # in memory, about

    def step(self, event: str) -> None:
        self.state = LIFE[self.state, event]


class Desk:
    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.messages: dict[int, Message] = {}
        self.names: dict[Name, Message] = {}
        self.ids: dict[UUID, Message] = {}
        self._times: list[tuple[int, int]] = []  # (at_ms, offset); entries that were overtaken are passed over
        self._ready: list[tuple[int, int]] = []  # (due_ms, offset): what is due earliest goes first
        self._places: list[tuple[int, int]] = []  # (ticks of its position, offset); what is gone is passed over
        self.ready = self.flying = self.hidden = 0
        self.bytes = 0  # of messages that nobody has
        self.flying_bytes = 0  # of those in flight: bodies are kept for the next delivery, should there be one
        self.hidden_bytes = 0  # of those hidden; they are in `bytes`, too
        self.most_flying_bytes = FLYING_BYTES

    def __len__(self) -> int:
        return len(self.messages)

    def add(
        self, row: TimedRow, at_ms: int, deliveries: int = 0, moving: Moving | None = None, early: bool = False
    ) -> Message:
        """`early`: it comes so much later that it must not take the room of what is handed out next."""
        message = Message(self.next_offset, row, at_ms, deliveries, moving)
        self.next_offset += 1
        self.messages[message.offset] = message
        self._push(self._places, ticks_of(row.position), message.offset, lambda _, message: True)
        self.names[row.name] = self.ids[row.id] = message
        self.bytes += message.size
        self._set_hidden(message, bool(deliveries or moving or early))
        if moving is None:
            self._until(message, at_ms)
        else:
            message.step("leave")
        return message

    def _push(self, heap: list[tuple[int, int]], at: int, offset: int, stands: Callable[[int, Message], bool]) -> None:
        """`stands`: does an entry still say something of its message?"""
        heapq.heappush(heap, (at, offset))
        if len(heap) > 2 * len(self.messages) + STALE_ENTRIES:
            heap[:] = {
                (at, offset)
                for at, offset in heap
                if (message := self.messages.get(offset)) is not None and stands(at, message)
            }
            heapq.heapify(heap)

    def _set_hidden(self, message: Message, hidden: bool) -> None:
        change = hidden - message.hidden
        message.hidden = hidden
        self.hidden += change
        self.hidden_bytes += change * message.size

    def roll(self, now_ms: int) -> list[Message]:
        """What has come is ready. Those whose visibility is over are given back here, to be offered or buried."""
        over: list[Message] = []
        while self._times and self._times[0][0] <= now_ms:
            at_ms, offset = heapq.heappop(self._times)
            message = self.messages.get(offset)
            if message is None or message.at_ms != at_ms:
                continue
            if message.state is State.WAITING:
                self._offer(message, "come")
                if message.deliveries:
                    over.append(message)
            elif message.state is State.FLYING:
                self._landed(message)
                self._offer(message, "over")
                over.append(message)
        return over

    def _offer(self, message: Message, event: str) -> None:
        message.step(event)
        self._set_hidden(message, False)
        self.ready += 1
        self._push(self._ready, message.row.due_ms, message.offset, lambda _, other: other.state is State.READY)

    @property
    def too_much_flies(self) -> bool:
        return self.flying_bytes >= self.most_flying_bytes

    @property
    def too_much_is_out(self) -> bool:
        """In flight or hidden: no more is to be read."""
        return self.flying_bytes + self.hidden_bytes >= self.most_flying_bytes

    @property
    def waits(self) -> tuple[int, int]:
        """How many, and how many bytes, were read and are not out: what is handed out next."""
        return len(self.messages) - self.flying - self.hidden, self.bytes - self.hidden_bytes

    def take(self, count: int, until_ms: int) -> list[Message]:
        """Up to so many that are ready, the earliest first; they are in flight until then."""
        taken: list[Message] = []
        while self._ready and len(taken) < count and not self.too_much_flies:
            message = self.messages.get(heapq.heappop(self._ready)[1])
            if message is None or message.state is not State.READY:
                continue
            message.step("take")
            self.ready -= 1
            self.flying += 1
            self.bytes -= message.size
            self.flying_bytes += message.size
            message.deliveries += 1
            message.proved = True
            self._until(message, until_ms)
            taken.append(message)
        return taken

    def _until(self, message: Message, at_ms: int) -> None:
        message.at_ms = at_ms
        self._push(self._times, at_ms, message.offset, _is_next)

    def held(self, offset: int, delivery: int) -> Message | None:
        """The message that this delivery proves a hold on; its visibility may be over, if nobody has it since."""
        message = self.messages.get(offset)
        if message is None or not message.proved or message.deliveries != delivery:
            return None
        return message if message.state in (State.FLYING, State.READY) else None

    def extend(self, message: Message, until_ms: int) -> bool:
        """False: its visibility is over."""
        if message.state is not State.FLYING:
            return False
        self._until(message, until_ms)
        return True

    def leave(self, message: Message) -> None:
        self._off(message)
        message.step("leave")

    def put_aside(self, message: Message) -> None:
        """It leaves, and that may take long: it is on its way to the dead letters."""
        self.leave(message)
        self._set_hidden(message, True)

    def hide(self, message: Message, at_ms: int) -> None:
        """It can be had again from then on."""
        self._off(message)
        message.step("hide")
        self._set_hidden(message, True)
        message.proved = False
        self._until(message, at_ms)

    def _off(self, message: Message) -> None:
        if message.state is State.READY:
            self.ready -= 1
        elif message.state is State.FLYING:
            self._landed(message)

    def _landed(self, message: Message) -> None:
        self.flying -= 1
        self.bytes += message.size
        self.flying_bytes -= message.size

    def gone(self, message: Message) -> None:
        """It is finished, durably."""
        message.step("done")
        self._set_hidden(message, False)
        del self.messages[message.offset]
        if self.names.get(message.row.name) is message:
            del self.names[message.row.name]
        if self.ids.get(message.row.id) is message:
            del self.ids[message.row.id]
        self.bytes -= message.size

    def next_ms(self) -> int | None:
        """When the next one comes or comes back; what is ready is there now."""
        while self._times:
            at_ms, offset = self._times[0]
            message = self.messages.get(offset)
            if message is not None and _is_next(at_ms, message):
                return at_ms
            heapq.heappop(self._times)
        return None

    def first(self) -> Message | None:
        """The one that lies lowest: all that was read and lies below it is finished. It need not have come first: what
        was moving when its holder changed is on the desk before it is read again."""
        while self._places:
            message = self.messages.get(self._places[0][1])
            if message is not None:
                return message
            heapq.heappop(self._places)
        return None

    def of(self, states: Iterable[State]) -> Iterator[Message]:
        wanted = frozenset(states)
        return (message for message in self.messages.values() if message.state in wanted)

    def positions(self) -> set[UUID]:
        return {message.row.position for message in self.messages.values()}


def _is_next(at_ms: int, message: Message) -> bool:
    """Does something happen to it then?"""
    return message.at_ms == at_ms and message.state in (State.WAITING, State.FLYING)
