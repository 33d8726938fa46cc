# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that were deleted long ago are removed for good, and nothing else is."""

import json

import pytest
from sqlalchemy import func, insert, select

from magnetar_control.store.engine.tables import action_events, actions, migrations, server_mappings, servers
from magnetar_control.store.servers import deleted_servers
from magnetar_control.store.store import CELL0, Store

LONG_AGO, BEFORE, LATELY = "2026-01-01T00:00:00.000000", "2026-06-01T00:00:00.000000", "2026-11-01T00:00:00.000000"
TABLES = (servers, actions, action_events, migrations)


@pytest.fixture
def store(database, monkeypatch):
    monkeypatch.setattr(deleted_servers, "BATCH", 2)
    store = Store(database)
    store.add_cell("cell0", str(database.engine.url.render_as_string(hide_password=False)), CELL0)
    yield store
    for _cell, opened in store.databases():
        opened.close()


def make(store, id, deleted_at=None, task_state=None):
    """A server with an action, an event and a migration."""
    who = {"project_id": "p", "user_id": "u"}
    with store.api.write() as connection:
        connection.execute(insert(server_mappings).values(
            server_id=id, cell_id=CELL0, project_id="p", deleted=deleted_at is not None))
        connection.execute(insert(servers).values(
            id=id, name=id, vm_state="deleted" if deleted_at else "active", task_state=task_state, flavor_id="1",
            flavor="{}", deleted_at=deleted_at, created_at=LONG_AGO, **who))
        made = connection.execute(insert(actions).values(
            request_id=f"req-{id}", server_id=id, action="create", start_time=LONG_AGO, state="done", **who))
        connection.execute(insert(action_events).values(
            action_id=made.inserted_primary_key[0], event="build", start_time=LONG_AGO))
        connection.execute(insert(migrations).values(
            uuid=f"m-{id}", server_id=id, type="resize", status="done", source="kvm1", created_at=LONG_AGO, **who))


def counts(store):
    with store.api.read() as connection:
        return [connection.execute(select(func.count()).select_from(table)).scalar()
                for table in (*TABLES, server_mappings)]


def test_only_what_was_deleted_long_ago_goes(store):
    for number in range(5):
        make(store, f"gone{number}", LONG_AGO)
    make(store, "lately", LATELY)
    make(store, "still", LONG_AGO, task_state="deleting")
    make(store, "lives")
    assert deleted_servers.count_purgeable_servers(store.api, BEFORE) == 5
    assert counts(store) == [8] * 5
    assert deleted_servers.purge_deleted_servers(store, store.api, BEFORE) == 5
    assert counts(store) == [3] * 5
    assert deleted_servers.purge_deleted_servers(store, store.api, BEFORE) == 0
    with store.api.read() as connection:
        assert set(connection.execute(select(servers.c.id)).scalars()) == {"lately", "still", "lives"}


def test_a_purge_that_dies_between_two_databases_is_done_again(store, monkeypatch):
    make(store, "gone", LONG_AGO)
    with store.api.write() as connection:
        connection.execute(server_mappings.delete())
    assert deleted_servers.purge_deleted_servers(store, store.api, BEFORE) == 1
    assert counts(store) == [0] * 5


def test_it_ends_early(store):
    for number in range(5):
        make(store, f"gone{number}", LONG_AGO)
    asked = []
    assert deleted_servers.purge_deleted_servers(
        store, store.api, BEFORE, over=lambda: asked.append(1) or len(asked) > 1) == 2


def test_the_archive_has_what_is_removed(store, tmp_path):
    for number in range(3):
        make(store, f"gone{number}", LONG_AGO)
    assert deleted_servers.purge_deleted_servers(store, store.api, BEFORE, tmp_path) == 3
    for table in TABLES:
        file = tmp_path / f"{table.name}.jsonl"
        assert file.stat().st_mode & 0o777 == 0o600
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert len(rows) == 3 and set(rows[0]) == {column.name for column in table.c}
