"""Addresses: where a store or a node is, as one line of text.

    rocks:FOLDER                             rocks:///absolute/folder, rocks:relative/folder
    cassandra://[user:password@]host[:port][,host[:port]...]/keyspace[?option=value&...]
    http://host[:port]   https://host[:port]   (a node)

Options of cassandra: dc=NAME (local data centre), ssl=true, ssl_ca=FILE, replication=N or dc1:3,dc2:2 (for creating the
keyspace), timeout_s=SECONDS, level=quorum|local_quorum|one|all.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from capellini.model.errors import Invalid

CASSANDRA_PORT: Final = 9042
NODE_PORT: Final = 7411
FORMS: Final = "rocks:FOLDER, cassandra://HOST[,HOST]/KEYSPACE or http://HOST:PORT"
REPLICATION_FORMS: Final = "replication is a number like 3, or numbers by data centre like dc1:3,dc2:2"
_PLAIN_LOGIN: Final = re.compile(r"\w+://((?![/?#\[\]])[!-~])*@[^@]*\Z", re.ASCII)  # no piece ends up elsewhere


class RocksAddress(msgspec.Struct, frozen=True, tag="rocks"):
    folder: str

    def __str__(self) -> str:
        return f"rocks:{self.folder}"


class CassandraAddress(msgspec.Struct, frozen=True, tag="cassandra"):
    hosts: tuple[str, ...]
    keyspace: str
    port: int = CASSANDRA_PORT
    username: str | None = None
    password: str | None = None
    dc: str | None = None
    ssl: bool = False
    ssl_ca: str | None = None
    replication: str = ""  # used only when the keyspace is created; "3", or "dc1:3,dc2:2"; empty: three, if it can be
    timeout_s: float = 5.0
    level: str = "quorum"  # plain reads and writes; "local_quorum" also makes compare-and-sets local_serial

    def __str__(self) -> str:  # never shows the password
        user = f"{self.username}:***@" if self.username else ""
        hosts = ",".join(f"[{host}]" if ":" in host else host for host in self.hosts)
        return f"cassandra://{user}{hosts}:{self.port}/{self.keyspace}"

    __repr__ = __str__  # nor does this: it ends up in logs and tracebacks


class NodeAddress(msgspec.Struct, frozen=True, tag="node"):
    url: str  # without a trailing slash

    def __str__(self) -> str:
        return self.url


Address = RocksAddress | CassandraAddress | NodeAddress


def parse(text: str) -> Address:
    """Raises Invalid, naming what is wrong and the forms that are right."""
    text = text.strip()
    # Errors end up in logs: they never show a login.
    shown = re.sub(r"^([^:/]*:(?://)?)?.*@", r"\1***@", text, flags=re.DOTALL)
    try:
        return _parsed(shown, text)
    except Invalid:
        if shown == text or _PLAIN_LOGIN.match(text):
            raise
    # What is wrong may be a piece of the password, cut off by what has a meaning in an address: it is not to be told.
    raise Invalid(f"{shown!r} is not an address: use {FORMS}; / ? # [ ] in a user or password are %2F %3F %23 %5B %5D")


def _parsed(shown: str, text: str) -> Address:
    scheme, colon, rest = text.partition(":")
    if not colon or not rest:
        raise Invalid(f"{shown!r} is not an address: use {FORMS}")
    match scheme.lower():
        case "rocks":
            return _rocks(shown, rest)
        case "cassandra":
            return _cassandra(shown, text)
        case "http" | "https":
            return _node(shown, text)
        case _:
            raise Invalid(f"{shown!r}: {scheme!r} is not a kind of address: use {FORMS}")


def _rocks(shown: str, rest: str) -> RocksAddress:
    if rest.startswith("//"):
        rest = rest[2:]
    folder = unquote(rest)
    if not folder or folder == "/" or "\0" in folder:
        raise Invalid(f"{shown!r} names no folder: use rocks:FOLDER")
    return RocksAddress(folder)


def is_host(name: str) -> bool:
    """Is it fit to be asked for? Names have parts of 1 to 63 characters."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True


