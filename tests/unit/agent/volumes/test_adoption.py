# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes in shared pools that another host has made: they are taken over and given up without a change of content."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_agent.reconcile import events
from magnetar_core.errors import Conflict, InUse, InvalidField, NotFound
from magnetar_core.kinds import BY_NOUN
from magnetar_core.operations import Operation
from tests.unit.agent.conftest import Host

ID = "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"
WANT = {"name": "data", "size": 1, "pool": "ceph", "adopt": True}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host with a Ceph pool."""
    made = Host(tmp_path / "host", pools={"ceph": {"type": "rbd"}})
    made.fake.add_pool("ceph")
    made.start()
    yield made
    made.agent.close()


def release(host: Host, key: str) -> None:
    events.perform_event(host.agent.drivers, BY_NOUN["volume"], key, "release", {}, "", Operation("release"))


def test_content_of_another_host_is_taken_over_and_given_up(host: Host) -> None:
    content = host.root / "libvirt/pool-ceph" / ID
    content.write_bytes(b"theirs".ljust(1 << 20, b"."))
    for _time in range(2):
        shown = host.ensure("volume", ID, WANT).resource
        assert (shown["status"], shown["size"], shown["shared"]) == ("available", 1, True)
    assert content.read_bytes().startswith(b"theirs")
    host.server()
    host.ensure("volume_attachment", f"web1:{ID}", {"server": "web1", "volume": ID})
    with pytest.raises(InUse, match="web1"):
        release(host, ID)
    host.ensure("volume_attachment", f"web1:{ID}", None)
    release(host, ID)
    assert host.agent.host.documents.get("volume", ID) is None and content.read_bytes().startswith(b"theirs")
    with pytest.raises(NotFound):
        release(host, ID)


def test_what_cannot_be_taken_over_or_given_up(host: Host) -> None:
    with pytest.raises(Conflict, match="has no content called"):
        host.ensure("volume", ID, WANT)
    with pytest.raises(InvalidField, match="pools that other hosts reach"):
        host.ensure("volume", "other", {**WANT, "name": "other", "pool": "default"})
    host.ensure("volume", "own", {"size": 1})
    with pytest.raises(Conflict, match="in a pool of this host only"):
        release(host, "own")


def test_a_volume_that_was_attached_before_it_was_taken_over(host: Host) -> None:
    """Its former host, which is dead, has no part any more in a growth and a detachment."""
    content = host.root / "libvirt/pool-ceph" / ID
    content.write_bytes(b"theirs".ljust(1 << 20, b"."))
    key = f"{host.server().resource['id']}:{ID}"
    attached = {"server": "web1", "volume": ID, "origin": {
        "host": "kvm9", "peer": "kvm9", "address": "127.0.0.1:9", "volume_name": "data", "size": 1, "format": "raw",
        "multiattach": False, "pool": "ceph"}}
    host.ensure("volume_attachment", key, attached)
    shown = host.ensure("volume", ID, WANT).resource
    assert (shown["status"], [one["server_name"] for one in shown["attachments"]]) == ("in-use", ["web1"])
    assert host.ensure("volume", ID, {"size": 2}).resource["size"] == 2
    with pytest.raises(InUse, match="web1"):
        host.ensure("volume", ID, None)
    host.ensure("volume_attachment", key, None)
    assert host.agent.host.documents.list("volume_attachment") == []
    host.ensure("volume", ID, None)
    assert not content.exists()
