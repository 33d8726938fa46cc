# SPDX-License-Identifier: GPL-3.0-or-later
"""Resize and cold migration into another cell and back, on each engine: who may, and what is shown meanwhile.

The tests run in their order: from ``stopped`` on, they do what conductors do."""

from __future__ import annotations

import contextlib
import time

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from magnetar_control.conductor.periodic import audit, repair
from magnetar_control.store.engine.database import Database
from magnetar_control.store.servers import cell_moves, servers
from tests.support.control.audited import read_state
from tests.support.control.engines import engines
from tests.support.control.servers import ensure
from tests.support.waiting import eventually
from tests.unit.control.attachments.asking import Owner
from tools import postgres

from .clouds import at, claims, disabled, flavors
from .two_cells import CELLS, TwoCells, check, run_action, taken

pytestmark = engines("cells, sqlite", deep="sqlite")  # who has several cells has them on PostgreSQL


@pytest.fixture(scope="module")
def cloud(databases, request):
    second = None
    if databases:
        folder = request.getfixturevalue("cluster")
        with psycopg.connect(host=str(folder), user=postgres.USER, dbname="postgres", autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS second WITH (FORCE)")
            connection.execute("CREATE DATABASE second")
        second = postgres.postgres_url(folder, "second")
    with TwoCells(databases, second) as found:
        flavors(found)
        yield found


@pytest.fixture(scope="module")
def member(cloud):
    return cloud.caller("mary", "p1", "manager")  # who may migrate, but not into another cell


def boot(cloud, who=None, host="kvm1", **more):
    zone = {} if who else {"availability_zone": f"nova:{host}"}
    return (who or cloud.admin).boot(flavorRef="small", **zone, **more)["id"]


@pytest.fixture
def id(cloud):
    """Of a running server on kvm1."""
    return boot(cloud)


def migrations(cloud, id, version="2.59"):
    found = cloud.admin.get("/v2.1/os-migrations", version).json["migrations"]
    return [(one["status"], one["source_compute"], one["dest_compute"]) for one in found if one["instance_uuid"] == id]


def used(cloud, id):
    """What the quota of the server's project counts."""
    project = cloud.row(id).project_id
    found = cloud.admin.get(f"/v2.1/os-quota-sets/{project}/detail").json["quota_set"]
    return found["instances"]["in_use"], found["cores"]["in_use"]


def becomes(cloud, id, status):
    deadline = time.monotonic() + 60
    while cloud.admin.server(id)["status"] != status:
        assert time.monotonic() < deadline, cloud.admin.server(id)
        time.sleep(0.02)


def test_a_resize_and_its_confirmation(cloud, id):
    cloud.admin.put(f"/v2.1/servers/{id}/metadata/key", {"meta": {"key": "value"}})
    cloud.admin.put(f"/v2.1/servers/{id}/tags/red", None, "2.26")
    before, counted = cloud.admin.server(id), used(cloud, id)
    assert cloud.admin.act(id, "resize", {"flavorRef": "large"}).status == 202
    found = cloud.admin.settled(id)
    assert (found["status"], found["OS-EXT-SRV-ATTR:host"]) == ("VERIFY_RESIZE", "kvm2")
    check(cloud, id, "kvm2", waits=True)
    for same in ("addresses", "metadata", "tags", "created", "key_name", "image"):
        assert found[same] == before[same], same
    assert migrations(cloud, id) == [("finished", "kvm1", "kvm2")]
    assert used(cloud, id) == (counted[0], counted[1] + 1)
    assert cloud.admin.act(id, "confirmResize").status == 204
    becomes(cloud, id, "ACTIVE")
    check(cloud, id, "kvm2")
    assert migrations(cloud, id) == [("confirmed", "kvm1", "kvm2")]
    asked = cloud.admin.get(f"/v2.1/servers/{id}/os-instance-actions", "2.60").json["instanceActions"]
    assert [one["action"] for one in asked] == ["confirmResize", "resize", "create"]
    events = cloud.admin.get(f"/v2.1/servers/{id}/os-instance-actions/{asked[1]['request_id']}", "2.62").json
    assert [(one["event"], one["result"], one["host"]) for one in events["instanceAction"]["events"]][::-1] == [
        ("compute_prep_resize", "Success", "kvm1"), ("compute_resize_instance", "Success", "kvm1"),
        ("compute_finish_resize", "Success", "kvm2")]
    assert cloud.admin.act(id, "reboot", {"type": "SOFT"}).status == 202
    assert cloud.admin.settled(id)["status"] == "ACTIVE"


def test_a_migration_and_the_way_back(cloud, id):
    assert cloud.admin.act(id, "os-stop").status == 202 and cloud.admin.settled(id)
    assert cloud.admin.act(id, "migrate", {"host": "kvm2"}, "2.56").status == 202
    assert cloud.admin.settled(id)["status"] == "VERIFY_RESIZE"
    check(cloud, id, "kvm2", waits=True)
    assert cloud.admin.act(id, "revertResize").status == 202
    assert cloud.admin.settled(id)["status"] == "SHUTOFF"
    check(cloud, id, "kvm1")
    assert migrations(cloud, id) == [("reverted", "kvm1", "kvm2")]


def _new_on(cloud):
    """The hosts that have a new server, which is deleted then."""
    id = cloud.admin.boot(flavorRef="small", networks="none")["id"]
    found = [*at(cloud, id)]
    assert cloud.admin.delete(f"/v2.1/servers/{id}").status == 204
    assert cloud.admin.settled(id) is None
    return found


def test_a_disabled_cell_gets_no_servers_and_keeps_its_own(cloud, id):
    """As Nova: what is there is listed, counted, and can be acted on."""
    before = cloud.admin.get("/v2.1/limits").json["limits"]["absolute"]["totalInstancesUsed"]
    cloud.parts.store.set_cell("cell1", disabled=True)
    try:
        assert id in [one["id"] for one in cloud.admin.get("/v2.1/servers").json["servers"]]
        assert cloud.admin.server(id)["status"] == "ACTIVE"
        assert cloud.admin.get("/v2.1/limits").json["limits"]["absolute"]["totalInstancesUsed"] == before
        assert cloud.admin.act(id, "reboot", {"type": "HARD"}).status == 202
        assert cloud.admin.settled(id)["status"] == "ACTIVE"
        eventually(lambda: _new_on(cloud) == ["kvm2"])  # conductors learn of it with the next word of the cell's hosts
        assert _new_on(cloud) == ["kvm2"]
    finally:
        cloud.parts.store.set_cell("cell1", disabled=False)


def test_deleted_while_it_waits_for_a_word(cloud, id):
    assert cloud.admin.act(id, "migrate").status == 202
    assert cloud.admin.settled(id)["OS-EXT-SRV-ATTR:host"] == "kvm2"
    reply = cloud.admin.delete("/v2.1/os-services/" + next(
        one["id"] for one in cloud.admin.get("/v2.1/os-services?binary=nova-compute", "2.53").json["services"]
        if one["host"] == "kvm1"), "2.53")
    assert reply.status == 409  # kvm1 may have to take it back
    assert cloud.admin.delete(f"/v2.1/servers/{id}").status == 204
    assert cloud.admin.settled(id) is None
    assert (claims(cloud, id), at(cloud, id)) == ({}, {})


def test_volumes_and_ports_come_along(cloud, id):
    owner = Owner(cloud)
    volumes = [owner.volume(host=host) for host in CELLS]
    for volume in volumes:
        assert owner.attach(id, volume).status == 200
        eventually(lambda volume=volume: owner.state(volume) == "in-use")
    ports = cloud.admin.get(f"/v2.1/servers/{id}/os-interface").json
    for action, args, host in (("resize", {"flavorRef": "large"}, "kvm2"), ("revertResize", None, "kvm1")):
        assert cloud.admin.act(id, action, args).status == 202
        cloud.admin.settled(id)
        check(cloud, id, host, waits=action == "resize")
        assert {one["id"] for one in at(cloud, id)[host]["volumes_attached"]} == set(volumes)
        assert {owner.state(volume) for volume in volumes} == {"in-use"}
        assert cloud.admin.get(f"/v2.1/servers/{id}/os-interface").json == ports
        bound = cloud.admin.get(f"/network/v2.0/ports?device_id={id}").json["ports"]
        assert {one["binding:host_id"] for one in bound} == {host}
    for volume in volumes:
        assert owner.detach(id, volume).status == 202
        eventually(lambda volume=volume: owner.state(volume) == "available")
    check(cloud, id, "kvm1")


def test_hosts_of_its_own_cell_come_first(cloud):
    """A resize stays on its host, where the settings let it, rather than leave the cell."""
    settings = cloud.conductors["cell1"].settings
    object.__setattr__(settings, "allow_resize_to_same_host", True)
    try:
        id = boot(cloud)
        assert cloud.admin.act(id, "resize", {"flavorRef": "large"}).status == 202
        assert cloud.admin.settled(id)["OS-EXT-SRV-ATTR:host"] == "kvm1"
    finally:
        object.__setattr__(settings, "allow_resize_to_same_host", False)


def test_who_may_not(cloud, member):
    with disabled(cloud, "kvm2"):
        id = boot(cloud, member)
    assert cloud.row(id).host == "kvm1"
    assert member.act(id, "migrate").status == 202
    assert member.settled(id)["status"] == "ACTIVE"
    check(cloud, id, "kvm1")
    assert [one[0] for one in migrations(cloud, id)] == ["error"]
    assert member.act(id, "resize", {"flavorRef": "large"}).status == 202  # on its own host
    assert member.settled(id)["status"] == "VERIFY_RESIZE"
    assert cloud.row(id).host == "kvm1"
    assert member.delete(f"/v2.1/servers/{id}").status == 204


def test_which_host_may_be_named(cloud, id, monkeypatch):
    reply = cloud.admin.act(id, "migrate", {"host": "kvm9"}, "2.56")
    assert reply.status == 400 and "could not be found" in reply.content.decode()
    monkeypatch.setattr("magnetar_control.compute.servers.server_actions._cells", lambda _caller, _target: {})
    reply = cloud.admin.act(id, "migrate", {"host": "kvm2"}, "2.56")
    assert reply.status == 400 and "Compute host kvm2 could not be found in the cell" in reply.content.decode()
    reply = cloud.admin.act(id, "os-migrateLive", {"host": "kvm2", "block_migration": "auto"}, "2.30")
    assert reply.status in (202, 400, 500)
    assert cloud.admin.settled(id)["OS-EXT-SRV-ATTR:host"] == "kvm1"


def test_modules_have_it_in_another_cell(cloud):
    """A guest that runs is stopped for it, which has to be allowed."""
    server = ensure(cloud.admin, "server/abroad", {"flavor": "small", "image": "cirros", "networks": [
        {"network": "default"}]}).json["resource"]
    there = "kvm2" if server["host"] == "kvm1" else "kvm1"
    refused = ensure(cloud.admin, "server/abroad", {"host": there})
    assert refused.status == 409 and "is in another cell" in refused.content.decode(), refused
    done = ensure(cloud.admin, "server/abroad", {"host": there}, allow_reboot=True)
    assert done.status == 200 and done.json["resource"]["host"] == there, done
    assert check(cloud, server["id"], there).vm_state == "active"
    assert not ensure(cloud.admin, "server/abroad", {"host": there}, allow_reboot=True).json["changed"]


# What is shown meanwhile ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def several(cloud):
    """Servers on kvm1; no conductor works any more."""
    found = [boot(cloud, name=f"several{number}") for number in range(4)]
    cloud.stop()
    return found


class Away(BaseException):
    """The conductor ends here."""


def until(cloud, monkeypatch, step, cell="cell1"):
    """What is done in *cell* goes on until *step* of ``cell_moves`` would be done."""
    with monkeypatch.context() as patched:
        def ends(*_given):
            raise Away

        patched.setattr(cell_moves, step, ends)
        conductor = cloud.conductors[cell]
        [action] = taken(conductor)
        with contextlib.suppress(Away):
            run_action(conductor, action)


def shown(cloud, id):
    """How often lists show it."""
    lists = {path: cloud.admin.get(f"/v2.1/{path}", "2.53").json for path in (
        "servers/detail?all_tenants=1", "servers?all_tenants=1&name=several", "os-hypervisors?with_servers=1",
        "os-simple-tenant-usage?detailed=1", "os-migrations")}
    return {path.partition("?")[0]: str(found).count(f"'uuid': '{id}'" if "hyper" in path else f"'{id}'")
            for path, found in lists.items()}


@pytest.mark.parametrize(("at_step", "number"), [
    ("insert_moving_rows", 0), ("switch_server_mapping", 1), ("remove_moved_rows", 2)])
def test_it_is_shown_and_counted_once(cloud, several, monkeypatch, at_step, number):
    id = several[number]
    counted, before = used(cloud, id), cloud.admin.server(id)
    assert cloud.admin.act(id, "migrate").status == 202
    until(cloud, monkeypatch, at_step)
    there = {"insert_moving_rows": {"cell1"}, "switch_server_mapping": {"cell1", "cell2"},
             "remove_moved_rows": {"cell1", "cell2"}}
    assert cloud.place(id).keys() == there[at_step]
    found = cloud.admin.server(id)
    assert (found["status"], found["addresses"]) == ("RESIZE", before["addresses"])
    assert used(cloud, id) == counted
    once = shown(cloud, id)
    assert set(once.values()) == {1}, once
    store = cloud.parts.store
    assert servers.find_server_rows(store, [id])[id][1].id == id
    assert len(servers.find_servers_named(store, cloud.row(id).project_id, f"several{number}")) == 1
    reply = cloud.admin.put(f"/v2.1/servers/{id}/metadata/key", {"meta": {"key": "value"}})
    assert reply.status == (200 if at_step == "remove_moved_rows" else 409), reply
    for refused in () if at_step == "remove_moved_rows" else (
            reply, cloud.admin.act(id, "os-resetState", {"state": "error"}), cloud.admin.delete(f"/v2.1/servers/{id}")):
        assert refused.status == 409 and "goes to another cell just now" in refused.content.decode()
    assert audit.findings_of_checks(read_state(store, cloud.parts.agents, cloud.services)) == []
    cloud.drive(only="cell2")  # where it goes on as soon as it has arrived, whoever is away
    if at_step != "insert_moving_rows":
        assert cloud.admin.server(id)["OS-EXT-SRV-ATTR:host"] == "kvm2"
    cloud.drive()
    assert cloud.place(id).keys() == {"cell2"}


def test_a_database_that_is_away_only_delays(cloud, several, monkeypatch):
    id = several[3]
    assert cloud.admin.act(id, "migrate").status == 202
    write, two = Database.write, cloud.conductors["cell2"].database

    def gone(database):
        if database.url == two.url:
            raise OperationalError("BEGIN", {}, ConnectionError("gone"))
        return write(database)

    conductor = cloud.conductors["cell1"]
    with monkeypatch.context() as patched:
        patched.setattr(Database, "write", gone)
        for attempts in (1, 2, 40):
            [action] = taken(conductor)
            with write(conductor.database) as connection:
                connection.exec_driver_sql(f"UPDATE actions SET attempts = {attempts} WHERE id = {action.id}")
            run_action(conductor, action)
            assert cloud.row(id).leaving and cloud.place(id).keys() == {"cell1"}
    cloud.drive()
    check(cloud, id, "kvm2", waits=True)
    assert cloud.row(id).vm_state == "resized"


def test_the_audit_removes_what_was_left(cloud, several, monkeypatch):
    """Rows that leave, and whose action is gone: somebody has changed the database."""
    id = several[3]
    assert cloud.admin.act(id, "revertResize").status == 202
    until(cloud, monkeypatch, "remove_moved_rows", "cell2")
    two = cloud.conductors["cell2"].database
    with two.write() as connection:
        connection.exec_driver_sql(f"UPDATE actions SET state = 'done' WHERE server_id = '{id}'")
    cloud.drive()
    assert cloud.place(id).keys() == {"cell1", "cell2"}
    state = read_state(cloud.parts.store, cloud.parts.agents, cloud.services)
    [finding] = audit.findings_of_checks(state)
    assert (finding.kind, finding.id) == ("copy", id)

    class Watch:
        conductor = cloud.conductors["cell1"]

    repair.repair_finding(Watch, state, finding)
    check(cloud, id, "kvm1")
    assert CELLS["kvm1"] == "cell1"
