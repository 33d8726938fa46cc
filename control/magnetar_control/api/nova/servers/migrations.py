# SPDX-License-Identifier: GPL-3.0-or-later
"""os-migrations, and the live migrations of one server: list, show, abort, force_complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from magnetar_control.api.nova.fields import ApiField, Fields, View
from magnetar_control.api.nova.history import ApiChange
from magnetar_control.api.nova.operation import ApiOperation, Call, Query, operation_factory
from magnetar_control.api.nova.paging import next_link, page_size, paging_parameters
from magnetar_control.api.nova.values import TRUTH
from magnetar_control.api.values import Anything, Null, Time, Wrapped
from magnetar_control.compute.servers import migrations
from magnetar_control.documents import FlavorOfServer
from magnetar_control.store.servers.migrations import ENDED, LIVE, MigrationRow

#: Query name to the column.
COLUMNS = {"status": "status", "instance_uuid": "server_id", "source_compute": "source", "migration_type": "type",
           "user_id": "user_id", "project_id": "project_id"}
Row = MigrationRow


class MigrationView(View):
    """A converter of migrations to JSON, for one caller and version. *hosts*: whether the caller may see the source and
    target hosts. *numbers*: Nova's numeric ids of flavors, by flavor id."""

    def __init__(self, call: Call, answer: str, *, hosts: bool, numbers: Mapping[str, int] | None = None) -> None:
        super().__init__(call, FIELDS, answer)
        self.hosts, self.numbers = hosts, numbers or {}

    def number(self, flavor: FlavorOfServer | None) -> int | None:
        """Return Nova's numeric id of *flavor*, the flavor that a server had before or after a migration; ``None`` if
        the id is unknown."""
        return self.numbers.get(migrations.flavor_id_of(flavor))


#: The fields by answer; list has migrations of all servers, show of one server.
FIELDS = Fields(
    *(ApiField(name, shows="list show") for name in ("id", "status", "created_at", "updated_at")),
    *(ApiField(name, shows="list show", show=lambda view, row: row.source if view.hosts else None)
      for name in ("source_compute", "source_node")),
    *(ApiField(name, shows="list show", show=lambda view, row: row.target if view.hosts else None)
      for name in ("dest_compute", "dest_node")),
    ApiField("dest_host", shows="list show",
             show=lambda view, row: row.target if view.hosts and row.type != LIVE else None),
    ApiField("uuid", shows="list show", since=59),
    ApiField("user_id", shows="list show", since=80),
    ApiField("project_id", shows="list show", since=80),
    ApiField("server_uuid", name="server_id", shows="show"),
    ApiField("instance_uuid", name="server_id", shows="list"),
    ApiField("old_instance_type_id", shows="list", show=lambda view, row: view.number(row.old_flavor)),
    ApiField("new_instance_type_id", shows="list", show=lambda view, row: view.number(row.new_flavor)),
    ApiField("migration_type", name="type", shows="list", since=23),
    ApiField("links", shows="list", since=23, when=lambda _shown, row: row.type == LIVE and row.status not in ENDED,
             show=lambda view, row: view.links(f"servers/{row.server_id}/migrations", row.id)))


def handle_list_migrations(call: Call) -> dict[str, Any]:
    """Return a page of migrations: GET /os-migrations. Administrators get the migrations of all projects, other callers
    only those in their project."""
    query, paged = call.query, call.at(ApiChange.MIGRATION_PAGES)
    rows, more = migrations.list_migrations(
        call, {column: query[name] for name, column in COLUMNS.items() if name in query}, query.get("host"),
        query.get("changes-since"), query.get("changes-before"), limit=page_size(call), newest=paged,
        marker=query.get("marker") if paged else None, hidden=query.get("hidden", False))
    view = MigrationView(call, "list", hosts=call.allows(migrations.HOSTS_OF_ALL),
                         numbers=migrations.flavor_numbers(call, rows))
    answer: dict[str, Any] = {"migrations": view.documents(rows)}
    if more and paged and rows:
        answer["migrations_links"] = next_link(call, "/os-migrations", rows[-1].uuid)
    return answer


def _running(call: Call, rows: Iterable[Row]) -> dict[str, Any]:
    view = MigrationView(call, "show", hosts=call.allows(migrations.HOSTS_OF_ONE, call.target.row))
    return {"migrations": [_progress(view, row) for row in rows]}


def _progress(view: MigrationView, row: Row) -> dict[str, Any]:
    """Return the migration *row* for the answer, with its progress in bytes. The agent reports one sum of memory and
    disks; the answer shows this sum as memory, and 0 for disks."""
    progress = row.progress or {}
    total, done = int(progress.get("total") or 0), int(progress.get("done") or 0)
    remaining = progress.get("remaining")
    return {**view.document(row), "memory_total_bytes": total, "memory_processed_bytes": done,
            "memory_remaining_bytes": total - done if remaining is None else int(remaining),
            "disk_total_bytes": 0, "disk_processed_bytes": 0, "disk_remaining_bytes": 0}


QUERY = {
    **dict.fromkeys(("host", "instance_uuid", "migration_type", "source_compute", "status"), Query(value=Anything())),
    "hidden": Query(value=TRUTH), **paging_parameters(59), "changes-since": Query(value=Time(), since=59),
    "changes-before": Query(value=Time(), since=66),
    **dict.fromkeys(("user_id", "project_id"), Query(value=Anything(), since=80))}
_row = operation_factory("servers.migrations", "/servers/{server_id}/migrations", target="server")
OPERATIONS = (
    ApiOperation(method="GET", path="/os-migrations", handler=handle_list_migrations, name="os-migrations.list",
                 use=migrations.list_migrations, strict=59, query=QUERY),
    _row("GET", "", "list", migrations.list_server_migrations, shown=_running, since=23, strict=102),
    _row("GET", "/{id}", "show", migrations.show_server_migration, since=23, strict=102,
         shown=lambda call, row: {"migration": _progress(MigrationView(call, "show", hosts=True), row)}),
    _row("DELETE", "/{id}", "delete", migrations.abort_live_migration, since=24, status=202,
         given=lambda call: {"queued": call.at(ApiChange.QUEUED_MIGRATIONS_ABORT)}),
    _row("POST", "/{id}/action", "action.force_complete", migrations.force_complete_migration, since=22, status=202,
         action="force_complete", body=Wrapped("force_complete", Null())),
)
