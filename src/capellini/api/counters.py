"""Counters over HTTP: update, read, many at once, list, collect; and their figures for Prometheus.

An update is an array [counter, value] or [counter, value, kind]: short, since they come by the thousand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from capellini.api.context import Context
from capellini.api.exchange import Request, Response
from capellini.api.wire import Form, Malformed, answer, items_of, query_of
from capellini.model.counters import MOST_AT_ONCE, MOST_INTERSECTED, MOST_LISTED, SUM, Counted, CounterService, Update
from capellini.model.errors import Invalid, Unavailable
from capellini.model.service import Problem, Service

MAX_NAME_CHARS: Final = 200
NameText = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
Start = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]


class Updates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    updates: Annotated[list[Update], Meta(max_length=MOST_AT_ONCE)]


class LooseUpdates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    updates: list[msgspec.Raw]


class OneUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`values`: several at once, all of them or, when one is wrong, none."""

    value: Any = 1
    kind: str = SUM
    values: Annotated[list[Any], Meta(min_length=1, max_length=MOST_AT_ONCE)] | None = None


class Reads(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    counters: Annotated[list[str], Meta(max_length=MOST_AT_ONCE)]  # a bad name is one result of the answer
    sketch: bool = False


class Intersect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    counters: Annotated[list[NameText], Meta(min_length=2, max_length=MOST_INTERSECTED)]


class Estimate(msgspec.Struct, frozen=True):
    estimate: float
    lower: float
    upper: float


class CounterList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefix: Start = ""
    after: Start = ""
    limit: Annotated[int, Meta(ge=1, le=MOST_LISTED)] = 1_000


class ReadQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sketch: bool = False


_UPDATES: Final = Form(Updates)
_LOOSE: Final = Form(LooseUpdates)
_UPDATE: Final = Form(Update)
_ONE: Final = Form(OneUpdate)
_READS: Final = Form(Reads)
_INTERSECT: Final = Form(Intersect)


def _counters(context: Context) -> CounterService:
    if context.service.counters is None:
        raise Unavailable("this node keeps no counters")
    return context.service.counters


async def update_many(context: Context, request: Request) -> Response:
    counters = _counters(context)
    try:
        wanted = _UPDATES.read(request).updates
    except Malformed:
        raise
    except Invalid:  # not as a whole: then one by one
        return answer(request, {"results": await _each(counters, request)})
    return answer(request, {"results": await counters.update_many(wanted)})


async def _each(counters: CounterService, request: Request) -> list[Counted | Problem]:
    loose = items_of(request, _LOOSE, _UPDATE, MOST_AT_ONCE)
    results: list[Counted | Problem] = []
    good: list[tuple[int, Update]] = []
    for at, item in enumerate(loose):
        if isinstance(item, Problem):
            says = f"an update is [counter, value] or [counter, value, kind]: {item.says}"
            results.append(msgspec.structs.replace(item, says=says))
        else:
            good.append((at, item))
            results.append(Counted())
    for (at, _), result in zip(good, await counters.update_many([one for _, one in good]), strict=True):
        results[at] = result
    return results


async def update(context: Context, request: Request) -> Response:
    wanted = _ONE.read(request)
    updates = [wanted.value] if wanted.values is None else wanted.values
    await _counters(context).update(request.params["counter"], updates, wanted.kind)
    return answer(request, Counted())


async def read(context: Context, request: Request) -> Response:
    query = query_of(request, ReadQuery)
    return answer(request, await _counters(context).read(request.params["counter"], query.sketch))


async def read_many(context: Context, request: Request) -> Response:
    wanted = _READS.read(request)
    return answer(request, {"results": await _counters(context).read_many(wanted.counters, wanted.sketch)})


async def intersect(context: Context, request: Request) -> Response:
    return answer(request, await _counters(context).intersection(_INTERSECT.read(request).counters))


async def list_all(context: Context, request: Request) -> Response:
    query = query_of(request, CounterList)
    return answer(request, {"counters": await _counters(context).listed(query.prefix, query.after, query.limit)})


async def collect(context: Context, request: Request) -> Response:
    return answer(request, await _counters(context).collect(request.params["counter"]))


class CounterMetrics:
    """A Prometheus collector."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        figures = None if self._service.counters is None else self._service.counters.figures()
        if figures is None:
            return
        for name, value in msgspec.structs.asdict(figures).items():
            says = f"Counters: {name.replace('_', ' ')}."
            if name in ("taking", "memory_bytes"):
                yield GaugeMetricFamily(f"capellini_counters_{name}", says, value=value)
            elif not isinstance(value, str):
                yield CounterMetricFamily(f"capellini_counters_{name}", says, value=value)
