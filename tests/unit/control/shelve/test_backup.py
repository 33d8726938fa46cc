# SPDX-License-Identifier: GPL-3.0-or-later
"""createBackup: the newest backups of each kind stay, whatever goes wrong, and no other image goes."""

import uuid

import pytest

from magnetar_control.conductor.flows import server_create_image
from magnetar_control.services import Context
from magnetar_core.errors import Conflict, Unavailable
from tests.support.control.crashes import until_none
from tests.support.control.snapshot import queued, unreachable
from tests.support.control.trouble import failing
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import check, flavors
from tests.unit.control.moves.dying import through
from tests.unit.control.moves.inside import Inside

from .shelving import ENGINES

pytestmark = ENGINES


@pytest.fixture(scope="module")
def cloud(databases):
    """Agents in this process."""
    with Inside(databases=databases) as found:
        flavors(found)
        yield found


def backup(owner, id, name, rotation=2, kind="daily", **metadata):
    """Have one made, to its end; its uuid."""
    reply = owner.call.act(id, "createBackup", {"name": name, "backup_type": kind, "rotation": rotation,
                                                "metadata": metadata}, "2.45")
    assert reply.status == 202, reply
    found = owner.call.settled(id)
    assert found and found["status"] in ("ACTIVE", "SHUTOFF"), found
    return reply.json["image_id"]


def kept(owner, id, kind="daily"):
    """Names of the server's backups that have their content, oldest first."""
    found = [one for one in owner.images() if one.get("backup_type") == kind and one.get("instance_uuid") == id
             and one["image_type"] == "backup" and one["status"] == "active"]
    return [one["name"] for one in sorted(found, key=lambda one: one["created_at"] + one["name"])]


def made(owner, id, name, rotation, fate):
    """Have one made with a death in it."""
    image = str(uuid.uuid4())
    owner.cloud.services.image.create(
        Context(owner.call.user_id, owner.call.project_id, frozenset(("member",))), name, id=image,
        disk_format="qcow2", container_format="bare", visibility="private",
        properties={"image_type": "backup", "backup_type": "daily", "instance_uuid": id})
    found = through(owner.cloud, id, "createBackup", fate, image=image, name=name, rotation=rotation)
    assert (found.vm_state, found.task_state, found.fault) == ("active", None, None), fate.number
    owner.check_counters()
    return image


def test_the_oldest_of_its_kind_go(owner):
    id, other = (owner.server(flavorRef="small", name=name)["id"] for name in ("web1", "web2"))
    assert owner.call.act(id, "createImage", {"name": "golden"}, "2.45").status == 202
    owner.call.settled(id)
    backup(owner, other, "other")
    backup(owner, id, "w1", kind="weekly")
    for number in range(1, 5):
        image = backup(owner, id, f"d{number}", color="blue")
        assert kept(owner, id) == [f"d{one}" for one in range(max(1, number - 1), number + 1)]
    assert kept(owner, id, "weekly") == ["w1"] and kept(owner, other) == ["other"] and owner.named("golden")
    found = owner.call.get(f"/image/v2/images/{image}").json
    assert (found["image_type"], found["backup_type"], found["instance_uuid"], found["color"]) == (
        "backup", "daily", id, "blue")
    assert owner.server(name="copy", imageRef=image, flavorRef="small")["image"]["id"] == image
    last = owner.last_action(id)
    assert (last["action"], [(one["event"], one["result"]) for one in last["events"]]) == (
        "createBackup", [("compute_backup_instance", "Success")])
    backup(owner, id, "none", rotation=0)
    assert kept(owner, id) == [] and kept(owner, id, "weekly") == ["w1"]
    check(owner.cloud, id)


@pytest.mark.parametrize("before", ["os-stop", "pause", "suspend"])
def test_a_server_that_does_not_run(owner, before):
    id = owner.server(flavorRef="small")["id"]
    state = owner.act(id, before)["status"]
    reply = owner.call.act(id, "createBackup", {"name": "b", "backup_type": "daily", "rotation": 1})
    assert reply.status == 202 and reply.headers["location"].rpartition("/")[0].endswith("/image/v2/images")
    assert owner.call.settled(id)["status"] == state and kept(owner, id) == ["b"]
    reply = owner.call.act(id, "createBackup", {"name": "b", "backup_type": "daily", "rotation": 0})
    assert reply.status == 202 and "location" not in reply.headers
    owner.call.settled(id)


