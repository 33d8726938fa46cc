# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks of OVN as OpenStack's own client makes them, and what servers show of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import Clients, play, story
from tests.support.control.cloud import Cloud
from tests.support.northbound import LabCentral, external, missing

pytestmark = pytest.mark.slow
Client = Callable[..., str]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    if missing():
        pytest.skip(missing())
    central = LabCentral(tmp_path_factory.mktemp("ovn")).start()
    try:
        with Cloud(hosts=1, ovn_northbound=central.url, ovn_hosts_wait=0.0) as made:
            external(made.admin)
            yield made
    finally:
        central.stop()


@pytest.fixture(scope="module")
def clients(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Clients:
    folder = tmp_path_factory.mktemp("home")
    text = (Path(cloud.parts.settings.state_dir) / "clouds.yaml").read_text()
    (folder / "clouds.yaml").write_text(text.replace("127.0.0.1:8774", f"127.0.0.1:{cloud.port}"))
    return Clients(folder / "clouds.yaml", folder)


@pytest.fixture(scope="module")
def client(clients: Clients) -> Client:
    """``client("floating ip create ext")``: what ``openstack`` says; it must not fail."""
    return lambda words: clients.ask(words).strip()


@pytest.fixture(scope="module")
def server(cloud: Cloud, client: Client) -> dict[str, Any]:
    """Behind a router."""
    lan = client("network create lan -f value -c id")
    client("subnet create --network lan --subnet-range 10.1.0.0/24 lan4")
    client("router create edge")
    client("router set --external-gateway ext edge")
    client("router add subnet edge lan4")
    return cloud.admin.boot("web1", networks=[{"uuid": lan}])


def test_policies_and_parts_of_networks(clients: Clients, server: dict[str, Any]) -> None:
    wrong = play(clients, story("network"))
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.deep(shard="images and clients of one host")
def test_the_trees_of_every_day(clients: Clients, server: dict[str, Any]) -> None:
    wrong = play(clients, story("network_trees"))
    assert not wrong, "\n\n".join(wrong)


def _addresses(cloud: Cloud, server: dict[str, Any]) -> list[tuple[str, str]]:
    found = cloud.admin.server(server["id"])["addresses"]["lan"]
    listed = cloud.admin.get("/v2.1/servers/detail").json["servers"][0]["addresses"]["lan"]
    assert found == listed
    plain = cloud.admin.get(f"/v2.1/servers/{server['id']}/ips/lan").json["lan"]
    assert [one["addr"] for one in plain] == [one["addr"] for one in found]
    return [(one["OS-EXT-IPS:type"], one["addr"]) for one in found]


def test_a_server_shows_its_floating_ip(cloud: Cloud, client: Client, server: dict[str, Any]) -> None:
    ((_fixed, address),) = _addresses(cloud, server)
    floating = client("floating ip create ext -f value -c floating_ip_address")
    client(f"server add floating ip web1 {floating}")
    assert _addresses(cloud, server) == [("fixed", address), ("floating", floating)]
    assert floating in client("server show web1 -f value -c addresses")
    shown = cloud.admin.get("/v1/server/web1").json["addresses"]["lan"]
    assert [(one["addr"], one["source"]) for one in shown] == [(address, "network"), (floating, "floating")]
    assert cloud.admin.get(f"/v2.1/servers/detail?ip={floating.replace('.', '%5C.')}").json["servers"] == []
    client(f"server remove floating ip web1 {floating}")
    assert _addresses(cloud, server) == [("fixed", address)]
    client(f"floating ip delete {floating}")


def test_floating_ips_as_nova_passes_them_on(cloud: Cloud, server: dict[str, Any]) -> None:
    admin, top = cloud.admin, "/v2.1/os-floating-ips"
    assert admin.get("/v2.1/os-floating-ip-pools", "2.1").json == {"floating_ip_pools": [{"name": "ext"}]}
    refused = admin.call("POST", top, {"pool": "public"}, "2.1")
    assert (refused.status, "pools are ext" in refused.json["itemNotFound"]["message"]) == (404, True)
    made = admin.call("POST", top, {}, "2.1").json["floating_ip"]
    assert made == {"id": made["id"], "ip": made["ip"], "fixed_ip": None, "instance_id": None, "pool": "ext"}
    ((_fixed, address),) = _addresses(cloud, server)
    wrong = admin.act(server["id"], "addFloatingIp", {"address": made["ip"], "fixed_address": "10.1.0.1"}, "2.1")
    assert (wrong.status, "10.1.0.1" in wrong.json["badRequest"]["message"]) == (400, True)
    assert admin.act(server["id"], "addFloatingIp", {"address": made["ip"]}, "2.1").status == 202
    assert _addresses(cloud, server) == [("fixed", address), ("floating", made["ip"])]
    second = admin.call("POST", top, {}, "2.1").json["floating_ip"]  # Neutron's 409 is a 400 of Nova
    wrong = admin.act(server["id"], "addFloatingIp", {"address": second["ip"]}, "2.1")
    assert (wrong.status, "already has a floating IP" in wrong.json["badRequest"]["message"]) == (400, True)
    admin.call("DELETE", f"{top}/{second['id']}", version="2.1")
    (listed,) = admin.get(top, "2.1").json["floating_ips"]
    assert listed == {**made, "fixed_ip": address, "instance_id": server["id"]}
    assert admin.get(f"{top}/{made['id']}", "2.1").json == {"floating_ip": listed}
    assert admin.act(server["id"], "removeFloatingIp", {"address": made["ip"]}, "2.1").status == 202
    assert admin.act(server["id"], "removeFloatingIp", {"address": made["ip"]}, "2.1").status == 409
    other = cloud.caller("zoe", "other")
    assert other.get(f"{top}/{made['id']}", "2.1").status == 404
    assert other.call("DELETE", f"{top}/{made['id']}", version="2.1").status == 404
    assert admin.call("DELETE", f"{top}/{made['id']}", version="2.1").status == 202
    assert admin.get(f"{top}/{made['id']}", "2.1").status == 404


def test_a_server_gains_and_loses_addresses_until_2_43(cloud: Cloud, server: dict[str, Any]) -> None:
    admin, id = cloud.admin, server["id"]
    (nic,) = admin.get(f"/v2.1/servers/{id}/os-interface").json["interfaceAttachments"]

    def act(name: str, **args: str) -> tuple[int, str]:
        reply = admin.act(id, name, args, "2.43")
        return reply.status, "" if reply.status == 202 else next(iter(reply.json.values()))["message"]

    assert act("addFixedIp", networkId=nic["net_id"]) == (202, "")
    had = nic["fixed_ips"][0]["ip_address"]
    first, second = sorted((address for _kind, address in _addresses(cloud, server)), key=lambda one: one != had)
    (seen,) = admin.get(f"/v2.1/servers/{id}/os-interface").json["interfaceAttachments"]
    assert {one["ip_address"] for one in seen["fixed_ips"]} == {first, second}
    assert act("removeFixedIp", address=first) == (202, "")
    assert _addresses(cloud, server) == [("fixed", second)]
    status, message = act("removeFixedIp", address=second)  # a port without an address may send from any
    assert (status, "the last address of port" in message) == (400, True)
    status, message = act("removeFixedIp", address=first)
    assert (status, f"Unable to find IP address {first}" in message) == (400, True)
    assert act("addFixedIp", networkId="x")[0] == 404
    assert admin.act(id, "addFixedIp", {"networkId": nic["net_id"]}, "2.44").status == 404
