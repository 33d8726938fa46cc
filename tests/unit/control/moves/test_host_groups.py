# SPDX-License-Identifier: GPL-3.0-or-later
"""Security groups without an engine: hosts know those of their NICs, from the first moment and whatever changes."""

from __future__ import annotations

import threading

import pytest

from magnetar_control.conductor.steps import host_groups
from magnetar_control.conductor.steps.host_groups import GroupUpdateSender
from magnetar_core.errors import InvalidField, Unreachable
from tests.support.waiting import eventually

from .clouds import row
from .inside import with_flavors  # noqa: F401 - the fixture cloud

SSH = {"direction": "ingress", "ethertype": "IPv4", "protocol": "tcp", "port_range_min": 22, "port_range_max": 22,
       "remote_ip_prefix": "192.0.2.0/24"}
HEARD = {"direction": "ingress", "ethertype": "IPv4", "protocol": 6, "port_range_min": 22, "port_range_max": 22,
         "remote_ip_prefix": "192.0.2.0/24", "remote_group": None}


@pytest.fixture
def boot(cloud):
    """Makes servers, which go at the end."""
    made = []

    def one(**more):
        made.append(cloud.admin.boot(f"web{len(made)}", "2.90", flavorRef="small", **more)["id"])
        return made[-1]

    yield one
    for id in made:
        cloud.admin.delete(f"/v2.1/servers/{id}")
        assert cloud.admin.settled(id) is None


def neutron(cloud, method, path, body=None):
    reply = cloud.admin.call(method, f"/network/v2.0/{path}", body)
    assert reply.status < 300, reply
    return reply.json


def group(cloud, name):
    """A new group, without rules but those that let everything out."""
    return neutron(cloud, "POST", "security-groups", {"security_group": {"name": name}})["security_group"]["id"]


def rule(cloud, group, **more):
    said = {"security_group_rule": {"security_group_id": group, **(more or SSH)}}
    return neutron(cloud, "POST", "security-group-rules", said)["security_group_rule"]["id"]


def heard(cloud, host, id):
    """The group, as the host knows it; ``None``: not at all."""
    with cloud.parts.working.client(host) as client:
        return next((one for one in client.list("group_filter") if one["id"] == id), None)


def nic(cloud, host, id):
    with cloud.parts.working.client(host) as client:
        return client.get("server", id)["networks"][0]


def filtered(cloud, host, id):
    """What the host's kernel filters a server by: the groups of its port. ``None``: it does not know the port yet,
    which sends and hears nothing till then."""
    mac, known = nic(cloud, host, id)["mac"], cloud.kvm[host].fake.filtered
    return next((port.groups for port in (known.ports if known else ()) if port.mac == mac), None)


def test_a_host_knows_the_groups_of_its_nics_and_what_changes(cloud, boot):
    id = boot()
    host = row(cloud, id).host
    (default,) = nic(cloud, host, id)["security_groups"]
    known = heard(cloud, host, default)
    assert {(one["direction"], one["ethertype"], one["remote_group"]) for one in known["rules"]} == {
        ("egress", "IPv4", None), ("egress", "IPv6", None), ("ingress", "IPv4", default), ("ingress", "IPv6", default)}
    assert known["members"] == []  # its host knows its own
    eventually(lambda: filtered(cloud, host, id) == (default,))
    made = rule(cloud, default)
    eventually(lambda: HEARD in heard(cloud, host, default)["rules"])
    neutron(cloud, "DELETE", f"security-group-rules/{made}")
    eventually(lambda: HEARD not in heard(cloud, host, default)["rules"])


def test_a_server_that_gets_another_group(cloud, boot):
    id = boot()
    host = row(cloud, id).host
    before = nic(cloud, host, id)["security_groups"]
    web, named = group(cloud, "web"), group(cloud, "named")
    rule(cloud, web, direction="ingress", remote_group_id=named)
    assert cloud.admin.act(id, "addSecurityGroup", {"name": "web"}).status == 202
    eventually(lambda: filtered(cloud, host, id) == tuple(sorted([*before, web])))
    assert heard(cloud, host, web) and heard(cloud, host, named)
    port = neutron(cloud, "GET", f"ports?device_id={id}")["ports"][0]["id"]
    neutron(cloud, "PUT", f"ports/{port}", {"port": {"security_groups": [web]}})
    eventually(lambda: filtered(cloud, host, id) == (web,))
    neutron(cloud, "PUT", f"ports/{port}", {"port": {"security_groups": []}})
    eventually(lambda: filtered(cloud, host, id) == ())  # nothing passes
    neutron(cloud, "DELETE", f"security-groups/{web}")
    neutron(cloud, "DELETE", f"security-groups/{named}")
    eventually(lambda: not heard(cloud, host, web) and not heard(cloud, host, named))


def test_a_create_asks_nobody_for_what_its_host_knows(cloud, boot, monkeypatch):
    boot(), boot()  # one on each host
    told = []
    monkeypatch.setattr(host_groups, "tell_security_group", lambda *words: told.append(words))
    boot(), boot()
    assert not told


