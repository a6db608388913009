"""Local clusters without starting one: settings, addresses, pids that are reused, leftovers."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from capellini.cli.cluster import cluster as cluster_command
from capellini.local import addresses, config, cql, jars, processes, state
from capellini.local.cluster import LocalCluster, remove_leftovers, storage_argument
from capellini.local.errors import ClusterError
from capellini.local.processes import ProcessId
from capellini.local.state import STATE_FILE, Shape

SHOWN_TIMEOUT_S = 60.0
SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test here sees the clusters of this machine."""
    monkeypatch.setenv("CAPELLINI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ProcessId]:
    process = processes.start(SLEEPER, tmp_path / "output", os.environ)
    yield process
    processes.stop(process, grace_s=0)


def planned(folder: Path, owner: ProcessId | None = None, **shape: object) -> state.ClusterState:
    chosen = msgspec.convert({"nodes": 3, **shape}, Shape)
    return state.plan("plan", folder, 7, chosen, owner)


# ---- settings


def test_nodes_of_two_data_centres_take_turns(tmp_path: Path) -> None:
    assert [node.config.dc for node in planned(tmp_path, dcs=2).nodes] == ["dc1", "dc2", "dc1"]


def test_tokens_are_distinct_and_evenly_spread() -> None:
    tokens = sorted(token for number in (1, 2, 3) for token in config.tokens_of(number, 3))
    steps = {after - before for before, after in itertools.pairwise(tokens)}
    assert len(set(tokens)) == 12
    assert len(steps) == 1
    assert tokens[0] >= -(2**63) and tokens[-1] < 2**63


@pytest.mark.parametrize("sync", config.COMMITLOG_SYNCS)
def test_commitlog_sync_reaches_the_settings(tmp_path: Path, sync: str) -> None:
    text = config.cassandra_yaml(planned(tmp_path, commitlog_sync=sync).nodes[0].config)
    assert f"commitlog_sync: {sync}\n" in text
    assert ("commitlog_sync_group_window" in text) == (sync == "group")


def test_settings_name_the_node_and_all_seeds(tmp_path: Path) -> None:
    node = planned(tmp_path).nodes[1].config
    text = config.cassandra_yaml(node)
    assert "listen_address: 127.0.7.2\n" in text
    assert "seeds: '127.0.7.1,127.0.7.2,127.0.7.3'" in text
    assert "paxos_variant: v2\n" in text


def test_files_lie_where_the_command_line_looks(tmp_path: Path) -> None:
    node = planned(tmp_path).nodes[0].config
    config.write_files(node)
    command = config.java_command(node, Path("/java"), tmp_path / "jars")
    told = next(part for part in command if part.startswith("-Dcassandra.config=file://"))
    assert Path(told.partition("file://")[2]).read_text() == config.cassandra_yaml(node)
    class_path = command[command.index("-cp") + 1].split(os.pathsep)
    assert (Path(class_path[0]) / "cassandra-rackdc.properties").read_text() == "dc=dc1\nrack=rack1\n"
    assert storage_argument(tmp_path, 1) in command


def test_memory_reaches_the_command_line(tmp_path: Path) -> None:
    for shape, heap_mb in (({}, config.HEAP_MB), ({"heap_mb": 2_048}, 2_048)):
        command = config.java_command(planned(tmp_path, **shape).nodes[0].config, Path("/java"), tmp_path / "jars")
        assert f"-Xms{heap_mb}m" in command and f"-Xmx{heap_mb}m" in command


def test_no_two_nodes_of_two_clusters_share_a_port_for_jmx() -> None:
    ports = [addresses.jmx_port_of(x, n) for x in addresses.SUBNETS for n in range(1, addresses.MOST_NODES + 1)]
    assert len(set(ports)) == len(ports)
    assert max(ports) < 32_768


# ---- addresses


def claim(cache: Path, name: str) -> int:
    file = cache / name / STATE_FILE

    def settle(subnet: int) -> None:
        file.parent.mkdir(parents=True)
        file.write_text(str(subnet))

    return addresses.claim_subnet(cache / "subnets.json", file, 1, False, settle)


def test_clusters_get_subnets_of_their_own_and_give_them_back(own_cache: Path) -> None:
    first, second = claim(own_cache, "one"), claim(own_cache, "two")
    assert first != second
    (own_cache / "one" / STATE_FILE).unlink()
    assert claim(own_cache, "three") == first


def test_subnets_claimed_at_once_are_distinct(own_cache: Path) -> None:
    got: list[int] = []
    threads = [threading.Thread(target=lambda n=n: got.append(claim(own_cache, f"c{n}"))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(got)) == 8


def test_a_subnet_with_a_taken_port_is_passed_over(own_cache: Path) -> None:
    free = claim(own_cache, "probe")
    (own_cache / "probe" / STATE_FILE).unlink()
    with socket.create_server((addresses.address_of(free, 1, False), config.CQL_PORT)):
        assert claim(own_cache, "next") != free


# ---- processes


def test_a_reused_pid_is_never_signalled(sleeper: ProcessId) -> None:
    before_reuse = msgspec.structs.replace(sleeper, started=sleeper.started - 1)
    assert processes.state_of(before_reuse) == "down"
    assert not processes.send(before_reuse, signal.SIGKILL)
    assert processes.state_of(sleeper) == "running"


def test_a_pid_of_another_boot_is_never_signalled(sleeper: ProcessId) -> None:
    assert not processes.send(msgspec.structs.replace(sleeper, boot="earlier"), signal.SIGKILL)
    assert processes.state_of(sleeper) == "running"


def test_pause_resume_and_stop_are_seen(sleeper: ProcessId) -> None:
    assert processes.send(sleeper, signal.SIGSTOP)
    assert processes.wait_for_state(sleeper, "paused", timeout_s=10)
    assert processes.send(sleeper, signal.SIGCONT)
    assert processes.wait_for_state(sleeper, "running", timeout_s=10)
    processes.stop(sleeper, grace_s=10)
    assert processes.state_of(sleeper) == "down"
    assert not processes.send(sleeper, signal.SIGTERM)


def test_a_paused_process_is_stopped_within_the_grace(sleeper: ProcessId) -> None:
    processes.send(sleeper, signal.SIGSTOP)
    processes.stop(sleeper, grace_s=10)
    assert processes.state_of(sleeper) == "down"


def test_only_what_is_started_with_slack_is_woken_late(tmp_path: Path) -> None:
    own = Path("/proc/self/timerslack_ns")
    usual_us = int(own.read_text()) // 1_000

    def slack_us(us: int) -> int:
        output = tmp_path / f"output-{us}"
        process = processes.start(["/bin/cat", str(own)], output, os.environ, us)
        assert processes.wait_for_state(process, "down", timeout_s=60)
        return int(output.read_text()) // 1_000

    assert [slack_us(700), slack_us(0)] == [700, usual_us]
    assert int(own.read_text()) // 1_000 == usual_us


def test_a_command_name_with_brackets_is_read_right(tmp_path: Path) -> None:
    odd = tmp_path / "a) R (b"
    odd.symlink_to("/bin/sleep")
    process = processes.start([str(odd), "60"], tmp_path / "output", os.environ)
    try:
        assert processes.identify(process.pid) == process
        assert processes.state_of(process) == "running"
    finally:
        processes.stop(process, grace_s=0)


# ---- leftovers


def dead_process() -> ProcessId:
    child = subprocess.Popen(SLEEPER)
    process = processes.identify(child.pid)
    child.kill()
    child.wait()
    assert process is not None
    return process


def test_down_finds_a_process_that_was_never_written_down(tmp_path: Path) -> None:
    folder = tmp_path / "crashed"
    argument = storage_argument(folder, 2)
    lost = processes.start([*SLEEPER, argument], tmp_path / "output", os.environ)
    deadline_s = time.monotonic() + SHOWN_TIMEOUT_S
    while not processes.find_by_argument(argument):  # the kernel shows a command line a moment after the start
        assert time.monotonic() < deadline_s
    LocalCluster("crashed", folder).down()
    assert processes.state_of(lost) == "down"


def test_clusters_of_dead_owners_are_taken_down_and_others_are_not(own_cache: Path, sleeper: ProcessId) -> None:
    for name, owner in (("left", dead_process()), ("owned", processes.identify(os.getpid())), ("kept", None)):
        folder = own_cache / "clusters" / name
        made = msgspec.structs.replace(planned(folder, owner), name=name)
        state.save(folder, made.with_process(1, sleeper) if name == "left" else made)
    assert remove_leftovers() == ["left"]
    assert processes.state_of(sleeper) == "down"
    assert state.load(own_cache / "clusters" / "left") is None
    assert state.load(own_cache / "clusters" / "owned") is not None
    assert state.load(own_cache / "clusters" / "kept") is not None


@pytest.mark.parametrize("found", [b"", b"{", b'{"name":"x"}'], ids=["empty", "half", "of_another_version"])
def test_a_state_that_cannot_be_read_is_said_and_down_clears_it(
    own_cache: Path, sleeper: ProcessId, found: bytes
) -> None:
    folder = own_cache / "clusters" / "torn"
    state.save(folder, planned(folder))
    config.write_files(planned(folder).nodes[0].config)
    lost = processes.start([*SLEEPER, storage_argument(folder, 1)], own_cache / "output", os.environ)
    (folder / STATE_FILE).write_bytes(found)
    for verb in ("status", "kill 1", "up --nodes 3", "down --keep"):
        done = CliRunner().invoke(cluster_command, [*verb.split(), "--name", "torn"])
        assert (done.exit_code, "cannot be read" in done.output) == (1, True), (verb, done.output)
    assert remove_leftovers() == []
    deadline_s = time.monotonic() + SHOWN_TIMEOUT_S
    while not processes.find_by_argument(storage_argument(folder, 1)):
        assert time.monotonic() < deadline_s
    done = CliRunner().invoke(cluster_command, ["down", "--name", "torn"])
    assert (done.exit_code, done.output) == (0, "cluster torn: not running\n")
    assert processes.state_of(lost) == "down"
    assert not folder.exists()


def test_a_register_of_subnets_that_cannot_be_read_is_said(own_cache: Path) -> None:
    (own_cache / "clusters").mkdir(parents=True)
    (own_cache / "clusters" / "subnets.json").write_bytes(b"")
    done = CliRunner().invoke(cluster_command, ["up", "--nodes", "1", "--name", "new"])
    assert (done.exit_code, "subnets.json cannot be read" in done.output) == (1, True)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--dcs", "2"], "has dcs 1, not 2"),
        (["--commitlog-sync", "periodic"], "has commitlog_sync batch, not periodic"),
        (["--nodes", "2"], "has nodes 3, not 2"),
        (["--tls"], "has tls False, not True"),
    ],
)
def test_up_of_a_cluster_that_is_there_in_another_shape_says_what_differs(
    own_cache: Path, asked: list[str], says: str
) -> None:
    state.save(own_cache / "clusters" / "there", planned(own_cache / "clusters" / "there"))
    done = CliRunner().invoke(cluster_command, ["up", "--name", "there", *asked])
    assert (done.exit_code, says in done.output) == (1, True), done.output


