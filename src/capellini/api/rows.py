"""Rows as they are stored, for programs that read whole queues: a page of one partition at a time.

The node copies bytes and makes no object per message; whoever asks decodes them, in parallel and elsewhere. Only tables
that hold messages and counters are handed out: none that holds a secret, and nothing can be changed.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from capellini.api.context import Context
from capellini.api.exchange import MSGPACK, Request, Response
from capellini.api.wire import PACKED, UnsupportedMedia, media
from capellini.model.errors import NotFound
from capellini.store.interface import Store
from capellini.store.pages import decode_slice, encode_page
from capellini.store.schema import (
    BUCKETS,
    COUNTER_NAMES,
    COUNTERS,
    LOG_BLOCKS,
    LOG_EXTENTS,
    MONOTON,
    POINTERS,
    TIMED_TABLES,
)

TABLES: Final = {
    table.name: table
    for table in (BUCKETS, MONOTON, POINTERS, COUNTERS, COUNTER_NAMES, *TIMED_TABLES, LOG_EXTENTS, LOG_BLOCKS)
}


@runtime_checkable
class Stored(Protocol):
    """A service that has a store of its own."""

    store: Store


async def read(context: Context, request: Request) -> Response:
    if media(request) not in PACKED:
        raise UnsupportedMedia(media(request).decode("latin-1"))
    table = TABLES.get(request.params["table"])
    if table is None or not isinstance(context.service, Stored):
        raise NotFound(f"no rows of {request.params['table'][:60]!r} are handed out: there are {', '.join(TABLES)}")
    page = await context.service.store.read(decode_slice(table, request.body))
    return Response(200, encode_page(page), MSGPACK)
