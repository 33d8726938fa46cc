# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes and their snapshots on a fake host: made, grown, copied, removed, and what is refused."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar_agent.drivers.volume import plan_volume
from magnetar_agent.host import inventory
from magnetar_agent.reconcile import reconcile
from magnetar_agent.settings import AgentSettings
from magnetar_core.ensure import check_permissions
from magnetar_core.errors import (
    Cancelled,
    Conflict,
    HypervisorError,
    Immutable,
    InvalidField,
    InvalidSettings,
    MagnetarError,
    NoSpace,
)
from magnetar_core.kinds import BY_NOUN
from magnetar_core.operations import Operation
from tests.support.agent.volume import image
from tests.unit.agent.conftest import Host

GIB = 2**30
CASES = yaml.safe_load((Path(__file__).parents[3] / "cases/plans/volume.yml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_plan(case: dict[str, Any]) -> None:
    if "refused" in case:
        with pytest.raises(MagnetarError, match=case["refused"]):
            list(plan_volume(case["want"], case["have"]))
    else:
        assert [step.verb for step in plan_volume(case["want"], case["have"])] == case["steps"]


def content(host: Host, shown: dict[str, Any]) -> Path:
    return host.root / "state/volumes" / shown["id"]


def pooled(host: Host, **found: dict[str, str]) -> None:
    host.agent.host.settings = dataclasses.replace(host.agent.host.settings, pools=found)


def test_an_empty_volume_is_made_grows_and_goes(host: Host) -> None:
    predicted = host.ensure("volume", "data", {"size": 2}, dry_run=True)
    done = host.ensure("volume", "data", {"size": 2})
    shown = done.resource
    assert [s.verb for s in predicted.steps] == [s.verb for s in done.steps] == ["record", "make"]
    assert (shown["status"], shown["format"], shown["pool"], shown["bootable"], shown["attachments"]) == (
        "available", "qcow2", "default", False, [])
    assert host.fake.disk(content(host, shown)).virtual_size == 2 * GIB
    assert not host.ensure("volume", "data", {"size": 2}).changed
    assert [s.verb for s in host.ensure("volume", "data", {"size": 3}).steps] == ["record", "grow"]
    assert host.fake.disk(content(host, shown)).virtual_size == 3 * GIB
    with pytest.raises(Immutable, match="cannot shrink to 1 GiB"):
        host.ensure("volume", "data", {"size": 1})
    assert host.ensure("volume", "data", None).changed and not content(host, shown).exists()
    assert not host.ensure("volume", "data", None).changed


def test_from_an_image_a_volume_and_a_snapshot(host: Host) -> None:
    image(host)
    first = host.ensure("volume", "boot", {"image": "img"}).resource
    assert (first["size"], first["bootable"]) == (1, True)
    host.ensure("image", "img", None)
    assert not host.ensure("volume", "boot", {"image": "img"}).changed  # it was made from it; that it went is fine
    second = host.ensure("volume", "copy", {"source_volume": "boot", "size": 2, "format": "raw"}).resource
    assert (second["size"], second["format"], second["bootable"], second["source_volume"]) == (
        2, "raw", True, first["id"])
    taken = host.ensure("volume_snapshot", "s1", {"volume": "copy"}).resource
    assert (taken["size"], taken["format"], taken["status"], taken["volume"]) == (2, "raw", "available", second["id"])
    third = host.ensure("volume", "back", {"snapshot": "s1"}).resource
    assert (third["size"], third["bootable"], third["snapshot"]) == (2, True, taken["id"])
    for name in ("copy", "boot"):
        assert host.ensure("volume", name, None).changed
    assert not host.ensure("volume_snapshot", "s1", {"volume": "copy"}).changed
    assert host.ensure("volume_snapshot", "s1", None).changed
    assert {p.name for p in (host.root / "state/volumes").iterdir()} == {third["id"]}


@pytest.mark.parametrize("format", ["qcow2", "raw"])
def test_an_image_of_a_volume(host: Host, format: str) -> None:
    image(host)
    host.ensure("volume", "boot", {"image": "img"})
    want = {"source": {"volume": "boot"}, "disk_format": format}
    assert [one.verb for one in host.ensure("image", "copy", want, dry_run=True).steps] == ["record", "fetch"]
    made = host.ensure("image", "copy", want).resource
    assert (made["status"], made["disk_format"], made["virtual_size"]) == ("active", format, GIB)
    assert not host.ensure("image", "copy", want).changed
    assert [len(one.name) for one in (host.root / "state/images" / made["id"]).iterdir()] == [64]  # nothing else
    host.ensure("volume", "boot", None)
    assert host.ensure("volume", "again", {"image": "copy"}).resource["size"] == 1


def test_of_a_volume_in_use_no_image_is_made(host: Host) -> None:
    image(host)
    host.ensure("volume", "boot", {"image": "img"})
    host.server("web1")
    host.ensure("volume_attachment", "web1:boot", {"server": "web1", "volume": "boot"})
    for source, more, why in (("boot", {}, "attached to web1"), ("none", {}, "must name a volume of this host"),
                              ("boot", {"disk_format": "iso"}, "must be qcow2 or raw")):
        with pytest.raises(MagnetarError, match=why):
            host.ensure("image", "copy", {"source": {"volume": source}, **more})
    assert [one.name for one in host.agent.host.documents.list("image")] == ["img"]


def test_a_copy_for_an_image_that_breaks_off(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    image(host)
    host.ensure("volume", "boot", {"image": "img"})

    def dies(*_args: Any) -> None:
        raise HypervisorError("The disk is gone.")

    with monkeypatch.context() as broken:
        broken.setattr(host.agent.host.hypervisor, "copy_disk", dies)
        with pytest.raises(HypervisorError):
            host.ensure("image", "copy", {"source": {"volume": "boot"}})
    assert len([*(host.root / "state/images").iterdir()]) == 1
    assert host.ensure("image", "copy", {"source": {"volume": "boot"}}).resource["status"] == "active"


def test_raw_keeps_what_it_holds(host: Host) -> None:
    host.ensure("volume", "one", {"size": 1, "format": "raw"})
    path = content(host, host.ensure("volume", "one", {}).resource)
    with path.open("r+b") as stream:
        stream.write(b"magnetar")
    copied = host.ensure("volume", "two", {"source_volume": "one", "format": "raw"}).resource
    assert content(host, copied).open("rb").read(8) == b"magnetar"


@pytest.mark.parametrize(("want", "why"), [
    ({}, "size: is required"),
    ({"size": 0}, "size: must be from 1"),
    ({"size": 1, "pool": "nope"}, "pool: must be a pool of this host, which has default"),
    ({"size": 1, "multiattach": True, "format": "qcow2"}, "format: must be raw"),
    ({"image": "nope"}, "image: must name a image"),
    ({"source_volume": "nope"}, "source_volume: must name a volume"),
    ({"snapshot": "nope"}, "snapshot: must name a volume snapshot"),
    ({"image": "img", "snapshot": "x"}, "snapshot: cannot be combined with image"),
    ({"image": "big", "size": 1}, "size: must be at least 2 GiB"),
], ids=str)
def test_refused(host: Host, want: dict[str, Any], why: str) -> None:
    image(host)
    image(host, "big")
    big = host.agent.host.documents.find("image", "big")
    big.state["virtual_size"] = GIB + 512
    host.agent.host.documents.write(big)
    with pytest.raises(InvalidField, match=why):
        host.ensure("volume", "data", want)
    assert host.agent.host.documents.list("volume") == []


def test_fixed_fields_differ(host: Host) -> None:
    host.ensure("volume", "data", {"size": 1})
    with pytest.raises(Immutable, match="format"):
        host.ensure("volume", "data", {"format": "raw"})
    before = host.ensure("volume", "data", {}).resource
    after = host.ensure("volume", "data", {"format": "raw"}, on_immutable="recreate").resource
    assert after["format"] == "raw" and after["id"] == before["id"]


def test_another_source_takes_the_place_of_the_old_one(host: Host) -> None:
    """Each way of on_immutable, in check mode and for good, though a volume is made from one source only."""
    image(host)
    host.ensure("volume", "first", {"size": 1})
    host.ensure("volume_snapshot", "snap", {"volume": "first"})
    host.ensure("volume", "data", {"source_volume": "first"})
    with pytest.raises(Immutable, match="image cannot change from None to .*; source_volume cannot change"):
        host.ensure("volume", "data", {"image": "img"})
    ignored = host.ensure("volume", "data", {"image": "img"}, on_immutable="ignore")
    assert not ignored.changed and ignored.warnings and ignored.resource["image"] is None
    for field, name in (("image", "img"), ("snapshot", "snap"), ("source_volume", "first")):
        wanted = {field: name}
        predicted = host.ensure("volume", "data", wanted, dry_run=True, on_immutable="recreate")
        done = host.ensure("volume", "data", wanted, on_immutable="recreate")
        assert predicted.diff == done.diff and done.changed
        assert [other for other in ("image", "snapshot", "source_volume") if done.resource[other]] == [field]
        assert not host.ensure("volume", "data", wanted).changed
    with pytest.raises(InvalidField, match="snapshot: cannot be combined with image"):
        host.ensure("volume", "data", {"image": "img", "snapshot": "snap"}, on_immutable="recreate")


@pytest.mark.parametrize(("want", "why"), [
    ({"source_volume": "big"}, "size: must be at least 2 GiB"),
    ({"source_volume": "data"}, "source_volume: must be another"),
], ids=str)
def test_what_could_not_be_made_anew_leaves_what_is_there(host: Host, want: dict[str, Any], why: str) -> None:
    host.ensure("volume", "big", {"size": 2})
    before = host.ensure("volume", "data", {"size": 1}).resource
    for dry_run in (True, False):
        with pytest.raises(InvalidField, match=why):
            host.ensure("volume", "data", want, dry_run=dry_run, on_immutable="recreate")
    assert content(host, before).is_file() and not host.ensure("volume", "data", {"size": 1}).changed


def test_a_volume_whose_source_is_gone_is_not_made_anew(host: Host) -> None:
    image(host)
    before = host.ensure("volume", "data", {"image": "img"}).resource
    host.ensure("image", "img", None)
    with pytest.raises(InvalidField, match="image: is not here any more.*got 'img'"):
        host.ensure("volume", "data", {"format": "raw"}, on_immutable="recreate")
    assert content(host, before).is_file()


def test_check_mode_gets_through_what_is_not_there_yet(host: Host) -> None:
    found = host.ensure("volume", "data", {"image": "later"}, dry_run=True)
    assert found.changed and "later" in found.warnings[0]
    assert host.ensure("volume_snapshot", "s", {"volume": "data"}, dry_run=True).changed


def test_a_cancelled_copy_leaves_nothing(host: Host) -> None:
    image(host)
    operation = Operation("test")
    operation.cancel()
    with pytest.raises(Cancelled):
        reconcile.ensure_resource(host.agent.drivers, BY_NOUN["volume"], "v", {"image": "img"}, check_permissions({}),
                                  False, operation)
    assert host.agent.host.documents.list("volume") == []
    assert not list((host.root / "state").glob("volumes/*"))


class Slow:
    """Copies of the fake stop half way until ``on`` is set, or somebody cancels."""

    def __init__(self, host: Host, method: str) -> None:
        self.reached, self.on = threading.Event(), threading.Event()
        self._whole = getattr(host.fake, method)
        setattr(host.fake, method, self)

    def __call__(self, *given: Any, **more: Any) -> None:
        *others, progress = given

        def told(done: int, total: int) -> None:
            progress(done, total)
            if done * 2 == total:
                self.reached.set()
                while not self.on.wait(0.01):
                    progress(done, total)

        self._whole(*others, told, **more)


@pytest.mark.parametrize(("noun", "want", "runs"), [
    ("volume", {"image": "img"}, False), ("volume", {"snapshot": "then"}, False),
    ("volume", {"source_volume": "data"}, False), ("volume", {"source_volume": "data"}, True),
    ("volume_snapshot", {"volume": "data"}, False), ("volume_snapshot", {"volume": "data"}, True),
], ids=str)
def test_a_copy_on_its_way(host: Host, noun: str, want: dict[str, Any], runs: bool) -> None:
    """Its operation shows how far it is. Cancelled midway it leaves nothing, and its source is free again."""
    image(host)
    total = 3 << 20 if "image" in want else GIB
    host.ensure("volume", "data", {"size": 1})
    host.ensure("volume_snapshot", "then", {"volume": "data"})
    host.server(block_device_mapping=[{"source_type": "volume", "uuid": "data"}],
                flavor={"vcpus": 1, "ram": 64, "disk": 1}, power="running" if runs else "off")
    before = {path.name for path in (host.root / "state/volumes").iterdir()}
    documents = [document.name for document in host.agent.host.documents.list(noun)]
    slow = Slow(host, "finish_copy" if runs else "copy_disk")

    def copy(name: str) -> Operation:
        return host.agent.host.operations.start("ensure", lambda operation: reconcile.ensure_resource(
            host.agent.drivers, BY_NOUN[noun], name, want, check_permissions({}), False, operation))

    operation = copy("new")
    assert slow.reached.wait(300)
    shown = operation.as_dict()
    assert (shown["status"], shown["progress"]) == ("running", {
        "done": total // 2, "total": total, "unit": "bytes", "phase": "make the content"})
    assert reconcile.show_resource(host.agent.drivers, BY_NOUN[noun], "new")["status"] == "creating"
    operation.cancel()
    assert operation.wait(120) and operation.status == "cancelled"
    assert {path.name for path in (host.root / "state/volumes").iterdir()} == before
    assert [document.name for document in host.agent.host.documents.list(noun)] == documents
    assert not host.fake.copying(host.show()["id"])
    slow.on.set()
    again = copy("new")
    assert again.wait(120) and again.status == "succeeded"
    assert again.as_dict()["progress"]["done"] == total
    assert reconcile.show_resource(host.agent.drivers, BY_NOUN[noun], "new")["status"] == "available"


def test_a_full_pool_leaves_nothing(host: Host) -> None:
    image(host)
    host.fake.fail_next("copy_disk", NoSpace())
    with pytest.raises(NoSpace):
        host.ensure("volume", "v", {"image": "img"})
    host.ensure("volume", "v", {"size": 1})
    host.fake.fail_next("grow_disk", NoSpace())
    with pytest.raises(NoSpace):
        host.ensure("volume", "v", {"size": 2})
    shown = reconcile.show_resource(host.agent.drivers, BY_NOUN["volume"], "v")
    assert shown["fault"]["code"] == "no-space" and shown["status"] == "available"
    assert host.ensure("volume", "v", {"size": 2}).resource["fault"] is None


def test_content_that_is_gone_is_told(host: Host) -> None:
    shown = host.ensure("volume", "data", {"size": 1}).resource
    content(host, shown).unlink()
    assert reconcile.show_resource(host.agent.drivers, BY_NOUN["volume"], "data")["status"] == "error"
    with pytest.raises(Conflict, match="gone from the host"):
        host.ensure("volume", "data", {"size": 1})
    assert host.ensure("volume", "data", None).changed


def test_orphans_are_told(host: Host) -> None:
    shown = host.ensure("volume", "data", {"size": 1}).resource
    lost = content(host, shown).with_name("8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    lost.touch(0o640)
    content(host, shown).with_name("lost+found").mkdir(0o700)
    assert inventory.host_resource(host.agent.drivers)["orphans"]["files"] == [str(lost)]


def test_pools_of_the_settings(host: Host) -> None:
    fast = host.root / "fast"
    pooled(host, fast={"type": "dir", "path": str(fast)}, away={"type": "nfs", "path": str(host.root / "mnt")})
    shown = host.ensure("volume", "data", {"size": 1, "pool": "fast"}).resource
    assert (fast / shown["id"]).exists() and not shown["shared"]
    with pytest.raises(Conflict, match="nothing is mounted"):
        host.ensure("volume", "far", {"size": 1, "pool": "away"})
    assert not (host.root / "mnt").exists()
    pooled(host)
    assert reconcile.show_resource(host.agent.drivers, BY_NOUN["volume"], "data")["status"] == "error"
    with pytest.raises(InvalidField, match="which has default"):
        host.ensure("volume", "data", {"size": 2})


@pytest.mark.parametrize(("pools", "why"), [
    ({"a b": {"type": "dir", "path": "/x"}}, "names have letters"),
    ({"a": {"type": "ftp"}}, "must have a type of dir, nfs, lvm, rbd"),
    ({"a": "dir"}, "must have a type"),
    ({"a": {"type": "dir"}}, "needs path, an absolute path"),
    ({"a": {"type": "dir", "path": "x"}}, "needs path, an absolute path"),
    ({"a": {"type": "lvm", "path": "/x"}}, "path is not known for type lvm"),
], ids=str)
def test_settings(pools: Any, why: str) -> None:
    with pytest.raises(InvalidSettings, match=why):
        AgentSettings(pools=pools)
    assert AgentSettings(pools={"vg": {"type": "lvm"}}).pools == {"vg": {"type": "lvm", "libvirt_pool": "vg"}}


def test_an_error_of_the_host_is_shown(host: Host) -> None:
    host.fake.fail_next("make_disk", HypervisorError("qemu-img could not."))
    with pytest.raises(HypervisorError):
        host.ensure("volume", "data", {"size": 1})
    assert host.agent.host.documents.list("volume") == []
