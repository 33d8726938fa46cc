# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers as their guests see them: power, disks, NICs, images; five of them, made by one call."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_core.errors import Ambiguous, Conflict
from tests.support.lab import guest
from tests.support.lab.agent import LabAgent, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.lab

GIB, MIB = 2**30, 2**20
CONSOLE = 64 * 1024  # bytes of a console log that the agent shows
WORD = "word_of_this_test=7"
# PCI identities (vendor, device) of what the models are.
CARDS = {"virtio": "0x1af4 0x1041", "e1000e": "0x8086 0x10d3", "e1000": "0x8086 0x100e", "rtl8139": "0x10ec 0x8139"}
SIZES = {"vcpus": 1, "ram": 128, "disk": 1}


def wishes(network: str) -> dict[str, dict[str, Any]]:
    """Servers by name; each shows something else."""
    return {
        "power": {"flavor": {**SIZES, "disk": 3}, "image": "disk", "networks": [{"network": network}]},
        "raw": {"flavor": {**SIZES, "disk": 2, "ephemeral": 3, "swap": 64}, "image": "disk", "root_format": "raw",
                "block_device_mapping": [{"source_type": "blank", "volume_size": size} for size in (1, 2)]},
        "kernel": {"flavor": SIZES, "image": "kernel", "config_drive": False},
        "cards": {"flavor": SIZES, "image": "kernel", "networks": [{"network": network, "model": m} for m in CARDS]},
        "reborn": {"flavor": {**SIZES, "vcpus": 2}, "image": "passing", "metadata": {"a": "b"}, "tags": ["t"]},
    }


@pytest.fixture(scope="module")
def lab(guest_image: dict[str, Path]) -> Iterator[LabAgent]:
    """An agent with images, an isolated network, and the servers of `wishes`, of which none has been waited for."""
    with LabAgent(console_log_bytes=CONSOLE) as made:
        made.import_image("disk", guest_image["disk"])
        made.import_image("passing", guest_image["disk"])
        made.import_image("ramdisk", guest_image["ramdisk"], disk_format="ari")
        made.import_image("kernel", guest_image["kernel"], disk_format="aki", ramdisk="ramdisk",
                          cmdline=f"{guest.KERNEL_ARGS} {WORD}")  # fmt: skip
        made.ensure("network", network(made), {"mode": "isolated", "cidr": made.cidr})
        with made.client() as client:
            items = [{"key": name, "want": want} for name, want in wishes(network(made)).items()]
            results = client.ensure_many("server", items)["results"]
        assert [one.get("error") for one in results] == [None] * 5
        assert [one["resource"]["name"] for one in results] == list(wishes(network(made)))
        yield made


def network(lab: LabAgent) -> str:
    return f"iso-{lab.mark}"


def disks(lab: LabAgent, name: str) -> dict[str, int]:
    return {one["name"]: one["bytes"] for one in lab.ask(name, "disks")["disks"]}


