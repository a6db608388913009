"""A connection to a Cassandra cluster: what is sent, through whom, how often, and what each failure means.

    read, plain write      ──▶ up to three attempts ──▶ answer, Invalid, Unavailable or (writes) Unknown
    compare-and-set        ──▶ one attempt          ──▶ answer, Invalid, Unavailable or Unknown

The driver repeats nothing by itself: its retry policy is off, and no request is called idempotent, so that after a lost
connection it does not send a request again. What it calls "no hosts available" was therefore never sent.

The first attempt goes to a replica (token-aware, in the local data centre). A coordinator that hangs could be met
again, so the second and the third are each bound to one host, and those are two different hosts: one is not it. A host
that the driver has no connection to is sent nothing, so that it takes up no attempt. Hosts are bound when the session
begins: where all of those were replaced since, the driver chooses among the new ones, which it hears of.

What a failure means depends on what was asked. A write that a coordinator refused for want of replicas has not
happened; but a compare-and-set may meet the same error after its proposal was accepted, while it commits. The error
names the level that could not be had: a serial one means that nothing was proposed, any other that it is not known.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import acsylla
from acsylla import errors as driver

from capellini.model.address import CassandraAddress
from capellini.model.clock import Clock
from capellini.model.errors import CannotOpen, CapelliniError, Invalid, Overloaded, TooLarge, Unavailable, Unknown
from capellini.store.interface import Counts, Level, Value

ATTEMPTS: Final = 3  # the first, and two by way of hosts that differ
PREPARE_ATTEMPTS: Final = 6  # the driver takes no host for preparing: each is one more chance to miss a hung one
PAUSE_S: Final = 0.1  # before a repeat: an error that came at once would come again at once
SCHEMA_TIMEOUT_S: Final = 30.0  # a schema change is agreed on by all nodes first
PAGE_ROWS: Final = 1_000  # one page is one answer in a coordinator's memory
HEARTBEAT_S: Final = 5  # a hung host is noticed by a heartbeat that nobody answers...
IDLE_S: Final = 15  # ...and its connection given up after so long
HUNG_UP: Final = "closed prematurely"  # in what the driver says of a server that ends the connection at once

Bound = tuple[Any, list[Value]]  # a prepared statement and what is bound to it
Rows = list[list[Any]]


class NoRights(Unavailable):
    """The user may not do it: callers are told to come back later, who opens a store is told at once."""


class Kind(enum.Enum):
    READ = "read"
    WRITE = "write"
    CAS = "compare-and-set"


# The request is wrong, whoever is asked.
_INVALID: Final = (
    driver.CassErrorServerInvalidQuery, driver.CassErrorServerSyntaxError, driver.CassErrorServerConfigError,
    driver.CassErrorServerProtocolError, driver.CassErrorLibBadParams, driver.CassErrorLibInvalidValueType,
    driver.CassErrorLibMessageEncode, driver.CassErrorLibIndexOutOfBounds, driver.CassErrorLibParameterUnset,
)  # fmt: skip
# Never sent, or refused before anything was done.
_NOT_DONE: Final = (
    driver.CassErrorLibNoHostsAvailable, driver.CassErrorLibNoAvailableIoThread, driver.CassErrorServerIsBootstrapping,
    driver.CassErrorServerBadCredentials, driver.CassErrorLibExecutionProfileInvalid,
)  # fmt: skip
_NOT_SENT_BUSY: Final = (driver.CassErrorLibRequestQueueFull, driver.CassErrorLibNoStreams)


def meaning(error: Exception, kind: Kind) -> CapelliniError:
    """What a failure of the driver or the server says about the request."""
    says = str(error)
    if isinstance(error, _INVALID):
        if "oversized mutation" in says or "too big" in says:
            return TooLarge(f"Cassandra takes no request that large: {says}")
        if "does not exist" in says:
            return Unavailable(f"the tables are gone: {says}")
        return Invalid(f"Cassandra refuses the request: {says}")
    if isinstance(error, _NOT_SENT_BUSY):
        return Overloaded("more requests wait for Cassandra than the driver takes: send fewer at a time")
    if isinstance(error, driver.CassErrorServerUnauthorized):
        return NoRights(f"Cassandra does not allow it: {says}")
    if isinstance(error, _NOT_DONE):
        return Unavailable(f"Cassandra cannot be asked now: {says}")
    if kind is Kind.READ:
        return Unavailable(f"Cassandra does not give an answer now: {says}")
    if isinstance(error, driver.CassErrorServerUnavailable) and (kind is Kind.WRITE or "SERIAL" in says):
        return Unavailable(f"too few Cassandra nodes are up: {says}")
    if isinstance(error, driver.CassErrorServerOverloaded) and kind is Kind.WRITE:
        return Overloaded(f"Cassandra has too much to do: {says}")
    return Unknown(f"Cassandra did not say whether a {kind.value} was done: {says}")


class Session:
    """One open session of the driver. `hosts` are those of the local data centre `dc`, `dcs` has all, as they were when
    it began."""

    def __init__(self, address: CassandraAddress, clock: Clock, inner: Any, dc: str, dcs: dict[str, list[str]]) -> None:
        self.address = address
        self.counts = Counts()
        self.dc = dc
        self.dcs = dcs
        self.hosts = sorted(dcs[dc])
        self._clock = clock
        self._inner = inner
        self._prepared: dict[str, Any] = {}
        self._turns = itertools.count()
        self._closed = self._ended = False
        self._open_calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._levels = levels(address.level)
        self._serial = acsylla.Consistency.SERIAL

    @classmethod
    async def connect(cls, address: CassandraAddress, clock: Clock) -> Session:
        """Look at the cluster first, then connect with a profile per host. Raises CannotOpen."""
        look = await _connected(_cluster(address, load_balance_round_robin=True), address)
        try:
            members = await _told(look, address)
        except driver.CassException as error:
            raise CannotOpen(f"{address} is connected, but does not tell its nodes: {error}") from error
        finally:
            await look.close()
        dcs: dict[str, list[str]] = {}
        for name, host in members:
            if name and host:
                dcs.setdefault(str(name), []).append(str(host))
        dc = local_dc(address, dcs)
        cluster = _cluster(address, load_balance_dc_aware=dc)
        for host in dcs[dc]:
            cluster.create_execution_profile(_at(host), load_balance_round_robin=True, whitelist_hosts=host)
        return cls(address, clock, await _connected(cluster, address), dc, dcs)

    # ---- asking

    async def prepare(self, text: str) -> Any:
        """The prepared statement of a text; made once. Nothing happens by preparing, so it is repeated like a read."""
        found = self._prepared.get(text)
        if found is None:
            timeout_s = self.address.timeout_s / 2  # no replica is asked: a host that is well answers at once
            found = await self._attempts(None, lambda _: self._inner.create_prepared(text, timeout_s))
            self._prepared[text] = found
        return found

    async def read(self, text: str, parameters: Sequence[Value], level: Level, limit: int | None = None) -> Rows:
        """All rows of the answer, page by page."""
        prepared = await self.prepare(text)
        consistency = self._levels[level]
        rows: Rows = []
        state: bytes | None = None
        while True:
            result = await self._attempts(Kind.READ, self._page(prepared, parameters, consistency, state))
            self.counts.statements += 1
            self.counts.rounds += level in (Level.SERIAL, Level.LOCAL_SERIAL)
            rows.extend(row.as_list() for row in result)  # at once: the driver's rows are views on where it stands
            if not result.has_more_pages() or (limit is not None and len(rows) >= limit):
                return rows
            state = result.page_state()

    async def members(self) -> Rows:
        """All servers as one of them tells: address, data centre, rack, tokens, partitioner (of the one only). Raises
        Unavailable."""
        member, members = await self.asked((_MEMBER, _MEMBERS))  # of the same host: its peers are all but itself
        return [[*row, None][:5] for row in (*member, *members)]

    async def asked(self, texts: Sequence[str]) -> list[Rows]:
        """What one host says of itself: the same one for all questions, in their order. Raises Unavailable."""
        failure: CapelliniError = Unavailable(f"{self.address} has no nodes")
        async for profile, host in self._ways():
            try:
                return await self._asked(texts, profile, host)
            except driver.CassException as error:
                failure = meaning(error, Kind.READ)
        raise failure

    async def each(self, text: str) -> dict[str, Rows]:
        """What each host says of itself, of those that answer. Raises Unavailable when none does."""
        asked = (self._ask(text, _at(host), None) for host in self.hosts)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        told: dict[str, Rows] = {}
        for host, answer in zip(self.hosts, answers, strict=True):
            if isinstance(answer, driver.CassException):
                failure = meaning(answer, Kind.READ)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                told[host] = answer
        if not told:
            raise failure
        return told

    async def _ways(self) -> AsyncIterator[tuple[str | None, str | None]]:
        """To one host, by profile or by address: those of the beginning, then those that the address names now, then
        one that the driver finds."""
        for host in self._hosts_in_turn():
            yield _at(host), None
        for contact in await contacts(self.address):
            yield None, contact
        yield None, None

    async def _asked(self, texts: Sequence[str], profile: str | None, host: str | None) -> list[Rows]:
        if profile is None and host is None:
            host = str((await self._ask(_LOCAL, None, None))[0][1])
        return [await self._ask(text, profile, host) for text in texts]

    async def _ask(self, text: str, profile: str | None, host: str | None) -> Rows:
        statement = acsylla.create_statement(text, timeout=self.address.timeout_s / 2, execution_profile=profile)
        self.counts.requests += 1
        return await _answer(self._inner, statement, host, self.address.port)

    async def write(self, statements: Sequence[Bound], level: Level, timestamp_us: int, once: bool = False) -> None:
        """One request, with one timestamp however often it is sent."""
        self.counts.statements += len(statements)
        await self._attempts(
            Kind.WRITE,
            lambda profile: self._send(statements, self._levels[level], self._serial, profile, timestamp_us),
            1 if once else ATTEMPTS,
        )

    async def compare_and_set(self, statements: Sequence[Bound], level: Level) -> list[dict[str, Value]]:
        """One request, sent once. The lines of the answer, by column."""
        serial = self._levels[level]
        local = serial is acsylla.Consistency.LOCAL_SERIAL
        commit = acsylla.Consistency.LOCAL_QUORUM if local else acsylla.Consistency.QUORUM
        self.counts.statements += len(statements)
        self.counts.rounds += 1
        result = await self._attempts(Kind.CAS, lambda _: self._send(statements, commit, serial, None, None))
        return [row.as_dict() for row in result]

    async def change_schema(self, text: str, what: str) -> None:
        """Always by way of the first host that is up: a table that two coordinators create at once would be two tables.

        Raises CannotOpen, saying `what` it was for, or StoreError for what may pass: nodes that have just started and
        do not agree on the schema yet. Whoever asks for a change asks for one that is harmless to repeat.
        """
        failure: CapelliniError = Unavailable(f"{self.address} has no nodes")
        for host in self.hosts:
            statement = acsylla.create_statement(text, timeout=SCHEMA_TIMEOUT_S, execution_profile=_at(host))
            self.counts.requests += 1
            try:
                await self._inner.execute(statement)
                return
            except driver.CassErrorServerAlreadyExists:
                return  # somebody else was first
            except driver.CassErrorServerUnauthorized as error:
                raise CannotOpen(
                    f"user {self.address.username!r} may not {what}: grant it, or let an administrator run the output "
                    f"of `capellini schema print`"
                ) from error
            except driver.CassException as error:
                failure = meaning(error, Kind.WRITE)
                if "doesn't exist" in str(error):  # of what was made by way of another node just now
                    failure = Unavailable(str(error))
                if isinstance(failure, Invalid):
                    raise CannotOpen(f"{self.address} does not {what}: {error}") from error
                if not isinstance(error, driver.CassErrorLibNoHostsAvailable):
                    break  # it may have been sent, and another host would make the table a second time
        raise type(failure)(f"it does not {what}: {failure.says}")

    async def close(self) -> None:
        """Who was cancelled while waiting may close once more."""
        self._closed = True
        await self._idle.wait()
        if not self._ended:
            self._ended = True
            await self._inner.close()

    # ---- sending

    def _page(
        self, prepared: Any, parameters: Sequence[Value], consistency: Any, state: bytes | None
    ) -> Callable[[str | None], Any]:
        def send(profile: str | None) -> Any:
            statement = prepared.bind(
                list(parameters),
                page_size=PAGE_ROWS,
                page_state=state,
                timeout=self.address.timeout_s,
                consistency=consistency,
                execution_profile=profile,
            )
            return self._inner.execute(statement)

        return send

    def _send(
        self, statements: Sequence[Bound], consistency: Any, serial: Any, profile: str | None, timestamp_us: int | None
    ) -> Any:
        if len(statements) == 1:
            prepared, parameters = statements[0]
            statement = prepared.bind(
                parameters,
                timeout=self.address.timeout_s,
                consistency=consistency,
                serial_consistency=serial,
                execution_profile=profile,
            )
            if timestamp_us is not None:
                statement.set_timestamp(timestamp_us)
            return self._inner.execute(statement)
        batch = acsylla.create_batch_unlogged(self.address.timeout_s, profile)
        batch.set_consistency(consistency)
        batch.set_serial_consistency(serial)
        if timestamp_us is not None:
            batch.set_timestamp(timestamp_us)
        add = batch.add_statement
        for prepared, parameters in statements:
            add(prepared.bind(parameters))
        return self._inner.execute_batch(batch)

    async def _attempts(self, kind: Kind | None, send: Callable[[str | None], Any], most: int = ATTEMPTS) -> Any:
        """Send until there is an answer. `send` builds the request anew: the driver may still hold the last one.

        Without a kind it is the preparing of a statement: like a read, and nobody's request.
        """
        lost: CapelliniError | None = None
        hosts = self._hosts_in_turn()
        most = PREPARE_ATTEMPTS if kind is None else most
        for attempt in range(1, most + 1):
            self.counts.requests += kind is not None
            try:
                return await (send(None) if attempt == 1 or kind is None else self._by_way_of(hosts, send))
            except driver.CassException as error:
                failure = meaning(error, kind or Kind.READ)
            except (TypeError, ValueError, OverflowError) as error:
                failure = Invalid(f"a value does not fit its column: {error}")  # binding failed: nothing was sent
            if isinstance(failure, Unknown):
                lost = failure
            if isinstance(failure, Invalid) or kind is Kind.CAS or attempt == most:
                break
            self.counts.retries += 1
            await self._clock.sleep(PAUSE_S)
        if lost is not None:
            self.counts.unknown += 1
            raise lost
        raise failure

    def _hosts_in_turn(self) -> Iterator[str]:
        """Each once. Whoever takes the first of them makes the next call begin with another one."""
        first = next(self._turns)
        for step in range(len(self.hosts)):
            yield self.hosts[(first + step) % len(self.hosts)]

    async def _by_way_of(self, hosts: Iterator[str], send: Callable[[str | None], Any]) -> Any:
        """Through the next of them that is there; after the last one, through whom the driver finds."""
        for host in hosts:
            with suppress(driver.CassErrorLibNoHostsAvailable):  # nothing was sent
                return await send(_at(host))
        return await send(None)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Around each operation of the store: none begins once closing began, and closing waits for those that did."""
        if self._closed:
            raise Unavailable("the store is closed")
        self._open_calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._open_calls -= 1
            if not self._open_calls:
                self._idle.set()


