"""Between connections and handlers: who may ask, which route, is it let in, and errors as answers.

    head ──▶ of this site? ──▶ route ──▶ gate ──▶ (body arrives) ──▶ handler ──▶ response, or an error as one

A browser page of another site must not drive a node that listens on the same machine. So a request that names another
origin than the host it asks is refused, and on loopback the host itself must be a name of this machine: otherwise
another site's name could be pointed here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Coroutine
from typing import Any, Final

from capellini.api.context import Context
from capellini.api.exchange import Request, Response
from capellini.api.holding import Held
from capellini.api.limits import Limits
from capellini.api.problems import problem, response_of
from capellini.api.router import Kind, Route, Router
from capellini.api.routes import ROUTES
from capellini.api.wire import Form, Nothing, UnsupportedMedia, is_raw, packed
from capellini.model.counters import check_name as check_counter
from capellini.model.errors import CapelliniError
from capellini.model.log import check_group, check_place
from capellini.model.producers import PRODUCER

log = logging.getLogger("capellini.api")

ANY_HOST: Final = "*"
_HOSTS_KEPT: Final = 256
_NOTHING: Final = Form(Nothing)


class Application:
    """See `holding.Application`. `hosts`: names that the Host header may have besides addresses and localhost; "*" for
    any."""

    def __init__(self, context: Context, limits: Limits, hosts: frozenset[str]) -> None:
        self.context = context
        self.limits = limits
        self.hosts = hosts
        self.now_s = 0.0
        self.common_head = b""
        self.connections: set[Held] = set()
        self._router = Router(ROUTES, {"name": check_place, "group": check_group, "counter": check_counter})
        self._good_hosts: set[bytes] = set()
        self._debug = log.isEnabledFor(logging.DEBUG)

    def tick(self, now_s: float, wall_s: float) -> None:
        self.now_s = now_s
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(wall_s))
        self.common_head = f"date: {date}\r\nx-content-type-options: nosniff\r\n".encode()
        self._debug = log.isEnabledFor(logging.DEBUG)
        for connection in tuple(self.connections):
            connection.tick(now_s)

    # ---- what connections call

    def opened(self, connection: Held) -> bool:
        self.connections.add(connection)  # one too many as well: the ticker sees to its end
        if len(self.connections) > self.limits.max_connections:
            self.context.gate.refused["connections"] += 1
            return False
        return True

    def closed(self, connection: Held) -> None:
        self.connections.discard(connection)

    def admit(self, request: Request, length: int | None) -> Response | None:
        request.began_s = time.perf_counter()
        refusal = self._foreign(request)
        if refusal is not None:
            return refusal
        try:
            found = self._router.find(request.method, request.path)
        except CapelliniError as error:
            return response_of(error, packed=packed(request))
        route = found.route
        if route is None:
            return self._no_route(request, found.allow)
        request.route, request.params = route, found.params
        refusal = _unread(request, route, length)
        if refusal is not None:
            return refusal
        too_much = self.context.gate.admit(route.kind, length or 0)
        if too_much is not None:
            return response_of(too_much, packed=packed(request))
        request.cost = length or 0
        return None

    def most(self, request: Request) -> Coroutine[Any, Any, int] | None:
        route = request.route
        return self.context.service.body_limit(request.name) if route and route.raw and is_raw(request) else None

    def grow(self, request: Request, size: int) -> Response | None:
        assert request.route is not None
        error = self.context.gate.grow(request.route.kind, size)
        if error is not None:
            return response_of(error, packed=packed(request))
        request.cost += size
        return None

    def hold(self, more: int) -> CapelliniError | None:
        if more > 0:
            return self.context.gate.grow(Kind.FINISH, more)  # they may be acks
        self.context.gate.bytes += more
        return None

    async def answer(self, request: Request) -> Response:
        assert request.route is not None
        if request.route.kind is Kind.PUT:
            PRODUCER.set(request.producer)
        try:
            if request.body and request.route.takes is None and request.route.kind in (Kind.CHANGE, Kind.TIDY):
                _NOTHING.read(request)
            return await request.route.handler(self.context, request)
        except CapelliniError as error:
            return response_of(error, packed=packed(request))
        except UnsupportedMedia as error:
            takes = ", ".join((*request.route.media, *(("application/octet-stream",) if request.route.raw else ())))
            return problem(415, "media_type", f"{str(error)[:100]!r} is not taken here: use {takes}")
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("%s failed", request.route.label)
            says = "something went wrong in the node, which its log tells more of"
            return problem(500, "internal", says, packed=packed(request))

    def done(self, request: Request, response: Response | None) -> None:
        route = request.route
        if request.cost >= 0 and route is not None:
            self.context.gate.leave(route.kind, request.cost)
            request.cost = -1
        if response is None:
            return
        seconds = time.perf_counter() - request.began_s if request.began_s else 0.0
        self.context.metrics.request(route, response.status, seconds)
        if self._debug:
            log.debug(
                "%s %s %d in %.1f ms, %d bytes in, %d out",
                request.method.decode("latin-1"), request.path.decode("latin-1"), response.status,
                seconds * 1000, len(request.body), len(response.body),
            )  # fmt: skip

    # ---- refusals

    def _no_route(self, request: Request, allow: tuple[str, ...]) -> Response:
        path = request.path[:200].decode("latin-1")
        if not allow:
            return problem(404, "no_route", f"there is nothing at {path}: see /v1/openapi.json", packed=packed(request))
        headers = ((b"allow", ", ".join(allow).encode()),)
        if request.method == b"OPTIONS":
            return Response(204, headers=headers)
        says = f"{path} takes {', '.join(allow)}, not {request.method.decode('latin-1')}"
        return problem(405, "method", says, packed=packed(request), headers=headers)

    def _foreign(self, request: Request) -> Response | None:
        headers = request.headers
        host = headers.get(b"host", b"")
        if host not in self._good_hosts:
            if not self._names_us(host):
                name = repr(host[:100].decode("latin-1"))
                says = f"{name} is not a name of this node: ask it by its address, or set CAPELLINI_HOSTS"
                return problem(403, "forbidden", says)
            if len(self._good_hosts) < _HOSTS_KEPT:
                self._good_hosts.add(host)
        origin = headers.get(b"origin")
        if origin is not None and origin.partition(b"://")[2].lower() != host.lower():
            return problem(403, "forbidden", "a page of another site may not ask this node")
        if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            return problem(403, "forbidden", "a page of another site may not ask this node")
        return None

    def _names_us(self, host: bytes) -> bool:
        if not host or ANY_HOST in self.hosts:
            return True
        name = host.decode("latin-1").lower()
        name = name[1 : name.find("]")] if name.startswith("[") else name.partition(":")[0]
        if name == "localhost" or name in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _unread(request: Request, route: Route, length: int | None) -> Response | None:
    """What nobody would read is refused: dropped in silence, it would seem to have worked."""
    if request.query and route.query is None and route.kind is not Kind.SYSTEM:  # scrapers and probes add their own
        name = request.query.partition(b"=")[0][:60].decode("latin-1")
        says = f"{route.label} takes no query, not {name!r}: what it takes is in its body, if anything"
        return problem(400, "invalid", says, packed=packed(request))
    coding = request.headers.get(b"content-encoding")
    if coding and length != 0 and coding.lower() != b"identity":
        says = f"a body is taken as it is, not {coding[:60].decode('latin-1')!r}: send it without Content-Encoding"
        return problem(415, "media_type", says, packed=packed(request))
    return None
