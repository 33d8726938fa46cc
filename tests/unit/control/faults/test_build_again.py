# SPDX-License-Identifier: GPL-3.0-or-later
"""A build that fails on a host is interrupted on its way to the next: it goes on with a claim, and with one only."""

from __future__ import annotations

import uuid
from unittest.mock import patch

import pytest

from magnetar_control import serve
from magnetar_control.conductor.flows import server_create
from magnetar_control.conductor.periodic import audit
from magnetar_control.conductor.periodic.periodic import Periodic
from magnetar_control.conductor.worker.work import RunningAction
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from magnetar_control.store.claims import allocations
from magnetar_core.errors import HypervisorError, NoSpace
from tests.support.control.cloud import Cloud


@pytest.fixture(scope="module")
def cloud():
    with Cloud(hosts=3, links=True) as made:
        yield made


def fails_first(monkeypatch):
    """The first build fails; returns the hosts that were tried."""
    make, hosts = server_create.make_server, []

    def once(work, host, ports):
        hosts.append(host)
        if len(hosts) == 1:
            raise HypervisorError("QEMU does not start")
        return make(work, host, ports)

    monkeypatch.setattr(server_create, "make_server", once)
    return hosts


def interrupted(monkeypatch, name, when=lambda _values: True):
    """The conductor stumbles once in that method of ``RunningAction``."""
    method, done = getattr(RunningAction, name), []

    def once(work, *args, **values):
        if work.action.action == "create" and not done and when(values):
            done.append(1)
            raise RuntimeError("interrupted")
        return method(work, *args, **values)

    monkeypatch.setattr(RunningAction, name, once)
    return done


@pytest.mark.parametrize(("name", "when"), [
    ("note", lambda values: values == {"host": None}),
    ("note", lambda values: values.get("task_state") == "scheduling"),
    ("put_back", lambda values: values.get("host") is not None)], ids=["released", "placed", "noted"])
def test_it_goes_on_with_one_claim(cloud, monkeypatch, name, when):
    with monkeypatch.context() as patched:
        hosts, done = fails_first(patched), interrupted(patched, name, when)
        id = cloud.admin.post("/v2.1/servers", {"server": {
            "name": "again", "flavorRef": "1", "networks": "none", "imageRef": cloud.admin.image()}},
            "2.60").json["server"]["id"]
        server = cloud.admin.settled(id)
    assert done and server["status"] == "ACTIVE", server
    with cloud.parts.api_database.read() as connection:
        held = [one.host for one in allocations.fetch_server_claims(connection, id)]
    assert held == [server["OS-EXT-SRV-ATTR:host"]] == [hosts[-1]] != [hosts[0]]
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None


def test_what_it_left_is_removed_later(cloud, monkeypatch):
    """The host that could not make the server could not remove what was there either, and the server went elsewhere."""
    left = list(cloud.hosts)
    for wanted in ("ACTIVE", "ERROR"):
        with monkeypatch.context() as patched:
            hosts = fails_first(patched)
            make, delete_on = server_create.make_server, RunningAction.delete_on

            def leaves(work, host, ports, make=make, wanted=wanted):
                with work.client(host) as client:
                    client.ensure("server", work.id, server_create.server_document(work, host, ports))
                if wanted == "ERROR":
                    raise NoSpace("The disk is full.")
                return make(work, host, ports)

            def stays(work, host, *what):
                raise NoSpace("The disk is full.")

            patched.setattr(server_create, "make_server", leaves)
            patched.setattr(RunningAction, "delete_on", stays)
            id = cloud.admin.post("/v2.1/servers", {"server": {
                "name": f"left-{uuid.uuid4().hex[:6]}", "flavorRef": "1", "networks": "none",
                "imageRef": cloud.admin.image()}}, "2.60").json["server"]["id"]
            server = cloud.admin.settled(id)
            assert server["status"] == wanted and RunningAction.delete_on is not delete_on
        have = [name for name in left if there(cloud, name, id)]
        own = [server["OS-EXT-SRV-ATTR:host"]] if wanted == "ACTIVE" else []
        assert len(have) > 1 and (hosts or own != have)
        periodic = Periodic(cloud.parts.working)
        assert periodic.audit() == []
        assert {one.kind for one in periodic.audit()} == {"spare"}
        assert [name for name in left if there(cloud, name, id)] == own
        found, _state = audit.run_with_state(cloud.parts.store, cloud.parts.agents, cloud.services, 0.1)
        assert found == []
        cloud.admin.delete(f"/v2.1/servers/{id}")
        assert cloud.admin.settled(id) is None


