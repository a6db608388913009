"""A path finds its route, its parameters, or the methods it has."""

from __future__ import annotations

import pytest

from capellini.api import router as routing
from capellini.api.exchange import Request, Response
from capellini.api.router import Kind, Route, Router
from capellini.api.routes import ROUTES
from capellini.model.errors import Invalid
from capellini.model.options import check_name


async def nothing(context: object, request: Request) -> Response:
    return Response()


def route(method: str, path: str) -> Route:
    return Route(method, path, Kind.READ, nothing, "nothing")


def test_every_route_of_the_table_is_found_by_its_path() -> None:
    router = Router(ROUTES, {"name": check_name})
    for each in ROUTES:
        path = each.path.replace("{name}", "some-queue").replace("{id}", "17")
        found = router.find(each.method.encode(), path.encode())
        assert found.route is each
        assert dict(found.params).get("name", "some-queue") == "some-queue"


@pytest.mark.parametrize(
    "path", ["/", "", "*", "/v1", "/v1/", "/v1/queues/", "/v1/queues/q/", "//v1/queues", "/v1/queues/q/x/y"]
)
def test_other_paths_find_nothing(path: str) -> None:
    found = Router(ROUTES, {}).find(b"GET", path.encode())
    assert (found.route, found.allow) == (None, ())


def test_a_path_with_other_methods_tells_them() -> None:
    found = Router(ROUTES, {}).find(b"POST", b"/v1/queues/q")
    assert found.route is None
    assert found.allow == ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "PUT")


def test_head_finds_the_route_of_get() -> None:
    found = Router(ROUTES, {}).find(b"HEAD", b"/health")
    assert found.route is not None
    assert found.route.path == "/health"


def test_parameters_are_unquoted_and_checked() -> None:
    router = Router(ROUTES, {"name": check_name})
    assert router.find(b"GET", b"/v1/queues/%61b").params == {"name": "ab"}
    for bad in (b"/v1/queues/%2e%2e", b"/v1/queues/a%2Fb", b"/v1/queues/%ff", b"/v1/queues/" + b"a" * 101):
        with pytest.raises(Invalid, match="queue name"):
            router.find(b"GET", bad)


def test_a_literal_segment_wins_over_a_parameter() -> None:
    one, other = route("GET", "/a/{x}"), route("GET", "/a/b")
    router = Router((one, other), {})
    assert router.find(b"GET", b"/a/b").route is other
    assert router.find(b"GET", b"/a/c").route is one


def test_a_table_that_says_a_thing_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        Router((route("GET", "/a"), route("GET", "/a")), {})
    with pytest.raises(ValueError, match="another route"):
        Router((route("GET", "/a/{x}"), route("POST", "/a/{y}")), {})


def test_the_memory_of_paths_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "SEEN_MOST", 10)
    router = Router((route("GET", "/a/{x}"),), {})
    for number in range(100):
        assert router.find(b"GET", b"/a/%d" % number).params == {"x": str(number)}
    assert len(router._seen) <= 10


def test_long_paths_are_not_remembered() -> None:
    router = Router(ROUTES, {})
    for number in range(3):
        path = b"/v1/queues/q/debug/messages/%d" % number
        assert router.find(b"GET", path).route is not None
        assert router.find(b"GET", path + b"0" * routing.SEEN_BYTES).route is not None
    assert len(router._seen) == 3
