# SPDX-License-Identifier: GPL-3.0-or-later
"""The OpenAPI documents: valid, and with every operation that the route tables have."""

from __future__ import annotations

import re

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from magnetar_control.api.nova.operations import OPERATIONS
from magnetar_control.api.nova.removed import OPERATIONS as REMOVED
from magnetar_control.api.nova.versions import NEWEST
from tools import openapi
from tools.docsite import api_pages


@pytest.fixture(scope="module")
def document():
    return openapi.compute_document()


def test_the_documents_are_openapi(document):
    for made in (document, openapi.openapi_of_agent()):
        assert made["openapi"].startswith("3.1")
        assert [error.message for error in OpenAPIV31SpecValidator(made).iter_errors()] == []


def test_it_has_every_operation_with_rule_and_microversions(document):
    entries = [entry for methods in document["paths"].values() for operation in methods.values()
               for entry in operation["x-magnetar-operations"]]
    shown = {(entry["name"], entry["action"], entry["since"], entry["until"], entry["policy"]) for entry in entries}
    assert shown == {(operation.name, operation.action, f"2.{operation.since}", f"2.{operation.until}",
                      operation.policy) for operation in (*OPERATIONS, *REMOVED)}
    assert len(entries) == len(OPERATIONS) + len(REMOVED)


def test_bodies_differ_by_microversion(document):
    references = next(entry for entry in document["paths"]["/servers"]["post"]["x-magnetar-operations"])["bodies"]
    schemas = [document["components"]["schemas"][reference["$ref"].rpartition("/")[2]] for reference in references]
    first, newest = (schema["properties"]["server"]["properties"] for schema in (schemas[0], schemas[-1]))
    assert "hostname" in newest
    assert "hostname" not in first
    assert schemas[-1]["title"].endswith("and later")


def test_ranges_of_microversions():
    assert [*openapi.version_ranges(1, 5, lambda version: version > 2)] == [(1, 2, False), (3, 5, True)]
    assert openapi.range_text(3, NEWEST) == "2.3 and later"
    assert openapi.range_text(3, 5) == "2.3 to 2.5"
    assert openapi.range_text(3, 3) == "2.3 only"


def test_each_operation_is_described_without_parameters_of_the_code():
    texts = {operation.name: openapi.describe_operation(operation) for operation in OPERATIONS}
    assert [name for name, text in texts.items() if not text.endswith(".") or re.search(
        r"(?<=\.) \*\w+\*:|Raises|``", text)] == []
    assert texts["servers.action.pause"] == "Queue the action for the conductors. Its states: active."


def test_a_page_has_each_operation_of_its_resource():
    for name, operations in api_pages.operations_by_resource().items():
        page = api_pages.resource_page(name, operations)
        assert page.count("\n## ") == len(operations)
        assert all(f"`{operation.name}`" in page for operation in operations)


def test_a_field_is_one_row_while_it_stays_the_same():
    text, number = {"type": "string"}, {"type": "integer"}
    old, new = ({"type": "object", "properties": {"a": text, **more}, "required": ["a"]}
                for more in ({}, {"b": {"type": "array", "items": {"properties": {"c": number}}}}))
    assert [*api_pages.body_rows([(1, 4, old), (5, NEWEST, new)])] == [
        ("`a`", "string", "yes", "2.1 and later"), ("`b`", "list: any value", "", "2.5 and later"),
        ("`b[].c`", "integer", "", "2.5 and later")]
