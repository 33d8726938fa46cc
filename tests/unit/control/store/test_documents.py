# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON of the tables becomes typed documents in the store, and nowhere above it."""

from __future__ import annotations

import ast
from inspect import get_annotations
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
from sqlalchemy import Table, insert, select

from magnetar_control.store.accounts.flavors import FlavorRow
from magnetar_control.store.actions.action_row import ActionEvent, ActionRow, ShownAction, StoppedAction
from magnetar_control.store.claims.allocations import ClaimRow, ServerClaim
from magnetar_control.store.claims.inventories import InventoryRow
from magnetar_control.store.engine import tables
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.rows import DocumentColumn, SelectedRow, StoredRow
from magnetar_control.store.hosts import hosts
from magnetar_control.store.hosts.drains import DrainedServer, DrainRow
from magnetar_control.store.hosts.fencing_requests import FencingRequest
from magnetar_control.store.hosts.fencings import FencingRow
from magnetar_control.store.hosts.host_row import DiskHost, HealthHost, HostRow, ServiceHost, SizedHost
from magnetar_control.store.hosts.image_requests import ImageRequest
from magnetar_control.store.hosts.incidents import IncidentRow, IncidentServer
from magnetar_control.store.servers.consoles import ConsoleToken
from magnetar_control.store.servers.migrations import MigrationRow
from magnetar_control.store.servers.server_groups import ServerGroupRow
from magnetar_control.store.servers.server_row import ServerRow

CONTROL = Path(__file__).parents[4] / "control" / "magnetar_control"
#: The package that decodes rows itself. The embedded services have tables with columns of ``JsonColumn``.
STORE = CONTROL / "store"
#: Modules above it that decode JSON, and what they decode. Documents of tables belong into the store.
DECODES = {
    "api/console/proxy.py": "answers of the API",
    "api/nova/assisted_volume_snapshots.py": "a parameter of the query",
    "api/nova/servers/server_view.py": "text of lists, once for all servers that have the same",
    "backup_commands.py": "the catalogues of backups",
    "compute/adoptions/adoptions.py": "the request of a row before it is stored",
    "compute/events/event_feed.py": "a message of the outbox, of which parts are shown",
    "compute/servers/block_devices.py": "a property of an image",
    "compute/servers/servers.py": "text of lists, for the servers with floating IPs",
    "conductor/hosts/agent_connection.py": "events of agents",
    "conductor/worker/vendordata.py": "answers of an operator's service",
    "notifications/receivers.py": "a message as it is sent",
    "policy_command.py": "a file of an operator",
    "scheduler/matching.py": "scheduler hints and extra specs that are JSON",
    "scheduler/numa.py": "the key of a cache",
    "services/identity/keystone.py": "answers of Keystone",
    "services/identity/tokens.py": "the claims in a token",
    "services/image/remote.py": "answers of Glance",
    "services/network/ovn/ovn_messages.py": "messages of OVN's databases",
    "services/service_client.py": "answers of OpenStack services",
    "services/volume/backups.py": "the record of an exported backup",
    "services/volume/embedded.py": "a property of an image",
    "services/volume/reimage_data.py": "tasks in the form of release 0.1.0, which a data migration changes",
    "web/request.py": "bodies of requests",
    "workers/peers.py": "answers of other processes of the API",
    "workers/worker.py": "the settings, from the process that starts it",
}
TABLES = {ServerRow: tables.servers, MigrationRow: tables.migrations, ServerGroupRow: tables.server_groups,
          ClaimRow: tables.allocations, ServerClaim: tables.allocations, InventoryRow: tables.inventories,
          HostRow: tables.hosts, ImageRequest: tables.image_requests, FlavorRow: tables.flavors,
          FencingRow: tables.fencings, FencingRequest: tables.fencing_requests,
          ActionRow: tables.actions, ActionEvent: tables.action_events, ConsoleToken: tables.console_tokens,
          DrainRow: tables.drains, DrainedServer: tables.drained_servers,
          IncidentRow: tables.incidents, IncidentServer: tables.incident_servers}
#: Selections of some columns of a table.
PARTS = {ServiceHost: tables.hosts, SizedHost: tables.hosts, HealthHost: tables.hosts, DiskHost: tables.hosts,
         ShownAction: tables.actions, StoppedAction: tables.actions}
#: Columns of other tables.
JOINED = {HostRow: {"cell_disabled"}, ServerClaim: {"host", "cell_id"}}
#: Columns that the control plane reads in statements only.
UNREAD = {row: {"created_at", "updated_at"} for row in (ClaimRow, ServerClaim)}
FLAVOR = {"id": "1", "name": "m1", "vcpus": 1, "ram": 64, "disk": 1, "ephemeral": 0, "swap": 0, "extra_specs": {}}


