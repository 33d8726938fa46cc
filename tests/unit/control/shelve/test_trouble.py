# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes wrong while a server is shelved or unshelved: nothing is lost, and the reason is told."""

import pytest
from sqlalchemy import select, update

from magnetar_control.conductor.flows import server_create, server_create_image
from magnetar_control.conductor.flows.server_shelve import offload_expired
from magnetar_control.conductor.periodic.periodic import remove_unused_images
from magnetar_control.conductor.steps import block_devices, nics
from magnetar_control.conductor.worker.work import RunningAction
from magnetar_control.store.engine import tables
from magnetar_core.errors import Conflict, HypervisorDown, MagnetarError, NoSpace
from magnetar_core.http.client import Client
from tests.support.control.snapshot import go_on, queued, unreachable
from tests.support.control.trouble import failing
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import at, check, claims, disabled, row

from .shelving import ENGINES, settings

pytestmark = ENGINES


@pytest.mark.parametrize(("before", "after", "power"), [
    (None, "ACTIVE", "running"), ("os-stop", "SHUTOFF", "off"), ("pause", "SHUTOFF", "off")])
def test_a_shelving_that_fails_leaves_the_server_as_it_was(owner, monkeypatch, before, after, power):
    id = owner.server(flavorRef="small")["id"]
    if before:
        owner.act(id, before)
    with monkeypatch.context() as patched:
        patched.setattr(server_create_image, "upload_root_disk", failing(NoSpace("The host has no room for a copy.")))
        found = owner.act(id, "shelve")
    assert found["status"] == after and "no room" in str(owner.last_action(id)["events"])
    assert check(owner.cloud, id)["power_state"] == power
    assert owner.named("web1-shelved") == []
    kept = row(owner.cloud, id)
    assert (kept.shelved_at, kept.shelved_image_id) == (None, None)
    owner.act(id, "shelve")
    owner.check_offloaded(id)
    owner.act(id, "unshelve")


@pytest.mark.parametrize("action", ["shelve", "shelveOffload"])
def test_one_that_has_left_its_host_goes_on_leaving(owner, monkeypatch, action):
    id = owner.server(flavorRef="small")["id"]
    with settings(owner.cloud, shelved_offload_time=-1 if action == "shelveOffload" else 0), (
            monkeypatch.context()) as patched:
        if action == "shelveOffload":
            owner.act(id, "shelve")
        refused = failing(Conflict("A volume stays."))
        refused.then = block_devices.disconnect_volumes
        patched.setattr(block_devices, "disconnect_volumes", refused)
        owner.act(id, action)
    owner.check_offloaded(id)
    assert sorted(one["result"] for one in owner.last_action(id)["events"]) == ["Error", "Success"]
    assert owner.act(id, "unshelve")["status"] == "ACTIVE"


@pytest.mark.parametrize("error", [MagnetarError(), Conflict("It is busy.")])
def test_one_that_cannot_leave_its_host_stays_shelved(owner, monkeypatch, error):
    id, delete_on = owner.server(flavorRef="small")["id"], RunningAction.delete_on

    def refuse(work, host, resource_type="server", key=None):
        if resource_type == "server":
            raise error
        delete_on(work, host, resource_type, key)

    with monkeypatch.context() as patched:
        patched.setattr(RunningAction, "delete_on", refuse)
        assert owner.act(id, "shelve")["status"] == "SHELVED"
    assert check(owner.cloud, id)["power_state"] == "off"
    assert owner.call.act(id, "shelveOffload").status == 202
    owner.call.settled(id)
    owner.check_offloaded(id)
    assert owner.act(id, "unshelve")["status"] == "ACTIVE"


def test_a_root_disk_is_not_removed_whose_image_was_deleted(owner):
    id = owner.server(flavorRef="small")["id"]
    with settings(owner.cloud, shelved_offload_time=-1):
        owner.act(id, "shelve")
    [image] = owner.named("web1-shelved")
    assert owner.call.delete(f"/image/v2/images/{image['id']}").status == 204
    assert owner.act(id, "shelveOffload")["status"] == "SHELVED"
    assert "was deleted" in owner.last_action(id)["events"][0]["details"]
    assert check(owner.cloud, id)["power_state"] == "off"
    assert owner.act(id, "unshelve")["status"] == "ACTIVE"


