"""Codecs: what goes in comes out; what cannot is said clearly, and touches no other message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capellini.client.codecs import Codec, codec_of, raw_bodies, raw_body
from capellini.client.messages import AsyncMessage, Origin, unpacker
from capellini.model.errors import Invalid
from capellini.model.receipts import parse_receipt
from capellini.model.service import Parcel

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(), lambda inner: st.lists(inner, max_size=3)
)


class Upside:
    """A codec of one's own."""

    def encode(self, body: str, /) -> bytes:
        return body[::-1].encode()

    def decode(self, raw: bytes, /) -> str:
        return raw.decode()[::-1]


def chosen(name: str | Codec[Any]) -> Codec[Any]:
    codec = codec_of(name)
    assert codec is not None
    return codec


@given(JSON)
def test_json_comes_back_as_it_was(value: object) -> None:
    assert chosen("json").decode(raw_body(chosen("json"), value)) == value


@given(st.text())
def test_text_comes_back_as_it_was(text: str) -> None:
    assert chosen("str").decode(raw_body(chosen("str"), text)) == text
    assert chosen(Upside()).decode(raw_body(chosen(Upside()), text)) == text


@given(st.binary())
def test_bytes_go_as_they_are(raw: bytes) -> None:
    assert codec_of("bytes") is None
    assert raw_body(None, raw) == raw_body(None, bytearray(raw)) == raw_body(None, memoryview(raw)) == raw


@dataclass
class Measure:
    value: float


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("codec", "body", "says"),
    [
        ("bytes", "text", "the body is bytes, not str"),
        ("str", b"bytes", "the body is text, not bytes"),
        ("json", object(), "cannot be written as JSON"),
        ("json", {"a": [1.0, float("nan")]}, "nan or an infinity"),
        ("json", Measure(float("inf")), "nan or an infinity"),
        ("json", CYCLE, "cannot be written as JSON"),
        ("str", "\ud800", "cannot be written as UTF-8"),
    ],
)
def test_a_body_of_the_wrong_kind_is_refused(codec: str, body: object, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        raw_body(codec_of(codec), body)


def test_what_is_no_codec_is_refused() -> None:
    with pytest.raises(Invalid, match="'yaml' is not a codec"):
        codec_of("yaml")
    with pytest.raises(Invalid, match="encode and decode"):
        codec_of(object())  # type: ignore[arg-type]


def origin(entries: list[Any], codec: str) -> Origin:
    raw = msgspec.Raw(msgspec.msgpack.encode(entries))
    parcel = Parcel(7, 1_000, len(entries), 2, b"12345678", 1_500, 31_500, raw)
    return Origin("jobs", parcel, None, codec_of(codec))


def test_a_parcel_becomes_messages_that_know_their_place() -> None:
    one, two = unpacker(AsyncMessage)(origin([[b"a"], [b"b", {"k": "v"}, 250]], "bytes"))
    assert (one.body, one.attributes, one.id) == (b"a", {}, "1000")
    assert (two.body, two.attributes, two.id) == (b"b", {"k": "v"}, "1001")
    assert (two.deliveries, two.put_at, two.visible_at, two.queue) == (2, 1.5, 31.5, "jobs")
    receipt = parse_receipt(two.receipt)
    assert (receipt.generation, receipt.first, receipt.index, receipt.version) == (7, 1_000, 1, 2)


def test_an_unreadable_body_spoils_no_other_message() -> None:
    good, bad = unpacker(AsyncMessage)(origin([[b'{"a":1}'], [b"{"]], "json"))
    assert good.body == {"a": 1}
    with pytest.raises(Invalid, match="not JSON"):
        _ = bad.body
    assert bad.raw == b"{"


def test_a_decoded_body_is_the_same_object_each_time() -> None:
    (message,) = unpacker(AsyncMessage)(origin([[b"[1]"]], "json"))
    message.body.append(2)
    assert message.body == [1, 2]


def test_an_entry_with_too_many_parts_cannot_forge_its_origin() -> None:
    (message,) = unpacker(AsyncMessage)(origin([[b"a", None, 0, "origin", 99, "body"]], "str"))
    assert (message.id, message.body) == ("1000", "a")


@pytest.mark.parametrize("raw", [b'"\xff"', b"[" * 100_000, b"{"])
def test_what_is_no_json_is_said_to_be_none(raw: bytes) -> None:
    codec = codec_of("json")
    assert codec is not None
    with pytest.raises(Invalid, match="not JSON"):
        codec.decode(raw)


@pytest.mark.parametrize(("codec", "body"), [("str", "text"), ("bytes", b"raw"), ("json", "text")])
def test_one_body_is_not_taken_for_a_list_of_many(codec: str, body: Any) -> None:
    with pytest.raises(Invalid, match="list of bodies"):
        raw_bodies(codec_of(codec), body)
