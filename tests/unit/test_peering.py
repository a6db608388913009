"""How nodes find and trust each other: envelopes that prove a node, addresses from leases, one secret per store."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.unit.counter_world import in_world

from capellini.client.peers import place_of
from capellini.model.errors import Invalid, Unavailable
from capellini.node.config import announced
from capellini.node.peering import FRESH_MS, Envelope, Peering
from capellini.node.settings import Settings
from capellini.queues.lease import Lease, Watcher
from capellini.store.simulation.world import World


def peering_of(world: World, name: str) -> Peering:
    client = world.client(name)
    return Peering(client.store, client.clock, client.random, Watcher(client.store, client.clock, client.random))


def test_nodes_of_one_store_trust_each_other_and_nobody_else() -> None:
    async def test(world: World) -> None:
        one, other = peering_of(world, "a"), peering_of(world, "b")
        sealed = await asyncio.gather(one.seal("q", "ack", b"payload"), other.seal("q", "ack", b"payload"))
        for envelope in sealed:
            assert await one.unseal("q", "ack", envelope) == await other.unseal("q", "ack", envelope) == b"payload"
        decoded = msgspec.msgpack.decode(sealed[0], type=Envelope)
        altered = msgspec.msgpack.encode(msgspec.structs.replace(decoded, payload=b"other"))
        older = msgspec.msgpack.encode(msgspec.structs.replace(decoded, sent_ms=decoded.sent_ms - 1))
        for queue, operation, envelope in (
            ("q", "ack", altered), ("q", "ack", older), ("q", "take", sealed[0]), ("r", "ack", sealed[0]),
            ("q", "ack", b""), ("q", "ack", b"\xc1"),
        ):  # fmt: skip
            with pytest.raises(Invalid, match="other nodes only"):
                await other.unseal(queue, operation, envelope)

    in_world(test)


def test_an_envelope_is_good_for_a_while_only() -> None:
    async def test(world: World) -> None:
        one = peering_of(world, "a")
        envelope = await one.seal("q", "ack", b"")
        await asyncio.sleep(FRESH_MS / 1000 - 1)
        assert await one.unseal("q", "ack", envelope) == b""
        await asyncio.sleep(2)
        with pytest.raises(Invalid):
            await one.unseal("q", "ack", envelope)

    in_world(test)


def test_a_node_is_where_its_lease_says_and_a_restarted_one_is_found_again() -> None:
    async def test(world: World) -> None:
        peering, holder = peering_of(world, "a"), world.client("b")
        with pytest.raises(Unavailable, match="not known"):
            await peering.address("b")
        lease = Lease(holder.store, holder.clock, holder.random, "b", "127.0.0.1:7001")
        await lease.start()
        assert await peering.address("b") == "127.0.0.1:7001"
        await lease.stop()
        lease.address = "127.0.0.1:7002"
        await lease.start()
        assert await peering.address("b") == "127.0.0.1:7001"  # as it was known
        assert await peering.address("b", again=True) == "127.0.0.1:7002"
        await lease.stop()

    in_world(test)


def test_what_is_announced() -> None:
    assert announced(Settings(listen="127.0.0.5:0"), 7000) == "127.0.0.5:7000"
    assert announced(Settings(listen="[::1]:0"), 7000) == "[::1]:7000"
    assert announced(Settings(listen="0.0.0.0:7411"), 7411).endswith(":7411")
    assert not announced(Settings(listen="0.0.0.0:7411"), 7411).startswith("0.0.0.0")
    assert announced(Settings(announce="queue-1.example:80"), 7411) == "queue-1.example:80"
    with pytest.raises(Invalid, match="announce is HOST:PORT"):
        announced(Settings(announce="nonsense"), 7411)
    assert (place_of("[::1]:7000").host, place_of("a.example:81").port) == ("::1", 81)
