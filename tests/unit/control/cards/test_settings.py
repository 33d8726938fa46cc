# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports by macvtap and of whole cards; and what cards are told of ports, trust and rates."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.agent.cards.made_up import part, plugged
from tests.unit.control.moves.clouds import at

from .equipped import CARDS, NAME, Equipped, Functions, bandwidth_of, held, policy

pytestmark = pytest.mark.slow
LIMIT, PROMISE = ("bandwidth_limit", {"max_kbps": 4500}), ("minimum_bandwidth", {"min_kbps": 2500})


def test_a_port_is_a_whole_card(more: Functions) -> None:
    port = more.port(**{"binding:vnic_type": "direct-physical"})
    id = more.make(port)
    shown = more.shown(port)
    assert shown["binding:profile"] == {
        "pci_slot": "0000:31:00.0", "pci_vendor_info": "8086:1572", "physical_network": "physnet0",
        "device_mac_address": "3c:fd:fe:00:00:01"}
    assert (shown["binding:host_id"], shown["binding:vif_type"]) == ("kvm3", "hostdev_physical")
    assert held(more.cloud)[id] == [("kvm3", {CARDS: 1})]
    another = more.make(more.port(**{"binding:vnic_type": "direct-physical"}), status="ERROR")
    details = more.cloud.admin.server(another)["fault"]["details"]
    assert "lacks cards of physical network physnet0: the server's ports need 1, and" in details, details


def test_a_trusted_port(more: Functions) -> None:
    """Of the virtual functions of kvm1 its settings trust the second."""
    port = more.port(**{"binding:profile": {"trusted": "True"}})
    id = more.make(port)
    mac = more.shown(port)["mac_address"]
    assert plugged(more.cloud.kvm["kvm1"], at(more.cloud, id)["kvm1"]["name"]) == {mac: "0x11 0x1"}
    assert held(more.cloud)[id] == [("kvm1", {f"{NAME}:trusted": 1})]
    assert more.cloud.kvm["kvm1"].fake.functions["ens1", 1] == {"trust": "on"}
    assert more.shown(port)["binding:profile"] == {
        "trusted": "True", "pci_slot": "0000:11:02.1", "pci_vendor_info": "8086:154c", "physical_network": "physnet0"}
    path = f"/network/v2.0/ports/{port}"
    refused = more.cloud.admin.put(path, {"port": {"binding:profile": {"trusted": False}}})
    assert refused.status == 409, refused
    another = more.make(more.port(**{"binding:profile": {"trusted": True}}), status="ERROR")
    details = more.cloud.admin.server(another)["fault"]["details"]
    assert "lacks trusted virtual functions of physical network physnet0: the server's ports need 1, and" in details
    more.cloud.admin.delete(f"/v2.1/servers/{id}")
    assert more.cloud.admin.settled(id) is None
    assert more.cloud.kvm["kvm1"].fake.functions["ens1", 1] == {"trust": "off"}
    assert more.cloud.admin.put(path, {"port": {"binding:profile": {"trusted": False}}}).status == 200


def test_a_port_by_macvtap(more: Functions) -> None:
    port = more.port("tagged", **{"binding:vnic_type": "macvtap"})
    id = more.make(port, host="kvm2")
    assert held(more.cloud)[id] == [("kvm2", {NAME: 1})]
    shown, found = more.shown(port), at(more.cloud, id)["kvm2"]
    [tap] = part(more.cloud.kvm["kvm2"], "interface[@type='direct']", found["name"])
    assert (tap.find("source").get("dev"), tap.find("vlan/tag").get("id")) == ("ens1f0v0",
                                                                               "7")  # type: ignore[union-attr]
    assert (shown["binding:vif_type"], shown["binding:vnic_type"], shown["binding:profile"]["pci_slot"]) == (
        "hw_veb", "macvtap", "0000:21:02.0")
    refused = more.cloud.admin.put(f"/network/v2.0/ports/{port}", {"port": {"binding:vnic_type": "direct"}})
    assert refused.status == 409