_LOCAL: Final = "SELECT data_center, rpc_address FROM system.local"
_PEERS: Final = "SELECT data_center, native_address FROM system.peers_v2"
_MEMBER: Final = "SELECT rpc_address, data_center, rack, tokens, partitioner FROM system.local"
_MEMBERS: Final = "SELECT native_address, data_center, rack, tokens FROM system.peers_v2"


def _at(host: str) -> str:
    """The name of the profile that is bound to one host."""
    return f"at {host}"


async def _told(look: Any, address: CassandraAddress) -> Rows:
    """Data centre and address of each server, as one of them tells of itself and of its peers: all but itself.

    The driver knows the server that it is connected to by the address it was given, be it another one than that server
    tells of itself, as behind a port of a container's. So it is named by that one.
    """
    for contact in await contacts(address):
        with suppress(driver.CassException):  # not known by this name, or it hangs
            ((dc, _),) = await _answer(look, acsylla.create_statement(_LOCAL), contact, address.port)
            return [[dc, contact], *await _answer(look, acsylla.create_statement(_PEERS), contact, address.port)]
    local = await _answer(look, acsylla.create_statement(_LOCAL), None, address.port)
    return [*local, *await _answer(look, acsylla.create_statement(_PEERS), local[0][1], address.port)]


async def contacts(address: CassandraAddress) -> list[str]:
    """The hosts of the address as the driver calls them: by number."""
    found: list[str] = []
    for host in address.hosts:
        with suppress(OSError):
            places = await asyncio.get_running_loop().getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
            found += [str(place[4][0]) for place in places]
    return list(dict.fromkeys(found))


