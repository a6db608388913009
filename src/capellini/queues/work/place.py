"""What the parts of one work queue in one node share: the store, the cells, the shelf, the counts of what was decided.

A place belongs to one generation of one queue. Nothing in it outlives the generation.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError
from capellini.model.options import WorkOptions
from capellini.queues.cell import Cell
from capellini.queues.events import Events
from capellini.queues.trouble import Trouble
from capellini.queues.work import pointers as pointing
from capellini.queues.work import runs as running
from capellini.queues.work.pointers import Pointers
from capellini.queues.work.runs import Runs
from capellini.queues.work.shelf import Room, Shelf
from capellini.store.interface import Key, Store, Value
from capellini.store.schema import BUCKETS, MONOTON, POINTERS

MAX_CELLS: Final = 2_000  # buckets whose state a node remembers, per queue
PROMISING_MOST: Final = 2_000  # where a node only puts, nothing else takes them off; forgotten, they are found by time
MARKER_TTL_S: Final = (
    8 * 86_400
)  # a dropped bucket's marker outlives the longest window of idempotency keys, and any paused process


class Dropped(CapelliniError):
    """The bucket was dropped: everything in it is finished. `voided`: the slots that never became messages."""

    def __init__(self, bucket: int, voided: tuple[tuple[int, int], ...]) -> None:
        super().__init__(f"bucket {bucket} is finished and was dropped")
        self.bucket = bucket
        self.voided = voided


class Gone(CapelliniError):
    """This generation of the queue was deleted or purged. Not for callers: they mean the next one, if there is one."""

    name = "gone"
    sent = False  # something was written into it: whether somebody got that before is not known


class Next(msgspec.Struct, frozen=True):
    """The monoton row: the next id to be given out, and whether the generation is closed for good."""

    id: int = 0
    closed: bool = False


class Place:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: Chance,
        events: Events,
        room: Room,
        name: str,
        generation: int,
        secret: bytes,
        options: WorkOptions,
        max_skew_s: float = 0.5,
    ) -> None:
        self.store = store
        self.clock = clock
        self.random = random
        self._events = events
        self.name = name
        self.generation = generation
        self.secret = secret
        self.options = options
        self._told_s = clock.elapsed_s()
        self.size = options.bucket_size
        self.max_skew_ms = int(max_skew_s * 1000)
        self.shelf = Shelf(room, self.size)
        self.promising: set[int] = set()  # buckets in which this node wrote, or left, something since its last visit
        self.guards: Counter[str] = Counter()
        self.trouble = Trouble(clock, name)
        self.partition: Key = (name, generation)
        # What is only a step towards a change that is synced itself (ids before their block, a listing before its
        # claim) needs no fsync of its own where there is one log: the later one covers it.
        self.sync_first = not store.alone
        self.monoton: Cell[Next] = Cell(
            store,
            clock,
            random,
            MONOTON,
            self.partition,
            (),
            ("next", "state"),
            _next_in,
            _next_out,
            sync=self.sync_first,
        )
        self.pointers: Cell[Pointers] = Cell(
            store,
            clock,
            random,
            POINTERS,
            self.partition,
            (),
            ("record",),
            _pointers_in,
            _pointers_out,
            sync=self.sync_first,
        )
        self._cells: OrderedDict[int, Cell[Runs]] = OrderedDict()
        self.known_next = 0  # ids below were given out, as far as this node knows
        self.on_visible: list[Callable[[], None]] = []  # called when something may have become visible

    @property
    def events(self) -> Events:
        return self._events.of(self.options.journal)

    def now_ms(self) -> int:
        return int(self.clock.now_s() * 1000)

    def learn(self, options: WorkOptions, read_s: float | None = None) -> None:
        """The options as the catalog has them for what begins now. `read_s`: who keeps them for a while read them then,
        and what was told since is newer."""
        if read_s is None:
            self._told_s = self.clock.elapsed_s()
        elif read_s < self._told_s:
            return
        self.options = options

    def cell(self, bucket: int) -> Cell[Runs]:
        cell = self._cells.get(bucket)
        if cell is None:
            cell = Cell(
                self.store,
                self.clock,
                self.random,
                BUCKETS,
                (*self.partition, bucket),
                None,
                ("state",),
                _runs_in,
                _runs_out,
                guard=lambda values: _guard(bucket, values),
            )
            self._cells[bucket] = cell
            while len(self._cells) > MAX_CELLS:
                oldest = next(iter(self._cells))
                if self._cells[oldest].busy:
                    self._cells.move_to_end(oldest)
                    break
                del self._cells[oldest]
        else:
            self._cells.move_to_end(bucket)
        return cell

    def promise(self, bucket: int) -> None:
        """This node wrote, or left, something there."""
        if len(self.promising) >= PROMISING_MOST:
            self.promising.clear()
        self.promising.add(bucket)

    def forget(self, bucket: int) -> None:
        """It is finished: nothing of it is needed any more."""
        self.shelf.forget(bucket)
        self.promising.discard(bucket)
        cell = self._cells.get(bucket)
        if cell is not None and not cell.busy:
            del self._cells[bucket]

    def woken(self) -> None:
        for call in self.on_visible:
            call()

    def retries(self) -> int:
        return self.monoton.retries + self.pointers.retries + sum(cell.retries for cell in self._cells.values())


def _next_in(values: dict[str, Value]) -> Next:
    id, state = values.get("next"), values.get("state")
    return Next(id if isinstance(id, int) else 0, state == "closed")


def _next_out(next: Next) -> dict[str, Value]:
    return {"next": next.id, "state": "closed" if next.closed else "open"}


def _pointers_in(values: dict[str, Value]) -> Pointers:
    record = values.get("record")
    return pointing.decode(record if isinstance(record, bytes) else None)


def _pointers_out(pointers: Pointers) -> dict[str, Value]:
    return {"record": pointing.encode(pointers)}


def _runs_in(values: dict[str, Value]) -> Runs:
    state = values.get("state")
    return running.decode(state) if isinstance(state, bytes) else ()


def _runs_out(runs: Runs) -> dict[str, Value]:
    return {"state": running.encode(runs)}


def _guard(bucket: int, values: dict[str, Value]) -> None:
    marker = values.get("dropped")
    if isinstance(marker, bytes):
        raise Dropped(bucket, marker_in(marker))


def marker_out(voided: tuple[tuple[int, int], ...]) -> bytes:
    return msgspec.msgpack.encode(voided)


_MARKER: Final = msgspec.msgpack.Decoder(tuple[tuple[int, int], ...])


def marker_in(data: bytes) -> tuple[tuple[int, int], ...]:
    return _MARKER.decode(data)
