# SPDX-License-Identifier: GPL-3.0-or-later
"""The balance of a recorded cloud: the scheduler's filters, room to fail, pinned and recently moved servers."""

import pytest
from sqlalchemy import insert, update

from magnetar_control.compute.balance.balance import report_balance
from magnetar_control.compute.caller import Caller
from magnetar_control.services.volume.tables import volumes
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.engine.tables import hosts, migrations
from magnetar_core.errors import Forbidden, NotFound, Unavailable, Unreachable
from tests.support.control.rooms import recorded_aggregate, recorded_group, recorded_server
from tests.unit.control.api.compute import WHO, Agents, Compute, emptied
from tests.unit.control.conftest import tables

CELL2 = "22222222-2222-2222-2222-222222222222"
NAMES = ("kvm1", "kvm2", "kvm3")


class Measuring:
    """The client of an agent with 10 CPUs and 16384 MiB; *cpus* in use, *servers*: CPUs in use by uuid."""

    def __init__(self, cpus=0.0):
        self.cpus, self.servers, self.seconds, self.error = cpus, {}, 600.0, None

    def load(self, _patience):
        if self.error:
            raise self.error
        return {"seconds": self.seconds, "cpus": 10, "cpus_used": self.cpus, "memory_mb": 16384,
                "memory_mb_used": 1024, "servers": [
                    {"id": id, "cpus_used": cpus, "memory_mb_used": 512} for id, cpus in self.servers.items()]}


@pytest.fixture(scope="module")
def databases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("balance")
    made = {name: Database(f"sqlite:///{folder}/{name}.db", name) for name in ("api", "cell0", "cell1")}
    for database in made.values():
        tables(database)
    yield made
    for database in made.values():
        database.close()


@pytest.fixture
def cloud(databases, tmp_path):
    """Three hosts that are up: kvm1 uses 9 of 10 CPUs, kvm2 1 and kvm3 2."""
    made = Compute(databases, tmp_path)
    for name in NAMES:
        made.host(name)
    made.agents = {name: Measuring(cpus) for name, cpus in zip(NAMES, (9.0, 1.0, 2.0), strict=True)}
    made.cloud.agents = Agents(**made.agents)
    yield made
    emptied(databases)


def server(cloud, name="web", cpus=3.0, host="kvm1", **more):
    id = recorded_server(cloud, host, name, **more)
    cloud.agents[host].servers[id] = cpus
    return id


def report(cloud, who="admin", **asked):
    (made,) = report_balance(Caller(cloud.cloud, WHO[who], "req-1"), **asked)
    return made


def moves(cloud, **asked):
    return [(move.server.name, move.target) for move in report(cloud, **asked).plan.moves]


def reasons(cloud, **asked):
    return {stay.name: stay.reason for stay in report(cloud, **asked).plan.stays}


def test_the_least_loaded_host_gets_the_server(cloud):
    server(cloud)
    assert moves(cloud) == [("web", "kvm2")]
    assert moves(cloud, cell="cell1") == moves(cloud, limit=1) == [("web", "kvm2")]


def test_filters_of_the_scheduler(cloud):
    recorded_aggregate(cloud, "hall", ["kvm1", "kvm3"], availability_zone="hall2")
    server(cloud, pinned_availability_zone="hall2")
    assert moves(cloud) == [("web", "kvm3")]


def test_full_hosts_get_nothing(cloud):
    server(cloud, ram=4096)
    recorded_server(cloud, "kvm2", "fills", ram=22000)
    assert moves(cloud) == [("web", "kvm3")]
    recorded_server(cloud, "kvm3", "fills", ram=22000)
    assert moves(cloud) == [] and "RamFilter" in reasons(cloud)["kvm1"]


def test_affinity_and_anti_affinity_stay(cloud):
    group = recorded_group(cloud, "apart", "anti-affinity")
    server(cloud, "a", group=group)
    recorded_server(cloud, "kvm2", "b", group=group)
    assert moves(cloud) == [("a", "kvm3")]
    recorded_server(cloud, "kvm3", "c", group=group)
    assert moves(cloud) == []
    near = recorded_group(cloud, "near", "affinity")
    server(cloud, "d", group=near)
    recorded_server(cloud, "kvm1", "e", group=near)
    assert moves(cloud) == []


def test_members_of_a_group_do_not_meet_by_moves_of_one_plan(cloud):
    group = recorded_group(cloud, "apart", "anti-affinity")
    for name in ("a", "b"):
        server(cloud, name, 2.0, group=group)  # they were placed together before the group had its policy
    assert sorted(target for _name, target in moves(cloud)) == ["kvm2", "kvm3"]


