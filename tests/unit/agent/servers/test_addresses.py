# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses that NICs are given: answered by DHCP of the agent's networks, shown, told to the guest, and refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from magnetar_agent.host.networks import Lease
from magnetar_agent.metadata import guest_data
from magnetar_agent.metadata.guest_data import NicAddress
from magnetar_agent.servers.nics import addresses
from magnetar_core.errors import Conflict, HypervisorError, InvalidField
from tests.support.agent.configdrive import GUEST, NIC, read
from tests.support.agent.pair import Pair
from tests.unit.agent.conftest import SMALL, Host

MAC, OTHER = "52:54:00:00:00:77", "52:54:00:00:00:78"
LAN = {"mode": "nat", "cidr": "192.168.100.0/24"}


@pytest.fixture
def lan(host: Host) -> Host:
    """A host with a network of the agent's."""
    host.ensure("network", "lan", LAN)
    return host


def card(address: Any = "192.168.100.7", mac: str = MAC, **more: Any) -> dict[str, Any]:
    return {"network": "lan", "mac": mac, "address": address, **more}


def drive(host: Host) -> tuple[NicAddress | None, ...]:
    document = host.agent.host.documents.find("server", "web1")
    assert document
    return tuple(addresses.for_config_drive(host.agent.host, nic) for nic in document.want["networks"])


def test_dhcp_gives_it_as_long_as_the_server_has_it(lan: Host) -> None:
    want = {"flavor": SMALL, "image": None, "networks": [card()]}
    predicted = lan.ensure("server", "web1", want, dry_run=True)
    done = lan.server(networks=[card()])
    verbs = [step.verb for step in done.steps]
    assert verbs == [step.verb for step in predicted.steps] and verbs.index("reserve") < verbs.index("start")
    assert lan.fake.reserved("lan") == {MAC: "192.168.100.7"}
    shown = {"addr": "192.168.100.7", "version": 4, "mac": MAC, "source": "fixed"}
    assert done.resource["addresses"] == {"lan": [shown]} and done.resource["networks"][0]["address"] == shown["addr"]
    lan.fake.lease("lan", Lease(MAC, "192.168.100.7", 4))
    lan.fake.lease("lan", Lease(MAC, "fd00::7", 6))
    assert [one["source"] for one in lan.show()["addresses"]["lan"]] == ["fixed", "lease"]
    assert lan.server(power="off").resource["addresses"] == {"lan": [shown]}
    assert not lan.server(networks=[card()]).changed and not lan.server(networks=[{"network": "lan"}]).changed
    lan.ensure("server", "web1", None)
    assert lan.fake.reserved("lan") == {} and not lan.fake.leases("lan")


@pytest.mark.parametrize("power", ["running", "off"])
def test_it_changes_and_goes(lan: Host, power: str) -> None:
    lan.server(networks=[card(), card("192.168.100.8", OTHER)], power=power)
    plugged = lan.fake.domain(lan.show()["id"])
    assert lan.server(networks=[card("192.168.100.9"), card(None, OTHER)]).changed
    assert lan.fake.reserved("lan") == {MAC: "192.168.100.9"}
    now = lan.fake.domain(lan.show()["id"])
    assert plugged and now and now.nics == plugged.nics and now.state == plugged.state
    lan.server(networks=[{"bridge": "br0", "mac": MAC}])
    assert lan.fake.reserved("lan") == {}


def test_interfaces_have_one_too(lan: Host) -> None:
    lan.server()
    key, want = f"web1:{MAC}", {"server": "web1", **card()}
    done = lan.ensure("interface_attachment", key, want)
    assert done.resource["address"] == "192.168.100.7" and done.resource["addresses"][0]["source"] == "fixed"
    assert lan.fake.reserved("lan") == {MAC: "192.168.100.7"}
    assert not lan.ensure("interface_attachment", key, want).changed
    assert lan.ensure("interface_attachment", key, {**want, "address": "192.168.100.8"}).changed
    assert lan.fake.reserved("lan") == {MAC: "192.168.100.8"}
    lan.ensure("interface_attachment", key, None)
    assert lan.fake.reserved("lan") == {}


def test_a_network_that_is_made_again_knows_it(lan: Host) -> None:
    lan.server(networks=[card()])
    lan.fake.remove_network("lan")
    lan.ensure("network", "lan", LAN)
    assert lan.fake.reserved("lan") == {MAC: "192.168.100.7"}


@pytest.mark.parametrize(("address", "rule"), [
    ("192.168.101.7", "must lie in 192.168.100.2 to 192.168.100.254"), ("192.168.100.1", "must lie in"),
    ("192.168.100.255", "must lie in"), ("192.168.100.7/25", "must lie in"), ("192.168.100.256", "must be an IPv4"),
    ("fd00::1", "must be an IPv4"), ("lan.example", "must be an IPv4"), (7, "must be"),
])
def test_what_does_not_fit_is_refused(lan: Host, address: Any, rule: str) -> None:
    with pytest.raises(InvalidField, match=rf"networks\[0\]\.address: {rule}"):
        lan.server(networks=[card(address)])
    assert lan.agent.host.documents.list("server") == [] and lan.fake.reserved("lan") == {}