def _node(shown: str, text: str) -> NodeAddress:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise Invalid(f"{shown!r} is not an address: {error}") from None
    name = parts.hostname or ""
    more = "@" in parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment
    if not name or not is_host(name) or port == 0 or more:
        raise Invalid(f"{shown!r} is not the address of a node: use http://HOST:PORT")
    host = f"[{name}]" if ":" in name else name
    return NodeAddress(f"{parts.scheme.lower()}://{host}:{port or NODE_PORT}")


def _cassandra(shown: str, text: str) -> CassandraAddress:
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise Invalid(f"{shown!r} is not an address: {error}") from None
    login, _, places = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    hosts, port = _hosts(shown, places)
    keyspace = parts.path.strip("/")
    if not is_keyspace(keyspace):
        raise Invalid(
            f"{shown!r} names no keyspace: use cassandra://HOST/KEYSPACE with a-z, 0-9 and _, at most 48 characters"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = {"dc", "ssl", "ssl_ca", "replication", "timeout_s", "level"}
    if unknown := set(options) - known:
        raise Invalid(
            f"{shown!r}: {', '.join(sorted(unknown))} is no option of a Cassandra address; "
            f"there are {', '.join(sorted(known))}"
        )
    level = options.get("level", "quorum")
    if level not in ("one", "quorum", "local_quorum", "all"):
        raise Invalid(f"{shown!r}: level is one of one, quorum, local_quorum, all")
    if options.get("replication") and not is_replication(options["replication"]):
        raise Invalid(f"{shown!r}: {REPLICATION_FORMS}")
    ssl = options.get("ssl", "false").lower()
    if ssl not in ("true", "false"):
        raise Invalid(f"{shown!r}: ssl is true or false")
    return CassandraAddress(
        hosts=hosts,
        port=port,
        keyspace=keyspace,
        username=unquote(user) or None,
        password=unquote(password) or None,
        dc=options.get("dc"),
        ssl=ssl == "true",
        ssl_ca=options.get("ssl_ca"),
        replication=options.get("replication", ""),
        timeout_s=_timeout(shown, options.get("timeout_s", "5")),
        level=level,
    )


def _hosts(shown: str, places: str) -> tuple[tuple[str, ...], int]:
    hosts: list[str] = []
    ports: set[int] = set()
    for place in places.split(","):
        host, colon, port = place.rpartition(":") if not place.endswith("]") and ":" in place else (place, "", "")
        if colon and not port.isdecimal():
            raise Invalid(f"{shown!r}: {port!r} is not a port")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise Invalid(f"{shown!r}: an IPv6 address stands in brackets, as in [::1]:9042")
        host = host.strip("[]")
        if not host:
            raise Invalid(f"{shown!r} names no host: use cassandra://HOST/KEYSPACE")
        hosts.append(host)
        ports.add(int(port) if colon else CASSANDRA_PORT)
    if len(ports) > 1 or not 0 < min(ports) < 65536:
        raise Invalid(f"{shown!r}: all hosts share one port, from 1 to 65535")
    return tuple(hosts), ports.pop()


def is_keyspace(name: str) -> bool:
    return name.isidentifier() and name.isascii() and name == name.lower() and len(name) <= 48


def is_replication(value: str) -> bool:
    """Is it a number, or one for each of some data centres?"""
    named: list[str] = []
    for part in value.split(","):
        dc, colon, count = part.strip().rpartition(":")
        if not count.isdecimal() or not 1 <= int(count) <= 9 or bool(dc) is not bool(colon):
            return False
        named.append(dc)
    return len(named) == len(set(named)) and ("" not in named or len(named) == 1)


def _timeout(shown: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 600:
        raise Invalid(f"{shown!r}: timeout_s is a number from 0.1 to 600")
    return seconds
