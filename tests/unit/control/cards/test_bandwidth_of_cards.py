# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers with ports that are virtual functions, whose bandwidth is of the cards that these are of: they are placed,
attached, moved and deleted, Placement shows it, and the audit heals it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest

from magnetar_control.conductor.periodic.audit import findings_of_checks
from magnetar_control.conductor.periodic.periodic import Periodic
from magnetar_control.store.hosts.hosts import child_provider_id
from magnetar_core.errors import HypervisorError
from tests.support.control.audited import read_state
from tests.support.control.hardware import act
from tests.support.control.placement import call, get
from tests.support.waiting import eventually
from tests.unit.agent.cards.made_up import card, netdev
from tests.unit.control.evacuate.evacuating import Evacuating
from tests.unit.control.moves.clouds import at, remove

from .equipped import LIVE, Functions, WithCards, found_nothing, policy, serving

pytestmark = pytest.mark.slow
EGRESS = "NET_BW_EGR_KILOBIT_PER_SEC"


class TwoCards(WithCards):
    """Each host has two cards on physnet0 with two virtual functions, which promise 10 and 8 Mbit/s, and 5 Mbit/s for
    other ports there; *policy* is the id of that of ports."""

    policy: str

    def agent_of(self, name: str) -> dict[str, Any]:
        sysfs = self.folder / f"{name}-sys"
        for at_ in (1, 2):
            card(sysfs, f"{name[-1]}{at_}", 2)
            netdev(sysfs, f"0000:{name[-1]}{at_}:00.0", f"ens{at_}", f"3c:fd:fe:00:0{name[-1]}:0{at_}")
        return {"sysfs": sysfs, "pci_device_spec": [{"vendor_id": "8086", "physical_network": "physnet0"}],
                "resource_provider_bandwidths": ["physnet0:5000:5000", "physnet0/ens1:10000:", "physnet0/ens2:8000:"]}


class Promised(Functions):
    """Ports that are promised 6 Mbit/s."""

    cloud: TwoCards

    def promised(self, **more: Any) -> str:
        return self.port(qos_policy_id=self.cloud.policy, **more)

    def on(self, port: str) -> tuple[str, str, str]:
        """Which card of which host gives it its bandwidth, the virtual function there that it is, and the Mbit/s that
        the card was told to promise that."""
        shown = self.shown(port)
        [provider] = shown["binding:profile"]["allocation"].values()
        [name] = [one["name"] for one in get(self.cloud, "/resource_providers", "1.14").json["resource_providers"]
                  if one["uuid"] == provider]
        host, _line, place = name.partition("_")
        slot = shown["binding:profile"]["pci_slot"]
        told = self.cloud.kvm[host].fake.functions[place.partition("/")[2], int(slot[-1])]
        return name, slot, told.get("min_tx_rate", "")


@pytest.fixture(scope="module")
def cloud() -> Iterator[TwoCards]:
    with serving(TwoCards, hosts=2) as made:
        made.policy = policy(made.admin, ("minimum_bandwidth", {"min_kbps": 6000}))
        yield made


@pytest.fixture
def some(cloud: TwoCards) -> Iterator[Promised]:
    found = Promised(cloud)
    yield found
    eventually(lambda: found_nothing(cloud))
    remove(cloud, found.servers)
    for id in found.made:
        assert cloud.admin.delete(f"/network/v2.0/ports/{id}").status == 204
    assert used(cloud) == {}
    for host in cloud.parts.working.states.hosts.values():
        host.pci.freed()


def used(cloud: TwoCards) -> dict[str, int]:
    """What is claimed of bandwidth, by provider."""
    with cloud.parts.api_database.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT name, resource_class, used FROM inventories JOIN hosts ON hosts.id = inventories.host_id").all()
    return {f"{row.name}_{row.resource_class.partition(':')[2]}": row.used for row in rows if row.used}


