"""Keys: puts with an idempotency key happen once. The key row names the id; the holder asks it before it hands out.

    keys (queue, generation, key)     state: "claimed:ID", then "put:ID"        changed by compare-and-set

A put with a key claims the row for a new id, writes the message, and pins the id ("put") before it is confirmed. Who
finds the key claimed by an earlier attempt, whatever became of that,

    its position is not read yet      writes the same id again (one row is one message), and pins it
    was read, or may have been        claims the key for another id by compare-and-set; refused: it was pinned, so that
                                      one was the put
    is far from this one's due        the same: a position says when its row is read

and the holder, when it reads a row with a key, pins it itself if nobody has; if the key names another id by then, the
row is void for good. So of all ids that a key ever named, exactly one is handed out.

A holder may read a void row long after, when the key is forgotten: its shard had no room, or nobody worked it. So who
took the key from an id marks that id's row, before its own put is confirmed.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from capellini.model.errors import StoreError, Unavailable, Unknown
from capellini.model.service import Problem, Put
from capellini.model.timed import Scheduled
from capellini.queues.cell import Cell
from capellini.queues.timed.horizon import read_horizon
from capellini.queues.timed.place import TimedPlace
from capellini.queues.timed.positions import TICKS_PER_S, id_text, ms_of_ticks, shard_in, ticks_of
from capellini.queues.timed.putting import COPY_WITHIN_S, PAUSE_S, Putting
from capellini.queues.timed.rows import TimedRow, mark_row, write_rows
from capellini.queues.timed.telling import tell_put
from capellini.store.interface import Value
from capellini.store.schema import KEYS

MAX_TRIES: Final = 6
MARK_TRIES: Final = 5
EARLY: Final = 3_600 * TICKS_PER_S  # puts with a delay that are tried again are due a little later each time
VOID_STAMP: Final = 1  # whatever its time: this marker is never taken back
CLAIMED: Final = "claimed"
PUT: Final = "put"

State = tuple[str, str]  # how, and the id; ("", ""): nobody has used the key
NOBODY: Final[State] = ("", "")


def key_cell(place: TimedPlace, key: str, ttl_s: float) -> Cell[State]:
    return Cell(
        place.store,
        place.clock,
        place.random,
        KEYS,
        (*place.partition, key),
        (),
        ("state",),
        _in,
        _out,
        ttl_s=max(1, int(ttl_s)),
    )


async def put_keyed(place: TimedPlace, putting: Putting, key: str, message: Scheduled, ttl_s: float) -> Put | Problem:
    """Put one message once."""
    cell = key_cell(place, key, ttl_s)
    named = await cell.read()
    for _ in range(MAX_TRIES):
        if named[0] == PUT:
            place.guards["key was used before"] += 1
            return Put(named[1], duplicate=True)
        row, again = putting.placed([message])[0], False
        if named[0] == CLAIMED and _near(UUID(hex=named[1]), row) and await _unread(place, UUID(hex=named[1])):
            place.guards["put of a key finished by a later one"] += 1
            row, again = _again(row, UUID(hex=named[1])), True
        else:
            mine, seen = id_text(row.id), named
            named, taken = await cell.change(lambda now: _claim(now, seen, mine))  # noqa: B023
            if named != (CLAIMED, mine):
                continue
            if taken:
                void = UUID(hex=seen[1])
                await _make_void(place, void, max(message.due_ms, ms_of_ticks(ticks_of(void))))
                putting.passed([void], await read_horizon(place, shard_in(void)))
        (problem,) = await putting.through([row])
        if problem is not None:
            return problem
        mine = id_text(row.id)
        try:
            named = await cell.change(lambda now: _pin(now, mine))  # noqa: B023
        except Unavailable as error:  # it is written, and its key names it: its holder may hand it out
            raise Unknown(f"the put may have been done: {error.says}") from error
        if named == (PUT, mine):
            tell_put(place, [row], again)
            return Put(mine)
        place.guards["written id of a key was void"] += 1
    raise Unavailable("too many put with this key at once: try again")


async def accepted(place: TimedPlace, key: str, row: TimedRow) -> bool:
    """May the holder hand this id out? Decided once, for good."""
    cell = key_cell(place, key, place.options.window_s)
    mine = id_text(row.id)
    state = await cell.read()
    if state == (PUT, mine):
        return True
    if state == (CLAIMED, mine):
        # its putter may be gone, and what this read saw the next one may not
        await write_rows(place, [row], begun=True)
    return await cell.change(lambda now: _accept(now, mine))


def _claim(now: State, seen: State, mine: str) -> tuple[State, tuple[State, bool]]:
    """The key names `mine` from now on, unless it was pinned or names one that was not settled. Also told: was it taken
    from another id just now? Of one that was forgotten meanwhile nothing is known: its id may be a message."""
    if now in (NOBODY, seen) and now[0] != PUT:
        return (CLAIMED, mine), ((CLAIMED, mine), now[0] == CLAIMED)
    return now, (now, False)


def _pin(now: State, mine: str) -> tuple[State, State]:
    return ((PUT, mine), (PUT, mine)) if now in ((CLAIMED, mine), NOBODY) else (now, now)


def _accept(now: State, mine: str) -> tuple[State, bool]:
    """A key row that expired says nothing: whatever it named was settled before."""
    if now == (CLAIMED, mine):
        return (PUT, mine), True
    return now, now in (NOBODY, (PUT, mine))


async def _make_void(place: TimedPlace, id: UUID, due_ms: int) -> None:
    """Nobody can have pinned it, and nobody ever will. Raises StoreErrors: then the put is not confirmed."""
    for attempt in range(MARK_TRIES):
        try:
            await mark_row(place, id, due_ms, VOID_STAMP, cancelled=True)
        except StoreError:
            if attempt == MARK_TRIES - 1:
                raise
            await place.clock.sleep(PAUSE_S)
        else:
            place.guards["row of an id without its key marked"] += 1
            return


def _near(id: UUID, row: TimedRow) -> bool:
    """May this message lie there? One that is due before would be late, or have its shard read ahead up to there; one
    that is due long after would be on the desk till then."""
    return -EARLY <= ticks_of(id) - ticks_of(row.position) <= COPY_WITHIN_S * TICKS_PER_S


async def _unread(place: TimedPlace, id: UUID) -> bool:
    horizon = await read_horizon(place, shard_in(id))
    return horizon is None or horizon < ticks_of(id)


def _again(row: TimedRow, id: UUID) -> TimedRow:
    return TimedRow(id, id, 0, row.due_ms, row.put_ms, row.entry, row.key)


def _in(values: dict[str, Value]) -> State:
    state = values.get("state")
    how, _, id = state.partition(":") if isinstance(state, str) else ("", "", "")
    return how, id


def _out(state: State) -> dict[str, Value]:
    return {"state": f"{state[0]}:{state[1]}"}
