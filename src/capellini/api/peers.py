"""What nodes ask each other. Answers are bytes that only nodes read; who is no node is refused."""

from __future__ import annotations

from capellini.api.context import Context
from capellini.api.exchange import MSGPACK, Request, Response
from capellini.api.wire import PACKED, UnsupportedMedia, media
from capellini.model.errors import NotFound


async def serve(context: Context, request: Request) -> Response:
    if media(request) not in PACKED:
        raise UnsupportedMedia(media(request).decode("latin-1"))
    if context.peer is None:
        raise NotFound("there are no other nodes here")
    return Response(200, await context.peer(request.name, request.params["operation"], request.body), MSGPACK)
