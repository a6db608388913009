"""Heads of HTTP messages: what is made of a response, and the small questions about a request's."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from capellini.api.exchange import Request, Response
from capellini.model.frames import PATH, UPGRADE

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
SWITCHING: Final = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: %b\r\n\r\n" % UPGRADE.encode()
_STATUS: Final = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}
_NO_BODY: Final = frozenset((204, 304))


def head_of(request: Request, response: Response, common: bytes) -> bytes:
    """`common`: header lines that every response carries."""
    lines = [_STATUS[response.status], common]
    if response.status not in _NO_BODY:
        lines.append(b"content-type: %b\r\ncontent-length: %d\r\n" % (response.content_type, len(response.body)))
    for header in response.headers:
        lines.append(b"%b: %b\r\n" % header)
    if request.close:
        lines.append(b"connection: close\r\n")
    elif request.keep_alive_header:
        lines.append(b"connection: keep-alive\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def switched(response: Response) -> bytes:
    """The connection becomes another protocol's."""
    return b"".join((_STATUS[101], *(b"%b: %b\r\n" % header for header in response.headers), b"\r\n"))


def wants_channel(request: Request) -> bool:
    return request.path == PATH.encode() and request.header(b"upgrade").lower() == UPGRADE.encode()


def size_of(target: bytes, headers: dict[bytes, bytes]) -> int:
    return len(target) + sum(map(len, headers)) + sum(map(len, headers.values()))


def path_of(target: bytes) -> bytes:
    """The path of a target in absolute form (as proxies send it); anything else stays as it is and finds no route."""
    scheme, separator, rest = target.partition(b"://")
    if separator and scheme.lower() in (b"http", b"https"):
        _, slash, path = rest.partition(b"/")
        return slash + path or b"/"
    return target
