# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts are to be told of which security groups, and what."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.network.security import host_groups
from magnetar_control.services.network.security.security_groups import default_id
from magnetar_control.services.network.subnets import ipam
from magnetar_core.errors import InvalidField
from magnetar_core.kinds.network import MOST_GROUPS
from tests.support.control.counting import counted
from tests.support.control.serving import ADMIN, ALICE, BOB

GROUP = default_id("red")


def server(service, host="kvm1", **wish):
    """A server of ALICE's on a host; its NIC."""
    id = str(uuid.uuid4())
    (nic,) = service.allocate(ALICE, id, service.check_requested(ALICE, [wish] if wish else "auto"))
    service.bind(id, host)
    return id, nic


def test_hosts_that_have_a_group_are_told_of_its_changes(service):
    groups, rules = service.host_groups, service.resources["security_group_rules"]
    server(service)
    assert groups.hosts() == []  # nobody has it yet
    groups.claim("kvm1", GROUP)
    first = groups.document(GROUP)
    groups.mark_group_sent("kvm1", GROUP, first["revision"])
    assert groups.hosts() == []
    (rule,) = rules.create(ALICE, {"security_group_id": GROUP, "direction": "ingress", "protocol": "ipip"})
    assert groups.hosts() == ["kvm1"] and groups.due("kvm1") == ([GROUP], [])
    second = groups.document(GROUP)
    assert second["revision"] > first["revision"]
    assert [one["protocol"] for one in second["rules"] if one not in first["rules"]] == [4]
    rules.delete(ALICE, rule["id"])  # meanwhile
    groups.mark_group_sent("kvm1", GROUP, second["revision"])
    assert groups.hosts() == ["kvm1"]
    third = groups.document(GROUP)
    groups.mark_group_sent("kvm1", GROUP, third["revision"])
    assert groups.hosts() == [] and third["rules"] == first["rules"]
    # What is there otherwise than it should: nothing, too little, too much.
    for found, due in (({GROUP: third["revision"]}, []), ({}, [GROUP]), ({GROUP: first["revision"]}, [GROUP])):
        groups.compare("kvm1", found)
        assert groups.due("kvm1")[0] == due
        groups.mark_group_sent("kvm1", GROUP, third["revision"])
    other = str(uuid.uuid4())
    groups.compare("kvm1", {GROUP: third["revision"], other: 3})
    assert groups.due("kvm1")[0] == [other] and groups.document(other) is None
    groups.gone("kvm1", other)
    assert groups.hosts() == []


def test_a_change_that_is_being_committed_while_a_host_is_told(service):
    groups = service.host_groups
    server(service)
    groups.claim("kvm1", GROUP)
    known = groups.document(GROUP)
    with service.database.write() as connection:
        host_groups.note_changed_units(connection, [f"group/{GROUP}"])
        telling = threading.Thread(target=groups.mark_group_sent, args=("kvm1", GROUP, known["revision"]))
        telling.start()
        telling.join(0.3)
    telling.join()
    assert groups.hosts() == ["kvm1"]


def test_a_default_group_that_is_made_anew(service):
    """Its uuid is the same, and so conductors believe that hosts have it."""
    groups = service.host_groups
    groups.claim("kvm1", default_id("blue"))
    service.resources["security_groups"].list(BOB)
    before = groups.document(default_id("blue"))
    groups.mark_group_sent("kvm1", default_id("blue"), before["revision"])
    service.resources["security_groups"].delete(ADMIN, default_id("blue"))
    assert groups.due("kvm1")[0] == [default_id("blue")] and groups.document(default_id("blue")) is None
    groups.gone("kvm1", default_id("blue"))
    groups.compare("kvm1", {})
    assert groups.hosts() == []
    service.resources["security_groups"].list(BOB)
    assert groups.due("kvm1")[0] == [default_id("blue")]
    assert groups.document(default_id("blue"))["revision"] > before["revision"]


def test_a_dry_run_tells_nobody(service):
    server(service)
    service.host_groups.claim("kvm1", GROUP)
    service.host_groups.mark_group_sent("kvm1", GROUP, service.host_groups.document(GROUP)["revision"])
    service.resources["security_group_rules"].create(
        ALICE, {"security_group_id": GROUP, "direction": "ingress"}, dry=True)
    assert service.host_groups.hosts() == []


def test_ports_that_get_other_groups(service):
    id, nic = server(service)
    (own,) = service.resources["security_groups"].create(ALICE, {"name": "own"})
    service.change_groups("red", id, "own", add=True)
    ((), (port,)) = service.host_groups.due("kvm1")
    assert (port.server, port.mac, port.groups) == (id, nic["mac"], sorted([GROUP, own["id"]]))
    service.resources["ports"].update(ALICE, nic["port_id"], {"security_groups": []})  # meanwhile
    service.host_groups.mark_port_sent("kvm1", port)
    ((), (port,)) = service.host_groups.due("kvm1")
    assert port.groups == []
    service.host_groups.mark_port_sent("kvm1", port)
    assert service.host_groups.hosts() == []
    service.bind(id, "kvm2")  # it moved, and may have taken along what was before
    assert service.host_groups.hosts() == ["kvm2"]
    service.bind(id, "kvm2")
    service.release(id)
    assert service.host_groups.hosts() == []