async def _answer(inner: Any, statement: Any, host: str | None, port: int) -> Rows:
    """Of that host, if one is named."""
    if host:
        statement.set_host(host, port)
    return [row.as_list() for row in await inner.execute(statement)]


def local_dc(address: CassandraAddress, dcs: dict[str, list[str]]) -> str:
    """The data centre the address names, else the only one, else that of its first host. Raises CannotOpen."""
    there = ", ".join(sorted(dcs))
    if address.dc is not None:
        if address.dc not in dcs:
            raise CannotOpen(f"there is no data centre {address.dc!r} at {address}: there is {there}")
        return address.dc
    found = [dc for dc, hosts in dcs.items() if len(dcs) == 1 or address.hosts[0] in hosts]
    if not found:
        raise CannotOpen(f"{address} has several data centres: name the local one of {there} in the address (dc=...)")
    return found[0]


def levels(plain: str) -> dict[Level, Any]:
    """The driver's level for each of ours. The address says what a quorum is; a local one makes serial local too."""
    found = {level: getattr(acsylla.Consistency, level.name) for level in Level}
    found[Level.QUORUM] = getattr(acsylla.Consistency, plain.upper())
    if plain == "local_quorum":
        found[Level.SERIAL] = acsylla.Consistency.LOCAL_SERIAL
    return found


