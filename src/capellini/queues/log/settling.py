"""Settling: acks, nacks and extends go to the owner that delivered, here or at another node.

    item ─▶ is it a delivery of this queue? ─▶ of the group as it is now? ─▶ the extent's owner: here
                                                                          ─▶ at the node that is believed to read it
                                                                          ─▶ where the store says now

What fits none of these is stale, or foreign: then nothing is changed.
"""

from __future__ import annotations

import asyncio
import hmac
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from capellini.model.errors import CapelliniError, Invalid, NotFound, Unavailable
from capellini.model.log import DEFAULT_GROUP, Settle, Settled
from capellini.model.streams import VERBS
from capellini.queues.log.extents import Extents
from capellini.queues.log.groups import Groups, version_of
from capellini.queues.log.parcels import code_of
from capellini.queues.log.peers import Call
from capellini.queues.log.place import LogPlace
from capellini.queues.log.readers import Readers

FOREIGN: Final = Settled([], Invalid.name, "this is no delivery of this queue, or it was altered")


class Settling:
    """Of one queue in one node. `call` reaches other nodes."""

    def __init__(self, place: LogPlace, extents: Extents, groups: Groups, readers: Readers, call: Call) -> None:
        self._place, self._extents, self._groups, self._readers = place, extents, groups, readers
        self._call = call

    async def settle(self, group: str, items: Sequence[Settle]) -> list[Settled]:
        """One answer per item: what of it was settled; the rest was stale."""
        results: list[Settled] = [Settled([])] * len(items)
        proved = [self._proved(item) for item in items]
        reader = await self._reader(group, [item for item, good in zip(items, proved, strict=True) if good])
        owners: dict[str, list[int]] = {}
        for index, item in enumerate(items):
            if not proved[index]:
                results[index] = FOREIGN
            elif item.reader == reader:
                owners.setdefault(item.extent, []).append(index)

        async def one(extent: str, indexes: list[int]) -> None:
            try:
                answers = await self._settled(group, reader, extent, [items[index] for index in indexes])
            except CapelliniError as error:
                answers = [Settled([], error.name, error.says)] * len(indexes)
            for index, answer in zip(indexes, answers, strict=True):
                results[index] = answer

        await asyncio.gather(*[one(extent, indexes) for extent, indexes in owners.items()])
        return results

    async def settle_here(self, group: str, items: list[Settle]) -> list[Settled]:
        """For another node: by an owner of this one. Raises Unavailable."""
        reader = await self._reader(group, items)
        owner = self._readers.owners.get((items[0].extent, reader)) if items else None
        if owner is None or not owner.acts():
            raise Unavailable("this node does not read that extent for that group now: try again")
        return await owner.settle(items)

    async def _reader(self, group: str, items: Sequence[Settle]) -> str:
        """The group's as it is now: a delivery may be of a later version than this node has heard of."""
        version = max([version_of(item.reader, group) for item in items], default=0)
        try:
            return (await self._groups.live(group, version)).reader
        except NotFound:
            if group != DEFAULT_GROUP:
                raise
            return ""  # it was never used: nothing is in its hands

    def _proved(self, item: Settle) -> bool:
        if item.verb not in VERBS or (item.value_ms is not None and item.value_ms < 0):
            return False
        of = (item.extent, item.reader, item.epoch, item.delivery, item.first, item.count)
        try:
            code = code_of(self._place.secret, *of)
        except (struct.error, UnicodeEncodeError):
            return False  # no delivery has such numbers, or such names
        return hmac.compare_digest(code, item.code)

    async def _settled(self, group: str, reader: str, extent: str, items: list[Settle]) -> list[Settled]:
        owner = self._readers.owners.get((extent, reader))
        if owner is not None and owner.acts():
            return await owner.settle(items)
        if (extent, reader) in self._readers.finished or await self._gone(extent):
            return [Settled([])] * len(items)
        node = self._readers.believed(extent, reader)
        for again in (False, True):
            if node and node != self._place.node:
                try:
                    data = await self._call(node, "settle", [group, items])
                    return msgspec.msgpack.decode(data, type=list[Settled])
                except Unavailable:
                    self._place.guards["extent was not read there"] += 1
                    if again:
                        raise
            if not again:
                node = await self._readers.where(extent, reader)
        raise Unavailable(f"nobody reads extent {extent} now: try again")

    async def _gone(self, extent: str) -> bool:
        """Surely: one that was opened elsewhere is not on a list that was read before; nor, for a while, on what this
        home knows of the list of another."""
        if self._extents.get(extent) is None:
            await self._extents.look()
        return self._extents.get(extent) is None and (len(self._place.homes) == 1 or self._extents.passed(extent))
