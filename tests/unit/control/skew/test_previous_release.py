# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of the previous release run beside today's, as in an upgrade of one host after the other: its agents under
today's control plane, and today's agents under its control plane."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.control.cloud import Cloud
from tests.support.control.released_cloud import ReleasedCloud
from tests.support.waiting import eventually

#: Hosts: of today, of the previous release.
NEW, OLD = "kvm1", "kvm2"


@pytest.fixture(scope="module", params=["agents", "control plane"])
def cloud(request, previous, current):
    """A cloud of two hosts, with one agent of the previous release, or with the control plane of it and today's agents.
    """
    if request.param == "agents":
        with Cloud(links=True, trees={NEW: current, OLD: previous}) as made:
            yield made
    else:
        with ReleasedCloud(previous, links=True, trees={NEW: current, OLD: current}) as made:
            yield made


def _act(cloud: Cloud, server: str, action: str, args: object = None, status: str = "ACTIVE",
         version: str | None = None) -> str:
    """Do the action, and return the name of the server's host afterwards."""
    reply = cloud.admin.act(server, action, args, version)
    assert reply.status in (200, 202, 204), reply

    def ended() -> str | None:
        document = cloud.admin.settled(server)
        assert document is not None and document["status"] != "ERROR", document
        return str(document["OS-EXT-SRV-ATTR:host"]) if document["status"] == status else None

    return str(eventually(ended, f"{action} to {status}"))  # a confirmation shows no task


@pytest.mark.parametrize("first", [NEW, OLD])
def test_the_life_of_a_server(cloud: Cloud, first: str) -> None:
    other = OLD if first == NEW else NEW
    server = cloud.admin.boot(f"life-{first}", availability_zone=f"nova:{first}")
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", first), server
    id = server["id"]
    _act(cloud, id, "os-stop", status="SHUTOFF")
    _act(cloud, id, "os-start")
    _act(cloud, id, "reboot", {"type": "HARD"})
    assert _act(cloud, id, "os-migrateLive", {"host": other, "block_migration": "auto"}, version="2.30") == other
    assert _act(cloud, id, "os-migrateLive", {"host": first, "block_migration": "auto"}, version="2.30") == first
    assert _act(cloud, id, "migrate", {"host": other}, "VERIFY_RESIZE", "2.56") == other
    _act(cloud, id, "revertResize")
    assert _act(cloud, id, "migrate", {"host": other}, "VERIFY_RESIZE", "2.56") == other
    _act(cloud, id, "confirmResize")
    _act(cloud, id, "rebuild", {"imageRef": cloud.admin.image()})
    _act(cloud, id, "rescue", status="RESCUE")
    _act(cloud, id, "unrescue")
    _act(cloud, id, "shelve", status="SHELVED_OFFLOADED")
    _act(cloud, id, "unshelve")
    assert cloud.admin.delete(f"/v2.1/servers/{id}").status == 204
    assert cloud.admin.settled(id) is None


def test_a_resize_to_another_host(cloud: Cloud) -> None:
    larger = cloud.admin.flavor(f"larger-{type(cloud).__name__}", ram=128)
    for host in (NEW, OLD):
        server = cloud.admin.boot(availability_zone=f"nova:{host}")["id"]
        assert cloud.admin.act(server, "resize", {"flavorRef": larger}).status == 202
        resized = cloud.admin.settled(server)
        assert resized is not None and resized["status"] == "VERIFY_RESIZE", resized
        _act(cloud, server, "confirmResize")
        assert cloud.admin.delete(f"/v2.1/servers/{server}").status == 204
        assert cloud.admin.settled(server) is None


@pytest.mark.parametrize("host", [NEW, OLD])
def test_a_volume_is_attached_and_detached(cloud: Cloud, host: str) -> None:
    server = cloud.admin.boot(availability_zone=f"nova:{host}")["id"]
    made = cloud.admin.post(f"/volume/v3/{cloud.admin.project_id}/volumes", {"volume": {"size": 1, "name": "data"}})
    assert made.status == 202, made
    path = f"/volume/v3/{cloud.admin.project_id}/volumes/{made.json['volume']['id']}"

    def has_status(status: str) -> bool:
        volume = cloud.admin.get(path).json["volume"]
        assert not volume["status"].startswith("error"), volume
        return bool(volume["status"] == status)

    eventually(lambda: has_status("available"))
    attached = cloud.admin.post(f"/v2.1/servers/{server}/os-volume_attachments", {
        "volumeAttachment": {"volumeId": made.json["volume"]["id"]}})
    assert attached.status == 200, attached
    eventually(lambda: has_status("in-use"))
    assert cloud.admin.delete(f"/v2.1/servers/{server}/os-volume_attachments/{made.json['volume']['id']}").status == 202
    eventually(lambda: has_status("available"))
    assert cloud.admin.delete(path).status == 202
    assert cloud.admin.delete(f"/v2.1/servers/{server}").status == 204
    assert cloud.admin.settled(server) is None


def test_a_control_plane_is_upgraded_and_goes_back(previous: Path, current: Path) -> None:
    """Servers of one release belong to the next one, and to the previous one again, whose agents run all the time."""
    with ReleasedCloud(previous, hosts=1, trees={NEW: previous}) as cloud:
        servers = [cloud.admin.boot("before")["id"]]
        for tree in (current, previous, current):
            cloud.restart_control(tree)
            for server in servers:
                _act(cloud, server, "reboot", {"type": "HARD"})
            servers.append(cloud.admin.boot(f"after-{len(servers)}")["id"])
        for server in servers:
            assert cloud.admin.delete(f"/v2.1/servers/{server}").status == 204
            assert cloud.admin.settled(server) is None
