"""Timed queues and schedules over HTTP: a real node on a folder, asked as any HTTP client asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from capellini.api.server import Server
from capellini.node.node import Node
from capellini.node.settings import Settings

pytestmark = pytest.mark.slow

DEADLINE_S = 30.0
PACKED = {"content-type": "application/msgpack"}


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    node = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}", listen="127.0.0.1:0"))
    server = Server(node.service, drain=node.drain, peer=node.serve_peer)
    host, port = await server.listen("127.0.0.1", 0)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=DEADLINE_S) as client:
        made = await client.put("/v1/queues/later", json={"kind": "timed", "options": {"shards": 2}})
        assert (made.status_code, made.json()["kind"], made.json()["options"]["shards"]) == (200, "timed", 2)
        yield client
    await server.close(1.0)
    await node.close()


async def put(http: httpx.AsyncClient, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await http.post("/v1/queues/later/messages", json={"messages": list(messages)})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


async def get(http: httpx.AsyncClient, count: int = 10, wait_s: float = 10.0) -> list[dict[str, Any]]:
    answer = await http.post("/v1/queues/later/messages/get", json={"count": count, "wait_s": wait_s})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


async def test_due_is_a_time_with_a_zone_or_seconds_and_the_past_means_at_once(http: httpx.AsyncClient) -> None:
    soon_s = time.time() + 0.8
    results = await put(
        http,
        {"body": "past", "due": "2001-02-03T04:05:06Z"},
        {"body": "soon", "due": datetime.fromtimestamp(soon_s, UTC).isoformat()},
        {"body": "sooner", "due": soon_s - 0.2},
        {"body": "far", "due": "2031-01-01T00:00:00+02:00"},
        {"body": "delayed", "delay_s": 0.1},
    )
    assert [set(each) for each in results] == [{"id", "duplicate"}] * 5
    seen: dict[str, float] = {}
    async with asyncio.timeout(DEADLINE_S):
        while len(seen) < 4:
            for message in await get(http):
                seen[message["body"]] = time.time()
    assert next(iter(seen)) in ("past", "delayed")
    assert seen["soon"] >= soon_s and seen["sooner"] >= soon_s - 0.2


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"due": "2031-01-01T00:00:00"}, "timezone"),
        ({"due": "tomorrow"}, "RFC3339"),
        ({"due": 1e12}, "10 years ahead"),
        ({"due": 1_900_000_000_000}, "10 years ahead"),
        ({"due": "2030-01-01T00:00:00Z", "delay_s": 5}, "either due or delay_s"),
        ({"delay_s": 1e9}, "315360000"),
        ({"delay_s": -1}, ">= 0"),
    ],
)
async def test_bad_dues_are_the_problem_of_their_message(
    http: httpx.AsyncClient, message: dict[str, Any], says: str
) -> None:
    good, bad = await put(http, {"body": "good", "delay_s": 3e8}, {"body": "bad", **message})
    assert "id" in good
    assert (bad["error"], says in bad["says"]) == ("invalid", True), bad


async def test_a_bare_body_has_its_due_in_a_header_or_the_query(http: httpx.AsyncClient) -> None:
    octets = {"content-type": "application/octet-stream"}
    for more, query in (({"capellini-due": "2031-05-09T07:08:09Z"}, {}), ({}, {"due": "1936076889"})):
        done = await http.post("/v1/queues/later/messages", content=b"x", headers={**octets, **more}, params=query)
        assert done.status_code == 200, done.text
    wrong = await http.post("/v1/queues/later/messages", content=b"x", headers={**octets, "capellini-due": "noon"})
    assert wrong.status_code == 400
    found = (await http.get("/v1/queues/later/due")).json()["messages"]
    assert [each["due_at"] for each in found] == [1936076889.0, 1936076889.0]


async def test_messagepack_carries_times_as_numbers_text_or_timestamps(http: httpx.AsyncClient) -> None:
    at = datetime(2031, 5, 6, tzinfo=UTC)
    messages = [{"body": b"\xff", "due": due} for due in (at, at.isoformat(), at.timestamp())]
    body = msgspec.msgpack.encode({"messages": messages})
    answer = await http.post("/v1/queues/later/messages", content=body, headers=PACKED)
    assert answer.status_code == 200, answer.text
    found = (await http.get("/v1/queues/later/due", params={"from": at.isoformat()})).json()["messages"]
    assert [(each["due_at"], each["body_base64"]) for each in found] == [(at.timestamp(), "/w==")] * 3


async def test_what_is_scheduled_is_cancelled_and_moved_by_its_id(http: httpx.AsyncClient) -> None:
    ids = [each["id"] for each in await put(http, *[{"body": f"{n}", "due": "2031-01-01T00:00:00Z"} for n in range(3)])]
    (sooner,) = (await http.post("/v1/queues/later/messages/move", json={"items": [{"id": ids[0], "due": 1}]})).json()[
        "results"
    ]
    assert sooner["visible_at"] is not None
    (first,) = await get(http)
    assert (first["id"], first["body"]) == (ids[0], "0")
    answer = await http.post("/v1/queues/later/messages/cancel", json={"ids": [ids[1], ids[0], "nonsense", 5]})
    cancelled = answer.json()["results"]
    assert cancelled[0] == {"visible_at": None}
    assert [each["error"] for each in cancelled[1:]] == ["conflict", "invalid", "invalid"]
    await http.post("/v1/queues/later/messages/ack", json={"receipts": [first["receipt"]]})
    again = await http.post("/v1/queues/later/messages/cancel", json={"ids": ids[:2]})
    assert [each["error"] for each in again.json()["results"]] == ["not_found", "not_found"]
    gone = await http.post("/v1/queues/later/messages/move", json={"items": [{"id": ids[1], "due": 2e9}]})
    assert gone.json()["results"][0]["error"] == "not_found"
    far = await http.post("/v1/queues/later/messages/move", json={"items": [{"id": ids[2], "due": 9e9}]})
    assert far.json()["results"][0]["error"] == "invalid"
    left = (await http.get("/v1/queues/later/messages")).json()["messages"]
    assert [each["id"] for each in left] == [ids[2]]


async def test_what_is_due_between_two_times_is_listed_in_order_and_in_pages(http: httpx.AsyncClient) -> None:
    base = 1_900_000_000
    await put(http, *[{"body": f"{n}", "due": base + 10 * n} for n in (4, 1, 3, 0, 2)])
    page = await http.get("/v1/queues/later/due", params={"from": base + 10, "to": base + 40, "count": 2})
    bodies = [each["body"] for each in page.json()["messages"]]
    assert bodies == ["1", "2"]
    last = page.json()["messages"][-1]
    more = await http.get("/v1/queues/later/due", params={"from": last["due_at"], "to": base + 40, "after": last["id"]})
    assert [each["body"] for each in more.json()["messages"]] == ["3"]
    assert (await http.get("/v1/queues/later/due", params={"from": 10, "to": 5})).status_code == 400
    assert (await http.get("/v1/queues/later/due", params={"from": "noon"})).status_code == 400
    wrong = await http.get("/v1/queues/later/due", params={"after": "zzz"})
    assert (wrong.status_code, wrong.json()["error"]) == (400, "invalid")


async def test_shards_are_shown_stopped_and_started(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            shards = (await http.get("/v1/queues/later/shards")).json()["shards"]
            if all(each["state"] == "started" for each in shards):
                break
            await asyncio.sleep(0.05)
    assert [each["shard"] for each in shards] == [0, 1]
    for shard in (0, 1):
        stopped = await http.post(f"/v1/queues/later/shards/{shard}/stop")
        assert (stopped.status_code, stopped.json()["state"]) == (200, "stopped")
    await put(http, {"body": "held back"})
    assert await get(http, wait_s=0.3) == []
    for shard in (0, 1):
        assert (await http.post(f"/v1/queues/later/shards/{shard}/start")).json()["state"] == "started"
    assert [each["body"] for each in await get(http)] == ["held back"]
    for wrong in ("7", "-1", "x", "99999999"):
        assert (await http.post(f"/v1/queues/later/shards/{wrong}/stop")).status_code == 400


async def test_calls_of_another_kind_are_refused_clearly(http: httpx.AsyncClient) -> None:
    await http.put("/v1/queues/jobs")
    refused = [
        await http.get("/v1/queues/jobs/shards"),
        await http.get("/v1/queues/jobs/due"),
        await http.post("/v1/queues/jobs/messages/cancel", json={"ids": ["1"]}),
        await http.get("/v1/queues/later/debug/buckets"),
        await http.post("/v1/queues/later/blocks/put", content=msgspec.msgpack.encode([[b"x"]]), headers=PACKED),
        await http.post("/v1/queues/later/blocks/get", content=msgspec.msgpack.encode([1]), headers=PACKED),
    ]
    for each in refused:
        problem = msgspec.msgpack.decode(each.content) if b"{" not in each.content[:1] else each.json()
        assert (each.status_code, problem["error"]) == (400, "wrong_kind"), each.text
    due_in_work = await http.post("/v1/queues/jobs/messages", json={"messages": [{"body": "x", "due": 1}]})
    assert "timed queues" in due_in_work.json()["results"][0]["says"]
    letters = await http.put("/v1/queues/bad", json={"options": {"delivery_limit": 1, "dead_letters": "later"}})
    assert (letters.status_code, "work queue" in letters.json()["says"]) == (409, True)


async def test_options_of_timed_queues_are_checked(http: httpx.AsyncClient) -> None:
    for options in ({"shards": 0}, {"shards": 10_000}, {"granularity": "second"}, {"bucket_size": 10}, {"shards": 1.5}):
        made = await http.put("/v1/queues/other", json={"kind": "timed", "options": options})
        assert made.status_code == 400, made.text
    changed = await http.patch("/v1/queues/later", json={"options": {"granularity": "day"}})
    assert (changed.status_code, "cannot change" in changed.json()["says"]) == (409, True)
    assert (await http.patch("/v1/queues/later", json={"options": {"shards": 4}})).json()["options"]["shards"] == 4


async def test_dead_letters_go_to_a_work_queue_and_come_back(http: httpx.AsyncClient) -> None:
    await http.put("/v1/queues/letters")
    options = {"delivery_limit": 1, "dead_letters": "letters"}
    await http.patch("/v1/queues/later", json={"options": options})
    await put(http, {"body": "unlucky"})
    (message,) = await get(http)
    await http.post("/v1/queues/later/messages/nack", json={"items": [{"receipt": message["receipt"], "delay_s": 0}]})
    async with asyncio.timeout(DEADLINE_S):
        while not (await http.get("/v1/queues/later/dead")).json()["messages"]:
            await get(http, wait_s=0.1)
    assert (await http.get("/v1/queues/later/statistics")).json()["dead"] == 1
    assert (await http.post("/v1/queues/later/redrive")).json() == {"moved": 1}
    (again,) = await get(http)
    assert (again["body"], again["deliveries"]) == ("unlucky", 1)


async def test_pause_purge_and_delete_work_as_for_all_queues(http: httpx.AsyncClient) -> None:
    await put(http, {"body": "x"}, {"body": "y", "delay_s": 1e6})
    await http.post("/v1/queues/later/pause", json={"gets": True, "puts": False})
    assert (await http.post("/v1/queues/later/messages/get", json={})).json()["error"] == "paused"
    await http.post("/v1/queues/later/resume")
    assert (await http.get("/v1/queues/later/statistics")).json()["puts"] == 2
    await http.post("/v1/queues/later/purge")
    assert await get(http, wait_s=0.2) == []
    assert (await http.get("/v1/queues/later/messages")).json()["messages"] == []
    await put(http, {"body": "new"})
    assert [each["body"] for each in await get(http)] == ["new"]
    assert (await http.delete("/v1/queues/later")).status_code == 204
    assert (await http.post("/v1/queues/later/messages/get", json={})).status_code == 404


async def test_schedules_are_added_listed_and_removed(http: httpx.AsyncClient) -> None:
    new = {"queue": "later", "cron": "0 8 * * MON-FRI", "zone": "Europe/Berlin", "body": "wake", "missed": "catch_up"}
    made = await http.put("/v1/schedules/morning", json=new)
    assert made.status_code == 200, made.text
    assert {name: made.json()[name] for name in new} == new and len(made.json()["next_at"]) == 3
    assert (await http.put("/v1/schedules/morning", json=new)).json()["created_at"] == made.json()["created_at"]
    assert (await http.put("/v1/schedules/morning", json={**new, "body": "sleep"})).status_code == 409
    packed = msgspec.msgpack.encode({"queue": "later", "cron": "* * * * *", "body": b"\xff"})
    assert (await http.put("/v1/schedules/bytes", content=packed, headers=PACKED)).status_code == 200
    listed = (await http.get("/v1/schedules")).json()["schedules"]
    assert [(each["name"], each.get("body"), each.get("body_base64")) for each in listed] == [
        ("bytes", None, "/w=="), ("morning", "wake", None),
    ]  # fmt: skip
    assert [each["name"] for each in (await http.get("/v1/schedules?prefix=m")).json()["schedules"]] == ["morning"]
    assert (await http.delete("/v1/schedules/morning")).status_code == 204
    assert (await http.delete("/v1/schedules/morning")).status_code == 404
    assert (await http.delete("/v1/schedules/bytes")).status_code == 204


@pytest.mark.parametrize(
    ("change", "status"),
    [({"cron": "61 * * * *"}, 400), ({"cron": ""}, 400), ({"zone": "Mars/Base"}, 400), ({"queue": "nowhere"}, 404),
     ({"missed": "perhaps"}, 400), ({"colour": 1}, 400), ({"body_base64": "eA==", "body": "x"}, 400)],
)  # fmt: skip
async def test_bad_schedules_are_refused(http: httpx.AsyncClient, change: dict[str, Any], status: int) -> None:
    new = {"queue": "later", "cron": "* * * * *", **change}
    assert (await http.put("/v1/schedules/bad", json=new)).status_code == status
    assert (await http.get("/v1/schedules")).json()["schedules"] == []


async def test_ticks_arrive_and_say_which_tick_they_are(http: httpx.AsyncClient) -> None:
    await http.put("/v1/schedules/often", json={"queue": "later", "cron": "* * * * * *", "body": "tick"})
    ticks: list[str] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(ticks) < 3:
            found = await get(http)
            ticks += [each["attributes"]["tick"] for each in found]
            assert all(datetime.fromisoformat(tick).timestamp() <= time.time() for tick in ticks)
    assert len(set(ticks)) == len(ticks)
    await http.delete("/v1/schedules/often")
    assert (await http.get("/v1/queues/later/due")).json()["messages"] == []


async def test_who_is_no_node_may_not_ask_as_one(http: httpx.AsyncClient) -> None:
    forged = msgspec.msgpack.encode([int(time.time() * 1000), b"x" * 16, msgspec.msgpack.encode([1, 0, []])])
    for body in (b"", b"nonsense", forged):
        answer = await http.post("/v1/peers/later/take", content=body, headers=PACKED)
        assert (answer.status_code, msgspec.msgpack.decode(answer.content)["error"]) == (400, "invalid")


async def test_of_one_key_given_twice_in_a_call_the_first_is_the_message(http: httpx.AsyncClient) -> None:
    named = [("a", "k"), ("b", "k"), ("c", "other"), ("d", "k")]
    results = await put(http, *({"body": body, "key": key, "delay_s": 60} for body, key in named))
    assert [each["duplicate"] for each in results] == [False, True, False, True]
    assert len({results[index]["id"] for index in (0, 1, 3)}) == 1
    due = (await http.get("/v1/queues/later/due")).json()["messages"]
    assert sorted(each["body"] for each in due) == ["a", "c"]
