# SPDX-License-Identifier: GPL-3.0-or-later
"""os-migrations and the migrations of a server: keys by version, filters, pages, whose, and bad input."""

from __future__ import annotations

import uuid

import pytest

from magnetar_control.store.servers import migrations, servers
from magnetar_control.store.servers.server_row import ServerRow
from tests.support.control.cloud import Cloud

from .clouds import flavors, row

#: Keys of os-migrations at 2.1, and what came later.
FIRST = {"created_at", "dest_compute", "dest_host", "dest_node", "id", "instance_uuid", "new_instance_type_id",
         "old_instance_type_id", "source_compute", "source_node", "status", "updated_at"}
BYTES = {f"{kind}_{what}_bytes" for kind in ("memory", "disk") for what in ("total", "processed", "remaining")}


@pytest.fixture(scope="module")
def cloud(databases):
    """One host, and migrations that are rows only."""
    with Cloud(hosts=1, databases=databases) as found:
        flavors(found)
        found.id = found.admin.boot(flavorRef="small")["id"]
        server = ServerRow(row(found, found.id))
        for number, (type, status) in enumerate((
                ("resize", "confirmed"), ("migration", "error"), ("live-migration", "completed"),
                ("live-migration", "running"))):
            with found.parts.working.database.write() as connection:
                made = f"{number}{str(uuid.uuid4())[1:]}"
                migrations.insert_migration_row(connection, server, made, user_id="somebody", type=type, status=status,
                                                target="kvm9", created_at=f"2026-01-0{number + 1}T00:00:00.000000",
                                                progress=servers.json_text({"done": 40, "total": 100, "remaining": 70}))
        yield found


def listed(cloud, query="", version="2.80", caller=None):
    """The list."""
    reply = (caller or cloud.admin).get(f"/v2.1/os-migrations{query}", version)
    assert reply.status == 200, reply
    return reply.json["migrations"]


@pytest.mark.parametrize(("version", "more"), [
    ("2.1", set()), ("2.22", set()), ("2.23", {"migration_type"}), ("2.58", {"migration_type"}),
    ("2.59", {"migration_type", "uuid"}), ("2.79", {"migration_type", "uuid"}),
    ("2.80", {"migration_type", "uuid", "user_id", "project_id"})])
def test_keys_by_version(cloud, version, more):
    found = {one["status"]: one for one in listed(cloud, version=version)}
    assert set(found["confirmed"]) == FIRST | more
    assert set(found["running"]) == FIRST | more | ({"links"} if more else set())
    assert found["confirmed"]["old_instance_type_id"] == found["confirmed"]["new_instance_type_id"] > 0


def test_order_and_links(cloud):
    assert [one["status"] for one in listed(cloud, version="2.23")] == ["confirmed", "error", "completed", "running"]
    newest = listed(cloud)
    assert [one["status"] for one in newest] == ["running", "completed", "error", "confirmed"]
    path = f"/servers/{cloud.id}/migrations/{newest[0]['id']}"
    assert [link["href"].endswith(path) for link in newest[0]["links"]] == [True, True]


@pytest.mark.parametrize(("query", "count"), [
    ("?status=error", 1), ("?migration_type=live-migration", 2), ("?host=kvm9", 4), ("?host=kvm8", 0),
    ("?source_compute=kvm1", 4), ("?user_id=somebody", 4), ("?project_id=other", 0), ("?hidden=0", 4),
    ("?changes-since=2026-01-03T00:00:00Z", 2), ("?changes-before=2026-01-01T00:00:00Z", 1),
    ("?instance_uuid=00000000-0000-0000-0000-000000000000", 0)])
def test_filters(cloud, query, count):
    assert len(listed(cloud, query)) == count


def test_pages(cloud):
    seen, path = [], "/v2.1/os-migrations?limit=3"
    while path:
        answer = cloud.admin.get(path, "2.59").json
        seen += [one["status"] for one in answer["migrations"]]
        links = answer.get("migrations_links")
        path = links and "/v2.1" + links[0]["href"].split("/v2.1")[1]
    assert seen == ["running", "completed", "error", "confirmed"]


@pytest.mark.parametrize(("query", "version", "status"), [
    ("?nothing=1", "2.59", 400), ("?nothing=1", "2.58", 200), ("?limit=-1", "2.59", 400), ("?limit=x", "2.58", 200),
    ("?marker=nothing", "2.59", 400), ("?changes-since=x", "2.59", 400), ("?changes-before=2026-01-01", "2.65", 400),
    ("?user_id=x", "2.79", 400), ("?changes-since=2026-01-03&changes-before=2026-01-01", "2.66", 400)])
