"""A real node answers whatever its own OpenAPI document allows, and whatever it does not, without an error of its own.

Requests are generated from the document with a fixed seed and a bounded number of examples per operation.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from capellini.api.openapi import document
from capellini.api.routes import ROUTES

pytestmark = pytest.mark.slow
EXAMPLES = 8  # per operation
PATIENCE_S = 60.0
QUEUE = "there"
CHECKS: list[CheckFunction] = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@schemathesis.serializer("application/msgpack")
def packed(context: schemathesis.SerializationContext, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:  # JSON knows larger numbers
        return msgspec.msgpack.encode(repr(value))


@schemathesis.deserializer("application/msgpack")
def unpacked(context: schemathesis.DeserializationContext, response: schemathesis.Response) -> Any:
    return msgspec.to_builtins(msgspec.msgpack.decode(response.content))  # JSON Schema knows no bytes: base64


schema = schemathesis.openapi.from_dict(document(tuple(route for route in ROUTES if route.path != "/v1/drain")))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a node on a folder, with one queue in it."""
    folder: Path = tmp_path_factory.mktemp("fuzz")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CAPELLINI_")}
    command = [sys.executable, "-m", "capellini.cli.main", "serve", "--store", f"rocks:{folder}/data"]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], env=clean, stdout=subprocess.PIPE, text=True, cwd=folder
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "listens on http://" in line
    address = line.split("listens on ")[1].split(",")[0].strip()
    with urllib.request.urlopen(urllib.request.Request(f"{address}/v1/queues/{QUEUE}", method="PUT")) as made:
        assert made.status == 200
    yield address
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_makes_the_node_fail(case: schemathesis.Case, node: str) -> None:
    name = case.path_parameters.get("name", "")
    if isinstance(name, str) and len(name) % 2 and case.method != "DELETE":
        case.path_parameters["name"] = QUEUE  # a queue that exists; the others mostly do not
    body = case.body
    if isinstance(body, dict) and isinstance(body.get("wait_s"), int | float) and body["wait_s"] > 0:
        body["wait_s"] = 0  # a get that waits is a matter of other tests
    case.call_and_validate(base_url=node, checks=CHECKS, timeout=PATIENCE_S)
