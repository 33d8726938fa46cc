# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages of the Compute API, one for each resource (the first word of a path), and the OpenAPI documents for download.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from magnetar_control.api.nova.operation import ApiOperation
from magnetar_control.api.nova.operations import OPERATIONS
from magnetar_control.api.nova.removed import OPERATIONS as REMOVED
from magnetar_control.api.nova.versions import FIRST, NEWEST
from tools import openapi
from tools.docsite import pages

HEAD = f"""# HTTP APIs

For developers of clients. After this page you know where the description of each API is, for reading and for tools.

```sh
openstack --os-compute-api-version 2.{NEWEST} server list
```

| Document | API |
|---|---|
| <a href="../../compute-openapi.json" download>compute-openapi.json</a> | Compute API, OpenAPI 3.1 |
| <a href="../../agent-openapi.json" download>agent-openapi.json</a> | Host agent, OpenAPI 3.1 |

Each page below has the operations of one resource of the Compute API. Paths are below `/v2.1`, the endpoint in the
service catalogue. A request chooses its microversion, 2.{FIRST} to 2.{NEWEST}, by the header
`OpenStack-API-Version: compute 2.{NEWEST}`. Errors have Nova's form and statuses.
`python -m tools.openapi` prints the documents from the route table.

"""
#: Length after which a cell names only the kind of a value.
LONG = 60
Ranges = list[tuple[int, int]]


def write_api_pages(folder: Path, downloads: Path) -> None:
    """Write the pages to *folder*, and the OpenAPI documents to *downloads*."""
    folder.mkdir(parents=True, exist_ok=True)
    downloads.mkdir(parents=True, exist_ok=True)
    resources = operations_by_resource()
    for name, operations in resources.items():
        (folder / f"{name}.md").write_text(resource_page(name, operations), encoding="utf-8")
    (folder / "removed.md").write_text(removed_page(), encoding="utf-8")
    (folder / "index.md").write_text(HEAD + pages.contents([*sorted(resources), "removed"]), encoding="utf-8")
    for name, document in (("compute", openapi.compute_document()), ("agent", openapi.openapi_of_agent())):
        (downloads / f"{name}-openapi.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def operations_by_resource() -> dict[str, list[ApiOperation]]:
    """Return the served operations by the first word of their paths."""
    resources: dict[str, list[ApiOperation]] = {}
    for operation in OPERATIONS:
        resources.setdefault(operation.path.split("/")[1], []).append(operation)
    return resources


def resource_page(name: str, operations: Sequence[ApiOperation]) -> str:
    """Return the page of one resource."""
    head = (f"# {name}\n\nFor developers of clients: the operations of the Compute API below `/{name}`, with their "
            "microversions, policy rules, statuses, parameters and bodies.\n")
    return "\n".join([head, *map(operation_section, operations)])


def removed_page() -> str:
    """Return the page of paths that Nova has removed."""
    rows = table(("Method", "Path", "Action"), ((operation.method, f"`{operation.path}`",
                 f"`{operation.action}`" if operation.action else "") for operation in REMOVED))
    return ("# Removed operations\n\nFor developers of clients. Nova has removed these operations, and Magnetar "
            f"answers them with 410 at every microversion.\n\n{rows}")


def operation_section(operation: ApiOperation) -> str:
    """Return the section of one operation."""
    statuses = ", ".join(str(status) if len(rows) == 1 else f"{status} ({openapi.range_text(since, until)})"
                         for rows in [openapi.success_statuses(operation)] for since, until, status in rows)
    action = f" ({operation.action})" if operation.action else ""
    facts = [("Operation", f"`{operation.name}`"),
             ("Microversions", openapi.range_text(operation.since, operation.until)),
             ("Policy rule", f"`{operation.policy}`" if operation.policy else "none for the whole operation"),
             ("Success", statuses)]
    parts = [f"## {operation.method} {operation.path}{action}\n", escape(openapi.describe_operation(operation)) + "\n",
             table(("Fact", "Value"), facts)]
    if operation.query:
        parts.append("Query parameters:\n\n" + table(("Parameter", "Value", "Microversions"), query_rows(operation)))
    bodies = openapi.body_schemas(operation)
    if bodies:
        parts.append("Fields of the body:\n\n" + table(("Field", "Value", "Required", "Microversions"),
                                                       body_rows(bodies)))
    return "\n".join(parts)


def query_rows(operation: ApiOperation) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table of query parameters."""
    for name in operation.query:
        for since, until, schema in openapi.query_schemas(operation, name):
            yield f"`{name}`", value_text(schema), openapi.range_text(since, until)


def body_rows(bodies: Iterable[tuple[int, int, openapi.Schema]]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of the table of a body's fields. *bodies*: (first microversion, last microversion, schema). A
    field has a row for each range of microversions in which it differs."""
    ranges: dict[tuple[str, str, bool], Ranges] = {}
    for since, until, schema in bodies:
        for field in dict.fromkeys(schema_fields(schema)):
            known = ranges.setdefault(field, [])
            if known and known[-1][1] == since - 1:
                known[-1] = known[-1][0], until
            else:
                known.append((since, until))
    names = list(dict.fromkeys(name for name, _value, _required in ranges))
    for (name, value, required), spans in sorted(ranges.items(), key=lambda row: names.index(row[0][0])):
        yield (f"`{name}`", value, "yes" if required else "",
               "; ".join(openapi.range_text(since, until) for since, until in spans))


def schema_fields(schema: Mapping[str, Any], prefix: str = "",
                  required: bool = True) -> Iterator[tuple[str, str, bool]]:
    """Yield all fields of a schema, also nested ones, as (path, text about its values, whether it is required).
    *prefix*: the path of the schema itself, for nested ones."""
    if prefix:
        yield prefix, value_text(schema), required
    for choice in (schema, *schema.get("anyOf", ())):
        for name, inner in choice.get("properties", {}).items():
            yield from schema_fields(inner, f"{prefix}.{name}" if prefix else name, name in choice.get("required", ()))
        items = choice.get("items")
        if items and ("properties" in items or "anyOf" in items):
            yield from (row for row in schema_fields(items, f"{prefix}[]") if row[0] != f"{prefix}[]")


def value_text(schema: Mapping[str, Any]) -> str:
    """Return the values that a schema allows, in words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(value_text, schema["anyOf"])))
    if "enum" in schema or "const" in schema:
        words = schema.get("enum", [schema.get("const")])
        text = ", ".join("empty text" if word == "" else f"`{json.dumps(word).strip(chr(34))}`" for word in words)
        return text if len(text) <= LONG else f"one of {len(words)} words, such as `{words[0]}`"
    if schema.get("type") == "array":
        item = value_text(schema.get("items", {}))
        return f"list of at most {schema['maxItems']}: {item}" if "maxItems" in schema else f"list: {item}"
    kinds = schema.get("type", "any value")
    kind = kinds if isinstance(kinds, str) else " or ".join(kinds)
    return kind + "".join(text for key, text in (
        ("format", f", {schema.get('format')}"), ("maxLength", f", at most {schema.get('maxLength')} characters"),
        ("maximum", f", at most {schema.get('maximum')}")) if key in schema)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown with the header cells *head*; of equal rows in sequence, only the first is kept."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(line for line, _same in groupby(lines)),
                      ""])


def escape(text: str) -> str:
    """Return *text* with backslashes before characters that are special in Markdown."""
    return text.replace("<", "&lt;").replace("[", "\\[").replace("{", "\\{")
