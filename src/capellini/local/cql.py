"""Just enough of CQL's native protocol (version 4) to ask one node whether it works.

A driver would choose the coordinator itself and retry; here the question is whether *this* node, as coordinator, can
reach the others. So: one socket, STARTUP, a login where there is one, one QUERY at a given level, and either a result
or the server's error.

    frame:  version 1 | flags 1 | stream 2 | opcode 1 | length 4 | body
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct

HEADER = struct.Struct(">BBhBi")
REQUEST, RESPONSE = 0x04, 0x84
ERROR, STARTUP, READY, QUERY, RESULT = 0x00, 0x01, 0x02, 0x07, 0x08
AUTHENTICATE, AUTH_RESPONSE, AUTH_SUCCESS = 0x03, 0x0F, 0x10
ONE, ALL = 0x0001, 0x0005
MOST_BYTES = 1 << 20  # our own questions have tiny answers: more is not CQL


class CqlError(Exception):
    """The node answered with an error, or with something that is not CQL."""


def frame(opcode: int, body: bytes) -> bytes:
    """One request."""
    return HEADER.pack(REQUEST, 0, 0, opcode, len(body)) + body


def startup() -> bytes:
    """The first request of a connection."""
    pair = b"".join(struct.pack(">H", len(text)) + text for text in (b"CQL_VERSION", b"3.0.0"))
    return frame(STARTUP, struct.pack(">H", 1) + pair)


def query(text: str, level: int) -> bytes:
    """A statement without values at a consistency level."""
    raw = text.encode()
    return frame(QUERY, struct.pack(">i", len(raw)) + raw + struct.pack(">HB", level, 0))


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """`count` bytes, or `CqlError` if the node hangs up first."""
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise CqlError("the node hung up")
        parts += part
    return bytes(parts)


def receive(connection: socket.socket, wanted: int) -> bytes:
    """The body of the next response, which must have the wanted opcode."""
    version, _, _, opcode, length = HEADER.unpack(receive_exactly(connection, HEADER.size))
    if version != RESPONSE or not 0 <= length <= MOST_BYTES:
        raise CqlError(f"not CQL version 4: version byte {version:#x}, length {length}")
    body = receive_exactly(connection, length)
    if opcode == ERROR:
        code, size = struct.unpack_from(">iH", body)
        raise CqlError(f"{code:#06x} {body[6 : 6 + size].decode(errors='replace')}")
    if opcode != wanted:
        raise CqlError(f"opcode {opcode:#x} where {wanted:#x} was due")
    return body


def login(user: str, password: str) -> bytes:
    """The answer to a node that asks who we are."""
    token = b"\0" + user.encode() + b"\0" + password.encode()
    return frame(AUTH_RESPONSE, struct.pack(">i", len(token)) + token)


def ask(
    address: str,
    port: int,
    statement: str,
    level: int,
    timeout_s: float,
    context: ssl.SSLContext | None = None,
    user: tuple[str, str] | None = None,
) -> None:
    """Run one statement on one node; returns when it worked, raises `CqlError` or `OSError` when not.

    With a `context` over TLS, with a `user` as that one, by name and password.
    """
    with contextlib.ExitStack() as opened:
        connection = opened.enter_context(socket.create_connection((address, port), timeout=timeout_s))
        if context is not None:
            connection = opened.enter_context(context.wrap_socket(connection, server_hostname=address))
        connection.sendall(startup())
        receive(connection, READY if user is None else AUTHENTICATE)
        if user is not None:
            connection.sendall(login(*user))
            receive(connection, AUTH_SUCCESS)
        connection.sendall(query(statement, level))
        receive(connection, RESULT)
