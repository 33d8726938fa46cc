# SPDX-License-Identifier: GPL-3.0-or-later
"""A real cluster of Ceph, and two hosts, installed by the role, whose servers' own disks and volumes are RBD images."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_core.errors import Conflict
from magnetar_core.flows.migrate import Migrate, Side
from magnetar_core.http.client import Client
from tests.support.lab import bare
from tests.support.lab.agent import eventually
from tests.support.lab.ceph import POOL, USER, Ceph
from tests.support.lab.fleet import COUNT, HTTPS, Fleet
from tests.support.lab.ovn import Guests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.lab, pytest.mark.deep(shard="disks on Ceph"),
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]  # fmt: skip

NAMES = ("bare1", "bare2")
GIB, MIB = 2**30, 2**20
SIZES = {"vcpus": 1, "ram": 128, "disk": 1, "ephemeral": 1, "swap": 64}
SETTINGS = {"virt_type": "qemu", "shutdown_timeout": 20, "root_format": "rbd", "root_pool": "ceph",
            "enable_rbd_download": True, "rbd_user": USER, "rbd_pool": POOL,
            "disk_allocation_ratio": 1000.0, "pools": {"ceph": {"type": "rbd", "libvirt_pool": POOL}}}
IMAGES = HTTPS + """
    - magnetar.compute.image:
        {name: tiny, filename: "{{ disk }}", endpoint: "https://{{ hostvars[item].ansible_host }}"}
      loop: [bare1, bare2]