def _cluster(address: CassandraAddress, **routing: Any) -> Any:
    tls: dict[str, Any] = {}
    if address.ssl or address.ssl_ca:
        tls = {
            "ssl_enabled": True,
            "ssl_trusted_cert": _certificate(address),
            "ssl_verify_flags": acsylla.SSLVerifyFlags.PEER_IDENTITY,
        }
    try:
        return acsylla.create_cluster(
            list(address.hosts),
            port=address.port,
            username=address.username,
            password=address.password if address.username is None else address.password or "",
            connect_timeout=address.timeout_s,
            request_timeout=address.timeout_s,
            log_level="critical",  # it calls each connection to a server that is not ScyllaDB an error
            consistency=acsylla.Consistency.QUORUM,
            serial_consistency=acsylla.Consistency.SERIAL,
            retry_policy="fallthrough",
            use_schema=False,  # nobody asks the driver for it, and reading it is most of what connecting costs a server
            prepare_on_all_hosts=False,  # it would wait for a hung one; the others learn a statement when they meet it
            heartbeat_interval_sec=HEARTBEAT_S,
            idle_timeout_sec=IDLE_S,
            exponential_reconnect_base_delay_ms=500,
            exponential_reconnect_max_delay_ms=10_000,
            application_name="capellini",
            **routing,
            **tls,
        )
    except driver.CassErrorSourceSsl as error:
        raise CannotOpen(f"ssl_ca={address.ssl_ca} holds no certificate that can be read: name a PEM file") from error


