# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts can open a volume, and which hosts a server's volumes allow."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, update

from magnetar_control.services.volume.access import (
    VolumeAccess,
    common_build_hosts,
    common_move_hosts,
    fetch_served_volumes,
    fetch_volume_access,
)
from magnetar_control.services.volume.pools import pool_id_of, save_host_pools
from magnetar_control.services.volume.tables import volumes
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import cells, hosts

TEAM = "nfs:nas:/team"
LOCAL = VolumeAccess("kvm1", frozenset(["kvm1"]), shared=False, encrypted=False)
SHARED = VolumeAccess("kvm1", frozenset(["kvm1", "kvm2"]), shared=True, encrypted=False)
THERE = VolumeAccess("kvm3", frozenset(["kvm2", "kvm3"]), shared=True, encrypted=False)
SECRET = VolumeAccess("kvm1", frozenset(["kvm1", "kvm2"]), shared=True, encrypted=True)
ACCESS = {"local": LOCAL, "shared": SHARED, "there": THERE, "secret": SECRET,
          "remote": VolumeAccess("kvm9", frozenset(["kvm9"]), shared=False, encrypted=False)}


def volumes_of(*names, root=None):
    """A server's volumes, by the names of ``ACCESS``; *root*: which one is the root disk."""
    return [{"volume_id": name, "boot_index": 0 if name == root else None} for name in names]


@pytest.mark.parametrize(("names", "root", "expected"), [
    ((), None, None), (("remote",), None, None), (("remote",), "remote", ["kvm9"]),
    (("local",), None, ["kvm1"]), (("shared",), "shared", ["kvm1", "kvm2"]), (("shared", "there"), None, ["kvm2"]),
    (("secret",), None, ["kvm1", "kvm2"]), (("shared", "local"), None, ["kvm1"]), (("gone",), None, None),
    (("gone",), "gone", [])])
def test_hosts_where_a_server_of_kvm1_is_built_again(names, root, expected):
    hosts = common_build_hosts(volumes_of(*names, root=root), ACCESS, "kvm1")
    assert (hosts if hosts is None else sorted(hosts)) == expected


def test_a_volume_of_a_further_host_that_is_down():
    """It limits the server to hosts that can take it over; where there are none, its host is waited for."""
    secret = {"secret": SECRET, "local": LOCAL}
    down = {"is_up": lambda _host: False}
    assert common_build_hosts(volumes_of("secret"), secret, "kvm7", **down) == {"kvm1", "kvm2"}
    assert common_build_hosts(volumes_of("local"), secret, "kvm7", **down) is None
    assert common_build_hosts(volumes_of("secret"), secret, "kvm7") is None


@pytest.mark.parametrize(("names", "expected"), [
    ((), None), (("remote", "local", "secret", "gone"), None), (("shared",), ["kvm1", "kvm2"]),
    (("shared", "there", "local"), ["kvm2"])])
def test_hosts_that_a_running_server_can_move_to(names, expected):
    hosts = common_move_hosts(volumes_of(*names), ACCESS)
    assert (hosts if hosts is None else sorted(hosts)) == expected


@pytest.mark.parametrize(("access", "source", "needed"), [
    (LOCAL, "kvm1", False), (SHARED, "kvm1", True), (SHARED, "kvm2", True), (SECRET, "kvm1", True),
    (SECRET, "kvm2", False)])
def test_which_volumes_only_a_fence_protects(access, source, needed):
    assert access.needs_fence(source) is needed


def report(name, state="up", identity=TEAM, **more):
    return {"name": name, "kind": "nfs", "identity": identity if state == "up" else None, "shared": True,
            "total_gb": 100, "free_gb": 60, "state": state, "reason": "", **more}


@pytest.fixture
def stored(database):
    """Three hosts; kvm1 and kvm2 reach one pool. Stores a volume of kvm1, and returns its access."""
    with database.write() as connection:
        connection.execute(insert(cells).values(id="c", name="cell1", database_url="", created_at=utc_now()))
        for number, name in enumerate(("kvm1", "kvm2", "kvm3")):
            connection.execute(insert(hosts).values(id=name, name=name, number=number, cell_id="c", endpoint="",
                                                    created_at=utc_now()))
        save_host_pools(connection, "kvm1", [report("team")])
        save_host_pools(connection, "kvm2", [report("other-name")])
        save_host_pools(connection, "kvm3", [report("team", identity="nfs:kvm3:/srv", shared=False)])

    def store(id, **columns):
        with database.write() as connection:
            connection.execute(insert(volumes).values(**{
                "id": id, "project_id": "p", "user_id": "u", "size": 1, "status": "available", "volume_type": "team",
                "availability_zone": "nova", "created_at": utc_now(), "metadata": {}, "image_metadata": {},
                "host": "kvm1", **columns}))
        with database.read() as connection:
            return fetch_volume_access(connection, [id, "unknown"]).get(id)

    return store


def test_access_follows_from_the_reports_of_hosts(stored, database):
    both = frozenset(["kvm1", "kvm2"])
    assert stored("a") == VolumeAccess("kvm1", both, shared=True, encrypted=False)
    assert stored("b", encryption_key_id="k").encrypted
    assert stored("c", host=None) is None
    assert stored("d", status="creating") == VolumeAccess("kvm1", frozenset(["kvm1"]), shared=False, encrypted=False)
    with database.read() as connection:
        assert fetch_served_volumes(connection, "kvm1") == {"b", "d"} and not fetch_served_volumes(connection, "kvm2")
    assert stored("e", host="kvm3") == VolumeAccess("kvm3", frozenset(["kvm3"]), shared=False, encrypted=False)
    with database.write() as connection:
        save_host_pools(connection, "kvm1", [report("team", state="down")])
    assert stored("f") == VolumeAccess("kvm1", both, shared=True, encrypted=False, lost=True)
    with database.write() as connection:
        save_host_pools(connection, "kvm2", [report("other-name", identity="nfs:nas:/another")])
        connection.execute(update(volumes).where(volumes.c.id == "f").values(host="kvm2"))
    assert stored("g").hosts == {"kvm1"}
    assert stored("h", host="kvm3", pool_id=pool_id_of("nfs:nas:/another")).direct
    with database.read() as connection:
        assert fetch_served_volumes(connection, "kvm3") == {"e"}
