"""Opening: a new extent of this node; of a chain, at its end.

extents side by side     list it (`extents`), named so that its replicas are up (`placing`)
a chain                  seal its last extent and list the next, in one round; only its writer does, or whoever
                         finds that the writer is over
"""

from __future__ import annotations

from typing import Final

from capellini.model.errors import Unavailable
from capellini.queues.lease import Watcher
from capellini.queues.log.extents import Extent, Extents
from capellini.queues.log.place import LogPlace
from capellini.queues.log.placing import placed
from capellini.queues.log.rows import last_block
from capellini.queues.log.sealing import find_end

CHAIN_TRIES: Final = 4  # each is lost only to a node that has moved the chain on


class Opening:
    def __init__(self, place: LogPlace, extents: Extents, watcher: Watcher) -> None:
        self._place, self._extents, self._watcher = place, extents, watcher

    async def _made(self) -> Extent:
        return await placed(self._place, self._extents.fresh())

    async def open(self) -> Extent:
        """Of extents side by side. Raises Unavailable, or Unknown."""
        self._place.lease.require()
        extent = await self._extents.open(self._made)
        return self._mine(extent)

    async def after(self, before: Extent, end: int, size: int | None) -> Extent | None:
        """Of a chain: seal our own end of it and open the next. None: another node has moved it on."""
        self._place.lease.require()
        opened = await self._extents.open_next(before, end, size, self._made)
        return None if opened is None else self._mine(opened)

    async def chain(self, ends: dict[str, int], had: set[str]) -> Extent | str:
        """The open end of the chain if this node may write it, else the node that does. `ends`: of our own that could
        not be sealed. `had`: names that had a writer here; one that had none is empty, and can be written."""
        place, extents = self._place, self._extents
        for _ in range(CHAIN_TRIES):
            place.lease.require()
            await extents.look()
            last = extents.last
            if last is None:
                return self._mine(await extents.open(self._made))
            if last.sealed:
                raise Unavailable(f"queue {place.name} takes no messages: its chain has ended")
            if (last.node, last.incarnation) == (place.node, place.lease.incarnation):
                if last.name not in had:
                    if await last_block(place, last.name) is None:
                        return last
                    end = await find_end(place, last)
                    if last.name in had:
                        place.guards["chain's end got its writer meanwhile"] += 1
                        return last
                    had.add(last.name)  # written by what was here before, and is over: nobody begins it any more
                    ends[last.name] = end
                elif last.name not in ends:
                    raise Unavailable("the chain's last extent is being sealed: try again", retry_after_s=0.05)
                else:
                    end = ends[last.name]
            elif await self._watcher.is_over(last.node, last.incarnation):
                end = await find_end(place, last)
                place.guards["chain taken over"] += 1
            else:
                return last.node
            opened = await extents.open_next(last, end, None, self._made)
            if opened is not None:
                return self._mine(opened)
        raise Unavailable("the chain of extents moves on: try again")

    def _mine(self, extent: Extent) -> Extent:
        """The lease may have ended, and begun anew, while it was listed."""
        if extent.incarnation != self._place.lease.incarnation:
            raise Unavailable("the lease changed while an extent was opened: try again")
        self._place.lease.require()
        return extent