def test_one_that_fails_costs_none_of_those_before(owner, monkeypatch):
    id = owner.server(flavorRef="small")["id"]
    for name in ("d1", "d2"):
        backup(owner, id, name)
    with monkeypatch.context() as patched:
        patched.setattr(server_create_image, "upload_root_disk",
                        failing(Conflict("The host has no room for a copy."), 9))
        for rotation in (2, 1, 0):
            failed = backup(owner, id, "d3", rotation)
            assert owner.call.get(f"/image/v2/images/{failed}").json["status"] == "killed"
            assert kept(owner, id) == ["d1", "d2"]
    backup(owner, id, "d4")
    assert kept(owner, id) == ["d2", "d4"], "one that failed counts for nothing"


def test_what_cannot_be_deleted_stays_and_is_tried_again(owner):
    id = owner.server(flavorRef="small")["id"]
    first = backup(owner, id, "d1", 1)
    path, headers = f"/image/v2/images/{first}", {"Content-Type": "application/openstack-images-v2.1-json-patch"}
    protect = [{"op": "replace", "path": "/protected", "value": True}]
    assert owner.call.call("PATCH", path, protect, headers=headers).status == 200
    backup(owner, id, "d2", 1)
    backup(owner, id, "d3", 1)
    assert kept(owner, id) == ["d1", "d3"]
    protect[0]["value"] = False
    assert owner.call.call("PATCH", path, protect, headers=headers).status == 200
    backup(owner, id, "d4", 1)
    assert kept(owner, id) == ["d4"]


def test_an_image_service_that_falls_silent_costs_nothing(owner, monkeypatch):
    id = owner.server(flavorRef="small")["id"]
    for name in ("d1", "d2"):
        backup(owner, id, name)
    with monkeypatch.context() as patched:
        patched.setattr(owner.cloud.services.image, "list", failing(Unavailable("It does not answer."), 9))
        backup(owner, id, "d3")
    assert len(kept(owner, id)) == 3
    backup(owner, id, "d4")
    assert kept(owner, id) == ["d3", "d4"]


def test_images_of_other_projects_say_what_they_like(owner):
    """Whoever calls images of his backups of this server has none of its own go."""
    id, images = owner.server(flavorRef="small")["id"], owner.cloud.services.image
    backup(owner, id, "d1")
    forged = [images.create(Context("mallory", "theirs", frozenset(("member",))), f"x{number}", disk_format="raw",
                            container_format="bare", visibility="community", properties={
                                "image_type": "backup", "backup_type": "daily", "instance_uuid": id})["id"]
              for number in range(3)]
    for one in forged:
        images.upload(one, [b"0" * 512])
    backup(owner, id, "d2")
    mine = [one["name"] for one in owner.images() if one["owner"] == owner.call.project_id and "backup_type" in one]
    assert sorted(mine) == ["d1", "d2"]
    there = Context("admin", None, frozenset(("admin",)))
    assert all(images.show(there, one) for one in forged)
    for one in forged:
        images.delete(there, one)


def test_a_server_that_is_deleted_before_its_backup_is_made(owner):
    id = owner.server(flavorRef="small")["id"]
    first = backup(owner, id, "d1", 1)
    with pytest.MonkeyPatch.context() as patched:
        unreachable(patched)
        reply = owner.call.act(id, "createBackup", {"name": "d2", "backup_type": "daily", "rotation": 1}, "2.45")
        eventually(lambda: queued(owner, id, "createBackup"))
    assert owner.call.delete(f"/v2.1/servers/{id}").status == 204
    assert owner.call.settled(id) is None
    assert owner.call.get(f"/image/v2/images/{reply.json['image_id']}").json["status"] == "killed"
    assert owner.call.get(f"/image/v2/images/{first}").json["status"] == "active"


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("rotation", [2, 0])
def test_a_conductor_may_die_anywhere(owner, late, rotation):
    id, names = owner.server(flavorRef="small")["id"], []

    def once(fate):
        names.append(f"d{len(names):03}")
        made(owner, id, names[-1], rotation, fate)
        assert kept(owner, id) == (names[-2:] if rotation else []), fate.number

    until_none(owner.cloud, id, late, (once,))
    check(owner.cloud, id)
