"""A timed queue in one node: what a caller may do with one generation of it.

Any node takes any request. Puts go straight to the store (`putting`); what concerns messages that are due (get, ack,
nack, extend) and what must be final (cancel, move) goes to the holder of the message's shard: in this process, or at
another node through `Peers`.

    put ─▶ store ◀─ holder of shard 0 (here)      ◀─┐
                 ◀─ holder of shard 1 (node b) ◀──── get, ack, nack, extend, cancel, move, peek
                 ◀─ holder of shard 2 (here)      ◀─┘
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import msgspec

from capellini.model.errors import CapelliniError, Invalid, NotFound, StoreError, Unavailable
from capellini.model.message import Delivery, Entry, whole_ms
from capellini.model.service import Done, ExtendItem, NackItem, Problem, Put
from capellini.model.timed import MAX_DUE_S, DueMessage, MoveItem, Scheduled, ShardView, TimedCounts
from capellini.queues.timed.halting import write_halted
from capellini.queues.timed.horizon import ENDING_EPOCH, read_shard
from capellini.queues.timed.keyed import put_keyed
from capellini.queues.timed.peers import NoPeers, Payload, Peers
from capellini.queues.timed.place import TimedPlace
from capellini.queues.timed.positions import id_text, ms_of_ticks, parse_id, part_of, shard_in, ticks_of
from capellini.queues.timed.proofs import proof_of
from capellini.queues.timed.putting import Putting, all_of
from capellini.queues.timed.rows import order_key, read_note, read_row
from capellini.queues.timed.serving import FAR_MS, Answer, Counted, Listed, refusal
from capellini.queues.timed.taking import Got, Holders, Taking
from capellini.queues.work.getting import CURRENT, Getting
from capellini.queues.work.letters import MOVED_TTL_S

WAKE_TRIES: Final = 8  # then it comes by itself, a little later
WAKE_AGAIN_S: Final = 0.4
T = TypeVar("T")
STALE: Final = Problem("stale", "the receipt is of an earlier delivery, or the message is gone")


class TimedQueue:
    """Made by `TimedKeeper.queue(record)`; do not keep it across calls. Calls raise Gone (of `work.place`) when this
    generation is over: look the queue up again, as for work queues."""

    def __init__(
        self,
        place: TimedPlace,
        holders: Holders,
        current: CURRENT,
        look_again: Callable[[int], Awaitable[str | None]],
    ) -> None:
        self.place = place
        self.serving, self._owners, self._peers = holders.serving, holders.owners, holders.peers
        self._look_again = look_again  # who works this shard, as the store says now; None: it was never put into
        self.putting = Putting(place, self.wake)
        # the same waiting, sharing and giving back as for work queues: it asks for `claim` and `next_due_ms` only
        self.taking = Taking(place, holders, self._release, self._spawn)
        self.getting = Getting(cast(Any, place), cast(Any, self.taking), cast(Any, self._release), current)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waking: dict[int, dict[str, int]] = {}  # by shard, what its holder is to be told: the last of each part

    # Putting

    async def put(self, messages: Sequence[Scheduled]) -> list[Put | Problem]:
        """One answer per message, in order. Due in the past: at once. Unknown as a Problem: it may have been put."""
        results: dict[int, Put | Problem] = {}
        plain: list[int] = []
        keyed: dict[str, list[int]] = {}
        for index, message in enumerate(messages):
            if (problem := self._too_far(message.due_ms)) is not None:
                results[index] = problem
            elif message.key is None:
                plain.append(index)
            else:
                keyed.setdefault(message.key, []).append(index)

        async def together() -> None:
            if plain:
                answers = await self.putting.put([messages[index] for index in plain])
                results.update(zip(plain, answers, strict=True))

        async def once(key: str, indexes: list[int]) -> None:
            for index in indexes:  # in order: the first is the message
                results[index] = await self._put_once(f"key:{key}", messages[index])

        await all_of([together(), *[once(key, indexes) for key, indexes in keyed.items()]])
        return [results[index] for index in range(len(messages))]

    def _too_far(self, due_ms: int) -> Problem | None:
        if due_ms - self.place.now_ms() <= MAX_DUE_S * 1000:
            return None
        return Problem(Invalid.name, f"due is more than {MAX_DUE_S / 86_400:g} days ahead: that must be a mistake")

    async def _put_once(self, key: str, message: Scheduled) -> Put | Problem:
        keyed = msgspec.structs.replace(message, key=key)
        try:
            return await put_keyed(self.place, self.putting, key, keyed, self.place.options.window_s)
        except StoreError as error:
            return Problem.of(error)

    async def put_moved(self, key: str, entry: Entry) -> None:
        """A move into this queue, due now, once per key: what `PutMoved` of `work.letters` does for work queues."""
        message = Scheduled(entry, self.place.now_ms(), key)
        answer = await put_keyed(self.place, self.putting, key, message, MOVED_TTL_S)
        if isinstance(answer, Problem):
            raise answer.raised()

    def wake(self, shard: int, ticks: int) -> None:
        """The shard's holder should read up to there soon, or drop what lies in a part that it has read. Told once at a
        time; more is told after it."""
        holder = self.serving.holder(shard)
        if holder is not None:
            holder.wake(ticks)
            return
        part = part_of(ticks, self.place.options.granularity)
        if (waiting := self._waking.get(shard)) is None:
            waiting = self._waking[shard] = {}
            self._spawn(self._wake_other(shard, waiting))
        waiting[part] = max(ticks, waiting.get(part, 0))

    async def _wake_other(self, shard: int, waiting: dict[str, int]) -> None:
        tries = 0
        while waiting and tries < WAKE_TRIES:
            telling = dict(waiting)
            try:
                await self._ask(shard, "wake", sorted(telling.values()))
                tries = 0
                for part in [part for part, ticks in telling.items() if waiting[part] == ticks]:
                    del waiting[part]
            except CapelliniError:
                self.place.guards["holder not woken yet"] += 1  # between two holders, perhaps
                tries += 1
                await self.place.clock.sleep(WAKE_AGAIN_S)
        del self._waking[shard]

    # Getting

    async def get(self, count: int, wait_s: float, visibility_s: float | None) -> list[Delivery]:
        """Messages that are due: from the shards here, and from other nodes'. Waits up to `wait_s`."""
        seconds = self.place.options.visibility_s if visibility_s is None else visibility_s
        got = cast(list[Got], await self.getting.get(count, wait_s, whole_ms(seconds)))
        return [one.delivery for one in got]

    def _release(self, got: list[Got]) -> None:
        """Messages that were handed to nobody can be had at once."""
        self._spawn(self.nack([NackItem(one.delivery.receipt, 0.0) for one in got]))

    # Holding

    async def ack(self, receipts: Sequence[str]) -> list[Done | Problem]:
        return await self._held("ack", receipts, [None] * len(receipts))

    async def nack(self, items: Sequence[NackItem]) -> list[Done | Problem]:
        delays = [None if item.delay_s is None else whole_ms(item.delay_s) for item in items]
        return await self._held("nack", [item.receipt for item in items], delays)

    async def extend(self, items: Sequence[ExtendItem]) -> list[Done | Problem]:
        """Told on this node's clock, from the time of asking."""
        sent_ms = self.place.now_ms()
        lives = [whole_ms(item.visibility_s) for item in items]
        results = await self._held("extend", [item.receipt for item in items], lives)
        return [
            Done((sent_ms + life_ms) / 1000) if isinstance(result, Done) else result
            for result, life_ms in zip(results, lives, strict=True)
        ]

    async def _held(
        self, operation: str, receipts: Sequence[str], values: Sequence[int | None]
    ) -> list[Done | Problem]:
        results: list[Done | Problem] = [STALE] * len(receipts)
        shards: dict[int, list[tuple[int, Any]]] = {}
        for index, text in enumerate(receipts):
            try:
                proof = proof_of(self.place.secret, self.place.generation, text)
            except Invalid as error:
                results[index] = Problem.of(error)
                continue
            if proof is not None:
                value = values[index]
                if operation == "nack" and value is None:
                    value = self._delay_ms(proof.delivery)
                item = (proof.offset, proof.epoch, proof.delivery, value)
                shards.setdefault(proof.shard, []).append((index, item))
        await self._all_shards(operation, shards, results)
        return results

    def _delay_ms(self, delivery: int) -> int:
        options = self.place.options
        delay_s = min(options.nack_delay_s * 2.0 ** min(delivery - 1, 40), options.nack_delay_most_s)
        return whole_ms(delay_s)

    async def _all_shards(
        self, operation: str, shards: dict[int, list[tuple[int, Any]]], results: list[Done | Problem]
    ) -> None:
        async def one(shard: int, items: list[tuple[int, Any]]) -> None:
            try:
                answers = await self._ask(shard, operation, [item for _, item in items])
            except CapelliniError as error:
                answers = [refusal(error)] * len(items)
            for (index, _), answer in zip(items, answers, strict=True):
                at = None if answer.at_ms is None else answer.at_ms / 1000
                results[index] = Problem(answer.error, answer.says) if answer.error else Done(at)

        await all_of([one(shard, items) for shard, items in shards.items()])

    # Cancel and move

    async def cancel(self, ids: Sequence[str]) -> list[Done | Problem]:
        """Final once Done: it is never delivered (again). Problems: invalid (no id), not_found (unknown, acked,
        or cancelled before), conflict (somebody has it now), unavailable (nobody works its shard now), unknown."""
        return await self._by_id("cancel", [(id, id) for id in ids])

    async def move(self, items: Sequence[MoveItem]) -> list[Done | Problem]:
        """Another due, under the same id. Done's `visible_at` is the new due. Problems as for cancel."""
        far = {index: problem for index, item in enumerate(items) if (problem := self._too_far(item.due_ms))}
        near = [(item.id, (item.id, item.due_ms)) for index, item in enumerate(items) if index not in far]
        moved = iter(await self._by_id("move", near))
        return [far[index] if index in far else next(moved) for index in range(len(items))]

    async def _by_id(self, operation: str, items: Sequence[tuple[str, Any]]) -> list[Done | Problem]:
        results: list[Done | Problem] = [Problem(NotFound.name, "there is no such message")] * len(items)
        shards: dict[int, list[tuple[int, Any]]] = {}
        for index, (id, item) in enumerate(items):
            try:
                shards.setdefault(shard_in(parse_id(id)), []).append((index, item))
            except Invalid as error:
                results[index] = Problem.of(error)
        await self._all_shards(operation, shards, results)
        return results

    # Looking

    async def peek(self, count: int, after: str = "") -> list[DueMessage]:
        """What is next, by due. `after`: the id of the last one seen."""
        from_ms = await self._due_of(parse_id(after)) if after else 0
        return await self.due_between(from_ms, FAR_MS, count, after)

    async def _due_of(self, id: UUID) -> int:
        """Its id says only where it was put first: it may have been due before, or have been moved since."""
        for position in (*(await read_note(self.place, id) or ()), id):
            if (row := await read_row(self.place, position)) is not None:
                return row.due_ms
        return ms_of_ticks(ticks_of(id))

    async def due_between(self, from_ms: int, to_ms: int, count: int, after: str = "") -> list[DueMessage]:
        """What is due in that time and not finished, by due, up to `count`. For the next page give the last one's due
        as `from_ms` and its id as `after`. Raises Invalid, or Unavailable while a shard has no holder."""
        from_ms, to_ms, wanted = max(0, from_ms), min(to_ms, FAR_MS), count + bool(after)
        last = parse_id(after) if after else None
        seen = id_text(await self._listed_at(last, from_ms)) if last is not None else ""
        pages = await asyncio.gather(
            *[self._listed(shard, from_ms, to_ms, wanted, seen) for shard in await self._known_shards()]
        )
        if any(len(page.messages) < wanted and not page.all for page in pages):
            raise Unavailable("too many cancelled or moved messages lie in that time: begin the list later")
        found = [one for page in pages for one in zip(page.messages, page.places, strict=True)]
        found.sort(key=lambda one: (one[0].due_at, order_key(one[1])))
        return [message for message, _ in found if last is None or message.id != id_text(last)][:count]

    async def _listed_at(self, id: UUID, due_ms: int) -> UUID:
        """Where the message lay that was the last one of a list."""
        for position in await read_note(self.place, id) or ():
            if (row := await read_row(self.place, position)) is not None and row.due_ms == due_ms:
                return row.name[0]
        return id

    async def _listed(self, shard: int, from_ms: int, to_ms: int, count: int, seen: str) -> Listed:
        if self.serving.holder(shard) is not None:
            return await self.serving.listed(shard, from_ms, to_ms, count, seen)
        data = await self._asked(shard, "list", [from_ms, to_ms, count, seen])
        return msgspec.msgpack.decode(data, type=Listed)

    async def statistics(self) -> TimedCounts:
        """Exact at each holder for what it has read; what is scheduled further ahead is counted up to a bound."""
        ready = in_flight = waiting = scheduled = 0
        exact, oldest = True, None
        for counted in await asyncio.gather(*[self._counted(shard) for shard in await self._known_shards()]):
            if counted is None:
                exact = False
                continue
            view = counted.view
            ready, in_flight, waiting = ready + view.ready, in_flight + view.in_flight, waiting + view.waiting
            scheduled += counted.scheduled
            exact = exact and counted.all
            if counted.oldest_due_ms is not None:
                oldest = counted.oldest_due_ms if oldest is None else min(oldest, counted.oldest_due_ms)
        return TimedCounts(ready, in_flight, waiting, scheduled, oldest, exact)

    async def _counted(self, shard: int) -> Counted | None:
        try:
            if self.serving.holder(shard) is not None:
                return await self.serving.counted(shard)
            return msgspec.msgpack.decode(await self._asked(shard, "count", []), type=Counted)
        except StoreError:
            return None

    async def shards(self) -> list[ShardView]:
        """All at once: a holder that does not answer holds up the view once, not once for each of its shards."""
        return list(await asyncio.gather(*[self._view_or_not(shard) for shard in await self._known_shards()]))

    async def _known_shards(self) -> list[int]:
        return sorted({*range(self.place.options.shards), *self._owners.nodes})

    async def view(self, shard: int) -> ShardView:
        if self.serving.holder(shard) is not None:
            return await self.serving.view(shard)
        return msgspec.msgpack.decode(await self._asked(shard, "view", []), type=ShardView)

    async def _view_or_not(self, shard: int) -> ShardView:
        try:
            return await self.view(shard)
        except StoreError:
            node = self._owners.nodes.get(shard, "")
        away = node not in ("", self._owners.me)  # here: it is just being taken
        rows = [row for row in await read_shard(self.place, shard) if row.epoch < ENDING_EPOCH]
        return ShardView(
            queue=self.place.name,
            shard=shard,
            state="unreachable" if away else "nobody",
            holder=node,
            epoch=rows[0].epoch if rows else 0,
            cursor_at=None,
            horizon_at=ms_of_ticks(rows[0].horizon) / 1000 if rows else None,
            lag_s=None,
            retired=shard >= self.place.options.shards,
            takeovers=rows[0].epoch if rows else 0,
            suspicious="its holder does not answer" if away else "",
        )

    async def stop_shard(self, shard: int) -> ShardView:
        """By an operator: its holder hands out nothing until it is started. Survives a change of holder."""
        return await self._halt(shard, True)

    async def start_shard(self, shard: int) -> ShardView:
        return await self._halt(shard, False)

    async def _halt(self, shard: int, stopped: bool) -> ShardView:
        if shard not in await self._known_shards():
            raise Invalid(f"{self.place.name} has no shard {shard}")
        await write_halted(self.place, shard, stopped)
        try:
            await self._ask(shard, "halt", [None])
        except Unavailable:
            self.place.guards["halt told to nobody"] += 1  # the next holder reads it
        return await self._view_or_not(shard)

    # Asking the holder of a shard

    async def _ask(self, shard: int, operation: str, items: list[Any]) -> list[Answer]:
        if self.serving.holder(shard, operation) is not None:
            return await self.serving.do(shard, operation, items)
        return msgspec.msgpack.decode(await self._asked(shard, operation, items), type=list[Answer])

    async def _asked(self, shard: int, operation: str, items: list[Any]) -> bytes:
        """Another node's answer; if it does not hold the shard any more, that of the one that does now."""
        payload = Payload(self.place.generation, shard, items)
        node = self._owners.nodes.get(shard, "")
        if node and node != self._owners.me:
            try:
                return await self._call(node, operation, payload)
            except Unavailable:
                self.place.guards["shard was not held there"] += 1
        now = await self._look_again(shard)
        if now is None and shard >= self.place.options.shards:
            raise NotFound(f"there is no such message: {self.place.name} never had a shard {shard}")
        if not now or now in (node, self._owners.me):
            raise Unavailable(f"nobody works shard {shard} of {self.place.name} now: try again")
        return await self._call(now, operation, payload)

    async def _call(self, node: str, operation: str, payload: Payload) -> bytes:
        return await self._peers.call(node, self.place.name, operation, msgspec.msgpack.encode(payload))

    async def serve(self, operation: str, payload: Payload) -> bytes:
        """What another node asks: of the shards held here only."""
        if operation == "take":
            count, visibility_ms = payload.items
            answer: Any = self.serving.take(count, visibility_ms, 0)
        elif operation == "view":
            answer = await self.serving.view(payload.shard)
        elif operation == "count":
            answer = await self.serving.counted(payload.shard)
        elif operation == "list":
            answer = await self.serving.listed(payload.shard, *payload.items)
        else:
            answer = await self.serving.do(payload.shard, operation, payload.items)
        return msgspec.msgpack.encode(answer)

    # The end

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except CapelliniError as error:
            self.place.guards["background work failed"] += 1
            self.place.trouble.say("work in the background failed", error)

    def stop_waiting(self) -> None:
        """Long polls end now, with nothing: the node is going away."""
        self.getting.stop_waiting()

    async def close(self) -> None:
        """Long polls end; what was begun is finished."""
        self.getting.stop_waiting()
        while self._tasks:
            await asyncio.gather(*list(self._tasks), return_exceptions=True)


__all__ = ["NoPeers", "Peers", "TimedQueue"]
