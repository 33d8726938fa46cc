# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host reports of its pools: the identity that tells whether two hosts reach the same one, size and state."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.host import inventory, mounts
from magnetar_agent.host.background_reads import BackgroundReads
from magnetar_agent.volumes import pool_reports
from magnetar_agent.volumes.pools import FolderPool
from tests.support.waiting import eventually
from tests.unit.agent.conftest import Host

GIB = 2**30
MOUNTINFO = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
40 22 0:50 / /mnt/the\\040team rw,relatime shared:7 - nfs4 nas:/export/team rw,vers=4.2
41 22 0:51 / /mnt/local rw - ext4 /dev/sdb1 rw
"""


def reports(host: Host, **pools: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What the host reports with these pools in its settings, by the name of the pool."""
    local = host.agent.host
    local.settings, local.pool_reads = dataclasses.replace(local.settings, pools=pools), BackgroundReads(patience=20.0)
    return {report["name"]: report for report in inventory.host_usage(local)["pools"]}


def test_each_kind_of_pool(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(FolderPool, "_usable", lambda _pool: True)
    monkeypatch.setattr(mounts, "mount_source", lambda _folder: "nas:/export/team")
    vg, ceph = (host.fake.add_pool(name, 40 * GIB) for name in ("vg0", "ceph"))
    told = reports(host, vg={"type": "lvm", "libvirt_pool": "vg0"}, team={"type": "nfs", "path": str(tmp_path)},
                   ceph={"type": "rbd", "libvirt_pool": "ceph"})
    name = host.agent.host.name
    assert {pool: (one["kind"], one["identity"], one["shared"], one["state"]) for pool, one in told.items()} == {
        "default": ("dir", f"dir:{name}:{host.agent.host.settings.state_dir}/volumes", False, "up"),
        "vg": ("lvm", f"lvm:{vg.resolve()}", False, "up"), "ceph": ("rbd", f"rbd:{ceph.resolve()}", True, "up"),
        "team": ("nfs", "nfs:nas:/export/team", True, "up")}
    assert (told["vg"]["total_gb"], told["vg"]["free_gb"], told["vg"]["reason"]) == (40, 40, "")


def test_a_pool_that_is_not_there_is_down(host: Host, tmp_path: Path) -> None:
    told = reports(host, vg={"type": "lvm", "libvirt_pool": "vg0"}, team={"type": "nfs", "path": str(tmp_path)})
    assert [(told[name]["state"], told[name]["identity"], told[name]["free_gb"]) for name in ("vg", "team")] == [
        ("down", None, None)] * 2
    assert "libvirt has no storage pool" in told["vg"]["reason"]
    assert "nothing is mounted" in told["team"]["reason"]
    assert told["default"]["state"] == "up"


def test_a_pool_under_another_path_keeps_its_identity(host: Host, monkeypatch: pytest.MonkeyPatch,
                                                      tmp_path: Path) -> None:
    monkeypatch.setattr(FolderPool, "_usable", lambda _pool: True)
    monkeypatch.setattr(mounts, "mount_source", lambda _folder: "nas:/export/team")
    identities = set()
    for name, path in (("team", tmp_path / "a"), ("renamed", tmp_path / "b")):
        path.mkdir()
        identities.add(reports(host, **{name: {"type": "nfs", "path": str(path)}})[name]["identity"])
    assert identities == {"nfs:nas:/export/team"}


def test_a_mount_of_this_machine_is_of_this_machine(host: Host, monkeypatch: pytest.MonkeyPatch,
                                                    tmp_path: Path) -> None:
    monkeypatch.setattr(FolderPool, "_usable", lambda _pool: True)
    monkeypatch.setattr(mounts, "mount_source", lambda _folder: "/dev/sdb1")
    told = reports(host, team={"type": "nfs", "path": str(tmp_path)})
    assert told["team"]["identity"] == f"nfs:{host.agent.host.name}:{tmp_path}"


@pytest.mark.parametrize(("folder", "source"), [
    ("/mnt/the team", "nas:/export/team"), ("/mnt/local", "/dev/sdb1"), ("/mnt", ""), ("/", "/dev/sda1")])
def test_what_is_mounted(tmp_path: Path, folder: str, source: str) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTINFO)
    assert mounts.mount_source(Path(folder), tmp_path / "mountinfo") == source


def test_a_pool_that_hangs_delays_no_report(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as an NFS whose server is away: it is down after a while, and up again when it answers."""
    answers, begun = threading.Event(), []

    def usable(pool: FolderPool) -> None:
        begun.append(pool.name)
        answers.wait(60)

    local = host.agent.host
    local.pool_reads = BackgroundReads(interval=0.0, patience=0.05)
    with monkeypatch.context() as hanging:
        hanging.setattr(FolderPool, "check_usable", usable)
        assert pool_reports.report_pools(local)[0]["reason"] == "It was not read yet."
        hanging.setattr(pool_reports, "SLOW", 0.0)
        (told,) = pool_reports.report_pools(local)
        assert (told["state"], told["identity"], begun) == ("down", None, ["default"])
        assert "has not answered for" in told["reason"]
        answers.set()
        eventually(lambda: pool_reports.report_pools(local)[0]["identity"])
