"""From an address to a client.

    http(s)://HOST:PORT      a node                          RemoteService
    cassandra://HOST/SPACE   the store itself, no server     OwnService: a Broker in this process
    rocks:FOLDER             the folder                      FolderService: own it, or join who does

Nothing is opened here: the first call does that.
"""

from __future__ import annotations

import random
import ssl
from typing import Any, Literal, TypeVar, overload

from capellini.client.aio import AsyncClient
from capellini.client.codecs import Codec, codec_of
from capellini.client.patient import Patience, PatientService
from capellini.client.remote import RemoteService
from capellini.client.sync import Client
from capellini.client.transport import MAX_CONNECTIONS, REQUEST_TIMEOUT_S, Place, Transport
from capellini.model.address import CassandraAddress, NodeAddress, RocksAddress, parse
from capellini.model.clock import RealClock
from capellini.model.service import Service

T = TypeVar("T")


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
            )
            return RemoteService(transport)
        case CassandraAddress() as cassandra:
            from capellini.client.own import OwnService

            return OwnService(cassandra)
        case RocksAddress() as rocks:
            from capellini.client.folder import FolderService

            return FolderService(rocks, max_connections, request_timeout_s)


@overload
def connect_async(address: str, *, codec: Literal["bytes"] = "bytes", **options: Any) -> AsyncClient[bytes]: ...
@overload
def connect_async(address: str, *, codec: Literal["str"], **options: Any) -> AsyncClient[str]: ...
@overload
def connect_async(address: str, *, codec: Literal["json"], **options: Any) -> AsyncClient[Any]: ...
@overload
def connect_async(address: str, *, codec: Codec[T], **options: Any) -> AsyncClient[T]: ...
def connect_async(address: str, *, codec: str | Codec[Any] = "bytes", **options: Any) -> AsyncClient[Any]:
    """A client for asyncio, as `connect` makes one for threads; the options are the same."""
    return _client(address, codec, **options)


@overload
def connect(address: str, *, codec: Literal["bytes"] = "bytes", **options: Any) -> Client[bytes]: ...
@overload
def connect(address: str, *, codec: Literal["str"], **options: Any) -> Client[str]: ...
@overload
def connect(address: str, *, codec: Literal["json"], **options: Any) -> Client[Any]: ...
@overload
def connect(address: str, *, codec: Codec[T], **options: Any) -> Client[T]: ...
def connect(address: str, *, codec: str | Codec[Any] = "bytes", **options: Any) -> Client[Any]:
    """A client for a node (http://), a keyspace (cassandra://) or a folder (rocks:). Opens at the first call.

    codec                "bytes", "str", "json" or an object with encode and decode
    patience_s           how long a call is repeated while the node is away (30); 0: not at all
    retry_unknown_puts   also repeat puts without a key whose answer was lost: they may be added twice (False)
    request_timeout_s    how long one answer may take (30)
    max_connections      to a node (64); more requests wait their turn
    ssl_context          for https
    """
    client = _client(address, codec, **options)
    return Client(lambda: client)


def _client(
    address: str,
    codec: str | Codec[Any],
    *,
    patience_s: float = Patience().total_s,
    retry_unknown_puts: bool = False,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
    max_connections: int = MAX_CONNECTIONS,
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncClient[Any]:
    chosen = codec_of(codec)
    clock, chance = RealClock(), random.Random()
    service = service_of(
        address,
        ssl_context=ssl_context,
        max_connections=max_connections,
        request_timeout_s=request_timeout_s,
    )
    patience = Patience(total_s=patience_s, retry_unknown_puts=retry_unknown_puts)
    return AsyncClient(PatientService(service, patience, clock, chance), chosen, clock=clock, chance=chance)
