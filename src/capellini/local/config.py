"""The files and the command line of one Cassandra node.

All nodes are seeds of each other: a node may then start first, last or alone, which is what tests of faults do.
Tokens are given, not drawn, so that each node owns the same share whatever the run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

import msgspec

from capellini.local import tls

CommitlogSync = Literal["batch", "group", "periodic"]
COMMITLOG_SYNCS: tuple[str, ...] = get_args(CommitlogSync)
Jvm = Literal["quick", "full"]
JVMS: tuple[str, ...] = get_args(Jvm)
# Starting three nodes took 11 to 12 s of processor time each with quick, 17 to 19 s with full; but only full compiles
# hot code well, so that benchmarks want it.
JVM_OPTIONS: dict[str, tuple[str, ...]] = {
    "quick": (
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dcassandra.approximate_time_precision_ms=10",  # by default a thread wakes every 2 ms to look at the clock
    ),
    "full": ("-XX:+UseG1GC",),
}
# Cassandra's threads that have nothing to do wake every 10 us for a while, to see whether there is something. Woken
# later, three nodes on two cores took a quarter less processor time for the same requests.
SLACK_US: dict[str, int] = {"quick": 500, "full": 0}

TOKENS_PER_NODE = 4
RING = 2**64  # Murmur3 tokens run from -2**63 to 2**63 - 1
HEAP_MB = 400
CQL_PORT = 9042
FIRST_USER = ("cassandra", "cassandra")  # as every Cassandra with passwords begins
STORAGE_PORT = 7000
GROUP_WINDOW_MS = 5  # the longest a write waits for others to share its fsync

# Cassandra reaches into these packages of Java 17; the list is the one its own start script uses.
EXPORTS = (
    "java.base/jdk.internal.misc", "java.base/jdk.internal.ref", "java.base/sun.nio.ch",
    "java.base/java.lang.ref", "java.base/jdk.internal.perf", "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server", "java.rmi/sun.rmi.transport.tcp", "java.sql/java.sql",
    "jdk.unsupported/sun.misc", "jdk.attach/sun.tools.attach", "jdk.compiler/com.sun.tools.javac.file",
)  # fmt: skip
OPENS = (
    "java.base/java.lang.module", "java.base/java.net", "java.base/jdk.internal.loader", "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect", "java.base/jdk.internal.math", "java.base/jdk.internal.module",
    "java.base/jdk.internal.util.jar", "java.base/jdk.internal.misc", "java.base/sun.nio.ch", "java.base/java.io",
    "java.base/java.lang", "java.base/java.lang.reflect", "java.base/java.util", "java.base/java.nio",
    "java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic",
    "java.rmi/sun.rmi.transport.tcp", "jdk.management/com.sun.management.internal",
    "jdk.management.jfr/jdk.management.jfr", "java.management/javax.management",
)  # fmt: skip


class NodeConfig(msgspec.Struct, frozen=True):
    """All that tells one node from another."""

    number: int
    cluster: str
    folder: str
    address: str
    seeds: tuple[str, ...]
    dc: str
    jmx_port: int
    tokens: tuple[int, ...]
    commitlog_sync: CommitlogSync = "batch"
    jvm: Jvm = "quick"
    tls: bool = False  # clients must speak it; nodes among themselves do not
    passwords: bool = False  # users have passwords and rights; the first one is FIRST_USER
    heap_mb: int = HEAP_MB


def storage_argument(folder: str) -> str:
    """Tells the node from all other processes of the machine: it holds its folder."""
    return f"-Dcassandra.storagedir={folder}/storage"


def tokens_of(number: int, nodes: int) -> tuple[int, ...]:
    """The tokens of node `number` (from 1): even steps round the ring, the nodes taking turns."""
    total = nodes * TOKENS_PER_NODE
    return tuple(-(2**63) + RING // total * (turn * nodes + number - 1) for turn in range(TOKENS_PER_NODE))


def cassandra_yaml(node: NodeConfig) -> str:
    """The node's `cassandra.yaml`."""
    storage = f"{node.folder}/storage"
    sync = {
        "batch": "commitlog_sync: batch",
        "group": f"commitlog_sync: group\ncommitlog_sync_group_window: {GROUP_WINDOW_MS}ms",
        "periodic": "commitlog_sync: periodic\ncommitlog_sync_period: 10000ms",
    }[node.commitlog_sync]
    guarded = node.passwords
    return f"""cluster_name: '{node.cluster}'
num_tokens: {TOKENS_PER_NODE}
initial_token: '{",".join(map(str, node.tokens))}'
auto_bootstrap: false
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: GossipingPropertyFileSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: '{",".join(node.seeds)}'
listen_address: {node.address}
storage_port: {STORAGE_PORT}
rpc_address: {node.address}
native_transport_port: {CQL_PORT}
authenticator: {"PasswordAuthenticator" if guarded else "AllowAllAuthenticator"}
authorizer: {"CassandraAuthorizer" if guarded else "AllowAllAuthorizer"}
permissions_validity: 0ms  # what is granted counts at once, and not after two seconds
{client_encryption(node)}{sync}
commitlog_segment_size: 8MiB
commitlog_directory: '{storage}/commitlog'
data_file_directories: ['{storage}/data']
saved_caches_directory: '{storage}/saved_caches'
hints_directory: '{storage}/hints'
cdc_raw_directory: '{storage}/cdc_raw'
paxos_variant: v2
concurrent_reads: 8
concurrent_writes: 16
"""


