# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud whose hosts reach a pool together, and its administrator, who fences hosts by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.host import mounts
from magnetar_control.fencing.host_fencing import HostFencing
from magnetar_control.store.hosts import host_removals
from tests.support.control.build import block
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import flavors
from tests.unit.control.moves.inside import Inside

from .evacuating import Evacuating

#: The names of folders that count as mounts of the export.
MOUNTS = ("nfs", "elsewhere")


class Sharing(Inside):
    """``kvm1`` and ``kvm2`` reach the pool ``team``; ``kvm3`` has a folder of its own under this name."""

    @property
    def team(self) -> Path:
        return self.folder / "nfs"

    def agent_of(self, name: str) -> dict[str, Any]:
        self.team.mkdir(exist_ok=True)
        return {"pools": {"team": {"type": "dir", "path": str(self.folder / "own")} if name == "kvm3" else {
            "type": "nfs", "path": str(self.team)}}}


def reached(cloud: Inside) -> set[tuple[str, bool, str]]:
    """Each host that reports the pool ``team``, whether others reach it, and its state."""
    return {(pool.host, pool.shared, pool.state) for pool in cloud.services.volume.host_pools() if pool.name == "team"}


@contextmanager
def sharing_cloud(databases: Any, **settings: Any) -> Iterator[Sharing]:
    """A cloud of three hosts that are down only when it is said."""
    is_mount, source = Path.is_mount, mounts.mount_source
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "is_mount", lambda path: path.name in MOUNTS or is_mount(path))
        patch.setattr(mounts, "mount_source", lambda path: "nas:/team" if path.name in MOUNTS else source(path))
        with Sharing(hosts=3, databases=databases, host_down_after=600.0, volume_pools=["default", "team"],
                     **settings) as found:
            flavors(found)
            found.parts.working.settling = lambda: False
            eventually(lambda: reached(found) == {("kvm1", True, "up"), ("kvm2", True, "up"), ("kvm3", False, "up")})
            yield found


class Fencing(Evacuating):
    """An administrator who cuts the power of hosts by hand."""

    def dies(self, name: str) -> None:
        """A host is dead, and fenced."""
        self.down(name)
        self.boots(name)
        self.fencing().fence_host(name, "the administrator", confirmed=True)

    def returns(self, name: str) -> None:
        """It is on again, and up."""
        self.unfence(name)
        self.up(name)

    def unfence(self, name: str) -> None:
        status = next(iter(self.fencing().host_statuses(name)), None)
        if status and status.fencing and status.fencing.holds_host:
            self.fencing().unfence_host(name, "the administrator", confirmed=True)

    def tidy(self) -> None:
        """All hosts are up, and have forgotten what they must; servers and volumes are gone."""
        for name in self.cloud.hosts:
            self.unfence(name)
            if name in self.stopped:
                self.up(name)
        eventually(lambda: not self.removals())
        self.clear()

    def removals(self) -> list[str]:
        """The hosts that must forget something."""
        with self.cloud.parts.api_database.read() as connection:
            return host_removals.fetch_removal_hosts(connection)

    def fencing(self) -> HostFencing:
        return HostFencing(self.cloud.parts.store, self.cloud.parts.settings)

    def homes(self, volume: str) -> list[str]:
        """The running hosts whose agents have the volume."""
        return sorted(host for host in self.cloud.hosts if host not in self.stopped
                      for one in self.on_host("volume", host) if one["id"] == volume)

    def where(self, volume: str) -> str:
        """The host that the database names."""
        return str(self.cloud.services.volume.where(volume))

    def boot(self, host: str, **more: Any) -> tuple[str, str]:
        """A server that boots from a volume of the pool: its uuid and the volume's."""
        blocks = [block("image", self.call.image(), boot_index=0, volume_size=1, volume_type="team",
                        delete_on_termination=True)]
        id = self.server(imageRef="", block_device_mapping_v2=blocks, flavorRef="small", host=host, version="2.74",
                         **more)["id"]
        volume = self.attached(id)[0]["volumeId"]
        assert self.host_of(id) == self.where(volume) == host
        return id, volume

    def with_volume(self, host: str, home: str) -> tuple[str, str]:
        """A server on *host* with a volume of the pool whose host is *home*: their uuids."""
        id, volume = self.server(flavorRef="small", host=host, version="2.74")["id"], self.volume(
            host=home, volume_type="team")
        assert self.attach(id, volume).status == 200
        eventually(lambda: self.state(volume) == "in-use")
        return id, volume
