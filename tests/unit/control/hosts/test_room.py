# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the servers of a failed host would have a place: by the scheduler's filters, in memory only."""

import pytest
from sqlalchemy import insert, select, update

from magnetar_control.conductor.periodic.room_check import check_cell_room
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.health import Health
from magnetar_control.metrics import Metrics
from magnetar_control.scheduler.room_report import describe_lacking_host, report_room
from magnetar_control.services.volume.tables import volumes
from magnetar_control.store.claims import host_counters, inventories
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.engine.tables import allocations, hosts, servers
from magnetar_control.store.hosts.hosts import fetch_host_row
from magnetar_core.errors import InvalidField
from tests.support.control.rooms import recorded_aggregate, recorded_group, recorded_server
from tests.unit.control.api.compute import Compute, emptied
from tests.unit.control.conftest import tables

CELL2 = "22222222-2222-2222-2222-222222222222"
#: MiB of a host that servers may claim: 16384 x 1.5.
WHOLE = 24576


@pytest.fixture(scope="module")
def databases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("room")
    made = {name: Database(f"sqlite:///{folder}/{name}.db", name) for name in ("api", "cell0", "cell1")}
    for database in made.values():
        tables(database)
    yield made
    for database in made.values():
        database.close()


@pytest.fixture
def cloud(databases, tmp_path):
    """Three hosts that are up."""
    made = Compute(databases, tmp_path)
    for name in ("kvm1", "kvm2", "kvm3"):
        made.host(name, traits=["CUSTOM_SSD"] if name == "kvm2" else [])
    yield made
    emptied(databases)


def reports(cloud, **scope):
    made = report_room(cloud.store, cloud.cloud.services.volume, cloud.cloud.settings, **scope)
    return {(report.scope.kind, report.scope.name): report for report in made}


def whole(cloud):
    return reports(cloud)["cloud", "cloud"]


def unplaced(cloud):
    """The names of the servers without a place, by host."""
    return {room.host: [name for _id, name in room.unplaced] for room in whole(cloud).lacking}


def test_an_empty_cloud_holds(cloud):
    report = whole(cloud)
    assert report.holds and len(report.rooms) == 3
    assert report.reason == "If any one of 3 hosts fails, all of its servers have a place on other hosts."


