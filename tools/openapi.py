# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the Compute API as an OpenAPI 3.1 document: `python -m tools.openapi >openapi.json`.

    python -m tools.openapi           the Compute API of the control plane
    python -m tools.openapi --agent   the API of the host agent

Routes, policy rules, schemas of bodies and microversions are those of the control plane's declarations. OpenAPI has no
microversions, and one operation for a method and path. So an operation here may stand for several actions; its
extension `x-magnetar-operations` has each of them. Schemas that differ by microversion are named after their first one.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from magnetar_control.api.nova.operation import NEVER, ApiOperation
from magnetar_control.api.nova.operations import OPERATIONS
from magnetar_control.api.nova.removed import OPERATIONS as REMOVED
from magnetar_control.api.nova.versions import FIRST, NEWEST, VERSIONS
from magnetar_core.version import installed_version

Schema = dict[str, Any]
T = TypeVar("T")
#: Parts of a docstring that say something about the code, and not about the operation: errors, parameters.
_CODE = re.compile(r" ?Raises [^.]*\.(?=\s|$)|``|(?<=\.) \*\w+\*(?:, \*\w+\*)*: .*?\.(?=\s|$)| \(\*\w+\*\)")
FAULT = {
    "type": "object", "minProperties": 1, "maxProperties": 1,
    "description": "An error as Nova shows it: one key, the kind of error, with its status and a message.",
    "additionalProperties": {"type": "object", "required": ["code", "message"], "properties": {
        "code": {"type": "integer"}, "message": {"type": "string"}}},
}
MICROVERSION = {
    "name": "OpenStack-API-Version", "in": "header", "required": False,
    "description": f"The microversion: compute 2.{FIRST} to compute 2.{NEWEST}, or compute latest. Default: the first.",
    "schema": {"type": "string", "default": f"compute 2.{FIRST}", "examples": [f"compute 2.{NEWEST}"]},
}


def version_ranges(since: int, until: int, value_at: Callable[[int], T]) -> Iterator[tuple[int, int, T]]:
    """Divide the microversions from *since* to *until* into ranges in which *value_at* returns the same value; yield
    each range as (first version, last version, value)."""
    first, value = since, value_at(since)
    for version in range(since + 1, until + 1):
        following = value_at(version)
        if following != value:
            yield first, version - 1, value
            first, value = version, following
    yield first, until, value


def range_text(since: int, until: int) -> str:
    """Return the range of microversions from *since* to *until* in words, such as "2.10 to 2.36"."""
    if since == until:
        return f"2.{since} only"
    return f"2.{since} to 2.{until}" if until < NEWEST else f"2.{since} and later"


def body_schemas(operation: ApiOperation) -> list[tuple[int, int, Schema]]:
    """Return the schemas of the operation's body, as (first version, last version, schema)."""
    body = operation.body
    if body is None:
        if operation.action:  # the value of the action is not looked at
            return [(operation.since, operation.until, {"type": "object", "required": [operation.action],
                                                        "properties": {operation.action: {}}})]
        return []
    return [*version_ranges(operation.since, operation.until, lambda version: body.schema(VERSIONS[version]))]


def query_schemas(operation: ApiOperation, name: str) -> list[tuple[int, int, Schema]]:
    """Return the schemas of the query parameter *name*, as (first version, last version, schema)."""
    parameter = operation.query[name]
    since = max(operation.since, parameter.since)
    if since > operation.until:
        return []
    return [*version_ranges(since, operation.until, lambda version: parameter.value.schema(VERSIONS[version]))]


def success_statuses(operation: ApiOperation) -> list[tuple[int, int, int]]:
    """Return the operation's HTTP statuses of success, as (first version, last version, status)."""
    if operation in REMOVED:
        return [(operation.since, operation.until, 410)]
    return [*version_ranges(operation.since, operation.until, operation.success)]


def describe_operation(operation: ApiOperation) -> str:
    """Return a sentence about the operation, from the docstring of its use case."""
    if operation in REMOVED:
        return "Nova has removed this path: the answer is 410."
    words = " ".join((operation.use.__doc__ or "").split("\n\n")[0].split())
    return _CODE.sub("", words).strip()


def grouped_operations(operations: Iterable[ApiOperation]) -> dict[str, dict[str, list[ApiOperation]]]:
    """Return the operations by path and method. Paths that differ only in names of parameters are one path."""
    names: dict[str, str] = {}
    grouped: dict[str, dict[str, list[ApiOperation]]] = {}
    for operation in operations:
        path = names.setdefault(re.sub(r"\{\w+\}", "{}", operation.path), operation.path)
        grouped.setdefault(path, {}).setdefault(operation.method, []).append(operation)
    return grouped


