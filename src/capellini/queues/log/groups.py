"""Consumer groups of a log queue.

    log_groups (queue, generation of its creation) ▸ name      state live|deleted, record (JSON), token (a trail)

    (none) ─create─▶ live, version 1 ─seek─▶ live, version 2 ─delete─▶ deleted ─create─▶ live, version 3 …

A reader is a group in one version: "NAME/VERSION". All that is known of what a group has read lies under its reader, so
a seek is a new reader that begins elsewhere; receipts of the one before are stale. Versions of a name only rise, so
nothing of a deleted group appears in its successor. Groups outlive a purge: the readers of each generation begin anew,
since all else has the generation in its key. A group's row goes when all extents that it can have read are gone
(`forget`): where each process has a group of its own, what they left is not read for ever.

Nodes use a copy that was read less than CACHE_S ago, as for queues (`catalog`): who seeks, changes or deletes waits
SETTLE_S after it was applied; what begins after that uses the new record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from capellini.model.errors import Conflict, Invalid, NotFound, Unavailable
from capellini.model.log import (
    DEFAULT_GROUP,
    EARLIEST,
    LATEST,
    MAX_FILTERS,
    MAX_GROUPS,
    GroupInfo,
    GroupOptions,
    check_group,
)
from capellini.model.message import MAX_DELAY_S, whole_ms
from capellini.model.options import check_name, options_of
from capellini.queues.catalog import CACHE_S, SETTLE_S
from capellini.queues.cell import Cell
from capellini.queues.log.place import LogPlace
from capellini.queues.trail import text_of
from capellini.store.interface import Key, Slice, Value
from capellini.store.schema import LOG_GROUPS

PAGE: Final = 1_000
EXPIRED_S: Final = 86_400  # rows of an ended generation are kept for a day
FORGET_S: Final = 3_600.0  # a node that has not heard of a deletion stops using the group long before
FORGETS: Final = 100  # rows at a time
FORGOTTEN: Final = -1  # in place of when it was deleted: its row expires
MAX_VALUES: Final = 64  # of one attribute in a filter
_AS_QUEUES: Final = ("visibility_s", "delivery_limit", "nack_delay_s", "nack_delay_most_s")


class Group(msgspec.Struct, frozen=True):
    """A group as it is now."""

    name: str
    version: int
    start_ms: int  # messages put before are not for it
    options: GroupOptions
    created_ms: int
    live: bool = True
    deleted_ms: int = 0

    @property
    def reader(self) -> str:
        return f"{self.name}/{self.version}"


def version_of(reader: str, name: str) -> int:
    """Of a reader, if it is one of this group; else 0."""
    of, _, version = reader.rpartition("/")
    return int(version) if of == name else 0


class Wants(msgspec.Struct, frozen=True):
    """A group's options with those of its queue filled in."""

    visibility_ms: int
    delivery_limit: int
    nack_delay_ms: int
    nack_delay_most_ms: int
    delay_ms: int
    skip_older_ms: int
    filter: dict[str, list[str]]

    def delay_of(self, deliveries: int) -> int:
        """How long a nacked message waits that was delivered so often."""
        return int(min(self.nack_delay_ms * 2.0 ** min(deliveries - 1, 40), self.nack_delay_most_ms))


def wants(place: LogPlace, options: GroupOptions) -> Wants:
    of_queue = place.options

    def value(name: str) -> float:
        own = getattr(options, name)
        return float(getattr(of_queue, name) if own is None else own)

    return Wants(
        visibility_ms=whole_ms(value("visibility_s")),
        delivery_limit=int(value("delivery_limit")),
        nack_delay_ms=whole_ms(value("nack_delay_s")),
        nack_delay_most_ms=whole_ms(value("nack_delay_most_s")),
        delay_ms=whole_ms(options.delay_s),
        skip_older_ms=whole_ms(options.skip_older_s),
        filter=options.filter,
    )


def dead_letters_of(queue: str, group: str) -> str:
    """The work queue that receives what a group got too often. Raises Invalid when the name would be too long."""
    try:
        return check_name(f"{queue}.{group}.dead")
    except Invalid:
        raise Invalid(f"the names {queue} and {group} are too long together: shorten the group's") from None


