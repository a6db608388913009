"""The one table of node settings: what each is for, and between what. Flags, environment, file and docs are made from
it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

PREFIX: Final = "CAPELLINI_"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Values of all settings; defaults are here, the rest of the table below."""

    store: str = ""
    listen: str = "127.0.0.1:7411"
    node: str = ""
    announce: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    events: str = "journal"
    hosts: str = ""
    contact_points: str = ""
    keyspace: str = "capellini"
    cluster_name: str = ""
    username: str = ""
    password: str = ""
    use_ssl: bool = False
    ssl_ca: str = ""
    data_center: str = ""
    replication: str = ""
    max_requests: int = 2_000
    max_waiting: int = 10_000
    max_bytes: int = 268_435_456
    max_connections: int = 12_000
    max_body: int = 67_108_864
    max_skew_s: float = 0.5
    drain_s: float = 0.0
    shutdown_s: float = 10.0
    counter_life_s: float = 86_400.0
    counter_last_s: float = 3_600.0
    counter_grace_s: float = 86_400.0
    counter_max_skew_s: float = 7_200.0


class Setting(msgspec.Struct, frozen=True):
    name: str
    says: str
    least: float | None = None
    most: float | None = None

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


TABLE: Final = (
    Setting("store", "where messages are kept: rocks:FOLDER or cassandra://HOST[,HOST]/KEYSPACE; rocks:data unless "
                     "contact_points say otherwise"),
    Setting("listen", "HOST:PORT to listen on; port 0 picks a free one"),
    Setting("node", "this node's name, unlike that of any other node on the store; host name and port unless set"),
    Setting("announce", "HOST:PORT where the other nodes reach this one; where it listens, unless set"),
    Setting("log_level", "how much is logged: debug, info, warning or error; debug has a line per operation"),
    Setting("log_format", "how: text for people, json for programs"),
    Setting("events", "where life-cycle events go: journal (a log queue of the nodes' own), none, memory or file:PATH"),
    Setting("hosts", "names that requests may use for this node besides localhost and addresses: NAME,NAME or *"),
    Setting("contact_points", "Cassandra hosts, HOST[:PORT],HOST[:PORT]; instead of store"),
    Setting("keyspace", "Cassandra keyspace; with contact_points"),
    Setting("cluster_name", "the name the Cassandra cluster must have; empty: any"),
    Setting("username", "for Cassandra; with contact_points"),
    Setting("password", "for Cassandra; with contact_points"),
    Setting("use_ssl", "speak TLS to Cassandra; with contact_points"),
    Setting("ssl_ca", "a file with the certificates that Cassandra's must be signed by; with contact_points"),
    Setting("data_center", "the local Cassandra data centre; with contact_points"),
    Setting("replication", "copies in a new keyspace: 2, or dc1:3,dc2:2; else 3, or one per node; with contact_points"),
    Setting("max_requests", "requests begun and not answered, gets not counted; beyond: 429", 1, 1_000_000),
    Setting("max_waiting", "gets begun and not answered; beyond: 429", 1, 1_000_000),
    Setting("max_bytes", "bytes of request bodies held at a time; beyond: 429", 65_536, 2**40),
    Setting("max_connections", "open connections; beyond: 429", 1, 1_000_000),
    Setting("max_body", "bytes of one request body; beyond: 413", 1_024, 2**31),
    Setting("max_skew_s", "how far the clocks of store and node may be apart before the node goes unready", 0.0, 1.0),
    Setting("drain_s", "how long acks are still taken after the signal to stop, and then no more", 0, 3_600),
    Setting("shutdown_s", "how long requests that were begun may take at the end, before they are cut off", 0, 3_600),
    Setting("counter_life_s", "how long a mutator of a counter lives; at least twice counter_last_s", 40, 315_360_000),
    Setting("counter_last_s", "with less than this left a mutator takes no update", 20, 315_360_000),
    Setting("counter_grace_s", "how long after its end a mutator's shard is collected; at least Cassandra's "
                               "max_hint_window plus twice counter_max_skew_s", 0, 315_360_000),
    Setting("counter_max_skew_s", "how far clocks may be from the true time before counters are not collected", 0,
            315_360_000),
)  # fmt: skip
