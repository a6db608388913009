"""A node that the tests of this folder share: each has a queue of its own there. Who stops or kills a node starts one
of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from tests.acceptance.client_processes import running_node


@pytest.fixture(scope="session")
def node_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_node(tmp_path_factory.mktemp("node") / "data") as node:
        yield node.address


@pytest.fixture
def queue() -> str:
    return f"q-{uuid.uuid4().hex[:12]}"
