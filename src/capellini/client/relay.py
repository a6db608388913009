"""A service in front of another: every call goes through one method, `call`.

What stands in front (patience, a folder whose owner may change) says only what it does around a call, not the calls
themselves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from capellini.model.message import Delivery, NewMessage, Peeked
from capellini.model.service import (
    BucketView,
    Done,
    ExtendItem,
    MessageView,
    NackItem,
    Parcel,
    ParcelAck,
    PointersView,
    Problem,
    Put,
    QueueInfo,
    Service,
    Statistics,
)

R = TypeVar("R")


class Relay(Service):
    @abstractmethod
    async def call(self, operation: str, do: Callable[[Service], Awaitable[R]]) -> R:
        """Does `do` on the service behind. `operation` is the name of the Service method."""

    async def create(self, name: str, kind: str = "work", options: Mapping[str, Any] | None = None) -> QueueInfo:
        return await self.call("create", lambda behind: behind.create(name, kind, options))

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1_000) -> list[QueueInfo]:
        return await self.call("queues", lambda behind: behind.queues(prefix, after, limit))

    async def show(self, name: str) -> QueueInfo:
        return await self.call("show", lambda behind: behind.show(name))

    async def change(self, name: str, options: Mapping[str, Any]) -> QueueInfo:
        return await self.call("change", lambda behind: behind.change(name, options))

    async def pause(self, name: str, puts: bool | None = None, gets: bool | None = None) -> QueueInfo:
        return await self.call("pause", lambda behind: behind.pause(name, puts, gets))

    async def purge(self, name: str) -> QueueInfo:
        return await self.call("purge", lambda behind: behind.purge(name))

    async def delete(self, name: str) -> None:
        await self.call("delete", lambda behind: behind.delete(name))

    async def statistics(self, name: str) -> Statistics:
        return await self.call("statistics", lambda behind: behind.statistics(name))

    async def put(self, name: str, messages: Sequence[NewMessage]) -> list[Put | Problem]:
        return await self.call("put", lambda behind: behind.put(name, messages))

    async def get(
        self, name: str, count: int = 1, wait_s: float = 0.0, visibility_s: float | None = None
    ) -> list[Delivery]:
        return await self.call("get", lambda behind: behind.get(name, count, wait_s, visibility_s))

    async def ack(self, name: str, receipts: Sequence[str]) -> list[Done | Problem]:
        return await self.call("ack", lambda behind: behind.ack(name, receipts))

    async def nack(self, name: str, items: Sequence[NackItem]) -> list[Done | Problem]:
        return await self.call("nack", lambda behind: behind.nack(name, items))

    async def extend(self, name: str, items: Sequence[ExtendItem]) -> list[Done | Problem]:
        return await self.call("extend", lambda behind: behind.extend(name, items))

    async def peek(self, name: str, count: int = 10, after: str = "") -> list[Peeked]:
        return await self.call("peek", lambda behind: behind.peek(name, count, after))

    async def dead(self, name: str, count: int = 100, after: str = "") -> list[Peeked]:
        return await self.call("dead", lambda behind: behind.dead(name, count, after))

    async def redrive(self, name: str, count: int | None = None, ids: Sequence[str] | None = None) -> int:
        return await self.call("redrive", lambda behind: behind.redrive(name, count, ids))

    async def buckets(self, name: str, limit: int = 100) -> list[BucketView]:
        return await self.call("buckets", lambda behind: behind.buckets(name, limit))

    async def pointers(self, name: str) -> PointersView:
        return await self.call("pointers", lambda behind: behind.pointers(name))

    async def move_repair(self, name: str, bucket: int) -> PointersView:
        return await self.call("move_repair", lambda behind: behind.move_repair(name, bucket))

    async def message(self, name: str, id: str) -> MessageView:
        return await self.call("message", lambda behind: behind.message(name, id))

    async def put_block(self, name: str, entries: bytes) -> list[tuple[int, int]]:
        return await self.call("put_block", lambda behind: behind.put_block(name, entries))

    async def take(self, name: str, count: int, wait_s: float = 0.0, visibility_s: float | None = None) -> list[Parcel]:
        return await self.call("take", lambda behind: behind.take(name, count, wait_s, visibility_s))

    async def ack_parcels(self, name: str, acks: Sequence[ParcelAck]) -> list[list[tuple[int, int]]]:
        return await self.call("ack_parcels", lambda behind: behind.ack_parcels(name, acks))