def test_down_leaves_files_that_are_not_its_own(tmp_path: Path) -> None:
    state.save(tmp_path / "c", planned(tmp_path / "c"))
    config.write_files(planned(tmp_path / "c").nodes[0].config)
    (tmp_path / "c" / "thesis.txt").write_text("mine")
    LocalCluster("c", tmp_path / "c").down()
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["thesis.txt"]


def test_up_refuses_a_folder_with_other_things_in_it(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ClusterError, match="not empty"):
        LocalCluster("c", tmp_path).up(nodes=1)
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".txt"] == ["thesis.txt"]


def test_state_survives_being_written_and_read(tmp_path: Path, sleeper: ProcessId) -> None:
    made = planned(tmp_path, sleeper, dcs=2).with_process(3, sleeper)
    state.save(tmp_path, made)
    assert state.load(tmp_path) == made


def test_down_of_nothing_leaves_nothing(own_cache: Path) -> None:
    LocalCluster("never").down()
    assert list((own_cache / "clusters").iterdir()) == []


def test_a_lock_whose_file_was_removed_still_excludes(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def enter() -> None:
        for _ in range(50):
            with jars.locked(tmp_path / "lock"):
                inside.append(1)
                most.append(len(inside))
                inside.pop()
                (tmp_path / "lock").unlink()

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 200
    assert max(most) == 1


# ---- jars


def test_many_fetches_at_once_run_maven_once(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text(
        "#!/bin/sh\n"
        f"echo run >> {tmp_path}/runs\n"
        'for each; do case "$each" in -DoutputDirectory=*) out=${each#*=};; esac; done\n'
        "for n in $(seq 60); do : > $out/$n.jar; done\n"
    )
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(maven.parent), prepend=os.pathsep)
    (own_cache / f"cassandra-{jars.CASSANDRA_VERSION}.part-killed").mkdir(parents=True)
    script = "from capellini.local.jars import fetch_jars; print(fetch_jars())"
    runs = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(3)]
    said = {run.communicate(timeout=60)[0] for run in runs}
    assert len(said) == 1
    assert (tmp_path / "runs").read_text() == "run\n"
    assert sorted(path.name for path in own_cache.iterdir() if path.is_dir()) == [f"cassandra-{jars.CASSANDRA_VERSION}"]