def group_options(given: Mapping[str, Any]) -> GroupOptions:
    """Checked. Raises Invalid naming the option and what was given."""
    names = GroupOptions.__struct_fields__
    for name in given:
        if name not in names:
            raise Invalid(f"{name!r} is not an option of groups: there are {', '.join(names)}")
    options_of("log", {name: given[name] for name in _AS_QUEUES if given.get(name) is not None})
    try:
        made = msgspec.convert(dict(given), GroupOptions)
    except msgspec.ValidationError as error:
        raise Invalid(f"of a group's options: {error}") from None
    for name in ("delay_s", "skip_older_s"):
        if not 0 <= getattr(made, name) <= MAX_DELAY_S:
            raise Invalid(f"{name} goes from 0 to {MAX_DELAY_S:.15g}, not {getattr(made, name)!r}")
    if len(made.filter) > MAX_FILTERS:
        raise Invalid(f"a filter names at most {MAX_FILTERS} attributes, not {len(made.filter)}")
    for name, values in made.filter.items():
        if not name or not 0 < len(values) <= MAX_VALUES:
            raise Invalid(f"a filter names an attribute and 1 to {MAX_VALUES} values, not {name!r}: {len(values)}")
    return made


def start_of(place: LogPlace, start: str | float) -> int:
    """In ms since 1970; 0: from the oldest there is. Raises Invalid."""
    if start == EARLIEST:
        return 0
    if start == LATEST:
        return place.now_ms() - 2 * place.max_skew_ms
    if isinstance(start, bool) or not isinstance(start, int | float) or not 0 <= start < 1e11:
        raise Invalid(f"a group starts at {EARLIEST}, {LATEST}, or a time in seconds since 1970, not {start!r}")
    return int(start * 1000)


