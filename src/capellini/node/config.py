"""Settings from flags, the environment, a TOML file and defaults: the first that says something counts.

    flags  >  CAPELLINI_...  >  file  >  defaults

Nothing is dropped on the way: what is not in the table is refused, with its place; so is what does not fit. All errors
are one sentence.
"""

from __future__ import annotations

import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_type_hints
from urllib.parse import quote

import msgspec

from capellini.counters.times import Times, check_times
from capellini.model.address import Address, CassandraAddress, NodeAddress, is_host, parse
from capellini.model.errors import Invalid
from capellini.node.settings import PREFIX, TABLE, Setting, Settings

MAX_NODE_CHARS: Final = 100  # ids of log queues hold the name, and receipts: see `api.wire`
DEFAULT_STORE: Final = "rocks:data"
TIMES: Final = "counter_"  # what the names of counters' times begin with
NOT_SETTINGS: Final = frozenset((f"{PREFIX}AT", f"{PREFIX}CONFIG"))  # of the command line
_CASSANDRA_ONLY: Final = (
    "contact_points", "keyspace", "username", "password", "use_ssl", "ssl_ca", "data_center", "replication",
)  # fmt: skip
_EVENTS: Final = ("journal", "none", "memory")
_ANYWHERE: Final = ("0.0.0.0", "::")  # to listen on, and no address to call
_TYPES: Final = get_type_hints(Settings)
_NOUN: Final = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def load(flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None) -> Settings:
    """Raises Invalid. A flag that is None was not given."""
    if file is None and environ.get(f"{PREFIX}CONFIG"):
        file = Path(environ[f"{PREFIX}CONFIG"])
    values = _from_file(file) if file is not None else {}
    for setting in TABLE:
        if setting.variable in environ:
            values[setting.name] = _value(setting, environ[setting.variable], setting.variable)
    known = {setting.name: setting for setting in TABLE}
    for name, value in flags.items():
        if value is not None:
            values[name] = _value(known[name], value, known[name].flag)
    settings = Settings(**values)
    _check_together(settings, set(values))
    return settings


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like settings and are none: worth a warning, since they may be misspelt."""
    known = {setting.variable for setting in TABLE} | NOT_SETTINGS
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def _from_file(file: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(file.read_text("utf-8"))  # TOML is that, whatever the machine speaks
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} is not TOML: {error}") from None
    known = {setting.name: setting for setting in TABLE}
    if unknown := sorted(set(found) - set(known)):
        raise Invalid(f"{file}: {unknown[0]!r} is not a setting; there are {', '.join(known)}")
    return {name: _value(known[name], value, f"{name} in {file}") for name, value in found.items()}


def _value(setting: Setting, value: Any, place: str) -> Any:
    wanted = _TYPES[setting.name]
    shown = "***" if setting.name == "password" else repr(value)
    try:
        found = msgspec.convert(value, wanted, strict=False)
    except msgspec.ValidationError:
        choices = getattr(wanted, "__args__", ())
        noun = f"one of {', '.join(choices)}" if choices else _NOUN[wanted]
        raise Invalid(f"{place} is {noun}, not {shown}") from None
    if setting.least is not None and setting.most is not None and not setting.least <= found <= setting.most:
        raise Invalid(f"{place} goes from {setting.least:.15g} to {setting.most:.15g}, not {shown}")
    return found


def _check_together(settings: Settings, given: set[str]) -> None:
    announced(settings, listen_of(settings)[1])
    name_of(settings)
    address = address_of(settings)
    times_of(settings)
    if settings.cluster_name and not isinstance(address, CassandraAddress):
        raise Invalid(f"cluster_name is of a Cassandra cluster, and messages are kept in {address}: say where it is")
    if settings.password and not settings.username and settings.contact_points:
        raise Invalid("password goes with username, and that is not given")
    if wrong := next((each for each in hosts_of(settings) if not _is_name(each)), None):
        raise Invalid(f"hosts are NAME,NAME or *, without scheme and port: not {wrong!r}")
    if settings.store and "contact_points" in given:
        raise Invalid("store and contact_points both say where messages are kept: give one of them")
    if not settings.contact_points:
        lost = [name for name in _CASSANDRA_ONLY if name in given and getattr(settings, name)]
        if lost:
            raise Invalid(
                f"{lost[0]} goes with contact_points, and they are not given; a cassandra:// store has it inside"
            )
    if settings.events not in _EVENTS and not settings.events.removeprefix("file:").strip():
        raise Invalid(f"events is {', '.join(_EVENTS)} or file:PATH")
    if settings.events not in _EVENTS and not settings.events.startswith("file:"):
        raise Invalid(f"events is {', '.join(_EVENTS)} or file:PATH, not {settings.events!r}")


def times_of(settings: Settings) -> Times:
    """The times of counters. How late a store may bring writes is known when it is open: none of it here. Raises
    Invalid."""
    times = Times(
        life_s=settings.counter_life_s,
        last_s=settings.counter_last_s,
        grace_s=settings.counter_grace_s,
        max_skew_s=settings.counter_max_skew_s,
        hint_window_s=0.0,
    )
    return check_times(times, TIMES)


def hosts_of(settings: Settings) -> frozenset[str]:
    """Names that requests may use for the node."""
    return frozenset(each.strip().lower() for each in settings.hosts.split(",") if each.strip())


def _is_name(text: str) -> bool:
    return text == "*" or (is_host(text) and not set(text) & set(":/ *[]"))


def listen_of(settings: Settings) -> tuple[str, int]:
    return _host_and_port("listen", settings.listen)


def _host_and_port(name: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not is_host(host) or not port.isdecimal() or int(port) > 65_535:
        raise Invalid(f"{name} is HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)


def announced(settings: Settings, port: int) -> str:
    """Where other nodes reach this one, which listens on that port. Raises Invalid."""
    if settings.announce:
        _host_and_port("announce", settings.announce)
        return settings.announce
    host = listen_of(settings)[0]
    if host in _ANYWHERE:
        host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(settings: Settings) -> Address:
    """Where the store is. Raises Invalid."""
    if settings.contact_points:
        return parse(_cassandra(settings))
    address = parse(settings.store or DEFAULT_STORE)
    if isinstance(address, NodeAddress):
        raise Invalid(f"{address} is a node, not a store: use rocks:FOLDER or cassandra://HOST/KEYSPACE")
    return address


def _cassandra(settings: Settings) -> str:
    login = f"{quote(settings.username, safe='')}:{quote(settings.password, safe='')}@" if settings.username else ""
    options = []
    if settings.replication:
        options.append(f"replication={quote(settings.replication)}")
    if settings.data_center:
        options.append(f"dc={quote(settings.data_center)}")
    if settings.use_ssl:
        options.append("ssl=true")
    if settings.ssl_ca:
        options.append(f"ssl_ca={quote(settings.ssl_ca)}")
    hosts = ",".join(each.strip() for each in settings.contact_points.split(","))
    return f"cassandra://{login}{hosts}/{settings.keyspace}{'?' if options else ''}{'&'.join(options)}"


def name_of(settings: Settings) -> str:
    """Two nodes of one name would fight for one lease: the port keeps those of one machine apart. Raises Invalid."""
    name = settings.node or f"{socket.gethostname()}-{listen_of(settings)[1]}"
    if len(name) > MAX_NODE_CHARS or not name.isprintable() or " " in name:
        raise Invalid(f"node is 1 to {MAX_NODE_CHARS} letters, digits and signs without spaces, not {name[:120]!r}")
    return name