def test_a_failed_fetch_leaves_no_folder_of_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho no network\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ClusterError, match="no network"):
        jars.fetch_jars()
    with pytest.raises(ClusterError, match="not here yet"):
        jars.find_jars()


def test_missing_tools_are_one_clear_line_and_exit_code_2(own_cache: Path, tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "CAPELLINI_CACHE": str(own_cache)}
    command = [sys.executable, "-m", "capellini.local.jars"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "not found: install " in done.stderr


# ---- the questions and the command line


def test_an_error_answer_is_raised_with_its_text() -> None:
    body = b"\x00\x00\x10\x00" + b"\x00\x0bUnavailable"
    here, there = socket.socketpair()
    with here, there:
        there.sendall(cql.HEADER.pack(cql.RESPONSE, 0, 0, cql.ERROR, len(body)) + body)
        with pytest.raises(cql.CqlError, match="0x1000 Unavailable"):
            cql.receive(here, cql.RESULT)


def test_something_that_is_not_cql_is_refused() -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"HTTP/1.1 200 OK\r\n")
        with pytest.raises(cql.CqlError, match="not CQL"):
            cql.receive(here, cql.RESULT)


def test_status_of_no_cluster_says_so() -> None:
    done = CliRunner().invoke(cluster_command, ["status", "--name", "none"])
    assert done.exit_code == 0
    assert done.output == "cluster none: not running\n"