@pytest.mark.parametrize("action", [("os-migrateLive", {"host": None, "block_migration": "auto"}), ("migrate", None)])
def test_a_server_that_moves_takes_its_groups_along(cloud, boot, action):
    own = group(cloud, f"own {action[0]}")
    id = boot(security_groups=[{"name": own}])
    before = row(cloud, id).host
    assert cloud.admin.act(id, *action, version="2.30").status in (202, 204)
    eventually(lambda: row(cloud, id).host != before and cloud.admin.settled(id))
    host = row(cloud, id).host
    assert heard(cloud, host, own)
    eventually(lambda: filtered(cloud, host, id) == (own,))
    eventually(lambda: cloud.kvm[before].fake.filtered is None or own not in {
        name for port in cloud.kvm[before].fake.filtered.ports for name in port.groups or ()}
        or action[0] == "migrate")  # cold, it may come back


def test_a_host_that_was_away(cloud, boot, monkeypatch):
    own = group(cloud, "away")
    id = boot(security_groups=[{"name": own}])
    host = row(cloud, id).host
    with monkeypatch.context() as patched:
        patched.setattr(GroupUpdateSender, "start_senders", lambda _self: None)
        alone = GroupUpdateSender(cloud.parts.working, threading.Event())
        rule(cloud, own)
        with patched.context() as away:
            away.setattr(cloud.parts.working, "client", lambda _host: (_ for _ in ()).throw(Unreachable("It is away.")))
            with pytest.raises(Unreachable):
                alone.tell(host)
        assert HEARD not in heard(cloud, host, own)["rules"]
        assert alone.tell(host) and not alone.tell(host)
        assert HEARD in heard(cloud, host, own)["rules"]
    # One that has lost what it knew is told again when it connects.
    with cloud.parts.working.client(host) as client:
        client.delete("group_filter", own)
        host_groups.compare_security_groups(cloud.parts.working, client, host, [id])
    eventually(lambda: heard(cloud, host, own))


def test_servers_of_before_hosts_filtered_by_groups(cloud, boot):
    """Their NICs have none on the host, until it connects: so do those that somebody changed there."""
    id = boot()
    host = row(cloud, id).host
    mac, groups = (nic(cloud, host, id)[name] for name in ("mac", "security_groups"))
    for before in (None, []):
        with cloud.parts.working.client(host) as client:
            client.ensure("interface_attachment", f"{id}:{mac}", {"server": id, "mac": mac, "security_groups": before})
        assert nic(cloud, host, id).get("security_groups") == before
        cloud.kvm[host].stop()
        cloud.kvm[host].start()
        eventually(lambda: nic(cloud, host, id).get("security_groups") == groups)
    eventually(lambda: filtered(cloud, host, id) == tuple(groups))


def test_what_a_host_refuses_keeps_nothing_else(cloud, boot, monkeypatch):
    monkeypatch.setattr(GroupUpdateSender, "start_senders", lambda _self: None)
    bad, good = sorted([group(cloud, "bad"), group(cloud, "good")])
    id = boot(security_groups=[{"name": bad}, {"name": good}])
    host, alone = row(cloud, id).host, GroupUpdateSender(cloud.parts.working, threading.Event())
    for one in (bad, good):
        rule(cloud, one)
    tell, told = host_groups.tell_security_group, []

    def refused(conductor, client, host, id):
        told.append(id)
        if id == bad:
            raise InvalidField("rules[0].remote_ip_prefix", "is nothing that this host knows", "x")
        tell(conductor, client, host, id)

    with monkeypatch.context() as patched:
        patched.setattr(host_groups, "tell_security_group", refused)
        with pytest.raises(InvalidField):
            alone.tell(host)
        assert {bad, good} <= set(told)
        assert HEARD in heard(cloud, host, good)["rules"] and HEARD not in heard(cloud, host, bad)["rules"]
    assert alone.tell(host) and HEARD in heard(cloud, host, bad)["rules"]


def test_ports_of_other_hosts_on_a_bridge(cloud, boot):
    net = neutron(cloud, "POST", "networks", {"network": {
        "name": "flat", "provider:network_type": "flat", "provider:physical_network": "br0"}})["network"]["id"]
    neutron(cloud, "POST", "subnets", {"subnet": {"network_id": net, "cidr": "192.0.2.0/24", "ip_version": 4}})
    own = group(cloud, "flat")
    rule(cloud, own, direction="ingress", remote_group_id=own)
    wish = {"networks": [{"uuid": net}], "security_groups": [{"name": own}]}
    ids = [boot(host=name, **wish) for name in cloud.hosts]
    addresses = {cloud.admin.server(id)["addresses"]["flat"][0]["addr"] for id in ids}
    for name in cloud.hosts:
        eventually(lambda name=name: addresses <= set((heard(cloud, name, own) or {"members": ()})["members"]))
    cloud.admin.delete(f"/v2.1/servers/{ids[0]}")
    assert cloud.admin.settled(ids[0]) is None
    host = row(cloud, ids[1]).host
    eventually(lambda: len(heard(cloud, host, own)["members"]) == 1)
