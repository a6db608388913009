"""From an address to a client.

    http(s)://HOST:PORT      a node                          RemoteService
    cassandra://HOST/SPACE   the store itself, no server     OwnService: a Broker in this process
    rocks:FOLDER             the folder                      FolderService: own it, or join who does

Nothing is opened here: the first call does that.
"""

from __future__ import annotations

import random
import ssl
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from capellini.client.aio import AsyncClient
from capellini.client.codecs import Codec, codec_of
from capellini.client.patient import Patience, PatientService
from capellini.client.reaching import Place
from capellini.client.remote import RemoteService
from capellini.client.sync import Client
from capellini.client.transport import MAX_CONNECTIONS, REQUEST_TIMEOUT_S, Transport
from capellini.model.address import CassandraAddress, NodeAddress, RocksAddress, parse
from capellini.model.clock import RealClock
from capellini.model.errors import Invalid
from capellini.model.service import Service

T = TypeVar("T")


class Options(TypedDict, total=False):
    """See `connect`."""

    patience_s: float
    retry_unknown_puts: bool
    request_timeout_s: float
    max_connections: int
    ssl_context: ssl.SSLContext | None


def service_of(
    address: str,
    *,
    ssl_context: ssl.SSLContext | None = None,
    max_connections: int = MAX_CONNECTIONS,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
) -> Service:
    """The service at an address, without patience."""
    match parse(address):
        case NodeAddress(url):
            transport = Transport(
                Place.of_url(url),
                ssl_context=ssl_context,
                max_connections=max_connections,
                request_timeout_s=request_timeout_s,
                channel=True,
            )
            return RemoteService(transport)
        case CassandraAddress() as cassandra:
            from capellini.client.own import OwnService

            return OwnService(cassandra)
        case RocksAddress() as rocks:
            from capellini.client.folder import FolderService

            return FolderService(rocks, max_connections, request_timeout_s)


@overload
def connect_async(
    address: str, *, codec: Literal["bytes"] = "bytes", **options: Unpack[Options]
) -> AsyncClient[bytes]: ...
@overload
def connect_async(address: str, *, codec: Literal["str"], **options: Unpack[Options]) -> AsyncClient[str]: ...
@overload
def connect_async(address: str, *, codec: Literal["json"], **options: Unpack[Options]) -> AsyncClient[Any]: ...
@overload
def connect_async(address: str, *, codec: Codec[T], **options: Unpack[Options]) -> AsyncClient[T]: ...
def connect_async(address: str, *, codec: str | Codec[Any] = "bytes", **options: Unpack[Options]) -> AsyncClient[Any]:
    """A client for asyncio, as `connect` makes one for threads; the options are the same."""
    return _client(address, codec, options)


@overload
def connect(address: str, *, codec: Literal["bytes"] = "bytes", **options: Unpack[Options]) -> Client[bytes]: ...
@overload
def connect(address: str, *, codec: Literal["str"], **options: Unpack[Options]) -> Client[str]: ...
@overload
def connect(address: str, *, codec: Literal["json"], **options: Unpack[Options]) -> Client[Any]: ...
@overload
def connect(address: str, *, codec: Codec[T], **options: Unpack[Options]) -> Client[T]: ...
def connect(address: str, *, codec: str | Codec[Any] = "bytes", **options: Unpack[Options]) -> Client[Any]:
    """A client for a node (http://), a keyspace (cassandra://) or a folder (rocks:). Opens at the first call.

    codec                "bytes", "str", "json" or an object with encode and decode
    patience_s           how long a call is repeated while the node is away (30); 0: not at all
    retry_unknown_puts   also repeat puts without a key whose answer was lost: they may be added twice (False)
    request_timeout_s    how long one answer may take (30)
    max_connections      to a node that does not take all calls on one (64); more requests wait their turn
    ssl_context          for https
    """
    client = _client(address, codec, options)
    return Client(lambda: client)


def _client(address: str, codec: str | Codec[Any], options: Options) -> AsyncClient[Any]:
    if unknown := set(options) - set(Options.__annotations__):
        known = ", ".join(Options.__annotations__)
        raise Invalid(f"{', '.join(sorted(unknown))} is no option of a client: there are {known}")
    _check(options)
    chosen = codec_of(codec)
    clock, chance = RealClock(), random.Random()
    service = service_of(
        address,
        ssl_context=options.get("ssl_context"),
        max_connections=options.get("max_connections", MAX_CONNECTIONS),
        request_timeout_s=options.get("request_timeout_s", REQUEST_TIMEOUT_S),
    )
    patience = Patience(
        total_s=options.get("patience_s", Patience().total_s),
        retry_unknown_puts=options.get("retry_unknown_puts", False),
    )
    return AsyncClient(PatientService(service, patience, clock, chance), chosen, clock=clock, chance=chance)


def _check(options: Options) -> None:
    """Raises Invalid: with some values a call would wait for ever."""
    for name, least in (("patience_s", 0.0), ("request_timeout_s", 0.001), ("max_connections", 1)):
        value: object = options.get(name, least)
        if not isinstance(value, int | float) or not value >= least:
            raise Invalid(f"{name} is a number from {least:g} on, not {value!r}")