def test_servers_that_fit_together_only_once_do_not_fit(cloud):
    """The larger server of kvm1 takes the room of kvm2, and the smaller one that of kvm3."""
    recorded_server(cloud, "kvm1", "large", ram=12000)
    recorded_server(cloud, "kvm1", "small", ram=4000)
    recorded_server(cloud, "kvm2", "fills2", ram=WHOLE - 12000)
    for at in range(2):
        recorded_server(cloud, "kvm3", f"fills3-{at}", ram=(WHOLE - 4000) // 2)
    assert "kvm1" not in unplaced(cloud)
    recorded_server(cloud, "kvm1", "more", ram=100)
    assert unplaced(cloud)["kvm1"] == ["more"]
    (room,) = (room for room in whole(cloud).lacking if room.host == "kvm1")
    assert describe_lacking_host(room).startswith("kvm1: 1 of 3 servers have no place on another host (more). Of 3 ")
    assert "RamFilter 2" in room.reason and "RamFilter: the best of these" in room.reason


def test_nothing_is_claimed(cloud):
    for at in range(8):
        recorded_server(cloud, "kvm1", f"s{at}", ram=2000)
    with cloud.api.read() as connection:
        before = connection.execute(select(allocations)).all(), connection.execute(select(hosts)).all()
    assert whole(cloud).holds
    with cloud.api.read() as connection:
        assert before == (connection.execute(select(allocations)).all(), connection.execute(select(hosts)).all())
        assert host_counters.audit_host_counters(connection) == []


def test_traits_zones_and_disabled_hosts_count(cloud):
    recorded_server(cloud, "kvm2", "ssd", extra_specs={"trait:CUSTOM_SSD": "required"})
    recorded_aggregate(cloud, "hall", ["kvm3"], availability_zone="hall2")
    recorded_server(cloud, "kvm3", "pinned", pinned_availability_zone="hall2")
    recorded_server(cloud, "kvm1", "free")
    assert unplaced(cloud) == {"kvm2": ["ssd"], "kvm3": ["pinned"]}
    with cloud.api.write() as connection:
        connection.execute(update(hosts).where(hosts.c.name.in_(("kvm2", "kvm3"))).values(disabled=True))
    assert unplaced(cloud)["kvm1"] == ["free"]
    found = reports(cloud)
    assert not found["zone", "nova"].holds and not found["zone", "hall2"].holds and not found["aggregate", "hall"].holds
    assert "AvailabilityZoneFilter" in found["zone", "hall2"].reason


def test_a_host_that_is_down_is_no_target_but_may_not_fail_again(cloud):
    cloud.host("kvm4", seen=False)
    recorded_server(cloud, "kvm4", "lost", ram=1000)
    for name in ("kvm1", "kvm2", "kvm3"):
        recorded_server(cloud, name, f"on-{name}", ram=WHOLE - 500)
    assert unplaced(cloud)["kvm4"] == ["lost"]
    assert set(unplaced(cloud)) == {"kvm1", "kvm2", "kvm3", "kvm4"}


def test_anti_affinity_counts_servers_that_were_just_placed(cloud):
    group = recorded_group(cloud, "apart", "anti-affinity")
    recorded_server(cloud, "kvm1", "a", group=group)
    recorded_server(cloud, "kvm2", "b", group=group)
    assert unplaced(cloud) == {}
    recorded_server(cloud, "kvm3", "c", group=group)
    assert unplaced(cloud) == {"kvm1": ["a"], "kvm2": ["b"], "kvm3": ["c"]}
    two = recorded_group(cloud, "two", "anti-affinity")
    for name in ("d", "e", "f"):
        recorded_server(cloud, "kvm1", name, group=two)
    assert len(unplaced(cloud)["kvm1"]) == 2  # one of d, e and f has neither kvm2 nor kvm3 for itself


def test_hints_name_servers_of_the_own_project(cloud):
    other = recorded_server(cloud, "kvm2", "other")
    recorded_server(cloud, "kvm1", "near", hints={"same_host": [other]})
    recorded_server(cloud, "kvm1", "far", hints={"different_host": [other]})
    for name in ("kvm1", "kvm3"):
        recorded_server(cloud, name, f"fills-{name}", ram=WHOLE - 2048 * (name == "kvm1"))
    assert sorted(unplaced(cloud)["kvm1"]) == ["far", "fills-kvm1"]


def test_custom_resources_are_claimed_one_after_the_other(cloud):
    for name in ("kvm1", "kvm2"):
        with cloud.api.write() as connection:
            inventories.save_operator_inventory(connection, fetch_host_row(connection, name).id, "CUSTOM_KEY",
                                                {"total": 2})
    for name in ("a", "b", "c"):
        recorded_server(cloud, "kvm1", name, extra_specs={"resources:CUSTOM_KEY": "1"})
    assert len(unplaced(cloud)["kvm1"]) == 1
    assert "ResourceClassFilter" in whole(cloud).reason


def test_a_local_volume_binds_its_server(cloud):
    with cloud.api.write() as connection:
        for id, host in (("v1", "kvm1"), ("v2", "kvm2")):
            connection.execute(insert(volumes).values(
                id=id, name=id, project_id="red", user_id="alice", size=1, status="in-use", host=host,
                volume_type="t", availability_zone="nova", created_at=utc_now()))
    recorded_server(cloud, "kvm1", "local", volumes=[{"volume_id": "v1", "boot_index": 0}])
    recorded_server(cloud, "kvm1", "remote", volumes=[{"volume_id": "v2", "boot_index": 0}])
    recorded_server(cloud, "kvm1", "data", volumes=[{"volume_id": "v1", "boot_index": None}])
    assert {host: sorted(names) for host, names in unplaced(cloud).items()} == {"kvm1": ["data", "local"]}


def test_soft_deleted_servers_do_not_count(cloud):
    recorded_server(cloud, "kvm1", "gone", ram=WHOLE, vm_state="soft-delete")
    for name in ("kvm2", "kvm3"):
        recorded_server(cloud, name, f"on-{name}", ram=WHOLE // 2)
    assert whole(cloud).holds


def test_a_scope_is_asked_by_name(cloud):
    recorded_aggregate(cloud, "hall", ["kvm3"], availability_zone="hall2")
    recorded_aggregate(cloud, "empty", [])
    assert list(reports(cloud)) == [("cloud", "cloud"), ("zone", "hall2"), ("zone", "nova"), ("aggregate", "empty"),
                                    ("aggregate", "hall")]
    assert list(reports(cloud, zone="hall2")) == [("zone", "hall2")]
    assert list(reports(cloud, zone="nova", aggregate="empty")) == [("zone", "nova"), ("aggregate", "empty")]
    assert reports(cloud, aggregate="empty")["aggregate", "empty"].reason == "It has no hosts."


@pytest.mark.parametrize(("scope", "text"), [
    ({"zone": "hall9"}, "zone: there is no availability zone of this name in the cloud; there are: nova (got "),
    ({"aggregate": "ssd"}, "aggregate: there is no aggregate of this name in the cloud; there are: none (got ")])
def test_a_wrong_name_is_named(cloud, scope, text):
    with pytest.raises(InvalidField) as refused:
        reports(cloud, **scope)
    assert refused.value.message.startswith(text)


def test_a_cell_that_does_not_answer(cloud):
    recorded_server(cloud, "kvm1", "web")
    cloud.store.add_cell("cell2", "postgresql+psycopg://127.0.0.1:1/none", CELL2)
    cloud.store.cells(fresh=True)
    with cloud.api.write() as connection:
        connection.execute(update(hosts).where(hosts.c.name == "kvm3").values(
            cell_id=CELL2))
    (room,) = whole(cloud).lacking
    assert (room.host, room.servers) == ("kvm3", None)
    assert "The database of its cell (cell2) does not answer." in whole(cloud).reason


def test_statements_do_not_grow_with_servers(cloud):
    def statements():
        with cloud.counted() as seen:
            assert whole(cloud).rooms
        return len(seen)

    group = recorded_group(cloud, "near", "soft-affinity")
    recorded_server(cloud, "kvm1", "first", group=group)
    once = statements()
    for at in range(12):
        recorded_server(cloud, ("kvm1", "kvm2", "kvm3")[at % 3], f"s{at}", ram=64, group=group)
    assert statements() == once


def test_the_conductor_reports_metrics(cloud):
    recorded_server(cloud, "kvm1", "huge", ram=WHOLE)
    for name in ("kvm2", "kvm3"):
        recorded_server(cloud, name, f"on-{name}", ram=64)
    with cloud.cell.read() as connection:
        assert len(connection.execute(select(servers.c.id)).all()) == 3
    conductor = Conductor(cloud.cloud.settings, cloud.store, cloud.cloud.services, cloud.cloud.agents, "cell1", None)
    metrics = Metrics(Health(cloud.store, lambda: 60.0))
    conductor.room_checked = metrics.set_room
    assert "magnetar_room_to_fail{" not in metrics.text()
    check_cell_room(conductor)
    text = metrics.text()
    assert 'magnetar_room_to_fail{cell="cell1",name="cloud",scope="cloud"} 0.0' in text
    assert 'magnetar_room_lacking_hosts{cell="cell1",name="nova",scope="zone"} 1.0' in text
    assert 'magnetar_room_unplaced_servers{cell="cell1",name="nova",scope="zone"} 1.0' in text