class Groups:
    """The groups of one queue, as this node knows them."""

    def __init__(self, place: LogPlace, creation: int) -> None:
        self._place = place
        self._partition: Key = (place.name, creation)
        self._cells: dict[str, Cell[Group]] = {}
        self._all: dict[str, Group] = {}
        self._sent_s = -1e9
        self._reading: tuple[float, asyncio.Task[dict[str, Group]]] | None = None

    # Asking

    async def all(self) -> list[Group]:
        """The live ones, for what begins now."""
        await self._known(self._place.clock.elapsed_s() - CACHE_S)
        return [group for group in self._all.values() if group.live]

    async def _known(self, after_s: float) -> None:
        """By a read that was sent after that time."""
        if self._sent_s > after_s:
            return
        if self._reading is None or self._reading[0] <= after_s:
            start_s = self._place.clock.elapsed_s()
            self._reading = (start_s, asyncio.get_running_loop().create_task(self._read(start_s)))
            self._reading[1].add_done_callback(_heard)
        await asyncio.shield(self._reading[1])

    def get(self, name: str) -> Group | None:
        """As of the last look, however old."""
        return self._all.get(name)

    async def _read(self, sent_s: float) -> dict[str, Group]:
        try:
            found: dict[str, Group] = {}
            after: Key | None = None
            while True:
                page = await self._place.read_shared(Slice(LOG_GROUPS, self._partition, after=after, limit=PAGE))
                for row in page.rows:
                    group = _decode(row.values)
                    if group.version:
                        found[group.name] = group
                if not page.more:
                    break
                after = page.rows[-1].key
            if sent_s > self._sent_s:
                self._all, self._sent_s = found, sent_s
            return found
        finally:
            if self._reading is not None and self._reading[0] == sent_s:
                self._reading = None

    async def live(self, name: str, version: int = 0) -> Group:
        """For what begins now. `version`: somebody has met it, so that it is there, or a later one. Raises NotFound, or
        Unavailable."""
        now_s = self._place.clock.elapsed_s()
        for after_s in (now_s - CACHE_S, now_s):  # it may have been made, or sought, since
            await self._known(after_s)
            found = self._all.get(name)
            if found is not None and found.live and found.version >= version:
                return found
        if (0 if found is None else found.version) < version:
            raise Unavailable(f"group {name} is not known in this data centre yet as it is in others: try again")
        raise NotFound(f"queue {self._place.name} has no group {name}: create it first")

    async def used(self, name: str) -> Group:
        """For who takes messages: the default group is made at its first use. Raises NotFound, or Unavailable."""
        try:
            return await self.live(name)
        except NotFound:
            if name != DEFAULT_GROUP:
                raise
            return await self.create(name, 0, GroupOptions())

    def info(self, group: Group, says: str = "") -> GroupInfo:
        return GroupInfo(
            queue=self._place.name,
            name=group.name,
            version=group.version,
            start_at=group.start_ms / 1000,
            options=group.options,
            created_at=group.created_ms / 1000,
            dead_letters=dead_letters_of(self._place.name, group.name),
            says=says,
        )

    # Changing

    async def create(self, name: str, start_ms: int, options: GroupOptions) -> Group:
        """Same again is fine; other options are a Conflict."""
        check_group(name)
        dead_letters_of(self._place.name, name)
        others = [group for group in await self.all() if group.name != name]
        if len(others) >= MAX_GROUPS:
            raise Conflict(f"queue {self._place.name} has {len(others)} groups, and no queue has more: delete some")
        now_ms = self._place.now_ms()

        def command(now: Group) -> tuple[Group, Group]:
            if now.live:
                if now.options != options:
                    raise Conflict(f"group {name} exists with other options: change or delete it, or use another name")
                return now, now
            made = Group(name, now.version + 1, start_ms, options, now_ms)
            return made, made

        return await self._changed(name, command)

    async def change(self, name: str, change: Mapping[str, Any]) -> Group:
        """In force on all nodes when this returns."""

        def command(now: Group) -> tuple[Group, Group]:
            before = self._living(name, now)
            options = group_options({**msgspec.structs.asdict(before.options), **change})
            after = msgspec.structs.replace(before, options=options)
            return (before, before) if after == before else (after, after)

        return await self._changed(name, command, settle=True)

    async def seek(self, name: str, start_ms: int) -> Group:
        """A new version from there; nobody uses the one before when this returns."""

        def command(now: Group) -> tuple[Group, Group]:
            before = self._living(name, now)
            after = msgspec.structs.replace(before, version=before.version + 1, start_ms=start_ms)
            return after, after

        return await self._changed(name, command, settle=True)

    async def delete(self, name: str) -> Group:
        def command(now: Group) -> tuple[Group, Group]:
            after = msgspec.structs.replace(self._living(name, now), live=False, deleted_ms=self._place.now_ms())
            return after, after

        return await self._changed(name, command, settle=True)

    async def expire(self) -> None:
        """Of a deleted queue: the rows go some time, also those of groups that were deleted before it."""
        await self._known(self._place.clock.elapsed_s())
        for name in self._all:
            await self._cell(name, EXPIRED_S).change(_ended)

    async def forget(self, oldest_ms: int) -> None:
        """Rows of groups that were deleted before the oldest extent was opened expire: nothing is kept under their
        readers. Not where homes may have read on for them while they were cut off."""
        before_ms = oldest_ms - int(FORGET_S * 1000)
        gone = [one for one in self._all.values() if not one.live and 0 < one.deleted_ms < before_ms]
        for group in gone[:FORGETS] if len(self._place.homes) == 1 else ():
            await self._cell(group.name, EXPIRED_S).change(_forgotten)
            self._place.guards["deleted group forgotten"] += 1
        if gone:
            self._sent_s = -1e9  # read anew

    def _living(self, name: str, now: Group) -> Group:
        if not now.live:
            raise NotFound(f"queue {self._place.name} has no group {name}")
        return now

    async def _changed(self, name: str, command: Any, settle: bool = False) -> Group:
        if name not in self._cells:
            self._cells[name] = self._cell(name)
        after: Group = await self._cells[name].change(command)
        self._sent_s = -1e9  # a read that is under way may show what was before
        self._all = {**self._all, name: after}
        if settle:
            await self._place.clock.sleep(SETTLE_S)
        return after

    def _cell(self, name: str, ttl_s: int | None = None) -> Cell[Group]:
        place = self._place
        return Cell(
            place.everywhere, place.clock, place.random, LOG_GROUPS, self._partition, (name,), ("state", "record"),
            _decode, _encode, ttl_s=ttl_s,
        )  # fmt: skip


def _heard(task: asyncio.Task[dict[str, Group]]) -> None:
    """All who waited for it may be gone when it fails."""
    if not task.cancelled():
        task.exception()


def _ended(now: Group) -> tuple[Group, None]:
    if not now.version or now.deleted_ms == FORGOTTEN:
        return now, None
    return msgspec.structs.replace(now, live=False, deleted_ms=FORGOTTEN), None


def _forgotten(now: Group) -> tuple[Group, None]:
    """Unless it was made anew meanwhile."""
    return (now, None) if now.live else (msgspec.structs.replace(now, deleted_ms=FORGOTTEN), None)


def _decode(values: Mapping[str, Value]) -> Group:
    """Version 0: there is no row."""
    record = text_of(values, "record")
    if record is None:
        return Group("", 0, 0, GroupOptions(), 0, live=False)
    return msgspec.structs.replace(msgspec.json.decode(record, type=Group), live=values.get("state") == "live")


def _encode(group: Group) -> dict[str, Value]:
    return {"state": "live" if group.live else "deleted", "record": msgspec.json.encode(group).decode()}
