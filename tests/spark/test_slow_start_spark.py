"""A machine so busy that Spark's Python does not start within the 10 s that Spark gives it: made slow, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.nodes import DEADLINE_S, numbered, serving

from capellini import connect

pytestmark = [pytest.mark.spark, pytest.mark.long]

# Python runs it before anything else. The first of the processes that answer for a stream's offsets is late.
SLOW = """
import os, sys, time
if any("python_streaming_source_runner" in each for each in sys.orig_argv):
    try:
        os.close(os.open({noted!r}, os.O_CREAT | os.O_EXCL))
        time.sleep(15)
    except FileExistsError:
        pass
"""


def test_a_job_whose_python_starts_too_late_once_is_done_all_the_same(tmp_path: Path) -> None:
    noted, slow = tmp_path / "was-slow", tmp_path / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(SLOW.format(noted=str(noted)))
    with serving(tmp_path / "store") as at, connect(at) as client:
        client.create_queue("far", "log")
        client.put_many("far", numbered(range(300)))
        command = [sys.executable, "-m", "capellini.cli.main", "pipeline", "archive", "far", str(tmp_path / "archive")]
        command += ["--at", at, "--checkpoint", str(tmp_path / "done"), "--master", "local[1]", "--json"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(slow), os.environ.get("PYTHONPATH", "")])}
        job = subprocess.run(command, env=environment, capture_output=True, timeout=DEADLINE_S, check=False)
    assert noted.exists(), "nothing was slow"
    assert job.returncode == 0, job.stderr.decode()[-3_000:]
    assert json.loads(job.stdout)["rows"] == 300
