# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done with a server that exists: another flavor, rebuild, rescue, images of it, and the one-shots."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_core.errors import Conflict, GuestRefused, MagnetarError
from magnetar_core.http.client import Client
from magnetar_core.http.guest_commands import INPUT, PIECE
from tests.support.lab import guest
from tests.support.lab.agent import LabAgent, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.lab

GIB, MIB = 2**30, 2**20
SIZES = {"vcpus": 1, "ram": 128, "disk": 1}
RESCUE = "this_is_the_rescue=1"


@pytest.fixture(scope="module")
def lab(guest_image: dict[str, Path]) -> Iterator[LabAgent]:
    """An agent with a disk image, and an image that boots by a kernel, whose disk is blank."""
    with LabAgent(shutdown_timeout=15) as made:
        made.import_image("disk", guest_image["disk"])
        made.import_image("other", guest_image["disk"])
        made.import_image("ramdisk", guest_image["ramdisk"], disk_format="ari")
        made.import_image("vmlinuz", guest_image["kernel"], disk_format="aki")
        blank = made.folder / "blank.raw"
        blank.write_bytes(bytes(MIB))
        made.import_image("tools", blank, disk_format="raw", kernel="vmlinuz", ramdisk="ramdisk",
                          cmdline=f"{guest.KERNEL_ARGS} {RESCUE}")  # fmt: skip
        made.ensure("network", f"iso-{made.mark}", {"mode": "isolated", "cidr": made.cidr})
        yield made


SMALL = {**SIZES, "ephemeral": 1, "swap": 64}


@pytest.fixture
def web(lab: LabAgent) -> str:
    """A server that is up and has written a word to its root disk; recreated where a test has changed it."""
    want = {"flavor": SMALL, "image": "disk", "networks": [{"network": f"iso-{lab.mark}"}]}
    try:
        fit = not lab.ensure("server", "web", want, dry_run=True)["changed"]
    except MagnetarError:
        fit = False
    if not fit or lab.show("server", "web")["status"] != "ACTIVE":
        lab.delete("server", "web")
        lab.ensure("server", "web", want)
    lab.up("web")
    lab.sh("web", "echo kept >/disk/word && sync")
    return "web"


def again(lab: LabAgent, name: str, act: Callable[[], Any]) -> Any:
    """What *act* answers; the guest has booted once more by then."""
    boots = lab.boots(name)
    found = act()
    lab.up(name, boots + 1)
    return found


def disks(lab: LabAgent, name: str) -> dict[str, int]:
    return {one["name"]: one["bytes"] for one in lab.ask(name, "disks")["disks"]}


def event(lab: LabAgent, key: str, what: str, request: str, /, **args: Any) -> dict[str, Any]:
    with lab.client() as client:
        answer: dict[str, Any] = client.event("server", key, what, args, request_id=f"{request}-{lab.mark}")
        return answer


def restart_host(lab: LabAgent) -> None:
    """As after a reboot: nothing runs, and the boot is another one."""
    lab.stop()
    for domain in lab.domains():
        if domain.isActive():
            domain.destroy()
    (lab.state / "boot_id").write_text("00000000-0000-4000-8000-000000000000\n")
    lab.start()


def nothing_left(lab: LabAgent) -> None:
    assert lab.orphans() == {"domains": [], "files": []}
    assert not [path for path in lab.state.rglob("*") if path.name.startswith("snapshot") or path.suffix == ".part"]


def test_another_flavor(lab: LabAgent, web: str) -> None:
    lab.sh(web, "mount -t ext4 /dev/vdb /mnt && echo kept >/mnt/word && umount /mnt")
    large = {"vcpus": 2, "ram": 160, "disk": 2, "ephemeral": 2, "swap": 32}
    with pytest.raises(Conflict, match="allow_reboot"):
        lab.ensure("server", web, {"flavor": large})
    assert lab.show("server", web)["power_state"] == "running"
    answer = again(lab, web, lambda: lab.ensure("server", web, {"flavor": large}, allow_reboot=True))
    verbs = [step["verb"] for step in answer["steps"]]
    assert verbs == ["record", "stop", "drop_swap", "disks", "grow", "grow_ephemeral", "define", "start"]
    found = disks(lab, web)
    assert {name: found[name] for name in ("vda", "vdb", "vdc")} == {"vda": 2 * GIB, "vdb": 2 * GIB, "vdc": 32 * MIB}
    assert lab.sh(web, "cat /disk/word && grep -c ^processor /proc/cpuinfo") == "kept\n2\n"
    assert lab.sh(web, "mount -t ext4 /dev/vdb /mnt && cat /mnt/word && umount /mnt") == "kept\n"
    assert "/dev/vdc" in lab.sh(web, "swapon /dev/vdc && cat /proc/swaps && swapoff /dev/vdc")
    with lab.client() as client:
        assert not client.ensure("server", web, {"flavor": large}, allow_reboot=True)["changed"]