def test_an_offloaded_server_whose_image_was_deleted_says_so(owner):
    id = owner.server(flavorRef="small")["id"]
    owner.act(id, "shelve")
    [image] = owner.named("web1-shelved")
    owner.call.delete(f"/image/v2/images/{image['id']}")
    assert owner.act(id, "unshelve")["status"] == "SHELVED_OFFLOADED"
    [event] = owner.last_action(id)["events"]
    assert event["result"] == "Error" and "was deleted" in event["details"]
    owner.check_offloaded(id)


def test_a_protected_image_stays(owner):
    id = owner.server(flavorRef="small")["id"]
    owner.act(id, "shelve")
    [image] = owner.named("web1-shelved")
    patch = [{"op": "replace", "path": "/protected", "value": True}]
    headers = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
    path = f"/image/v2/images/{image['id']}"
    assert owner.call.call("PATCH", path, patch, headers=headers).status == 200
    assert owner.act(id, "unshelve")["status"] == "ACTIVE"
    assert [one["id"] for one in owner.named("web1-shelved")] == [image["id"]]
    patch[0]["value"] = False
    assert owner.call.call("PATCH", path, patch, headers=headers).status == 200


def test_a_build_that_fails_is_tried_on_another_host(owner, monkeypatch):
    volume = owner.volume(host="kvm1")
    id = owner.server(networks="auto", flavorRef="small")["id"]
    assert owner.attach(id, volume).status == 200
    eventually(lambda: owner.state(volume) == "in-use")
    owner.act(id, "shelve")
    refused = failing(HypervisorDown("libvirt does not answer."))
    refused.then = nics.make_nic_networks
    with monkeypatch.context() as patched:
        patched.setattr(nics, "make_nic_networks", refused)
        assert owner.act(id, "unshelve")["status"] == "ACTIVE"
    events = owner.last_action(id)["events"]
    assert sorted(one["result"] for one in events) == ["Error", "Success"]
    assert len({one["host"] for one in events}) == 2
    check(owner.cloud, id)
    assert owner.state(volume) == "in-use"


def test_a_build_that_fails_everywhere_leaves_it_offloaded(owner, monkeypatch):
    volume = owner.volume(host="kvm1")
    id = owner.server(networks="auto", flavorRef="small")["id"]
    assert owner.attach(id, volume).status == 200
    eventually(lambda: owner.state(volume) == "in-use")
    owner.act(id, "shelve")
    with monkeypatch.context() as patched:
        patched.setattr(block_devices, "finish_build", failing(HypervisorDown("libvirt does not answer."), 9))
        assert owner.act(id, "unshelve")["status"] == "SHELVED_OFFLOADED"
    owner.check_offloaded(id)
    assert owner.named("web1-shelved") and owner.state(volume) == "reserved"
    assert owner.act(id, "unshelve")["status"] == "ACTIVE"
    check(owner.cloud, id)


def test_a_full_host_is_refused_and_nothing_is_lost(owner):
    """Unshelve to the one host that has no room."""
    id = owner.server(flavorRef="small")["id"]
    owner.act(id, "shelve")
    with owner.cloud.parts.api_database.write() as connection:
        full = update(tables.hosts).where(tables.hosts.c.name == "kvm1")
        limit = connection.execute(select(tables.hosts.c.memory_mb_limit).where(tables.hosts.c.name == "kvm1")).scalar()
        connection.execute(full.values(memory_mb_limit=0))
    try:
        assert owner.act(id, "unshelve", {"host": "kvm1"})["status"] == "SHELVED_OFFLOADED"
        owner.check_offloaded(id)
    finally:
        with owner.cloud.parts.api_database.write() as connection:
            connection.execute(full.values(memory_mb_limit=limit))
    owner.cloud.parts.working.read_hosts()
    assert owner.act(id, "unshelve", {"host": "kvm1"})["status"] == "ACTIVE"
    assert owner.host_of(id) == "kvm1"


