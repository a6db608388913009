"""What a client makes of answers that are not a node's, and of errors that are."""

from __future__ import annotations

import msgspec
import pytest

from capellini.client.answers import error_of, read
from capellini.client.reaching import MSGPACK, Response
from capellini.model import errors
from capellini.model.errors import CapelliniError, Invalid, TooLarge, Unavailable, Unknown
from capellini.model.service import Problem, QueueInfo

JSON = "application/json"


@pytest.mark.parametrize("kind", list(errors.BY_NAME.values()))
@pytest.mark.parametrize("media", [JSON, MSGPACK])
def test_a_nodes_error_is_raised_as_the_same_class(kind: type[CapelliniError], media: str) -> None:
    encode = msgspec.json.encode if media == JSON else msgspec.msgpack.encode
    error = error_of(Response(503, encode(Problem(kind.name, "so it is")), media, 4.0), "here")
    assert (type(error), error.says, error.retry_after_s) == (kind, "so it is", 4.0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("internal", Unknown), ("timeout", Unavailable), ("no_route", Invalid), ("forbidden", Invalid)],
)
def test_errors_that_only_http_has_keep_their_meaning(name: str, kind: type[CapelliniError]) -> None:
    answer = Response(500, msgspec.msgpack.encode(Problem(name, "so it is")), MSGPACK, None)
    assert type(error_of(answer, "here")) is kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [(302, Invalid), (404, Invalid), (413, TooLarge), (429, Unavailable), (503, Unavailable), (500, Unknown),
     (502, Unknown), (504, Unknown)],
)  # fmt: skip
def test_answers_of_others_say_whether_it_may_have_been_done(status: int, kind: type[CapelliniError]) -> None:
    for media, body in (("text/html", b"<html>"), (JSON, b"{"), (JSON, b"\xff"), (MSGPACK, b"\xc1"), ("", b"")):
        error = error_of(Response(status, body, media, None), "http://127.0.0.1:1")
        assert type(error) is kind
        assert f"http://127.0.0.1:1 answered {status}" in error.says


@pytest.mark.parametrize(("media", "body"), [(JSON, b"{}"), (JSON, b"<html>"), (MSGPACK, b"\x01"), ("text/html", b"")])
def test_a_success_that_cannot_be_read_may_have_been_done(media: str, body: bytes) -> None:
    with pytest.raises(Unknown, match="cannot be read"):
        read(Response(200, body, media, None), QueueInfo)