def test_rebuild_from_another_image(lab: LabAgent, web: str) -> None:
    lab.sh(web, "mount -t ext4 /dev/vdb /mnt && echo kept >/mnt/word && umount /mnt")
    before = lab.show("server", web)
    script = "IyEvYmluL3NoCmVjaG8gR1VFU1QgcmVib3JuCg=="  # echo GUEST reborn
    want = {"image": "other", "user_data": script, "metadata": {"a": "b"}}
    after = again(lab, web, lambda: lab.ensure("server", web, want, on_immutable="rebuild", preserve_ephemeral=True))
    shown = after["resource"]
    assert {n: shown[n] for n in ("id", "name", "networks")} == {n: before[n] for n in ("id", "name", "networks")}
    assert (shown["image"]["name"], shown["metadata"]) == ("other", {"a": "b"})
    assert "reborn" in lab.markers(web)
    assert lab.ask(web, "sh cat /disk/word")["code"] != 0
    assert lab.sh(web, "mount -t ext4 /dev/vdb /mnt && cat /mnt/word && umount /mnt") == "kept\n"
    assert [nic["mac"] for nic in lab.ask(web, "nics")["nics"]] == [nic["mac"] for nic in before["networks"]]
    with lab.client() as client:
        assert not client.ensure("server", web, want, on_immutable="rebuild")["changed"]


# On a fake host an agent dies at each step of it (tests/unit/agent/reconcile/test_crash.py, test_actions.py);
# test_faults.py kills one that has guests.
@pytest.mark.deep(shard="agents killed with guests")
@pytest.mark.parametrize("moment", ["wipe", "disk", "define"])
def test_an_agent_killed_in_a_rebuild(lab: LabAgent, web: str, moment: str) -> None:
    """It is carried on at the next start, and the same request asked again is done by then, once."""
    uuid = lab.show("server", web)["id"]
    folder, boots, answers = lab.state / "servers" / uuid, lab.boots(web), []
    inode, document = (folder / "disk").stat().st_ino, lab.state / "documents/server" / f"{uuid}.json"

    def ask() -> None:
        with suppress(MagnetarError):
            answers.append(event(lab, web, "rebuild", f"cut-{moment}"))

    moments: dict[str, Callable[[], bool]] = {
        "wipe": lambda: '"rebuild"' in document.read_text(),
        "disk": lambda: not (folder / "disk").exists() or (folder / "disk").stat().st_ino != inode,
        "define": lambda: '"rebuilt"' in document.read_text(),
    }
    asking = threading.Thread(target=ask)
    asking.start()
    while asking.is_alive():
        with suppress(OSError):
            if moments[moment]():
                break
    lab.kill()
    lab.start()
    asking.join()
    lab.up(web, boots + 1)
    assert event(lab, web, "rebuild", f"cut-{moment}")["resource"]["fault"] is None
    assert lab.becomes(web, "running")["status"] == "ACTIVE"
    assert lab.ask(web, "sh cat /disk/word")["code"] != 0
    lab.sh(web, "echo since >/disk/word && sync")
    assert event(lab, web, "rebuild", f"cut-{moment}")["done"]
    assert lab.sh(web, "cat /disk/word") == "since\n"
    assert lab.boots(web) == boots + 1
    nothing_left(lab)


