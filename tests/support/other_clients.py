# SPDX-License-Identifier: GPL-3.0-or-later
"""Stories of python-novaclient and apache-libcloud, unmodified, with a server of a cloud."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keystoneauth1 import session as keystone
from keystoneauth1.identity import v3
from libcloud.compute.providers import get_driver
from libcloud.compute.types import Provider
from novaclient import client

from .waiting import eventually

#: The newest microversion that novaclient knows.
NOVACLIENT = "2.96"
#: Waits with a long limit: an emulated guest may take a minute.


@contextmanager
def novaclient(port: int, password: str) -> Iterator[Any]:
    """Return a novaclient of the administrator of the cloud at *port*."""
    session = keystone.Session(auth=v3.Password(
        auth_url=f"http://127.0.0.1:{port}/identity/v3", username="admin", password=password, project_name="admin",
        user_domain_id="default", project_domain_id="default"))
    yield client.Client(NOVACLIENT, session=session)
    session.session.close()


@contextmanager
def made_by(nova: Any) -> Iterator[Any]:
    """Create a server of the first image and flavor, and return it when it runs."""
    made = nova.servers.create("nova1", image=nova.glance.list()[0], flavor=nova.flavors.list()[0], nics="none",
                               meta={"a": "b"})
    eventually(lambda: nova.servers.get(made.id).status == "ACTIVE")
    yield made
    made.delete()


def nova_life(nova: Any, server: Any) -> None:
    """Use power actions, rescue, rebuild, shelving and an image of the server; read its actions."""
    image = nova.glance.list()[0]
    for act, status in ((server.stop, "SHUTOFF"), (server.start, "ACTIVE"), (lambda: server.reboot("HARD"), "ACTIVE"),
                        (server.pause, "PAUSED"), (server.unpause, "ACTIVE"), (server.suspend, "SUSPENDED"),
                        (server.resume, "ACTIVE"), (server.rescue, "RESCUE"), (server.unrescue, "ACTIVE"),
                        (lambda: server.rebuild(image), "ACTIVE"), (server.shelve, "SHELVED_OFFLOADED"),
                        (server.unshelve, "ACTIVE")):
        act()
        eventually(lambda: _settled(nova.servers.get(server.id), status))  # noqa: B023 - it is called at once
    made = server.create_image("of nova1")
    eventually(lambda: next(one for one in nova.glance.list() if one.id == made).status == "active")
    assert [one.action for one in nova.instance_action.list(server)][-1] == "create"
    assert nova.instance_action.get(server, nova.instance_action.list(server)[0].request_id).events


def _settled(server: Any, status: str) -> bool:
    assert server.status != "ERROR", server.fault
    return bool(server.status == status and getattr(server, "OS-EXT-STS:task_state") is None)


def libcloud_life(port: int, password: str) -> None:
    """Create a server with a NIC, change its power state, and delete it."""
    driver = get_driver(Provider.OPENSTACK)(
        "admin", password, ex_tenant_name="admin", ex_force_auth_version="3.x_password", ex_domain_name="Default",
        ex_force_auth_url=f"http://127.0.0.1:{port}/identity", api_version="2.2", ex_force_service_region="RegionOne")
    node = driver.create_node(name="cloud1", size=driver.list_sizes()[0], image=driver.list_images()[0],
                              networks=driver.ex_list_networks()[:1])
    ((node, addresses),) = driver.wait_until_running([node], wait_period=0.2, timeout=300,
                                                     ssh_interface="private_ips")
    assert addresses == driver.ex_get_node_details(node.id).private_ips
    for act, state in ((driver.ex_stop_node, "stopped"), (driver.ex_start_node, "active"),
                       (driver.ex_pause_node, "paused"), (driver.ex_unpause_node, "active")):
        assert act(node)
        eventually(lambda: driver.ex_get_node_details(node.id).extra["vm_state"] == state)  # noqa: B023 - it is called at once
    driver.ex_set_metadata(node, {"a": "b"})
    assert driver.ex_get_metadata(node) == {"a": "b"}
    assert driver.create_image(node, "of cloud1").name == "of cloud1"
    key = driver.create_key_pair("cloud1")
    assert key.private_key and driver.delete_key_pair(key)
    for listed in (driver.ex_list_security_groups, driver.ex_list_ports, driver.list_nodes):
        assert listed()
    assert driver.list_volumes() == [] and driver.ex_list_floating_ips() == []
    assert driver.destroy_node(node)
    eventually(lambda: node.id not in [one.id for one in driver.list_nodes()])
