# SPDX-License-Identifier: GPL-3.0-or-later
"""Guests that take their time to shut down: what images say, what comes over the wait, and whom it keeps waiting."""

import dataclasses

import pytest

from magnetar_agent.servers import shutdown
from tests.support.waiting import eventually

from .clouds import check, flavors, remove, row
from .inside import Inside

#: What shuts a guest down, and the body of the request.
ACTIONS = {"os-stop": None, "shelve": None, "rescue": None, "rebuild": {}, "migrate": None, "resize": {"flavorRef": ""}}
WORKERS = 3


@pytest.fixture(scope="module")
def cloud():
    """Agents in this process; more guests than workers may take their time."""
    with Inside(workers=WORKERS, host_share=0.7) as found:
        flavors(found)
        yield found


@pytest.fixture
def deaf(cloud):
    """Guests of these servers do not hear, and have an hour."""
    usual = {name: kvm.agent.host.settings for name, kvm in cloud.kvm.items()}
    for name, kvm in cloud.kvm.items():
        kvm.agent.host.settings = dataclasses.replace(usual[name], shutdown_timeout=3600)

    def make(id):
        cloud.kvm[row(cloud, id).host].fake.deaf.add(id)

    yield make
    for name, kvm in cloud.kvm.items():
        kvm.fake.deaf.clear()
        kvm.agent.host.settings = usual[name]


def asked_to_shut_down(cloud, id):
    """The agents' operations that wait for the guest."""
    return [one for kvm in cloud.kvm.values() for one in kvm.agent.host.operations.list()
            if one.status == "running" and one.key == id and one.progress["phase"] == "shut down"]


def body(cloud, id, action):
    if action == "rebuild":
        return {"imageRef": cloud.admin.image()}
    return {"flavorRef": "large"} if action == "resize" else ACTIONS[action]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_deletion_does_not_wait_for_the_guest(cloud, server, deaf, action):
    id = server["id"]
    deaf(id)
    reply = cloud.admin.act(id, action, body(cloud, id, action))
    assert reply.status in (200, 202), reply
    begun = eventually(lambda: asked_to_shut_down(cloud, id))
    assert cloud.admin.delete(f"/v2.1/servers/{id}").status == 204
    assert cloud.admin.settled(id) is None
    assert [one.status for one in begun] == ["cancelled"]
    assert not any(kvm.knows(id) for kvm in cloud.kvm.values())


def test_guests_that_take_their_time_keep_no_others_waiting(cloud, deaf):
    slow = [cloud.admin.boot(networks="none")["id"] for _at in range(2 * WORKERS)]
    other = cloud.admin.boot(networks="none")["id"]
    for id in slow:
        deaf(id)
        assert cloud.admin.act(id, "os-stop").status == 202
    for id in slow:
        eventually(lambda id=id: asked_to_shut_down(cloud, id))
    assert cloud.admin.act(other, "os-stop").status == 202
    assert cloud.admin.settled(other)["status"] == "SHUTOFF"
    assert all(row(cloud, id).task_state == "powering-off" for id in slow)
    for kvm in cloud.kvm.values():
        kvm.fake.deaf.clear()
    for id in slow:
        assert cloud.admin.settled(id)["status"] == "SHUTOFF"
        check(cloud, id)
    shares = cloud.parts.working.leased_actions
    eventually(lambda: not shares._hosts and not shares._others)
    eventually(lambda: cloud.parts.working.slots._free._value == WORKERS)


@pytest.mark.parametrize("boots", ["image", "volume"])
def test_the_image_says_how_long(cloud, boots):
    image = cloud.admin.image(f"slow-{boots}", os_shutdown_timeout="7")
    more = {"imageRef": image} if boots == "image" else {"imageRef": image, "block_device_mapping_v2": [
        {"boot_index": 0, "uuid": image, "source_type": "image", "destination_type": "volume", "volume_size": 1,
         "delete_on_termination": True}]}
    id = cloud.admin.boot(networks="none", **more)["id"]
    host = cloud.kvm[row(cloud, id).host].agent.host
    assert shutdown.shutdown_seconds(host, host.documents.get("server", id)) == 7
    cloud.admin.delete(f"/v2.1/servers/{id}")


def test_an_image_that_says_no_time_is_refused(cloud):
    image = cloud.admin.image("odd", os_shutdown_timeout="soon")
    reply = cloud.admin.post("/v2.1/servers", {"server": {
        "name": "web", "flavorRef": "1", "imageRef": image, "networks": "none"}}, "2.60")
    assert reply.status == 400 and "os_shutdown_timeout=soon" in reply.json["badRequest"]["message"]


def test_a_guest_that_hangs_is_told_of_and_not_its_host(cloud, server):
    """Others at its host go on, and it can be deleted."""
    id = server["id"]
    kvm = cloud.kvm[row(cloud, id).host]
    kvm.fake.hangs(id)
    assert cloud.admin.act(id, "pause").status == 202
    path = f"/v2.1/servers/{id}/os-instance-actions"
    failed = eventually(lambda: [one for one in cloud.admin.get(path).json["instanceActions"]
                                 if one["action"] == "pause" and one["message"]])[0]
    events = cloud.admin.get(f"{path}/{failed['request_id']}", "2.84").json["instanceAction"]["events"]
    assert [event["details"].partition(":")[0] for event in events] == [f"The guest {id} does not answer"]
    cloud.admin.settled(id)
    other = cloud.admin.boot(networks="none")["id"]
    assert cloud.admin.settled(other)["status"] == "ACTIVE"
    assert cloud.admin.delete(f"/v2.1/servers/{id}").status == 204
    assert cloud.admin.settled(id) is None
    remove(cloud, [other])