def test_two_ports_of_a_server_and_what_placement_shows(some: Promised) -> None:
    cloud = some.cloud
    first, second = some.promised(), some.promised(**{"binding:vnic_type": "direct"})
    normal = some.promised(**{"binding:vnic_type": "normal", "port_security_enabled": False})
    refused = some.make(normal, host="kvm1", status="ERROR")
    details = cloud.admin.server(refused)["fault"]["details"]
    assert f"has 5000 of 6000 {EGRESS}:physnet0 left" in details, "what cards have is not for ports of OVN"
    id = some.make(first, second, host="kvm1")
    where = sorted(some.on(one) for one in (first, second))
    assert where == [("kvm1_physnet0/ens1", "0000:11:02.0", "6"),
                     ("kvm1_physnet0/ens2", "0000:12:02.0", "6")]
    assert used(cloud) == {"kvm1_physnet0/ens1": 6000, "kvm1_physnet0/ens2": 6000}
    with cloud.parts.api_database.read() as connection:
        host = connection.exec_driver_sql("SELECT id FROM hosts WHERE name = 'kvm1'").scalar()
    provider = child_provider_id(host, "physnet0/ens1")
    held = get(cloud, f"/allocations/{id}", "1.28").json["allocations"]
    assert held[provider]["resources"] == {EGRESS: 6000}
    for place, types in (("physnet0/ens1", ["DIRECT", "MACVTAP"]), ("physnet0", ["NORMAL", "REMOTE_MANAGED", "VDPA"])):
        shown = get(cloud, f"/resource_providers/{child_provider_id(host, place)}/traits", "1.6").json["traits"]
        assert shown == ["CUSTOM_PHYSNET_PHYSNET0", *(f"CUSTOM_VNIC_TYPE_{one}" for one in types)]
    inventory = get(cloud, f"/resource_providers/{provider}/inventories", "1.0").json["inventories"]
    assert inventory.keys() == {EGRESS} and inventory[EGRESS]["total"] == 10000
    query = f"/allocation_candidates?resources1={EGRESS}:4000&required1=CUSTOM_PHYSNET_PHYSNET0,CUSTOM_VNIC_TYPE_DIRECT"
    found = get(cloud, query, "1.29").json["allocation_requests"]
    assert {next(iter(one["allocations"])) for one in found} >= {provider}
    another = some.make(some.promised(), host="kvm1", status="ERROR")
    assert "has 4000 (ens1), 2000 (ens2) kbit/s egress left on the cards of physnet0, and ports want 6000" in (
        cloud.admin.server(another)["fault"]["details"])


def test_attached_and_detached(some: Promised) -> None:
    admin, first, second, third = some.cloud.admin, some.promised(), some.promised(), some.promised()
    id = some.make(first, host="kvm1")
    path = f"/v2.1/servers/{id}/os-interface"
    assert some.on(first)[0] == "kvm1_physnet0/ens1"
    assert admin.post(path, {"interfaceAttachment": {"port_id": second}}).status == 200
    assert some.on(second)[:2] == ("kvm1_physnet0/ens2", "0000:12:02.0")
    assert some.on(second)[2] == "6"
    refused = admin.post(path, {"interfaceAttachment": {"port_id": third}})
    assert refused.status == 400 and "has not 6000 kbit/s egress on physnet0" in str(refused.json)
    assert admin.call("DELETE", f"{path}/{first}").status == 202
    eventually(lambda: used(some.cloud) == {"kvm1_physnet0/ens2": 6000})
    assert "allocation" not in some.shown(first)["binding:profile"]
    assert admin.post(path, {"interfaceAttachment": {"port_id": third}}).status == 200
    assert some.on(third)[:2] == ("kvm1_physnet0/ens1", "0000:11:02.0")


@pytest.mark.parametrize(("steps", "leaves"), [
    ([("os-migrateLive", {"host": "kvm2", **LIVE}, "ACTIVE", "kvm2")], True),
    ([("migrate", {"host": "kvm2"}, "VERIFY_RESIZE", "kvm2"), ("revertResize", None, "ACTIVE", "kvm1"),
      ("migrate", {"host": "kvm2"}, "VERIFY_RESIZE", "kvm2"), ("confirmResize", None, "ACTIVE", "kvm2")], True),
    ([("shelve", None, "SHELVED_OFFLOADED", None), ("unshelve", None, "ACTIVE", "")], False),
    ([("os-stop", None, "SHUTOFF", "kvm1"), ("os-start", None, "ACTIVE", "kvm1"),
      ("reboot", {"type": "HARD"}, "ACTIVE", "kvm1")], False)],
    ids=["live", "cold, reverted and confirmed", "shelved", "rebooted"])
def test_it_moves_with_its_server(some: Promised, steps: list[tuple[str, Any, str, str | None]], leaves: bool) -> None:
    """Of the other host the first card is full, so that the virtual function is one of the second there."""
    if leaves:
        filler = some.promised()
        some.make(filler, host="kvm2")
        assert some.on(filler)[0] == "kvm2_physnet0/ens1"
    port = some.promised()
    id = some.make(port, host="kvm1")
    assert some.on(port)[:2] == ("kvm1_physnet0/ens1", "0000:11:02.0")
    for action, args, status, host in steps:
        act(some.cloud.admin, id, action, args, status)
        if host is None:
            assert used(some.cloud) == {}
            continue
        number = {"kvm1": 1, "kvm2": 2}.get(host) if leaves else 1
        name, slot, told = some.on(port)
        assert host in name and name.endswith(f"_physnet0/ens{number}"), (action, name)
        assert slot == f"0000:{name[3]}{number}:02.0" and told == "6", (action, slot)
        mine = at(some.cloud, id)[name[:4]]["networks"][0]
        assert mine["card"] == f"ens{number}", action


