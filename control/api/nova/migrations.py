# SPDX-License-Identifier: GPL-3.0-or-later
"""os-migrations, and the live migrations of one server: list, show, abort, force_complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from sqlalchemy import select

from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.paging import PAGE, next_link, size
from magnetar_control.api.values import Anything, Null, Time, Wrapped
from magnetar_control.store import migrations, servers
from magnetar_control.store.tables import flavors
from magnetar_control.web import Answer
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

ALL = "os_compute_api:os-migrations:"
OWN = "os_compute_api:servers:migrations:"
PATH = "/servers/{server_id}/migrations"
#: Gates.
TYPED, PAGED, ABORTS_EARLY, OWNED, STRICT = 23, 59, 65, 80, 102
#: Statuses in which a live migration can be aborted; before 2.65 only in the first.
ABORTABLE = ("running", "queued", "preparing")
#: Query name to the column.
COLUMNS = {"status": "status", "instance_uuid": "server_id", "source_compute": "source", "migration_type": "type",
           "user_id": "user_id", "project_id": "project_id"}
Row = migrations.Found


def index(call: Call) -> dict[str, Any]:
    """GET /os-migrations: of all projects for admins, of one's own for others."""
    query, paged = call.query, call.version >= PAGED
    since, before = query.get("changes-since"), query.get("changes-before")
    if since and before and since > before:
        raise InvalidRequest("The value of changes-since must be less than or equal to changes-before.")
    equal = {column: query[name] for name, column in COLUMNS.items() if name in query}
    if not call.allows(ALL + "index:all_projects") and equal.setdefault("project_id", call.project) != call.project:
        return {"migrations": []}
    wanted = migrations.Wanted(equal, query.get("host"), since, before, newest=paged, limit=size(call),
                               marker=query.get("marker") if paged else None)
    try:
        rows, more = migrations.listed(call.cloud.store, wanted)
    except KeyError:
        raise InvalidRequest(f"Marker {str(wanted.marker)[:255]} not found.") from None
    numbers = _numbers(call, rows)
    hosts = call.allows(ALL + "index:host")
    answer: dict[str, Any] = {"migrations": [_listed(call, row, numbers, hosts=hosts) for row in rows]}
    if paged and more and rows:
        answer["migrations_links"] = next_link(call, "/os-migrations", rows[-1].uuid)
    return answer


def _numbers(call: Call, rows: Iterable[Row]) -> Mapping[str, int]:
    """Flavor id to Nova's integer id of it; one query."""
    ids = {_flavor(text) for row in rows for text in (row.old_flavor, row.new_flavor)}
    with call.cloud.store.api.read() as connection:
        found = connection.execute(select(flavors.c.id, flavors.c.number).where(flavors.c.id.in_(ids))).all()
    return {row.id: row.number for row in found}


def _flavor(text: str | None) -> str:
    return str(orjson.loads(text)["id"]) if text else ""


def _common(call: Call, row: Row, *, hosts: bool) -> dict[str, Any]:
    """Keys that both forms have."""
    target, source = (row.target, row.source) if hosts else (None, None)
    shown = {"id": row.id, "status": row.status, "created_at": row.created_at, "updated_at": row.updated_at,
             "source_compute": source, "source_node": source, "dest_compute": target, "dest_node": target,
             "dest_host": target if row.type != migrations.LIVE else None}
    if call.version >= PAGED:
        shown["uuid"] = row.uuid
    if call.version >= OWNED:
        shown.update(user_id=row.user_id, project_id=row.project_id)
    return shown


def _listed(call: Call, row: Row, numbers: Mapping[str, int], *, hosts: bool) -> dict[str, Any]:
    shown = {**_common(call, row, hosts=hosts), "instance_uuid": row.server_id,
             "old_instance_type_id": numbers.get(_flavor(row.old_flavor)),
             "new_instance_type_id": numbers.get(_flavor(row.new_flavor))}
    if call.version < TYPED:
        return shown
    shown["migration_type"] = row.type
    if row.type == migrations.LIVE and row.status not in migrations.ENDED:
        path, project = f"/servers/{row.server_id}/migrations/{row.id}", call.request.extra.get("project")
        root = call.request.root + (f"/{project}" if project else "")
        shown["links"] = [{"rel": "self", "href": call.base + path}, {"rel": "bookmark", "href": root + path}]
    return shown


def of_server(call: Call) -> dict[str, Any]:
    """GET /servers/{id}/migrations: live migrations that go on."""
    with call.database.read() as connection:
        rows = migrations.open_ones(connection, call.server.id, migrations.LIVE)
    hosts = call.allows(OWN + "index:host")
    return {"migrations": [_progress(call, row, hosts=hosts) for row in rows]}