def compute_document() -> dict[str, Any]:
    """Return the OpenAPI document of the Compute API."""
    schemas: dict[str, Schema] = {"Fault": FAULT}
    paths = {path: {method.lower(): _operation_object(path, method, operations, schemas)
                    for method, operations in methods.items()}
             for path, methods in grouped_operations((*OPERATIONS, *REMOVED)).items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Magnetar Compute API", "version": f"2.{NEWEST}",
            "license": {"name": "GPL-3.0-or-later", "identifier": "GPL-3.0-or-later"},
            "description": "The Compute API of Magnetar, with the paths, bodies and microversions of OpenStack "
                           f"Nova. Magnetar {installed_version()}."},
        "servers": [{"url": "/v2.1", "description": "The Compute endpoint in the service catalogue"}],
        "security": [{"token": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(path.split("/")[1] for path in paths)],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}},
            "parameters": {"Microversion": MICROVERSION}, "schemas": schemas},
    }


def _operation_object(path: str, method: str, operations: Sequence[ApiOperation],
                      schemas: dict[str, Schema]) -> dict[str, Any]:
    """Return the OpenAPI operation of a path and method, and add the schemas of its bodies to *schemas*."""
    served = [operation for operation in operations if operation not in REMOVED]
    described = served or operations
    words = "\n".join(dict.fromkeys(filter(None, map(describe_operation, described))))
    entries = [_operation_entry(operation, schemas) for operation in operations]
    bodies = [reference for entry in entries for reference in entry["bodies"]]
    made: dict[str, Any] = {
        "operationId": re.sub(r"[^A-Za-z0-9]+", "_", f"{method.lower()}{path}").strip("_"),
        "summary": described[0].name if len(described) == 1 else f"{len(described)} actions or versions",
        "tags": [path.split("/")[1]],
        "parameters": [*_parameters(path, described), {"$ref": "#/components/parameters/Microversion"}],
        "responses": _responses(operations),
        "x-magnetar-operations": entries,
    }
    if words and len(described) == 1:
        made["description"] = words
    if not served:
        made["deprecated"] = True
    if bodies:
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return made


def _operation_entry(operation: ApiOperation, schemas: dict[str, Schema]) -> dict[str, Any]:
    """Return what standard OpenAPI cannot express of an operation: action, range of microversions, policy rule,
    statuses, and bodies by microversion. Adds the schemas of the bodies to *schemas*.
    """
    references = []
    for since, until, schema in body_schemas(operation):
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{operation.name}-2.{since}")
        schemas[name] = {**schema, "title": f"{operation.name}, {range_text(since, until)}"}
        references.append({"$ref": f"#/components/schemas/{name}"})
    return {"name": operation.name, "action": operation.action, "description": describe_operation(operation),
            "since": f"2.{operation.since}", "until": f"2.{operation.until}", "policy": operation.policy,
            "unknown_query_refused_since": f"2.{operation.strict}" if operation.strict < NEVER else None,
            "statuses": [{"since": f"2.{since}", "until": f"2.{until}", "status": status}
                         for since, until, status in success_statuses(operation)],
            "bodies": references}


def _parameters(path: str, operations: Sequence[ApiOperation]) -> Iterator[dict[str, Any]]:
    """Yield the parameters of path and query."""
    for name in re.findall(r"\{(\w+)\}", path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    for name in dict.fromkeys(name for operation in operations for name in operation.query):
        having = [operation for operation in operations if name in operation.query]
        ranges = [row for operation in having for row in query_schemas(operation, name)]
        alternatives = [schema for at, (_since, _until, schema) in enumerate(ranges)
                        if schema not in [other for _first, _last, other in ranges[:at]]]
        if ranges:
            yield {"name": name, "in": "query", "required": False,
                   "description": f"Microversions: {range_text(ranges[0][0], ranges[-1][1])}.",
                   **({"explode": True} if any(operation.query[name].many for operation in having) else {}),
                   "schema": alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}}


def _responses(operations: Sequence[ApiOperation]) -> dict[str, Any]:
    """Return the OpenAPI responses by status."""
    statuses = sorted({status for operation in operations for _since, _until, status in success_statuses(operation)})
    fault = {"application/json": {"schema": {"$ref": "#/components/schemas/Fault"}}}
    return {**{str(status): {"description": "Removed", "content": fault} if status == 410 else {
        "description": "Success"} for status in statuses}, "default": {"description": "Error", "content": fault}}


def openapi_of_agent() -> dict[str, Any]:
    """Return the OpenAPI document of the host agent, which FastAPI derives from the agent's routes."""
    from magnetar_agent.agent import Agent
    from magnetar_agent.api.app import AgentApplication
    from magnetar_agent.fake import FakeHypervisor
    from magnetar_agent.settings import AgentSettings

    with tempfile.TemporaryDirectory() as folder:
        agent = Agent(AgentSettings(state_dir=Path(folder)), FakeHypervisor())
        try:
            return AgentApplication(agent).api.openapi()
        finally:
            agent.close()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m tools.openapi", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", action="store_true", help="print the API of the host agent")
    options = parser.parse_args()
    json.dump(openapi_of_agent() if options.agent else compute_document(), sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
