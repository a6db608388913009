"""The OpenAPI document is valid, complete, and tells the limits that hold."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from capellini.api.openapi import document
from capellini.api.routes import ROUTES
from capellini.model.options import WORK

PARAMETERS = ("name", "id", "counter", "schedule", "shard", "operation", "group", "table")


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(msgspec.json.encode(document(ROUTES)))
    return found


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [each for child in value.values() for each in references(child)]
    if isinstance(value, list):
        return [each for child in value for each in references(child)]
    return []


def test_every_route_is_in_it_and_nothing_else(made: dict[str, Any]) -> None:
    found = {(method.upper(), path) for path, item in made["paths"].items() for method in item}
    assert found == {(route.method, route.path) for route in ROUTES}


def test_every_reference_leads_somewhere(made: dict[str, Any]) -> None:
    prefix = "#/components/schemas/"
    found = references(made)
    assert found
    assert all(each.startswith(prefix) and each[len(prefix) :] in made["components"]["schemas"] for each in found)


def test_operation_ids_are_unique_and_path_parameters_declared(made: dict[str, Any]) -> None:
    operations = [(path, each) for path, item in made["paths"].items() for each in item.values()]
    assert len({each["operationId"] for _, each in operations}) == len(operations)
    for path, each in operations:
        named = {one["name"] for one in each.get("parameters", []) if one["in"] == "path"}
        assert named == {name for name in PARAMETERS if "{" + name + "}" in path}
        assert each["responses"]


def test_every_schema_is_valid_json_schema(made: dict[str, Any]) -> None:
    for name, schema in made["components"]["schemas"].items():
        assert jsonschema_rs.meta.is_valid({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}), name


def test_the_options_are_those_of_the_table(made: dict[str, Any]) -> None:
    properties = made["components"]["schemas"]["WorkOptions"]["properties"]
    assert set(properties) == {option.name for option in WORK}
    assert properties["bucket_size"]["maximum"] == 10_000


def test_a_message_has_one_body(made: dict[str, Any]) -> None:
    schemas = made["components"]["schemas"]
    validator = jsonschema_rs.validator_for({**schemas["Message"], "components": made["components"]})
    assert validator.is_valid({"body": "x"})
    assert validator.is_valid({"body_base64": "eA==", "delay_s": 1})
    assert not validator.is_valid({})
    assert not validator.is_valid({"body": "x", "body_base64": "eA=="})
    assert not validator.is_valid({"body": "x", "delay_s": -1})
    assert not validator.is_valid({"body": "x", "colour": 1})
