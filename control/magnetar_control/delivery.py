# SPDX-License-Identifier: GPL-3.0-or-later
"""Delivery of images to hosts: each image is brought to a host once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from weakref import WeakValueDictionary

from magnetar_control.services import Context, Document, Images
from magnetar_control.services.image.boot_parts import check_parts, command_line
from magnetar_core.errors import InvalidField
from magnetar_core.hardware import AGENT
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES
from magnetar_core.http.client import Client

#: The control plane itself: it may read images of all projects.
ITSELF = Context("", None, frozenset(("admin",)))
CONFIG_DRIVE = "img_config_drive"
#: Remembered deliveries; when there are more, all are forgotten.
REMEMBERED = 20_000


class Delivery:
    """Brings images to hosts, and remembers what was delivered until a build on the host fails."""

    def __init__(self, images: Images, timeout: float) -> None:
        self.images, self.timeout = images, timeout
        #: ("image", host, uuid) and the like.
        self.known: set[tuple[str, str, str]] = set()
        self._lock = threading.Lock()
        #: Of an image with its kernel and ramdisk ("whole"), and of one image ("part"): by host and uuid.
        self._under_way: WeakValueDictionary[tuple[str, str, str], threading.Lock] = WeakValueDictionary()

    def forget(self, host: str) -> None:
        """Check again what is on the host."""
        self.known = {key for key in list(self.known) if key[1] != host}

    def image(self, client: Client, host: str, id: str, context: Context = ITSELF, checksum: str | None = None,
              checksum_of: Callable[[str], str | None] = lambda _part: None) -> None:
        """Bring an image to the host, with the kernel and ramdisk that it names; several servers that need it wait for
        one transfer. *checksum*: of the content whose signature was verified; the agent is asked then whether it has
        that, and takes nothing else. *checksum_of*: returns the same of a kernel or ramdisk. Raises
        ``InvalidRequest`` for one that the image may not have."""
        key = ("image", host, id)
        if key in self.known and not checksum:
            return
        # Images may name each other: who holds the lock of a whole image takes locks of parts, and never of another
        # whole image. What a kernel or ramdisk names itself is left alone.
        with self._lock_of("whole", host, id):
            if key in self.known and not checksum:
                return
            found = self.images.show_with_location(context, id)
            parts = check_parts(found[0], partial(self.images.show, ITSELF)) if found[0] else {}
            for part in parts.values():
                self._bring(client, host, part, self.images.show_with_location(ITSELF, part), checksum_of(part))
            boot = {**parts, "cmdline": command_line(found[0])} if found[0] and parts else {}
            self._bring(client, host, id, found, checksum, boot)

    def _lock_of(self, what: str, host: str, id: str) -> threading.Lock:
        with self._lock:
            return self._under_way.setdefault((what, host, id), threading.Lock())

    def _bring(self, client: Client, host: str, id: str, image: tuple[Document | None, str],
               checksum: str | None, boot: Mapping[str, str] = MappingProxyType({})) -> None:
        """Bring one image to the host. *image*: as ``show_with_location`` returns it. *boot*: its kernel, ramdisk and
        cmdline."""
        key = ("image", host, id)
        with self._lock_of("part", host, id):
            if key in self.known and not checksum:
                return
            # A copy with another checksum is replaced; servers that are based on it keep it.
            shown, location = image
            want = {**_wanted(id, shown or {}, checksum), **boot}
            found = client.ensure("image", id, want, "recreate")
            if found["resource"]["status"] != "active" and location:
                direct = {**want, "source": {**want["source"], "location": location}}
                with contextlib.suppress(InvalidField):  # no words of a location, or an older agent: it is sent
                    found = client.ensure("image", id, direct, timeout=self.timeout)
            if found["resource"]["status"] != "active":
                chunks, size = self.images.content(id)
                client.send("image", id, chunks, size, timeout=self.timeout)
            self.remember(key)

    def remember(self, key: tuple[str, str, str]) -> None:
        """It is on the host."""
        if len(self.known) >= REMEMBERED:
            self.known = set()
        self.known.add(key)


def _wanted(id: str, image: Document, checksum: str | None = None) -> Document:
    """The image in the agent's form, with those properties that agents act on (``instance_uuid``: what a server has
    already of itself is not written into its disk again); none when it was deleted meanwhile. Its
    content has this *checksum*; where none is given, the one that its service says."""
    properties = {name: value for name, value in IMAGE_PROPERTIES.acted_on(
        image.get("properties") or {}, AGENT).items() if not name.startswith("trait:")}  # the scheduler has looked
    if CONFIG_DRIVE in properties and any(IMAGE_PROPERTIES.malformed({CONFIG_DRIVE: properties[CONFIG_DRIVE]})):
        del properties[CONFIG_DRIVE]  # an image of old servers: agents refuse it, and it did nothing
    if of_server := (image.get("properties") or {}).get("instance_uuid"):
        properties["instance_uuid"] = of_server
    want = {"name": id, "source": {"upload": True}, "properties": {
        name: value[:255] for name, value in properties.items() if value}}
    if checksum:
        want["checksum"] = checksum
    elif image.get("os_hash_algo") in ("sha256", "sha512") and image.get("os_hash_value"):
        want["checksum"] = f"{image['os_hash_algo']}:{image['os_hash_value']}"
    return want
