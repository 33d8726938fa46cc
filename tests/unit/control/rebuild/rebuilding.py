# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user asks of a cloud whose servers boot from volumes."""

from __future__ import annotations

from typing import Any

from tests.support.control.build import block
from tests.support.control.cloud import Reply
from tests.support.control.engines import engines
from tests.unit.control.attachments.asking import Owner

ENGINES = engines("rebuild, postgres")


class Rebuilding(Owner):
    """A caller with servers on volumes."""

    def on_volume(self, size: int = 1, **more: Any) -> str:
        """The uuid of a server whose root disk is a volume that was made from the first image."""
        blocks = [block("image", self.call.image(), boot_index=0, volume_size=size, delete_on_termination=True)]
        return str(self.server(imageRef="", block_device_mapping_v2=blocks, flavorRef="small", **more)["id"])

    def rebuild(self, id: str, image: str, version: str = "2.93", **more: Any) -> Reply:
        """Ask for it."""
        return self.call.act(id, "rebuild", {"imageRef": image, **more}, version)

    def root(self, id: str) -> dict[str, Any]:
        """The volume that is a server's root disk."""
        found = self.seen(next(one["volumeId"] for one in self.attached(id) if one["device"] == "/dev/vda"))
        assert found
        return found

    def check_of(self, id: str, image: str, host: str) -> None:
        """The server runs, and its root volume has the content of *image*, on *host* and as the services tell."""
        volume, server = self.root(id), self.call.server(id)
        assert (volume["status"], volume["volume_image_metadata"]["image_id"]) == ("in-use", image)
        assert [one["image"] for one in self.on_host("volume", host) if one["id"] == volume["id"]] == [image]
        assert (server["status"], server["OS-EXT-STS:power_state"]) == ("ACTIVE", 1), server.get("fault")
