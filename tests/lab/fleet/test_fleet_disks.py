# SPDX-License-Identifier: GPL-3.0-or-later
"""Two hosts, installed by the role, whose servers' disks are logical volumes: a server with a pattern on its disk goes
from one to the other, live and cold.

Loop devices in a storage pool of files stand for logical volumes: the kernel may lack the device mapper. What they hold
before is not zero.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from magnetar_core.errors import Conflict
from tests.support.lab.fleet import COUNT, HTTPS, Fleet

if TYPE_CHECKING:
    from tests.support.lab.bare import Site

pytestmark = [
    pytest.mark.lab,
    pytest.mark.deep(shard="disks on their way"),  # on fakes it is shown for each death of an agent
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]

MIB = 2**20
ID = str(uuid.uuid4())
FILES = ("disk", "disk.ephemeral")
POOL = "/var/lib/magnetar/vg"
SETTINGS = """
- hosts: bare1:bare2
  become: true
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: magnetar.compute.agent, tasks_from: configure}
      vars: {agent_settings: "{{ given }}"}
"""
GIVEN = {"pools": {"vg": {"type": "lvm", "libvirt_pool": "vg0"}}, "root_format": "lvm", "root_pool": "vg"}
IMAGE = HTTPS + """
    - magnetar.compute.image: {name: tiny, filename: "{{ disk }}"}
"""


class Devices:
    """Loop devices of each host in the place of logical volumes."""

    def __init__(self, fleet: Fleet, folder: Path, stack: ExitStack) -> None:
        self.fleet = fleet
        self.numbers: dict[tuple[str, str], int] = {}
        for name in ("bare1", "bare2"):
            for file in FILES:
                path = folder / f"{name}-{file}"
                path.touch()
                os.truncate(path, 1024 * MIB)
                device = subprocess.run(["losetup", "-f", "--show", path], check=True, capture_output=True,
                                        text=True).stdout.strip()
                stack.callback(subprocess.run, ["losetup", "-d", device], check=True)
                self.numbers[name, file] = os.minor(Path(device).stat().st_rdev)

    def make(self, name: str, at: int) -> None:
        """Have a host's pool hold them, by the names of the server's disks, with something of before *at* these MiB."""
        for file in FILES:
            number = self.numbers[name, file]
            with Path(f"/dev/loop{number}").open("r+b") as device:
                device.seek(at * MIB)
                device.write(b"\xa5" * 16 * MIB)
            self.fleet.hosts[name].run(["sh", "-c", f"[ -b /dev/loop{number} ] || mknod /dev/loop{number} b 7 {number};"
                                                    f" ln -sfn /dev/loop{number} {POOL}/{ID}_{file}"])
        self.fleet.virsh(name, "pool-refresh", "vg0")

    def digest(self, name: str) -> str:
        """Of all that the ephemeral disk holds, to which the guest does not write any more."""
        return self.fleet.hosts[name].run(["sh", "-c", f"md5sum <{POOL}/{ID}_disk.ephemeral"]).stdout

    def there(self, name: str) -> set[str]:
        """What a host's pool holds."""
        return set(self.fleet.hosts[name].run(["ls", POOL]).stdout.split())


@pytest.fixture(scope="module")
def devices(three_hosts: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Devices]:
    fleet = Fleet(three_hosts)
    with ExitStack() as stack:
        for name in ("bare1", "bare2"):
            host = fleet.hosts[name]
            host.run(["mkdir", "-p", POOL])
            fleet.virsh(name, "pool-define-as", "vg0", "dir", "--target", POOL)
            stack.callback(host.run, ["virsh", "-q", "-c", "qemu:///system", "pool-undefine", "vg0"])
            fleet.virsh(name, "pool-start", "vg0")
            stack.callback(host.run, ["virsh", "-q", "-c", "qemu:///system", "pool-destroy", "vg0"])
        assert min(fleet.play(SETTINGS, "-e", json.dumps({"given": GIVEN})).values()) > 0
        stack.callback(fleet.play, SETTINGS, "-e", json.dumps({"given": {}}))
        fleet.play(IMAGE)
        made = Devices(fleet, tmp_path_factory.mktemp("loops"), stack)
        stack.callback(fleet.clear)  # before the devices go
        made.make("bare1", 64)
        fleet.client("bare1").ensure("server", "counter", {
            "id": ID, "image": "tiny", "flavor": {"vcpus": 1, "ram": 128, "disk": 1, "ephemeral": 1},
            "user_data": base64.b64encode(COUNT.encode()).decode()})
        fleet.goes_on("bare1")
        yield made


def test_its_disks_are_block_devices(devices: Devices) -> None:
    xml = devices.fleet.virsh("bare1", "dumpxml", f"magnetar-{ID}")
    assert xml.count("<disk type='block'") == 2 and "servers/" in xml
    assert devices.fleet.client("bare1").get("host")["local_disks"]["format"] == "lvm"


def test_a_host_without_a_pool_is_refused(devices: Devices) -> None:
    with pytest.raises(Conflict, match="are logical volumes.*root_pool names no pool"):
        devices.fleet.go("bare1", "bare3")
    devices.fleet.goes_on("bare1")


def test_there_live_and_back_cold(devices: Devices) -> None:
    fleet, before = devices.fleet, devices.digest("bare1")
    devices.make("bare2", 128)
    fleet.go("bare1", "bare2", type="live")
    assert fleet.where() == "bare2" and devices.there("bare1") == set()
    fleet.goes_on("bare2")
    assert fleet.virsh("bare2", "dumpxml", f"magnetar-{ID}").count("<disk type='block'") == 2
    assert devices.digest("bare2") == before
    # Off, since the guest writes another pattern whenever it boots.
    fleet.client("bare2").ensure("server", "counter", {"power": "off", "shutdown_timeout": 0})
    before = devices.digest("bare2")
    devices.make("bare1", 256)
    fleet.go("bare2", "bare1", type="cold")
    assert fleet.where() == "bare1" and devices.there("bare2") == set()
    assert devices.digest("bare1") == before
    fleet.client("bare1").delete("server", "counter")
    assert devices.there("bare1") == set()