def test_rescue(lab: LabAgent, web: str) -> None:
    rescued = again(lab, web, lambda: lab.ensure("server", web, {"rescue": {"image": "tools"}}))["resource"]
    assert (rescued["status"], rescued["power_state"]) == ("RESCUE", "running")
    assert RESCUE in lab.sh(web, "cat /proc/cmdline")
    found = disks(lab, web)
    assert (found["vda"], found["vdb"]) == (MIB, GIB) and len(found) == 3  # and the config drive
    assert lab.sh(web, "cat /disk/word && echo repaired >/disk/word && sync") == "kept\n"
    assert "hostname=web" in lab.markers(web)  # the config drive is there too
    for refused in ({"flavor": {**SMALL, "ram": 160}, "power": "off"},):
        with pytest.raises(Conflict, match="Unrescue"):
            lab.ensure("server", web, refused)

    process = lab.qemu(web)
    lab.stop()
    lab.start()
    assert (lab.becomes(web, "running")["status"], lab.qemu(web)) == ("RESCUE", process)
    again(lab, web, lambda: restart_host(lab))
    assert lab.becomes(web, "running")["status"] == "RESCUE"
    assert RESCUE in lab.sh(web, "cat /proc/cmdline")

    back = again(lab, web, lambda: lab.ensure("server", web, {"rescue": None}))["resource"]
    assert back["status"] == "ACTIVE"
    assert lab.sh(web, "cat /disk/word") == "repaired\n"
    assert RESCUE not in lab.sh(web, "cat /proc/cmdline")
    assert set(disks(lab, web)) >= {"vda", "vdb", "vdc"}
    assert not list((lab.state / "servers" / back["id"]).glob("*rescue*"))


def test_a_suspended_guest_outlives_a_reboot_of_the_host(lab: LabAgent, web: str) -> None:
    lab.sh(web, "echo kept >/run/word")
    before, boots = lab.uptime(web), lab.boots(web)
    assert lab.power(web, "suspended")["status"] == "SUSPENDED"
    network = lab.libvirt.networkLookupByName(f"iso-{lab.mark}")
    network.destroy()
    restart_host(lab)
    shown = lab.becomes(web, "suspended")
    assert (shown["status"], shown["power"]) == ("SUSPENDED", "suspended")
    eventually(network.isActive, "the network is up again")
    assert lab.power(web, "running")["status"] == "ACTIVE"
    assert lab.uptime(web) >= before
    assert lab.sh(web, "cat /run/word /disk/word") == "kept\nkept\n"
    assert lab.boots(web) == boots


