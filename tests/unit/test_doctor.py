"""The doctor's judgements, and what it finds in real folders and nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.memory_service import MemoryService

from capellini.api.server import Server
from capellini.cli.main import capellini
from capellini.model.address import RocksAddress
from capellini.model.errors import CannotOpen, CapelliniError, Invalid
from capellini.node import checks
from capellini.node.checks import Finding
from capellini.node.condition import Condition
from capellini.node.doctor import _looked, _settings, examine
from capellini.store import folder as folders
from capellini.store.cassandra_session import NoRights
from capellini.store.opening import open_store
from capellini.store.rocks.copying import copy


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (checks.answering(["127.0.0.1", "127.0.0.2"], {"127.0.0.1", "127.0.0.2"}), "ok"),
        (checks.answering(["127.0.0.1", "127.0.0.2"], {"127.0.0.1"}), "warn"),
        (checks.versions(["5.0.2", "5.0.2"]), "ok"),
        (checks.versions(["5.0.2", "4.1.0"]), "warn"),
        (checks.versions(["3.11.9"]), "bad"),
        (checks.replication({"class": "NetworkTopologyStrategy", "dc1": "3"}, {"dc1": 3}), "ok"),
        (checks.replication({"class": "NetworkTopologyStrategy", "dc1": "3"}, {"dc1": 1}), "bad"),
        (checks.replication({"class": "SimpleStrategy", "replication_factor": "1"}, {"dc1": 1}), "warn"),
        (checks.replication(None, {"dc1": 3}), "warn"),
        (checks.commitlog({"commitlog_sync": "periodic"}), "warn"),
        (checks.commitlog({"commitlog_sync": "batch"}), "ok"),
        (checks.commitlog({}), "warn"),
        (checks.paxos({"paxos_variant": "v1"}), "warn"),
        (checks.paxos({"paxos_variant": "v2"}), "ok"),
        (checks.skew([0.01, -0.02]), "ok"),
        (checks.skew([0.01, -0.2]), "warn"),
        (checks.skew([0.6, -0.2]), "bad"),
        (checks.schema([], [], 1, 1), "ok"),
        (checks.schema(["queues"], [], None, 1), "warn"),
        (checks.schema([], ["queues.kind is int"], 1, 1), "bad"),
        (checks.schema([], [], 2, 1), "bad"),
        (checks.schema([], [], 1, 2), "warn"),
        (checks.room(10 * 1024**3), "ok"),
        (checks.room(500 * 1024**2), "warn"),
        (checks.room(1024**2), "bad"),
        (checks.version_skew("1", "2"), "warn"),
    ],
)
def test_judgements(finding: Finding, state: str) -> None:
    assert finding.state == state
    assert finding.says
    assert bool(finding.do) == (state != "ok")


async def test_one_server_that_confirms_before_the_fsync_is_told_of() -> None:
    class Told:
        async def each(self, text: str) -> dict[str, list[list[str]]]:
            modes = {"10.0.0.1": "batch", "10.0.0.2": "periodic", "10.0.0.3": "batch"}
            return {host: [["commitlog_sync", mode], ["paxos_variant", "v2"]] for host, mode in modes.items()}

    log, paxos = await _settings(Told())
    assert (log.state, log.says.startswith("on 10.0.0.2: "), "group or batch" in log.do) == ("warn", True, True)
    assert paxos == checks.paxos({"paxos_variant": "v2"})


def states(findings: list[Finding]) -> dict[str, str]:
    return {each.name: each.state for each in findings}


async def test_a_folder_that_nobody_uses_yet(tmp_path: Path) -> None:
    found = await examine(f"rocks:{tmp_path}")
    assert states(found)["writable"] == states(found)["format"] == states(found)["lock"] == "ok"
    assert states(await examine(f"rocks:{tmp_path}/none")) == {"folder": "warn"}


async def test_a_folder_that_is_in_use_names_its_owner(tmp_path: Path) -> None:
    import os

    lock = folders.FolderLock(tmp_path)
    try:
        says = next(each.says for each in await examine(f"rocks:{tmp_path}") if each.name == "lock")
    finally:
        lock.release()
    assert str(os.getpid()) in says


async def test_a_newer_folder_is_bad(tmp_path: Path) -> None:
    folders.write_format(tmp_path, folders.FORMAT + 1)
    assert states(await examine(f"rocks:{tmp_path}"))["format"] == "bad"


async def test_a_node_well_unready_and_away() -> None:
    server = Server(MemoryService(), node_name="n1")
    _, port = await server.listen("127.0.0.1", 0)
    well = await examine(f"http://127.0.0.1:{port}")
    assert set(states(well).values()) == {"ok"}
    assert "n1" in well[0].says
    server.see(Condition(cut="dc1 is cut off"))
    cut = await examine(f"http://127.0.0.1:{port}")
    assert states(cut)["ready"] == "warn"
    health = await asyncio.to_thread(CliRunner().invoke, capellini, ["health", "--at", f"http://127.0.0.1:{port}"])
    assert (health.exit_code, health.output) == (0, "ready, but dc1 is cut off\n")
    server.see(Condition(skewed="the clocks are off", skew_s=2.0))
    ill = await examine(f"http://127.0.0.1:{port}")
    assert (states(ill)["ready"], states(ill)["clocks"]) == ("bad", "bad")
    assert any("the clocks are off" in each.says for each in ill)
    await server.close(0.1)
    assert states(await examine(f"http://127.0.0.1:{port}")) == {"reachable": "bad"}


@pytest.mark.parametrize("body", ["null", "[]", "{}", '{"reasons": 5}', '{"error": {"code": 404}}', "hello", ""])
async def test_another_server_is_not_taken_for_a_node(body: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    at = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert states(await examine(at)) == {"reachable": "bad"}
    for verb in ("health", "drain"):
        done = await asyncio.to_thread(CliRunner().invoke, capellini, [verb, "--at", at])
        assert isinstance(done.exception, CapelliniError), (verb, done.output, done.exception)
    server.close()


@pytest.mark.parametrize("harm", ["none", "current", "short", "lost"])
async def test_a_folder_whose_files_were_lost_or_changed_is_bad(tmp_path: Path, harm: str) -> None:
    store = await open_store(RocksAddress(f"{tmp_path}/s"))
    await store.close()
    store = await open_store(RocksAddress(f"{tmp_path}/s"))  # what the log had is in a table now
    await store.close()
    (table, *_) = (tmp_path / "s" / "data").glob("*.sst")
    match harm:
        case "current":
            (tmp_path / "s" / "data" / "CURRENT").unlink()
        case "short":
            table.write_bytes(table.read_bytes()[:-1])
        case "lost":
            table.unlink()
    assert states(await examine(f"rocks:{tmp_path}/s"))["tables"] == ("ok" if harm == "none" else "bad")
    if harm == "none":
        assert copy(tmp_path / "s", tmp_path / "copy").rows > 0
        return
    with pytest.raises(CannotOpen, match="restore the folder from a backup"):  # and no part of it is taken for a copy
        copy(tmp_path / "s", tmp_path / "copy")
    with pytest.raises(CannotOpen, match="restore the folder from a backup"):
        await open_store(RocksAddress(f"{tmp_path}/s"))


async def test_files_that_go_while_a_folder_is_looked_at_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stays").write_text("x")
    monkeypatch.setattr(Path, "rglob", lambda folder, pattern: [folder / "gone", folder / "stays"])
    monkeypatch.setattr(Path, "is_file", lambda path: True)  # it was, a moment ago
    assert states(await examine(f"rocks:{tmp_path}"))["last write"] == "ok"


async def test_a_folder_of_another_user_is_not_to_be_restored_from_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    folders.write_format(tmp_path, folders.FORMAT)
    monkeypatch.setattr(Path, "read_bytes", refused)
    (found,) = [each for each in await examine(f"rocks:{tmp_path}") if each.name == "format"]
    assert (found.state, "may not be read by this user" in found.says, "backup" in found.says) == ("bad", True, False)


async def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(Invalid):
        await examine("nonsense")


def test_the_command_says_it_for_people_and_programs(tmp_path: Path) -> None:
    folders.write_format(tmp_path, folders.FORMAT + 1)
    run = CliRunner().invoke(capellini, ["doctor", f"rocks:{tmp_path}"])
    assert run.exit_code == 1
    assert "bad  format:" in run.output
    run = CliRunner().invoke(capellini, ["doctor", "--json", f"rocks:{tmp_path}/none"])
    assert run.exit_code == 0
    assert '"state": "warn"' in run.output


def test_colours_are_for_those_who_want_them(tmp_path: Path) -> None:
    asked = ["doctor", f"rocks:{tmp_path}/none"]
    assert "\x1b[" in CliRunner().invoke(capellini, asked, color=True).output
    assert "\x1b[" not in CliRunner(env={"NO_COLOR": "1"}).invoke(capellini, asked, color=True).output


async def test_a_user_without_rights_is_told_to_get_them_and_not_to_wait() -> None:
    async def look(session: object) -> list[Finding]:
        raise NoRights("User bob has no SELECT permission")

    (found,) = await _looked("schema", look, None)
    assert (found.state, "grant" in found.do, "bob" in found.says) == ("bad", True, True)
    (found,) = await _looked("settings", look, None)
    assert (found.state, "grant" in found.do) == ("warn", True)