def info(path: Path) -> dict[str, Any]:
    done = subprocess.run(["qemu-img", "info", "-U", "--output=json", path], check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_five_servers_are_up_and_a_second_batch_changes_nothing(lab: LabAgent) -> None:
    for name in wishes(""):
        lab.up(name)
        assert lab.show("server", name)["power_state"] == "running"
    with lab.client() as client:
        again = client.ensure_many("server", [{"key": n, "want": w} for n, w in wishes(network(lab)).items()])
    assert [one["changed"] for one in again["results"]] == [False] * 5
    assert lab.orphans() == {"domains": [], "files": []}


def test_a_paused_guest_stands_still_and_goes_on(lab: LabAgent) -> None:
    lab.up("power")
    before = lab.uptime("power")
    assert lab.power("power", "paused")["status"] == "PAUSED"
    assert lab.domain("power").state()[0] == 3  # VIR_DOMAIN_PAUSED
    assert lab.power("power", "running")["status"] == "ACTIVE"
    assert before <= lab.uptime("power") < before + 60
    assert lab.boots("power") == 1


def test_a_suspended_guest_keeps_its_memory(lab: LabAgent) -> None:
    lab.up("power")
    lab.sh("power", "echo kept >/run/kept")
    before = lab.uptime("power")
    assert lab.power("power", "suspended")["status"] == "SUSPENDED"
    assert not lab.domain("power").isActive()
    assert lab.power("power", "running")["status"] == "ACTIVE"
    assert lab.uptime("power") >= before
    assert lab.sh("power", "cat /run/kept") == "kept\n"
    assert lab.boots("power") == 1


def test_a_stopped_guest_boots_anew_and_keeps_its_disk(lab: LabAgent) -> None:
    """Which grows with its flavor."""
    boots = len([m for m in lab.up("power") if m.startswith("ready")])
    assert disks(lab, "power")["vda"] == 3 * GIB
    lab.sh("power", "echo kept >/disk/kept; echo gone >/run/kept")
    stopped = lab.power("power", "off")
    assert (stopped["status"], stopped["power_state"]) == ("SHUTOFF", "off")
    assert "poweroff" in lab.markers("power")  # by its own hand: the power button was pressed
    lab.ensure("server", "power", {"flavor": {**SIZES, "disk": 4}, "power": "off"})
    lab.power("power", "running")
    lab.up("power", boots + 1)
    assert disks(lab, "power")["vda"] == 4 * GIB
    assert lab.sh("power", "cat /disk/kept") == "kept\n"
    assert lab.ask("power", "sh cat /run/kept")["code"] != 0


def test_a_guest_that_still_boots_hears_its_power_button(lab: LabAgent) -> None:
    """It is pressed until it does: nothing is cut, though the first presses are lost. Several may be heard: it says
    for each that it goes off."""
    lab.power("power", "off")
    ended = lab.markers("power").count("poweroff")
    lab.power("power", "running")
    began = time.monotonic()
    lab.ensure("server", "power", {"power": "off", "shutdown_timeout": 600})
    print(f"off after {time.monotonic() - began:.1f} s")
    assert lab.markers("power").count("poweroff") > ended
    lab.ensure("server", "power", {"power": "running", "shutdown_timeout": None})
    lab.up("power")


def test_reboots_soft_and_hard_each_once(lab: LabAgent) -> None:
    boots = len([m for m in lab.up("power") if m.startswith("ready")])
    for number, kind in enumerate(("soft", "hard"), 1):
        request = f"reboot-{kind}-{lab.mark}"
        assert lab.event("power", request, type=kind)["done"]
        lab.up("power", boots + number)
        assert lab.event("power", request, type=kind)["done"]  # the same once more is not done again
    assert lab.uptime("power") > 0
    assert lab.boots("power") == boots + 2


def test_raw_root_ephemerals_and_swap(lab: LabAgent) -> None:
    said = lab.up("raw")
    found = disks(lab, "raw")
    assert {name: found[name] for name in ("vda", "vdb", "vdc", "vdd")} == {
        "vda": 2 * GIB, "vdb": GIB, "vdc": 2 * GIB, "vdd": 64 * MIB}
    assert [m for m in said if m.startswith("config_drive=/dev/sr0")]
    assert lab.sh("raw", "findfs LABEL=ephemeral0 && findfs LABEL=ephemeral1") == "/dev/vdb\n/dev/vdc\n"
    lab.sh("raw", "mount -t ext4 /dev/vdc /mnt && touch /mnt/file && umount /mnt")
    assert "/dev/vdd" in lab.sh("raw", "swapon /dev/vdd && cat /proc/swaps && swapoff /dev/vdd")
    root = info(lab.state / "servers" / lab.show("server", "raw")["id"] / "disk")
    assert (root["format"], root["virtual-size"], root.get("backing-filename")) == ("raw", 2 * GIB, None)


def test_kernel_ramdisk_and_command_line_without_a_config_drive(lab: LabAgent) -> None:
    said = lab.up("kernel")
    assert "config_drive=absent" in said
    assert WORD in lab.sh("kernel", "cat /proc/cmdline")
    assert disks(lab, "kernel") == {"vda": GIB}
    assert not (lab.state / "servers" / lab.show("server", "kernel")["id"] / "config.iso").exists()


def test_models_of_network_cards_and_an_isolated_network(lab: LabAgent) -> None:
    lab.up("cards")
    shown = lab.show("server", "cards")
    assert [nic["model"] for nic in shown["networks"]] == list(CARDS)
    seen = lab.sh("cards", "for d in /sys/bus/pci/devices/*; do echo $(cat $d/vendor $d/device); done").splitlines()
    assert set(CARDS.values()) <= set(seen)
    mac = shown["networks"][0]["mac"]
    [nic] = eventually(lambda: [n for n in lab.ask("cards", "nics")["nics"] if n["ip"]], "a lease")
    assert (nic["name"], nic["mac"]) == ("eth0", mac)
    assert nic["ip"].startswith(lab.subnet)
    assert "default" not in lab.sh("cards", "ip route")
    xml = lab.libvirt.networkLookupByName(network(lab)).XMLDesc()
    assert "<forward" not in xml


def test_an_image_goes_while_its_server_stays(lab: LabAgent) -> None:
    boots = len([m for m in lab.up("reborn") if m.startswith("ready")])
    assert lab.delete("image", "passing")["changed"]
    assert "passing" not in lab.names("image")
    lab.power("reborn", "off")
    shown = lab.power("reborn", "running")
    assert shown["image"]["name"] == "passing"
    lab.up("reborn", boots + 1)
    assert lab.sh("reborn", "grep -c ^processor /proc/cpuinfo") == "2\n"
    with lab.client() as client:
        want = wishes(network(lab))["reborn"]
        assert not client.ensure("server", "reborn", want)["changed"]


def test_the_console_log_by_the_api(lab: LabAgent) -> None:
    lab.up("raw")
    done = subprocess.run(
        ["curl", "-sS", "--fail", "--unix-socket", lab.socket, "http://agent/v1/server/raw/console?lines=1000"],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert guest.markers(done.stdout) == lab.markers("raw")
    assert "hostname=raw" in guest.markers(done.stdout)


def test_a_long_console_log_is_cut(lab: LabAgent) -> None:
    """The agent shows the end of it, of at most console_log_bytes."""
    lab.up("kernel")
    lab.sh("kernel", f"yes 0123456789 | head -c {CONSOLE + 4096} >/dev/console")
    assert len(lab.console("kernel").encode()) > CONSOLE
    done = subprocess.run(
        ["curl", "-sS", "--fail", "--unix-socket", lab.socket, "http://agent/v1/server/kernel/console?lines=100000"],
        check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert CONSOLE - 4096 < len(done.stdout) <= CONSOLE
    assert guest.replies(done.stdout.decode(errors="replace"))[-1]["code"] == 0


def test_a_card_keeps_its_mac_when_the_domain_is_made_anew(lab: LabAgent) -> None:
    """Libvirt has forgotten the domain; the guest sees the same MAC in the one that is recreated."""
    before = lab.show("server", "power")["networks"][0]["mac"]
    boots = lab.boots("power")
    lab.power("power", "off")
    lab.domain("power").undefine()
    shown = lab.ensure("server", "power", {"description": "recreated", "power": "running"})["resource"]
    assert shown["networks"][0]["mac"] == before
    lab.up("power", boots + 1)
    assert [nic["mac"] for nic in lab.ask("power", "nics")["nics"]] == [before]


def test_two_servers_of_one_name_made_by_uuid(lab: LabAgent) -> None:
    """By name a server needs a free one; by uuid it may share it, and the name then says which uuids there are."""
    made = sorted(str(uuid.uuid4()) for _one in range(2))
    want = {"name": "twin", "flavor": SIZES, "image": None, "power": "off"}
    try:
        for key in made:
            assert lab.ensure("server", key, want)["changed"]
            assert not lab.ensure("server", key, want)["changed"]
        assert sorted(lab.domain(key).UUIDString() for key in made) == made
        for ask in (lambda: lab.show("server", "twin"), lambda: lab.ensure("server", "twin", {"power": "off"}),
                    lambda: lab.delete("server", "twin")):  # fmt: skip
            with pytest.raises(Ambiguous) as refused:
                ask()
            assert all(key in str(refused.value) for key in made)
        assert lab.names("server").count("twin") == 2
    finally:
        for key in made:
            lab.delete("server", key)
    with pytest.raises(Conflict, match="shrink|smaller"):
        lab.ensure("server", "raw", {"flavor": {**SIZES, "disk": 1}})
    assert lab.show("server", "raw")["power_state"] == "running"


def test_all_of_them_go(lab: LabAgent) -> None:
    with lab.client() as client:
        results = client.ensure_many("server", [{"key": name, "want": None} for name in wishes("")])["results"]
    assert [one["changed"] for one in results] == [True] * 5
    assert lab.domains() == []
    assert list((lab.state / "servers").iterdir()) == []
    assert lab.orphans() == {"domains": [], "files": []}
    assert lab.delete("network", network(lab))["changed"]
