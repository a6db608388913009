"""What can go wrong, as one small family.

Every error says what happened and what to do, in one sentence. `name` is the word that travels over the wire (REST,
client, command line), so that a client can raise the same class that the node raised.

    CapelliniError
      Invalid              the request is wrong: nothing was changed, repeating it is pointless
        TooLarge           ... because something is larger than its limit
        WrongKind          ... because the queue is of another kind
      NotFound             the queue (or message) does not exist
      Conflict             exists with other options, or changed meanwhile
      Stale                the receipt is of an earlier delivery, or the message is gone
      Paused               the queue takes no puts, or gives no messages, for now
      CannotOpen           the store cannot be opened as asked: an operator must act
        InUse              ... because another process has it open
      StoreError           the store did not do it
        Unavailable        nothing was changed; try again later
          Overloaded       ... because there is too much to do
          Full             ... because the disk is full
        Unknown            the answer was lost: it may have been done, or may yet be done
"""

from __future__ import annotations

from typing import ClassVar, Self


class CapelliniError(Exception):
    """Base of all errors that callers may see."""

    name: ClassVar[str] = "error"
    retry_after_s: float | None = None

    def __init__(self, says: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(says)
        self.says = says
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s

    def again(self) -> Self:
        """The same error for another caller: raised by several, one object would gather everybody's traceback."""
        copy = type(self).__new__(type(self), *self.args)
        copy.__dict__.update(self.__dict__)
        return copy


class Invalid(CapelliniError):
    name = "invalid"


class TooLarge(Invalid):
    name = "too_large"


class WrongKind(Invalid):
    name = "wrong_kind"


class NotFound(CapelliniError):
    name = "not_found"


class Conflict(CapelliniError):
    name = "conflict"


class Stale(CapelliniError):
    name = "stale"


class Paused(CapelliniError):
    name = "paused"
    retry_after_s = 5.0


class CannotOpen(CapelliniError):
    name = "cannot_open"


class InUse(CannotOpen):
    name = "in_use"


class StoreError(CapelliniError):
    name = "store"


class Unavailable(StoreError):
    name = "unavailable"
    retry_after_s = 1.0


class Overloaded(Unavailable):
    name = "overloaded"
    retry_after_s = 0.5


class Full(Unavailable):
    name = "full"
    retry_after_s = 10.0


class Unknown(StoreError):
    name = "unknown"
    retry_after_s = 1.0


def _family(root: type[CapelliniError]) -> dict[str, type[CapelliniError]]:
    found = {root.name: root}
    for child in root.__subclasses__():
        found.update(_family(child))
    return found


BY_NAME: dict[str, type[CapelliniError]] = _family(CapelliniError)


def from_name(name: str, says: str, retry_after_s: float | None = None) -> CapelliniError:
    """The error of that name; an unknown name gives the base class."""
    return BY_NAME.get(name, CapelliniError)(says, retry_after_s=retry_after_s)
