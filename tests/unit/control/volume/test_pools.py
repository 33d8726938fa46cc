# SPDX-License-Identifier: GPL-3.0-or-later
"""Pools that agents report: which hosts reach them, under which names, and what clients see of them."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, insert

from magnetar_control.services.volume.pools import fetch_host_pools, pool_id_of, save_host_pools
from magnetar_control.services.volume.tables import volumes
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import cells, hosts
from tests.support.control.serving import ADMIN

from .conftest import work

CEPH = "rbd:5d1c6a8e-0f0b-4f5a-9d3e-6a1f0c2b7e44/volumes"


def report(name, identity=CEPH, kind="rbd", shared=True, total=100, free=60, **more):
    return {"name": name, "kind": kind, "identity": identity, "shared": shared, "total_gb": total, "free_gb": free,
            "state": "up", "reason": "", **more}


def local(host, free=40):
    return report("default", f"dir:{host}:/var/lib/magnetar/volumes", "dir", False, 50, free)


@pytest.fixture
def reported(database):
    """Saves what a host reports."""
    with database.write() as connection:
        connection.execute(insert(cells).values(id="c", name="cell1", database_url="", created_at=utc_now()))
        for number, name in enumerate(("kvm1", "kvm2")):
            connection.execute(insert(hosts).values(id=name, name=name, number=number, cell_id="c", endpoint="",
                                                    created_at=utc_now()))

    def save(host, *reports):
        with database.write() as connection:
            save_host_pools(connection, host, reports)
        with database.read() as connection:
            return [(pool.host, pool.name, pool.identity, pool.state) for pool in fetch_host_pools(connection)]

    return save


def test_a_pool_that_two_hosts_reach_is_one(reported, database):
    reported("kvm1", report("ceph"), local("kvm1"))
    assert reported("kvm2", report("fast", free=55)) == [
        ("kvm1", "ceph", CEPH, "up"), ("kvm1", "default", "dir:kvm1:/var/lib/magnetar/volumes", "up"),
        ("kvm2", "fast", CEPH, "up")]
    with database.read() as connection:
        assert {(pool.host, pool.name, pool.free_gb) for pool in fetch_host_pools(connection, pool_id_of(CEPH))} == {
            ("kvm1", "ceph", 55), ("kvm2", "fast", 55)}


def test_a_pool_that_a_host_loses_and_finds_again_under_another_path(reported):
    """It is down under its identity, and the same pool under its new name."""
    reported("kvm1", report("team", "nfs:nas:/team", "nfs"))
    lost = report("team", None, "nfs", total=None, free=None, state="down", reason="Nothing is mounted.")
    assert reported("kvm1", lost) == [("kvm1", "team", "nfs:nas:/team", "down")]
    assert reported("kvm1", report("again", "nfs:nas:/team", "nfs")) == [("kvm1", "again", "nfs:nas:/team", "up")]


def test_another_pool_under_the_same_name(reported, database):
    reported("kvm1", report("ceph"))
    assert reported("kvm1", report("ceph", "rbd:other/volumes")) == [("kvm1", "ceph", "rbd:other/volumes", "up")]
    assert reported("kvm1", report("new", None, state="down")) == []  # nobody has seen which one it is
    with database.read() as connection:
        assert fetch_host_pools(connection, pool_id_of(CEPH)) == []


def test_the_pools_of_a_removed_host(reported, database):
    reported("kvm1", report("ceph"), local("kvm1"))
    reported("kvm2", report("ceph"))
    with database.write() as connection:
        connection.execute(delete(hosts).where(hosts.c.name == "kvm1"))
    with database.read() as connection:
        assert [(pool.host, pool.identity) for pool in fetch_host_pools(connection)] == [("kvm2", CEPH)]


def test_clients_see_pools_with_their_sizes(ask, reported):
    reported("kvm1", local("kvm1"), report("fast"))
    admin = ask.as_(ADMIN)
    pools = {pool["name"]: pool["capabilities"] for pool in admin(
        "GET", "/v3/scheduler-stats/get_pools?detail=True")["pools"]}
    assert list(pools) == ["kvm1@magnetar#default", "kvm1@magnetar#fast", "kvm2@magnetar#default",
                           "kvm2@magnetar#fast"]  # kvm2 has an agent that does not report them
    assert pools["kvm1@magnetar#fast"].items() >= {
        "pool_name": "fast", "total_capacity_gb": 100, "free_capacity_gb": 60, "backend_state": "up", "shared": True,
        "pool_type": "rbd", "location_info": CEPH, "pool_id": pool_id_of(CEPH)}.items()
    assert pools["kvm2@magnetar#fast"]["total_capacity_gb"] == 90
    reported("kvm1", local("kvm1"), report("fast", None, state="down", total=None, free=None))
    (pool,) = admin("GET", "/v3/scheduler-stats/get_pools?detail=True&name=kvm1%40magnetar%23fast")["pools"]
    assert pool["capabilities"]["backend_state"] == "down"


def test_a_volume_goes_where_its_pool_is(ask, service, cloud, reported):
    cloud.up.add("kvm2")
    reported("kvm1", report("fast", free=5), local("kvm1", free=40))
    reported("kvm2", report("slow"), local("kvm2", free=80))
    admin = ask.as_(ADMIN)

    def place(type):
        id = ask("POST", "/v3/volumes", {"volume": {"size": 1, "volume_type": type}}, status=202)["volume"]["id"]
        return admin("GET", f"/v3/volumes/{id}")["volume"]["os-vol-host-attr:host"]

    assert place("fast") == "kvm1@magnetar#fast" and place("default") == "kvm2@magnetar#default"
    reported("kvm2", report("slow"), report("default", None, state="down"))
    assert place("default") == "kvm1@magnetar#default"


def test_a_volume_notes_its_pool(ask, service, database, reported):
    reported("kvm1", report("default"))
    id = ask("POST", "/v3/volumes", {"volume": {"size": 1}}, status=202)["volume"]["id"]
    work(service)
    with database.read() as connection:
        assert connection.execute(volumes.select().where(volumes.c.id == id)).mappings().one()["pool_id"] \
            == pool_id_of(CEPH)


def _made_type(admin, name="gold", **specs):
    admin("POST", "/v3/types", {"volume_type": {"name": name, "extra_specs": specs}})
    return name


@pytest.fixture
def three_pools(cloud, reported):
    """A folder and Ceph on kvm1, LVM on kvm2."""
    cloud.up.add("kvm2")
    reported("kvm1", report("fast", free=60), local("kvm1", free=80))
    reported("kvm2", report("fast", "lvm:vg", "lvm", False, 100, 5), local("kvm2", free=10))


@pytest.mark.parametrize(("specs", "place"), [
    ({"volume_backend_name": "fast"}, "kvm1@magnetar#fast"),
    ({"volume_backend_name": "magnetar"}, "kvm1@magnetar#default"),  # the most free space
    ({"capabilities:pool_type": "<or> lvm <or> rbd", "shared": "<is> True"}, "kvm1@magnetar#fast"),
    ({"thick_provisioning_support": "<is> yes"}, "kvm2@magnetar#fast"),
    ({"capabilities:pool_type": "s== lvm"}, "kvm2@magnetar#fast"),
    ({"capabilities:pool_type": "<in> v"}, "kvm2@magnetar#fast"),
    ({"encryption_support": "<is> True", "free_capacity_gb": "<= 50"}, "kvm2@magnetar#default"),
    ({"capabilities:total_capacity_gb": ">= 100"}, "kvm1@magnetar#fast"),
    ({"pool_name": "<or> fast <or> default"}, "kvm1@magnetar#default"),
    ({"pool_name": "<or> fast <or> default", "capabilities:pool_type": "s!= dir"}, "kvm1@magnetar#fast")])
def test_a_type_chooses_the_pool_by_capability(ask, three_pools, specs, place):
    admin = ask.as_(ADMIN)
    volume = ask("POST", "/v3/volumes", {"volume": {"size": 1, "volume_type": _made_type(admin, **specs)}}, status=202)
    shown = admin("GET", f"/v3/volumes/{volume['volume']['id']}")["volume"]
    assert shown["os-vol-host-attr:host"] == place and shown["volume_type"] == "gold"
    (listed,) = [pool["name"] for pool in admin("GET", "/v3/scheduler-stats/get_pools?volume_type=gold")["pools"]
                 if pool["name"] == place]
    assert listed == place


def test_a_refusal_says_why_of_each_pool(ask, three_pools, reported):
    admin = ask.as_(ADMIN)
    reported("kvm2", report("fast", "lvm:vg", "lvm", False, 100, 5),
             report("default", None, state="down", reason="Nothing is mounted."))
    reported("kvm1", report("fast", free=60))
    refused = ask("POST", "/v3/volumes", {"volume": {"size": 7, "volume_type": _made_type(
        admin, **{"capabilities:shared": "<is> False", "QoS_support": "<is> False"})}}, status=400)
    text = refused["badRequest"]["message"]
    for part in ("pool fast of host kvm1: capabilities:shared=<is> False, and shared is <is> True",
                 "pool fast of host kvm2: it has 5 GiB free, and the volume is to have 7 GiB",
                 "pool default of host kvm2: it is down: Nothing is mounted"):
        assert part in text, text
    _made_type(admin, "silver", **{"capabilities:nested:key": "1"})
    text = ask("POST", "/v3/volumes", {"volume": {"size": 1, "volume_type": "silver"}}, status=400)
    assert "no pool says nested:key of itself" in text["badRequest"]["message"]
    made = admin("POST", "/v3/types", {"volume_type": {"name": "luks", "extra_specs": {"pool_type": "s== rbd"}}})
    admin("POST", f"/v3/types/{made['volume_type']['id']}/encryption", {"encryption": {
        "provider": "luks", "control_location": "front-end"}})
    text = ask("POST", "/v3/volumes", {"volume": {"size": 1, "volume_type": "luks"}}, status=400)
    assert "pool fast of host kvm1: its volumes cannot be encrypted" in text["badRequest"]["message"]
    assert ask("GET", "/v3/volumes")["volumes"] == []


def test_a_retype_keeps_a_pool_that_is_as_the_type_asks(ask, service, three_pools, cloud):
    admin = ask.as_(ADMIN)
    id = ask("POST", "/v3/volumes", {"volume": {"size": 1}}, status=202)["volume"]["id"]
    work(service)
    _made_type(admin, "files", pool_type="<or> dir <or> nfs")
    _made_type(admin, "blocks", pool_type="<or> lvm <or> rbd")
    retype = {"os-retype": {"new_type": "files", "migration_policy": "never"}}
    ask("POST", f"/v3/volumes/{id}/action", retype, status=202)
    shown = ask("GET", f"/v3/volumes/{id}")["volume"]
    assert (shown["volume_type"], shown["status"]) == ("files", "available")
    retype["os-retype"]["new_type"] = "blocks"
    ask("POST", f"/v3/volumes/{id}/action", retype, status=400)
    migrate = {"os-migrate_volume": {"host": "kvm1@magnetar#fast"}}
    refused = admin("POST", f"/v3/volumes/{id}/action", migrate, status=400)
    assert "pool_type is rbd" in refused["badRequest"]["message"]