"""


class Hosts(Fleet):
    """The hosts, their agents, and the cluster."""

    def __init__(self, site: bare.Site, ceph: Ceph) -> None:
        super().__init__(site)
        self.ceph, self.guests = ceph, Guests(site)

    def make(self, host: str, name: str, **want: Any) -> str:
        """A server of the image; its uuid."""
        made = self.client(host).ensure("server", name, {"flavor": SIZES, "image": "tiny", **want})
        return str(made["resource"]["id"])

    def boots(self, host: str, id: str) -> int:
        return self.guests.console(host, id).count("GUEST ready")

    def up(self, host: str, id: str, times: int = 1) -> None:
        eventually(lambda: self.boots(host, id) >= times, f"the guest is up for the {times}. time")

    def sh(self, host: str, id: str, command: str) -> str:
        answer = self.guests.ask(host, id, f"sh {command}")
        assert answer["code"] == 0, answer
        return str(answer["output"])

    def disks(self, host: str, id: str) -> dict[str, int]:
        return {one["name"]: one["bytes"] for one in self.guests.ask(host, id, "disks")["disks"]}

    def mine(self, id: str) -> dict[str, str]:
        """Images of a server, by file."""
        return {name[46:]: name for name in self.ceph.images() if name.startswith(id)}

    def move(self, name: str, source: str, target: str, **wish: Any) -> None:
        list(Migrate(Side(self.client(source)), Side(self.client(target)), name, wish).steps())


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, guest_image: dict[str, Path]) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("ceph")
    given = {"disk": str(guest_image["disk"]), "pki": f"{folder}/magnetar-pki", "agent_settings": SETTINGS}
    with bare.Site(folder, NAMES, packed=NAMES, ceph=True, **given) as site:
        for host in site.hosts.values():
            host.run(["systemctl", "start", "libvirtd"])
        with Ceph(site) as ceph:
            site.play("magnetar.compute.agents")
            made = Hosts(site, ceph)
            made.play(IMAGES)
            yield made


def test_its_disks_are_images(hosts: Hosts) -> None:
    """Both hosts make servers of one image at once: its content is there once, and each root disk is a clone."""
    with ThreadPoolExecutor() as threads:
        ids = dict(zip(NAMES, threads.map(lambda name: hosts.make(name, f"at-{name}"), NAMES), strict=True))
    for name, id in ids.items():
        hosts.up(name, id)
        found = hosts.disks(name, id)
        assert (found["vda"], found["vdb"], found["vdc"]) == (GIB, GIB, 64 * MIB)
        mine = hosts.mine(id)
        assert set(mine) == {"disk", "disk.ephemeral", "disk.swap"}
        assert hosts.ceph.parent(mine["disk"]).startswith("magnetar-base-")
        label = "dd if=/dev/vdb bs=1 skip=1144 count=10 2>/dev/null"  # of ext4
        assert hosts.sh(name, id, label).startswith("ephemeral0")
        xml = hosts.virsh(name, "dumpxml", f"magnetar-{id}")
        assert xml.count("<source protocol='rbd'") == 3 and xml.count("<secret type='ceph'") == 3
        assert not hosts.client(name).ensure("server", f"at-{name}", {"flavor": SIZES, "image": "tiny"})["changed"]
    bases = {name for name in hosts.ceph.images() if name.startswith("magnetar-base-")}
    assert len(bases) == 1
    told = hosts.client("bare1").get("host")
    assert told["local_disks"] == {"format": "rbd", "pool": "ceph", "reason": ""} and told["disk_gb"] in (7, 8)
    assert told["orphans"] == {"domains": [], "files": [], "shared": sorted(hosts.mine(ids["bare2"]).values())}
    hosts.client("bare2").delete("server", "at-bare2")
    assert hosts.mine(ids["bare2"]) == {} and bases <= hosts.ceph.images()
    assert hosts.client("bare1").get("host")["orphans"]["shared"] == []


def test_an_image_straight_out_of_it(hosts: Hosts) -> None:
    """As a conductor asks for one that Glance keeps there: by Ceph's real tools, as QEMU's user."""
    host, id = hosts.site.hosts["bare2"], str(uuid.uuid4())
    content = os.urandom(MIB) + bytes(7 * MIB) + os.urandom(MIB)
    where = ["rbd", "--id", USER, "-p", POOL]
    host.run([*where, "import", "-", id], stdin=content)
    host.run([*where, "snap", "create", f"{id}@snap"])
    fsid = host.run(["ceph", "--id", USER, "fsid"]).stdout.strip()
    assert host.run(["stat", "-c", "%a", f"/etc/ceph/ceph.client.{USER}.keyring"]).stdout == "600\n"
    want = {"id": id, "name": id, "checksum": f"sha512:{hashlib.sha512(content).hexdigest()}"}
    client = hosts.client("bare2")
    for other in (str(uuid.uuid4()), fsid):
        shown = client.ensure("image", id, {**want, "source": {
            "upload": True, "location": f"rbd://{other}/{POOL}/{id}/snap"}})["resource"]
        assert shown["status"] == ("active" if other == fsid else "queued")
    assert (shown["size"], shown["disk_format"]) == (len(content), "raw")
    client.delete("image", id)
    host.run([*where, "snap", "rm", "--no-progress", f"{id}@snap"])
    host.run([*where, "rm", "--no-progress", id])


def test_its_life(hosts: Hosts) -> None:
    """It grows, is rescued, rebuilt and copied to images."""
    client = hosts.client("bare1")
    id = str(client.get("server", "at-bare1")["id"])
    hosts.sh("bare1", id, "echo kept | dd of=/dev/vdb bs=512 seek=1000 count=1 conv=sync,fsync")
    larger = {**SIZES, "disk": 2, "ephemeral": 2, "swap": 0}
    client.ensure("server", "at-bare1", {"flavor": larger}, allow_reboot=True)
    hosts.up("bare1", id, 2)
    found = hosts.disks("bare1", id)
    assert (found["vda"], found["vdb"]) == (2 * GIB, 2 * GIB) and 64 * MIB not in found.values()
    assert set(hosts.mine(id)) == {"disk", "disk.ephemeral"}
    assert hosts.sh("bare1", id, "dd if=/dev/vdb bs=512 skip=1000 count=1 2>/dev/null | head -n 1").startswith("kept")
    client.event("server", "at-bare1", "create_image", {"name": "golden"}, request_id=str(uuid.uuid4()))
    client.ensure("server", "at-bare1", {"rescue": {}})
    hosts.up("bare1", id, 3)
    assert hosts.disks("bare1", id)["vdb"] == 2 * GIB  # its own root disk
    client.ensure("server", "at-bare1", {"rescue": None})
    hosts.up("bare1", id, 4)
    client.ensure("server", "at-bare1", {"user_data": "YQ=="}, on_immutable="rebuild")
    hosts.up("bare1", id, 5)
    client.ensure("server", "at-bare1", {"power": "off"})
    client.event("server", "at-bare1", "create_image", {"name": "silver"}, request_id=str(uuid.uuid4()))
    for name in ("golden", "silver"):
        assert client.get("image", name)["virtual_size"] == 2 * GIB
        copy = hosts.make("bare1", name, image=name, flavor={**SIZES, "disk": 2, "ephemeral": 0, "swap": 0})
        hosts.up("bare1", copy)
        base = hosts.ceph.parent(hosts.mine(copy)["disk"])
        client.delete("image", name)
        assert base in hosts.ceph.images()
        client.delete("server", name)
        assert base not in hosts.ceph.images()  # with the last that stood on it
    client.delete("server", "at-bare1")
    assert len(hosts.ceph.images()) == 1


def test_there_live_and_back_cold(hosts: Hosts) -> None:
    """Its disks stay where they are, with what the guest has written."""
    id = hosts.make("bare1", "counter", flavor={**SIZES, "swap": 0},
                    user_data=base64.b64encode(COUNT.encode()).decode())
    hosts.goes_on("bare1")
    before = hosts.mine(id)
    hosts.move("counter", "bare1", "bare2", type="live")
    hosts.goes_on("bare2")
    assert hosts.mine(id) == before and f"magnetar-{id}" not in hosts.virsh("bare1", "list", "--all", "--name")
    host = hosts.client("bare1").get("host")
    assert host["orphans"] == {"domains": [], "files": [], "shared": sorted(before.values())}
    secrets = {re.search(r"<secret type='ceph' uuid='(.*?)'", hosts.virsh(
        "bare2", "dumpxml", *more, f"magnetar-{id}"))[1] for more in ((), ("--inactive",))}  # type: ignore[index]
    assert secrets == {hosts.virsh("bare2", "secret-list").split()[0]}  # each host has its own
    hosts.client("bare2").ensure("server", "counter", {"power": "off"})
    hosts.move("counter", "bare2", "bare1", type="cold")
    hosts.client("bare1").ensure("server", "counter", {"power": "running"})
    assert hosts.mine(id) == before
    hosts.up("bare1", id, 1)
    hosts.client("bare1").delete("server", "counter")
    assert hosts.mine(id) == {}


def test_its_disks_are_taken_over_from_a_host_that_is_off(hosts: Hosts) -> None:
    """As an evacuation does it: the guest finds what it has written, and the former host removes nothing."""
    one, two = hosts.client("bare1"), hosts.client("bare2")
    id = hosts.make("bare1", "evacuated")
    hosts.up("bare1", id)
    for disk in ("vda", "vdb"):
        hosts.sh("bare1", id, f"echo kept | dd of=/dev/{disk} bs=512 seek=1000 count=1 conv=sync,fsync")
    former, pools = hosts.mine(id), [client.get("host")["disk_pool"] for client in (one, two)]
    assert pools[0]["id"] == pools[1]["id"] and pools[0]["owner"] != pools[1]["owner"]
    hosts.virsh("bare1", "destroy", f"magnetar-{id}")
    want = {"id": id, "name": "evacuated", "flavor": SIZES, "image": one.get("image", "tiny")["id"],
            "adopt_disks": pools[0]["owner"]}
    with pytest.raises(Conflict, match="could give away, only of bare1"):
        two.ensure("server", id, {**want, "adopt_disks": pools[1]["owner"]})
    assert hosts.mine(id) == former
    two.ensure("server", id, want)
    hosts.up("bare2", id)
    for disk in ("vda", "vdb"):
        read = f"dd if=/dev/{disk} bs=512 skip=1000 count=1 2>/dev/null | head -n 1"
        assert hosts.sh("bare2", id, read).startswith("kept")
    mine = hosts.mine(id)
    assert mine.keys() == former.keys() and not set(mine.values()) & set(former.values())
    with pytest.raises(Conflict, match="another host may have taken them over"):
        one.ensure("server", id, {"power": "running"})
    one.delete("server", id)
    assert hosts.mine(id) == mine
    two.delete("server", id)  # its evacuation was not confirmed: they go back
    assert hosts.mine(id) == former
    two.ensure("server", id, want)
    two.event("server", id, "keep_disks", {}, request_id=str(uuid.uuid4()))
    two.delete("server", id)
    assert hosts.mine(id) == {}


def test_a_guest_that_runs_on_writes_to_none_of_its_former_disks(hosts: Hosts) -> None:
    """Its host should be off. Ceph refuses the writes of its QEMU from the moment when the other host takes over."""
    one, two = hosts.client("bare1"), hosts.client("bare2")
    id = hosts.make("bare1", "undead")
    hosts.up("bare1", id)
    write = "dd of=/dev/vdb bs=512 seek=1000 count=1 conv=sync,fsync"
    hosts.sh("bare1", id, f"echo kept | {write}")
    owner = one.get("host")["disk_pool"]["owner"]
    want = {"id": id, "name": "undead", "flavor": SIZES, "image": one.get("image", "tiny")["id"], "adopt_disks": owner}
    two.ensure("server", id, want)
    blocked = hosts.hosts["bare1"].run(["ceph", "--id", USER, "osd", "blocklist", "ls"]).stdout
    assert len([line for line in blocked.splitlines() if ":0/" in line]) >= 1
    assert "running" in hosts.virsh("bare1", "domstate", f"magnetar-{id}")
    hosts.guests.ask("bare1", id, f"sh (echo lost | {write}) >/dev/null 2>&1 & sleep 5")
    hosts.up("bare2", id)
    read = "dd if=/dev/vdb bs=512 skip=1000 count=1 iflag=direct 2>/dev/null | head -n 1"
    assert hosts.sh("bare2", id, read).startswith("kept")
    hosts.sh("bare2", id, f"echo more | {write}")
    mine = hosts.mine(id)
    one.delete("server", id)
    assert hosts.mine(id) == mine and hosts.sh("bare2", id, read).startswith("more")
    two.event("server", id, "keep_disks", {}, request_id=str(uuid.uuid4()))
    two.delete("server", id)
    assert hosts.mine(id) == {}


def test_a_guest_whose_qemu_died_is_removed_at_once(hosts: Hosts) -> None:
    """Ceph takes half a minute to notice that nobody has its disks open any more."""
    id = hosts.make("bare1", "killed", flavor={**SIZES, "swap": 0})
    hosts.up("bare1", id)
    hosts.hosts["bare1"].run(["sh", "-ec", f"kill -KILL $(cat /run/libvirt/qemu/magnetar-{id}.pid)"])
    hosts.client("bare1").delete("server", "killed")
    assert hosts.mine(id) == {}


def test_a_killed_agent_leaves_nothing_half(hosts: Hosts) -> None:
    client, id = hosts.client("bare1"), str(uuid.uuid4())
    want = {"id": id, "flavor": {**SIZES, "ephemeral": 0}, "image": "tiny"}
    client.ensure("server", "half", want, wait=0)
    eventually(lambda: hosts.mine(id), "it has begun")
    hosts.hosts["bare1"].run(["systemctl", "kill", "--signal=KILL", "magnetar-agent"])
    eventually(lambda: client.get("host")["connected"], "the agent is there again")
    client.ensure("server", "half", want)
    hosts.up("bare1", id)
    assert set(hosts.mine(id)) == {"disk", "disk.swap"}
    client.delete("server", "half")
    assert hosts.mine(id) == {}


def test_what_is_refused(hosts: Hosts) -> None:
    hosts.virsh("bare1", "pool-destroy", POOL)
    try:
        host = hosts.client("bare1").get("host")
        assert host["disk_gb"] == 0 and "does not run" in host["local_disks"]["reason"]
        with pytest.raises(Conflict, match="does not run"):
            hosts.make("bare1", "other")
    finally:
        hosts.virsh("bare1", "pool-start", POOL)


def test_volumes(hosts: Hosts) -> None:
    """A volume of the pool is made, attached, written to, grown, copied and removed; another host has it without a
    process between."""
    client = hosts.client("bare1")
    id = hosts.make("bare1", "user", flavor={**SIZES, "ephemeral": 0, "swap": 0})
    hosts.up("bare1", id)
    data = client.ensure("volume", "data", {"size": 1, "pool": "ceph"})["resource"]["id"]
    client.ensure("volume", "of-image", {"image": "tiny", "size": 1, "pool": "ceph"})
    client.ensure("volume_attachment", f"{id}:{data}", {"server": "user", "volume": "data"})
    eventually(lambda: hosts.disks("bare1", id).get("vdb") == GIB, "the guest sees it")
    hosts.sh("bare1", id, "echo written | dd of=/dev/vdb bs=512 count=1 conv=sync,fsync")
    client.ensure("volume", "data", {"size": 2})
    eventually(lambda: hosts.disks("bare1", id).get("vdb") == 2 * GIB, "the guest sees that it has grown")
    client.ensure("volume_snapshot", "kept", {"volume": "data"})
    client.delete("volume_attachment", f"{id}:{data}")
    copy = client.ensure("volume", "copy", {"snapshot": "kept", "pool": "ceph"})["resource"]["id"]
    client.ensure("volume_attachment", f"{id}:{copy}", {"server": "user", "volume": "copy"})
    read = "dd if=/dev/vdb bs=512 count=1 2>/dev/null | head -n 1"
    eventually(lambda: hosts.sh("bare1", id, read).startswith("written"), "the copy has it")
    hosts.move("user", "bare1", "bare2", type="live")
    assert hosts.sh("bare2", id, read).startswith("written")
    assert "qemu-nbd" not in hosts.hosts["bare1"].run(["ps", "-e", "-o", "args"]).stdout
    hosts.client("bare2").delete("server", "user")
    for noun, name in (("volume_snapshot", "kept"), ("volume", "data"), ("volume", "of-image"), ("volume", "copy")):
        client.delete(noun, name)
    assert len(hosts.ceph.images()) == 1


def test_a_cluster_that_does_not_answer(hosts: Hosts) -> None:
    """Nothing is made, and the error says why; the guest waits."""
    id = hosts.make("bare1", "waits", flavor={**SIZES, "ephemeral": 0, "swap": 0})
    hosts.up("bare1", id)
    hosts.ceph.stop("osd")
    try:
        with pytest.raises(Exception, match="took too long"):
            hosts.make("bare1", "late", flavor={**SIZES, "ephemeral": 0, "swap": 0})
    finally:
        hosts.ceph.go_on("osd")
    hosts.sh("bare1", id, "dd if=/dev/vda of=/dev/null bs=512 count=1 iflag=direct")
    hosts.make("bare1", "late", flavor={**SIZES, "ephemeral": 0, "swap": 0})
    for name in ("waits", "late"):
        hosts.client("bare1").delete("server", name)


def test_the_base_goes_with_its_image(hosts: Hosts) -> None:
    for name in NAMES:
        assert isinstance(hosts.client(name), Client)
        hosts.client(name).delete("image", "tiny")
    assert hosts.ceph.images() == set()
