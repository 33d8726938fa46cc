# SPDX-License-Identifier: GPL-3.0-or-later
"""python-novaclient and apache-libcloud, as they are, with a cloud."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from keystoneauth1 import session as keystone
from keystoneauth1.identity import v3
from libcloud.compute.providers import get_driver
from libcloud.compute.types import Provider
from novaclient import client, exceptions

from .cloud import Cloud

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::Warning:novaclient"),
              pytest.mark.filterwarnings("ignore::Warning:libcloud")]
#: The newest version that the client knows.
NOVACLIENT = "2.96"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1, links=True) as made:
        made.admin.image()
        yield made


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end, "it takes more than a minute"
        time.sleep(0.1)


@pytest.fixture
def nova(cloud: Cloud) -> Iterator[Any]:
    session = keystone.Session(auth=v3.Password(
        auth_url=f"http://127.0.0.1:{cloud.port}/identity/v3", username="admin", password=cloud.password,
        project_name="admin", user_domain_id="default", project_domain_id="default"))
    yield client.Client(NOVACLIENT, session=session)
    session.session.close()


@pytest.fixture
def server(nova: Any) -> Iterator[Any]:
    made = nova.servers.create("nova1", image=nova.glance.list()[0], flavor=nova.flavors.list()[0], nics="none",
                               meta={"a": "b"})
    until(lambda: nova.servers.get(made.id).status == "ACTIVE")
    yield made
    made.delete()


def test_novaclient_leads_a_server_through_its_life(nova: Any, server: Any) -> None:
    image = nova.glance.list()[0]
    for act, status in ((server.stop, "SHUTOFF"), (server.start, "ACTIVE"), (lambda: server.reboot("HARD"), "ACTIVE"),
                        (server.pause, "PAUSED"), (server.unpause, "ACTIVE"), (server.suspend, "SUSPENDED"),
                        (server.resume, "ACTIVE"), (server.rescue, "RESCUE"), (server.unrescue, "ACTIVE"),
                        (lambda: server.rebuild(image), "ACTIVE"), (server.shelve, "SHELVED_OFFLOADED"),
                        (server.unshelve, "ACTIVE")):
        act()
        until(lambda: _settled(nova.servers.get(server.id), status))  # noqa: B023 - it is called at once
    server.create_image("of nova1")
    assert [one.action for one in nova.instance_action.list(server)][-1] == "create"
    assert nova.instance_action.get(server, nova.instance_action.list(server)[0].request_id).events


def _settled(server: Any, status: str) -> bool:
    return bool(server.status == status and getattr(server, "OS-EXT-STS:task_state") is None)


def test_novaclient_reads_and_changes_a_server(nova: Any, server: Any) -> None:
    assert nova.servers.find(name="nova1") == server
    assert server in nova.servers.list(search_opts={"all_tenants": 1})
    nova.servers.set_meta(server, {"c": "d"})
    nova.servers.delete_meta(server, ["a"])
    server.set_tags(["x", "y"])
    server.delete_tag("x")
    server.lock(reason="because")
    server.update(name="nova2", description="text")
    found = nova.servers.get(server.id)
    assert (found.metadata, found.tags, found.name, found.locked_reason) == ({"c": "d"}, ["y"], "nova2", "because")
    server.unlock()
    assert server.interface_list() == [] and nova.volumes.get_server_volumes(server.id) == []
    assert nova.servers.topology(server)["nodes"] == [] and nova.server_migrations.list(server) == []
    assert server.get_serial_console("serial")["remote_console"]["url"].startswith("ws")
    assert server.diagnostics()[1]["driver"] == "libvirt"


def test_novaclient_has_the_other_nouns(nova: Any, server: Any) -> None:
    project, begin, end = nova.client.get_project_id(), datetime(2026, 1, 1), datetime(2126, 1, 1)  # noqa: DTZ001
    assert nova.versions.get_current().id == "v2.1"
    nova.keypairs.create("nova", public_key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO0VvMS9bZk0jSAlPS4gCcVmXkGQhWeS3VUN0Z"
                                            "z5bBNJ me")
    assert [one.name for one in nova.keypairs.list()] == ["nova"]
    nova.keypairs.delete("nova")
    aggregate = nova.aggregates.create("nova", "rack1")
    assert nova.aggregates.list() == [aggregate]
    aggregate.delete()
    group = nova.server_groups.create("nova", "anti-affinity")
    assert nova.server_groups.list() == [group]
    group.delete()
    flavor = nova.flavors.create("nova", 64, 1, 1)
    flavor.set_keys({"hw:cpu_policy": "shared"})
    assert flavor.get_keys() == {"hw:cpu_policy": "shared"}
    flavor.delete()
    nova.quotas.update(project, cores=30)
    assert nova.quotas.get(project).cores == 30
    nova.quotas.delete(project)
    assert nova.quotas.get(project, detail=True).cores["limit"] == nova.quotas.defaults(project).cores
    assert server.id in [one["instance_id"] for one in nova.usage.get(project, begin, end).server_usages]
    for listed in (nova.hypervisors, nova.services, nova.availability_zones):
        assert listed.list()
    assert nova.limits.get().to_dict()["absolute"]["totalInstancesUsed"] == 1
    with pytest.raises(exceptions.NotFound):
        nova.servers.get("8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")


def test_libcloud_leads_a_server_through_its_life(cloud: Cloud) -> None:
    driver = get_driver(Provider.OPENSTACK)(
        "admin", cloud.password, ex_tenant_name="admin", ex_force_auth_version="3.x_password", ex_domain_name="Default",
        ex_force_auth_url=f"http://127.0.0.1:{cloud.port}/identity", api_version="2.2",
        ex_force_service_region="RegionOne")
    node = driver.create_node(name="cloud1", size=driver.list_sizes()[0], image=driver.list_images()[0],
                              networks=driver.ex_list_networks()[:1])
    ((node, addresses),) = driver.wait_until_running([node], wait_period=0.2, timeout=60, ssh_interface="private_ips")
    assert addresses == driver.ex_get_node_details(node.id).private_ips
    for act, state in ((driver.ex_stop_node, "stopped"), (driver.ex_start_node, "active"),
                       (driver.ex_pause_node, "paused"), (driver.ex_unpause_node, "active")):
        assert act(node)
        until(lambda: driver.ex_get_node_details(node.id).extra["vm_state"] == state)  # noqa: B023 - it is called at once
    driver.ex_set_metadata(node, {"a": "b"})
    assert driver.ex_get_metadata(node) == {"a": "b"}
    assert driver.create_image(node, "of cloud1").name == "of cloud1"
    key = driver.create_key_pair("cloud1")
    assert key.private_key and driver.delete_key_pair(key)
    for listed in (driver.ex_list_security_groups, driver.ex_list_ports, driver.list_nodes):
        assert listed()
    assert driver.list_volumes() == [] and driver.ex_list_floating_ips() == []
    assert driver.destroy_node(node)
    until(lambda: node.id not in [one.id for one in driver.list_nodes()])