def test_evacuated(some: Promised) -> None:
    port, admin = some.promised(), Evacuating(some.cloud)
    id = some.make(port, host="kvm2")
    admin.down("kvm2")
    try:
        assert admin.evacuate(id, "2.90").status == 200
        found = some.cloud.admin.settled(id)
        assert found and found["status"] == "ACTIVE", found
        assert some.on(port)[:2] == ("kvm1_physnet0/ens1", "0000:11:02.0")
    finally:
        admin.up("kvm2")
    eventually(lambda: used(some.cloud) == {"kvm1_physnet0/ens1": 6000})


def test_a_build_that_fails_goes_to_a_card_of_another_host(some: Promised) -> None:
    failed: list[str] = []

    def once(name: str, define: Any) -> Any:
        def defined(*given: Any, **named: Any) -> Any:
            if not failed:
                failed.append(name)
                raise HypervisorError("It fails once.")
            return define(*given, **named)
        return defined

    port = some.promised()
    with ExitStack() as patches:
        for name, kvm in some.cloud.kvm.items():
            patches.enter_context(patch.object(kvm.fake, "define", once(name, kvm.fake.define)))
        some.make(port)
    [other] = {"kvm1", "kvm2"} - {*failed}
    assert some.on(port) == (f"{other}_physnet0/ens1", f"0000:{other[-1]}1:02.0", "6")
    assert used(some.cloud) == {f"{other}_physnet0/ens1": 6000}


def test_a_move_to_cards_with_too_little_left_is_refused(some: Promised) -> None:
    some.make(some.promised(), some.promised(), host="kvm2")
    port = some.promised()
    id = some.make(port, host="kvm1")
    reply = some.cloud.admin.post(f"/v2.1/servers/{id}/action", {
        "os-migrateLive": {"host": "kvm2", "block_migration": "auto"}}, "2.30")
    assert reply.status in (202, 400)
    some.cloud.admin.settled(id)
    assert some.cloud.admin.act(id, "migrate", None, "2.60").status == 202
    found = some.cloud.admin.settled(id)
    assert found and found["OS-EXT-SRV-ATTR:host"] == "kvm1"
    assert some.on(port)[0] == "kvm1_physnet0/ens1"


@pytest.mark.parametrize("gone", [False, True], ids=["another card", "gone"])
def test_what_was_changed_by_hand_is_found_and_healed(some: Promised, gone: bool) -> None:
    """The guest's virtual function stays what it is: so does its card, which the host knows where nobody else does."""
    cloud, port, filler = some.cloud, some.promised(), some.promised()
    some.make(filler, host="kvm1")
    id = some.make(port, host="kvm1")
    assert some.on(port)[0] == "kvm1_physnet0/ens2"
    before = call(cloud, "GET", f"/allocations/{id}").json
    held = before["allocations"]
    [(mine, other)] = [(one, child_provider_id(root, "physnet0/ens1")) for one in held for root in held
                       if one == child_provider_id(root, "physnet0/ens2")]
    if gone:
        assert call(cloud, "DELETE", f"/allocations/{id}").status == 204
        assert cloud.admin.delete(f"/v2.1/servers/{some.servers.pop(0)}").status == 204
        eventually(lambda: used(cloud) == {})
    else:
        wrong = {**{one: {"resources": amounts["resources"]} for one, amounts in held.items() if one != mine},
                 other: {"resources": {EGRESS: 1}}}
        body = {**{name: before[name] for name in ("project_id", "user_id", "consumer_type", "consumer_generation")},
                "allocations": wrong}
        assert call(cloud, "PUT", f"/allocations/{id}", body=body).status == 204
        assert used(cloud) == {"kvm1_physnet0/ens1": 6001}
    assert {one.kind for one in findings_of_checks(read_state(cloud.parts.store, cloud.parts.agents,
                                                              cloud.services))} == {
        "unclaimed"}
    periodic = Periodic(cloud.parts.working)
    for _look in range(3):
        periodic.audit()
    assert found_nothing(cloud)
    after = call(cloud, "GET", f"/allocations/{id}").json["allocations"]
    assert after[mine]["resources"] == {EGRESS: 6000} and other not in after
    assert some.on(port)[:2] == ("kvm1_physnet0/ens2", "0000:12:02.0")
