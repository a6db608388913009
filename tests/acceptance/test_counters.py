"""Counters from the outside: a node over HTTP, the client on each kind of address, the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner
from tests.acceptance import client_processes as processes

from capellini.api.server import Server
from capellini.cli.main import capellini
from capellini.client.connecting import connect, connect_async
from capellini.model.counters import Counted, Update
from capellini.model.errors import Conflict, Invalid, NotFound
from capellini.model.service import Problem
from capellini.node.node import Node
from capellini.node.settings import Settings

pytestmark = pytest.mark.slow


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[str]:
    opened = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}"))
    server = Server(opened.service, store_counts=lambda: opened.store.counts)
    await server.listen("127.0.0.1", 0)
    yield server.addresses[0]
    await server.close(1.0)
    await opened.close()


async def test_updates_and_reads_over_http(node: str) -> None:
    async with httpx.AsyncClient(base_url=node) as http:
        assert (await http.post("/v1/counters/visits", json={})).json() == {"counted": True}
        assert (await http.post("/v1/counters/visits", json={"value": 4})).status_code == 200
        updates = [
            ["visits", 5],
            ["people", "ann", "set"],
            ["people", "bob", "set"],
            ["visits", "x"],
            ["a b", 1],
            7,
            [],
        ]
        answer = await http.post("/v1/counter-updates", json={"updates": updates})
        errors = [one.get("error", "") for one in answer.json()["results"]]
        assert errors == ["", "", "", "invalid", "invalid", "invalid", "invalid"]
        content = b'{"updates": [["visits", 1e999], ["visits", 0], ["far", 1e999, "quantiles"]]}'  # no number has that
        answer = await http.post("/v1/counter-updates", content=content, headers={"content-type": "application/json"})
        assert [one.get("error", "") for one in answer.json()["results"]] == ["invalid", "", "invalid"]
        found = (await http.get("/v1/counters/visits")).json()
        assert (found["value"], found["kind"], found["shards"]) == (10, "sum", 1)
        many = (await http.post("/v1/counter-reads", json={"counters": ["people", "none", "visits"]})).json()["results"]
        assert [one.get("value", one.get("error")) for one in many] == [["ann", "bob"], "not_found", 10]
        named = (await http.get("/v1/counters", params={"prefix": "v"})).json()
        assert named == {"counters": [{"name": "visits", "kind": "sum"}]}
        assert (await http.post("/v1/counters/visits/gc")).json()["shards"] == 0
        assert "capellini_counters_updates_total 6.0" in (await http.get("/metrics")).text


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/v1/counters/visits", {"value": 1.5}, 400),
        ("/v1/counters/visits", {"kind": "set", "value": "x"}, 409),
        ("/v1/counters/visits", {"kind": "nothing"}, 400),
        ("/v1/counters/a%20b", {}, 400),
        ("/v1/counters/visits", {"more": 1}, 400),
        ("/v1/counter-updates", {"updates": "x"}, 400),
        ("/v1/counter-updates", {"updates": [["n"]] * 10_001}, 413),
        ("/v1/counter-reads", {"counters": [5]}, 400),
        ("/v1/counter-intersection", {"counters": ["visits"]}, 400),
        ("/v1/counter-intersection", {"counters": ["visits", "visits"]}, 400),
        ("/v1/counters/none/gc", None, 404),
    ],
)
async def test_bad_requests_change_nothing(node: str, path: str, content: Any, status: int) -> None:
    async with httpx.AsyncClient(base_url=node) as http:
        await http.post("/v1/counters/visits", json={})
        answer = await http.post(path, json=content)
        assert answer.status_code == status and answer.json()["says"]
        assert (await http.get("/v1/counters/visits")).json()["value"] == 1
        assert len((await http.get("/v1/counters")).json()["counters"]) == 1


async def test_the_client_counts_through_a_node(node: str) -> None:
    async with connect_async(node) as client:
        counters = client.counters
        await asyncio.gather(*(counters.add("n") for _ in range(50)))
        assert (await counters.read("n")).value == 50
        results = await counters.update_many([Update("n", 1), Update("n", None)])
        assert isinstance(results[0], Counted) and isinstance(results[1], Problem)
        await counters.update("words", [f"w{at}" for at in range(100)], "theta")
        await counters.update("more", [f"w{at}" for at in range(50, 150)], "theta")
        assert (await counters.intersection(["words", "more"]))["estimate"] == 50
        assert (await counters.read("words", sketch=True)).sketch
        assert [one.name for one in await counters.listed()] == ["more", "n", "words"]
        assert (await counters.collect("n")).deferred == ""
        with pytest.raises(NotFound):
            await counters.read("none")
        with pytest.raises(Conflict):
            await counters.update("words", [1])
        with pytest.raises(Invalid):
            await counters.update("n", ["x"])


def test_processes_that_share_a_folder_count_together(tmp_path: Path) -> None:
    address = f"rocks:{tmp_path / 'shared'}"
    with connect(address) as owner, connect(address) as guest:
        owner.counters.add("n", 2)
        guest.counters.add("n", 3)
        assert owner.counters.read("n").value == guest.counters.read("n").value == 5
    with connect(address) as again:
        assert again.counters.read("n").value == 5


def test_the_command_line(tmp_path: Path) -> None:
    at = ["--at", f"rocks:{tmp_path / 'store'}"]

    def run(*words: str) -> Any:
        return CliRunner().invoke(capellini, ["counter", *words], catch_exceptions=False)

    assert run("add", *at, "visits").exit_code == 0
    assert run("add", *at, "visits", "5", "--", "-2").exit_code == 0
    assert run("add", *at, "people", "--kind", "set", "ann", "bob").exit_code == 0
    assert run("read", *at, "visits").stdout == "4\n"
    assert run("read", *at, "visits", "people").stdout == 'visits\t4\npeople\t["ann","bob"]\n'
    assert run("list", *at).stdout == "people\tset\nvisits\tsum\n"
    assert json.loads(run("gc", *at, "--json", "visits").stdout)[0]["shards"] == 0
    assert json.loads(run("read", *at, "--json", "people").stdout)[0]["value"] == ["ann", "bob"]
    missing = run("read", *at, "nothing")
    assert missing.exit_code == 1 and "nothing" in missing.stderr
    bad = run("add", *at, "visits", "x")
    assert bad.exit_code == 2 and "whole number" in bad.stderr


def test_statistics_of_queues_on_the_command_line(tmp_path: Path) -> None:
    at = ["--at", f"rocks:{tmp_path / 'store'}"]

    def run(*words: str) -> str:
        done = CliRunner().invoke(capellini, [*words, *at], catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    run("queue", "create", "jobs")
    for body in "abc":
        run("put", "jobs", body)  # each a program of its own
    run("get", "jobs", "--count", "2", "--ack")
    run("counter", "add", "mine")
    shown = json.loads(run("queue", "show", "jobs", "--json"))["statistics"]
    assert {name: shown[name] for name in ("puts", "deliveries", "acks", "nacks", "dead_letters")} == {
        "puts": 3, "deliveries": 2, "acks": 2, "nacks": 0, "dead_letters": 0,
    }  # fmt: skip
    lines = [line.split(maxsplit=1) for line in run("queue", "show", "jobs").splitlines()]
    rows = {words[0]: words[-1] for words in lines if words}
    assert rows["puts"].strip() == "3" and rows["producers"].strip() == "about 3"
    assert rows["delivered_after_s"].startswith("about 50% within ")
    assert run("counter", "list") == "mine\tsum\n"
    assert run("counter", "list", "--queues") == "queue:jobs:1\tqueue\n"
    assert json.loads(run("counter", "read", "queue:jobs:1"))["puts"] == 3


def test_a_killed_node_loses_a_second_of_statistics_at_most(tmp_path: Path) -> None:
    with processes.running_node(tmp_path / "data") as node, connect(node.address) as client:
        client.create_queue("jobs")
        client.put_many("jobs", [b"x"] * 10)
        assert client.statistics("jobs").puts == 10  # a read flushes what the node has
        client.put_many("jobs", [b"x"] * 5)
        node.kill()
        node.start()
        found = client.statistics("jobs")
        assert found.ready == 15 and 10 <= found.puts <= 15
        client.put_many("jobs", [b"x"] * 5)
        assert client.statistics("jobs").puts == found.puts + 5


def test_readings_are_plain_values() -> None:
    assert msgspec.json.encode(Counted()) == b'{"counted":true}'


@pytest.mark.parametrize("through", ["http", "folder"])
async def test_several_updates_of_one_call_all_count_or_none(node: str, tmp_path: Path, through: str) -> None:
    async with connect_async(node if through == "http" else f"rocks:{tmp_path / 'other'}") as client:
        with pytest.raises(Invalid, match="whole number"):
            await client.counters.update("part", [5, "x", 3])
        with pytest.raises(NotFound):
            await client.counters.read("part")
        await client.counters.update("part", [5, 3])
        assert (await client.counters.read("part")).value == 8


async def test_a_total_beyond_64_bits_is_read_like_any_other(node: str) -> None:
    async with connect_async(node) as client:
        for _ in range(3):
            await client.counters.add("huge", 2**63 - 1)
        await client.counters.add("small", 1)
        found = await client.counters.read_many(["small", "huge"])
        assert [one.value for one in found if not isinstance(one, Problem)] == [1, 3 * (2**63 - 1)]


@pytest.mark.parametrize("through", ["http", "folder"])
async def test_what_is_no_series_of_updates_is_refused_and_counts_nothing(
    node: str, tmp_path: Path, through: str
) -> None:
    wrong: list[Any] = ["ann", b"ann", {"item": "ann", "weight": 5}, 5, None]
    async with connect_async(node if through == "http" else f"rocks:{tmp_path / 'other'}") as client:
        for updates in wrong:
            with pytest.raises(Invalid, match="in a list"):
                await client.counters.update("people", updates, "frequent")
        await client.counters.update("people", [], "frequent")
        with pytest.raises(NotFound):
            await client.counters.read("people")
        each: Any = (one for one in ("ann", "bob"))
        await client.counters.update("people", each, "set")
        await client.counters.update("people", {"cid"}, "set")  # type: ignore[arg-type]
        assert (await client.counters.read("people")).value == ["ann", "bob", "cid"]


@pytest.mark.parametrize("through", ["http", "folder"])
async def test_bad_names_and_kinds_are_refused_alike_wherever_counters_are(
    node: str, tmp_path: Path, through: str
) -> None:
    async with connect_async(node if through == "http" else f"rocks:{tmp_path / 'other'}") as client:
        counters = client.counters
        bad: list[Any] = ["", "a b", "x" * 201, "\ud800", None, 5, b"x"]
        for name in bad:
            for call in (counters.add(name), counters.update(name, []), counters.read(name), counters.collect(name)):
                with pytest.raises(Invalid):
                    await call
        for wrong in ({"prefix": None}, {"after": "\ud800"}, {"limit": "5"}, {"limit": 0}, {"limit": True}):
            with pytest.raises(Invalid):
                await counters.listed(**wrong)
        kind: Any = ["sum"]
        with pytest.raises(Invalid):
            await counters.update("n", [1], kind)
        results = await counters.update_many([Update("n", 1), Update("n", 1, kind), Update(kind, 1)])
        assert [isinstance(one, Counted) for one in results] == [True, False, False]
        found = await counters.read_many(["n", "", "x" * 201, "a b", "none"])
        errors = [one.error if isinstance(one, Problem) else one.value for one in found]
        assert errors == [1, "invalid", "invalid", "invalid", "not_found"]


def test_a_value_that_is_no_utf_8_is_refused_in_a_sentence(tmp_path: Path) -> None:
    at = f"rocks:{tmp_path / 'store'}"
    result = CliRunner().invoke(capellini, ["counter", "add", "names", "ok", "\udcff", "--kind", "set", "--at", at])
    assert result.exit_code == 2 and "Error" in result.output, result.output


def test_collecting_several_counters_goes_on_after_a_bad_name(tmp_path: Path) -> None:
    at = ["--at", f"rocks:{tmp_path / 'store'}"]
    assert CliRunner().invoke(capellini, ["counter", "add", "visits", *at]).exit_code == 0
    result = CliRunner().invoke(capellini, ["counter", "gc", "none", "a b", "visits", *at])
    assert result.exit_code == 1 and "visits\t0 shards" in result.output
    assert "none: there is no counter" in result.output and "a b: " in result.output
    assert CliRunner().invoke(capellini, ["counter", "gc", "a b", *at]).exit_code == 2
