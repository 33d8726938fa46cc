# SPDX-License-Identifier: GPL-3.0-or-later
"""What hosts must have before a server can be there: images. Brought once, whoever needs them."""

from __future__ import annotations

import threading

from magnetar_control.services import Context, Document, Images
from magnetar_core.client import Client

#: The control plane itself, for images of any project.
ITSELF = Context("", None, frozenset(("admin",)))


class Delivery:
    """Brings images to hosts. What is believed to be on a host is remembered until a build fails there."""

    def __init__(self, images: Images, timeout: float) -> None:
        self.images, self.timeout = images, timeout
        #: ("image", host, uuid) and the like.
        self.known: set[tuple[str, str, str]] = set()
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, str], threading.Lock] = {}

    def forget(self, host: str) -> None:
        """What was believed to be on the host may not be there."""
        self.known = {key for key in self.known if key[1] != host}

    def image(self, client: Client, host: str, id: str, context: Context = ITSELF) -> None:
        """Have the image's content on the host; several servers that need it wait for one transfer."""
        key = ("image", host, id)
        if key in self.known:
            return
        with self._lock:
            lock = self._under_way.setdefault((host, id), threading.Lock())
        with lock:
            if key in self.known:
                return
            # A copy that has another checksum is not the image's, and goes; servers that stand on it keep it.
            found = client.ensure("image", id, _wanted(id, self.images.show(context, id) or {}), "recreate")
            if found["resource"]["status"] != "active":
                chunks, size = self.images.content(id)
                client.send("image", id, chunks, size, timeout=self.timeout)
            self.known.add(key)


def _wanted(id: str, image: Document) -> Document:
    """The host's image, with as much as is known of ours: nothing when it was deleted meanwhile."""
    properties = image.get("properties") or {}
    want = {"name": id, "source": {"upload": True}, "properties": {
        name: str(value)[:255] for name, value in properties.items() if str(value)}}
    if image.get("os_hash_algo") in ("sha256", "sha512") and image.get("os_hash_value"):
        want["checksum"] = f"{image['os_hash_algo']}:{image['os_hash_value']}"
    return want
