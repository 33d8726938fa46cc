# SPDX-License-Identifier: GPL-3.0-or-later
"""What flavors and images ask of a server's hardware reaches its host: when it is made, resized, rebuilt and moved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magnetar_core.image_format import qcow2_header
from tests.support.control.cloud import Cloud
from tests.support.control.hardware import LIVE, act, on_host
from tests.support.control.specs import flavor, image


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=2, links=True) as made:
        yield made


def test_a_server_has_it_from_its_making_to_its_moves(cloud: Cloud) -> None:
    caller = cloud.admin
    dog = flavor(caller, "dog", {"hw:watchdog_action": "reset", "quota:disk_read_iops_sec": "100"})
    disk = image(caller, "on-sata", hw_disk_bus="sata", hw_machine_type="pc", hw_vif_model="e1000")
    made = caller.boot("web", flavorRef=dog, imageRef=disk)
    want = {"watchdog": "reset", "disk_read_iops_sec": 100, "disk_bus": "sata", "nic_model": "e1000"}
    seen = on_host(cloud, made["id"])
    assert (seen["hardware"], seen["machine"]) == (want, "pc-i440fx-7.2")
    assert caller.get("/v1/server/web").json["hardware"] == want
    assert caller.server(made["id"])["OS-EXT-SRV-ATTR:root_device_name"] == "/dev/sda"
    act(caller, made["id"], "migrate", None, "VERIFY_RESIZE")
    assert on_host(cloud, made["id"])["hardware"] == want
    act(caller, made["id"], "confirmResize", None, "ACTIVE")
    cat = flavor(caller, "cat", {"hw:boot_menu": "yes"})
    act(caller, made["id"], "resize", {"flavorRef": cat}, "VERIFY_RESIZE")
    assert on_host(cloud, made["id"])["hardware"] == {"boot_menu": True, "disk_bus": "sata", "nic_model": "e1000"}
    act(caller, made["id"], "revertResize", None, "ACTIVE")
    assert on_host(cloud, made["id"])["hardware"] == want
    plain = image(caller, "plain")
    act(caller, made["id"], "rebuild", {"imageRef": plain}, "ACTIVE")
    seen = on_host(cloud, made["id"])
    assert seen["hardware"] == {"watchdog": "reset", "disk_read_iops_sec": 100}
    assert caller.server(made["id"])["OS-EXT-SRV-ATTR:root_device_name"] == "/dev/vda"


@pytest.mark.parametrize(("specs", "properties", "why"), [
    ({"hw:cpu_sockets": "3"}, {}, "multiply to the 1 virtual CPUs"),
    ({"hw:pmu": "true"}, {"hw_pmu": "false"}, "both must say the same"),
    ({"hw:serial_port_count": "2"}, {"hw_serial_port_count": "3"}, "must be no more than the flavor's"),
    ({}, {"hw_video_ram": "16"}, "no more than the flavor's hw_video:ram_max_mb"),
    ({"os:secure_boot": "required"}, {}, "needs firmware uefi"),
    ({"os:secure_boot": "required"}, {"hw_firmware_type": "uefi", "hw_machine_type": "pc"}, "use machine q35"),
    ({"os:secure_boot": "disabled"}, {"hw_firmware_type": "uefi", "os_secure_boot": "required"},
     "both must say the same"),
    ({"hw:tpm_version": "1.2"}, {"hw_tpm_model": "tpm-crb"}, "only for a TPM of version 2.0"),
    ({"hw:tpm_version": "1.2"}, {"hw_tpm_version": "2.0"}, "both must say the same"),
    ({}, {"hw_disk_bus": "ide", "hw_machine_type": "q35"}, "cannot be ide on machine q35"),
    ({"os:secure_boot": "required"}, {"hw_firmware_type": "uefi", "hw_disk_bus": "ide"}, "use machine q35")], ids=str)
def test_what_does_not_go_together_is_refused(cloud: Cloud, specs: dict[str, str], properties: dict[str, str],
                                              why: str) -> None:
    caller = cloud.admin
    caller.delete("/v2.1/flavors/odd")
    body = {"name": "odd", "flavorRef": flavor(caller, "odd", specs), "networks": "none",
            "imageRef": image(caller, "odd" + "-".join(properties), **properties)}
    reply = caller.post("/v2.1/servers", {"server": body}, "2.60")
    assert reply.status == 400 and why in reply.json["badRequest"]["message"], reply
    assert caller.get("/v2.1/servers?name=odd").json["servers"] == []


def test_a_server_with_a_tpm_is_not_asked_for_what_loses_it(cloud: Cloud) -> None:
    caller = cloud.admin
    trusted = flavor(caller, "trusted", {"hw:tpm_version": "2.0", "os:secure_boot": "required"})
    made = caller.boot("tpm", flavorRef=trusted, imageRef=image(caller, "efi", hw_firmware_type="uefi"))
    want = {"tpm_version": "2.0", "tpm_secret_security": "user", "firmware": "uefi", "secure_boot": "required"}
    assert on_host(cloud, made["id"])["hardware"] == want
    live = {"host": None, "block_migration": False, "disk_over_commit": False}
    for action, args in (("os-migrateLive", live), ("shelve", None), ("rescue", {}),
                         ("evacuate", {"onSharedStorage": False})):
        reply = caller.act(made["id"], action, args)
        assert reply.status == 409, reply
        assert "not supported for vTPM-enabled instance" in reply.json["conflictingRequest"]["message"]
    act(caller, made["id"], "migrate", None, "VERIFY_RESIZE")
    act(caller, made["id"], "confirmResize", None, "ACTIVE")
    assert on_host(cloud, made["id"])["hardware"] == want
    caller.delete(f"/v2.1/servers/{made['id']}")
    assert caller.settled(made["id"]) is None


def test_the_key_of_encrypted_disks(cloud: Cloud) -> None:
    """The key manager has one key of such a server, from its making to its end: another one after each rebuild."""
    caller, folder = cloud.admin, cloud.folder / "control/keys"
    hidden = flavor(caller, "hidden", {"hw:ephemeral_encryption": "true", "hw:ephemeral_encryption_format": "luks"})
    made = caller.boot("hidden", flavorRef=hidden, imageRef=image(caller, "shown"))
    id, first = made["id"], (folder / made["id"]).read_text()
    assert len(first) == 64 and (folder / id).stat().st_mode & 0o777 == 0o600
    for reply in (caller.get(f"/v2.1/servers/{id}", "2.100"), caller.get("/v1/server/hidden")):
        assert reply.status == 200 and first not in str(reply.json)
    for action, args in (("createImage", {"name": "leak"}),
                         ("createBackup", {"name": "leak", "backup_type": "daily", "rotation": 1})):
        reply = caller.act(id, action, args)
        assert reply.status == 409 and "whose local disks are encrypted" in reply.json["conflictingRequest"]["message"]
    for action, args in (("resize", {"flavorRef": flavor(caller, "open", {})}),
                         ("rebuild", {"imageRef": image(caller, "open", hw_ephemeral_encryption="false")})):
        assert caller.act(id, action, args).status == 400
    reply = caller.act(caller.boot("open", flavorRef="1")["id"], "resize", {"flavorRef": hidden})
    assert reply.status == 400 and "decided when an instance is made" in reply.json["badRequest"]["message"]
    act(caller, id, "migrate", None, "VERIFY_RESIZE")
    act(caller, id, "confirmResize", None, "ACTIVE")
    before = caller.server(id)["OS-EXT-SRV-ATTR:host"]
    act(caller, id, "os-migrateLive", LIVE, "ACTIVE")
    assert caller.server(id)["OS-EXT-SRV-ATTR:host"] != before
    assert on_host(cloud, id)["hardware"] == {"ephemeral_encryption": True}
    act(caller, id, "rebuild", {"imageRef": image(caller, "shown")}, "ACTIVE")
    kept = [one.name for one in folder.iterdir()]
    assert len(kept) == 1 and kept != [id] and (folder / kept[0]).read_text() != first
    act(caller, id, "reboot", {"type": "HARD"}, "ACTIVE")
    caller.delete(f"/v2.1/servers/{id}")
    assert caller.settled(id) is None and not list(folder.iterdir())


def test_a_server_with_encrypted_disks_is_shelved_in_an_encrypted_image(cloud: Cloud) -> None:
    """Its key stays in the key manager, and nothing but the server is made of the image."""
    caller, folder = cloud.admin, cloud.folder / "control/keys"
    hidden = flavor(caller, "hidden-too", {"hw:ephemeral_encryption": "true"})
    id = caller.boot("put-away", flavorRef=hidden, imageRef=image(caller, "shown"))["id"]
    act(caller, id, "rebuild", {"imageRef": image(caller, "shown")}, "ACTIVE")  # which draws another key
    (key,) = folder.iterdir()
    drawn = key.read_text()
    act(caller, id, "shelve", None, "SHELVED_OFFLOADED")
    (shelved,) = caller.get("/image/v2/images?name=put-away-shelved").json["images"]
    assert shelved["hw_ephemeral_encryption_secret_uuid"] == key.name and shelved["status"] == "active"
    content = next(cloud.folder.glob(f"control/**/{shelved['id']}")).read_bytes()
    assert qcow2_header(content).encrypted and drawn.encode() not in content and key.read_text() == drawn
    body = {"name": "leak", "flavorRef": hidden, "networks": "none", "imageRef": shelved["id"]}
    for reply in (caller.post("/v2.1/servers", {"server": body}, "2.60"),
                  caller.post("/volume/v3/volumes", {"volume": {"size": 1, "imageRef": shelved["id"]}})):
        assert reply.status == 400 and "is encrypted" in reply.json["badRequest"]["message"], reply
    act(caller, id, "unshelve", None, "ACTIVE")
    assert on_host(cloud, id)["power_state"] == "running" and [one.read_text() for one in folder.iterdir()] == [drawn]
    assert caller.get("/image/v2/images?name=put-away-shelved").json["images"] == []
    for action, args, status in (("os-migrateLive", LIVE, "ACTIVE"), ("shelve", None, "SHELVED_OFFLOADED")):
        act(caller, id, action, args, status)
    caller.delete(f"/v2.1/servers/{id}")
    assert caller.settled(id) is None and not list(folder.iterdir())


def test_a_server_on_a_volume_has_what_the_volume_s_image_asks_for(cloud: Cloud) -> None:
    caller = cloud.admin
    mapping = [{"boot_index": 0, "uuid": image(caller, "for-volume", hw_boot_menu="true", hw_disk_bus="scsi"),
                "source_type": "image", "destination_type": "volume", "volume_size": 1}]
    made = caller.boot("volume", imageRef="", block_device_mapping_v2=mapping)
    found = on_host(cloud, made["id"])
    assert found["hardware"] == {"boot_menu": True, "disk_bus": "scsi"}
    assert found["block_device_mapping"][0]["device_name"] == "sda"
    mapping[0]["uuid"] = image(caller, "floppy", hw_sound_model="usb")
    body = {"name": "odd", "flavorRef": "1", "networks": "none",
            "imageRef": "", "block_device_mapping_v2": mapping}
    reply = caller.post("/v2.1/servers", {"server": body}, "2.60")
    assert reply.status == 400 and "guests have no sound" in reply.json["badRequest"]["message"], reply
