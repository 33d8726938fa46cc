# SPDX-License-Identifier: GPL-3.0-or-later
"""os-migrations, and the live migrations of one server: list, show, abort, force_complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from magnetar_control.api.nova.history import Gate
from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.paging import PAGE, next_link, size
from magnetar_control.api.values import Anything, Null, Time, Wrapped
from magnetar_control.compute import migrations
from magnetar_control.store.migrations import ENDED, LIVE
from magnetar_control.web import Answer

PATH = "/servers/{server_id}/migrations"
#: Query name to the column.
COLUMNS = {"status": "status", "instance_uuid": "server_id", "source_compute": "source", "migration_type": "type",
           "user_id": "user_id", "project_id": "project_id"}
Row = migrations.Row


def index(call: Call) -> dict[str, Any]:
    """GET /os-migrations: of all projects for admins, of one's own for others."""
    query, paged = call.query, call.at(Gate.MIGRATION_PAGES)
    rows, more = migrations.page(
        call, {column: query[name] for name, column in COLUMNS.items() if name in query}, query.get("host"),
        query.get("changes-since"), query.get("changes-before"), limit=size(call), newest=paged,
        marker=query.get("marker") if paged else None)
    numbers = migrations.flavor_numbers(call, rows)
    hosts = call.allows(migrations.HOSTS_OF_ALL)
    answer: dict[str, Any] = {"migrations": [_listed(call, row, numbers, hosts=hosts) for row in rows]}
    if more and paged and rows:
        answer["migrations_links"] = next_link(call, "/os-migrations", rows[-1].uuid)
    return answer


def _common(call: Call, row: Row, *, hosts: bool) -> dict[str, Any]:
    """Keys that both forms have."""
    target, source = (row.target, row.source) if hosts else (None, None)
    shown = {"id": row.id, "status": row.status, "created_at": row.created_at, "updated_at": row.updated_at,
             "source_compute": source, "source_node": source, "dest_compute": target, "dest_node": target,
             "dest_host": target if row.type != LIVE else None}
    if call.at(Gate.MIGRATION_PAGES):
        shown["uuid"] = row.uuid
    if call.at(Gate.MIGRATION_OWNERS):
        shown.update(user_id=row.user_id, project_id=row.project_id)
    return shown


def _listed(call: Call, row: Row, numbers: Mapping[str, int], *, hosts: bool) -> dict[str, Any]:
    shown = {**_common(call, row, hosts=hosts), "instance_uuid": row.server_id,
             "old_instance_type_id": numbers.get(migrations.flavor_of(row.old_flavor)),
             "new_instance_type_id": numbers.get(migrations.flavor_of(row.new_flavor))}
    if not call.at(Gate.MIGRATION_TYPES):
        return shown
    shown["migration_type"] = row.type
    if row.type == LIVE and row.status not in ENDED:
        path, project = f"/servers/{row.server_id}/migrations/{row.id}", call.request.extra.get("project")
        root = call.request.root + (f"/{project}" if project else "")
        shown["links"] = [{"rel": "self", "href": call.base + path}, {"rel": "bookmark", "href": root + path}]
    return shown


def of_server(call: Call) -> dict[str, Any]:
    """GET /servers/{id}/migrations: live migrations that go on."""
    rows, hosts = migrations.of_one(call, call.target), call.allows(migrations.HOSTS_OF_ONE, call.target.row)
    return {"migrations": [_progress(call, row, hosts=hosts) for row in rows]}


def show(call: Call) -> dict[str, Any]:
    """GET /servers/{id}/migrations/{id}."""
    return {"migration": _progress(call, migrations.show(call, call.target, call.params["id"]), hosts=True)}


def _progress(call: Call, row: Row, *, hosts: bool) -> dict[str, Any]:
    """With bytes. Agents count memory and disks together, so all of them are told as memory."""
    known = orjson.loads(row.progress) if row.progress else {}
    total, done = int(known.get("total") or 0), int(known.get("done") or 0)
    left = known.get("remaining")
    return {**_common(call, row, hosts=hosts), "server_uuid": row.server_id, "memory_total_bytes": total,
            "memory_processed_bytes": done, "memory_remaining_bytes": total - done if left is None else int(left),
            "disk_total_bytes": 0, "disk_processed_bytes": 0, "disk_remaining_bytes": 0}


def abort(call: Call) -> Answer:
    """DELETE /servers/{id}/migrations/{id}: the server stays where it is."""
    migrations.abort(call, call.target, call.params["id"], queued=call.at(Gate.QUEUED_MIGRATIONS_ABORT))
    return Answer(None, 202)


def force_complete(call: Call) -> Answer:
    """POST /servers/{id}/migrations/{id}/action: the guest stands still until it is there."""
    migrations.force_complete(call, call.target, call.params["id"])
    return Answer(None, 202)


QUERY = {
    **dict.fromkeys(("hidden", "host", "instance_uuid", "migration_type", "source_compute", "status"),
                    Query(value=Anything())),
    **{name: Query(value=one.value, since=59) for name, one in PAGE.items()},
    "changes-since": Query(value=Time(), since=59), "changes-before": Query(value=Time(), since=66),
    **dict.fromkeys(("user_id", "project_id"), Query(value=Anything(), since=80))}
OPERATIONS = (
    Operation(method="GET", path="/os-migrations", handler=index, name="os-migrations.list",
              use=migrations.page, strict=59, query=QUERY),
    Operation(method="GET", path=PATH, handler=of_server, name="servers.migrations.list", use=migrations.of_one,
              target="server", since=23, strict=102),
    Operation(method="GET", path=PATH + "/{id}", handler=show, name="servers.migrations.show", use=migrations.show,
              target="server", since=23, strict=102),
    Operation(method="DELETE", path=PATH + "/{id}", handler=abort, name="servers.migrations.delete",
              use=migrations.abort, target="server", since=24, status=202),
    Operation(method="POST", path=PATH + "/{id}/action", handler=force_complete,
              name="servers.migrations.action.force_complete", use=migrations.force_complete, target="server", since=22,
              action="force_complete", body=Wrapped("force_complete", Null()), status=202),
)