def client_encryption(node: NodeConfig) -> str:
    """The part of `cassandra.yaml` that makes clients speak TLS, and refuses those that do not."""
    if not node.tls:
        return ""
    return f"""client_encryption_options:
  enabled: true
  optional: false
  keystore: '{tls.keystore_of(Path(node.folder).parent)}'
  keystore_password: {tls.KEYSTORE_PASSWORD}
  store_type: PKCS12
  require_client_auth: false
"""


def rackdc(node: NodeConfig) -> str:
    """The node's `cassandra-rackdc.properties`."""
    return f"dc={node.dc}\nrack=rack1\n"


def logback(node: NodeConfig) -> str:
    """The node's `logback.xml`: one file, warnings and the story of its start."""
    return f"""<configuration>
  <appender name="FILE" class="ch.qos.logback.core.FileAppender">
    <file>{node.folder}/system.log</file>
    <encoder><pattern>%-5level %date{{ISO8601}} %logger{{0}} - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="FILE"/></root>
</configuration>
"""


def write_files(node: NodeConfig) -> None:
    """Put the node's files where its command line looks for them."""
    conf = Path(node.folder) / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "cassandra.yaml").write_text(cassandra_yaml(node))
    (conf / "cassandra-rackdc.properties").write_text(rackdc(node))
    (conf / "logback.xml").write_text(logback(node))


def java_command(node: NodeConfig, java: Path, jars: Path) -> list[str]:
    """The command line of the node."""
    conf = Path(node.folder) / "conf"
    modules = [f"--add-exports={package}=ALL-UNNAMED" for package in EXPORTS]
    modules += [f"--add-opens={package}=ALL-UNNAMED" for package in OPENS]
    return [
        str(java),
        f"-Xms{node.heap_mb}m",
        f"-Xmx{node.heap_mb}m",
        "-Xss512k",
        *JVM_OPTIONS[node.jvm],
        "-Djdk.attach.allowAttachSelf=true",
        *modules,
        f"-Dcassandra.config=file://{conf}/cassandra.yaml",
        f"-Dlogback.configurationFile={conf}/logback.xml",
        storage_argument(node.folder),
        "-Dcassandra-foreground=yes",
        "-Dcassandra.skip_wait_for_gossip_to_settle=0",
        "-Dcassandra.ring_delay_ms=1000",
        "-Dcassandra.superuser_setup_delay_ms=0",
        f"-Dcassandra.jmx.local.port={node.jmx_port}",
        "-cp",
        f"{conf}{os.pathsep}{jars}/*",
        "org.apache.cassandra.service.CassandraDaemon",
    ]
