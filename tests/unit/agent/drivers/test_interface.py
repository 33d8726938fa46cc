# SPDX-License-Identifier: GPL-3.0-or-later
"""NICs of servers on a fake host: attached and detached, live and cold, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from magnetar_agent.reconcile import reconcile
from magnetar_core.errors import Ambiguous, Conflict, Immutable, InvalidField, MagnetarError, NotFound
from magnetar_core.kinds import BY_NOUN
from tests.unit.agent.conftest import Host

KIND = BY_NOUN["interface_attachment"]
MAC = "52:54:00:00:00:77"


def attach(host: Host, nic: str = "br0", server: str = "web1", dry_run: bool = False, **want: Any) -> Any:
    given = {"server": server, **({"bridge": nic} if nic == "br0" and "network" not in want else {}), **want}
    policy = {"on_immutable": given.pop("on_immutable")} if "on_immutable" in given else {}
    return host.ensure("interface_attachment", f"{server}:{nic}", given, dry_run=dry_run, **policy)


def detach(host: Host, nic: str = "br0", server: str = "web1", dry_run: bool = False) -> Any:
    return host.ensure("interface_attachment", f"{server}:{nic}", None, dry_run=dry_run)


def macs(host: Host) -> list[str]:
    """MACs of the server: in its document, while it runs, and at its next start."""
    shown = host.show()
    live, kept = host.fake.running(shown["id"]), host.fake.domain(shown["id"])
    found = [nic["mac"] for nic in shown["networks"]]
    assert found == [nic.mac for nic in kept.nics]
    assert live is None or sorted(found) == sorted(nic.mac for nic in live.nics)
    return found


@pytest.mark.parametrize("power", ["running", "off", "paused"])
def test_attach_and_detach(host: Host, power: str) -> None:
    host.server(networks=[{"bridge": "br0"}], power=power)
    first = macs(host)
    predicted = attach(host, MAC, bridge="br0", mac=MAC, tag="back", dry_run=True)
    done = attach(host, MAC, bridge="br0", mac=MAC, tag="back")
    assert [s.verb for s in predicted.steps] == [s.verb for s in done.steps]
    assert ("plug" in [s.verb for s in done.steps]) == (power != "off")
    assert macs(host) == [*first, MAC]
    assert (done.resource["mac"], done.resource["model"], done.resource["server_name"]) == (MAC, "virtio", "web1")
    assert not attach(host, MAC, bridge="br0", mac=MAC).changed
    assert not host.server().changed and not host.server(networks=host.show()["networks"]).changed
    shown = reconcile.show_resource(host.agent.drivers, KIND, f"web1:{MAC}")
    assert shown == reconcile.show_resource(host.agent.drivers, KIND, shown["id"]) and shown["tag"] == "back"
    found = reconcile.list_resources(host.agent.drivers, KIND, {"server_name": ["web1"]})
    assert [one["mac"] for one in found] == [*first, MAC]
    assert detach(host, MAC, dry_run=True).changed and detach(host, MAC).changed and macs(host) == first
    assert not detach(host, MAC).changed


def test_one_on_each_network(host: Host) -> None:
    host.ensure("network", "lan", {"cidr": "10.99.0.0/24"})
    host.server()
    drawn = attach(host, "lan", network="lan").resource["mac"]
    assert not attach(host, "lan", network="lan").changed and macs(host) == [drawn]
    attach(host)
    with pytest.raises(MagnetarError, match="web1"):
        host.ensure("network", "lan", None)
    detach(host, "lan")
    assert host.ensure("network", "lan", None).changed and len(macs(host)) == 1


def test_what_differs_is_not_changed_in_silence(host: Host) -> None:
    host.server(networks=[{"bridge": "br0", "mac": MAC}])
    with pytest.raises(Immutable, match="model cannot change from 'virtio' to 'e1000e'"):
        attach(host, model="e1000e")
    ignored = attach(host, model="e1000e", on_immutable="ignore")
    assert not ignored.changed and "ignored" in ignored.warnings[0]
    assert attach(host, model="e1000e", on_immutable="recreate").resource["model"] == "e1000e"
    assert [nic.model for nic in host.fake.running(host.show()["id"]).nics] == ["e1000e"] and macs(host) == [MAC]


@pytest.mark.parametrize(("want", "why"), [
    ({}, "network: or bridge, port or physical_network must say"),
    ({"network": "nope"}, "there is none called 'nope'"),
    ({"bridge": "br9"}, "there is none called 'br9'"),
    ({"bridge": "br0", "network": "lan"}, "one of them only"),
    ({"mac": MAC}, "where the new NIC goes"),
    ({"bridge": "br0", "server": "nope"}, "server: must name a server"),
], ids=str)
def test_refused(host: Host, want: dict[str, Any], why: str) -> None:
    host.server()
    with pytest.raises(InvalidField, match=why):
        host.ensure("interface_attachment", "web1:x", {"server": "web1", **want})
    assert macs(host) == []


def test_a_mac_of_another_server(host: Host) -> None:
    host.server(networks=[{"bridge": "br0", "mac": MAC}])
    host.server("web2")
    with pytest.raises(Conflict, match="belongs to server 'web1'"):
        attach(host, MAC, "web2", bridge="br0", mac=MAC)


def test_two_on_one_bridge_need_a_mac(host: Host) -> None:
    host.server(networks=[{"bridge": "br0"}, {"bridge": "br0"}])
    with pytest.raises(Ambiguous, match="2 NICs there"):
        detach(host)
    with pytest.raises(NotFound, match="SERVER:MAC"):
        reconcile.show_resource(host.agent.drivers, KIND, "web1:nope")
    assert not detach(host, "nope").changed and not detach(host, server="nope").changed


def test_a_guest_that_refuses_keeps_its_nic(host: Host) -> None:
    host.server(networks=[{"bridge": "br0", "mac": MAC, "tag": "front"}])
    host.agent.host.settings = dataclasses.replace(host.agent.host.settings, detach_timeout=0.1)
    host.fake.deaf.add(host.show()["id"])
    before = host.show()["networks"]
    with pytest.raises(Conflict, match=f"NIC {MAC} is still there"):
        detach(host)
    assert macs(host) == [MAC] and host.show()["networks"] == before
    assert not host.server().changed
    host.fake.deaf.clear()
    assert detach(host).changed and macs(host) == []


def test_a_suspended_server_is_left_alone(host: Host) -> None:
    host.server(power="suspended")
    with pytest.raises(Conflict, match="can change only while"):
        attach(host)


def test_check_mode_assumes_what_earlier_tasks_make(host: Host) -> None:
    assert attach(host, dry_run=True).warnings


def test_all_nics_stay_when_the_guest_lets_go_of_some(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.server(networks=[{"bridge": "br0"}] * 2)
    host.agent.host.settings = dataclasses.replace(host.agent.host.settings, detach_timeout=0.3)
    before, detach_one = macs(host), host.fake.detach

    def once(uuid: str, device: Any) -> None:
        detach_one(uuid, device)
        host.fake.deaf.add(uuid)

    monkeypatch.setattr(host.fake, "detach", once)
    with pytest.raises(Conflict, match="did not let go"):
        host.server(networks=[])
    assert macs(host) == before
