# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent dies at any line: after its next start, or after the call is repeated, everything is right.

Death is simulated exactly: from call N to hypervisor or documents on, every call fails, and neither undoing nor noting
runs. A new agent then starts on what was left.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent.reconcile.documents import Document, Documents
from magnetar_agent.reconcile.task import NotRemovable, Task
from magnetar_agent.servers import verbs
from magnetar_agent.servers.disks import rbd_images
from magnetar_agent.servers.hardware import placement
from magnetar_agent.volumes import pools
from magnetar_core.hardware import numa
from magnetar_core.operations import Operation
from magnetar_core.server_plan import disk_sizes
from tests.support.agent.crash import lives
from tests.unit.agent.conftest import SMALL, Host

pytestmark = pytest.mark.slow


IMAGE = ("image", "img", {"source": {"path": "/image.raw"}, "disk_format": "raw"})
BLOCKS = [{"source_type": "image", "destination_type": "volume", "uuid": "img", "boot_index": 0},
          {"source_type": "volume", "uuid": "data"},
          {"source_type": "blank", "destination_type": "volume", "volume_size": 1, "delete_on_termination": True}]
WITH_DATA = {"flavor": {**SMALL, "disk": 1}, "block_device_mapping": [{"source_type": "volume", "uuid": "data"}]}
PINNED = {"flavor": {**SMALL, "vcpus": 2}, "hardware": {"cpu_policy": "dedicated"}}
RBD = {"flavor": {**SMALL, "disk": 1, "ephemeral": 1, "swap": 1}, "image": "img", "root_format": "rbd"}
#: What stories of servers on Ceph begin with.
CEPH = "Ceph: "
LVM = {"flavor": {**SMALL, "disk": 1, "ephemeral": 1, "swap": 1}, "image": "img", "root_format": "lvm"}
#: What was made before, and what is asked for: noun, key, want and, last, what the caller allows.
STORIES: dict[str, tuple[list[tuple[str, str, Any]], tuple[Any, ...]]] = {
    "create": ([], ("server", "web1", {"flavor": {**SMALL, "disk": 1, "swap": 1}, "networks": [{"bridge": "br0"}]})),
    "delete": ([("server", "web1", {"flavor": SMALL})], ("server", "web1", None)),
    "stop and reshape": ([("server", "web1", {"flavor": {**SMALL, "disk": 1}})],
                         ("server", "web1", {"power": "off", "flavor": {"vcpus": 2, "ram": 128, "disk": 2}})),
    "stop, reshape and start": (
        [("server", "web1", {"flavor": {**SMALL, "disk": 1, "ephemeral": 1, "swap": 1}})],
        ("server", "web1", {"flavor": {"vcpus": 2, "ram": 128, "disk": 2, "ephemeral": 2, "swap": 2}},
         {"allow_reboot": True})),
    "drop a swap disk": ([("server", "web1", {"flavor": {**SMALL, "swap": 1}})],
                         ("server", "web1", {"flavor": {**SMALL, "swap": 0}}, {"allow_reboot": True})),
    "rebuild": ([("server", "web1", {"flavor": {**SMALL, "disk": 1, "ephemeral": 1, "swap": 1}})],
                ("server", "web1", {"user_data": "YQ=="}, {"on_immutable": "rebuild", "preserve_ephemeral": True})),
    "rebuild what is suspended": ([("server", "web1", {"flavor": SMALL, "power": "suspended"})],
                                  ("server", "web1", {"key_name": None, "user_data": "YQ==", "power": "running"},
                                   {"on_immutable": "rebuild"})),
    "rebuild from another image": (
        [IMAGE, ("server", "web1", {"flavor": SMALL})],
        ("server", "web1", {"image": "img"}, {"on_immutable": "rebuild"})),
    "rebuild on a volume": (
        [IMAGE, ("server", "web1", {"flavor": SMALL, "block_device_mapping": BLOCKS[:1]})],
        ("server", "web1", {"user_data": "YQ=="}, {"on_immutable": "rebuild"})),
    "reimage in a storage pool": ([IMAGE, ("volume", "lv", {"image": "img", "pool": "vg"})], ("volume", "lv", {
        "reimage": {"image": "img", "request": "r1"}})),
    "rescue": ([IMAGE, ("server", "web1", {"flavor": SMALL})], ("server", "web1", {"rescue": {"image": "img"}})),
    "rescue with stable devices": (
        [IMAGE, ("volume", "data", {"size": 1}), ("server", "web1", {"flavor": SMALL, "block_device_mapping": BLOCKS})],
        ("server", "web1", {"rescue": {"image": "img", "device": "disk", "bus": "scsi"}})),
    "unrescue": ([IMAGE, ("server", "web1", {"flavor": SMALL, "rescue": {"image": "img"}})],
                 ("server", "web1", {"rescue": None})),
    "create with dedicated CPUs": ([], ("server", "web1", PINNED)),
    "other CPUs for the same server": (
        [("server", "web1", PINNED), ("server", "web2", PINNED)],
        ("server", "web1", {"flavor": {**SMALL, "vcpus": 3}}, {"allow_reboot": True})),
    f"{CEPH}create": ([IMAGE], ("server", "web1", RBD)),
    f"{CEPH}delete": ([IMAGE, ("server", "web1", RBD)], ("server", "web1", None)),
    f"{CEPH}reshape": (
        [IMAGE, ("server", "web1", RBD)],
        ("server", "web1", {"flavor": {**SMALL, "disk": 2, "ephemeral": 2, "swap": 0}}, {"allow_reboot": True})),
    f"{CEPH}rebuild": ([IMAGE, ("server", "web1", RBD)],
                       ("server", "web1", {"user_data": "YQ=="}, {"on_immutable": "rebuild"})),
    "suspend": ([("server", "web1", {"flavor": SMALL})], ("server", "web1", {"power": "suspended"})),
    "create with volumes": ([IMAGE, ("volume", "data", {"size": 1})], ("server", "web1", {
        "flavor": SMALL, "block_device_mapping": BLOCKS})),
    "delete with volumes": ([IMAGE, ("volume", "data", {"size": 1}), ("server", "web1", {
        "flavor": SMALL, "block_device_mapping": BLOCKS})], ("server", "web1", None)),
    "make anew with volumes": (
        [IMAGE, ("volume", "data", {"size": 1}),
         ("server", "web1", {"flavor": SMALL, "block_device_mapping": BLOCKS})],
        ("server", "web1", {"availability_zone": "b"}, {"on_immutable": "recreate"})),
    "volume in a storage pool": ([], ("volume", "lv", {"size": 1, "pool": "vg"})),
    "volume in a storage pool from an image": ([IMAGE], ("volume", "lv", {"image": "img", "pool": "vg"})),
    "copy of a volume in use": (
        [("volume", "data", {"size": 1, "pool": "vg"}), ("server", "web1", WITH_DATA)],
        ("volume", "lv", {"source_volume": "data", "pool": "vg"})),
    "copy of a volume in use, in a folder": (
        [("volume", "data", {"size": 1}), ("server", "web1", WITH_DATA)],
        ("volume", "copy", {"source_volume": "data"})),
    "grow in a storage pool": (
        [("volume", "data", {"size": 1, "pool": "vg"}), ("server", "web1", WITH_DATA)],
        ("volume", "data", {"size": 2})),
    "delete from a storage pool": ([("volume", "lv", {"size": 1, "pool": "vg"})], ("volume", "lv", None)),
    "create on logical volumes": ([IMAGE], ("server", "web1", LVM)),
    "delete from logical volumes": ([IMAGE, ("server", "web1", LVM)], ("server", "web1", None)),
    "stop and reshape on logical volumes": (
        [IMAGE, ("server", "web1", LVM)],
        ("server", "web1", {"power": "off", "flavor": {**SMALL, "disk": 2, "ephemeral": 2, "swap": 0}})),
    "rebuild on logical volumes": ([IMAGE, ("server", "web1", LVM)], (
        "server", "web1", {"user_data": "YQ=="}, {"on_immutable": "rebuild"})),
    "network": ([], ("network", "lan", {"mode": "nat", "cidr": "10.99.0.0/24"})),
    "network away": ([("network", "lan", {"mode": "nat", "cidr": "10.99.0.0/24"})], ("network", "lan", None)),
}