def test_a_deletion_while_it_is_shelved_or_unshelved_goes_first(owner, monkeypatch):
    for away in (False, True):
        id = owner.server(networks="auto", flavorRef="small")["id"]
        if away:
            owner.act(id, "shelve")
        with pytest.MonkeyPatch.context() as patched:
            unreachable(patched)
            assert owner.call.act(id, "unshelve" if away else "shelve").status == 202
            if not away:
                eventually(lambda id=id: queued(owner, id, "shelve"))
        assert owner.call.delete(f"/v2.1/servers/{id}").status == 204
        assert owner.call.settled(id) is None
        assert owner.named("web1-shelved") == [] and claims(owner.cloud, id) == {} and at(owner.cloud, id) == {}


@pytest.mark.parametrize("state", ["active", "error"])
def test_a_reset_of_the_state_leaves_nothing_behind(owner, state):
    """A shelving that has not begun is taken back; an unshelving too, and the server is offloaded still."""
    id = owner.server(flavorRef="small")["id"]
    with pytest.MonkeyPatch.context() as patched:
        unreachable(patched)
        assert owner.call.act(id, "shelve").status == 202
        eventually(lambda: queued(owner, id, "shelve"))
        assert owner.call.act(id, "os-resetState", {"state": state}).status == 202
    go_on(owner, id)
    eventually(lambda: row(owner.cloud, id).shelved_image_id is None)
    assert owner.named("web1-shelved") == []
    owner.call.act(id, "os-resetState", {"state": "active"})
    owner.act(id, "shelve")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server_create, "make_server", failing(Conflict("No."), 9))
        with disabled(owner.cloud, "kvm1"), disabled(owner.cloud, "kvm2"):
            owner.cloud.parts.working.settling, kept = (lambda: True), owner.cloud.parts.working.settling
            assert owner.call.act(id, "unshelve").status == 202
            eventually(lambda: queued(owner, id, "unshelve"))
            assert owner.call.act(id, "os-resetState", {"state": state}).status == 202
            owner.cloud.parts.working.settling = kept
    go_on(owner, id)
    eventually(lambda: row(owner.cloud, id).vm_state == "shelved_offloaded")
    owner.call.settled(id)
    owner.check_offloaded(id)
    assert owner.act(id, "unshelve")["status"] == "ACTIVE"


def test_servers_that_have_been_shelved_for_long_leave_their_hosts(owner):
    ids = [owner.server(name=name, flavorRef="small")["id"] for name in ("old", "new")]
    conductor = owner.cloud.parts.working
    with settings(owner.cloud, shelved_offload_time=-1):
        for id in ids:
            owner.act(id, "shelve")
        assert offload_expired(conductor) == 0
    with conductor.database.write() as connection:
        connection.execute(update(tables.servers).where(tables.servers.c.id == ids[0]).values(
            shelved_at="2026-01-01T00:00:00.000000"))
    with settings(owner.cloud, shelved_offload_time=3600):
        assert offload_expired(conductor) == 1
        owner.call.settled(ids[0])
        owner.check_offloaded(ids[0])
        assert offload_expired(conductor) == 0
        assert owner.call.server(ids[1])["status"] == "SHELVED"
        assert owner.act(owner.server(name="third", flavorRef="small")["id"], "shelve")["status"] == "SHELVED"


def test_a_copy_that_a_host_keeps_is_removed_later(owner, monkeypatch):
    id, delete = owner.server(flavorRef="small")["id"], Client.delete

    def kept(client, kind, key, **more):
        if key.startswith("snapshot-"):
            raise HypervisorDown("libvirt does not answer.")
        return delete(client, kind, key, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Client, "delete", kept)
        owner.act(id, "shelve")
    assert row(owner.cloud, id).vm_state == "shelved_offloaded"
    remove_unused_images(owner.cloud.parts.working)
    owner.check_offloaded(id)
