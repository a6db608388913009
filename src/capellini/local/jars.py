"""The server's jars: fetched once through Maven, then shared by everything on this machine.

    $CAPELLINI_CACHE (default ~/.cache/capellini)
      cassandra-5.0.9/          complete or absent: made by one rename
      cassandra-5.0.9.lock      whoever fetches holds it; others wait, then find the folder
      cassandra-5.0.9.part-*/   a fetch under way, or what a killed one left; removed by the next

`python -m capellini.local.jars` does all of it, and installs Java and Maven first where it may (root, apt-get).
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capellini.local.errors import ClusterError, MissingTool

CASSANDRA_VERSION = "5.0.9"
JAVA_MAJOR = 17  # the newest Java that Cassandra 5.0 supports; its module options are written for it
APT_PACKAGES = {"java": "openjdk-17-jre-headless", "mvn": "maven"}
FETCH_TIMEOUT_S = 600  # 66 MB on a slow line
LEAST_JARS = 50  # a complete fetch brings about a hundred; far fewer means that something was cut short

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>capellini.local</groupId>
  <artifactId>cassandra</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.cassandra</groupId>
      <artifactId>cassandra-all</artifactId>
      <version>{CASSANDRA_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


def cache_folder() -> Path:
    """Where everything fetched or started is kept; `CAPELLINI_CACHE` moves it."""
    told = os.environ.get("CAPELLINI_CACHE")
    return Path(told).absolute() if told else Path.home() / ".cache" / "capellini"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file of its own; the kernel frees it when the holder dies.

    The holder may remove the file: whoever waited for it then notices that its lock is on no file, and starts over.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with open(path, "a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if is_file(handle.fileno(), path):
                yield
                return


def replace_file(path: Path, data: bytes) -> None:
    """In one step. What is renamed before it is on the disk is empty after a power cut."""
    part = path.with_name(f"{path.name}.part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def is_file(handle: int, path: Path) -> bool:
    """Whether an open file is still the one at that path."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def java_major(java: Path) -> int | None:
    """The major version of a `java`, or None if it does not run or says something else."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)', said)
    return int(found[1]) if found else None


def java_candidates() -> list[Path]:
    """Every `java` worth asking, the one the user chose first."""
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        found.append(Path(on_path))
    found.extend(sorted(Path("/usr/lib/jvm").glob("*/bin/java")))
    return found


def find_java() -> Path:
    """A Java of the right version, or `MissingTool`."""
    for java in java_candidates():
        if java_major(java) == JAVA_MAJOR:
            return java
    raise MissingTool(f"Java {JAVA_MAJOR} not found: install {APT_PACKAGES['java']}, or point JAVA_HOME at one")


def find_maven() -> Path:
    """Maven, or `MissingTool`."""
    if found := shutil.which("mvn"):
        return Path(found)
    raise MissingTool(f"Maven not found: install {APT_PACKAGES['mvn']} (it fetches the Cassandra server once)")


def find_jars() -> Path:
    """The folder of jars if it is there already, or `ClusterError`; touches nothing."""
    folder = cache_folder() / f"cassandra-{CASSANDRA_VERSION}"
    if folder.is_dir():
        return folder
    raise ClusterError("the Cassandra jars are not here yet: run `python -m capellini.local.jars`")


def fetch_jars() -> Path:
    """The folder of jars, fetched if need be. Safe to call from many processes at once."""
    cache = cache_folder()
    final = cache / f"cassandra-{CASSANDRA_VERSION}"
    with locked(cache / f"{final.name}.lock"):
        if final.is_dir():
            return final
        for left in cache.glob(f"{final.name}.part-*"):
            shutil.rmtree(left)
        part = Path(tempfile.mkdtemp(prefix=f"{final.name}.part-", dir=cache))
        run_maven(part)
        part.chmod(0o755)
        part.rename(final)
    return final


def run_maven(folder: Path) -> None:
    """Copy the server and all it needs into `folder`, or raise with Maven's last words."""
    pom = folder / "pom.xml"
    pom.write_text(POM)
    command = [
        str(find_maven()), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
        f"-DoutputDirectory={folder}", "-DincludeScope=runtime",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    jars = len(list(folder.glob("*.jar")))
    if done.returncode != 0 or jars < LEAST_JARS:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise ClusterError(f"Maven brought {jars} jars and ended with {done.returncode}:\n{last}")


def install_missing() -> None:
    """Install what is missing where that is allowed; where it is not, the finders say what to do."""
    missing = []
    fetched = (cache_folder() / f"cassandra-{CASSANDRA_VERSION}").is_dir()
    for tool, find in (("java", find_java), ("mvn", find_maven)):
        if tool == "mvn" and fetched:
            continue  # Maven's work is done
        try:
            find()
        except MissingTool:
            missing.append(APT_PACKAGES[tool])
    if not missing or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print(f"installing {' '.join(missing)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["apt-get", "update", "-q"], ["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing]):
        done = subprocess.run(step, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise MissingTool(f"`{' '.join(step)}` failed, install it by hand: {done.stderr.strip()[-300:]}")


def main() -> int:
    """Make this machine able to run a local cluster; 2 means that a person has to install something."""
    try:
        install_missing()
        find_java()
        print(f"Cassandra {CASSANDRA_VERSION} is in {fetch_jars()}")
    except MissingTool as missing:
        print(missing, file=sys.stderr)
        return 2
    except ClusterError as failed:
        print(failed, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
