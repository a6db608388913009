"""On a real standalone master with two workers: tasks run in executors, which get the package from the session."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from tests.spark.nodes import DEADLINE_S, numbered, serving

from capellini import connect

pytestmark = [pytest.mark.spark, pytest.mark.long]
CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
CHILD = Path(__file__).with_name("cluster_child.py")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A master and two workers of one core each."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    commands = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    commands += [
        [f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0",
         "--work-dir", str(folder / f"worker-{number}"), master]
        for number in range(2)
    ]  # fmt: skip
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    started = []
    try:
        for number, command in enumerate(commands):
            with (folder / f"spark-{number}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        [CLASS, *command], stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
                    )
                )
        said = folder / "spark-0.log"
        deadline_s = time.monotonic() + DEADLINE_S
        while said.read_text().count("Registering worker") < 2:
            assert time.monotonic() < deadline_s, said.read_text()[-2_000:]
            time.sleep(0.1)
        yield master
    finally:
        for each in started:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A Spark Connect server of its own."""
    port = free_port()
    command = [
        CLASS, "org.apache.spark.deploy.SparkSubmit", "--master", "local[1]", "--driver-memory", "1g",
        "--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.ui.enabled=false",
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
    ]  # fmt: skip
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("PYTHONPATH", None)  # what it knows of the package comes from the session
    with (folder / "connect.log").open("wb") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True, cwd=folder
        )
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while "Spark Connect server started" not in (folder / "connect.log").read_text():
            said = (folder / "connect.log").read_text()[-2_000:]
            assert server.poll() is None and time.monotonic() < deadline_s, said
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_jobs_run_through_spark_connect(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as at, connect_server(tmp_path) as master, connect(at) as client:
        client.create_queue("far", "log")
        client.create_queue("near", "log")
        client.put_many("far", numbered(range(3_000)), attributes={"a": "b"})
        out = tmp_path / "out.json"
        command = [sys.executable, str(CHILD), master, at, str(out)]
        child = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False)
        assert child.returncode == 0, child.stderr.decode()[-3_000:]
        said = json.loads(out.read_text())
        assert (said["rows"], said["archived"], said["replayed"]) == (3_000, 3_000, 3_000)
        assert said["lives"] > 0


def test_two_workers_read_and_write_queues(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as at, standalone(tmp_path) as master, connect(at) as client:
        client.create_queue("far", "log")
        client.create_queue("near", "log")
        client.put_many("far", numbered(range(3_000)), attributes={"a": "b"})
        out = tmp_path / "out.json"
        child = subprocess.run(
            [sys.executable, str(CHILD), master, at, str(out)], capture_output=True, timeout=DEADLINE_S, check=False
        )
        assert child.returncode == 0, child.stderr.decode()[-3_000:]
        said = json.loads(out.read_text())
        assert (said["rows"], said["archived"], said["replayed"]) == (3_000, 3_000, 3_000)
        assert said["lives"] > 0
        assert all("capellini.zip" in place for place in said["places"]), said["places"]
        assert len({place.split()[1] for place in said["places"]}) == 2, "one worker did everything"
        found = 0
        while found < 6_000 and (some := client.get("near", 1_000, wait_s=5.0)):
            found += len(some)
            client.ack_many("near", some)
        assert found == 6_000  # written, and replayed from the archive