def test_what_it_left_goes_while_the_server_waits_for_a_confirm(cloud, monkeypatch):
    """The server has moved on, between two other hosts: the guest that is left has to do with neither."""
    with monkeypatch.context() as patched:
        make, left = server_create.make_server, []

        def leaves(work, host, ports):
            if not left:
                left.append(host)
                with work.client(host) as client:
                    client.ensure("server", work.id, server_create.server_document(work, host, ports))
                raise HypervisorError("QEMU does not start")
            return make(work, host, ports)

        def stays(_work, _host, *_what):
            raise HypervisorError("QEMU does not end")

        patched.setattr(server_create, "make_server", leaves)
        patched.setattr(RunningAction, "delete_on", stays)
        id = cloud.admin.boot(f"left-{uuid.uuid4().hex[:6]}", networks="none")["id"]
    own = cloud.admin.server(id)["OS-EXT-SRV-ATTR:host"]
    third = next(name for name in cloud.hosts if name not in (own, *left))
    assert cloud.admin.act(id, "migrate", {"host": third}, "2.60").status == 202
    assert cloud.admin.settled(id)["status"] == "VERIFY_RESIZE"
    periodic = Periodic(cloud.parts.working)
    periodic.audit()
    assert {one.kind for one in periodic.audit()} == {"spare"}
    assert not there(cloud, left[0], id) and there(cloud, third, id)
    assert periodic.audit() == []
    assert cloud.admin.act(id, "revertResize", None, "2.60").status == 202
    assert cloud.admin.settled(id)["status"] == "ACTIVE"
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None


def there(cloud, host, id):
    """Whether a host has a server."""
    with cloud.parts.agents.client(cloud.hosts[host]) as client:
        return any(one["id"] == id for one in client.list("server"))


@pytest.fixture(scope="module")
def on_ovn():
    with patch.object(serve, "engine_of", lambda _settings: FakeEngine()), Cloud(
            hosts=2, links=True, ovn_hosts_wait=0.0) as made:
        yield made


@pytest.mark.parametrize("wanted", ["ACTIVE", "ERROR"])
def test_its_port_is_where_it_was_tried_no_more(on_ovn, monkeypatch, wanted):
    make, tried = server_create.make_server, []

    def bound(id):
        return on_ovn.admin.get(f"/network/v2.0/ports/{id}").json["port"]["binding:host_id"]

    def once(work, host, ports):
        tried.append((host, bound(ports[0]["port_id"])))
        if len(tried) == 1 or wanted == "ERROR":
            raise HypervisorError("QEMU does not start")
        return make(work, host, ports)

    with monkeypatch.context() as patched:
        patched.setattr(server_create, "make_server", once)
        server = on_ovn.admin.boot("again", "2.60")
    (port,) = on_ovn.admin.get(f"/network/v2.0/ports?device_id={server['id']}").json["ports"]
    assert server["status"] == wanted and port["binding:host_id"] == (server["OS-EXT-SRV-ATTR:host"] or "")
    (first, there), (second, before) = tried
    assert (there, before) == (first, "") and first != second
    on_ovn.admin.delete(f"/v2.1/servers/{server['id']}")
    assert on_ovn.admin.settled(server["id"]) is None
