# SPDX-License-Identifier: GPL-3.0-or-later
"""A server that is shelved leaves its host, keeps what it is, and comes back as it was."""

import orjson
import pytest

from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import at, check, claims, disabled, row

from .shelving import ENGINES, settings

pytestmark = ENGINES


def test_a_server_leaves_its_host_and_comes_back(owner):
    before = owner.server(networks="auto", flavorRef="small", name="web1")
    id, host = before["id"], owner.host_of(before["id"])
    [(address, *_bound)] = owner.ports(id)
    offloaded = owner.act(id, "shelve")
    owner.check_offloaded(id)
    [image] = owner.named("web1-shelved")
    assert (image["status"], image["instance_uuid"], image["image_type"]) == ("active", id, "snapshot")
    assert row(owner.cloud, id).shelved_image_id == image["id"]
    assert offloaded["addresses"] == before["addresses"] and offloaded["image"]["id"] == before["image"]["id"]
    assert owner.last_action(id)["action"] == "shelve"
    assert [one["event"] for one in owner.last_action(id)["events"]] == ["compute_shelve_instance"]
    with disabled(owner.cloud, host):
        back = owner.act(id, "unshelve")
    assert (back["status"], owner.host_of(id)) == ("ACTIVE", owner.other(host)), row(owner.cloud, id).fault
    assert owner.ports(id) == [(address, owner.other(host), "ACTIVE")]
    assert back["addresses"] == before["addresses"] and back["image"]["id"] == before["image"]["id"]
    assert owner.named("web1-shelved") == []
    found = check(owner.cloud, id)
    assert found["power_state"] == "running"
    kept = row(owner.cloud, id)
    assert (kept.shelved_at, kept.shelved_image_id) == (None, None)
    last = owner.last_action(id)
    assert (last["action"], [(one["event"], one["host"]) for one in last["events"]]) == (
        "unshelve", [("compute_unshelve_instance", owner.other(host))])
    assert [one for name in owner.cloud.hosts for one in owner.on_host("image", name) if one["id"] == image["id"]] == []
    assert owner.act(id, "os-stop")["status"] == "SHUTOFF"


@pytest.mark.parametrize("before", ["os-stop", "pause", "suspend"])
def test_from_every_state_in_which_it_may_be_shelved_it_comes_back_running(owner, before):
    id = owner.server(flavorRef="small")["id"]
    owner.act(id, before)
    owner.act(id, "shelve")
    owner.check_offloaded(id)
    assert owner.act(id, "unshelve")["status"] == "ACTIVE"
    assert check(owner.cloud, id)["power_state"] == "running"


def test_one_that_stays_on_its_host_holds_what_it_has_there(owner):
    id = owner.server(flavorRef="small")["id"]
    host, held = owner.host_of(id), claims(owner.cloud, id)
    with settings(owner.cloud, shelved_offload_time=-1):
        shelved = owner.act(id, "shelve")
    assert (shelved["status"], shelved["OS-EXT-STS:power_state"], owner.host_of(id)) == ("SHELVED", 4, host)
    assert check(owner.cloud, id)["power_state"] == "off"
    assert claims(owner.cloud, id) == held
    assert owner.named("web1-shelved")
    assert owner.act(id, "unshelve")["status"] == "ACTIVE"
    last = owner.last_action(id)
    assert (last["action"], [one["event"] for one in last["events"]]) == ("unshelve", ["compute_start_instance"])
    assert check(owner.cloud, id)["power_state"] == "running" and owner.host_of(id) == host
    assert owner.named("web1-shelved") == []


def test_an_administrator_offloads_one_that_is_shelved(owner):
    id = owner.server(flavorRef="small")["id"]
    with settings(owner.cloud, shelved_offload_time=-1):
        owner.act(id, "shelve")
        owner.act(id, "shelveOffload")
    owner.check_offloaded(id)
    last = owner.last_action(id)
    assert (last["action"], [one["event"] for one in last["events"]]) == (
        "shelveOffload", ["compute_shelve_offload_instance"])
    assert owner.act(id, "unshelve")["status"] == "ACTIVE"
    check(owner.cloud, id)


@pytest.mark.parametrize("offload", [0, -1])
def test_a_shelved_server_can_be_deleted_with_its_image(owner, offload):
    id = owner.server(networks="auto", flavorRef="small")["id"]
    with settings(owner.cloud, shelved_offload_time=offload):
        owner.act(id, "shelve")
    assert owner.call.delete(f"/v2.1/servers/{id}").status == 204
    assert owner.call.settled(id) is None
    assert owner.named("web1-shelved") == [] and owner.ports(id) == []
    assert claims(owner.cloud, id) == {} and at(owner.cloud, id) == {}


def test_the_room_that_it_gave_back_is_for_others_and_it_stays_as_it_was_while_there_is_none(owner):
    id = owner.server(flavorRef="small")["id"]
    owner.act(id, "shelve")
    with disabled(owner.cloud, "kvm1"), disabled(owner.cloud, "kvm2"):
        assert owner.act(id, "unshelve")["status"] == "SHELVED_OFFLOADED"
        [event] = owner.last_action(id)["events"]
        assert (event["event"], event["result"]) == ("compute_unshelve_instance", "Error")
        assert "ComputeFilter" in event["details"] or "refused" in event["details"]
        owner.check_offloaded(id)
    assert owner.act(id, "unshelve")["status"] == "ACTIVE"
    check(owner.cloud, id)


def test_disks_that_have_grown_stay_large(owner):
    id = owner.server(flavorRef="large")["id"]
    owner.call.act(id, "os-stop")
    owner.call.settled(id)
    kept = orjson.loads(row(owner.cloud, id).flavor)
    owner.act(id, "shelve")
    owner.act(id, "unshelve")
    assert orjson.loads(row(owner.cloud, id).flavor) == kept
    check(owner.cloud, id)


def test_its_name_may_be_as_long_as_any(owner):
    id = owner.server(name="n" * 255, flavorRef="small")["id"]
    owner.act(id, "shelve")
    assert owner.named("n" * 247 + "-shelved")
    assert owner.act(id, "unshelve")["status"] == "ACTIVE"


def test_an_administrator_shelves_the_server_of_another_project(owner):
    other = type(owner)(owner.cloud, owner.cloud.caller("jane", "janes"))
    source = other.call.image("janes")
    try:
        id = other.server(imageRef=source, flavorRef="small")["id"]
        owner.act(id, "shelve")
        [image] = other.named("web1-shelved")
        assert image["owner"] == other.call.project_id
        assert other.act(id, "unshelve")["status"] == "ACTIVE"
        eventually(lambda: other.named("web1-shelved") == [])
    finally:
        other.clear()
        other.call.delete(f"/image/v2/images/{source}")


def test_what_is_changed_of_a_port_meanwhile_is_so_in_the_guest(owner):
    id = owner.server(networks="auto", flavorRef="small")["id"]
    [port] = owner.call.get(f"/network/v2.0/ports?device_id={id}").json["ports"]
    change = {"port": {"mac_address": "fa:16:3e:00:00:07"}}
    assert owner.call.put(f"/network/v2.0/ports/{port['id']}", change).status == 409
    owner.act(id, "shelve")
    assert owner.call.put(f"/network/v2.0/ports/{port['id']}", change).status == 200
    owner.act(id, "unshelve")
    assert [nic["mac"] for nic in check(owner.cloud, id)["networks"]] == ["fa:16:3e:00:00:07"]
    [address] = next(iter(owner.call.server(id)["addresses"].values()))
    assert address["OS-EXT-IPS-MAC:mac_addr"] == "fa:16:3e:00:00:07"