def test_a_policy_of_a_virtual_function(more: Functions) -> None:
    """Its card limits what the guest sends, and promises what is claimed of the host."""
    admin = more.cloud.admin
    both = policy(admin, LIMIT, PROMISE)
    port = more.port(qos_policy_id=both)
    more.port(qos_policy_id=both, device_id="zz")  # what users write makes none a server's, and hides none
    id = more.make(port, host="kvm1")
    assert more.cloud.kvm["kvm1"].fake.functions["ens1", 0] == {"max_tx_rate": "4", "min_tx_rate": "3"}
    assert bandwidth_of(more.cloud, id) == [{"NET_BW_EGR_KILOBIT_PER_SEC:physnet0": 2500}]
    [group] = more.shown(port)["resource_request"]["request_groups"]
    assert (group["required"], group["resources"]) == (
        ["CUSTOM_PHYSNET_PHYSNET0", "CUSTOM_VNIC_TYPE_DIRECT"], {"NET_BW_EGR_KILOBIT_PER_SEC": 2500})
    [rule] = [one for one in admin.get(f"/network/v2.0/qos/policies/{both}").json["policy"]["rules"]
              if one["type"] == "bandwidth_limit"]
    path = f"/network/v2.0/qos/policies/{both}/bandwidth_limit_rules"
    for reply in (admin.put(f"{path}/{rule['id']}", {"bandwidth_limit_rule": {"max_kbps": 9000}}),
                  admin.delete(f"{path}/{rule['id']}"),
                  admin.put(f"/network/v2.0/ports/{port}", {"port": {"qos_policy_id": None}})):
        assert reply.status == 409, reply
    admin.delete(f"/v2.1/servers/{id}")
    assert admin.settled(id) is None
    assert more.cloud.kvm["kvm1"].fake.functions["ens1", 0] == {"max_tx_rate": "0", "min_tx_rate": "0"}
    assert admin.put(f"{path}/{rule['id']}", {"bandwidth_limit_rule": {"max_kbps": 9000}}).status == 200
    reply = admin.post(f"/network/v2.0/qos/policies/{both}/dscp_marking_rules", {"dscp_marking_rule": {"dscp_mark": 8}})
    assert reply.status == 409 and "acts on none, as cards limit and promise only" in str(reply.json), reply


def test_a_card_promises_no_more_than_it_lets_through(more: Functions) -> None:
    """Of 1500 and 1600 kbit/s, rounded up and down, the card would take neither."""
    id = more.make(more.port(qos_policy_id=policy(more.cloud.admin, ("bandwidth_limit", {"max_kbps": 1600}), (
        "minimum_bandwidth", {"min_kbps": 1500, "direction": "egress"}))), host="kvm1")
    assert more.cloud.kvm["kvm1"].fake.functions["ens1", 0] == {"max_tx_rate": "1", "min_tx_rate": "1"}
    more.cloud.admin.delete(f"/v2.1/servers/{id}")
    assert more.cloud.admin.settled(id) is None


@pytest.mark.parametrize(("rule", "says"), [
    (("bandwidth_limit", {"max_kbps": 5000, "direction": "ingress"}), "acts on none, as cards limit and promise only"),
    (("bandwidth_limit", {"max_kbps": 5000, "max_burst_kbps": 9}), "max_burst_kbps must be 0, as cards know no bursts"),
    (("dscp_marking", {"dscp_mark": 8}), "acts on none, as cards limit"),
])
def test_policies_that_act_on_no_virtual_function(cloud: Equipped, rule: tuple[str, dict[str, Any]], says: str) -> None:
    body = {"network_id": cloud.networks["plain"], "binding:vnic_type": "macvtap",
            "qos_policy_id": policy(cloud.admin, rule)}
    reply = cloud.admin.post("/network/v2.0/ports", {"port": body})
    assert reply.status == 400 and says in str(reply.json), reply


def test_no_policy_acts_on_a_whole_card(cloud: Equipped) -> None:
    body = {"network_id": cloud.networks["plain"], "binding:vnic_type": "direct-physical",
            "qos_policy_id": policy(cloud.admin, LIMIT)}
    reply = cloud.admin.post("/network/v2.0/ports", {"port": body})
    assert reply.status == 400 and "must be null: nothing limits or marks" in str(reply.json), reply
