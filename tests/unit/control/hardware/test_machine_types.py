# SPDX-License-Identifier: GPL-3.0-or-later
"""Machine types and image properties that servers keep: recorded at the build, kept by all that follows, changed by
``magnetar machine-type`` and ``magnetar image-property``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from magnetar_control import cli
from magnetar_control.scheduler.filters import has_needed_hardware, lacking_hardware
from magnetar_control.scheduler.host_state import HostState, Profile
from magnetar_control.scheduler.request_spec import RequestSpec
from magnetar_control.store.claims.allocations import Amounts
from magnetar_control.store.servers import servers
from tests.support.control import cloud as clouds
from tests.support.control.cloud import Cloud
from tests.support.control.hardware import act, on_host
from tests.support.control.specs import flavor, image

#: The QEMU of the second host is older.
OLDER = ("known = fake.FakeHypervisor.machine_types; fake.FakeHypervisor.machine_types = {word: version[:-1] + '1' "
         "for word, version in known.items() if word[-1] in 'c51'} if name == 'kvm2' else known; ")
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clouds, "AGENT", clouds.AGENT.replace("fake.FakeHypervisor = ", f"{OLDER}fake.FakeHypervisor = "))
        with Cloud(hosts=2, links=True, shelved_offload_time=-1,
                   non_inheritable_image_properties=["cache_in_nova", "secret_color"]) as made:
            yield made


@pytest.fixture
def run(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``magnetar`` on the cloud's settings; returns status, output and errors."""
    known = {**cloud.settings, "hosts": cloud.hosts, "state_dir": str(cloud.folder / "control")}
    path = cloud.folder / "command.yml"
    path.write_text(json.dumps(known))

    def command(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli.main([*words, "--config", str(path)])
        return status, *capsys.readouterr()
    return command


def on(host: str) -> dict[str, Any]:
    return {"availability_zone": f"nova:{host}"}


def kept(cloud: Cloud, id: str) -> dict[str, Any]:
    """What the row keeps of the image."""
    found = servers.find_server_row(cloud.parts.store, id)
    assert found
    image: dict[str, Any] = orjson.loads(found[1].stored.image)
    return image


def test_it_is_recorded_and_kept(cloud: Cloud) -> None:
    caller = cloud.admin
    made = caller.boot("kept", imageRef=image(caller, "plain"), **on("kvm2"))
    id = made["id"]
    assert on_host(cloud, id)["machine"] == kept(cloud, id)["machine"] == "pc-q35-7.1"
    assert "hw_machine_type" not in made["image"]["properties"] and caller.get(
        "/v1/server/kept").json["machine"] == "pc-q35-7.1"
    for want in ({}, {"machine": "auto"}):
        reply = caller.put("/v1/server/kept?dry_run=true", want)
        assert reply.status == 200 and not reply.json["changed"], reply
    act(caller, id, "migrate", None, "VERIFY_RESIZE")
    assert caller.server(id)["OS-EXT-SRV-ATTR:host"] == "kvm1"
    act(caller, id, "confirmResize", None, "ACTIVE")
    act(caller, id, "rebuild", {"imageRef": image(caller, "on-q35", hw_machine_type="q35")}, "ACTIVE")
    act(caller, id, "shelve", None, "SHELVED")
    act(caller, id, "shelveOffload", None, "SHELVED_OFFLOADED")
    act(caller, id, "unshelve", None, "ACTIVE")
    assert on_host(cloud, id)["machine"] == kept(cloud, id)["machine"] == "pc-q35-7.1"
    act(caller, id, "rebuild", {"imageRef": image(caller, "on-pc", hw_machine_type="pc")}, "ACTIVE")
    assert on_host(cloud, id)["machine"] == kept(cloud, id)["machine"] and kept(
        cloud, id)["machine"].startswith("pc-i440fx-7.")
    caller.delete(f"/v2.1/servers/{id}")


def test_images_of_servers_inherit_it(cloud: Cloud) -> None:
    """With what else the server's image asks for; but for what is of that image alone, and what the settings say."""
    caller = cloud.admin
    own = {"hw_disk_bus": "scsi", "hw_scsi_model": "virtio-scsi", "os_distro": "debian", "color": "red"}
    without = {"cache_in_nova": "yes", "img_signature": "x", "secret_color": "blue"}
    id = caller.boot("origin", imageRef=caller.image("own", min_ram=32, **own, **without), **on("kvm2"))["id"]
    for action, args in (
            ("createImage", {"name": "snap"}), ("createImage", {"name": "q", "metadata": {"hw_machine_type": "q35"}}),
            ("createBackup", {"name": "back", "backup_type": "daily", "rotation": 1}), ("shelve", None)):
        assert caller.act(id, action, args).status == 202
        found = caller.settled(id)
        assert found and not found.get("fault")
    images = {one["name"]: one for one in caller.get("/image/v2/images").json["images"]
              if one.get("instance_uuid") == id}
    machines = {name: one["hw_machine_type"] for name, one in images.items()}
    assert machines == {"snap": "pc-q35-7.1", "q": "q35", "back": "pc-q35-7.1", "origin-shelved": "pc-q35-7.1"}
    for one in images.values():
        assert one["min_ram"] == 32 and own.items() <= one.items() and not one.keys() & without.keys()
    caller.delete(f"/v2.1/servers/{id}")


def test_a_move_goes_to_a_host_that_has_it(cloud: Cloud) -> None:
    caller = cloud.admin
    id = caller.boot("new", imageRef=image(caller, "plain"), **on("kvm1"))["id"]
    assert kept(cloud, id)["machine"] == "pc-q35-7.2"
    assert caller.act(id, "migrate").status == 202
    found = caller.settled(id)
    assert found and found["OS-EXT-SRV-ATTR:host"] == "kvm1"
    (event,) = [one for one in caller.get(f"/v2.1/servers/{id}/os-instance-actions", "2.100").json["instanceActions"]
                if one["action"] == "migrate"]
    told = str(caller.get(f"/v2.1/servers/{id}/os-instance-actions/{event['request_id']}", "2.100").json)
    assert "lacks machine type pc-q35-7.2 (its QEMU has q35, pc-q35-7.1, pc, pc-i440fx-7.1)" in told
    caller.delete(f"/v2.1/servers/{id}")


@pytest.mark.parametrize(("machine", "image_says", "passes"), [
    ("", {}, True), ("pc-q35-7.1", {}, True), ("pc-q35-7.2", {}, False), ("", {"hw_machine_type": "pc"}, False),
    ("", {"hw_disk_bus": "ide"}, False), ("pc-q35-7.1", {"hw_machine_type": "q35"}, True)])
def test_the_filter(machine: str, image_says: dict[str, str], passes: bool) -> None:
    host = HostState("1", "kvm1")
    told = {"architecture": "x86_64", "machine_types": {"x86_64": ["q35", "pc-q35-7.1"]}}
    spec = RequestSpec("s", "p", Amounts(), machine=machine, image=image_says)
    host.profile = Profile(b"", "c", "nova", True, True, told, ())
    assert has_needed_hardware(host, spec) is passes
    assert passes or "lacks machine type" in lacking_hardware(host, spec)
    assert not spec.forced_to().hardware
    host.profile = Profile(b"", "c", "nova", True, True, {"architecture": "x86_64"}, ())
    assert has_needed_hardware(host, spec)  # an earlier agent does not tell


def test_what_no_host_has_is_told(cloud: Cloud) -> None:
    caller = cloud.admin
    found = caller.boot("none", imageRef=image(caller, "future", hw_machine_type="pc-q35-99.0"))
    assert found["status"] == "ERROR" and "machine type pc-q35-99.0" in found["fault"]["details"]
    caller.delete(f"/v2.1/servers/{found['id']}")
    arm = image(caller, "arm", hw_machine_type="microvm")
    reply = caller.post("/v2.1/servers", {"server": {"name": "odd", "flavorRef": "1", "networks": "none",
                                                     "imageRef": arm}}, "2.60")
    assert reply.status == 400, reply
    assert "it is q35, pc, virt, pseries or s390-ccw-virtio" in reply.json["badRequest"]["message"]


def test_the_commands_for_machine_types(cloud: Cloud, run: Command) -> None:
    caller = cloud.admin
    id = caller.boot("old", imageRef=image(caller, "was", hw_machine_type="pc-q35-7.1"), **on("kvm1"))["id"]
    nobody = "00000000-0000-0000-0000-000000000000"
    assert run("machine-type", "show", id)[:2] == (0, "pc-q35-7.1\n")
    assert run("machine-type", "show", nobody)[0] == run("machine-type", "update", nobody, "pc-q35-7.2")[0] == 2
    status, _out, told = run("machine-type", "update", id, "pc-q35-7.2")
    assert status == 3 and "is active; this changes while it is stopped" in told
    act(caller, id, "os-stop", None, "SHUTOFF")
    for word, status, why in (("microvm", 5, "must be q35, pc, virt"), ("pc-q35-7.0", 4, "is no later version"),
                              ("q35", 4, "says no version"), ("pc-i440fx-7.2", 4, "is another machine"),
                              ("pc-q35-9.0", 4, "must be a machine type that QEMU of host")):
        found = run("machine-type", "update", id, word)
        assert found[0] == status and why in found[2], found
        assert on_host(cloud, id)["machine"] == kept(cloud, id)["machine"] == "pc-q35-7.1"
    for _again in range(2):
        assert run("machine-type", "update", id, "pc-q35-7.2")[0] == 0
        assert on_host(cloud, id)["machine"] == kept(cloud, id)["machine"] == "pc-q35-7.2"
    assert run("machine-type", "update", id, "pc", "--force")[:2] == (0, f"{id}\tpc-q35-7.2\tpc-i440fx-7.2\n")
    assert run("machine-type", "update", id, "pc-q35-7.1", "--force")[0] == 0
    act(caller, id, "os-start", None, "ACTIVE")
    assert on_host(cloud, id)["machine"] == "pc-q35-7.1"
    act(caller, id, "shelve", None, "SHELVED")
    act(caller, id, "shelveOffload", None, "SHELVED_OFFLOADED")
    assert run("machine-type", "update", id, "pc-q35-7.2")[0] == 0
    assert run("machine-type", "list-unset") == (0, "", "")
    act(caller, id, "unshelve", None, "ACTIVE")
    assert on_host(cloud, id)["machine"] == "pc-q35-7.2" and caller.server(id)["OS-EXT-SRV-ATTR:host"] == "kvm1"
    caller.delete(f"/v2.1/servers/{id}")


def test_those_without_one_are_listed(cloud: Cloud, run: Command) -> None:
    caller = cloud.admin
    found = caller.boot("huge", flavorRef=flavor(caller, "gone", {"trait:CUSTOM_NOWHERE": "required"}))
    assert found["status"] == "ERROR"
    assert run("machine-type", "list-unset")[:2] == (3, f"{found['id']}\n")
    assert run("machine-type", "list-unset", "--cell", "cell0")[0] == 3
    assert run("machine-type", "list-unset", "--cell-uuid", "elsewhere")[0] == 2
    assert run("machine-type", "show", found["id"])[0] == 3
    caller.delete(f"/v2.1/servers/{found['id']}")


def test_the_commands_for_image_properties(cloud: Cloud, run: Command) -> None:
    caller = cloud.admin
    id = caller.boot("bus", imageRef=image(caller, "on-scsi", hw_disk_bus="scsi"), **on("kvm1"))["id"]
    assert run("image-property", "show", id, "hw_disk_bus")[:2] == (0, "scsi\n")
    assert run("image-property", "show", id, "hw_machine_type")[:2] == (0, "pc-q35-7.2\n")
    assert run("image-property", "show", id, "hw_vif_model")[0] == 3
    words = "image-property", "set", id, "--property"
    assert run(*words, "hw_disk_bus=sata")[0] == 3
    act(caller, id, "os-stop", None, "SHUTOFF")
    for word, status, why in (("os_distro=debian", 4, "asks for hardware"), ("hw_machine_type=pc", 4, "machine-type"),
                              ("hw_disk_bus=usb", 5, "hw_disk_bus=usb"), ("hw_disk_bus", 5, "NAME=VALUE"),
                              ("hw_disk_bus=ide", 5, "cannot be ide"), ("hw_cpu_policy=dedicated", 5, ""),
                              ("hw_ephemeral_encryption=true", 5, "leave what the server has")):
        found = run(*words, word)
        assert found[0] == status and why in found[2], (word, found)
    status, out, _err = run(*words, "hw_disk_bus=sata", "--property", "hw_vif_model=e1000")
    assert (status, out) == (0, "hw_disk_bus=sata\tchanged\nhw_vif_model=e1000\tchanged\n")
    assert run(*words, "hw_disk_bus=sata")[1] == "hw_disk_bus=sata\tas it was\n"
    assert on_host(cloud, id)["hardware"] == {"disk_bus": "sata", "nic_model": "e1000"}
    assert kept(cloud, id)["properties"] == {"hw_disk_bus": "sata", "hw_vif_model": "e1000"}
    assert caller.server(id)["OS-EXT-SRV-ATTR:root_device_name"] == "/dev/sda"
    act(caller, id, "os-start", None, "ACTIVE")
    act(caller, id, "shelve", None, "SHELVED")
    act(caller, id, "shelveOffload", None, "SHELVED_OFFLOADED")
    assert run(*words, "hw_disk_bus=virtio")[0] == 0
    act(caller, id, "unshelve", None, "ACTIVE")
    assert on_host(cloud, id)["hardware"] == {"nic_model": "e1000"}
    assert caller.server(id)["OS-EXT-SRV-ATTR:root_device_name"] == "/dev/vda"
    caller.delete(f"/v2.1/servers/{id}")
