# SPDX-License-Identifier: GPL-3.0-or-later
"""What the filter is told of servers' NICs, on a fake host: from their documents, and at once."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from magnetar_agent.host.networks import GroupRule, Lease, Port, PortGroup, tap_name
from magnetar_agent.host.port_security import PortSecurity
from magnetar_agent.metadata.service import MetadataService
from magnetar_core.errors import HypervisorError, InvalidField
from tests.support.waiting import eventually
from tests.unit.agent.conftest import Host

MAC = "52:54:00:00:00:77"


def ports(host: Host) -> set[Port]:
    """Those that are filtered now."""
    return set(host.fake.filtered.ports) if host.fake.filtered else set()


def becomes(host: Host, **port: Any) -> None:
    """Wait until the server's one NIC is filtered so."""
    tap = tap_name(host.agent.host.settings.state_dir, host.show()["id"], MAC)
    eventually(lambda: ports(host) == {Port(tap, MAC, **port)})


def test_a_nic_follows_its_document(host: Host) -> None:
    host.server(networks=[{"bridge": "br0", "mac": MAC}])
    assert f'<target dev="{tap_name(host.agent.host.settings.state_dir, host.show()["id"], MAC)}"/>' in host.fake.xml(
        host.show()["id"])
    becomes(host, ipv4=None, ipv6=None)
    host.server(networks=[{"bridge": "br0", "mac": MAC, "address": "192.0.2.7/24"}])
    becomes(host, ipv4=("192.0.2.7",), ipv6=None)
    more = ["192.0.2.16/28", "2001:db8::7"]
    host.server(networks=[{"bridge": "br0", "mac": MAC, "address": "192.0.2.7", "allowed_addresses": more}])
    becomes(host, ipv4=("192.0.2.7", "192.0.2.16/28"), ipv6=("2001:db8::7",))
    host.server(networks=[{"bridge": "br0", "mac": MAC, "port_security": False}])
    becomes(host, secure=False)
    done = host.server(networks=[{"bridge": "br0", "mac": MAC, "port_security": True}])
    assert done.changed and host.show()["power_state"] == "running"
    becomes(host, ipv4=("192.0.2.7",), ipv6=None)  # left out, an address stays
    host.ensure("server", "web1", None)
    eventually(lambda: not ports(host))


