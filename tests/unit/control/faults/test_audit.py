# SPDX-License-Identifier: GPL-3.0-or-later
"""What is stuck or left behind is found, and put right by the periodic work when it is found twice."""

from __future__ import annotations

import contextlib
import time
import uuid

import pytest
from sqlalchemy import delete, insert, select, update

from magnetar_control.conductor.periodic import audit
from magnetar_control.conductor.periodic.audit_state import AuditState
from magnetar_control.conductor.periodic.periodic import Periodic, remove_unused_images
from magnetar_control.conductor.periodic.repair import REPAIRS
from magnetar_control.services import Context
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine import tables
from magnetar_control.store.engine.database import utc_now
from magnetar_core.errors import Conflict
from tests.support.control.cloud import Cloud

SOMEBODY = Context("u", "p", frozenset(("admin",)))


@pytest.fixture(scope="module")
def cloud():
    with Cloud(hosts=1) as made:
        yield made


@pytest.fixture
def periodic(cloud):
    return Periodic(cloud.parts.working)


@pytest.fixture
def server(cloud):
    """A server that runs, as the API shows it."""
    found = cloud.admin.boot(f"s-{uuid.uuid4().hex[:6]}")
    assert found["status"] == "ACTIVE", found
    yield found
    cloud.admin.delete(f"/v2.1/servers/{found['id']}")
    assert cloud.admin.settled(found["id"]) is None
    assert kinds(cloud) == []


def kinds(cloud):
    """What the audit finds."""
    parts = cloud.parts
    return sorted({one.kind for one in audit.run_with_state(parts.store, parts.agents, cloud.services, pause=0.1)[0]})


def repaired(cloud, periodic, *expected):
    """Found at the first look, repaired at the second."""
    assert kinds(cloud) == sorted(expected)
    assert periodic.audit() == []
    assert sorted({one.kind for one in periodic.audit()}) == sorted(expected)
    assert kinds(cloud) == []


def host_id(cloud):
    with cloud.parts.api_database.read() as connection:
        return connection.execute(select(tables.hosts.c.id)).scalar_one()


def test_a_cloud_that_is_well_has_no_findings(cloud, server):
    assert kinds(cloud) == []


def test_the_claim_of_a_server_that_is_gone(cloud, periodic):
    with cloud.parts.api_database.write() as connection:
        assert allocations.claim_host_resources(connection, "gone", "gone", host_id(cloud),
                                                allocations.Amounts(1, 64, 0))
    repaired(cloud, periodic, "orphan")


def test_a_claim_that_a_server_has_no_use_for(cloud, periodic, server):
    with cloud.parts.api_database.write() as connection:
        allocations.claim_host_resources(connection, str(uuid.uuid4()), server["id"], host_id(cloud),
                                         allocations.Amounts(1, 64, 0))
    repaired(cloud, periodic, "elsewhere")


def test_a_counter_that_is_off(cloud, periodic, server):
    with cloud.parts.api_database.write() as connection:
        connection.execute(update(tables.hosts).values(vcpus_used=17))
    repaired(cloud, periodic, "counter")


def test_quota_usage_that_is_off(cloud, periodic, server):
    with cloud.parts.working.database.write() as connection:
        connection.execute(update(tables.quota_usage).values(ram=tables.quota_usage.c.ram + 17))
    assert set(kinds(cloud)) == {"usage"}
    assert periodic.usage_check.check_next()
    assert kinds(cloud) == []
    assert periodic.usage_check.check_next() == []


def test_a_port_and_an_attachment_that_a_server_does_not_have(cloud, periodic, server):
    network = cloud.admin.get("/network/v2.0/networks").json["networks"][0]["id"]
    cloud.services.network.allocate(
        Context(cloud.admin.user_id, cloud.admin.project_id), server["id"], [{"network_id": network, "make": "more"}])
    context = Context(cloud.admin.user_id, cloud.admin.project_id)
    volume = cloud.services.volume.create(context, 1)["id"]
    cloud.services.volume.wait(volume, 20)
    cloud.services.volume.reserve(context, volume, server["id"])
    repaired(cloud, periodic, "attachment", "port")
    assert cloud.services.volume.show(context, volume)["status"] == "available"


def test_ports_of_a_server_that_was_deleted(cloud, periodic):
    id = cloud.admin.boot("shortly")["id"]
    cloud.admin.delete(f"/v2.1/servers/{id}")
    cloud.admin.settled(id)
    network = cloud.admin.get("/network/v2.0/networks").json["networks"][0]["id"]
    cloud.services.network.allocate(
        Context(cloud.admin.user_id, cloud.admin.project_id), id, [{"network_id": network}])
    repaired(cloud, periodic, "port")


