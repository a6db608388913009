"""One record changed by grouped compare-and-set.

Callers hand in commands: pure functions from the state to (state after, answer). All commands that wait when a round
begins are applied one after another and written by ONE compare-and-set; the next round begins when it is over.

    change(a) ─┐
    change(b) ─┼─▶ state ─a─▶ ─b─▶ ─c─▶ state' ──compare-and-set──▶ applied: everyone gets their answer
    change(c) ─┘                                       └─▶ refused: learn the current state, decide again (bounded,
    with backoff)

- The first attempt uses the state remembered from last time: an undisturbed change is one request and one round; a
  stale memory costs one more.
- Lost answers: the row's `token` column names the last changes, newest first, and the same compare-and-set is
  repeated until it is known whether it was done (`trail` says how).
- Cancelling one caller never cancels the batch it is in: callers wait on futures of their own.
- Where one log makes writes durable, no round waits for its fsync: the next one builds on what is written, and each
  caller waits at the end for the fsync that all who wait share, before it has its answer. The log keeps the order:
  what is durable has all that it was built on.
- Where in addition nobody else asks for anything (`Store.lonely`) a command is decided and written at once
  (`Store.swap`): no future, no task, no turn of the loop. What is not as remembered goes the way above.
- A command that raises concerns its caller only. Answers that change nothing, and errors, stand only when they were
  decided on a state that was read or learned after the command came in, or that the group's compare-and-set has
  proved to be current; never on an old memory.
- A store that is away for a moment is asked again, a few times: nothing was changed. After Unknown all is forgotten,
  and read anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from capellini.model.clock import Chance, Clock
from capellini.model.errors import CapelliniError, Full, Overloaded, Unavailable, Unknown
from capellini.queues.trail import TOKEN, backoff_s, follow, names_of, new_name, settle_named, text_of
from capellini.store.interface import Cas, Change, Key, Level, Slice, Store, Table, Value

S = TypeVar("S")
T = TypeVar("T")

MAX_ATTEMPTS: Final = 24  # refused rounds before a group gives up; with the pauses below some 3 s
UNAVAILABLE_ATTEMPTS: Final = 3  # each may take a whole time-out, and callers can try another node
MAX_GROUP: Final = 4_096  # commands in one compare-and-set: bounds the time that pure decisions hold the loop
STREAK: Final = 3  # rounds without a break
Command = Callable[[S], tuple[S, Any]]


class _Waiting(Generic[S]):
    __slots__ = ("answer", "command", "fresh")

    def __init__(self, command: Command[S], fresh: bool, answer: asyncio.Future[Any]) -> None:
        self.command = command
        self.fresh = fresh
        self.answer = answer


class Cell(Generic[S]):
    """`key` None: the static row. `columns` hold the state; the column `token` is the cell's own. `guard` sees the
    raw values whenever they are learned and raises when the row must not be used. `absent`: columns that must have no
    value for any change to happen."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: Chance,
        table: Table,
        partition: Key,
        key: Key | None,
        columns: tuple[str, ...],
        decode: Callable[[dict[str, Value]], S],
        encode: Callable[[S], dict[str, Value]],
        *,
        guard: Callable[[dict[str, Value]], None] | None = None,
        level: Level = Level.SERIAL,
        absent: tuple[str, ...] = (),
        ttl_s: int | None = None,
        sync: bool = True,
    ) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        self._table = table
        self._partition = partition
        self._key = key
        self._columns = columns
        self._decode = decode
        self._encode = encode
        self._guard = guard
        self._level = level
        self._absent = absent
        self._ttl_s = ttl_s
        self._sync = sync
        self._waiting: list[_Waiting[S]] = []
        self._busy = False  # rounds are under way
        self._task: asyncio.Task[Any] | None = None  # that makes them, where it is one of its own
        self._known = False
        self._token: str | None = None
        self.seen: S | None = None
        self.seen_at_s = 0.0  # elapsed time at which a read or a change that taught `seen` was sent
        self.mark = 0  # rises whenever something is learned
        self._streak = 0
        self._ended_s = self._round_s = 0.0  # of the last round: when it ended, how long it took
        self.retries = 0  # refused compare-and-sets
        self.resolved: dict[str, int] = {}  # lost answers, by how they came out: done, not_done, unknown

    @property
    def busy(self) -> bool:
        return self._busy

    def learn(self, values: dict[str, Value], mark: int | None = None, sent_at_s: float | None = None) -> None:
        """Raw values that were read elsewhere. `mark`: the cell's mark when that read was sent; what was learned
        since is newer."""
        if mark is not None and mark != self.mark:
            return
        self.mark += 1
        self._known = False
        if self._guard is not None:
            self._guard(values)
        self._token = text_of(values, TOKEN)
        self.seen = self._decode(values)
        self.seen_at_s = self._clock.elapsed_s() if sent_at_s is None else sent_at_s
        self._known = True

    def forget(self) -> None:
        """The next change reads first."""
        self._known = False

    async def read(self) -> S:
        """The state as a quorum has it now."""
        mark, sent_at_s = self.mark, self._clock.elapsed_s()
        if self._key is None:
            page = await self._store.read(Slice(self._table, self._partition, limit=0))
            values = page.static
        else:
            page = await self._store.read(Slice(self._table, self._partition, start=self._key, limit=1))
            values = page.rows[0].values if page.rows and page.rows[0].key == self._key else {}
        self.learn(values, mark, sent_at_s)
        if self.seen is None:  # what came meanwhile was refused by the guard: then this is all that is known
            self.learn(values, None, sent_at_s)
        state = self.seen
        assert state is not None
        return state

    async def change(
        self,
        command: Callable[[S], tuple[S, T]],
        *,
        fresh: bool = True,
        durable: bool | None = None,
        at_once: bool = False,
    ) -> T:
        """Apply the command; its answer. It may be called several times, on newer states. One that gives back the
        very state it got changes nothing; its answer then stands on a state read after this call began, unless
        `fresh` is false. `durable` false: the caller sees to that itself before anybody hears of it (`Store.sync`).
        `at_once`: it speaks for all that wait already, and nobody cancels it; where nothing is far away, it is not put
        off for others to join."""
        if self._store.lonely and not self._busy and self._known:
            done = self._swapped(command)
            if done is not None:
                if self._sync if durable is None else durable:
                    await self._store.sync()
                return done[0]
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append(_Waiting(command, fresh, answer))
        if not self._busy:
            self._busy = True
            if at_once and self._store.alone:
                await self._rounds()
            else:
                self._task = loop.create_task(self._rounds())
        try:
            result: T = await answer
        except CapelliniError:
            if self._sync:  # what refused it may not be durable yet, and the caller may build on that
                await self._store.sync()
            raise
        if self._sync if durable is None else durable:
            await self._store.sync()
        return result

    def _swapped(self, command: Callable[[S], tuple[S, T]]) -> tuple[T] | None:
        """The change made on the state as it is remembered, without a wait; None: nothing was changed."""
        before = self.seen
        assert before is not None
        try:
            state, answer = command(before)
            if state is before:
                return None
            mine = new_name(self._random)
            token = follow(self._token, mine)
            sent_at_s = self._clock.elapsed_s()
            if not self._store.swap(self._cas(state, token)):
                return None
        except Unknown:
            self._known = False
            self._resolve("unknown")
            raise
        except Exception:  # the long way finds out whether it stands on the state as it is now
            return None
        self.mark += 1
        self._token, self.seen, self.seen_at_s = token, state, sent_at_s
        return (answer,)

    def _cas(self, state: S, token: str) -> Cas:
        expect = {TOKEN: self._token, **dict.fromkeys(self._absent)} if self._absent else {TOKEN: self._token}
        values = self._encode(state)
        values[TOKEN] = token
        change = Change(self._key, expect, values)
        return Cas(self._table, self._partition, (change,), ttl_s=self._ttl_s, level=self._level, sync=False)

    async def _rounds(self) -> None:
        group: list[_Waiting[S]] = []
        try:
            while self._waiting:
                if not self._store.alone:
                    await self._give_way()
                group = [one for one in self._waiting[:MAX_GROUP] if not one.answer.done()]
                del self._waiting[:MAX_GROUP]
                began_s = self._clock.elapsed_s()
                try:
                    await self._round(group)
                except Exception as error:  # whatever it was, the callers hear of it
                    _fail(group, error)
                self._ended_s = self._clock.elapsed_s()
                self._round_s = self._ended_s - began_s
        finally:  # there is somebody left only when this task was ended from outside: nobody waits for ever
            self._busy, self._task = False, None
            _fail(group, Unknown("this node is stopping: it may have been done"))
            _fail(self._waiting, Unavailable("this node is stopping: nothing was changed"))
            self._waiting.clear()

    async def _give_way(self) -> None:
        """Who changes a row round after round is always in front: others learn of each change too late to win the next.
        So after a few rounds without a break there is one, about as long as a round; what waits goes together after it.
        """
        since_s = self._clock.elapsed_s() - self._ended_s
        self._streak = self._streak + 1 if since_s < self._round_s else 0
        if self._streak >= STREAK:
            self._streak = 0
            await self._clock.sleep(self._random.uniform(1.0, 2.5) * min(self._round_s, 0.05))

    async def _round(self, group: list[_Waiting[S]]) -> None:
        fresh = False  # was the state learned after all of the group had come in
        began_s = self._clock.elapsed_s()
        away = 0
        for attempt in range(MAX_ATTEMPTS):
            try:
                if not self._known:
                    await self.read()
                    fresh = self.seen_at_s >= began_s  # else what was learned meanwhile is older than that
                if not self._known:  # somebody else's knowledge overtook ours and was refused by the guard
                    continue
                before = self.seen
                assert before is not None
                state, answers = self._decide(before, group)
                if state is before and not fresh and any(one.fresh for one in group):
                    self._known = False
                    continue
                if state is before or await self._write(state):
                    _tell(group, answers)
                    return
                fresh = True
                self.retries += 1
            except Unavailable as error:
                away += 1
                if away == UNAVAILABLE_ATTEMPTS or isinstance(error, Full):
                    raise
            if pause_s := backoff_s(attempt + 1, self._random):
                await self._clock.sleep(pause_s)
        raise Overloaded("too many nodes change the same record at once: nothing was changed, try again")

    def _decide(self, state: S, group: list[_Waiting[S]]) -> tuple[S, list[Any]]:
        answers: list[Any] = []
        for one in group:
            try:
                state, answer = one.command(state)
            except Exception as error:
                answer = error
            answers.append(answer)
        return state, answers

    async def _write(self, state: S) -> bool:
        """One compare-and-set until its outcome is known."""
        before, mine = self._token, new_name(self._random)
        token = follow(before, mine)
        cas = self._cas(state, token)
        sent_at_s = self._clock.elapsed_s()
        try:
            outcome = await settle_named(self._store, self._clock, cas, self._key, before, mine)
        except Unknown:
            self._known = False
            self._resolve("unknown")
            raise
        if outcome.lost:
            self._resolve("done" if outcome.applied else "not_done")
        if not outcome.applied:
            self.learn(outcome.rows.get(self._key, {}))
            return False
        self.mark += 1
        shown = names_of(text_of(outcome.rows.get(self._key, {}), TOKEN))
        if shown and shown[0] != mine:  # done, but others have changed it since: what was written is not the state now
            self._known = False
        else:
            self._token, self.seen, self._known, self.seen_at_s = token, state, True, sent_at_s
        return True

    def _resolve(self, how: str) -> None:
        self.resolved[how] = self.resolved.get(how, 0) + 1


def _tell(group: list[_Waiting[S]], answers: list[Any]) -> None:
    for one, answer in zip(group, answers, strict=True):
        if one.answer.done():
            continue
        if isinstance(answer, Exception):
            one.answer.set_exception(answer)
        else:
            one.answer.set_result(answer)


def _fail(group: list[_Waiting[S]], error: Exception) -> None:
    """Each caller raises an error of its own: a shared one would gather everybody's traceback."""
    for one in group:
        if not one.answer.done():
            one.answer.set_exception(error.again() if isinstance(error, CapelliniError) else error)
