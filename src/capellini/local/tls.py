"""A certificate for a local cluster whose nodes speak TLS to their clients.

    CLUSTER/tls/keystore.p12     the nodes' key and certificate, one for all of them: it names every node's address
    CLUSTER/tls/ca.pem           that certificate alone; it signed itself, so this is what clients trust

Made by the `keytool` that comes with every Java. The key lives as long as the cluster's folder and protects nothing but
tests, which is why its password may stand here.
"""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

from capellini.local.errors import ClusterError

KEYSTORE_PASSWORD = "capellini"
VALID_DAYS = "3650"  # a cluster that is kept for long should not fail on a certificate
KEYTOOL_TIMEOUT_S = 60


def folder_of(cluster: Path) -> Path:
    """Where a cluster keeps its certificate."""
    return cluster / "tls"


def keystore_of(cluster: Path) -> Path:
    """The nodes' key and certificate."""
    return folder_of(cluster) / "keystore.p12"


def ca_of(cluster: Path) -> Path:
    """What a client must trust to trust the cluster."""
    return folder_of(cluster) / "ca.pem"


def make(cluster: Path, addresses: Sequence[str], java: Path) -> None:
    """Make both files unless they are there."""
    if ca_of(cluster).exists():
        return
    folder_of(cluster).mkdir(parents=True, exist_ok=True)
    keystore = keystore_of(cluster)
    keystore.unlink(missing_ok=True)  # of a run that was killed between the two
    store = ("-alias", "node", "-keystore", str(keystore), "-storetype", "PKCS12", "-storepass", KEYSTORE_PASSWORD)
    names = ",".join(f"ip:{address}" for address in addresses)
    _keytool(
        java, "-genkeypair", *store, "-keyalg", "EC", "-groupname", "secp256r1", "-validity", VALID_DAYS,
        "-dname", f"CN={addresses[0]}", "-ext", f"san={names}", "-ext", "bc=ca:true",
    )  # fmt: skip
    part = ca_of(cluster).with_suffix(".part")
    _keytool(java, "-exportcert", *store, "-rfc", "-file", str(part))
    part.rename(ca_of(cluster))


def context(cluster: Path) -> ssl.SSLContext:
    """For a client of the cluster."""
    return ssl.create_default_context(cafile=str(ca_of(cluster)))


def _keytool(java: Path, *arguments: str) -> None:
    command = [str(java.with_name("keytool")), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=KEYTOOL_TIMEOUT_S, check=False)
    except OSError as missing:
        raise ClusterError(f"{command[0]} cannot be run, and makes the certificate: {missing.strerror}") from missing
    if done.returncode != 0:
        raise ClusterError(f"keytool made no certificate: {(done.stdout + done.stderr).strip()[-300:]}")
