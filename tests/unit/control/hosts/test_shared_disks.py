# SPDX-License-Identifier: GPL-3.0-or-later
"""Which servers have their own disks on storage that other hosts share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from magnetar_control.store.hosts.shared_disks import do_hosts_share_disks, find_shared_storage, shared_disks_of

FOLDER = {"path": "/srv", "id": "folder-1", "owner": "a", "reason": ""}
POOL = {"pool": "ceph", "id": "rbd:fsid/vms", "owner": "a", "reason": "", "others": ["server-2"]}


def host(**info: Any) -> Any:
    return SimpleNamespace(info=info)


def server(id: str = "server-1", image: str = "image", root: bool = False, **flavor: int) -> Any:
    """With *root*, its root disk is a volume."""
    return SimpleNamespace(id=id, image_id=image, volumes=[{"boot_index": 0 if root else None}],
                           flavor={"ephemeral": 0, "swap": 0, **flavor})


@pytest.mark.parametrize(("info", "of", "owner"), [
    ({"disk_folder": FOLDER}, server(), "a"), ({"disk_folder": FOLDER}, server(root=True), "a"),
    ({"disk_pool": POOL}, server(), "a"), ({"disk_pool": {**POOL, "reason": "down"}}, server(), "a"),
    ({"disk_pool": POOL}, server("server-2"), None),  # its disks are files
    ({"disk_pool": POOL}, server(root=True), None), ({"disk_pool": POOL}, server(image=""), None),
    ({"disk_pool": POOL}, server(root=True, swap=64), "a"), ({"disk_pool": POOL}, server(image="", ephemeral=1), "a"),
    ({"disk_pool": {**POOL, "id": None}}, server(), None), ({"disk_folder": None, "disk_pool": None}, server(), None),
    ({}, server(), None)])
def test_the_owner_of_disks(info: Any, of: Any, owner: str | None) -> None:
    assert shared_disks_of(host(**info), of).get("owner") == owner


def test_hosts_that_can_use_them() -> None:
    assert shared_disks_of(None, server()) == {}
    assert find_shared_storage({"disk_pool": POOL}) == (POOL["id"], True)
    assert find_shared_storage({"disk_folder": FOLDER, "disk_pool": None}) == ("folder-1", True)
    assert find_shared_storage({"disk_folder": {**FOLDER, "reason": "not mounted"}}) == ("folder-1", False)
    assert find_shared_storage({}) == ("", False)
    source, target = host(disk_pool=POOL), host(disk_pool={**POOL, "owner": "b", "others": ["server-1"]})
    assert do_hosts_share_disks(source, target, server())
    assert not do_hosts_share_disks(source, host(disk_pool={**POOL, "id": "rbd:other/vms"}), server())
    assert not do_hosts_share_disks(source, target, server("server-2"))
    assert not do_hosts_share_disks(source, None, server()) and not do_hosts_share_disks(None, target, server())
