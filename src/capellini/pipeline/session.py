"""The one place where a Spark session is made.

    settings_for(plan) ──▶ a session on this machine (default), on a master (--master), or through Spark Connect

On this machine everything runs in one process beside ours: memory is fitted to the machine, garbage is collected by one
thread, and code is compiled once, not twice, because most jobs end before the second compiler has paid for itself.
On a master the package travels with the session as a zip: executors need Python and pyarrow, and nothing of ours.

What fails, and what then happens: no Java, or too old a one, is said in one line before Spark is started; a master
that does not answer is said as Spark says it.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

import capellini
from capellini.local.jars import cache_folder
from capellini.model.errors import CannotOpen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_LEAST: Final = 17  # what Spark 4 needs
JAVA_WITHIN_S: Final = 20.0
PORTS: Final = {"sc": 15_002, "spark": 7_077}
THERE_WITHIN_S: Final = 10.0
LEAST_MEMORY_MB: Final = 768  # below this Spark itself does not start
MOST_MEMORY_MB: Final = 8 * 1024  # what the jobs keep is bounded; more memory is better left to the page cache
MEMORY_SHARE: Final = 4  # a quarter of the machine: Python workers and the page cache want theirs
DELTA: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # 50 would be 50 tasks for a handful of files
}
CONNECT: Final = "sc://"
REMOTE_SETTINGS: Final = {"spark.sql.session.timeZone": "UTC", "spark.sql.execution.arrow.maxRecordsPerBatch": "65536"}
CAUSE: Final = re.compile(r"Caused by: |details = ")  # within what Java and gRPC say


class Plan(msgspec.Struct, frozen=True):
    """Where and how large. `master`: local[N], a master's URL, or sc://HOST of Spark Connect."""

    master: str = "local[*]"
    memory_mb: int | None = None  # None: fitted to the machine
    shuffle_partitions: int | None = None  # None: twice the cores here, Spark's own choice on a cluster
    delta: bool = False
    short: bool = True  # False: compile twice; pays off in jobs that run for minutes
    settings: dict[str, str] = {}  # last, so that they win


def session(plan: Plan | None = None, name: str = "capellini") -> SparkSession:
    """A session; the one that is there, if there is one. Raises CannotOpen in one line."""
    plan = plan or Plan()
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise CannotOpen(f"{error.name} is missing: install capellini[spark]") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    check_there(plan.master)
    if plan.master.startswith(CONNECT):
        return _connected(plan, name)
    check_java()
    builder = SparkSession.builder.master(plan.master).appName(name)
    for key, value in settings_for(plan).items():
        builder = builder.config(key, value)
    try:
        found: SparkSession = builder.getOrCreate()
    except Exception as error:  # whatever Java throws: pages of it, of which one line is of use
        raise CannotOpen(f"Spark could not be started on {plan.master}: {_said(error)}") from error
    found.sparkContext.setLogLevel("ERROR")
    if not _local(plan):
        found.sparkContext.addPyFile(str(package_zip()))
    return found


def _connected(plan: Plan, name: str) -> SparkSession:
    """Through Spark Connect: the server has its own settings, and gets the package."""
    from pyspark.sql import SparkSession

    try:
        builder = SparkSession.builder.remote(plan.master).appName(name)
        for key, value in (REMOTE_SETTINGS | plan.settings).items():
            builder = builder.config(key, value)
        found: SparkSession = builder.getOrCreate()
        found.addArtifacts(str(package_zip()), pyfile=True)
    except Exception as error:
        raise CannotOpen(f"there is no Spark Connect at {plan.master}: {_said(error)}") from error
    return found


def set_active(spark: SparkSession) -> None:
    """Whoever calls works with this session: `start()` and `save()` look a source up in the session that is active in
    Java's thread. Each of ours has one of its own there, and gets another after an interrupt: in a new one none is
    active, and Spark says DATA_SOURCE_NOT_FOUND. Through Spark Connect there is no such thing."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is not None:
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def _said(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if CAUSE.match(line)]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0][:300]


def settings_for(plan: Plan) -> dict[str, str]:
    """What the session is started with: a pure function of the plan and of this machine."""
    # Room for all code that is compiled: where Java compiles once it has 48 MB, throws away, and compiles anew.
    compiler = " -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m" if plan.short else ""
    settings = {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",  # what one call of ours works on: a few MB
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-XX:+UseSerialGC{compiler}",
        "spark.driver.memory": f"{plan.memory_mb or fitted_memory_mb()}m",
    }
    if _local(plan):
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.python.unix.domain.socket.enabled": "true",  # rows come an eighth to a quarter sooner than by TCP
            "spark.sql.shuffle.partitions": str(plan.shuffle_partitions or 2 * cores(plan.master)),
            "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "capellini-warehouse"),
        }
    elif plan.shuffle_partitions:
        settings["spark.sql.shuffle.partitions"] = str(plan.shuffle_partitions)
    if plan.delta:
        settings |= {"spark.jars.packages": DELTA, "spark.jars.ivy": str(ivy_folder()), **DELTA_SETTINGS}
    return settings | plan.settings


def _local(plan: Plan) -> bool:
    return plan.master.startswith("local")


def cores(master: str) -> int:
    told = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    if told is None or told[1] is None:
        return 1
    return (os.cpu_count() or 1) if told[1] == "*" else int(told[1])


def fitted_memory_mb() -> int:
    all_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024)
    return max(LEAST_MEMORY_MB, min(MOST_MEMORY_MB, all_mb // MEMORY_SHARE))


def ivy_folder() -> Path:
    """Fixed, so that the second start needs no network."""
    return cache_folder() / "ivy"


def check_there(master: str) -> None:
    """Raises CannotOpen when nobody listens at a master of the network: Spark itself tries for minutes."""
    parts = urlsplit(master)
    if parts.scheme not in PORTS or "," in parts.netloc or not parts.hostname:
        return  # here, or one of several, or something else that Spark knows
    try:
        socket.create_connection((parts.hostname, parts.port or PORTS[parts.scheme]), THERE_WITHIN_S).close()
    except (OSError, ValueError) as error:
        raise CannotOpen(f"no Spark answers at {master}: {error}") from None


def check_java() -> None:
    """Raises CannotOpen in one line when Java is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or (home and not Path(java).exists()):
        where = f"JAVA_HOME is {home}, where there is none" if home else "there is no java on the PATH"
        package = f"openjdk-{JAVA_LEAST}-jre-headless"
        raise CannotOpen(f"Spark needs Java {JAVA_LEAST} or newer, and {where}: install {package}")
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer within {JAVA_WITHIN_S:g} s"
        raise CannotOpen(f"{java} cannot be run ({why}): Spark needs Java {JAVA_LEAST} or newer") from None
    told = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    if done.returncode or told is None:
        raise CannotOpen(f"{java} does not say its version: Spark needs Java {JAVA_LEAST} or newer")
    if int(told[1]) < JAVA_LEAST:
        raise CannotOpen(f"{java} is Java {told[1]}: Spark needs Java {JAVA_LEAST} or newer")


def package_zip(folder: Path | None = None) -> Path:
    """The package as a zip, for executors elsewhere. Made anew each time: it is small, and never stale."""
    root = Path(capellini.__file__).parent
    folder = folder or Path(tempfile.mkdtemp(prefix="capellini-ship-"))
    path = folder / "capellini.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for each in sorted(root.rglob("*")):
            if each.suffix == ".py" or each.name == "py.typed":
                file.write(each, Path("capellini") / each.relative_to(root))
    return path
