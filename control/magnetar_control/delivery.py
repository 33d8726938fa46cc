# SPDX-License-Identifier: GPL-3.0-or-later
"""Delivery of images to hosts: a host gets each image once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from weakref import WeakValueDictionary

from magnetar_control.services import Context, Images
from magnetar_control.services.image.boot_parts import check_parts, image_command_line
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.hardware import AGENT
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES
from magnetar_core.http.client import Client

#: The control plane itself, which may read images of all projects.
ITSELF = Context("", None, frozenset(("admin",)))
CONFIG_DRIVE = "img_config_drive"
#: The most deliveries to remember; when there are more, all are forgotten.
REMEMBERED = 20_000


class Delivery:
    """The sender of images to hosts. It remembers which images each host already has; if a build on a host fails, it
    forgets the images of this host."""

    def __init__(self, images: Images, timeout: float) -> None:
        self.images, self.timeout = images, timeout
        #: Remembered deliveries: ("image", host, uuid) and similar.
        self.known: set[tuple[str, str, str]] = set()
        self._lock = threading.Lock()
        #: Locks by scope, host and uuid: of an image with its kernel and ramdisk ("whole"), and of one image ("part").
        self._under_way: WeakValueDictionary[tuple[str, str, str], threading.Lock] = WeakValueDictionary()

    def forget(self, host: str) -> None:
        """Forget which images *host* has, so that the next build there checks them again."""
        self.known = {key for key in list(self.known) if key[1] != host}

    def image(self, client: Client, host: str, id: str, context: Context = ITSELF, checksum: str | None = None,
              checksum_of: Callable[[str], str | None] = lambda _part: None) -> None:
        """Send the image *id* to *host*, with the kernel and ramdisk that the image names, unless the host has them.
        Concurrent calls for the same image send it once.

        *client*: calls the agent of *host*. *context*: the caller whose access to the image is checked. *checksum*: the
        checksum of the content whose signature was verified; the agent then accepts only this content. *checksum_of*:
        takes the uuid of a kernel or ramdisk, and returns its verified checksum. Raises ``InvalidRequest`` for a kernel
        or ramdisk that ``check_parts`` refuses.
        """
        key = ("image", host, id)
        if key in self.known and not checksum:
            return
        # Images may name each other: a thread with the lock of a whole image takes locks of parts, and never of another
        # whole image. Images that a kernel or ramdisk names are ignored.
        with self._lock_of("whole", host, id):
            if key in self.known and not checksum:
                return
            located_image = self.images.show_with_location(context, id)
            parts = check_parts(located_image[0], partial(self.images.show, ITSELF)) if located_image[0] else {}
            for part in parts.values():
                self._bring(client, host, part, self.images.show_with_location(ITSELF, part), checksum_of(part))
            boot = {**parts, "cmdline": image_command_line(located_image[0])} if located_image[0] and parts else {}
            self._bring(client, host, id, located_image, checksum, boot)

    def _lock_of(self, scope: str, host: str, id: str) -> threading.Lock:
        with self._lock:
            return self._under_way.setdefault((scope, host, id), threading.Lock())

    def _bring(self, client: Client, host: str, id: str, image: tuple[Document | None, str],
               checksum: str | None, boot: Mapping[str, str] = MappingProxyType({})) -> None:
        """Send the image *id*, without its kernel and ramdisk, to *host*. *image*: the image as the image service shows
        it (``None`` if it was deleted), and the rbd URL of its content, or "". *checksum*: as in ``Delivery.image``.
        *boot*: the uuids of kernel and ramdisk, and the kernel command line, to save with the image on the host."""
        key = ("image", host, id)
        with self._lock_of("part", host, id):
            if key in self.known and not checksum:
                return
            # A copy with another checksum is replaced; servers that are based on it keep it.
            shown, location = image
            want = {**_agent_document(id, shown or {}, checksum), **boot}
            reply = client.ensure("image", id, want, "recreate")
            if reply["resource"]["status"] != "active" and location:
                direct = {**want, "source": {**want["source"], "location": location}}
                with contextlib.suppress(InvalidField):  # an invalid location, or an older agent: the content is sent
                    reply = client.ensure("image", id, direct, timeout=self.timeout)
            if reply["resource"]["status"] != "active":
                chunks, size = self.images.content(id)
                client.send("image", id, chunks, size, timeout=self.timeout)
            self.remember(key)

    def remember(self, key: tuple[str, str, str]) -> None:
        """Remember that a host has an image or network, so that the image or network is not sent again. *key*: (type of
        the resource, name of the host, uuid), such as ("image", "kvm1", …)."""
        if len(self.known) >= REMEMBERED:
            self.known = set()
        self.known.add(key)


def _agent_document(id: str, image: Document, checksum: str | None = None) -> Document:
    """Return the fields of *image* that the agent of a host saves with the image, including the image properties that
    agents use. *image*: as the image service shows it; empty if the image was deleted. *checksum*: the checksum of the
    content; by default the checksum in *image*. The property ``instance_uuid`` is included: it tells the agent that the
    image is a snapshot of that server, so the disk already contains the server's injected files."""
    properties = {name: value for name, value in IMAGE_PROPERTIES.acted_on(
        image.get("properties") or {}, AGENT).items() if not name.startswith("trait:")}  # traits are for the scheduler
    if CONFIG_DRIVE in properties and any(IMAGE_PROPERTIES.malformed({CONFIG_DRIVE: properties[CONFIG_DRIVE]})):
        del properties[CONFIG_DRIVE]  # on images of old servers; agents refuse it, and it never had an effect
    if of_server := (image.get("properties") or {}).get("instance_uuid"):
        properties["instance_uuid"] = of_server
    want = {"name": id, "source": {"upload": True}, "properties": {
        name: value[:255] for name, value in properties.items() if value}}
    if checksum:
        want["checksum"] = checksum
    elif image.get("os_hash_algo") in ("sha256", "sha512") and image.get("os_hash_value"):
        want["checksum"] = f"{image['os_hash_algo']}:{image['os_hash_value']}"
    return want