def test_nobody_looks_where_nics_stay_as_they_are(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is written several times while it is made or started."""
    host.server(networks=[{"bridge": "br0", "mac": MAC}])
    becomes(host, ipv4=None, ipv6=None)
    told: list[str] = []
    monkeypatch.setattr(host.agent.port_security, "_todo", _Told(told))
    host.server(power="off")
    host.server(power="running")
    assert not told
    host.server(networks=[])
    assert told == [host.show()["id"]]


class _Told:
    """Takes what the thread is told."""

    def __init__(self, told: list[str]) -> None:
        self.put = told.append


def test_a_network_of_the_agents(host: Host) -> None:
    """DHCP says the address where no document does; without DHCP nobody knows it, but it is never the host's."""
    host.ensure("network", "lan", {"mode": "nat", "cidr": "10.9.9.0/24"})
    host.server(networks=[{"network": "lan", "mac": MAC}])
    becomes(host, dhcp=True)
    assert host.fake.filtered and host.fake.filtered.bridges == {"magbr0"}
    host.fake.lease("lan", Lease(MAC, "10.9.9.77", 4))
    host.fake.flush_filters()
    eventually(lambda: host.fake.leased)
    becomes(host, dhcp=True)
    assert [address for _tap, address in host.fake.leased] == ["10.9.9.77"]
    host.server(networks=[{"network": "lan", "mac": MAC, "address": "10.9.9.7"}])
    becomes(host, ipv4=("10.9.9.7",))
    host.restart()
    becomes(host, ipv4=("10.9.9.7",))


def test_a_network_without_dhcp(host: Host) -> None:
    host.ensure("network", "lan", {"mode": "isolated", "cidr": "10.9.9.0/24", "dhcp": False})
    host.server(networks=[{"network": "lan", "mac": MAC}])
    becomes(host, ipv4=None, not_from=("10.9.9.1",))


def test_security_groups(host: Host) -> None:
    """What the documents of its groups say; without one, nothing passes. Addresses of this host it knows itself."""
    web, peers, other = (f"{at}c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d" for at in "123")
    host.server(networks=[{"bridge": "br0", "mac": MAC, "address": "192.0.2.7", "security_groups": [web, peers]}])
    becomes(host, ipv4=("192.0.2.7",), ipv6=None, groups=(web, peers))
    mine = frozenset({"192.0.2.7"})

    def groups() -> dict[str, PortGroup]:
        return {one.id: one for one in host.fake.filtered.groups} if host.fake.filtered else {}

    assert groups() == {web: PortGroup(web, (), mine), peers: PortGroup(peers, (), mine)}
    rule = {"direction": "ingress", "ethertype": "IPv4", "protocol": 6, "port_range_min": 22, "port_range_max": 22,
            "remote_ip_prefix": "192.0.2.1/24"}
    named = {"direction": "egress", "ethertype": "IPv6", "remote_group": other}
    host.ensure("group_filter", web, {"name": web, "revision": 2, "rules": [rule, named], "members": ["192.0.2.9"]})
    told = (GroupRule("ingress", 4, 6, 22, 22, "192.0.2.0/24"), GroupRule("egress", 6, group=other))
    eventually(lambda: groups()[web] == PortGroup(web, told, mine | {"192.0.2.9"}))
    assert groups()[other] == PortGroup(other)
    host.ensure("group_filter", web, {"name": web, "revision": 1, "rules": []})  # which is older
    host.ensure("group_filter", other, {"name": other, "members": ["2001:db8::7"]})
    eventually(lambda: groups()[other].members == {"2001:db8::7"})
    assert groups()[web].rules == told
    host.ensure("group_filter", web, None)
    eventually(lambda: groups()[web].rules == ())
    host.server(networks=[{"bridge": "br0", "mac": MAC, "security_groups": None}])
    becomes(host, ipv4=("192.0.2.7",), ipv6=None)
    assert groups() == {}


@pytest.mark.parametrize(("field", "rule"), [
    ("remote_ip_prefix", {"remote_ip_prefix": "192.0.2.0/33"}),
    ("remote_ip_prefix", {"remote_ip_prefix": "2001:db8::/64"}),
    ("port_range_min", {"port_range_min": 22, "port_range_max": 22}),
    ("port_range_min", {"protocol": 6, "port_range_min": 9}),
    ("port_range_min", {"protocol": 6, "port_range_min": 9, "port_range_max": 8}),
    ("port_range_min", {"protocol": 1, "port_range_min": 256}),
    ("remote_group", {"remote_ip_prefix": "192.0.2.0/24", "remote_group": "1c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"})])
def test_rules_that_the_kernel_would_refuse(host: Host, field: str, rule: dict[str, Any]) -> None:
    id = "1c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"
    with pytest.raises(InvalidField) as error:
        host.ensure("group_filter", id, {"name": id, "rules": [{"direction": "ingress", "ethertype": "IPv4", **rule}]})
    assert error.value.details["field"] == f"rules[0].{field}"


def test_groups_without_port_security(host: Host) -> None:
    with pytest.raises(InvalidField, match="need port_security"):
        host.server(networks=[{"bridge": "br0", "port_security": False, "security_groups": []}])


def test_one_that_cannot_be_loaded_is_told_of_and_tried_again(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    host.fake.fail_next("filter_ports", HypervisorError("nft is not there"))
    host.server(networks=[{"bridge": "br0", "mac": MAC}])
    eventually(lambda: "not filtered as they should be: nft is not there" in caplog.text)
    host.agent.port_security._todo.put("there")  # a look of its own
    becomes(host, ipv4=None, ipv6=None)
    eventually(lambda: host.agent.port_security.status() == {"ports": 1, "reason": ""})


@pytest.mark.parametrize(("of", "look"), [("port_security", "there"), ("metadata", ("all", ""))])
def test_an_agent_that_ends_waits_for_no_more_changes(host: Host, monkeypatch: pytest.MonkeyPatch, of: str,
                                                      look: Any) -> None:
    """What it has gathered so far is done."""
    keeper: PortSecurity | MetadataService = getattr(host.agent, of)
    begun, wait = threading.Event(), keeper._ending.wait
    monkeypatch.setattr(sys.modules[type(keeper).__module__], "GATHER", 600.0)
    monkeypatch.setattr(keeper._ending, "wait", lambda seconds: begun.set() or wait(seconds))

    def gathers() -> bool:
        """It may have heard of the server while it gathered for the first time, as it was before."""
        keeper._todo.put(look)
        return begun.is_set()

    host.server(networks=[{"bridge": "br0", "mac": MAC}])
    eventually(gathers)
    host.agent.close()
    assert not keeper._thread.is_alive()
    becomes(host, ipv4=None, ipv6=None)
