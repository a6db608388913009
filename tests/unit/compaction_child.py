"""A compaction of an archive in Parquet, killed before each single step that it takes with files.

    python -m tests.unit.compaction_child FOLDER

After each kill the archive must have the rows that it had; run again the compaction finishes. It is a process of its
own because it forks: the child is the one that is killed. Rows are merged by pyarrow here, which needs no Java.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capellini.pipeline.jobs.compacting import compact_days

DAYS = ("day=2030-01-31", "day=2030-02-01")
BATCHES = [f"{query}-{number:08d}" for query in ("abc", "def") for number in range(3)]
FILES = 2  # of each batch on each day
FEW = BATCHES[:3]  # with one file each: what is killed at every step
STEPS = {
    "open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree", "fcntl.flock", "ctypes.dlsym"
}  # fmt: skip


def make(place: Path, batches: Sequence[str] = BATCHES, files: int = FILES) -> None:
    """Queries have written three batches of two days each, and none has said that its last one is done."""
    number = count()
    for day in DAYS:
        for batch in batches:
            add(place / "queue=kept" / day / f"batch={batch}", number, files)


def add(folder: Path, number: count[int], files: int = FILES) -> None:
    folder.mkdir(parents=True)
    for part in range(files):
        rows = pa.table({"number": [next(number), next(number)], "body": [b"one", b"two"]})
        pq.write_table(rows, folder / f"part-{part}.parquet")
        (folder / f".part-{part}.parquet.crc").write_bytes(b"as Hadoop has it")


def files_of(place: Path) -> list[Path]:
    """As tools find them that know nothing of us."""
    return sorted(place.glob("queue=*/day=*/batch=*/*.parquet"))


def rows_of(place: Path) -> list[tuple[str, int]]:
    return sorted((file.parts[-3], number) for file in files_of(place) for number in _read(file)["number"].to_pylist())


def merge(files: Sequence[Path], into: Path, count: int) -> None:
    into.mkdir(parents=True)
    (into / "_SUCCESS").touch()
    pq.write_table(pa.concat_tables(_read(file) for file in files), into / "part-0.parquet")


def _read(file: Path) -> pa.Table:
    return pq.ParquetFile(file).read(use_threads=False)


def killed(place: Path, step: int) -> bool:
    """False: it was done before that step came."""
    child = os.fork()
    if not child:
        left = iter(range(step))

        def look(event: str, arguments: tuple[Any, ...]) -> None:
            if event in STEPS and next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(look)
        compact_days(place, merge)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def main(folder: str) -> None:
    os.fsync = lambda file: None  # type: ignore[assignment]  # it is for when the power fails, and slow
    whole, place = Path(folder) / "whole", Path(folder) / "killed"
    make(whole, FEW, 1)
    rows = rows_of(whole)
    seen = set()
    for step in count():
        shutil.copytree(whole, place)
        ended = not killed(place, step)
        assert rows_of(place) == rows, f"killed at step {step}"
        seen.add(len(files_of(place)))
        compact_days(place, merge)
        assert rows_of(place) == rows, f"killed at step {step}, and run again"
        assert len(files_of(place)) == len(DAYS) * 2, step  # a large file, and the last batch, which may come again
        assert not (place / "_compacting").exists(), step
        shutil.rmtree(place)
        if ended:
            print(f"{step} steps, files after them: {sorted(seen)}")
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
