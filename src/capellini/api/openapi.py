"""The OpenAPI 3.1 document, made from the table of routes, the types it names, and the table of queue options."""

from __future__ import annotations

import re
from typing import Any, Final, cast

import msgspec

from capellini import __version__
from capellini.api import wire
from capellini.api.router import Kind, Route
from capellini.api.routes import Listed, Results, Text
from capellini.model import options
from capellini.model.counters import NAME as COUNTER_NAME
from capellini.model.log import AT
from capellini.model.service import Problem
from capellini.model.timed import MAX_SHARDS

_TYPE: Final = {int: "integer", float: "number", str: "string"}
_REFUSALS: Final = {
    400: "The request is wrong; nothing was changed.",
    403: "A page of another site may not ask this.",
    404: "There is no such queue, message or counter.",
    408: "The request did not arrive in time.",
    409: "Exists with other options, changed meanwhile, stale, or paused.",
    413: "Something is larger than its limit.",
    415: "The content type is not one that is taken here.",
    429: "Too much at a time; see Retry-After.",
    503: "The store or the node does not take this now; see Retry-After.",
}
_DESCRIPTION: Final = (
    "Bodies are bytes: JSON carries them as text in `body` or as base64 in `body_base64`; MessagePack carries them in "
    "`body`. Batches give one result per item, in order."
)


def document(routes: tuple[Route, ...]) -> dict[str, Any]:
    components = _components(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Capellini", "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {"schemas": components},
    }


def _components(routes: tuple[Route, ...]) -> dict[str, Any]:
    types: set[Any] = {Problem}
    for route in routes:
        for named in (route.takes, route.gives):
            match named:
                case None | Text():
                    continue
                case Results(good=found) | Listed(item=found):
                    types.add(found)
                case _:
                    types.add(named)
    _, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    one_body = {"oneOf": [{"required": ["body"]}, {"required": ["body_base64"]}]}
    components["Message"].update(one_body)
    for kind, table in options.KINDS.items():
        components[f"{kind.capitalize()}Options"] = _options(table)
    of_kind = {"anyOf": [{"$ref": f"#/components/schemas/{kind.capitalize()}Options"} for kind in options.KINDS]}
    components["Create"]["properties"]["options"] = of_kind
    components["Change"]["properties"]["options"] = of_kind
    components["Create"]["properties"]["kind"] = {"type": "string", "enum": list(options.KINDS), "default": "work"}
    return {name: _without_prefixes(schema) for name, schema in components.items()}


def _without_prefixes(schema: Any) -> Any:
    """Arrays of a fixed form said in words that all tools know: some read `prefixItems` wrongly."""
    if isinstance(schema, list):
        return [_without_prefixes(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: _without_prefixes(value) for name, value in schema.items()}
    if "prefixItems" in plain:
        kinds = plain.pop("prefixItems")
        plain["items"] = {"anyOf": [each for place, each in enumerate(kinds) if each not in kinds[:place]]}
    return plain


def _options(table: tuple[options.Option, ...]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for option in table:
        found: dict[str, Any] = {"type": _TYPE[option.type], "default": option.default, "description": option.says}
        if option.least is not None:
            found["minimum"] = option.least
        if option.most is not None:
            found["maximum"] = option.most
        if not option.changeable:
            found["description"] += " (cannot change later)"
        properties[option.name] = found
    return {"title": "Options of a queue", "type": "object", "properties": properties, "additionalProperties": False}


def _schema(named: Any) -> dict[str, Any]:
    match named:
        case Results(good=good):
            one = {"anyOf": [_schema(good), _schema(Problem)]}
            return _object("results", {"type": "array", "items": one})
        case Listed(field=field, item=item, paged=paged):
            return _object(field, {"type": "array", "items": _schema(item)}, paged)
        case type() if issubclass(named, msgspec.Struct):
            return {"$ref": f"#/components/schemas/{named.__name__}"}
        case _:
            return cast(dict[str, Any], _without_prefixes(msgspec.json.schema(named)))


def _object(field: str, schema: dict[str, Any], paged: bool = False) -> dict[str, Any]:
    fields = {field: schema, "more": {"type": "boolean"}} if paged else {field: schema}
    return {"type": "object", "properties": fields, "required": list(fields)}


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.says,
        "tags": [route.kind.value],
        "responses": _responses(route),
    }
    if parameters := _path_parameters(route) + _query_parameters(route):
        operation["parameters"] = parameters
    if route.takes is not None:
        operation["requestBody"] = _request_body(route)
    return operation


def _operation_id(route: Route) -> str:
    words = re.sub(r"\{\w+\}", "one", route.path.removeprefix("/v1")).replace(".", "/").strip("/").split("/")
    return "_".join([route.method.lower(), *words])


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    found = []
    for name in re.findall(r"\{(\w+)\}", route.path):
        schema: dict[str, Any] = {"type": "string"}
        if name in ("schedule", "group"):
            schema["pattern"] = f"^{options.NAME.pattern}$"
        if name == "name":  # of a log queue also as QUEUE@GROUP
            schema["pattern"] = f"^{options.NAME.pattern}({AT}{options.NAME.pattern})?$"
        if name == "shard":
            schema = {"type": "integer", "minimum": 0, "maximum": MAX_SHARDS - 1}
        if name == "counter":
            schema["pattern"] = f"^{COUNTER_NAME.pattern}$"
        found.append({"name": name, "in": "path", "required": True, "schema": schema})
    return found


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    _, schemas = msgspec.json.schema_components([route.query])
    properties = schemas[route.query.__name__]["properties"]
    found = []
    for name, schema in properties.items():
        if "anyOf" in schema:  # a query has no null: it is left out
            schema = next(each for each in schema["anyOf"] if each.get("type") != "null")
        found.append({"name": name, "in": "query", "required": False, "schema": schema})
    return found


def _request_body(route: Route) -> dict[str, Any]:
    content: dict[str, Any] = {media: {"schema": _schema(route.takes)} for media in route.media}
    if route.takes is wire.Puts:
        says = "As in JSON, with bytes in body."
        content["application/msgpack"] = {"schema": {"type": "object", "description": says}}
    if route.raw:
        says = "The body of one message; its attributes are headers named Capellini-Attribute-NAME."
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary", "description": says}}
    return {"required": route.body_needed, "content": content}


def _responses(route: Route) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Done."}
    if isinstance(route.gives, Text):
        good["content"] = {route.gives.media: {"schema": {"type": "string"}}}
    elif route.gives is not None:
        good["content"] = {media: {"schema": _schema(route.gives)} for media in route.media}
    found: dict[str, Any] = {str(route.status): good}
    bad = {media: {"schema": _schema(Problem)} for media in dict.fromkeys(("application/json", *route.media))}
    for status, says in _REFUSALS.items():
        if route.kind is Kind.SYSTEM and status in (404, 409, 429):
            continue
        found[str(status)] = {"description": says, "content": bad}
    if route.path == "/ready":
        found["503"] = {"description": "Not ready, and why.", "content": good["content"]}
    return found
