# SPDX-License-Identifier: GPL-3.0-or-later
"""EC2's public-ipv4 of a guest: the floating IP of its server, also when that changes while the guest runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from magnetar_agent.metadata.guest_data import Guest, ec2_meta_data
from magnetar_control import serve
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from tests.support.control.cloud import Cloud
from tests.support.northbound import external
from tests.support.waiting import eventually


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with patch.object(serve, "engine_of", lambda _settings: FakeEngine()), Cloud(hosts=1) as made:
        external(made.admin)
        yield made


def told(cloud: Cloud, id: str) -> str | None:
    """The floating IP in what the agent tells the guest now."""
    files = [path for path in cloud.folder.glob(f"kvm*/state/documents/server/{id}.json*") if path.suffix != ".part"]
    newest = json.loads(max(files, key=lambda path: path.stat().st_mtime_ns).read_bytes())
    document = newest.get("document", newest)  # a note has more around it
    found: str | None = document["want"]["guest_data"].get("public_ipv4")
    return found


class Site(NamedTuple):
    """A network behind a router to the external network ``ext``, and a server without NICs."""

    lan: str
    ext: str
    server: str


@pytest.fixture
def site(cloud: Cloud) -> Site:
    """The cloud's first."""
    ask = cloud.admin
    lan = ask.post("/network/v2.0/networks", {"network": {"name": "lan"}}).json["network"]["id"]
    subnet = ask.post("/network/v2.0/subnets", {"subnet": {
        "network_id": lan, "cidr": "10.77.0.0/24", "ip_version": 4}}).json["subnet"]["id"]
    ext = ask.get("/network/v2.0/networks?name=ext").json["networks"][0]["id"]
    router = ask.post("/network/v2.0/routers", {"router": {
        "name": "edge", "external_gateway_info": {"network_id": ext}}}).json["router"]["id"]
    ask.put(f"/network/v2.0/routers/{router}/add_router_interface", {"subnet_id": subnet})
    server = ask.boot("web1", networks="none")["id"]
    assert told(cloud, server) is None
    return Site(lan, ext, server)


def attached(cloud: Cloud, site: Site, **wish: str) -> str:
    """The port of a new NIC of the server."""
    reply = cloud.admin.post(f"/v2.1/servers/{site.server}/os-interface", {"interfaceAttachment": wish})
    assert reply.status == 200, reply
    return str(reply.json["interfaceAttachment"]["port_id"])


def floating_ip(cloud: Cloud, site: Site, port: str, **more: str) -> dict[str, Any]:
    """A new floating IP of a port."""
    made = cloud.admin.post("/network/v2.0/floatingips", {"floatingip": {
        "floating_network_id": site.ext, "port_id": port, **more}})
    assert made.status == 201, made
    found: dict[str, Any] = made.json["floatingip"]
    return found


def test_it_follows_the_floating_ip(cloud: Cloud, site: Site) -> None:
    ask, server = cloud.admin, site.server
    floating = floating_ip(cloud, site, attached(cloud, site, net_id=site.lan))
    address = floating["floating_ip_address"]
    eventually(lambda: told(cloud, server) == address, "the guest is told its floating IP")
    path = f"/network/v2.0/floatingips/{floating['id']}"
    assert ask.put(path, {"floatingip": {"port_id": None}}).status == 200
    eventually(lambda: told(cloud, server) is None, "the guest is told that it has none")
    assert ask.act(server, "addFloatingIp", {"address": address}, "2.1").status == 202
    eventually(lambda: told(cloud, server) == address, "the guest is told by Nova's action too")
    assert ask.delete(path).status == 204
    eventually(lambda: told(cloud, server) is None, "the floating IP is deleted")


@pytest.mark.parametrize("by", ["server", "port"])
def test_it_goes_with_its_port(cloud: Cloud, site: Site, by: str) -> None:
    ask, server, port = cloud.admin, site.server, attached(cloud, site, net_id=site.lan)
    address = floating_ip(cloud, site, port)["floating_ip_address"]
    eventually(lambda: told(cloud, server) == address, "the guest is told its floating IP")
    way = f"/v2.1/servers/{server}/os-interface/{port}" if by == "server" else f"/network/v2.0/ports/{port}"
    assert ask.delete(way).status in (202, 204)
    eventually(lambda: told(cloud, server) is None, "the NIC is detached")


def test_it_comes_and_goes_with_a_port_that_stays(cloud: Cloud, site: Site) -> None:
    ask, server = cloud.admin, site.server
    port = ask.post("/network/v2.0/ports", {"port": {"network_id": site.lan}}).json["port"]["id"]
    address = floating_ip(cloud, site, port)["floating_ip_address"]
    assert attached(cloud, site, port_id=port) == port
    eventually(lambda: told(cloud, server) == address, "the guest is told the floating IP of its new port")
    assert ask.delete(f"/v2.1/servers/{server}/os-interface/{port}").status == 202
    eventually(lambda: told(cloud, server) is None, "the NIC is detached")


def test_it_goes_with_its_fixed_address(cloud: Cloud, site: Site) -> None:
    ask, server, port = cloud.admin, site.server, attached(cloud, site, net_id=site.lan)
    assert ask.act(server, "addFixedIp", {"networkId": site.lan}, "2.1").status == 202
    fixed = ask.get(f"/network/v2.0/ports/{port}").json["port"]["fixed_ips"][1]["ip_address"]
    address = floating_ip(cloud, site, port, fixed_ip_address=fixed)["floating_ip_address"]
    eventually(lambda: told(cloud, server) == address, "the guest is told its floating IP")
    assert ask.act(server, "removeFixedIp", {"address": fixed}, "2.1").status == 202
    eventually(lambda: told(cloud, server) is None, "the fixed address is gone, and the floating IP reaches nothing")


def test_ec2_has_it_under_public_ipv4() -> None:
    guest = Guest("5e2b0f6e-0c51-4c1e-8c43-1f0a5d0a7b11", "web", "web.novalocal", b"", public_ipv4="192.0.2.9")
    found = ec2_meta_data(guest)
    assert (found["public-ipv4"], found["public-hostname"]) == ("192.0.2.9", "web.novalocal"), "the latter as at Nova"