def show(call: Call) -> dict[str, Any]:
    """GET /servers/{id}/migrations/{id}."""
    row = _found(call)
    about = f"Migration {row.id} for server {call.server.id}"
    if row.type != migrations.LIVE:
        raise NotFound(f"{about} is not live-migration.")
    if row.status in migrations.ENDED:
        raise NotFound(f"{about} is not in progress.")
    return {"migration": _progress(call, row, hosts=True)}


def _progress(call: Call, row: Row, *, hosts: bool) -> dict[str, Any]:
    """With bytes. Agents count memory and disks together, so all of them are told as memory."""
    known = orjson.loads(row.progress) if row.progress else {}
    total, done = int(known.get("total") or 0), int(known.get("done") or 0)
    left = known.get("remaining")
    return {**_common(call, row, hosts=hosts), "server_uuid": row.server_id, "memory_total_bytes": total,
            "memory_processed_bytes": done, "memory_remaining_bytes": total - done if left is None else int(left),
            "disk_total_bytes": 0, "disk_processed_bytes": 0, "disk_remaining_bytes": 0}


def _found(call: Call) -> Row:
    """The migration of the path. Raises ``NotFound``."""
    number = call.params["id"]
    row = None
    if number.isascii() and number.isdigit() and len(number) < 10:
        with call.database.read() as connection:
            row = migrations.of_server(connection, call.server.id, int(number))
    if row is None:
        raise NotFound(f"Migration {number[:40]} not found for instance {call.server.id}")
    return row


def _under_way(call: Call, what: str) -> Row:
    """The live migration of the path, while the server goes. Raises ``NotFound``, 409."""
    server = call.server
    if server.locked_by and not call.context.is_admin:
        raise Conflict(f"Instance {server.id} is locked")
    if server.task_state != "migrating":
        raise Conflict(f"Cannot '{what}' instance {server.id} while it is in task_state {server.task_state}")
    return _found(call)


def abort(call: Call) -> Answer:
    """DELETE /servers/{id}/migrations/{id}: the server stays where it is. One that waits in the queue ends at once."""
    row = _under_way(call, "abort live migration")
    states = ABORTABLE if call.version >= ABORTS_EARLY else ABORTABLE[:1]
    return _ask(call, row, migrations.ABORT, "live_migration_cancel", states)


def force_complete(call: Call) -> Answer:
    """POST /servers/{id}/migrations/{id}/action: the guest stands still until it is there."""
    row = _under_way(call, "force_complete")
    return _ask(call, row, migrations.FORCE, "live_migration_force_complete", ABORTABLE[:1])


def _ask(call: Call, row: Row, wish: str, key: str, states: tuple[str, ...]) -> Answer:
    """Note what is asked, with its instance action; again when the migration went on meanwhile."""
    if row.type != migrations.LIVE or row.status not in states:
        raise InvalidRequest(f"Migration {row.id} state of instance {call.server.id} is {row.status}. Cannot "
                             f"{wish} while the migration is in this state.")
    with call.database.write() as connection:
        dropped = row.status == "queued" and migrations.drop(connection, row)
        done = dropped or migrations.ask(connection, row, wish)
        if done:
            servers.enqueue(connection, call.server.id, key, call.request.id, call.context.user_id, call.project,
                            host=call.server.host, state="done")
            call.database.ring(connection, servers.SERVERS_BELL)
    return Answer(None, 202) if done else _ask(call, _found(call), wish, key, states)


QUERY = {
    **dict.fromkeys(("hidden", "host", "instance_uuid", "migration_type", "source_compute", "status"),
                    Query(value=Anything())),
    **{name: Query(value=one.value, since=PAGED) for name, one in PAGE.items()},
    "changes-since": Query(value=Time(), since=PAGED), "changes-before": Query(value=Time(), since=66),
    **dict.fromkeys(("user_id", "project_id"), Query(value=Anything(), since=OWNED))}
OPERATIONS = (
    Operation(method="GET", path="/os-migrations", handler=index, name="os-migrations.list", rule=f"{ALL}index",
              strict=PAGED, query=QUERY),
    Operation(method="GET", path=PATH, handler=of_server, name="servers.migrations.list", rule=f"{OWN}index",
              target="server", since=TYPED, strict=STRICT),
    Operation(method="GET", path=PATH + "/{id}", handler=show, name="servers.migrations.show", rule=f"{OWN}show",
              target="server", since=TYPED, strict=STRICT),
    Operation(method="DELETE", path=PATH + "/{id}", handler=abort, name="servers.migrations.delete",
              rule=f"{OWN}delete", target="server", since=24, status=202),
    Operation(method="POST", path=PATH + "/{id}/action", handler=force_complete,
              name="servers.migrations.action.force_complete", rule=f"{OWN}force_complete", target="server", since=22,
              action="force_complete", body=Wrapped("force_complete", Null()), status=202),
)