class Flushed:
    """What a loss of power leaves of the agent's folders, at worst: of each the files that were there when it was
    flushed last, with the content that each had when it was flushed itself, or none. *early*: a journal has written all
    names whenever something was flushed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path, early: bool) -> None:
        self.root, self.names, self.early = root, dict[Path, dict[str, int]](), early
        #: By the number of the file.
        self.contents = {path.stat().st_ino: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for folder in self.folders():
            self.names[folder] = _numbers(folder)
        monkeypatch.setattr(os, "fsync", self.fsync)

    def folders(self) -> list[Path]:
        """Those of servers, and of the documents."""
        return [*self.root.glob("servers/*"), self.root / "documents" / "server"]

    def fsync(self, descriptor: int) -> None:
        """In place of ``os.fsync``."""
        seen, path = os.fstat(descriptor), Path(f"/proc/self/fd/{descriptor}")
        if stat.S_ISDIR(seen.st_mode):
            self.names[path.readlink()] = _numbers(path)
        else:
            self.contents[seen.st_ino] = path.read_bytes()
        if self.early:
            self.names.update((folder, _numbers(folder)) for folder in self.folders())

    def lose(self) -> None:
        """The power goes."""
        for folder in self.folders():
            for path in folder.iterdir():
                path.unlink()
            for name, number in self.names.get(folder, {}).items():
                (folder / name).write_bytes(self.contents.get(number, b""))


def _numbers(folder: Path) -> dict[str, int]:
    """The number of each file, by name."""
    return {path.name: path.stat().st_ino for path in folder.iterdir() if path.is_file()}


FROM_IMAGE = ([IMAGE], ("server", "web1", {"flavor": {**SMALL, "disk": 1, "ephemeral": 1, "swap": 1}, "image": "img"}))


#: Other CPUs are chosen when the domain is defined, which writes the document.
MORE_CPUS_AND_DISKS = ([("server", "web1", PINNED)], ("server", "web1", {
    "flavor": {**SMALL, "vcpus": 3, "ephemeral": 1}}, {"allow_reboot": True}))


@pytest.mark.parametrize("late", [True, False], ids=["after", "before"])
@pytest.mark.parametrize(("story", "early"), [
    (FROM_IMAGE, False), (FROM_IMAGE, True), (STORIES["rebuild from another image"], False), (STORIES["rescue"], False),
    (MORE_CPUS_AND_DISKS, False)], ids=["create", "create, names first", "rebuild", "rescue", "resize"])
def test_power_goes_at_every_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                    story: tuple[list[Any], tuple[Any, ...]], early: bool, late: bool) -> None:
    before, (*asked, allowed) = story[0], (*story[1], {})[:4]
    for life in lives(tmp_path, late, cpu_dedicated_set="8-15", cpu_shared_set="0-7"):
        host = life.host
        (host.root / "image.raw").write_bytes(bytes(4096))
        for noun, key, want in before:
            placed = {"source": {"path": str(host.root / "image.raw")}} if noun == "image" else {}
            host.ensure(noun, key, {**want, **placed})
        with monkeypatch.context() as patch:
            flushed = Flushed(patch, host.root / "state", early)
            life.ends_in(host.ensure, *asked, **allowed)
            flushed.lose()
        for id, domain in host.fake.domains().items():
            if domain.state != "off":
                host.fake.destroy(id)
        host.restart()
        host.ensure(*asked, **allowed)
        _nothing_is_half(host, before, asked, allowed, True)
        assert not [path for path in host.root.glob("state/servers/*/*") if not path.stat().st_size]


@pytest.mark.parametrize("late", [True, False], ids=["after", "before"])
def test_power_goes_when_an_agent_that_was_killed_has_gone_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                              late: bool) -> None:
    """What the killed one had made and not flushed is flushed by the next, which says that it is there."""
    noun, key, given = FROM_IMAGE[0][0]
    for life in lives(tmp_path, late):
        host = life.host
        (host.root / "image.raw").write_bytes(bytes(4096))
        host.ensure(noun, key, {**given, "source": {"path": str(host.root / "image.raw")}})
        with monkeypatch.context() as patch:
            flushed = Flushed(patch, host.root / "state", False)
            life.ends_in(host.ensure, *FROM_IMAGE[1])
            host.restart()
            host.ensure(*FROM_IMAGE[1])
            flushed.lose()
        server, = host.agent.host.documents.list("server")
        place = host.root / "state/servers" / server.id
        assert {path.name for path in place.iterdir() if path.stat().st_size} == {"base", *server.state["made"]}


@pytest.mark.parametrize("repeat", [True, False], ids=["repeated", "left alone"])
@pytest.mark.parametrize("late", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("story", STORIES)
def test_death_at_every_change(tmp_path: Path, story: str, late: bool, repeat: bool) -> None:
    before, (*asked, allowed) = STORIES[story][0], (*STORIES[story][1], {})[:4]

    def pooled(host: Host) -> None:
        for pool in ("vg", "ceph"):
            host.fake.add_pool(pool)

    for life in lives(tmp_path, late, prepared=pooled, pools={"vg": {"type": "lvm"}, "ceph": {"type": "rbd"}},
                      root_pool="ceph" if story.startswith(CEPH) else "vg",
                      cpu_dedicated_set="8-15", cpu_shared_set="0-7"):
        host = life.host
        (host.root / "image.raw").write_bytes(bytes(4096))
        for noun, key, want in before:
            placed = {"source": {"path": str(host.root / "image.raw")}} if noun == "image" else {}
            host.ensure(noun, key, {**want, **placed})
        life.ends_in(host.ensure, *asked, **allowed)
        host.restart()
        if repeat:
            host.ensure(*asked, **allowed)
        _nothing_is_half(host, before, asked, allowed, repeat)


def _nothing_is_half(host: Host, before: list[Any], asked: list[Any], allowed: dict[str, Any], repeated: bool) -> None:
    noun, key, want = asked
    documents = host.agent.host.documents.list("server")
    domains = host.fake.domains()
    assert {d.id for d in documents} == set(domains)
    for document in documents:
        assert not document.deleting
        assert domains[document.id].state == document.want["power"]
        assert not {"unfinished", "rebuild", "allow_reboot"} & set(document.state)
        held = document.want.get(placement.FIELD, {})
        assert placement.BEFORE not in held
        root = ET.fromstring(host.fake.xml(document.id))
        assert any("swap" in "".join(one.attrib.values()) for one in root.iterfind("devices/disk/source")) is bool(
            document.want["flavor"]["swap"] and not document.want["rescue"])
        assert {int(one.get("cpuset", "")) for one in root.iterfind("cputune/vcpupin")} == set(
            numa.held_cpus(held) if held else ())
    cpus = [cpu for one in placement.held_placements(host.agent.host) for cpu in numa.held_cpus(one)]
    assert len(cpus) == len(set(cpus))
    folders = {path.name for path in (host.root / "state" / "servers").glob("*")}
    assert folders == {d.id for d in documents}
    assert not list((host.root / "state").rglob("*.part"))
    assert {d.name for d in host.agent.host.documents.list("network")} == set(host.fake.networks())
    volumes = {one.id: one for one in host.agent.host.documents.list("volume")}
    assert all(one.state["made"] for one in volumes.values())
    for pool, place in (("default", host.root / "state/volumes"), ("vg", host.root / "libvirt/pool-vg")):
        own = {f"{one.id}_{file}" for one in documents if one.want["root_format"] == "lvm" and pool == "vg"
               for file in ("disk", *disk_sizes(one.want))}
        assert {path.name for path in place.glob("*")} == own | {id for id, one in volumes.items()
                                                                 if one.want["pool"] == pool}
    images = {f"{one.id}_{one.state['pool']['mark']}_{file}" for one in documents if one.want["root_format"] == "rbd"
              for file in ("disk", *disk_sizes(one.want))}
    assert {path.name for path in (host.root / "libvirt/pool-ceph").glob("*")
            if "@" not in path.name and not path.name.startswith(rbd_images.BASE)} == images
    for one in documents:  # it is known of which base a clone is, so that this can go with the last of them
        for clone in (host.root / "libvirt/pool-ceph").glob(f"{one.id}_*@of"):
            assert rbd_images.BASE + one.state["pool"]["base"] == clone.read_text()
    assert all(pools.find_pool(host.agent.host, one.want["pool"]).disk(id, "").path.stat().st_size >= 4096
               for id, one in volumes.items())
    assert all({one.want["volume"]} <= set(volumes) and one.want["server"] in domains
               for one in host.agent.host.documents.list("volume_attachment"))
    if "recreate" not in allowed.values() and IMAGE in before and any(x[1] == "data" for x in before) and documents:
        assert len(volumes) == len(host.agent.host.documents.list("volume_attachment")) == len(BLOCKS)
    if repeated:
        assert host.ensure(*asked, **allowed).steps == []
        assert (host.agent.host.documents.find(noun, key) is None) == (want is None)


def test_a_start_that_keeps_something_has_flushed_what_was_made(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document says that disks are there: a loss of power after that must not have lost their names."""
    host.server(power="off")
    document = host.agent.host.documents.find("server", "web1")
    assert document
    done: list[str] = []
    task = Task(host.agent.host, document, Operation("test"))
    task.note(host.root)
    monkeypatch.setattr("magnetar_agent.reconcile.task.sync_folder", lambda _folder: done.append("flushed"))
    write = host.agent.host.documents.write

    def written(document: Document, durable: bool = True) -> None:
        done.append("durable" if durable else "note")
        write(document, durable)

    monkeypatch.setattr(host.agent.host.documents, "write", written)
    monkeypatch.setattr(verbs, "_choose", lambda _host, _document, keep: keep())
    verbs.start(task)
    assert done == ["note", "flushed", "durable"]


