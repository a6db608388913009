"""The catalog: which queues there are, and what they are.

    queues (realm "all") ▸ name            kind, generation, state live|deleted, record (JSON), token (a trail)

A queue's row stays when it is deleted: the next creation is generation + 1, and so is each purge. What belongs to a
queue carries its generation in its key, so that nothing of a deleted queue appears in its successor. Whoever reads
all rows, as each node does every second, passes over deleted ones and decodes nothing of them; where no other process
can change them they are read after a change only.

A generation ends as `ending.py` says. What outlives a purge, the groups of a log queue, lies under the generation of
the queue's creation, which its record keeps (`creation`). So a purge carries nothing over, and nothing can be lost on
the way: whoever creates, changes or deletes a group meanwhile does so in the one place where it is, whichever
generation they know. A deletion notes the groups, too, as QUEUE@ under that generation; `leftovers` does not name them
while a live record has it.

The cache. `live(name)` may answer with a record whose read was SENT less than CACHE_S ago on the elapsed clock; what
was sent later than a change was applied shows the change. Whoever deletes, purges, pauses or changes waits SETTLE_S >
CACHE_S after it was applied. So an operation that starts after such a call returned never uses the older record. It
is the start of the operation that counts: one that goes on for long (a waiting get) asks again before each thing it
does.

Dead letters. Naming a target changes the token of every row on the way from it (target, its target, …) in the same
compare-and-set; deleting reads its row before it looks for those that name it. So of two racing calls that would
leave a queue without its target, or make a circle, one is refused, looks again, and sees why not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from capellini.model.clock import Clock
from capellini.model.errors import Conflict, NotFound, Overloaded, Paused, StoreError, Unavailable, Unknown
from capellini.model.log import AT
from capellini.model.options import (
    OPTIONS,
    LogOptions,
    WorkOptions,
    check_change,
    check_name,
    given_options,
    options_of,
)
from capellini.model.service import QueueInfo
from capellini.queues.ending import PAGE, REALM, Endings
from capellini.queues.trail import TOKEN, backoff_s, follow, new_name, settle_named, text_of
from capellini.store.interface import Cas, Change, Key, Page, Slice, Store, Value
from capellini.store.local import Nearby
from capellini.store.schema import QUEUES

CACHE_S: Final = 0.5  # how long a record may be used; short, since every delete and pause waits for it
SETTLE_S: Final = CACHE_S * 1.2  # clock rates may differ by a fifth, far more than honest clocks do
ATTEMPTS: Final = 10  # of a change; each is lost only to somebody whose change was made
MOST_CHAIN: Final = 8  # dead letters of dead letters of …: more than this is a mistake
DECODED: Final = 10_000  # records kept as they were decoded: all are read every few seconds, and seldom change
CACHED_MOST: Final = 10_000  # records that are remembered; each is good for CACHE_S only


class QueueRecord(msgspec.Struct, frozen=True):
    """A queue as one generation of it is."""

    name: str
    kind: str
    generation: int
    options: WorkOptions
    created_at: float
    secret: str  # hex; receipts' codes are made with it, and are void with the generation
    puts_paused: bool = False
    gets_paused: bool = False
    created_as: int = 0  # a generation; 0: this one, it was never purged

    @property
    def creation(self) -> int:
        """The generation that it was created as."""
        return self.created_as or self.generation

    @property
    def secret_bytes(self) -> bytes:
        return bytes.fromhex(self.secret)

    def info(self) -> QueueInfo:
        return QueueInfo(
            name=self.name,
            kind=self.kind,
            generation=self.generation,
            options=given_options(self.kind, self.options),
            created_at=self.created_at,
            puts_paused=self.puts_paused,
            gets_paused=self.gets_paused,
        )

    def require_puts(self) -> None:
        if self.puts_paused:
            raise Paused(f"queue {self.name} takes no messages for now: its puts are paused")

    def require_gets(self) -> None:
        if self.gets_paused:
            raise Paused(f"queue {self.name} gives no messages for now: its gets are paused")


class CatalogRow(msgspec.Struct, frozen=True):
    """A row of `queues`, live or deleted."""

    name: str
    live: bool
    generation: int
    record: QueueRecord
    token: str | None

    def has(self, left: str, generation: int) -> bool:
        """Does the live queue have what was noted as left? Then ending it was begun and not done."""
        return self.live and generation >= (self.record.creation if left.endswith(AT) else self.generation)


def row_of(name: str, values: Mapping[str, Value]) -> CatalogRow | None:
    """The row as it was read; None: there is none."""
    record, generation = text_of(values, "record"), values.get("generation")
    if record is None or not isinstance(generation, int):
        return None
    return CatalogRow(name, values.get("state") == "live", generation, _record_of(record), text_of(values, TOKEN))


@lru_cache(maxsize=DECODED)
def _record_of(text: str) -> QueueRecord:
    raw = msgspec.json.decode(text, type=dict[str, Any])
    options = msgspec.convert(raw.pop("options"), OPTIONS[raw["kind"]])
    return msgspec.structs.replace(msgspec.convert({**raw, "options": {}}, QueueRecord), options=options)


def live_rows(page: Page) -> Iterator[CatalogRow]:
    """Of live queues, by name."""
    for row in page.rows:
        if row.values.get("state") == "live" and (decoded := row_of(str(row.key[0]), row.values)) is not None:
            yield decoded


def goes_on(record: QueueRecord) -> bool:
    """Is it a queue that each data centre works by itself while it is cut off?"""
    return isinstance(record.options, LogOptions) and record.options.mode == "ap"


def chain_of(name: str, target: str, rows: Mapping[str, CatalogRow]) -> list[CatalogRow]:
    """The rows, of all that are live, that dead letters of `name` could pass through if `target` took them. Raises
    Conflict when that cannot be."""
    chain: list[CatalogRow] = []
    at = target
    while at:
        if at == name:
            way = " → ".join([name, *(row.name for row in chain), name])
            raise Conflict(f"dead letters of {name} would come back to it ({way}): name another queue")
        row = rows.get(at)
        if row is None:
            raise Conflict(f"dead_letters of {name} names {at}, which does not exist: create that queue first")
        chain.append(row)
        if len(chain) > MOST_CHAIN:
            raise Conflict(f"dead letters of {name} would go through more than {MOST_CHAIN} queues: name another queue")
        at = row.record.options.dead_letters
    return chain


def named_by(name: str, rows: Mapping[str, CatalogRow]) -> list[str]:
    """Those whose dead letters go to `name`."""
    return sorted(r.name for r in rows.values() if r.name != name and r.record.options.dead_letters == name)


class _Cached(msgspec.Struct, frozen=True):
    record: QueueRecord
    sent_s: float  # when the request that showed it was sent


class Catalog:
    def __init__(self, store: Store, clock: Clock, random: random.Random) -> None:
        self._store, self._clock, self._random = store, clock, random
        self._nearby = Nearby(store, clock)
        self._cache: dict[str, _Cached] = {}
        self._reads: dict[str, tuple[float, asyncio.Task[CatalogRow | None]]] = {}
        self._endings = Endings(store, clock, random, self._is_over, SETTLE_S)
        self._all: tuple[QueueRecord, ...] | None = None  # as long as no other process can have changed them
        self._changes = 0  # begun, or over

    # -- asking -------------------------------------------------------------------------------------------------------

    async def live(self, name: str) -> QueueRecord:
        """The record for an operation that starts now. Raises NotFound."""
        start_s = self._clock.elapsed_s()
        cached = self._cache.get(name)
        if cached is not None and start_s - cached.sent_s < CACHE_S:
            return cached.record
        sent_s, task = self._reads.get(name, (0.0, None))
        if task is None or start_s - sent_s >= CACHE_S:  # one that hangs for longer might answer with what is over
            sent_s, task = start_s, self._shared_read(name)
        row = await asyncio.shield(task)  # shared: cancelling one who waits is not the others' business
        if (row is None or not row.live) and sent_s < start_s:  # it may have been created since that was sent
            row = await self._row(name)
        return _living(name, row).record

    async def show(self, name: str) -> QueueRecord:
        """As it is in the store now. Raises NotFound."""
        return (await self._live_row(name)).record

    async def queues(self, prefix: str = "", after: str = "", limit: int = PAGE) -> list[QueueRecord]:
        """Live queues whose names begin with `prefix` and come after `after`, by name."""
        found: list[QueueRecord] = []
        start = max(prefix, after)
        while len(found) < limit:
            page = await self._store.read(Slice(QUEUES, REALM, start=(start,) if start else None, limit=PAGE))
            for row in live_rows(page):
                if row.name > after and row.name.startswith(prefix) and len(found) < limit:
                    found.append(row.record)
            if not page.more or not str(page.rows[-1].key[0]).startswith(prefix):
                break
            start = str(page.rows[-1].key[0]) + "\0"  # the least name above
        return found

    async def all(self) -> Sequence[QueueRecord]:
        """All live queues, by name."""
        if self._all is None:
            changes, rows = self._changes, await self._rows()
            found = tuple(row.record for row in rows.values())
            if not self._store.alone or changes != self._changes:
                return found
            self._all = found
        return self._all

    async def logs(self) -> tuple[list[QueueRecord], bool]:
        """All live log queues, and whether these are all: in a data centre that is cut off they are those that go on
        there, as far as is known."""
        if self._store.alone:
            return [record for record in await self.all() if record.kind == "log"], True
        found: list[QueueRecord] = []
        all_sure, after = True, None
        while True:
            page, sure = await self._nearby.read(Slice(QUEUES, REALM, after=after, limit=PAGE))
            all_sure = all_sure and sure
            found += [row.record for row in live_rows(page) if row.record.kind == "log"]
            if not page.more:
                return [record for record in found if all_sure or goes_on(record)], all_sure
            after = page.rows[-1].key

    # -- changing -----------------------------------------------------------------------------------------------------

    async def create(self, name: str, kind: str = "work", options: Mapping[str, Any] | None = None) -> QueueRecord:
        """Same again is fine; other options are a Conflict."""
        check_name(name)
        wanted = options_of(kind, options or {})

        def decide(row: CatalogRow | None) -> QueueRecord | None:
            if row is not None and row.live:
                if row.record.kind != kind:
                    raise Conflict(f"queue {name} exists as a {row.record.kind} queue: delete it, or use another name")
                if row.record.options != wanted:
                    raise Conflict(f"queue {name} exists with other options: change or delete it, or use another name")
                return None
            generation = row.generation + 1 if row else 1
            return QueueRecord(name, kind, generation, wanted, self._clock.now_s(), self._secret())

        return await self._change(name, decide)

    async def change(self, name: str, options: Mapping[str, Any]) -> QueueRecord:
        """In force on all nodes when this returns. Raises Conflict for options that cannot change."""

        def decide(row: CatalogRow | None) -> QueueRecord | None:
            record = _living(name, row).record
            after = check_change(record.kind, record.options, options)
            return msgspec.structs.replace(record, options=after) if after != record.options else None

        record = await self._change(name, decide)
        await self._clock.sleep(SETTLE_S)
        return record

    async def pause(self, name: str, puts: bool | None = None, gets: bool | None = None) -> QueueRecord:
        """True pauses, False resumes, None leaves it; in force on all nodes when this returns."""

        def decide(row: CatalogRow | None) -> QueueRecord | None:
            record = _living(name, row).record
            after = msgspec.structs.replace(
                record,
                puts_paused=record.puts_paused if puts is None else puts,
                gets_paused=record.gets_paused if gets is None else gets,
            )
            return after if after != record else None

        record = await self._change(name, decide)
        await self._clock.sleep(SETTLE_S)
        return record

    async def purge(self, name: str) -> QueueRecord:
        """A new generation with the same options and groups; the old one is left to be cleared."""

        def successor(record: QueueRecord) -> QueueRecord:
            return msgspec.structs.replace(
                record, generation=record.generation + 1, secret=self._secret(), created_as=record.creation
            )

        return await self._end(name, successor)

    async def delete(self, name: str) -> None:
        """Raises Conflict, naming them, if other queues' dead letters go there."""
        await self._end(name, None)

    # -- what is left -------------------------------------------------------------------------------------------------

    async def leftovers(self) -> list[tuple[str, int, int]]:
        """As Endings.leftovers."""
        return await self._endings.leftovers()

    async def cleared(self, queue: str, generation: int) -> None:
        """As Endings.cleared."""
        await self._endings.cleared(queue, generation)

    # -- one change ---------------------------------------------------------------------------------------------------

    async def _change(self, name: str, decide: Callable[[CatalogRow | None], QueueRecord | None]) -> QueueRecord:
        """Read, decide, compare-and-set; again if somebody was faster. `decide` gives None when all is as it should
        be."""
        for attempt in range(ATTEMPTS):
            await self._clock.sleep(backoff_s(attempt, self._random))
            before = await self._row(name)
            after = decide(before)
            if after is None:
                return _living(name, before).record
            chain: list[CatalogRow] = []
            target = after.options.dead_letters
            if target and not (before and before.live and before.record.options.dead_letters == target):
                chain = chain_of(name, target, await self._rows())
            if await self._write(name, before, after, True, chain):
                return after
        raise Overloaded(f"queue {name} is changed by too many at once: nothing was changed, try again")

    async def _end(self, name: str, successor: Callable[[QueueRecord], QueueRecord] | None) -> QueueRecord:
        """End the live generation: (a) to (d) above. Without a successor the queue is deleted."""
        for attempt in range(ATTEMPTS):
            await self._clock.sleep(backoff_s(attempt, self._random))
            before = await self._live_row(name)  # before looking for those that name it: see the header
            if successor is None and (others := named_by(name, await self._rows())):
                raise Conflict(f"dead letters of {', '.join(others)} go to {name}: change or delete {others[0]} first")
            after = successor(before.record) if successor else before.record
            await self._endings.note(name, before.generation, before.record.options.bucket_size)
            if successor is None and before.record.kind == "log":
                await self._endings.note(name + AT, before.record.creation, 0)
            if not await self._write(name, before, after, successor is not None, []):
                continue
            try:
                await self._endings.close_monoton(name, before.generation)
            except StoreError as error:
                raise Unknown(f"queue {name} was ended, but not yet on all nodes: {error.says}") from error
            await self._clock.sleep(SETTLE_S)
            return after
        raise Overloaded(f"queue {name} is changed by too many at once: nothing was changed, try again")

    async def _write(
        self, name: str, before: CatalogRow | None, record: QueueRecord, live: bool, chain: list[CatalogRow]
    ) -> bool:
        """One compare-and-set on the queue's row, and on those of its dead letters' way."""
        sent_s, mark = self._clock.elapsed_s(), new_name(self._random)
        trail = before.token if before else None
        values: dict[str, Value] = {
            "kind": record.kind,
            "generation": record.generation,
            "state": "live" if live else "deleted",
            "record": msgspec.json.encode(record).decode(),
            TOKEN: follow(trail, mark),
        }
        changes = [Change((name,), {TOKEN: trail}, values)]
        changes += [Change((row.name,), {TOKEN: row.token}, {TOKEN: follow(row.token, mark)}) for row in chain]
        cas = Cas(QUEUES, REALM, tuple(changes))
        self._changed()
        try:
            if not (await settle_named(self._store, self._clock, cas, (name,), trail, mark)).applied:
                return False
        finally:
            self._changed()
        if live:
            self._remember(record, sent_s)
        else:
            self._cache.pop(name, None)
        return True

    def _changed(self) -> None:
        """What was read before, or is being read, may be older."""
        self._all, self._changes = None, self._changes + 1

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _row(self, name: str) -> CatalogRow | None:
        page = await self._store.read(Slice(QUEUES, REALM, start=(name,), limit=1))
        return row_of(name, page.rows[0].values) if page.rows and page.rows[0].key == (name,) else None

    async def _nearby_row(self, name: str) -> CatalogRow | None:
        """Of a log queue that goes on when data centres are cut from each other, what is known here will do. Raises
        Unavailable."""
        page, sure = await self._nearby.read(Slice(QUEUES, REALM, start=(name,), limit=1))
        row = row_of(name, page.rows[0].values) if page.rows and page.rows[0].key == (name,) else None
        if not sure and not (row is not None and row.live and goes_on(row.record)):
            raise Unavailable(f"what queue {name} is cannot be read: this data centre is cut off, or the store is away")
        return row

    async def _is_over(self, left: str, generation: int) -> bool:
        row = await self._row(left.removesuffix(AT))
        return row is not None and not row.has(left, generation)

    async def _live_row(self, name: str) -> CatalogRow:
        return _living(name, await self._row(name))

    async def _rows(self) -> dict[str, CatalogRow]:
        """Of all live queues."""
        rows: dict[str, CatalogRow] = {}
        after: Key | None = None
        while True:
            page = await self._store.read(Slice(QUEUES, REALM, after=after, limit=PAGE))
            rows |= {row.name: row for row in live_rows(page)}
            if not page.more:
                return rows
            after = page.rows[-1].key

    def _shared_read(self, name: str) -> asyncio.Task[CatalogRow | None]:
        sent_s = self._clock.elapsed_s()
        task = asyncio.get_running_loop().create_task(self._nearby_row(name))
        self._reads[name] = (sent_s, task)
        task.add_done_callback(lambda done: self._arrived(name, sent_s, done))
        return task

    def _arrived(self, name: str, sent_s: float, task: asyncio.Task[CatalogRow | None]) -> None:
        if self._reads.get(name, (0.0, None))[1] is task:
            del self._reads[name]
        if task.cancelled() or task.exception() is not None:
            return  # those who wait for it hear of it
        row = task.result()
        if row is not None and row.live:
            self._remember(row.record, sent_s)

    def _remember(self, record: QueueRecord, sent_s: float) -> None:
        """A read that was sent before a change of ours may come back after it: the later sending counts."""
        cached = self._cache.get(record.name)
        if cached is None and len(self._cache) >= CACHED_MOST:  # names may come and go for years
            self._cache.clear()
        if cached is None or cached.sent_s < sent_s:
            self._cache[record.name] = _Cached(record, sent_s)

    def _secret(self) -> str:
        return self._random.randbytes(16).hex()


def _living(name: str, row: CatalogRow | None) -> CatalogRow:
    if row is None or not row.live:
        raise NotFound(f"there is no queue {name}")
    return row
