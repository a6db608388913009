"""What each failure of the driver means, for what was asked."""

from __future__ import annotations

import acsylla
import pytest
from acsylla import errors as driver

from capellini.model.address import CassandraAddress
from capellini.model.errors import CannotOpen, CapelliniError, Invalid, Overloaded, TooLarge, Unavailable, Unknown
from capellini.store.cassandra import values_nobody_has
from capellini.store.cassandra_session import Kind, NoRights, levels, local_dc, meaning
from capellini.store.checks import _FITS
from capellini.store.interface import Level, Type

READ, WRITE, CAS = Kind.READ, Kind.WRITE, Kind.CAS


@pytest.mark.parametrize(
    ("error", "kind", "means"),
    [
        # Never sent: nothing happened, whatever it was.
        (driver.CassErrorLibNoHostsAvailable("no hosts"), CAS, Unavailable),
        (driver.CassErrorLibNoHostsAvailable("no hosts"), WRITE, Unavailable),
        (driver.CassErrorLibRequestQueueFull("full"), CAS, Overloaded),
        (driver.CassErrorServerUnauthorized("no MODIFY permission"), CAS, NoRights),
        # Too few replicas: before a plain write and before a proposal; while committing it is too late.
        (driver.CassErrorServerUnavailable("Cannot achieve consistency level QUORUM"), WRITE, Unavailable),
        (driver.CassErrorServerUnavailable("Cannot achieve consistency level SERIAL"), CAS, Unavailable),
        (driver.CassErrorServerUnavailable("Cannot achieve consistency level LOCAL_SERIAL"), CAS, Unavailable),
        (driver.CassErrorServerUnavailable("Cannot achieve consistency level QUORUM"), CAS, Unknown),
        (driver.CassErrorServerOverloaded("hints"), WRITE, Overloaded),
        (driver.CassErrorServerOverloaded("hints"), CAS, Unknown),
        # The answer was lost.
        (driver.CassErrorLibRequestTimedOut("timed out"), CAS, Unknown),
        (driver.CassErrorLibRequestTimedOut("timed out"), WRITE, Unknown),
        (driver.CassErrorServerWriteTimeout("timed out"), CAS, Unknown),
        (driver.CassErrorServerWriteFailure("failed"), CAS, Unknown),
        (driver.CassErrorServerWriteFailure("failed"), WRITE, Unknown),
        (driver.CassErrorServerReadTimeout("timed out"), CAS, Unknown),
        (driver.CassErrorServerServerError("?"), WRITE, Unknown),
        # A read changes nothing.
        (driver.CassErrorLibRequestTimedOut("timed out"), READ, Unavailable),
        (driver.CassErrorServerReadFailure("tombstones"), READ, Unavailable),
        (driver.CassErrorServerServerError("?"), READ, Unavailable),
        # The request is wrong.
        (driver.CassErrorServerInvalidQuery("Invalid"), CAS, Invalid),
        (driver.CassErrorServerInvalidQuery("Rejected an oversized mutation"), WRITE, TooLarge),
        (driver.CassErrorServerInvalidQuery("table x does not exist"), WRITE, Unavailable),
    ],
)
def test_a_failure_means_what_is_sure_about_it(error: Exception, kind: Kind, means: type[CapelliniError]) -> None:
    assert type(meaning(error, kind)) is means


def test_the_address_says_what_a_quorum_is() -> None:
    assert levels("quorum")[Level.QUORUM] is acsylla.Consistency.QUORUM
    assert levels("quorum")[Level.SERIAL] is acsylla.Consistency.SERIAL
    assert levels("one")[Level.QUORUM] is acsylla.Consistency.ONE
    local = levels("local_quorum")
    assert (local[Level.QUORUM], local[Level.SERIAL]) == (
        acsylla.Consistency.LOCAL_QUORUM,
        acsylla.Consistency.LOCAL_SERIAL,
    )
    assert local[Level.ALL] is acsylla.Consistency.ALL


def test_the_local_data_centre_is_named_or_the_only_one_or_the_first_hosts() -> None:
    two = {"east": ["10.0.0.1", "10.0.0.2"], "west": ["10.1.0.1"]}
    assert local_dc(CassandraAddress(("10.1.0.1",), "k"), two) == "west"
    assert local_dc(CassandraAddress(("10.1.0.1",), "k", dc="east"), two) == "east"
    assert local_dc(CassandraAddress(("db.example",), "k"), {"east": ["10.0.0.1"]}) == "east"
    with pytest.raises(CannotOpen, match="name the local one of east, west"):
        local_dc(CassandraAddress(("db.example",), "k"), two)
    with pytest.raises(CannotOpen, match="no data centre 'north'"):
        local_dc(CassandraAddress(("10.1.0.1",), "k", dc="north"), two)


def test_values_nobody_has_fit_their_types_and_differ_each_time() -> None:
    one, other = values_nobody_has(), values_nobody_has()
    assert set(one) == set(Type) - {Type.BOOL}
    for type_, value in one.items():
        assert _FITS[type_](value)
        assert value != other[type_]
