"""One end of a WebSocket (RFC 6455) on an asyncio connection: whole binary messages in and out, nothing else.

    bytes ──▶ frames (the library's protocol, without any I/O) ──▶ whole message ──▶ `received`
    `send` ──▶ one write for all that was sent in a turn of the loop

No extension is spoken: a compressed frame (reserved bits) is a protocol error, so that a few bytes cannot become many.
A message above its limit ends the connection by its header, before it is read. Text is refused: frames are binary.

What can go wrong, and what then happens
- A broken, oversized, compressed or text frame: closed with a code and a reason.
- A message that does not become whole in time, or whose pieces fill the memory: `holding` is told how much of it is
  here; closed with a code and a reason.
- The other end does not read: `slow` is told, and after a while the connection is cut.
- The other end says nothing for long: it is asked (ping); one that does not answer either is cut.
- The other end does not end the connection after a close: it is cut.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from base64 import b64decode
from binascii import Error as NoBase64
from typing import Any, Final

from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.protocol import OPEN, SEND_EOF, Protocol, Side
from websockets.utils import accept_key

from capellini.api.exchange import Request
from capellini.model.errors import CapelliniError, Invalid

try:
    from websockets.speedups import apply_mask
except ImportError:  # built without a compiler: the same, slower
    from websockets.utils import apply_mask

log = logging.getLogger("capellini.api")
_quiet: Final = logging.getLogger("capellini.websocket")
_quiet.setLevel(logging.WARNING)  # the library tells of every connection

PING_AFTER_S: Final = 20.0  # of silence: below the idle limits of the usual proxies
SILENT_MOST_S: Final = 60.0  # a living end has answered two pings by then
REASON_BYTES: Final = 120  # a close frame has room for 123
LINGER_S: Final = 2.0  # after a close: time for the other end to read why
WHOLE_S: Final = 30.0  # from the first byte of a message to its last ...
LEAST_BYTES_PER_S: Final = 16_384  # ... plus the time that a slow but honest link needs for it
VERSION: Final = b"13"
_BINARY: Final = 0x82  # the last frame of a message, binary
_MASKED: Final = 0x80


class WebSocket(asyncio.Protocol):
    """Subclasses say what a message means. `now_s`: the ticker's time."""

    def __init__(self, side: Side, most: int, now_s: float) -> None:
        self._ends = Protocol(side, state=OPEN, max_size=most, logger=_quiet)
        self._masks = side is Side.CLIENT
        self._transport: Any = None  # asyncio.Transport, without a cast on every use
        self._pieces = bytearray()  # of a message in several frames
        self._in_pieces = False
        self._held = 0  # bytes of a message that is not whole
        self._partial_since_s: float | None = None
        self._written = False  # something waits to be written in this turn
        self._heard_s = self._pinged_s = now_s
        self._now_s = now_s
        self._stuck_since_s: float | None = None
        self._closed_at_s: float | None = None
        self._reading_paused = False
        self._deaf = False  # refused: what comes is dropped
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the connection has ended

    # ---- for subclasses

    def received(self, message: bytes | bytearray) -> None:
        """A whole message. Raises Invalid for what is none: that ends the connection."""
        raise NotImplementedError

    def holding(self, before: int, now: int) -> CapelliniError | None:
        """So many bytes of a message that is not whole are here. An error: they may not be."""
        return None

    def slow(self, is_slow: bool) -> None:
        """The other end does not read what was sent (any more)."""

    def lost(self, reason: str) -> None:
        """No more messages, either way."""

    @property
    def open(self) -> bool:
        return self._ends.state is OPEN and not self.gone.done()

    @property
    def is_slow(self) -> bool:
        return self._stuck_since_s is not None

    def send(self, message: bytes) -> None:
        if self.open:
            self._ends.writes += framed(message, self._masks)
            self._flush_soon()

    def pause_reading(self, pause: bool) -> None:
        if pause != self._reading_paused and self._transport is not None and not self._transport.is_closing():
            self._reading_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def shut(self, code: CloseCode, reason: str) -> None:
        """Say why, and close."""
        if self.open:
            self._ends.send_close(code, reason.encode()[:REASON_BYTES].decode(errors="ignore"))
            self._closing()
            self._flush()
            self.pause_reading(False)  # the other end's close is to be seen

    def _closing(self) -> None:
        if self._closed_at_s is None:
            self._closed_at_s = self._now_s

    # ---- asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._heard_s = self._now_s
        self._ends.receive_data(data)
        whole = False
        try:
            for event in self._ends.events_received():
                if isinstance(event, Frame):
                    whole = self._frame(event) or whole
        except Invalid as error:
            self.shut(CloseCode.POLICY_VIOLATION, f"{error.name}: {error.says}")
        self._hold(len(self._ends.reader.buffer) + len(self._pieces), whole)
        if self._ends.state is not OPEN:
            self._closing()
        if self._ends.writes:
            self._flush()

    def _frame(self, frame: Frame) -> bool:
        """True: a message is whole."""
        if frame.opcode is Opcode.TEXT:
            self.shut(CloseCode.UNSUPPORTED_DATA, "frames here are binary: MessagePack arrays")
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT) and self.open:
            data = frame.data
            assert not isinstance(data, memoryview)
            if frame.fin and not self._in_pieces:
                self.received(data)
                return True
            self._pieces += data
            self._in_pieces = not frame.fin
            if frame.fin:
                message, self._pieces = self._pieces, bytearray()
                self.received(message)
                return True
        return False

    def _hold(self, now: int, whole: bool) -> None:
        if not now:
            self._partial_since_s = None
        elif whole or self._partial_since_s is None:
            self._partial_since_s = self._now_s
        if now != self._held:
            before, self._held = self._held, now
            refusal = self.holding(before, now)
            if refusal is not None:
                self._held = before
                self.shut(CloseCode.TRY_AGAIN_LATER, refusal.says)
                self._deaf = True
                self._ends.reader.discard()
                self._pieces = bytearray()

    def eof_received(self) -> bool:
        if not self._ends.reader.eof:
            self._ends.receive_eof()
            self._flush()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ends.reader.eof:
            self._ends.receive_eof()
        if not self.gone.done():
            self.gone.set_result(None)
            if self._held:
                self.holding(self._held, 0)
            self.lost(self.reason(str(exc) if exc else ""))

    def reason(self, why: str = "") -> str:
        """Why it ended, as far as it is known."""
        told: Close | None = self._ends.close_rcvd or self._ends.close_sent
        if told is not None and told.reason:
            return told.reason
        return why or "the connection ended"

    def pause_writing(self) -> None:
        self._stuck_since_s = self._now_s
        self.slow(True)

    def resume_writing(self) -> None:
        self._stuck_since_s = None
        self.slow(False)

    # ---- writing

    def _flush_soon(self) -> None:
        if not self._written:
            self._written = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._written = False
        pieces = self._ends.data_to_send()
        if self._transport is None or self._transport.is_closing():
            return
        if pieces and pieces[-1] == SEND_EOF:
            pieces.pop()
            self._transport.write(b"".join(pieces))
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()
        elif len(pieces) == 1:
            self._transport.write(pieces[0])
        elif pieces:
            self._transport.writelines(pieces)

    # ---- time

    def beat(self, now_s: float, stuck_most_s: float) -> None:
        """Called by whoever has a ticker: cuts off what takes too long."""
        self._now_s = now_s
        if self._closed_at_s is not None:
            if now_s - self._closed_at_s > LINGER_S:
                self._transport.abort()
        elif self._stuck_since_s is not None and now_s - self._stuck_since_s > stuck_most_s:
            log.debug("the other end of a stream did not read for %g s", stuck_most_s)
            self._transport.abort()
        elif self._reading_paused:  # nothing can be heard from it
            self._heard_s = now_s
            self._partial_since_s = None if self._partial_since_s is None else now_s
        elif self._late(now_s):
            self.shut(CloseCode.POLICY_VIOLATION, f"a message was not whole after {WHOLE_S:g} s")
        elif now_s - self._heard_s > SILENT_MOST_S:
            self.shut(CloseCode.GOING_AWAY, f"nothing was heard for {SILENT_MOST_S:g} s")
        elif now_s - max(self._heard_s, self._pinged_s) > PING_AFTER_S and self.open:
            self._pinged_s = now_s
            self._ends.send_ping(b"")
            self._flush()

    def _late(self, now_s: float) -> bool:
        since_s = self._partial_since_s
        return since_s is not None and now_s - since_s > WHOLE_S + self._held / LEAST_BYTES_PER_S

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def framed(message: bytes, masks: bool) -> tuple[bytes, bytes]:
    """A binary message in one frame: its header, and the rest. The library would copy it into a growing buffer, which
    costs ten times as much as masking it."""
    size, masked = len(message), _MASKED if masks else 0
    if size < 126:
        head = bytes((_BINARY, masked | size))
    elif size < 65_536:
        head = struct.pack(">BBH", _BINARY, masked | 126, size)
    else:
        head = struct.pack(">BBQ", _BINARY, masked | 127, size)
    if not masks:
        return head, message
    key = secrets.token_bytes(4)
    return head + key, apply_mask(message, key)


def wants_websocket(request: Request) -> bool:
    return request.header(b"upgrade").lower() == b"websocket"


def accepted(request: Request) -> tuple[tuple[bytes, bytes], ...]:
    """The headers that answer a handshake. Raises Invalid."""
    if request.method != b"GET":
        raise Invalid("a WebSocket is asked for by GET")
    if request.header(b"sec-websocket-version") != VERSION:
        raise Invalid(f"WebSocket version {VERSION.decode()} is spoken here: send Sec-WebSocket-Version")
    key = request.header(b"sec-websocket-key")
    try:
        good = len(b64decode(key, validate=True)) == 16
    except NoBase64:
        good = False
    if not good:
        raise Invalid("Sec-WebSocket-Key is 16 bytes in base64")
    return (
        (b"connection", b"upgrade"),
        (b"upgrade", b"websocket"),
        (b"sec-websocket-accept", accept_key(key.decode()).encode()),
    )
