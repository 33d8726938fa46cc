# SPDX-License-Identifier: GPL-3.0-or-later
"""What operators have set of the choice of hosts reaches those who choose: conductors, and the dry run."""

import orjson
import pytest
from sqlalchemy import insert, update

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.placement.scheduling import predicted_host
from magnetar_control.compute.servers.server_create import NewServers, preview_server_row
from magnetar_control.conductor.hosts.host_watch import HostWatch
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.scheduler.choose import choose_hosts
from magnetar_control.scheduler.request_spec import RequestSpec
from magnetar_control.scheduler.rules import scheduler_rules
from magnetar_control.services import Context
from magnetar_control.services.image.tables import images
from magnetar_control.settings_file import make_settings
from magnetar_control.store.claims.allocations import Amounts
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import host_states
from magnetar_core.errors import NoSpace

FLAVOR = {"id": "1", "name": "tiny", "vcpus": 1, "ram": 64, "disk": 1, "ephemeral": 0, "swap": 0}
IMAGE = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"
ADMIN = Context("boss", "red", frozenset(("admin",)))


def test_conductor_and_dry_run_choose_as_the_settings_say(small):
    small.host("small")
    small.host("large", memory_mb=65536)
    for multiplier, best in ((1.0, "large"), (-2.0, "small")):
        cloud = small.cloud
        cloud.settings = make_settings({"state_dir": str(cloud.settings.state_dir), "ram_weight_multiplier": multiplier,
                                        "default_availability_zone": "hall1"})
        row = {"id": "s", "project_id": "red", "flavor": orjson.dumps(FLAVOR), "image": b"{}", "request": b"{}",
               "hints": b"{}", "pinned_availability_zone": None, "availability_zone": None}
        assert predicted_host(Caller(cloud, ADMIN, "req-dry"), row) == best
        conductor = Conductor(cloud.settings, cloud.store, cloud.services, cloud.agents, "cell1", None)
        conductor.read_hosts()
        for name in ("small", "large"):
            conductor.states.up(name, up=True)
        assert conductor.states.rules == scheduler_rules(cloud.settings)
        wish = RequestSpec(server_id="s", project_id="red", amounts=Amounts(1, 64, 1), availability_zone="hall1")
        assert choose_hosts(conductor.states, wish)[0].host == best


def test_zone_and_host_force_a_new_server_past_the_filters(small):
    """As in Nova, only a disabled host is refused; a ``host`` of 2.74 is checked by all filters."""
    small.host("small")
    small.host("large", memory_mb=65536)
    flavor = small.admin.post("/flavors", {"flavor": {"name": "tiny", "vcpus": 1, "ram": 64, "disk": 0}}).json["flavor"]
    small.admin.post(f"/flavors/{flavor['id']}/os-extra_specs", {"extra_specs": {"gpu": "yes"}})
    with small.api.write() as connection:
        connection.execute(insert(images).values(id=IMAGE, name="small", owner="red", status="active", size=1,
                                                 visibility="private", disk_format="raw", container_format="bare",
                                                 created_at=utc_now(), updated_at=utc_now()))
    caller = Caller(small.cloud, ADMIN, "req-forced")

    def host_of(**place):
        asked = NewServers(name="web1", flavor_id=flavor["id"], image_id=IMAGE, networks="none", **place)
        return predicted_host(caller, preview_server_row(caller, asked)[0])

    assert host_of(availability_zone="nova:small") == host_of(availability_zone=":small") == "small"
    with pytest.raises(NoSpace, match="is in no aggregate with the metadata gpu=yes"):
        host_of(host="small")
    small.admin.put("/os-services/disable", {"host": "small", "binary": "nova-compute"})
    with pytest.raises(NoSpace, match="ComputeFilter 1"):
        host_of(availability_zone="nova:small")


HEAVY = ("scheduling", "spawning", "resize_prep", "resize_migrating", "rebuilding", "rescuing", "image_snapshot")
LIGHT = (None, "deleting", "powering-on", "resize_finish", "migrating", "image_uploading")


def test_servers_that_keep_disks_busy_make_a_host_worse(computes):
    """In the conductor's own cell and in another; the watch reads them with the heartbeats."""
    compute = computes(2)
    for cell in ("cell1", "cell2"):
        for name, tasks in ((f"busy-{cell}", HEAVY), (f"idle-{cell}", LIGHT)):
            compute.host(name, cell=cell)
            for task in tasks:
                compute.server(cell=cell, host=name, task_state=task)
        compute.server(cell=cell, host=f"idle-{cell}", task_state="spawning", deleted_at=utc_now())
        compute.server(cell=cell, task_state="spawning")
        with compute.databases[cell].write() as connection:  # another watches them
            connection.execute(update(host_states).values(watcher="other", lease_until="9999", seen_at="9999"))
    cloud = compute.cloud
    conductor = Conductor(cloud.settings, cloud.store, cloud.services, cloud.agents, "cell1", None)
    HostWatch(conductor)._round()
    assert {name: host.io_ops for name, host in conductor.states.hosts.items()} == {
        "busy-cell1": len(HEAVY), "busy-cell2": len(HEAVY), "idle-cell1": 0, "idle-cell2": 0}
    found = choose_hosts(conductor.states, RequestSpec(server_id="s", project_id="red", amounts=Amounts(1, 64, 1)), 4)
    assert [one.host.split("-")[0] for one in found] == ["idle", "idle", "busy", "busy"]
