"""The API over real sockets: messages in each form, bad input named, errors as statuses, routes."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.unit.memory_service import CODE
from tests.unit.raw_http import SMALL, Place, open_place

from capellini.model.errors import CapelliniError, Conflict, Full, Paused, Stale, Unavailable, Unknown
from capellini.model.service import ParcelAck


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with open_place(SMALL) as found:
        yield found


# ---- messages, in each form


async def test_a_message_goes_in_and_out_as_json(place: Place) -> None:
    wire = await place.wire()
    put = await wire.ask("POST", "/v1/queues/q/messages", {"messages": [{"body": "héllo", "attributes": {"a": "b"}}]})
    assert (put.status, put.json) == (200, {"results": [{"id": "1", "duplicate": False}]})
    got = (await wire.ask("POST", "/v1/queues/q/messages/get", {"count": 5})).json["messages"]
    assert [(each["body"], each["attributes"], each["deliveries"]) for each in got] == [("héllo", {"a": "b"}, 1)]
    acked = await wire.ask("POST", "/v1/queues/q/messages/ack", {"receipts": [got[0]["receipt"], got[0]["receipt"]]})
    assert acked.json["results"][0] == {"visible_at": None}
    assert acked.json["results"][1]["error"] == "stale"


async def test_bytes_that_are_no_text_travel_as_base64(place: Place) -> None:
    body = bytes(range(256))
    item = {"body_base64": base64.b64encode(body).decode()}
    await place.ask("POST", "/v1/queues/q/messages", {"messages": [item]})
    got = (await place.ask("POST", "/v1/queues/q/messages/get")).json["messages"][0]
    assert "body" not in got
    assert base64.b64decode(got["body_base64"]) == body


async def test_messagepack_carries_bytes_both_ways(place: Place) -> None:
    packed = "application/msgpack"
    content = msgspec.msgpack.encode({"messages": [{"body": b"\xff\x00", "delay_s": 0}]})
    put = await place.ask("POST", "/v1/queues/q/messages", content, Content_Type=packed)
    assert (put.headers["content-type"], msgspec.msgpack.decode(put.body)["results"][0]["id"]) == (packed, "1")
    got = await place.ask("POST", "/v1/queues/q/messages/get", None, Accept=packed)
    assert msgspec.msgpack.decode(got.body)["messages"][0]["body"] == b"\xff\x00"


async def test_a_bare_body_is_one_message(place: Place) -> None:
    headers = {"Content_Type": "application/octet-stream", "Capellini_Attribute_Colour": "blau"}
    put = await place.ask("POST", "/v1/queues/q/messages?delay_s=1.5&key=k", b"\x00raw", **headers)
    assert put.json["results"][0]["id"] == "1"
    _, message = place.service.held["q"].ready[0]
    assert (message.body, message.attributes, message.delay_s, message.key) == (
        b"\x00raw",
        {"colour": "blau"},
        1.5,
        "k",
    )
    assert (await place.ask("POST", "/v1/queues/q/messages", b"x", **headers, Capellini_Delay_S="-1")).status == 400


@pytest.mark.parametrize(
    ("accept", "packed"),
    [
        ("application/json, application/msgpack;q=0", False),
        ("application/json, application/msgpack;q=0.5", False),
        ("application/json;q=0.9, application/msgpack; q=1.0", True),
        ("application/json, application/msgpack", True),
        ("application/json;q=oops, application/msgpack;q=0.1", False),
    ],
)
async def test_the_form_of_an_answer_is_the_one_that_is_liked_more(place: Place, accept: str, packed: bool) -> None:
    answer = await place.ask("GET", "/v1/queues/q", None, Accept=accept)
    assert (answer.headers["content-type"] == "application/msgpack") == packed


async def test_what_is_said_of_a_bare_body_twice_is_refused(place: Place) -> None:
    headers = {"Content_Type": "application/octet-stream", "Capellini_Delay_S": "1"}
    put = await place.ask("POST", "/v1/queues/q/messages?delay_s=5", b"x", **headers)
    assert (put.status, "give it once" in put.json["says"]) == (400, True)
    assert not place.service.held["q"].ready
    assert (await place.ask("POST", "/v1/queues/q/messages?key=k", b"x", **headers)).status == 200


async def test_a_bare_body_with_a_header_that_nobody_knows_is_refused(place: Place) -> None:
    """A delay that is spelled wrong is not left out silently."""
    headers = {"Content_Type": "application/octet-stream", "Capellini_Producer": "me"}
    put = await place.ask("POST", "/v1/queues/q/messages", b"x", **headers, Capellini_Delay="60")
    assert (put.status, "capellini-delay is not a header" in put.json["says"]) == (400, True)
    assert not place.service.held["q"].ready
    assert (await place.ask("POST", "/v1/queues/q/messages", b"x", **headers)).status == 200


async def test_a_bare_body_that_is_too_large_for_the_queue_is_an_error_of_the_call(place: Place) -> None:
    await place.service.change("q", {"body_limit": 3})
    put = await place.ask("POST", "/v1/queues/q/messages", b"four", Content_Type="application/octet-stream")
    assert (put.status, put.json["error"]) == (413, "too_large")


async def test_the_fast_lane_passes_blocks_through(place: Place) -> None:
    packed = {"Content_Type": "application/msgpack"}
    block = msgspec.msgpack.encode([[b"one"], [b"two", {"a": "b"}, 0]])
    runs = await place.ask("POST", "/v1/queues/q/blocks/put", block, **packed)
    assert msgspec.msgpack.decode(runs.body) == [[1, 2]]
    taken = await place.ask("POST", "/v1/queues/q/blocks/get", msgspec.msgpack.encode([10, 0.0, None]), **packed)
    parcel = msgspec.msgpack.decode(taken.body)[0]
    assert parcel[1:5] == [1, 2, 1, CODE]
    assert [entry[0] for entry in parcel[7]] == [b"one", b"two"]
    acks = msgspec.msgpack.encode([ParcelAck(1, 1, 2, 1, CODE, [(0, 2)])])
    acked = await place.ask("POST", "/v1/queues/q/blocks/ack", acks, **packed)
    assert msgspec.msgpack.decode(acked.body) == [[[0, 2]]]
    assert (await place.ask("POST", "/v1/queues/q/blocks/put", {"no": 1})).status == 415


# ---- bad input


async def test_good_items_of_a_batch_work_beside_bad_ones(place: Place) -> None:
    items = [{"body": "a"}, {"body": "b", "colour": 1}, {"body": "c", "delay_s": -1}, {}, 7, {"body": "d"}]
    results = (await place.ask("POST", "/v1/queues/q/messages", {"messages": items})).json["results"]
    assert ["id" in each for each in results] == [True, False, False, False, False, True]
    assert "colour" in results[1]["says"]
    assert "delay_s" in results[2]["says"]
    assert "body" in results[3]["says"]
    assert len(place.service.held["q"].ready) == 2


async def test_text_that_is_not_utf8_spoils_its_own_message_only(place: Place) -> None:
    body = b'{"messages":[{"body":"\xff"},{"body":"good"}]}'
    answer = await place.ask("POST", "/v1/queues/q/messages", body, Content_Type="application/json")
    assert ["id" in each for each in answer.json["results"]] == [False, True]


async def test_good_acks_nacks_and_extends_work_beside_bad_ones(place: Place) -> None:
    await place.ask("POST", "/v1/queues/q/messages", {"messages": [{"body": str(each)} for each in range(3)]})
    got = (await place.ask("POST", "/v1/queues/q/messages/get", {"count": 3})).json["messages"]
    one, two, three = (each["receipt"] for each in got)
    acked = await place.ask("POST", "/v1/queues/q/messages/ack", {"receipts": [5, one]})
    assert ["error" in each for each in acked.json["results"]] == [True, False]
    nacked = await place.ask(
        "POST", "/v1/queues/q/messages/nack", {"items": [{"receipt": two}, {"receipt": two, "x": 1}]}
    )
    assert ["error" in each for each in nacked.json["results"]] == [False, True]
    extends = {"items": [{"receipt": three}, {"receipt": three, "visibility_s": 5}]}
    extended = await place.ask("POST", "/v1/queues/q/messages/extend", extends)
    assert ["error" in each for each in extended.json["results"]] == [True, False]


@pytest.mark.parametrize(
    ("method", "path", "body", "names"),
    [
        ("POST", "/v1/queues/q/messages", {"messages": [], "more": 1}, "more"),
        ("POST", "/v1/queues/q/messages", {}, "messages"),
        ("POST", "/v1/queues/q/messages/get", {"count": 0}, "count"),
        ("POST", "/v1/queues/q/messages/get", {"wait_s": 61}, "wait_s"),
        ("POST", "/v1/queues/q/messages/get", {"count": "5"}, "count"),
        ("POST", "/v1/queues/q/messages/ack", {"receipt": []}, "receipt"),
        ("PUT", "/v1/queues/q", {"options": {"colour": 1}}, "colour"),
        ("PUT", "/v1/queues/q", {"options": {"visibility_s": -1}}, "visibility_s"),
        ("PUT", "/v1/queues/a%20b", None, "queue name"),
        ("GET", "/v1/queues?limit=0", None, "limit"),
        ("GET", "/v1/queues?limit=x", None, "limit"),
        ("GET", "/v1/queues?colour=x", None, "colour"),
        ("GET", "/v1/queues?limit=1&limit=2", None, "twice"),
        ("GET", "/v1/queues/q/messages?count=1001", None, "count"),
        ("POST", "/v1/queues/q/debug/pointers", {"repair": -1}, "repair"),
        ("GET", "/v1/queues/q/debug/messages/x", None, "id"),
    ],
)
async def test_a_wrong_request_is_refused_naming_what_is_wrong(
    place: Place, method: str, path: str, body: Any, names: str
) -> None:
    answer = await place.ask(method, path, body)
    assert (answer.status, answer.json["error"]) == (400, "invalid")
    assert names in answer.json["says"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 5_000, b"\xff\xfe", b'{"messages":1e999}'])
async def test_what_is_no_json_is_refused(place: Place, body: bytes) -> None:
    answer = await place.ask("POST", "/v1/queues/q/messages", body, Content_Type="application/json")
    assert (answer.status, answer.json["error"]) == (400, "invalid")


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "names"),
    [
        ("POST", "/v1/queues/q/messages/get?wait_s=5", {}, {}, "wait_s"),
        ("DELETE", "/v1/queues/q?if_empty=true", None, {}, "if_empty"),
        ("POST", "/v1/queues/q/purge", {"before": 5}, {}, "before"),
        ("POST", "/v1/queues/q/messages?delay_s=5", {"messages": [{"body": "x"}]}, {}, "delay_s"),
        ("POST", "/v1/queues/q/messages", {"messages": [{"body": "x"}]}, {"capellini_key": "k"}, "capellini-key"),
    ],
)
async def test_what_nobody_would_read_is_refused(
    place: Place, method: str, path: str, body: Any, headers: dict[str, str], names: str
) -> None:
    place.service.held["q"].ready.clear()
    answer = await place.ask(method, path, body, **headers)
    assert (answer.status, answer.json["error"]) == (400, "invalid")
    assert names in answer.json["says"]
    assert not place.service.held["q"].ready


async def test_probes_may_add_a_query_and_a_call_without_fields_may_say_so(place: Place) -> None:
    assert (await place.ask("GET", "/health?from=probe")).status == 200
    assert (await place.ask("POST", "/v1/queues/q/purge", {})).status == 200


@pytest.mark.parametrize("half", [rb"\ud800", rb"\uDBFF x", rb"\udc00"])
async def test_half_a_character_is_called_so(place: Place, half: bytes) -> None:
    body = b'{"messages":[{"body":"fine \\ud83d\\ude00 %b"}]}' % half
    answer = await place.ask("POST", "/v1/queues/q/messages", body)
    assert answer.status == 400
    assert half[:6].decode() in answer.json["says"] and "body_base64" in answer.json["says"]


async def test_too_many_items_are_refused(place: Place) -> None:
    answer = await place.ask("POST", "/v1/queues/q/messages/ack", {"receipts": ["x"] * 1_001})
    assert answer.status in (400, 413)
    assert "1000" in answer.json["says"]


async def test_an_unknown_content_type_is_refused(place: Place) -> None:
    answer = await place.ask("POST", "/v1/queues/q/messages", b"x", Content_Type="text/plain")
    assert (answer.status, answer.json["error"]) == (415, "media_type")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Conflict("c"), 409), (Stale("s"), 409), (Paused("p"), 409), (Unavailable("u"), 503), (Unknown("k"), 503),
        (Full("f"), 503), (CapelliniError("e"), 500),
    ],
)  # fmt: skip
async def test_errors_of_the_service_become_statuses(place: Place, error: CapelliniError, status: int) -> None:
    place.service.fails = error
    answer = await place.ask("GET", "/v1/queues/q")
    assert (answer.status, answer.json) == (status, {"error": error.name, "says": error.says})
    assert ("retry-after" in answer.headers) == (error.retry_after_s is not None)


async def test_a_bug_in_the_node_is_an_error_500_and_the_connection_lives_on(place: Place) -> None:
    place.service.fails = ZeroDivisionError("a secret")
    wire = await place.wire()
    answer = await wire.ask("GET", "/v1/queues/q")
    assert (answer.status, "secret" in answer.json["says"]) == (500, False)
    place.service.fails = None
    assert (await wire.ask("GET", "/v1/queues/q")).status == 200


# ---- routes


async def test_routes_that_are_not_there(place: Place) -> None:
    assert (await place.ask("GET", "/v1/nothing")).status == 404
    wrong = await place.ask("DELETE", "/v1/queues")
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    options = await place.ask("OPTIONS", "/v1/queues/q")
    assert (options.status, options.headers["allow"]) == (204, "DELETE, GET, HEAD, OPTIONS, PATCH, PUT")


async def test_head_gives_the_head_of_a_get(place: Place) -> None:
    wire = await place.wire()
    head = await wire.ask("HEAD", "/v1/queues/q")
    get = await wire.ask("GET", "/v1/queues/q")
    assert (head.status, head.headers["content-length"]) == (200, str(len(get.body)))


@pytest.mark.parametrize(
    ("said", "puts", "gets"),
    [
        (None, True, True),
        ({}, True, True),
        ({"puts": True}, True, False),
        ({"gets": True}, False, True),
        ({"puts": False}, False, True),
        ({"puts": True, "gets": True}, True, True),
        ({"puts": False, "gets": False}, False, False),
    ],
)
async def test_who_names_one_side_of_a_queue_means_that_one(
    place: Place, said: dict[str, bool] | None, puts: bool, gets: bool
) -> None:
    paused = (await place.ask("POST", "/v1/queues/q/pause", said)).json
    assert (paused["puts_paused"], paused["gets_paused"]) == (puts, gets)
    await place.ask("POST", "/v1/queues/q/pause")
    resumed = (await place.ask("POST", "/v1/queues/q/resume", said)).json
    assert (resumed["puts_paused"], resumed["gets_paused"]) == (not puts, not gets)


async def test_queues_are_made_listed_changed_paused_and_deleted(place: Place) -> None:
    assert (await place.ask("PUT", "/v1/queues/r", {"kind": "work", "options": {"visibility_s": 5}})).status == 200
    assert [each["name"] for each in (await place.ask("GET", "/v1/queues?prefix=r")).json["queues"]] == ["r"]
    changed = await place.ask("PATCH", "/v1/queues/r", {"options": {"visibility_s": 6}})
    assert changed.json["options"]["visibility_s"] == 6
    assert (await place.ask("POST", "/v1/queues/r/pause", {"gets": False})).json["puts_paused"] is True
    resumed = (await place.ask("POST", "/v1/queues/r/resume")).json
    assert (resumed["puts_paused"], resumed["gets_paused"]) == (False, False)
    assert (await place.ask("GET", "/v1/queues/r/statistics")).json["ready"] == 0
    assert (await place.ask("DELETE", "/v1/queues/r")).status == 204
    assert (await place.ask("GET", "/v1/queues/r")).json["error"] == "not_found"


async def test_metrics_count_what_was_done(place: Place) -> None:
    await place.ask("POST", "/v1/queues/q/messages", {"messages": [{"body": "a"}, {"body": "b"}, {}]})
    text = (await place.ask("GET", "/metrics")).body.decode()
    assert 'capellini_messages_total{operation="put"} 2.0' in text
    assert 'capellini_requests_total{route="POST /v1/queues/{name}/messages",status="200"} 1.0' in text
    assert 'capellini_limit{limit="max_body"} 100000.0' in text


async def test_fields_of_an_array_are_called_by_their_names(place: Place) -> None:
    content = msgspec.msgpack.encode([1, 0.0, -5.0])
    answer = await place.ask("POST", "/v1/queues/q/blocks/get", content, Content_Type="application/msgpack")
    assert "$.visibility_s" in msgspec.msgpack.decode(answer.body)["says"]
