"""Node to node: where the others are, and how a request proves that it comes from one of them.

    envelope = MessagePack [sent_ms, code, payload]      code: keyed hash of (queue, operation, sent_ms, payload)

The key is a secret that lies in the store, made by the first node by compare-and-set: who can read it can do anything
anyway. So nobody who merely reaches a node's port can ask what only nodes may. An envelope is good for a while only;
one that is sent again meanwhile does nothing new, since receipts and ids work once. Bodies are not hidden from the
network: that is the network's business, as for all requests.

Where a node is stands in its lease's row.
"""

from __future__ import annotations

import hmac
import struct
from hashlib import blake2b
from typing import Final

import msgspec

from capellini.model.clock import Chance, Clock
from capellini.model.errors import Invalid, Unavailable
from capellini.queues.cell import Cell
from capellini.queues.lease import Watcher
from capellini.queues.trail import text_of
from capellini.store.interface import Store, Value
from capellini.store.schema import SHARED

SECRET_BYTES: Final = 32
CODE_BYTES: Final = 16
FRESH_MS: Final = 60_000  # clocks of nodes are a second apart at most; the rest is for requests that waited
REALM: Final = "all"


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    sent_ms: int
    code: bytes
    payload: bytes


_ENVELOPE: Final = msgspec.msgpack.Decoder(Envelope)


def code_of(secret: bytes, queue: str, operation: str, sent_ms: int, payload: bytes) -> bytes:
    parts = (queue.encode(), operation.encode(), struct.pack(">q", sent_ms), payload)
    digest = blake2b(key=secret, digest_size=CODE_BYTES)
    for part in parts:
        digest.update(struct.pack(">I", len(part)) + part)
    return digest.digest()


class Peering:
    def __init__(self, store: Store, clock: Clock, random: Chance, watcher: Watcher) -> None:
        self._clock, self._random, self._watcher = clock, random, watcher
        self._cell: Cell[str] = Cell(
            store, clock, random, SHARED, (REALM,), ("secret",), ("value",), _in, lambda secret: {"value": secret}
        )
        self._secret: bytes | None = None

    async def address(self, node: str, again: bool = False) -> str:
        """Where that node is reached. `again`: it was not there. Raises Unavailable when nobody knows."""
        found = "" if again else self._watcher.address(node)
        if not found:
            await self._watcher.look_at(node)
            found = self._watcher.address(node)
        if not found:
            raise Unavailable(f"it is not known where node {node} is: it does not say, or does not run")
        return found

    async def seal(self, queue: str, operation: str, payload: bytes) -> bytes:
        sent_ms = self._now_ms()
        code = code_of(await self._key(), queue, operation, sent_ms, payload)
        return msgspec.msgpack.encode(Envelope(sent_ms, code, payload))

    async def unseal(self, queue: str, operation: str, data: bytes) -> bytes:
        """The payload, if a node sent it. Raises Invalid."""
        try:
            found = _ENVELOPE.decode(data)
        except msgspec.MsgspecError:
            raise Invalid("this is for other nodes only") from None
        code = code_of(await self._key(), queue, operation, found.sent_ms, found.payload)
        if not hmac.compare_digest(code, found.code) or abs(self._now_ms() - found.sent_ms) > FRESH_MS:
            raise Invalid("this is for other nodes only: it does not prove to be one, or its clock is far off")
        return found.payload

    def _now_ms(self) -> int:
        return int(self._clock.now_s() * 1000)

    async def _key(self) -> bytes:
        if self._secret is None:
            made = self._random.randbytes(SECRET_BYTES).hex()
            found = await self._cell.change(lambda now: (now or made, now or made))
            self._secret = bytes.fromhex(found)
        return self._secret


def _in(values: dict[str, Value]) -> str:
    return text_of(values, "value") or ""
