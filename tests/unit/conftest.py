"""What unit tests share: a node of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from capellini.node.node import Node
from capellini.node.settings import Settings


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """On a folder that nobody else uses."""
    opened = await Node.open(Settings(store=f"rocks:{tmp_path / 'store'}", listen="127.0.0.1:0"))
    yield opened
    await opened.close()
