"""Judgements of a store's and a node's facts: pure functions that say what is well, what is doubtful, and what to do
about it.

`doctor` collects the facts. A finding is ok, warn (works, but read this) or bad (does not work, or will not when it
matters).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

State = Literal["ok", "warn", "bad"]
_GRAVITY: Final = ("ok", "warn", "bad")
LOW_ROOM_BYTES: Final = 1024**3
NO_ROOM_BYTES: Final = 64 * 1024**2  # below, puts are refused
SKEW_WARN_S: Final = 0.1
SKEW_BAD_S: Final = 0.5  # max_skew_s of a node unless set


class Finding(msgspec.Struct, frozen=True):
    name: str
    state: State
    says: str
    do: str = ""


def worst(by_host: Mapping[str, Finding]) -> Finding:
    """Of one thing that each of the cluster's nodes has for itself; and which have it so, where not all do."""
    found = max(by_host.values(), key=lambda each: _GRAVITY.index(each.state))
    such = [host for host, each in by_host.items() if each == found]
    if len(such) == len(by_host):
        return found
    return msgspec.structs.replace(found, says=f"on {', '.join(such)}: {found.says}")


def answering(hosts: Sequence[str], up: Collection[str]) -> Finding:
    """`up`: those of the cluster's nodes that answer here."""
    silent = [host for host in hosts if host not in up]
    if silent:
        do = "start it, or look why: meanwhile its partitions have a copy less, and hints for it last for hours only"
        return Finding("nodes", "warn", f"no answer from {', '.join(silent)} ({len(silent)} of {len(hosts)})", do)
    return Finding("nodes", "ok", f"all {len(hosts)} answer")


def versions(found: Sequence[str]) -> Finding:
    kinds = sorted(set(found))
    if len(kinds) > 1:
        return Finding("versions", "warn", f"nodes run {', '.join(kinds)}", "finish the upgrade of the cluster")
    major = kinds[0].partition(".")[0]
    if major.isdigit() and int(major) < 4:
        return Finding("versions", "bad", f"all nodes run {kinds[0]}", "upgrade Cassandra to 4 or later")
    return Finding("versions", "ok", f"all {len(found)} nodes run {kinds[0]}")


def replication(copies: Mapping[str, Any] | None, live: Mapping[str, int]) -> Finding:
    """`copies`: the keyspace's replication as Cassandra tells it (None: no keyspace); `live`: nodes by data centre."""
    if copies is None:
        return Finding("replication", "warn", "the keyspace does not exist yet", "it is made when a node starts")
    numbers = {dc: int(count) for dc, count in copies.items() if dc != "class" and str(count).isdigit()}
    if "SimpleStrategy" in str(copies.get("class")):
        numbers = {"all": numbers.get("replication_factor", 1)}
        live = {"all": sum(live.values())}
    for dc, count in numbers.items():
        up = live.get(dc, 0)
        if up < count // 2 + 1:
            says = f"{up} of {count} replicas in {dc} can be up: there is no quorum"
            return Finding("replication", "bad", says, "start more nodes, or lower the replication of the keyspace")
    shown = ", ".join(f"{count} in {dc}" for dc, count in numbers.items())
    if max(numbers.values(), default=0) < 3:
        says = f"replicas: {shown}; the loss of a node stops or loses messages"
        return Finding("replication", "warn", says, "use three replicas where messages matter")
    return Finding("replication", "ok", f"replicas: {shown}")


def commitlog(settings: Mapping[str, str]) -> Finding:
    mode = settings.get("commitlog_sync", "")
    if not mode:
        return Finding("commitlog_sync", "warn", "the cluster does not tell it", "look into cassandra.yaml")
    if mode == "periodic":
        says = "writes are confirmed before they are on disk: all replicas losing power at once lose the last seconds"
        return Finding("commitlog_sync", "warn", says, "set commitlog_sync to group or batch in cassandra.yaml")
    return Finding("commitlog_sync", "ok", f"{mode}: a confirmed write is on disk")


def paxos(settings: Mapping[str, str]) -> Finding:
    variant = settings.get("paxos_variant", "")
    if not variant:
        return Finding("paxos_variant", "ok", "the cluster does not tell it, as older versions do not")
    if variant.startswith("v2"):
        return Finding("paxos_variant", "ok", variant)
    says = f"{variant} takes more round trips than v2"
    return Finding("paxos_variant", "warn", says, "set paxos_variant to v2 on all nodes")


def skew(seconds: Sequence[float]) -> Finding:
    worst = max(seconds, key=abs, default=0.0)
    says = f"the store's clocks are up to {worst:+.3f} s off the clock here"
    if abs(worst) > SKEW_BAD_S:
        return Finding("clocks", "bad", says, "run a time service (chrony, ntpd) on all machines")
    if abs(worst) > SKEW_WARN_S:
        return Finding("clocks", "warn", says, "look after the time service of the machines")
    return Finding("clocks", "ok", says)


def schema(missing: Sequence[str], wrong: Sequence[str], there: int | None, ours: int) -> Finding:
    """`there`: the version of the tables; None: none is written yet."""
    if there is not None and there > ours:
        says = f"the tables are of version {there}, and this is a Capellini for version {ours}"
        return Finding("schema", "bad", says, "use a newer one, or another keyspace")
    if there is not None and there < ours:
        says = f"the tables are of version {there}, before version {ours} of this Capellini"
        return Finding("schema", "warn", says, "they are migrated when a node starts")
    if wrong:
        return Finding("schema", "bad", f"tables are not as declared: {'; '.join(wrong)}", "use another keyspace")
    if missing:
        says = f"tables are missing: {', '.join(missing)}"
        return Finding("schema", "warn", says, "they are made when a node starts")
    return Finding("schema", "ok", "all tables are there and as declared")


def room(free_bytes: int) -> Finding:
    says = f"{free_bytes / 1024**2:,.0f} MiB are free"
    if free_bytes < NO_ROOM_BYTES:
        return Finding("room", "bad", f"{says}: puts are refused", "make room on the disk")
    if free_bytes < LOW_ROOM_BYTES:
        return Finding("room", "warn", says, "make room on the disk soon")
    return Finding("room", "ok", says)


def version_skew(here: str, there: str) -> Finding:
    if here == there:
        return Finding("version", "ok", f"the node runs {there}, like this command")
    return Finding("version", "warn", f"the node runs {there}, this command is {here}", "use the same version for both")


def exit_code(findings: Sequence[Finding]) -> int:
    return 1 if any(each.state == "bad" for each in findings) else 0


def as_json(findings: Sequence[Finding]) -> str:
    return json.dumps([msgspec.to_builtins(each) for each in findings])
