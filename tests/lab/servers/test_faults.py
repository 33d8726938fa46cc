# SPDX-License-Identifier: GPL-3.0-or-later
"""What goes wrong on a host: a killed agent, dying guests, hands from outside, a full disk, hostile images."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import libvirt
import pytest

from magnetar_core.errors import Conflict, ImageRefused, MagnetarError, NoSpace
from tests.support.lab import guest
from tests.support.lab.agent import LabAgent, eventually, remove_domain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.lab

SIZES = {"vcpus": 1, "ram": 128, "disk": 1}
WANT: dict[str, Any] = {"flavor": SIZES, "image": "kernel"}
NOTHING: dict[str, list[str]] = {"domains": [], "files": []}


@pytest.fixture(scope="module")
def lab(guest_image: dict[str, Path]) -> Iterator[LabAgent]:
    """An agent with images and a server called web that is up."""
    with LabAgent(shutdown_timeout=10) as made:
        made.import_image("disk", guest_image["disk"])
        made.import_image("ramdisk", guest_image["ramdisk"], disk_format="ari")
        made.import_image("kernel", guest_image["kernel"], disk_format="aki", ramdisk="ramdisk",
                          cmdline=guest.KERNEL_ARGS)  # fmt: skip
        made.ensure("server", "web", WANT)
        yield made


@pytest.fixture
def web(lab: LabAgent) -> str:
    """The name of a server that runs and is up, whatever the test before has done to it."""
    if lab.show("server", "web")["power_state"] != "running":
        started(lab, "web")
    lab.up("web")
    return "web"


def started(lab: LabAgent, key: str) -> dict[str, Any]:
    """Start a server that is off, and wait until its guest is up."""
    boots = lab.boots(key)
    shown = lab.power(key, "running")
    lab.up(key, boots + 1)
    return shown


# A killed agent

MOMENTS: dict[str, Callable[[Path, str], bool]] = {
    "the document is written": lambda state, uuid: True,
    "the folder is made": lambda state, uuid: (state / "servers" / uuid).exists(),
    "the image is held": lambda state, uuid: (state / "servers" / uuid / "base").exists(),
    "the disk is being copied": lambda state, uuid: any((state / "servers" / uuid).glob("disk.new*")),
    "the config drive is there": lambda state, uuid: (state / "servers" / uuid / "config.iso").exists(),
    "the domain is defined": lambda state, uuid: known(uuid),
    "the domain is active": lambda state, uuid: known(uuid, active=True),
}


def known(uuid: str, active: bool = False) -> bool:
    connection = libvirt.openReadOnly("qemu:///system")
    try:
        domain = connection.lookupByUUIDString(uuid)
        return bool(domain.isActive()) if active else True
    except libvirt.libvirtError:
        return False
    finally:
        connection.close()


#: The others are deep: unit tests kill an agent of a fake host at every step.
COMMON = ("the disk is being copied", "the domain is active")
DEEP = pytest.mark.deep(shard="one host")


@pytest.mark.parametrize("moment", [
    pytest.param(moment, marks=() if moment in COMMON else DEEP) for moment in MOMENTS])
def test_an_agent_killed_while_it_makes_a_server(lab: LabAgent, moment: str) -> None:
    """Started again and asked again it converges: one server, one domain, no orphan."""
    uuid = f"{os.urandom(4).hex()}-0000-4000-8000-{os.urandom(6).hex()}"
    want = {"flavor": SIZES, "image": "disk", "root_format": "raw", "name": "cut"}
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(lab.ensure("server", uuid, want, timeout=60))
        except MagnetarError as error:
            answers.append(error)

    asking = threading.Thread(target=ask)
    document = lab.state / "documents/server" / f"{uuid}.json"
    asking.start()
    while asking.is_alive() and not (document.exists() and MOMENTS[moment](lab.state, uuid)):
        pass
    lab.kill()
    lab.start()
    asking.join()

    shown = lab.ensure("server", uuid, want)["resource"]
    assert (shown["power_state"], shown["fault"]) == ("running", None)
    assert not lab.ensure("server", uuid, want)["changed"]
    assert sorted(lab.names("server")) == ["cut", "web"]
    assert lab.orphans() == NOTHING
    left = [path.name for path in (lab.state / "servers" / uuid).iterdir()]
    assert not [name for name in left if name.endswith((".part", ".new"))]
    lab.delete("server", uuid)
    assert not known(uuid)
    assert not (lab.state / "servers" / uuid).exists()


def test_an_agent_killed_while_it_removes_a_server(lab: LabAgent) -> None:
    uuid = lab.ensure("server", "going", {"flavor": SIZES, "image": None})["resource"]["id"]
    folder = lab.state / "servers" / uuid

    def ask() -> None:
        with suppress(MagnetarError):
            lab.delete("server", "going")

    asking = threading.Thread(target=ask)
    asking.start()
    while known(uuid, active=True):
        pass
    lab.kill()
    lab.start()
    asking.join()
    eventually(lambda: "going" not in lab.names("server"), "the removal is finished by itself")
    assert not lab.delete("server", "going")["changed"]
    assert not folder.exists()
    assert not known(uuid)
    assert lab.orphans() == NOTHING


# Guests that go, and hands from outside


def followed(lab: LabAgent, key: str, reason: str) -> dict[str, Any]:
    """The server, once its document has followed what happened."""
    found: dict[str, Any] = eventually(
        lambda: (shown := lab.show("server", key)) and reason in shown["status_reason"] and shown, reason)
    return found


def test_a_guest_that_powers_itself_off_is_off(lab: LabAgent, web: str) -> None:
    lab.ask(web, "poweroff")
    shown = lab.becomes(web, "off")
    assert shown["status"] == "SHUTOFF"
    assert followed(lab, web, "guest shut itself down")["power"] == "off"
    assert not lab.ensure("server", web, {"metadata": {}})["changed"]  # nobody fights it
    assert started(lab, web)["status_reason"] == ""


def test_a_guest_whose_qemu_dies_is_crashed(lab: LabAgent, web: str) -> None:
    os.kill(lab.qemu(web), signal.SIGKILL)
    shown = lab.becomes(web, "crashed")
    assert shown["status"] == "SHUTOFF"
    assert followed(lab, web, "QEMU process died")["power"] == "off"
    shown = started(lab, web)
    assert (shown["power_state"], shown["status_reason"]) == ("running", "")


def test_a_crashed_guest_is_started_again_where_that_is_wanted(lab: LabAgent, web: str) -> None:
    lab.ensure("server", web, {"restart_on_crash": True})
    boots, before = lab.boots(web), lab.qemu(web)
    os.kill(before, signal.SIGKILL)
    lab.up(web, boots + 1)
    shown = lab.becomes(web, "running")
    assert lab.qemu(web) != before
    assert shown["power"] == "running"
    lab.ensure("server", web, {"restart_on_crash": False})


def virsh(*words: str) -> None:
    subprocess.run(["virsh", "-q", "-c", "qemu:///system", *words], check=True, stdout=subprocess.DEVNULL)


def test_a_guest_destroyed_from_outside(lab: LabAgent, web: str) -> None:
    virsh("destroy", lab.show("server", web)["id"])
    lab.becomes(web, "off")
    followed(lab, web, "outside")
    assert started(lab, web)["power_state"] == "running"


def test_a_domain_undefined_from_outside(lab: LabAgent, web: str) -> None:
    """Off it is missing, and made again with the disk that it had; running it only has to be made lasting again."""
    uuid = lab.show("server", web)["id"]
    lab.power(web, "off")
    disk = lab.state / "servers" / uuid / "disk"
    before = disk.stat().st_ino
    virsh("undefine", uuid)
    assert lab.becomes(web, "missing")["status"] == "ERROR"
    assert started(lab, web)["power_state"] == "running"
    assert disk.stat().st_ino == before

    process = lab.qemu(web)
    virsh("undefine", uuid)
    assert not lab.domain(web).isPersistent()
    lab.power(web, "running")
    assert lab.domain(web).isPersistent()
    assert lab.qemu(web) == process


FOREIGN = """<domain type='qemu'><name>{name}</name>{uuid}<memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features></domain>"""


def test_a_foreign_domain_is_never_touched(lab: LabAgent) -> None:
    uuid = f"{os.urandom(4).hex()}-0000-4000-8000-{os.urandom(6).hex()}"
    made = [
        lab.libvirt.defineXML(FOREIGN.format(name=f"foreign-{lab.mark}", uuid="")),
        lab.libvirt.defineXML(FOREIGN.format(name=f"magnetar-{uuid}", uuid="")),
    ]
    try:
        before = [domain.XMLDesc() for domain in made]
        other = made[0].UUIDString()
        for key in (other, f"foreign-{lab.mark}"):
            assert not lab.delete("server", key)["changed"]
        with pytest.raises(Conflict, match="not make"):
            lab.ensure("server", other, {"name": "mine", "flavor": SIZES, "image": None})
        with pytest.raises(Conflict, match="not made by Magnetar"):
            lab.ensure("server", uuid, {"name": "mine", "flavor": SIZES, "image": None})
        assert lab.names("server") == ["web"]
        assert not (lab.state / "servers" / uuid).exists()
        with lab.client() as client:
            results = client.ensure_many("server", [{"key": other, "want": None}])["results"]
        assert not results[0]["changed"]
        assert [domain.XMLDesc() for domain in made] == before
        assert not [line for line in lab.orphans()["domains"] if "foreign" in line]
    finally:
        for domain in made:
            remove_domain(domain)


# The host


def test_a_reboot_of_the_host(lab: LabAgent) -> None:
    network = f"boot-{lab.mark}"
    lab.ensure("network", network, {"cidr": lab.cidr})
    for name, more in {
        "ran": {"networks": [{"network": network}]},
        "was-off": {"power": "off"},
        "stays-off": {"resume_on_host_boot": False},
    }.items():
        lab.ensure("server", name, {**WANT, **more})
    boots = len([m for m in lab.up("ran") if m.startswith("ready")])
    lab.stop()
    for domain in lab.domains():
        if domain.isActive():
            domain.destroy()
    lab.libvirt.networkLookupByName(network).destroy()
    (lab.state / "boot_id").write_text("00000000-0000-4000-8000-000000000000\n")
    lab.start()

    lab.up("ran", boots + 1)
    assert lab.becomes("ran", "running")["power"] == "running"
    assert lab.becomes("web", "running")
    assert lab.becomes("was-off", "off")
    shown = lab.becomes("stays-off", "off")
    assert shown["power"] == "off"
    assert "host was rebooted" in shown["status_reason"]
    assert lab.orphans() == NOTHING
    for name in ("ran", "was-off", "stays-off"):
        lab.delete("server", name)
    lab.delete("network", network)


def test_an_agent_that_restarts_leaves_guests_alone(lab: LabAgent, web: str) -> None:
    process = lab.qemu(web)
    lab.stop()
    assert Path(f"/proc/{process}").exists()
    lab.start()
    assert lab.becomes(web, "running")
    assert lab.qemu(web) == process


def test_a_full_disk_during_an_upload(lab: LabAgent, guest_image: dict[str, Path], tmp_path: Path) -> None:
    """Nothing is half registered, and the same upload works once there is room."""
    images = lab.state / "images"
    aside = lab.folder / "aside"
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=711", "none"]
    assert images.rename(aside).is_dir()
    images.mkdir(mode=0o711)
    subprocess.run([*mount, images], check=True)
    try:
        lab.ensure("image", "big", {"source": {"upload": True}})
        with lab.client() as client:
            with pytest.raises(NoSpace, match="room"):
                client.upload("image", "big", guest_image["disk"])
            assert client.get("image", "big")["status"] == "queued"
        assert [path for path in images.rglob("*") if path.is_file()] == []
        subprocess.run(["mount", "-o", "remount,size=100m", images], check=True)
        with lab.client() as client:
            assert client.upload("image", "big", guest_image["disk"])["resource"]["status"] == "active"
        lab.ensure("server", "on-big", {"flavor": SIZES, "image": "big", "power": "off"})
        lab.delete("server", "on-big")
        lab.delete("image", "big")
        assert [path for path in images.rglob("*") if path.is_file()] == []
    finally:
        subprocess.run(["umount", images], check=True)
        images.rmdir()
        aside.rename(images)


# Hostile images


def backing(path: Path) -> None:
    subprocess.run(
        ["qemu-img", "create", "-q", "-u", "-f", "qcow2", "-b", "/etc/passwd", "-F", "raw", path, "1M"], check=True
    )


def huge(path: Path) -> None:
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-o", "cluster_size=2M", path, "500T"], check=True)


def data_file(path: Path) -> None:
    outside = path.with_suffix(".data")
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-o", f"data_file={outside}", path, "1M"], check=True)


def vmdk(path: Path) -> None:
    path.write_bytes(
        b'# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType="monolithicFlat"\n'
        b'RW 8 FLAT "/etc/passwd" 0\nddb.adapterType = "ide"\n'.ljust(70000, b"\n")
    )


HOSTILE = {"backing": backing, "huge": huge, "data_file": data_file, "vmdk": vmdk}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_images_are_refused(lab: LabAgent, name: str) -> None:
    """By upload and from a file of the host; the reason is said, and nothing of it is kept."""
    source = lab.imports / f"hostile-{name}"
    HOSTILE[name](source)
    before = sorted(lab.names("image"))
    lab.ensure("image", "hostile", {"source": {"upload": True}})
    with lab.client() as client:
        with pytest.raises(ImageRefused) as uploaded:
            client.upload("image", "hostile", source)
        assert client.get("image", "hostile")["status"] == "queued"
    lab.delete("image", "hostile")
    with pytest.raises(ImageRefused) as imported:
        lab.ensure("image", "hostile", {"source": {"path": str(source)}})
    assert {"backing": "backing file", "huge": "virtual", "data_file": "data", "vmdk": "VMDK"}[name] in str(
        imported.value
    )
    assert "root:" not in str(uploaded.value)
    assert sorted(lab.names("image")) == before
    shutil.rmtree(source, ignore_errors=True)


# Two at once


def test_two_clients_with_different_wishes_at_once(lab: LabAgent) -> None:
    """One comes after the other: what is there in the end is what one of them wanted, whole."""
    wishes = [
        {"flavor": {**SIZES, "disk": disk}, "image": None, "metadata": {"from": str(disk)}, "tags": [f"t{disk}"],
         "power": power}
        for disk, power in ((1, "running"), (2, "off"))
    ]
    together = threading.Barrier(2)
    answers: list[Any] = [None, None]

    def ask(at: int) -> None:
        with lab.client() as client:
            client.info()
            together.wait()
            try:
                answers[at] = client.ensure("server", "both", wishes[at])
            except MagnetarError as error:
                answers[at] = error

    asking = [threading.Thread(target=ask, args=(at,)) for at in (0, 1)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()

    assert lab.names("server").count("both") == 1
    shown = lab.show("server", "both")
    found = {key: shown[key] for key in ("metadata", "tags", "power")}
    assert found in [{key: wish[key] for key in ("metadata", "tags", "power")} for wish in wishes]
    done = [answer for answer in answers if isinstance(answer, dict)]
    assert done, answers
    assert all(str(answer) for answer in answers if isinstance(answer, MagnetarError))
    assert shown["power_state"] == shown["power"]
    assert len(lab.domains()) == 2
    lab.delete("server", "both")
    assert lab.orphans() == NOTHING