def info(path: Path) -> dict[str, Any]:
    subprocess.run(["qemu-img", "check", "-q", path], check=True)
    done = subprocess.run(["qemu-img", "info", "--output=json", path], check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


IMAGES = pytest.mark.deep(shard="images and clients of one host")


@pytest.mark.parametrize(("power", "consistency"), [
    ("running", "frozen"), pytest.param("paused", "crash-consistent", marks=IMAGES),
    pytest.param("suspended", "crash-consistent", marks=IMAGES), pytest.param("off", "stopped", marks=IMAGES)])
def test_an_image_of_a_server(lab: LabAgent, web: str, power: str, consistency: str) -> None:
    eventually(lambda: lab.ask(web, "sh pidof qemu-ga")["code"] == 0, "the guest agent")
    lab.power(web, power)
    answer = event(lab, web, "create_image", f"image-{power}", name=f"of-{power}", metadata={"role": "web"})
    try:
        assert answer["consistency"] == consistency
        assert answer["resource"]["power_state"] == power
        shown = lab.show("image", f"of-{power}")
        assert (shown["status"], shown["disk_format"], shown["virtual_size"]) == ("active", "qcow2", GIB)
        assert shown["properties"]["role"] == "web"
        [content] = [path for path in (lab.state / "images" / shown["id"]).iterdir() if path.is_file()]
        assert "backing-filename" not in info(content)
        assert content.stat().st_size < 100 * MIB  # sparse
        nothing_left(lab)
        lab.power(web, "running")
        lab.ensure("server", "copy", {"flavor": SIZES, "image": f"of-{power}"})
        lab.up("copy")
        assert lab.sh("copy", "cat /disk/word") == "kept\n"
        assert lab.sh(web, "echo on >/disk/word; cat /disk/word") == "on\n"  # nothing is frozen any more
    finally:
        with suppress(MagnetarError):
            lab.delete("server", "copy")
        lab.delete("image", f"of-{power}")


# tests/unit/agent/virt/test_hostile_disks.py shows it with qemu-img, tests/contract/test_hypervisor_disks.py with
# libvirt.
@pytest.mark.deep(shard="agents killed with guests")
def test_a_disk_that_names_a_file_of_the_host(lab: LabAgent, web: str) -> None:
    """As a guest leaves it that has broken out of its QEMU: nobody follows it, and the file stays root's."""
    lab.power(web, "off")
    secret, disk = lab.folder / "secret", lab.state / "servers" / lab.show("server", web)["id"] / "disk"
    secret.write_bytes(b"only root may read this" * 1000)
    secret.chmod(0o600)
    was, header = secret.stat(), disk.read_bytes()[:65536]
    subprocess.run(["qemu-img", "rebase", "-u", "-f", "qcow2", "-F", "raw", "-b", secret, disk], check=True)
    uses: list[Callable[[], object]] = [
        lambda: event(lab, web, "create_image", "image-hostile", name="hostile", metadata={}),
        lambda: lab.power(web, "running"),
        lambda: lab.ensure("server", web, {"flavor": {**SMALL, "disk": 2}}),
    ]
    try:
        for use in uses:
            with pytest.raises(MagnetarError, match="its header names the file"):
                use()
        assert "hostile" not in lab.names("image")
        now = secret.stat()
        assert (now.st_uid, now.st_gid, now.st_mode, now.st_size) == (0, was.st_gid, was.st_mode, was.st_size)
    finally:
        with disk.open("r+b") as file:
            file.write(header)
    again(lab, web, lambda: lab.ensure("server", web, {"flavor": {**SMALL, "disk": 2}, "power": "running"}))
    assert lab.sh(web, "cat /disk/word") == "kept\n"


@pytest.fixture
def full(lab: LabAgent, web: str) -> str:
    """A server with so much on its root disk that a copy takes a while."""
    lab.ensure("server", web, {"flavor": {**SMALL, "disk": 3}, "power": "off"})
    disk = lab.state / "servers" / lab.show("server", web)["id"] / "disk"
    pattern = [word for at in range(1024, 2560, 256) for word in ("-c", f"write -q -P {at % 251 + 1} {at}M 256M")]
    subprocess.run(["qemu-io", "-f", "qcow2", *pattern, disk], check=True, stdout=subprocess.DEVNULL)
    again(lab, web, lambda: lab.power(web, "running"))
    return web


def under_way(lab: LabAgent) -> dict[str, Any] | None:
    """The operation that copies, once some of it is done."""
    with lab.client() as client:
        running = [one for one in client.list("operations", status="running") if one["name"] == "create_image"]
    return running[0] if running and running[0]["progress"]["phase"] == "copy the root disk" and (
        running[0]["progress"]["done"]) else None


# tests/unit/agent cancels and kills at each step of it; tests/contract cancels libvirt's copy of a disk.
@pytest.mark.deep(shard="agents killed with guests")
def test_an_image_cancelled_and_an_agent_killed_in_one(lab: LabAgent, full: str) -> None:
    errors: list[Any] = []

    def ask() -> None:
        try:
            errors.append(event(lab, full, "create_image", "cut", name="cut"))
        except MagnetarError as error:
            errors.append(error)

    def begun() -> threading.Thread:
        asking = threading.Thread(target=ask)
        asking.start()
        return asking

    asking = begun()
    operation = eventually(lambda: under_way(lab), "the copy is under way")
    with lab.client() as client:
        client.cancel(operation["id"])
    asking.join()
    assert errors[-1].code == "cancelled", errors[-1]
    nothing_left(lab)

    asking = begun()
    eventually(lambda: under_way(lab), "the copy is under way")
    lab.end(signal.SIGKILL)
    lab.start()
    asking.join()
    eventually(lambda: lab.domain(full).jobInfo()[0] == 0, "no job is left")
    answer = event(lab, full, "create_image", "cut", name="cut")
    assert answer["image"]["id"] == lab.show("image", "cut")["id"] and lab.names("image").count("cut") == 1
    nothing_left(lab)
    assert lab.sh(full, "echo on >/disk/word; cat /disk/word") == "on\n"
    [content] = [path for path in (lab.state / "images" / answer["image"]["id"]).iterdir() if path.is_file()]
    for at in range(1024, 2560, 256):
        subprocess.run(["qemu-io", "-r", "-f", "qcow2", "-c", f"read -q -P {at % 251 + 1} {at}M 1M", content],
                       check=True)
    lab.delete("image", "cut")


def test_a_password_by_the_guest_agent(lab: LabAgent, web: str) -> None:
    password = f"correct horse {time.time_ns()}"
    event(lab, web, "change_password", "password", password=password)
    line = lab.sh(web, "grep ^root: /etc/shadow").split(":")[1]
    salt = line.split("$")[2]
    assert lab.sh(web, f"mkpasswd -m sha512 '{password}' {salt}").strip() == line
    assert password not in lab.log.read_text()
    assert not [path for path in (lab.state / "events").iterdir() if password in path.read_text()]
    lab.ensure("server", "mute", {"flavor": {"vcpus": 1, "ram": 64}, "image": None})
    try:
        with pytest.raises(Conflict, match="qemu-guest-agent"):
            event(lab, "mute", "change_password", "mute", password=password)
        answer = event(lab, "mute", "create_image", "mute", name="of-mute")
        assert answer["consistency"] == "crash-consistent"
    finally:
        lab.delete("server", "mute")
        lab.delete("image", "of-mute")


def test_programs_and_files_by_the_guest_agent(lab: LabAgent, web: str) -> None:
    def run(script: str, content: bytes = b"") -> dict[str, Any]:
        return client.ask_guest(web, "run", {
            "path": "/bin/sh", "arguments": ["-c", script], "input": base64.b64encode(content).decode(), "wait": 20,
            "run_id": str(time.time_ns())})

    with Client(lab.endpoint) as client:
        assert client.ask_guest(web, "info")["missing"] == []
        done = run("cat; echo no >&2; exit 3", b"hello")
        assert (done["exit_code"], base64.b64decode(done["stdout"]), base64.b64decode(done["stderr"])) == (
            3, b"hello", b"no\n")
        assert run("kill -9 $$")["signal"] == 9
        content = bytes(range(256)) * 6000
        assert run("umask 077; cat >/tmp/file", content[:INPUT])["exit_code"] == 0
        for at in range(INPUT, len(content), PIECE):
            piece = base64.b64encode(content[at:at + PIECE]).decode()
            client.ask_guest(web, "write_file", {"path": "/tmp/file", "offset": at, "content": piece})
        pieces = [client.ask_guest(web, "read_file", {"path": "/tmp/file", "offset": at * PIECE}) for at in range(3)]
        assert b"".join(base64.b64decode(one["content"]) for one in pieces) == content and pieces[-1]["eof"]
        with pytest.raises(GuestRefused, match="No such file"):
            client.ask_guest(web, "read_file", {"path": "/no/such/file"})
        with pytest.raises(GuestRefused, match="no/such/program"):
            client.ask_guest(web, "run", {"path": "/no/such/program", "run_id": "none"})
        assert client.ask_guest(web, "run", {"path": "/bin/true", "run_id": "none", "wait": 20})["exit_code"] == 0
        with pytest.raises(GuestRefused, match="outcome of process .* is lost"):
            run("head -c 5000000 /dev/zero")  # more than libvirt passes on
        assert run("true")["exit_code"] == 0
        assert any((lab.state / "guest_runs").iterdir()) and "cat >" not in lab.log.read_text()


def test_a_password_by_the_guest_agent_of_a_new_server(lab: LabAgent) -> None:
    """Its image says that the agent runs in it; nobody waits for that."""
    lab.import_image("told", lab.folder / "blank.raw", disk_format="raw", kernel="vmlinuz", ramdisk="ramdisk",
                     cmdline=guest.KERNEL_ARGS, properties={"hw_qemu_guest_agent": "yes"})
    password = f"correct horse {time.time_ns()}"
    lab.ensure("server", "told", {"flavor": {"vcpus": 1, "ram": 128}, "image": "told", "admin_pass": password})
    try:
        id = lab.show("server", "told")["id"]
        document = lab.state / f"documents/server/{id}.json"
        lab.up("told")
        eventually(lambda: password not in document.read_text(), "the guest agent")
        line = lab.sh("told", "grep ^root: /etc/shadow").split(":")[1]
        assert lab.sh("told", f"mkpasswd -m sha512 '{password}' {line.split('$')[2]}").strip() == line
        assert password not in lab.log.read_text()
    finally:
        lab.delete("server", "told")
        lab.delete("image", "told")


def test_a_crash_dump(lab: LabAgent, web: str) -> None:
    lab.sh(web, "echo 1 >/proc/sys/kernel/unknown_nmi_panic")
    event(lab, web, "crash_dump", "nmi")
    assert lab.becomes(web, "crashed")["status"] == "SHUTOFF"
    with lab.client() as client:
        assert guest.markers(client.console(web, 200)) == lab.markers(web)
    again(lab, web, lambda: lab.power(web, "running"))
