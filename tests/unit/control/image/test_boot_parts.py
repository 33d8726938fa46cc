# SPDX-License-Identifier: GPL-3.0-or-later
"""Images that boot with a kernel and a ramdisk of their own, from the request to the host."""

import gzip

import pytest

from magnetar_control.conductor.periodic import periodic
from magnetar_control.services.image.boot_parts import image_command_line, named_parts
from tests.support.control.cloud import Cloud
from tests.unit.core.images import kernel

from .glance import PATCH

RAMDISK = gzip.compress(b"070701" + b"0" * 104)


@pytest.fixture(scope="module")
def cloud():
    with Cloud(hosts=1) as made:
        yield made


@pytest.fixture(scope="module")
def parts(cloud):
    """Uuids of a kernel and a ramdisk of the administrator's project."""
    return {name: cloud.admin.image(name, content, disk_format=form, container_format=form)
            for name, content, form in (("vmlinuz", kernel(), "aki"), ("initrd", RAMDISK, "ari"))}


def named(parts, **more):
    return {"kernel_id": parts["vmlinuz"], "ramdisk_id": parts["initrd"], **more}


def test_a_server_boots_with_the_parts_of_its_image(cloud, parts):
    admin = cloud.admin
    image = admin.image("rootfs", **named(parts))
    made = admin.boot("web1", imageRef=image)
    assert made["status"] == "ACTIVE", made
    assert [made[f"OS-EXT-SRV-ATTR:{name}_id"] for name in ("kernel", "ramdisk")] == [*parts.values()]
    with cloud.parts.agents.client(cloud.hosts["kvm1"]) as client:
        stored = client.get("image", image)
    assert {name: stored[name] for name in ("kernel", "ramdisk", "cmdline")} == {
        "kernel": parts["vmlinuz"], "ramdisk": parts["initrd"], "cmdline": "root=/dev/vda console=tty0 console=ttyS0"}
    for query, count in ((f"kernel_id={parts['vmlinuz']}", 1), (f"ramdisk_id={parts['vmlinuz']}", 0)):
        assert len(admin.get(f"/v2.1/servers?{query}").json["servers"]) == count
    admin.delete(f"/v2.1/servers/{made['id']}")
    assert admin.settled(made["id"]) is None


def test_parts_of_servers_stay_on_their_host(cloud, parts, monkeypatch):
    """Also where the host has lost the image that names them: the next build of it finds them there."""
    monkeypatch.setattr(periodic, "UNUSED", -60.0)
    admin, conductor = cloud.admin, cloud.parts.working
    image = admin.image("rootfs", **named(parts))
    made = admin.boot("web2", imageRef=image)
    with cloud.parts.agents.client(cloud.hosts["kvm1"]) as client:
        client.delete("image", image)
        assert periodic.remove_unused_images(conductor) == 0
        assert {*parts.values()} <= {one["id"] for one in client.list("image")}
        admin.delete(f"/v2.1/servers/{made['id']}")
        assert admin.settled(made["id"]) is None
        monkeypatch.setattr(periodic, "UNUSED", -3600.0)
        assert periodic.remove_unused_images(conductor) >= 2
        assert not {*parts.values()} & {one["id"] for one in client.list("image")}


@pytest.mark.parametrize(("name", "properties", "words"), [
    ("gone", {"kernel_id": "00000000-0000-4000-8000-000000000000"}, "could not be found"),
    ("wrong", {"kernel_id": "{initrd}"}, "must be active and of disk_format aki"),
    ("odd", {"kernel_id": "{vmlinuz}", "ramdisk_id": "{vmlinuz}"}, "must be active and of disk_format ari")])
def test_parts_that_an_image_may_not_have_are_refused(cloud, parts, name, properties, words):
    admin = cloud.admin
    image = admin.image(name, **{key: value.format(**parts) for key, value in properties.items()})
    reply = admin.post("/v2.1/servers", {"server": {
        "name": name, "imageRef": image, "flavorRef": "1", "networks": "none"}}, "2.60")
    assert reply.status == 400 and words in reply.json["badRequest"]["message"], reply


def test_a_kernel_of_another_project_must_be_public(cloud, parts):
    other = cloud.caller("ann", "red")
    image = other.image("theirs", **named(parts))
    body = {"server": {"name": "spy", "imageRef": image, "flavorRef": "1", "networks": "none"}}
    reply = other.post("/v2.1/servers", body, "2.60")
    assert reply.status == 400 and "name a public image" in reply.json["badRequest"]["message"], reply


def test_images_that_name_each_other_keep_no_conductor(cloud):
    admin = cloud.admin
    first, second = (admin.image(name, kernel(), disk_format="aki", container_format="aki") for name in ("a", "b"))
    for id, part in ((first, second), (second, first)):
        patch = [{"op": "add", "path": "/kernel_id", "value": part}]
        reply = admin.call("PATCH", f"/image/v2/images/{id}", patch, headers={"Content-Type": PATCH})
        assert reply.status == 200, reply
    image = admin.image("circle", kernel_id=first)
    assert admin.boot("web2", imageRef=image)["status"] == "ACTIVE"


def test_words_that_name_nothing():
    assert named_parts({"properties": {"kernel_id": "", "ramdisk_id": "8e2a"}}) == {}
    assert image_command_line({"properties": {"os_command_line": "quiet"}}) == "quiet"
    assert image_command_line({"properties": {"hw_disk_bus": "scsi"}}).startswith("root=/dev/sda ")