def test_power_goes_when_what_could_not_be_made_could_not_be_removed_either(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its document says is there has been flushed before."""
    host = Host(tmp_path)
    host.start()
    asked = ("server", "web1", {"flavor": SMALL})

    def fails(*_args: Any, **_more: Any) -> None:
        raise NotRemovable("The host is busy. Try again.")

    with monkeypatch.context() as patch:
        flushed = Flushed(patch, host.root / "state", False)
        for verb in ("start", "undefine"):
            patch.setitem(cast("dict[str, Any]", verbs.VERBS), verb, fails)
        with pytest.raises(NotRemovable):
            host.ensure(*asked)
        flushed.lose()
    (document,) = host.agent.host.documents.list("server")
    assert "fault" in document.state and "disk" in document.state["made"]
    assert all(path.stat().st_size for path in host.root.glob("state/servers/*/*"))
    assert {*document.state["made"]} <= {path.name for path in host.root.glob("state/servers/*/*")}
    host.agent.close()


@pytest.mark.parametrize(("before", "after", "durable"), [
    ("off", "running", [False, True]), ("off", "paused", [False, True]), ("running", "paused", [False, True]),
    ("paused", "running", [False, True]), ("running", "off", [True, True]), ("suspended", "running", [True, True])])
def test_what_goes_with_the_power_is_flushed_once(host: Host, monkeypatch: pytest.MonkeyPatch, before: str, after: str,
                                                  durable: list[bool]) -> None:
    """A guest that starts is off after a loss of power, as the document of before says; a saved one is lost then."""
    host.server(power="running")
    if before != "running":
        host.server(power=before)
    seen: list[bool] = []
    write = Documents.write

    def written(documents: Documents, document: Document, durable: bool = True) -> None:
        seen.append(durable)
        write(documents, document, durable)

    monkeypatch.setattr(Documents, "write", written)
    host.server(power=after)
    assert [*seen[:1], *seen[-1:]] == durable
