"""ElasticMQ with its messages in H2, by boto3: SQS on one machine.

    put   send_message_batch        ten at most: a batch of 100 is ten calls
    get   receive_message           ten at most
    ack   delete_message_batch

Bodies are text in SQS, so that they travel as base64. The server comes through Maven, once.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.config import Config

from capellini.bench.peers.peer import Got, Lane, Missing, Server, accepts, free_port
from capellini.local.errors import ClusterError, MissingTool
from capellini.local.jars import cache_folder, find_java, find_maven, locked

VERSION: Final = "1.6.9"
LEAST_JARS: Final = 30
FETCH_WITHIN_S: Final = 300.0
MOST: Final = 10  # messages of a call, by SQS
VISIBILITY_S: Final = 600
CONNECTIONS: Final = 64

POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>capellini.local</groupId>
  <artifactId>elasticmq</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.elasticmq</groupId>
      <artifactId>elasticmq-server_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""
SETTINGS: Final = """
include classpath("application.conf")
rest-sqs {{ enabled = true, bind-hostname = "127.0.0.1", bind-port = {port}, sqs-limits = strict }}
rest-stats {{ enabled = false }}
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
queues-storage {{ enabled = true, path = "{folder}/queues.conf" }}
messages-storage {{
  enabled = true
  driver-class = "org.h2.Driver"
  uri = "jdbc:h2:{folder}/messages"
  username = "sa"
  password = ""
}}
"""


class Elasticmq(Server):
    name = "elasticmq"
    label = "ElasticMQ"
    says = "ElasticMQ with messages in H2, SQS batches of ten, boto3"
    durable = "H2 writes within half a second, and does not sync"
    lacks: Mapping[str, str] = {"groups": "SQS has no groups; topics (SNS) are not part of it"}
    most_batch = MOST
    about_per_s = 600
    port = 0

    def start(self) -> None:
        try:
            java, jars = find_java(), _jars()
        except (MissingTool, ClusterError) as error:
            raise Missing(f"elasticmq: {error}") from None
        self.port = self.port or free_port()
        config = self.folder / "elasticmq.conf"
        config.write_text(SETTINGS.format(port=self.port, folder=self.folder))
        options = ["-Xmx1g", f"-Dconfig.file={config}", "-cp", f"{jars}/*"]
        self.spawn([str(java), *options, "org.elasticmq.server.Main"], cwd=self.folder)
        self.until(lambda: accepts(self.port))

    def version(self) -> str:
        return VERSION

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fresh(self, queue: str) -> None:
        _client(self.address).create_queue(QueueName=queue, Attributes={"VisibilityTimeout": str(VISIBILITY_S)})


def _jars() -> Path:
    """Where the server's jars are, fetched if need be. The folder is complete or absent."""
    cache = cache_folder()
    final = cache / f"elasticmq-{VERSION}"
    with locked(cache / f"{final.name}.lock"):
        if final.is_dir():
            return final
        part = Path(tempfile.mkdtemp(prefix=f"{final.name}.part-", dir=cache))
        (part / "pom.xml").write_text(POM)
        command = [
            str(find_maven()), "-q", "-B", "-f", str(part / "pom.xml"), "dependency:copy-dependencies",
            f"-DoutputDirectory={part}", "-DincludeScope=runtime",
        ]  # fmt: skip
        try:
            subprocess.run(command, capture_output=True, timeout=FETCH_WITHIN_S)
        except subprocess.TimeoutExpired:
            pass  # judged by what it brought
        if len(list(part.glob("*.jar"))) < LEAST_JARS:
            shutil.rmtree(part)
            raise ClusterError("Maven could not bring it")
        part.rename(final)
    return final


_clients: dict[str, Any] = {}  # one for all threads of a process: it is made to be shared, and slow to make
_making = threading.Lock()


def _client(address: str) -> Any:
    with _making:
        if address not in _clients:
            _clients[address] = boto3.client(
                "sqs", endpoint_url=address, region_name="elasticmq", aws_access_key_id="x", aws_secret_access_key="x",
                config=Config(max_pool_connections=CONNECTIONS),
            )  # fmt: skip
        return _clients[address]


def _tens(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for at in range(0, len(items), MOST):
        yield items[at : at + MOST]


class ElasticmqLane(Lane):
    def __init__(self, address: str, queue: str, groups: Sequence[str] = ()) -> None:
        self._client = _client(address)
        self._url = self._client.get_queue_url(QueueName=queue)["QueueUrl"]

    def put(self, bodies: list[bytes], delay_s: float = 0.0) -> None:
        for some in _tens(bodies):
            entries = [
                {"Id": str(index), "MessageBody": base64.b64encode(body).decode(), "DelaySeconds": round(delay_s)}
                for index, body in enumerate(some)
            ]
            self._checked(self._client.send_message_batch(QueueUrl=self._url, Entries=entries))

    def get(self, most: int) -> list[Got]:
        found: list[Got] = []
        while len(found) < most:
            wanted = min(MOST, most - len(found))
            wait_s = 0 if found else 1
            answer = self._client.receive_message(
                QueueUrl=self._url, MaxNumberOfMessages=wanted, WaitTimeSeconds=wait_s
            )
            some = answer.get("Messages", [])
            found += [(base64.b64decode(each["Body"]), each["ReceiptHandle"]) for each in some]
            if len(some) < wanted:
                break
        return found

    def ack(self, handles: list[str]) -> None:
        for some in _tens(handles):
            entries = [{"Id": str(index), "ReceiptHandle": each} for index, each in enumerate(some)]
            self._checked(self._client.delete_message_batch(QueueUrl=self._url, Entries=entries))

    @staticmethod
    def _checked(answer: Mapping[str, Any]) -> None:
        if failed := answer.get("Failed"):
            raise RuntimeError(f"ElasticMQ refused: {failed[0]}")

    def close(self) -> None:
        """The client is the process's."""
