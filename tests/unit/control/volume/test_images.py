# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of volumes (``os-volume_upload_image``), and what an image says of volumes that are made of it."""

import uuid

import pytest

from magnetar_core.errors import MagnetarError, Unreachable
from tests.support.control.serving import ALICE, BOB

from .conftest import IMAGE, Images, work

GIVEN = {"image_name": "golden", "disk_format": "qcow2", "container_format": "bare", "force": False}


@pytest.fixture
def volume(service):
    """One of an image, by its uuid."""
    made = service.create(ALICE, 1, name="data", image_id=IMAGE)
    work(service)
    return made["id"]


def upload(ask, id, status=202, **given):
    """Ask for it; what is answered."""
    answer = ask("POST", f"/v3/red/volumes/{id}/action", {"os-volume_upload_image": {**GIVEN, **given}}, status=status)
    return answer["os-volume_upload_image"] if status == 202 else answer


def status(ask, id):
    return ask("GET", f"/v3/red/volumes/{id}")["volume"]["status"]


@pytest.mark.parametrize("format", ["qcow2", "raw"])
def test_a_volume_becomes_an_image(ask, service, cloud, volume, format):
    told = upload(ask, volume, disk_format=format, visibility="private", protected=True)
    assert {name: told[name] for name in ("status", "image_name", "disk_format", "visibility", "protected")} == {
        "status": "uploading", "image_name": "golden", "disk_format": format, "visibility": "private",
        "protected": True}
    id = told["image_id"]
    assert status(ask, volume) == "uploading" and service.images.made[id]["status"] == "queued"
    assert service.is_uploading(id) and not service.is_uploading(str(uuid.uuid4()))
    upload(ask, volume, 400)
    ask("DELETE", f"/v3/red/volumes/{volume}", status=400)
    with pytest.raises(MagnetarError, match="uploading"):
        service.reserve(ALICE, volume, str(uuid.uuid4()))
    assert work(service) == 1
    assert status(ask, volume) == "available" and not service.is_uploading(id)
    image = service.images.made[id]
    assert (image["status"], image["min_disk"], image["properties"]) == ("active", 1, {"hw_disk_bus": "virtio"})
    assert service.images.contents[id].startswith(b"QFI\xfb") is (format == "qcow2")
    assert [one["name"] for one in cloud.on_host("image").values()] == ["cirros"]  # the host keeps nothing of it


def test_what_is_refused(ask, service, volume):
    upload(ask, volume, 400, disk_format="vmdk")
    upload(ask, volume, 400, container_format="ova")
    upload(ask, volume, 400, image_name="")
    upload(ask, str(uuid.uuid4()), 404)
    with pytest.raises(MagnetarError, match="could not be found"):
        service.upload_image(BOB, volume, "golden")
    service.attached(service.reserve(ALICE, volume, str(uuid.uuid4()))["id"], "kvm1", "/dev/vdb")
    upload(ask, volume, 400, force=True)  # as in Cinder, unless an operator allows that
    assert service.images.made == {}


def test_the_work_of_a_process_that_died_is_done_again(ask, service, cloud, volume, monkeypatch):
    id = upload(ask, volume)["image_id"]

    def breaks(_id, _chunks, size=None):
        raise Unreachable("The image service does not answer.")

    with monkeypatch.context() as broken:
        broken.setattr(service.images, "upload", breaks)
        assert service.worker.step()
    assert status(ask, volume) == "uploading"
    work(service)
    assert (status(ask, volume), service.images.made[id]["status"]) == ("available", "active")
    assert len(cloud.on_host("image")) == 1


def test_an_image_that_is_deleted_meanwhile(ask, service, cloud, volume):
    id = upload(ask, volume)["image_id"]
    del service.images.made[id]
    work(service)
    assert status(ask, volume) == "available" and len(cloud.on_host("image")) == 1
    (message,) = ask("GET", "/v3/red/messages")["messages"]
    assert "was deleted before" in message["user_message"]


def test_a_host_that_refuses_leaves_the_volume_and_no_image(ask, service, cloud, volume):
    with cloud.agents.client(cloud.endpoint) as client:
        client.ensure("server", "web1", {"image": None, "flavor": {"vcpus": 1, "ram": 64, "disk": 1}})
        client.ensure("volume_attachment", f"web1:{volume}", {"server": "web1", "volume": volume})
    id = upload(ask, volume)["image_id"]
    work(service)
    assert (status(ask, volume), service.images.made[id]["status"]) == ("available", "killed")
    assert "attached to web1" in service.images.made[id]["why"]


def test_an_image_names_the_type_of_its_volumes(ask, service):
    service.images = Images(cinder_img_volume_type="fast")
    made = ask("POST", "/v3/red/volumes", {"volume": {"size": 1, "imageRef": IMAGE}}, status=202)["volume"]
    assert made["volume_type"] == "fast"
    made = ask("POST", "/v3/red/volumes", {"volume": {
        "size": 1, "imageRef": IMAGE, "volume_type": "default"}}, status=202)["volume"]
    assert made["volume_type"] == "default"
    service.images = Images(cinder_img_volume_type="none")
    ask("POST", "/v3/red/volumes", {"volume": {"size": 1, "imageRef": IMAGE}}, status=400)
