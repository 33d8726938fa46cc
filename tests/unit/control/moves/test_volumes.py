# SPDX-License-Identifier: GPL-3.0-or-later
"""A server that moves keeps its volumes, which stay where they are; and a root disk that is one."""

from __future__ import annotations

import pytest

from tests.support.waiting import eventually
from tests.unit.control.attachments.asking import Owner

from .clouds import at, check, row
from .inside import with_flavors  # noqa: F401 - the fixture cloud


def move(cloud, id, action, args=None):
    """Do it, and wait."""
    assert cloud.admin.act(id, action, args, "2.30").status in (202, 204)
    eventually(lambda: cloud.admin.server(id)["OS-EXT-STS:task_state"] is None
          and not (action == "confirmResize" and cloud.admin.server(id)["status"] == "VERIFY_RESIZE"))
    return cloud.admin.server(id)


def test_volumes_come_along(cloud):
    owner = Owner(cloud)
    id = cloud.admin.boot(flavorRef="small")["id"]
    volumes = [owner.volume(host=name) for name in cloud.hosts]
    for volume in volumes:
        assert owner.attach(id, volume).status == 200
    cloud.admin.settled(id)
    eventually(lambda: len(at(cloud, id)[row(cloud, id).host]["volumes_attached"]) == 2)
    for action, args in (("os-migrateLive", {"host": None, "block_migration": "auto"}), ("migrate", None),
                         ("revertResize", None), ("resize", {"flavorRef": "large"}), ("confirmResize", None)):
        before = row(cloud, id).host
        server = move(cloud, id, action, args)
        host = row(cloud, id).host
        assert (host == before) is (action == "confirmResize"), (action, row(cloud, id).fault)
        have = check(cloud, id, waits=server["status"] == "VERIFY_RESIZE")
        assert {one["id"] for one in have["volumes_attached"]} == set(volumes)
        assert {owner.state(volume) for volume in volumes} == {"in-use"}
    for volume in volumes:
        assert owner.detach(id, volume).status == 202
        eventually(lambda volume=volume: owner.state(volume) == "available")
    check(cloud, id)
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None
    assert [owner.on_host("volume_export", name) for name in cloud.hosts] == [[], []]


def test_a_root_disk_that_is_a_volume_binds_no_server(cloud):
    block = {"source_type": "image", "destination_type": "volume", "boot_index": 0, "volume_size": 1,
             "delete_on_termination": True, "uuid": cloud.admin.image()}
    id = cloud.admin.boot(flavorRef="small", block_device_mapping_v2=[block])["id"]
    host = row(cloud, id).host
    server = move(cloud, id, "migrate")
    assert (server["status"], row(cloud, id).host != host) == ("VERIFY_RESIZE", True), row(cloud, id).fault
    assert move(cloud, id, "revertResize")["status"] == "ACTIVE"
    assert (row(cloud, id).host, at(cloud, id)[host]["power_state"]) == (host, "running")
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None


@pytest.mark.parametrize("named", [False, True])
def test_a_flavor_with_a_smaller_disk_is_for_servers_on_volumes(cloud, named):
    """The volume has its own size, whether or not the request named its image too; a disk of the host cannot shrink."""
    image = cloud.admin.image()
    block = {"source_type": "image", "destination_type": "volume", "boot_index": 0, "volume_size": 1,
             "delete_on_termination": True, "uuid": image}
    id = cloud.admin.boot(flavorRef="large", block_device_mapping_v2=[block], **({"imageRef": image} if named else {}))[
        "id"]
    for flavor in ("small", "1"):  # the latter has no disk
        server = move(cloud, id, "resize", {"flavorRef": flavor})
        assert server["status"] == "VERIFY_RESIZE", row(cloud, id).fault
        assert move(cloud, id, "confirmResize")["status"] == "ACTIVE"
        assert list(at(cloud, id)) == [row(cloud, id).host]
    other = cloud.admin.boot(flavorRef="large")["id"]
    for flavor in ("small", "1"):
        assert cloud.admin.act(other, "resize", {"flavorRef": flavor}).status == 400
    for each in (id, other):
        cloud.admin.delete(f"/v2.1/servers/{each}")
        assert cloud.admin.settled(each) is None
