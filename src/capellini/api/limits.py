"""What one server takes at most. Node settings of the same names set them; metrics show them."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    max_requests: int = 2_000  # begun and not answered, long polls not counted: some 0.1 s of work
    max_waiting: int = 10_000  # long polls
    max_bytes: int = 268_435_456  # bodies held at a time
    max_connections: int = 12_000  # room for all that may wait and work
    max_body: int = 67_108_864  # of one request: a batch of large messages; one message has the queue's own limit
    max_head: int = 65_536  # request line and headers, attributes of a raw put included
    request_timeout_s: float = 30.0  # from a request's first byte to its last ...
    least_bytes_per_s: int = 16_384  # ... plus the time a slow but honest link needs for its body
    idle_timeout_s: float = 75.0  # a connection without a request
    write_timeout_s: float = 30.0  # a client that does not read its answer
    linger_s: float = 2.0  # after a refusal, so that the answer is read before the connection breaks