def decodes(path: Path) -> bool:
    """Whether a module calls ``loads``, or names it to be called."""
    return any((isinstance(node, ast.Attribute) and node.attr == "loads")
               or (isinstance(node, ast.ImportFrom) and any(name.name == "loads" for name in node.names))
               for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def test_only_the_store_decodes_documents() -> None:
    above = {str(path.relative_to(CONTROL)): path for path in CONTROL.rglob("*.py") if not path.is_relative_to(STORE)}
    assert {name for name, path in above.items() if decodes(path)} == DECODES.keys()


@pytest.mark.parametrize(("row", "table"), TABLES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_row_has_the_columns_of_its_table(row: type[StoredRow], table: Table) -> None:
    classes = [one for one in row.__mro__ if one.__module__ == row.__module__]
    documents = {value.column for one in classes for value in vars(one).values() if isinstance(value, DocumentColumn)}
    assert documents.union(*map(get_annotations, classes)) | UNREAD.get(row, set()) == {
        *(column.name for column in table.c), *JOINED.get(row, set())}
    assert documents == {column.name for column in table.c if column.name in documents}
    assert not documents & get_annotations(row).keys()


def test_a_document_is_decoded_when_it_is_read_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []

    def loads(text: str) -> object:
        decoded.append(text)
        return orjson.loads(text)

    monkeypatch.setattr("magnetar_control.store.engine.rows.orjson", SimpleNamespace(loads=loads))
    row = ServerRow.of_values({"id": "s1", "flavor": orjson.dumps(FLAVOR).decode()})
    assert row.id == "s1" and row.stored.tags == "[]" and decoded == [], "the text is there, and columns as they are"
    assert row.flavor is row.flavor and row.flavor["vcpus"] == 1 and len(decoded) == 1
    assert row.nics == [] and row.fault is None and row.host is None, "defaults of the table, and null"


def test_a_row_may_have_some_columns(sqlite: Database) -> None:
    with sqlite.write() as connection:
        connection.execute(insert(tables.servers).values(
            id="s1", project_id="red", user_id="ann", name="web", vm_state="active", flavor_id="1",
            flavor=orjson.dumps(FLAVOR).decode(), created_at="2026-11-29"))
    with sqlite.read() as connection:
        row = ServerRow(connection.execute(select(tables.servers.c.id, tables.servers.c.flavor)).one())
    assert (row.id, row.flavor) == ("s1", FLAVOR)
    with pytest.raises(AttributeError):
        _ = row.image
    with pytest.raises(AttributeError):
        row.id = "s2"
    assert ServerRow.optional(None) is None


def test_a_row_is_read_again_without_keeping_documents() -> None:
    row = ServerRow.of_values({"id": "s1", "flavor": orjson.dumps(FLAVOR).decode()})
    assert row.undecoded().flavor == FLAVOR and "flavor" not in vars(row)
    changed = ServerRow(row.stored).undecoded()
    assert changed.id == "s1" and changed.stored is row.stored


@pytest.mark.parametrize(("row", "table"), PARTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_selection_has_columns_of_its_table(row: type[SelectedRow], table: Table) -> None:
    assert [column.name for column in row.selection(table).selected_columns] == list(row.columns)
    assert len(set(row.columns)) == len(row.columns)


def test_every_selection_of_hosts_has_all_of_its_columns(sqlite: Database) -> None:
    with sqlite.write() as connection:
        connection.execute(insert(tables.cells).values(id="c1", name="one", database_url="", created_at="2026-11-29"))
        hosts.upsert_host_row(connection, "kvm1", "c1", "https://kvm1:6553")
        hosts.save_host_inventory(connection, "kvm1", {"vcpus": 8, "memory_mb": 4096, "disk_gb": 90, "pcpus": 2})
        whole = hosts.fetch_host_row(connection, "kvm1")
        assert whole is not None
        for row_class in (ServiceHost, SizedHost, HealthHost, DiskHost):
            (row,) = hosts.fetch_every_host(connection, row_class)
            assert row.column_values().items() <= whole.column_values().items()
        (page,) = hosts.fetch_host_page(connection, SizedHost, column="id", values=[whole.id], after=0, limit=1)
        (summary,) = hosts.fetch_host_summaries(connection)
        sums = hosts.sum_host_resources(connection)
    assert page.info == whole.info and page.info["vcpus"] == 8 and whole.own_traits == []
    assert summary._asdict().items() <= whole.column_values().items()
    assert (sums.hosts, sums.vcpus, sums.disk_gb) == (1, *whole.totals[::2])
    assert (whole.own_ratio("vcpus"), whole.own_ratio("pcpus"), whole.own_reserved("pcpus")) == (None, None, None)


def test_a_document_that_is_not_kept_is_decoded_at_each_use() -> None:
    row = HostRow.of_values({"name": "kvm1", "info": '{"traits": []}'})
    assert row.info == row.info and row.info is not row.info and vars(row) == {}
    changed = row.changed_columns(info="{}", vcpus=3)
    assert (changed.info, changed.vcpus, changed.name, row.vcpus) == ({}, 3, "kvm1", 0)
    with pytest.raises((ValueError, TypeError), match="nexpected field"):  # TypeError since Python 3.13
        row.changed_columns(vcpu=3)
    with pytest.raises(AttributeError):
        row.vcpus = 3