def test_ports_of_strangers_are_left_alone(cloud, periodic):
    network = cloud.admin.get("/network/v2.0/networks").json["networks"][0]["id"]
    stranger = str(uuid.uuid4())
    cloud.services.network.allocate(
        Context(cloud.admin.user_id, cloud.admin.project_id), stranger, [{"network_id": network}])
    periodic.audit(), periodic.audit()
    assert cloud.services.network.ports(stranger)
    cloud.services.network.release(stranger)


def test_a_task_that_nobody_does(cloud, periodic, server):
    with cloud.parts.working.database.write() as connection:
        connection.execute(update(tables.servers).where(tables.servers.c.id == server["id"]).values(
            task_state="rebooting"))
    repaired(cloud, periodic, "stuck")
    found = cloud.admin.server(server["id"])
    assert found["status"] == "ERROR" and "lost track" in found["fault"]["message"]


def test_a_server_that_is_still_in_cell0(cloud, periodic, server):
    with cloud.parts.working.database.read() as connection:
        row = connection.execute(select(tables.servers).where(tables.servers.c.id == server["id"])).mappings().one()
    with cloud.parts.store.cell0.write() as connection:
        connection.execute(insert(tables.servers).values(**row))
    repaired(cloud, periodic, "copy")


def test_a_move_that_nobody_goes_on_with(cloud, periodic, server):
    with cloud.parts.working.database.write() as connection:
        connection.execute(insert(tables.migrations).values(
            uuid=str(uuid.uuid4()), server_id=server["id"], project_id="p", user_id="u", type="resize",
            status="migrating", source="kvm1", created_at=utc_now()))
    repaired(cloud, periodic, "move")


def test_a_guest_that_went_off_while_nobody_looked(cloud, periodic, server):
    with cloud.parts.working.database.write() as connection:
        connection.execute(update(tables.servers).where(tables.servers.c.id == server["id"]).values(
            vm_state="stopped", power_state=4))
    repaired(cloud, periodic, "power")
    assert cloud.admin.server(server["id"])["status"] == "ACTIVE"


def test_what_is_left_on_a_host(cloud, periodic):
    id, stranger = cloud.admin.boot("left")["id"], None
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None
    with cloud.parts.agents.client(cloud.hosts["kvm1"]) as client:
        for key in (id, str(uuid.uuid4())):
            client.ensure("server", key, {"name": f"n{key[:6]}", "flavor": {"vcpus": 1, "ram": 64, "disk": 1},
                                          "image": None, "networks": []})
            stranger = key
        for name, cidr in (("mag-dead0000", "10.77.0.0/24"), ("mag-lan", "10.78.0.0/24")):  # the second is not ours
            client.ensure("network", name, {"name": name, "mode": "isolated", "cidr": cidr})
        assert kinds(cloud) == ["left", "network", "stranger"]
        periodic.audit(), periodic.audit()
        assert kinds(cloud) == ["stranger"]  # which is told and not touched
        client.delete("server", stranger)
    assert kinds(cloud) == []


@pytest.fixture
def furnished(cloud, server):
    """A server with a port and a volume."""
    context = Context(cloud.admin.user_id, cloud.admin.project_id)
    volume = cloud.services.volume.create(context, 1)["id"]
    cloud.services.volume.wait(volume, 20)
    assert cloud.admin.post(f"/v2.1/servers/{server['id']}/os-volume_attachments",
                            {"volumeAttachment": {"volumeId": volume}}).status == 200
    settled(cloud, server)
    yield server
    assert cloud.admin.delete(f"/v2.1/servers/{server['id']}/os-volume_attachments/{volume}").status == 202
    settled(cloud, server)
    cloud.services.volume.delete(context, volume)


def settled(cloud, server):
    """Nothing is asked of the server any more."""
    work = select(tables.actions.c.id).where(tables.actions.c.server_id == server["id"],
                                             tables.actions.c.state.in_(("queued", "running")))
    for _turn in range(2000):
        with cloud.parts.working.database.read() as connection:
            if connection.execute(work).first() is None:
                return
        time.sleep(0.02)
    raise AssertionError("the action does not end")


def held(cloud, server):
    """Everything that is kept for the server: claims, ports, attachments, and what its host has."""
    with cloud.parts.api_database.read() as connection:
        claims = [row.consumer_id for row in allocations.fetch_server_claims(connection, server["id"])]
    kept = [sorted(id for id, user in service.users().items() if user == server["id"])
            for service in (cloud.services.network, cloud.services.volume)]
    with cloud.parts.agents.client(cloud.hosts["kvm1"]) as client:
        guest = client.get("server", server["id"])
        return claims, *kept, guest["networks"], guest["volumes_attached"], client.list("volume_attachment")