def test_bad_queries(cloud, query, version, status):
    assert cloud.admin.get(f"/v2.1/os-migrations{query}", version).status == status


def test_whose(cloud):
    member = cloud.caller("some", "other-project")
    assert member.get("/v2.1/os-migrations", "2.80").status == 403
    manager = cloud.caller("boss", "other-project", "manager")
    assert listed(cloud, caller=manager) == []
    assert listed(cloud, f"?project_id={cloud.admin.project_id}", caller=manager) == []
    assert manager.get(f"/v2.1/servers/{cloud.id}/migrations", "2.23").status == 404


@pytest.mark.parametrize(("version", "more"), [
    ("2.23", set()), ("2.59", {"uuid"}), ("2.80", {"uuid", "user_id", "project_id"})])
def test_live_migrations_of_a_server(cloud, version, more):
    path = f"/v2.1/servers/{cloud.id}/migrations"
    shown = cloud.admin.get(path, version).json["migrations"]
    assert [one["status"] for one in shown] == ["running"]
    keys = FIRST - {"instance_uuid", "new_instance_type_id", "old_instance_type_id"} | {"server_uuid"} | BYTES | more
    assert set(shown[0]) == keys
    assert cloud.admin.get(f"{path}/{shown[0]['id']}", version).json["migration"] == shown[0]
    assert (shown[0]["memory_processed_bytes"], shown[0]["memory_remaining_bytes"]) == (40, 70)
    for other in listed(cloud):
        if other["status"] != "running":
            assert cloud.admin.get(f"{path}/{other['id']}", version).status == 404
    assert cloud.admin.get(f"{path}?x=1", "2.101").status == 200
    assert cloud.admin.get(f"{path}?x=1", "2.102").status == 400


def test_abort_and_force_complete(cloud):
    path = f"/v2.1/servers/{cloud.id}/migrations"
    numbers = {one["status"]: one["id"] for one in listed(cloud)}
    assert cloud.admin.delete(f"{path}/{numbers['running']}", "2.24").status == 409, "nothing migrates"
    with cloud.parts.working.database.write() as connection:
        servers.update_server_row(connection, cloud.id, task_state="migrating")
    try:
        assert cloud.admin.delete(f"{path}/{numbers['completed']}", "2.65").status == 400
        assert cloud.admin.delete(f"{path}/{numbers['running']}", "2.23").status == 404
        assert cloud.admin.delete(f"{path}/99", "2.24").status == 404
        force = f"{path}/{numbers['running']}/action"
        assert cloud.admin.post(force, {"force_complete": {}}, "2.22").status == 400
        assert cloud.admin.post(force, {"force": None}, "2.22").status == 400
        assert cloud.admin.post(force, {"force_complete": None}, "2.22").status == 202
        assert cloud.admin.delete(f"{path}/{numbers['running']}", "2.24").status == 202
        with cloud.parts.working.database.read() as connection:
            assert migrations.fetch_open_migrations(connection, cloud.id)[0].asked == "abort"
    finally:
        with cloud.parts.working.database.write() as connection:
            servers.update_server_row(connection, cloud.id, task_state=None)


def test_one_that_waits_in_the_queue_is_aborted_at_once(cloud):
    """Before 2.65 it cannot be."""
    from sqlalchemy import update

    from magnetar_control.store.engine.tables import actions

    database, path = cloud.parts.working.database, f"/v2.1/servers/{cloud.id}/migrations"
    with database.write() as connection:
        server = servers.fetch_server_row(connection, cloud.id)
        assert servers.request_server_action(connection, server, "os-migrateLive", "req-queued", "u", "p", {})
        connection.execute(update(actions).where(actions.c.request_id == "req-queued").values(
            not_before="9999-12-31T23:59:59.000000"))
        migrations.insert_migration_row(connection, server, str(uuid.uuid4()), user_id="u", type="live-migration",
                                        status="queued")
    number = next(one["id"] for one in listed(cloud, "?status=queued"))
    assert cloud.admin.delete(f"{path}/{number}", "2.64").status == 400
    assert cloud.admin.delete(f"{path}/{number}", "2.65").status == 202
    assert cloud.admin.server(cloud.id)["OS-EXT-STS:task_state"] is None
    assert listed(cloud, "?status=queued") == []