def test_a_host_that_may_fail_may_fail_afterwards(cloud):
    """kvm2 alone has room for the servers of kvm3, and only while it is empty."""
    recorded_server(cloud, "kvm1", "stays", ram=13000)
    server(cloud, ram=2000)
    for name in ("c", "d"):
        recorded_server(cloud, "kvm3", name, ram=12000)
    found = report(cloud)
    assert (found.plan.moves, found.dropped) == ([], 1)
    with cloud.api.write() as connection:
        connection.execute(update(hosts).where(hosts.c.name == "kvm2").values(memory_mb_limit=50000))
    assert moves(cloud) == [("web", "kvm2")]


def test_servers_that_stay(cloud):
    for name, columns in {"locked": {"locked_by": "owner"}, "busy": {"task_state": "rebooting"},
                          "off": {"vm_state": "stopped"}, "suspended": {"vm_state": "suspended"},
                          "local": {"volumes": [{"volume_id": "v1", "boot_index": None}]}}.items():
        server(cloud, name, **columns)
    with cloud.api.write() as connection:
        connection.execute(insert(volumes).values(
            id="v1", name="v1", project_id="red", user_id="alice", size=1, status="in-use", host="kvm1",
            volume_type="t", availability_zone="nova", created_at=utc_now()))
    recorded_server(cloud, "kvm1", "unmeasured")
    assert moves(cloud) == []
    found = reasons(cloud, host="kvm1")
    assert found.keys() == {"locked", "busy", "off", "suspended", "local", "unmeasured"}
    for name, words in {"locked": "It is locked.", "busy": "(rebooting)", "off": "It is not running.",
                        "suspended": "It is suspended", "local": "stores its volume v1",
                        "unmeasured": "has not measured it"}.items():
        assert words in found[name]


@pytest.mark.parametrize(("age", "status", "proposed"), [
    (-60, "completed", False), (-60, "error", False), (-60, "cancelled", True), (-3700, "completed", True)])
def test_servers_rest_for_an_hour(cloud, age, status, proposed):
    id = server(cloud)
    migrated(cloud, id, age, status)
    assert bool(moves(cloud)) is proposed


def migrated(cloud, id, age, status, source="kvm3", target="kvm1"):
    with cloud.cell.write() as connection:
        connection.execute(insert(migrations).values(
            uuid=id, server_id=id, project_id="red", user_id="alice", type="live-migration", status=status,
            source=source, target=target, created_at=utc_now(age)))


def test_hosts_with_a_migration_that_goes_on_take_no_part(cloud):
    server(cloud)
    migrated(cloud, recorded_server(cloud, "kvm3", "other"), -4000, "running", "kvm3", "kvm2")
    assert moves(cloud) == []


def test_hosts_that_take_no_part(cloud):
    server(cloud)
    with cloud.api.write() as connection:
        connection.execute(update(hosts).where(hosts.c.name == "kvm2").values(disabled=True))
    assert moves(cloud) == [("web", "kvm3")]
    for value, words in ((Unreachable("gone"), "does not answer"), (NotFound("no"), "too old")):
        cloud.agents["kvm3"].error = value
        found = report(cloud)
        assert found.plan.moves == [] and words in found.unmeasured["kvm3"]
    cloud.agents["kvm3"].error, cloud.agents["kvm3"].seconds = None, 10.0
    assert "less than a minute" in report(cloud).unmeasured["kvm3"]
    cloud.agents["kvm3"].seconds, cloud.agents["kvm3"].cpus = 600.0, None
    assert "cannot measure" in report(cloud).unmeasured["kvm3"]


def test_a_disabled_host_can_be_freed(cloud):
    server(cloud, host="kvm3", cpus=1.0)
    with cloud.api.write() as connection:
        connection.execute(update(hosts).where(hosts.c.name == "kvm3").values(disabled=True))
    assert moves(cloud, host="kvm3") == [("web", "kvm2")]


def test_requests_that_are_refused(cloud):
    for asked in ("cell", "host"):
        with pytest.raises(NotFound, match=f"There is no {asked} 'kvm9'"):
            report(cloud, **{asked: "kvm9"})
    with pytest.raises(Forbidden):
        report(cloud, who="alice")
    cloud.store.add_cell("cell2", "postgresql+psycopg://127.0.0.1:1/none", CELL2)
    cloud.store.cells(fresh=True)
    with pytest.raises(Unavailable, match="cell2"):
        report(cloud)
    assert report(cloud, cell="cell1").plan.moves == []


def test_statements_do_not_grow_with_servers(cloud):
    def statements():
        with cloud.counted() as seen:
            report(cloud)
        return len(seen)

    group = recorded_group(cloud, "near", "soft-affinity")
    server(cloud, group=group)
    once = statements()
    for at in range(12):
        server(cloud, f"s{at}", 0.3, NAMES[at % 3], ram=64, group=group)
    assert statements() == once