@contextlib.contextmanager
def without(cloud, server):
    """The cell's database as it was before the server."""
    mine = [table for table in tables.CELL.sorted_tables if "server_id" in table.c]
    with cloud.parts.working.database.write() as connection:
        rows = {table: connection.execute(select(table).where(table.c.server_id == server["id"])).mappings().all()
                for table in mine}
        rows[tables.servers] = connection.execute(select(tables.servers).where(
            tables.servers.c.id == server["id"])).mappings().all()
        for table in mine:
            connection.execute(delete(table).where(table.c.server_id == server["id"]))
        connection.execute(delete(tables.servers).where(tables.servers.c.id == server["id"]))
    try:
        yield
    finally:
        with cloud.parts.working.database.write() as connection:
            for table, found in sorted(rows.items(), key=lambda item: item[0] is not tables.servers):
                if found:
                    connection.execute(insert(table), [dict(row) for row in found])


def test_a_server_that_its_cell_has_lost_is_told_and_left_alone(cloud, periodic, furnished):
    """The cell's database is an older backup, or an empty one."""
    before = held(cloud, furnished)
    assert all(before)
    with without(cloud, furnished):
        assert kinds(cloud) == ["lost"]
        for _look in range(3):
            told = periodic.audit()
        assert [(one.kind, one.id) for one in told] == [("lost", furnished["id"])]
        assert "kvm1" in told[0].text
        assert held(cloud, furnished) == before
    assert kinds(cloud) == []


@pytest.mark.parametrize(("older", "found"), [
    ({}, ["kept", "nics", "volumes"]), ({"host": None}, ["double", "kept"])])
def test_what_a_guest_has_is_not_freed_because_its_row_is_older(cloud, periodic, furnished, older, found):
    columns = ("host", "interfaces", "volumes")
    query = select(*(tables.servers.c[name] for name in columns)).where(tables.servers.c.id == furnished["id"])
    change = update(tables.servers).where(tables.servers.c.id == furnished["id"])
    before = held(cloud, furnished)
    with cloud.parts.working.database.write() as connection:
        row = connection.execute(query).mappings().one()
        connection.execute(change.values(interfaces="[]", volumes="[]", **older))
    try:
        assert kinds(cloud) == found
        for _look in range(3):
            periodic.audit()
        assert held(cloud, furnished) == before
    finally:
        with cloud.parts.working.database.write() as connection:
            connection.execute(change.values(**row))
    assert kinds(cloud) == []


def test_what_is_removed_from_a_host_is_asked_for_once_more_before(cloud, periodic, server):
    """Whatever an audit believed: the server lives."""
    with pytest.raises(Conflict, match="deleted"):
        REPAIRS["left"](periodic.watch, AuditState(), audit.Finding("left", server["id"], "kvm1", ""))
    with cloud.parts.agents.client(cloud.hosts["kvm1"]) as client:
        assert client.get("server", server["id"])["power_state"] == "running"


def test_of_a_server_that_was_deleted_before_its_cell_lost_it_nothing_stays(cloud, periodic, server):
    with cloud.parts.api_database.write() as connection:
        mine = update(tables.server_mappings).where(tables.server_mappings.c.server_id == server["id"])
        connection.execute(mine.values(deleted=True))
    with without(cloud, server):
        repaired(cloud, periodic, "left", "orphan", "port")
        with cloud.parts.agents.client(cloud.hosts["kvm1"]) as client:
            assert server["id"] not in {one["id"] for one in client.list("server")}


def test_images_go_from_hosts_that_have_not_needed_them_for_a_day(cloud, periodic, server, monkeypatch):
    with cloud.parts.agents.client(cloud.hosts["kvm1"]) as client:
        other = cloud.admin.image("other")
        cloud.parts.delivery.image(client, "kvm1", other)
        assert remove_unused_images(periodic.conductor) == 0
        monkeypatch.setattr("magnetar_control.conductor.periodic.periodic.UNUSED", -60.0)
        assert remove_unused_images(periodic.conductor) == 1
        left = {image["id"] for image in client.list("image")}
        assert other not in left and cloud.admin.image() in left
        cloud.parts.delivery.image(client, "kvm1", other)  # what was believed is forgotten: it comes again
        assert other in {image["id"] for image in client.list("image")}


def test_one_conductor_of_a_cell_does_it(cloud, periodic):
    assert periodic.first()
    database = cloud.parts.working.database
    with database.write() as connection:
        connection.execute(insert(tables.conductors).values(holder="!", name="x", seen_at=database.clock()))
    assert not periodic.first()
    with database.write() as connection:
        connection.execute(delete(tables.conductors).where(tables.conductors.c.holder == "!"))