def _certificate(address: CassandraAddress) -> str:
    if not address.ssl_ca:
        raise CannotOpen(f"{address} has ssl=true but no ssl_ca=FILE: name the certificate its nodes are verified with")
    try:
        with open(address.ssl_ca) as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotOpen(f"ssl_ca={address.ssl_ca} cannot be read: {error}") from error


async def _connected(cluster: Any, address: CassandraAddress) -> Any:
    try:
        return await cluster.create_session()
    except driver.CassErrorServerBadCredentials as error:
        who = f"user {address.username!r}" if address.username else "users without a name"
        raise CannotOpen(f"{address} does not let {who} in: check the user and password in the address") from error
    except driver.CassErrorSourceSsl as error:
        raise CannotOpen(f"{address} cannot be trusted or speaks no TLS: check ssl and ssl_ca ({error})") from error
    except driver.CassException as error:
        if HUNG_UP in str(error) and not (address.ssl or address.ssl_ca):
            raise CannotOpen(
                f"{address} hangs up at the first word: if it speaks TLS, say ssl=true and ssl_ca=FILE"
            ) from error
        if "uthentication" in str(error) or "redentials" in str(error):
            raise CannotOpen(f"{address} wants a user and password: name them in the address ({error})") from error
        raise CannotOpen(f"no Cassandra answers at {address}: check the address, and that it runs ({error})") from error
