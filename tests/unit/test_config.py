"""Settings come from the first place that says something, and what is wrong is said in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from capellini.model.address import CassandraAddress, RocksAddress
from capellini.model.errors import Invalid
from capellini.node.config import address_of, hosts_of, listen_of, load, name_of, unknown_variables
from capellini.node.settings import TABLE, Settings


def test_the_table_has_every_setting_and_no_other() -> None:
    assert [setting.name for setting in TABLE] == list(Settings.__struct_fields__)
    for setting in TABLE:
        default = getattr(Settings(), setting.name)
        if setting.least is not None and setting.most is not None:
            assert setting.least <= default <= setting.most


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('max_requests = 5\nlisten = "127.0.0.1:1"\nnode = "from-file"\n')
    environ = {"CAPELLINI_LISTEN": "127.0.0.1:2", "CAPELLINI_NODE": "from-environment", "PATH": "x"}
    found = load({"listen": "127.0.0.1:3", "store": None}, environ, file)
    assert (found.listen, found.node, found.max_requests, found.max_waiting) == (
        "127.0.0.1:3", "from-environment", 5, 10_000,
    )  # fmt: skip
    assert load({}, {"CAPELLINI_CONFIG": str(file)}).node == "from-file"


def test_the_store_is_a_folder_unless_told_otherwise() -> None:
    assert address_of(load({}, {})) == RocksAddress("data")


def test_contact_points_and_what_goes_with_them_make_a_cassandra_address() -> None:
    environ = {
        "CAPELLINI_CONTACT_POINTS": "10.0.0.1, 10.0.0.2",
        "CAPELLINI_KEYSPACE": "mq",
        "CAPELLINI_USERNAME": "us@er",
        "CAPELLINI_PASSWORD": "p:w/d",
        "CAPELLINI_USE_SSL": "true",
        "CAPELLINI_DATA_CENTER": "dc1",
        "CAPELLINI_REPLICATION": "3",
        "CAPELLINI_CLUSTER_NAME": "Test Cluster",
    }
    settings = load({}, environ)
    assert address_of(settings) == CassandraAddress(
        ("10.0.0.1", "10.0.0.2"), "mq", username="us@er", password="p:w/d", dc="dc1", ssl=True, replication="3"
    )
    assert settings.cluster_name == "Test Cluster"


def test_contact_points_alone_are_enough() -> None:
    assert address_of(load({"contact_points": "10.0.0.1"}, {})) == CassandraAddress(("10.0.0.1",), "capellini")


@pytest.mark.parametrize(
    ("flags", "environ", "says"),
    [
        ({"listen": "7411"}, {}, "listen is HOST:PORT"),
        ({"listen": "127.0.0.1:70000"}, {}, "listen is HOST:PORT"),
        ({"listen": "127.0.0.1:\u00b2"}, {}, "listen is HOST:PORT"),
        ({"listen": "two..dots:80"}, {}, "listen is HOST:PORT"),
        ({"store": "nonsense"}, {}, "not an address"),
        ({"node": "a b"}, {}, "node is 1 to 100"),
        ({"node": "n" * 101}, {}, "node is 1 to 100"),
        ({}, {"CAPELLINI_NODE": "a\x00b"}, "node is 1 to 100"),
        ({"max_connections": "0"}, {}, "--max-connections goes from 1 to 1000000, not '0'"),
        ({"store": "http://localhost:1"}, {}, "is a node, not a store"),
        ({"max_requests": "0"}, {}, "--max-requests goes from 1"),
        ({}, {"CAPELLINI_MAX_REQUESTS": "many"}, "CAPELLINI_MAX_REQUESTS is a whole number, not 'many'"),
        ({}, {"CAPELLINI_USE_SSL": "perhaps"}, "CAPELLINI_USE_SSL is true or false"),
        ({}, {"CAPELLINI_LOG_LEVEL": "loud"}, "one of debug, info, warning, error"),
        ({}, {"CAPELLINI_MAX_SKEW_S": "2"}, "goes from 0 to 1"),
        ({"events": "disk"}, {}, "events is journal, none, memory or file:PATH"),
        ({"events": "file:"}, {}, "events is journal, none, memory or file:PATH"),
        ({"store": "rocks:x"}, {"CAPELLINI_CONTACT_POINTS": "h"}, "give one of them"),
        ({}, {"CAPELLINI_USERNAME": "u"}, "username goes with contact_points"),
        ({}, {"CAPELLINI_CONTACT_POINTS": "h", "CAPELLINI_PASSWORD": "p"}, "password goes with username"),
        ({"cluster_name": "prod"}, {}, "cluster_name is of a Cassandra cluster, and messages are kept in rocks:data"),
        ({"cluster_name": "prod", "store": "rocks:x"}, {}, "cluster_name is of a Cassandra cluster"),
        ({"hosts": "http://queue.example.org"}, {}, "hosts are NAME,NAME or *"),
        ({"hosts": "a.example.org, b.example.org:7411"}, {}, "not 'b.example.org:7411'"),
        ({"hosts": "*.example.org"}, {}, "hosts are NAME,NAME or *"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(flags: dict[str, Any], environ: dict[str, str], says: str) -> None:
    with pytest.raises(Invalid) as raised:
        load(flags, environ)
    assert says in raised.value.says
    assert "\n" not in raised.value.says


def test_names_of_a_node_are_taken_as_they_are_asked_for() -> None:
    assert hosts_of(load({"hosts": "Queue.example.org, b, "}, {})) == {"queue.example.org", "b"}
    assert hosts_of(load({"hosts": "*"}, {})) == {"*"}


def test_a_file_is_utf_8_whatever_the_machine_speaks(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_bytes('store = "rocks:K\u00fcche"\n'.encode())
    script = (
        "import sys\nfrom pathlib import Path\nfrom capellini.node.config import load\n"
        "print(ascii(load({}, {}, Path(sys.argv[1])).store))\n"
    )
    latin = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True, text=True, env=latin)
    assert done.stdout == "'rocks:K\\xfcche'\n", done.stderr


def test_a_password_is_never_said() -> None:
    with pytest.raises(Invalid) as raised:
        load({}, {"CAPELLINI_PASSWORD": "hunter2", "CAPELLINI_CONTACT_POINTS": "h:x", "CAPELLINI_USERNAME": "u"})
    assert "hunter2" not in raised.value.says


@pytest.mark.parametrize(
    ("text", "says"),
    [("colour = 1", "'colour' is not a setting"), ("listen =", "is not TOML"), ("max_body = 'x'", "max_body in")],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(Invalid, match=says):
        load({}, {}, file)
    with pytest.raises(Invalid, match="cannot be read"):
        load({}, {}, tmp_path / "none.toml")


def test_misspelt_variables_are_found() -> None:
    environ = {"CAPELLINI_LISTEN": "", "CAPELLINI_AT": "", "CAPELLINI_LISTN": "", "OTHER": ""}
    assert unknown_variables(environ) == ["CAPELLINI_LISTN"]


def test_listen_takes_names_and_both_kinds_of_addresses() -> None:
    for text, found in (("[::1]:5", ("::1", 5)), ("localhost:0", ("localhost", 0)), ("0.0.0.0:80", ("0.0.0.0", 80))):
        assert listen_of(msgspec.structs.replace(Settings(), listen=text)) == found


def test_nodes_of_one_machine_have_different_names() -> None:
    one, other = (name_of(Settings(listen=f"127.0.0.1:{port}")) for port in (1, 2))
    assert one != other
    assert name_of(Settings(node="mine")) == "mine"