def test_a_fault_on_no_cluster_is_one_clear_line() -> None:
    done = CliRunner().invoke(cluster_command, ["kill", "1", "--name", "none"])
    assert done.exit_code == 1
    assert done.output == "Error: there is no cluster none: `capellini cluster up --name none` makes one\n"


def test_status_as_json_can_be_read_back(own_cache: Path) -> None:
    state.save(own_cache / "clusters" / "j", planned(own_cache / "clusters" / "j"))
    done = CliRunner().invoke(cluster_command, ["status", "--name", "j", "--json"])
    answer = msgspec.json.decode(done.output)
    assert [(node["number"], node["state"], node["answers"]) for node in answer["nodes"]] == [
        (1, "down", False),
        (2, "down", False),
        (3, "down", False),
    ]


def test_cutting_a_cluster_without_namespaces_is_refused_with_the_way_out(own_cache: Path) -> None:
    state.save(own_cache / "clusters" / "flat", planned(own_cache / "clusters" / "flat"))
    with pytest.raises(ClusterError, match="--netns"):
        LocalCluster("flat").cut(1, 2)


@pytest.mark.parametrize("name", ["", "../up", "a b", "x/y"])
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="letters"):
        LocalCluster(name)


@pytest.mark.parametrize(("nodes", "dcs"), [(0, 1), (10, 1), (3, 3), (1, 2)])
def test_odd_shapes_are_refused(nodes: int, dcs: int) -> None:
    with pytest.raises(ClusterError, match="data centres"):
        LocalCluster("odd").up(nodes, dcs)
