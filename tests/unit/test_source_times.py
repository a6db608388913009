"""The data source takes `since` and `until` only where its reader looks at them."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from capellini import connect
from capellini.model.errors import Invalid
from capellini.pipeline.source.data import Capellini

KINDS = {"w": "work", "t": "timed", "feed": "log"}


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> str:
    at = f"rocks:{tmp_path_factory.mktemp('times') / 'data'}"
    with connect(at) as client:
        for name, kind in KINDS.items():
            client.create_queue(name, kind)
    return at


@pytest.mark.parametrize("time", [{"since": "5"}, {"until": "5"}])
@pytest.mark.parametrize("options", [{"queue": "w"}, {"queue": "t"}, {"read": "counters"}])
def test_a_table_of_what_is_there_now_takes_no_times(at: str, options: dict[str, str], time: dict[str, str]) -> None:
    assert isinstance(Capellini({"at": at, **options}).reader(StructType()), DataSourceReader)
    with pytest.raises(Invalid, match="other tables have what is there now: leave them out"):
        Capellini({"at": at, **options, **time}).reader(StructType())


@pytest.mark.parametrize("time", [{"since": "5"}, {"until": "5"}])
def test_a_stream_takes_no_times_and_a_table_of_a_log_queue_does(at: str, time: dict[str, str]) -> None:
    asked = {"at": at, "queue": "feed", **time}
    assert isinstance(Capellini(asked).reader(StructType()), DataSourceReader)
    with pytest.raises(Invalid, match="a stream begins where `start` says: leave them out"):
        Capellini(asked).streamReader(StructType())