def test_an_address_that_is_taken_is_refused(lan: Host) -> None:
    lan.server("db1", networks=[card()])
    with pytest.raises(Conflict, match=r"networks\[0\]\.address: 192.168.100.7 belongs to server 'db1'"):
        lan.server(networks=[card(mac=OTHER)])
    with pytest.raises(InvalidField, match=r"networks\[1\]\.address: must differ"):
        lan.server(networks=[card("192.168.100.9", OTHER), card("192.168.100.9", "52:54:00:00:00:79")])
    lan.fake.lease("lan", Lease(MAC, "192.168.100.30", 4))
    with pytest.raises(Conflict, match="DHCP has given 192.168.100.30 to server 'db1'"):
        lan.server(networks=[card("192.168.100.30", OTHER)])
    assert lan.server("web2", networks=[{"bridge": "br0", "address": "192.168.100.7"}]).changed  # another wire


def test_on_a_bridge_it_is_told_only(lan: Host) -> None:
    done = lan.server(networks=[{"bridge": "br0", "mac": MAC, "address": "192.0.2.7/25"},
                                {"bridge": "br0", "mac": OTHER, "address": "192.0.2.8"}])
    assert [(one["addr"], one["source"]) for one in done.resource["addresses"]["br0"]] == [
        ("192.0.2.7", "fixed"), ("192.0.2.8", "fixed")]
    assert lan.fake.reserved("lan") == {}
    assert drive(lan) == (NicAddress("192.0.2.7", 25, dhcp=False), NicAddress("192.0.2.8", None, dhcp=True))
    with pytest.raises(InvalidField, match="must be an address that a guest can have"):
        lan.server("web2", networks=[{"bridge": "br0", "address": "127.0.0.1"}])


def test_without_dhcp_the_guest_sets_it_itself(lan: Host) -> None:
    lan.ensure("network", "static", {"mode": "nat", "cidr": "192.168.101.0/24", "dhcp": False})
    lan.server(networks=[{"network": "static", "mac": MAC, "address": "192.168.101.7"}, card(mac=OTHER)])
    assert lan.fake.reserved("static") == {} and lan.fake.reserved("lan") == {OTHER: "192.168.100.7"}
    assert drive(lan) == (NicAddress("192.168.101.7", 24, False, "192.168.101.1", "192.168.101.1"),
                          NicAddress("192.168.100.7", 24, True, "192.168.100.1", "192.168.100.1"))


def test_the_config_drive_says_so() -> None:
    def told(address: NicAddress) -> tuple[Any, Any]:
        nic = replace(NIC, address=address, dns=())
        data: Any = read("openstack/latest/network_data.json", replace(GUEST, nics=(nic,)))
        hidden = ("id", "link", "network_id", "services")
        return {k: v for k, v in data["networks"][0].items() if k not in hidden}, data["services"]

    mask = "255.255.255.0"
    assert told(NicAddress("192.0.2.7", 24, True, "192.0.2.1", "192.0.2.1")) == (
        {"type": "ipv4_dhcp", "ip_address": "192.0.2.7", "netmask": mask}, [])
    assert told(NicAddress("192.0.2.7", None, True)) == ({"type": "ipv4_dhcp", "ip_address": "192.0.2.7"}, [])
    assert told(NicAddress("192.0.2.7", 24, False, "192.0.2.1", "192.0.2.1")) == (
        {"type": "ipv4", "ip_address": "192.0.2.7", "netmask": mask,
         "routes": [{"network": guest_data.ANY, "netmask": guest_data.ANY, "gateway": "192.0.2.1"}]},
        [{"type": "dns", "address": "192.0.2.1"}])


@pytest.mark.parametrize("method", ["reserve", "define", "start"])
def test_a_making_that_fails_reserves_nothing(lan: Host, method: str) -> None:
    lan.fake.fail_next(method, HypervisorError("no"))
    with pytest.raises(HypervisorError):
        lan.server(networks=[card()])
    assert lan.fake.reserved("lan") == {} and lan.agent.host.documents.list("server") == []
    assert lan.server(networks=[card()]).resource["addresses"]


def test_it_goes_along_to_another_host(pair: Pair) -> None:
    for kvm in (pair.one, pair.two):
        kvm.side().client.ensure("network", "lan", LAN)
    id = pair.make(networks=[card()])
    assert pair.one.fake.reserved("lan") == {MAC: "192.168.100.7"}
    pair.migrate()
    assert pair.two.fake.reserved("lan") == {MAC: "192.168.100.7"} and pair.one.fake.reserved("lan") == {}
    assert pair.two.runs(id) and pair.two.side().client.get("server", id)["addresses"]["lan"][0]["source"] == "fixed"
    pair.one.side().client.ensure("server", "web2", {"flavor": SMALL, "image": None, "networks": [card(mac=OTHER)]})
    with pytest.raises(Conflict, match="belongs to server 'web1'"):
        pair.migrate("web2")