def test_addresses_matter_elsewhere_on_bridges_only(service):
    _id, first = server(service)
    (flat,) = service.resources["networks"].create(ADMIN, {
        "name": "flat", "type": "flat", "bridge": "br0", "shared": True})
    service.resources["subnets"].create(ADMIN, {"network_id": flat["id"], "cidr": "192.0.2.0/24"})
    service.host_groups.claim("kvm2", GROUP)
    known = service.host_groups.document(GROUP)
    service.host_groups.mark_group_sent("kvm2", GROUP, known["revision"])
    server(service, uuid=first["network_id"])
    assert known["members"] == [] and service.host_groups.hosts() == []
    id, nic = server(service, uuid=flat["id"])
    address = nic["fixed_ips"][0]["ip_address"]
    assert service.host_groups.hosts() == ["kvm2"]
    known = service.host_groups.document(GROUP)
    assert known["members"] == [address]
    service.host_groups.mark_group_sent("kvm2", GROUP, known["revision"])
    service.release(id)
    assert service.host_groups.hosts() == ["kvm2"] and service.host_groups.document(GROUP)["members"] == []


def test_a_server_costs_no_statement_more(sqlite_service):
    """But one, by which hosts hear of addresses that go."""
    id = str(uuid.uuid4())
    sqlite_service.allocate(ALICE, str(uuid.uuid4()), sqlite_service.check_requested(ALICE, "auto"))
    wishes = sqlite_service.check_requested(ALICE, "auto")
    with counted(api=sqlite_service.database) as said:
        sqlite_service.allocate(ALICE, id, wishes)
    assert not [one for _name, one in said if "security_group_hosts" in one or "revision" in one or "groups_due" in one]


@pytest.mark.parametrize("change", [
    lambda store, id: store.create(ALICE, {"name": "loose", "stateful": False}),
    lambda store, id: store.update(ALICE, id, {"stateful": False})])
def test_groups_without_state_are_refused(service, change):
    (own,) = service.resources["security_groups"].create(ALICE, {"name": "own"})
    with pytest.raises(Exception, match="stateful: must be true: answers always pass"):
        change(service.resources["security_groups"], own["id"])


def test_ports_of_the_same_groups_that_are_made_at_once(postgres, monkeypatch):
    """Each has locked the groups before it changes them; with several ports each has some that the other needs."""
    service = EmbeddedNetworks(postgres, limits={"port": -1, "security_group": -1})
    service.bootstrap()
    (flat,) = service.resources["networks"].create(ADMIN, {
        "name": "flat", "type": "flat", "bridge": "br0", "shared": True})
    service.resources["subnets"].create(ADMIN, {"network_id": flat["id"], "cidr": "192.0.2.0/24"})
    one, two = [made["id"] for made in service.resources["security_groups"].create(
        ALICE, {"name": "one"}, {"name": "two"})]
    add_port, told = ipam.add_port, threading.local()
    for each, other in (([[one]], [[one]]), ([[one, two]], [[two, one]]), ([[one], [two]], [[two], [one]])):
        both = threading.Barrier(2, timeout=1.0)

        def meet(*args, both=both, **values):
            with suppress(threading.BrokenBarrierError):  # the other waits for us, and cannot come
                if not getattr(told, "met", False):
                    told.met = True
                    both.wait()
            return add_port(*args, **values)

        monkeypatch.setattr(ipam, "add_port", meet)
        with ThreadPoolExecutor(2) as pool:
            made = [task.result() for task in [pool.submit(service.resources["ports"].create, ALICE, *(
                {"network_id": flat["id"], "security_groups": groups} for groups in wish)) for wish in (each, other)]]
        assert [[port["security_groups"] for port in ports] for ports in made] == [each, other]


def test_more_groups_than_a_host_takes_are_refused_at_each_way_in(sqlite):
    """At the port, at the server that has ports, and before a server is made."""
    service = EmbeddedNetworks(sqlite, limits={"security_group": -1, "security_group_rule": -1})
    service.bootstrap()
    id, nic = server(service)
    ids = [made["id"] for made in service.resources["security_groups"].create(
        ALICE, *({"name": f"group{number}"} for number in range(MOST_GROUPS + 1)))]
    port = service.resources["ports"]
    network = port.show(ALICE, nic["port_id"])["network_id"]
    port.update(ALICE, nic["port_id"], {"security_groups": ids[:-1]})
    for refused in (lambda: port.update(ALICE, nic["port_id"], {"security_groups": ids}),
                    lambda: port.create(ALICE, {"network_id": network, "security_groups": ids}),
                    lambda: service.change_groups("red", id, ids[-1], add=True),
                    lambda: service.groups(ALICE, ids),
                    lambda: service.allocate(ALICE, str(uuid.uuid4()), service.check_requested(ALICE, "auto"), ids)):
        with pytest.raises(InvalidField, match="security_groups: a port has 100 at most, and this would be 101"):
            refused()
    assert port.show(ALICE, nic["port_id"])["security_groups"] == ids[:-1]
    service.change_groups("red", id, ids[0], add=False)
    service.change_groups("red", id, ids[-1], add=True)
