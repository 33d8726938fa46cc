# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of ports in DNS."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from magnetar_core.errors import InvalidRequest
from tests.support.control.serving import ADMIN, ALICE, Asker


@pytest.fixture
def named(ask: Asker, lan: Any) -> Any:
    """A network with a domain."""
    return lan(ask, dns_domain="Lab.example")


def _port(ask: Asker, network: Any, status: int | None = None, **fields: Any) -> Any:
    answer = ask("POST", "/v2.0/ports", {"port": {"network_id": network["id"], **fields}}, status)
    return answer.get("port") or answer["NeutronError"]


def test_a_port_is_called_by_its_name_in_the_domain_of_its_network(ask, service, engine, named, lan):
    assert named["dns_domain"] == "lab.example."
    port = _port(ask, named, dns_name="Web")
    address = port["fixed_ips"][0]["ip_address"]
    assert port["dns_name"] == "web"
    assert port["dns_assignment"] == [{"hostname": "web", "ip_address": address, "fqdn": "web.lab.example."}]
    plain = _port(ask, lan(ask, "10.2.0.0/24"), dns_name="db")
    dashed = plain["fixed_ips"][0]["ip_address"].replace(".", "-")
    unnamed = ask("PUT", f"/v2.0/ports/{plain['id']}", {"port": {"dns_name": ""}})["port"]
    assert unnamed["dns_assignment"][0]["hostname"] == f"host-{dashed}"
    service.worker.round()
    assert engine.port(port["id"]).names == ("web", "web.lab.example")
    assert engine.units[f"network/{named['id']}"].domain == "lab.example"
    ask("PUT", f"/v2.0/networks/{named['id']}", {"network": {"dns_domain": "other.example."}})
    service.worker.round()
    assert engine.port(port["id"]).names == ("web", "web.other.example")
    ask("PUT", f"/v2.0/networks/{named['id']}", {"network": {"dns_domain": ""}})
    service.worker.round()
    assert engine.port(port["id"]).names == ()
    assert [one["id"] for one in ask("GET", "/v2.0/ports?dns_name=web")["ports"]] == [port["id"]]


@pytest.mark.parametrize(("path", "body", "word"), [
    ("networks", {"network": {"dns_domain": "no domain"}}, "dns_domain"),
    ("networks", {"network": {"dns_domain": "a..b"}}, "dns_domain"),
    ("networks", {"network": {"dns_domain": "x" * 64}}, "dns_domain"),
    ("networks", {"network": {"dns_domain": ".".join(["abc"] * 60)}}, "dns_domain"),
    ("networks", {"network": {"dns_domain": "x.example", "shared": True}}, "several projects"),
    ("networks", {"network": {"dns_domain": "x.example", "provider:network_type": "nat"}}, "type ovn"),
    ("networks", {"network": {"dns_domain": "x.example", "provider:network_type": "flat",
                              "provider:physical_network": "p"}}, "type ovn"),
    ("ports", {"port": {"dns_name": "www.example"}}, "dns_name"), ("ports", {"port": {"dns_name": "-a"}}, "dns_name"),
    ("ports", {"port": {"dns_name": ["a"]}}, "dns_name"),
    ("floatingips", {"floatingip": {"dns_name": "www"}}, "no DNS outside"),
    ("floatingips", {"floatingip": {"dns_domain": ["www"]}}, "no DNS outside")])
def test_what_is_no_name_is_refused(ask, named, outside, path, body, word):
    (inner,) = body.values()
    inner.update({"ports": {"network_id": named["id"]},
                  "floatingips": {"floating_network_id": outside["id"]}}.get(path, {}))
    assert word in ask.as_(ADMIN)("POST", f"/v2.0/{path}", body, status=400)["NeutronError"]["message"]


def test_a_network_with_a_domain_is_one_projects(ask, named):
    admin = ask.as_(ADMIN)
    path, policy = f"/v2.0/networks/{named['id']}", {"object_type": "network", "object_id": named["id"],
                                                     "action": "access_as_shared", "target_tenant": "blue"}
    admin("PUT", path, {"network": {"shared": True}}, status=400)
    ask("POST", "/v2.0/rbac-policies", {"rbac_policy": policy}, status=400)
    ask("PUT", path, {"network": {"dns_domain": ""}})
    ask("POST", "/v2.0/rbac-policies", {"rbac_policy": policy})
    ask("PUT", path, {"network": {"dns_domain": "x.example"}}, status=400)


def test_ports_of_servers_are_called_as_these_are(ask, service, named):
    server = str(uuid.uuid4())
    (wish,) = service.check_requested(ALICE, [{"uuid": named["id"]}])
    (nic,) = service.allocate(ALICE, server, [wish], hostname="Web1.example.org")
    assert ask("GET", f"/v2.0/ports/{nic['port_id']}")["port"]["dns_name"] == "web1"
    free = _port(ask, named)
    (wish,) = service.check_requested(ALICE, [{"port": free["id"]}])
    service.allocate(ALICE, server, [wish], hostname="web1")
    assert ask("GET", f"/v2.0/ports/{free['id']}")["port"]["dns_name"] == "web1"
    service.release(server, free["id"])
    assert ask("GET", f"/v2.0/ports/{free['id']}")["port"]["dns_name"] == ""
    called = _port(ask, named, dns_name="db")
    (wish,) = service.check_requested(ALICE, [{"port": called["id"]}])
    assert wish["dns_name"] == "db"
    with pytest.raises(InvalidRequest, match="Value db assigned to dns_name attribute does not match"):
        service.allocate(ALICE, str(uuid.uuid4()), [wish], hostname="web1")
    service.allocate(ALICE, str(uuid.uuid4()), [wish], hostname="db")
