"""The other nodes, over HTTP: a channel to each that was asked lately."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from capellini.client.answers import error_of
from capellini.client.reaching import Place, Unreachable
from capellini.client.transport import Transport
from capellini.model.address import NODE_PORT
from capellini.node.peering import Peering
from capellini.queues.timed.peers import Peers

TIMEOUT_S: Final = 5.0  # no operation waits for messages; a node that takes longer is as good as away
MAX_NODES: Final = 256  # connections kept; beyond, all are opened anew


class HttpPeers(Peers):
    def __init__(self, peering: Peering) -> None:
        self._peering = peering
        self._transports: dict[str, Transport] = {}

    async def call(self, node: str, queue: str, operation: str, payload: bytes) -> bytes:
        address = await self._peering.address(node)
        envelope = await self._peering.seal(queue, operation, payload)
        try:
            return await self._ask(address, queue, operation, envelope)
        except Unreachable:
            await self._forget(address)
            now = await self._peering.address(node, again=True)
            if now == address:
                raise
            return await self._ask(now, queue, operation, envelope)

    async def _ask(self, address: str, queue: str, operation: str, envelope: bytes) -> bytes:
        transport = self._transports.get(address)
        if transport is None:
            if len(self._transports) >= MAX_NODES:
                await self.close()
            transport = self._transports[address] = Transport(
                place_of(address), request_timeout_s=TIMEOUT_S, channel=True
            )
        path = f"/v1/peers/{queue}/{quote(operation, safe='')}"
        response = await transport.request("POST", path, envelope)
        if response.status >= 300:
            raise error_of(response, address)
        return response.body

    async def _forget(self, address: str) -> None:
        transport = self._transports.pop(address, None)
        if transport is not None:
            await transport.close()

    async def close(self) -> None:
        for address in list(self._transports):
            await self._forget(address)


def place_of(address: str) -> Place:
    """HOST:PORT as a node announces it."""
    host, _, port = address.rpartition(":")
    return Place(host.strip("[]"), int(port) if port.isdigit() else NODE_PORT)
