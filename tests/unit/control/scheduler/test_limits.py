# SPDX-License-Identifier: GPL-3.0-or-later
"""What may be claimed of a host follows settings and aggregates while it is watched (rows ALL-03, ALL-04, AGG-10)."""

from types import SimpleNamespace

import pytest

from magnetar_control.compute.placement.placement import Placement
from magnetar_control.compute.placement.providers import Providers
from magnetar_control.conductor.hosts.host_watch import HostWatch
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.scheduler.place import read_host, read_hosts
from magnetar_control.store.claims.allocations import Ratios
from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts import aggregates, hosts
from tests.unit.control.api.compute import Compute, emptied
from tests.unit.control.conftest import tables

TOLD = {"name": "kvm1", "vcpus": 8, "memory_mb": 16384, "disk_gb": 100, "metrics": {"cpu.percent": 0.5}}


@pytest.fixture
def made(tmp_path):
    databases = {name: Database(f"sqlite:///{tmp_path}/{name}.db", name) for name in ("api", "cell0", "cell1")}
    for database in databases.values():
        tables(database)
    yield Compute(databases, tmp_path)
    emptied(databases)
    for database in databases.values():
        database.close()


def watch_of(made, **reserved):
    """The watch of a conductor whose settings keep that much from servers."""
    conductor = SimpleNamespace(
        states=HostStates(), ratios=Ratios(), store=made.cloud.store,
        reserved={f"{name}_reserved": reserved.get(name, 0) for name in ("vcpus", "memory_mb", "disk_gb")})
    conductor.read_host = lambda name: read_host(made.api, conductor.states, name)
    conductor.ratios_of = lambda name: Conductor.ratios_of(conductor, name)
    read_hosts(made.api, conductor.states)
    return HostWatch(conductor)


def limits_of(made):
    """CPUs, MiB and GiB that may be claimed."""
    with made.api.read() as connection:
        row = hosts.fetch_host_row(connection, "kvm1")
    return row.vcpus_limit, row.memory_mb_limit, row.disk_gb_limit


def test_reserved_amounts_act_after_the_host_was_registered(made):
    made.host("kvm1")
    watch_of(made)._inventory("kvm1", TOLD)
    assert limits_of(made) == (128, 24576, 100)
    watch_of(made, memory_mb=4096, vcpus=2, disk_gb=10)._inventory("kvm1", TOLD)
    assert limits_of(made) == (96, 18432, 90)
    watch_of(made)._inventory("kvm1", TOLD)
    assert limits_of(made) == (128, 24576, 100)


def test_what_images_take_is_reserved_besides(made):
    made.host("kvm1")
    watch = watch_of(made, disk_gb=10)
    for taken, left in ((0, 90), (25, 65), (30, 60), (0, 90), (25, 65)):
        watch._inventory("kvm1", {**TOLD, "image_cache_gb": taken})
        assert limits_of(made)[2] == left
    with made.api.write() as connection:  # an operator's word, with the next heartbeat and before
        hosts.update_host_row(connection, "kvm1", disk_gb_own_reserved=5, disk_gb_reserved=5)
    assert limits_of(made)[2] == 70
    watch._inventory("kvm1", {**TOLD, "image_cache_gb": 26})
    assert limits_of(made)[2] == 69


def test_inventories_that_are_written_as_they_were_read_stay(made):
    """As `openstack resource provider inventory set --amend` does."""
    made.host("kvm1")
    watch = watch_of(made)
    watch._inventory("kvm1", {**TOLD, "image_cache_gb": 5})
    providers = Providers(Placement(made.cloud))
    [one] = providers.placement.roots()
    for given, images, left in ((5, 5, 95), (16, 5, 84), (16, 5, 84), (18, 7, 82), (7, 7, 93), (3, 7, 93)):
        watch._inventory("kvm1", {**TOLD, "image_cache_gb": images})
        disk = {**providers.placement.provider(one.id).inventories["DISK_GB"], "reserved": given}
        found = providers.set_inventories(one.id, None, {"DISK_GB": disk}).inventories["DISK_GB"]
        assert (found["reserved"], limits_of(made)[2]) == (max(given, images), left)
        watch._inventory("kvm1", {**TOLD, "image_cache_gb": images})
        assert limits_of(made)[2] == left


@pytest.mark.parametrize(("metadata", "limits"), [
    ({"cpu_allocation_ratio": "2.0"}, (16, 24576, 100)), ({"ram_allocation_ratio": "1.0, 0.5"}, (128, 8192, 100)),
    ({"disk_allocation_ratio": "3"}, (128, 24576, 300)), ({"cpu_allocation_ratio": "many"}, (128, 24576, 100)),
    ({"cpu_allocation_ratio": "-1", "ram_allocation_ratio": "inf"}, (128, 24576, 100))])
def test_ratios_of_aggregates_count_with_the_next_heartbeat(made, metadata, limits):
    made.host("kvm1")
    watch = watch_of(made)
    watch._inventory("kvm1", TOLD)
    with made.api.write() as connection:
        one = aggregates.insert_aggregate_row(connection, "dense", metadata)
        aggregates.insert_aggregate_host_row(connection, one, "kvm1")
    read_hosts(made.api, watch.conductor.states)
    watch._inventory("kvm1", TOLD)
    assert limits_of(made) == limits
    with made.api.write() as connection:
        aggregates.update_aggregate_row(connection, one, metadata={})
        hosts.update_host_row(connection, "kvm1", disabled=True)  # what has no say in it leaves the limits alone
    assert limits_of(made) == limits
    read_hosts(made.api, watch.conductor.states)
    watch._inventory("kvm1", TOLD)
    assert limits_of(made) == (128, 24576, 100)


def test_what_changes_with_each_heartbeat_writes_nothing(made):
    made.host("kvm1")
    watch = watch_of(made)
    watch._inventory("kvm1", TOLD)
    with made.api.read() as connection:
        before = hosts.fetch_host_row(connection, "kvm1")
    assert "metrics" not in before.stored.info
    watch._inventory("kvm1", {**TOLD, "metrics": {"cpu.percent": 0.9}})
    with made.api.read() as connection:
        assert hosts.fetch_host_row(connection, "kvm1").stored == before.stored
