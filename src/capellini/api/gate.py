"""The gate: what is let in. It decides from the head of a request, before its body is read.

    draining     nothing new; acks, nacks and extends are still taken, so that consumers can finish what they hold
    store down   nothing: it would only wait for a time-out
    disk full    no puts and no new queues; gets, acks, purges and the like go on, since they are what makes room
    too much     too many requests or body bytes at a time: 429, and come again

Acks, nacks and extends have some room of their own beyond the limit: refusing them makes messages come twice, which is
more work, not less.
"""

from __future__ import annotations

from typing import Final

from capellini.api.limits import Limits
from capellini.api.router import Kind
from capellini.model.errors import CapelliniError, Full, Overloaded, Unavailable
from capellini.node.condition import GOOD, Condition

FINISH_SHARE: Final = 1.25  # of max_requests and max_bytes, for acks, nacks and extends
DRAIN_RETRY_S: Final = 1.0  # another node is to be asked at once; a client with this one alone should not hammer
DOWN_RETRY_S: Final = 2.0  # the store is looked at once a second

Refusal = tuple[str, CapelliniError]  # the reason as metrics call it, and what the client sees


class Gate:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.condition: Condition = GOOD
        self.in_flight = 0  # requests begun and not answered, gets not counted
        self.waiting = 0  # gets
        self.bytes = 0
        self.refused: dict[str, int] = dict.fromkeys(
            ("draining", "down", "full", "requests", "waiting", "bytes", "connections"), 0
        )

    def admit(self, kind: Kind, size: int) -> CapelliniError | None:
        """None: it is in, and counts until `leave`."""
        limits = self.limits
        if (
            self.condition is not GOOD
            or self.in_flight >= limits.max_requests
            or self.waiting >= limits.max_waiting
            or self.bytes + size > limits.max_bytes
        ):  # not an easy case
            refusal = self._refusal(kind, size)
            if refusal is not None:
                self.refused[refusal[0]] += 1
                return refusal[1]
        if kind is Kind.TAKE:
            self.waiting += 1
        elif kind is not Kind.SYSTEM:
            self.in_flight += 1
        self.bytes += size
        return None

    def grow(self, kind: Kind, size: int) -> CapelliniError | None:
        """An admitted request turns out to be larger; None: that is counted too."""
        refusal = self._too_many_bytes(kind, size)
        if refusal is not None:
            self.refused[refusal[0]] += 1
            return refusal[1]
        self.bytes += size
        return None

    def leave(self, kind: Kind, size: int) -> None:
        if kind is Kind.TAKE:
            self.waiting -= 1
        elif kind is not Kind.SYSTEM:
            self.in_flight -= 1
        self.bytes -= size

    def _refusal(self, kind: Kind, size: int) -> Refusal | None:
        if kind is Kind.SYSTEM:
            return self._too_many_bytes(kind, size) if size else None
        condition = self.condition
        if condition is not GOOD:
            if condition.draining and kind not in (Kind.FINISH, Kind.READ):  # its operator looks whether it is empty
                return "draining", Unavailable("this node is draining: use another one", retry_after_s=DRAIN_RETRY_S)
            if condition.down:
                return "down", Unavailable(condition.down, retry_after_s=DOWN_RETRY_S)
            if condition.full and kind in (Kind.PUT, Kind.CHANGE):
                return "full", Full(condition.full)
        if kind is Kind.TAKE:
            if self.waiting >= self.limits.max_waiting:
                return "waiting", Overloaded(f"{self.waiting} gets are waiting on this node, all it may hold")
        elif self.in_flight >= self.limits.max_requests * (FINISH_SHARE if kind is Kind.FINISH else 1):
            return "requests", Overloaded(f"{self.in_flight} requests are in flight on this node, all it may hold")
        return self._too_many_bytes(kind, size) if size else None

    def _too_many_bytes(self, kind: Kind, size: int) -> Refusal | None:
        if self.bytes + size <= self.limits.max_bytes * (FINISH_SHARE if kind is Kind.FINISH else 1):
            return None
        return "bytes", Overloaded(f"this node holds {self.bytes} bytes of requests, and {size} more are too many")
