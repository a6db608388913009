"""A folder that is shared: who owns it, and where it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import capellini


async def test_a_program_that_goes_elsewhere_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    owner, guest = capellini.connect_async("rocks:data"), capellini.connect_async("rocks:data")
    await owner.create_queue("jobs")
    await guest.put("jobs", b"x")
    monkeypatch.chdir(elsewhere)
    await owner.put("jobs", b"y")
    await owner.close()
    assert {message.body for message in await guest.get("jobs", 2, wait_s=5)} == {b"x", b"y"}
    await guest.close()
    assert not any(elsewhere.iterdir())


def test_a_client_says_so_in_another_event_loop(tmp_path: Path) -> None:
    owner, guest = capellini.connect(f"rocks:{tmp_path}"), capellini.connect_async(f"rocks:{tmp_path}")
    alone = capellini.connect_async(f"rocks:{tmp_path / 'alone'}")
    with owner:
        owner.create_queue("jobs")
        asyncio.run(guest.statistics("jobs"))
        asyncio.run(alone.list_queues())
        for call in (guest.statistics("jobs"), guest.close(), alone.list_queues(), alone.close()):
            with pytest.raises(capellini.Invalid, match="another event loop"):
                asyncio.run(call)


@pytest.mark.parametrize(
    "wrong", [{"max_connections": 0}, {"patience_s": float("nan")}, {"patience_s": -1}, {"request_timeout_s": "30"}]
)
def test_options_with_which_a_call_would_never_end_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(capellini.Invalid, match=next(iter(wrong))):
        capellini.connect("http://127.0.0.1:1", **wrong)
