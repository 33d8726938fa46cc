# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of a server's root disk (Nova's createImage): a qcow2 without backing file.

While an image is made, the server's document has the state field ``imaging``, and the copy is in the server's folder.
The image's document is written at the end, with its content. So ``clear_snapshot`` finds what a crash left.
"""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.storage import Disk
from magnetar_agent.images import importing
from magnetar_agent.reconcile.documents import Document
from magnetar_agent.servers import GIB, server_folder, spec
from magnetar_agent.servers.quiesce import quiesced_guest
from magnetar_agent.volumes import remote
from magnetar_core.errors import Conflict
from magnetar_core.hardware import machines
from magnetar_core.image_format import SECRET_UUID
from magnetar_core.kinds import Image
from magnetar_core.power import MISSING, OFF, SUSPENDED, WANTED
from magnetar_core.server_plan import root_block_device

from . import encryption

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_core.operations import Operation

log = logging.getLogger(__name__)

FILE = "snapshot"
#: The consistency of the content: the server was off; frozen by the guest agent; as after a power cut.
STOPPED, FROZEN, CRASH = "stopped", "frozen", "crash-consistent"


def create_snapshot_image(host: LocalHost, document: Document, args: Fields, operation: Operation,
                          request: str) -> Fields:
    """Create an image from the server's root disk, and return ``{"image": {id, name}, "consistency": …}``. *args*: the
    API arguments name, description, metadata and secret_uuid. *request*: id of the API request; a repeated request
    returns the existing image. The caller must hold the server's lock."""
    name = args["name"]
    with host.locks.hold("image", f"new {name.lower()}"):
        existing = next((image for image in host.documents.list("image") if image.name == name), None)
        if existing and existing.state.get("request") == request:
            return _answer(existing)
        if existing:
            raise Conflict(f"There is an image {name!r} already. Choose another name, or remove that image first.",
                           uuids=[existing.id])
        state = _state(host, document)
        image = _described(host, document, args)
        image.state.update(server=document.id, request=request)
        path = server_folder(host, document.id) / FILE
        document.state["imaging"] = True
        host.documents.write(document)
        try:
            image.state["consistency"] = _copy(host, document, state, path, operation, args["secret_uuid"])
            importing.adopt_disk(host, image, path, operation)
        except Exception:
            clear_snapshot(host, document)
            raise
        document.state.pop("imaging")
        host.documents.write(document)
        return _answer(image)


def clear_snapshot(host: LocalHost, document: Document) -> None:
    """Clean up after an interrupted ``create_snapshot_image``: abort the copy of the disk, and remove the copied file,
    the incomplete image, and the field ``imaging`` of the server's document, which says that an image is being created.
    The caller must hold the server's lock."""
    hypervisor, path = host.hypervisor, server_folder(host, document.id) / FILE
    with host.locks.hold("copy", document.id):
        hypervisor.abort_copy(document.id, path)
    for leftover in (path, path.with_name(FILE + ".part")):
        leftover.unlink(missing_ok=True)
    for image in host.documents.list("image"):
        if image.state.get("server") == document.id and not importing.content_is_stored(image):
            host.documents.remove(image)
    document.state.pop("imaging", None)
    host.documents.write(document)


def _answer(image: Document) -> Fields:
    return {"image": {"id": image.id, "name": image.name}, "consistency": image.state["consistency"]}


def _state(host: LocalHost, document: Document) -> str:
    """Return the state of the server's libvirt domain, such as running. Raises ``Conflict`` if the root disk cannot be
    copied at present."""
    domain, name = host.hypervisor.domain(document.id), document.name
    state = domain.state if domain else MISSING
    if document.want.get("rescue"):
        raise Conflict(f"Server {name!r} is rescued; somebody repairs its root disk just now. Unrescue it first.")
    if document.state.get("unfinished"):
        raise Conflict(f"The last change of server {name!r} was not finished. Repeat that first.")
    if state not in WANTED:
        raise Conflict(f"An image can be made of a server that is running, paused, suspended or off, and {name!r} is "
                       f"{state}.", power_state=state)
    size, most = _size(host, document), host.settings.image_max_virtual_bytes
    if size > most:
        raise Conflict(f"The root disk of server {name!r} has {size} bytes, and the agent's setting "
                       f"image_max_virtual_bytes allows {most} for an image.")
    return state


def _size(host: LocalHost, document: Document) -> int:
    """Return the size in bytes of the server's root disk, which may be a volume."""
    item = root_block_device(document.want)
    if item is None:
        return int(document.state.get("root_bytes", 0))
    volume = host.documents.get("volume", item["volume"])
    return int(volume.want["size"] if volume else item.get("volume_size", 0)) * GIB


def _root(host: LocalHost, document: Document, secret: str | None) -> Disk:
    """Return the server's root disk, a local disk or a volume. Raises ``Conflict`` if no image can be created from it.
    *secret*: uuid of the key in the key manager (Barbican) that will encrypt the image of an encrypted disk; ``None``
    for no key."""
    item = root_block_device(document.want)
    root = spec.arranged_disks(host, document, rescued=False)[0]
    if item and root.serial != item["volume"]:
        raise Conflict(f"The root disk of server {document.name!r} is the volume {item['volume']}, which is not "
                       "attached to it any more. Attach it again, then repeat the call.")
    if root.key and not item and not secret:
        raise Conflict(f"The disks of server {document.name!r} are encrypted, so no image is made of it: the image "
                       "would hold their content in clear text. Copy what matters out of the guest, or use a server "
                       "that boots from an encrypted volume, of which there are snapshots.")
    if root.key and item:
        raise Conflict(f"Server {document.name!r} boots from an encrypted volume, so no image is made of it: the image "
                       "would hold its content in clear text. Take a volume_snapshot of the volume instead.")
    if root.remote:
        remote.check_reachable(host, document)
    return root


def _described(host: LocalHost, document: Document, args: Fields) -> Document:
    """Return the document (the desired fields, stored as JSON) of the new snapshot image, with the properties that Nova
    sets on snapshots. The image boots as the server does (machine type, kernel, ramdisk). *args*: the arguments of
    ``create_snapshot_image``."""
    base = host.documents.get("image", document.want["image"]) if document.want["image"] else None
    want: dict[str, Any] = {**Image.defaults(), "name": args["name"], "description": args["description"],
                            "disk_format": "qcow2", "checksum": None}
    properties: dict[str, str] = {}
    if base is not None:
        want["min_ram"] = base.want["min_ram"]
        properties.update({name: value for name, value in base.want["properties"].items()
                           if not name.startswith("img_signature")}, base_image_ref=base.id)
    properties = machines.properties_with_machine(properties, document.want["machine"])
    if document.state.get("boot"):
        want.update(_boot(document, base))
    properties.update(args["metadata"], image_type="snapshot", instance_uuid=document.id)
    properties.pop(SECRET_UUID, None)
    if args["secret_uuid"] and encryption.wants_encryption(document.want):
        properties[SECRET_UUID] = args["secret_uuid"]
    want["min_disk"] = -(-_size(host, document) // GIB)
    want["properties"] = Image.field("properties").value.check(properties, "metadata")
    return Document("image", str(uuid.uuid4()), args["name"], want)


def _boot(document: Document, base: Document | None) -> Fields:
    if base is None:
        raise Conflict(f"Server {document.name!r} boots with a kernel of its image, and that image is no longer on "
                       "this host, so an image of the server could not boot. Register it again first.")
    if base.state["disk_format"] == "aki":
        return {"kernel": base.id, "ramdisk": base.want.get("ramdisk"), "cmdline": base.want.get("cmdline")}
    return {name: base.want.get(name) for name in ("kernel", "ramdisk", "cmdline")}


def _copy(host: LocalHost, document: Document, state: str, path: Path, operation: Operation,
          secret: str | None) -> str:
    """Copy the server's root disk to the file *path*. Return the consistency of the copy: ``STOPPED`` (guest off),
    ``FROZEN`` (file systems frozen) or ``CRASH`` (as after a power failure). *state*: state of the libvirt domain.
    *secret*: uuid of the key that will encrypt the image, see ``_root``."""
    hypervisor, id, root = host.hypervisor, document.id, _root(host, document, secret)
    if root.key and state not in (OFF, SUSPENDED):
        raise Conflict(f"Server {document.name!r} runs, and an encrypted image is made of one that is off. Stop it, "
                       "then repeat the call.", power_state=state)

    def advance(done: int, total: int) -> None:
        operation.advance(done, total, "bytes", "copy the root disk")

    if state in (OFF, SUSPENDED):
        key = encryption.open_disk_key(host, document) if root.key else None
        hypervisor.copy_disk(root.remote or root.path, root.format, path, "qcow2", advance, key)
        return STOPPED if state == OFF else CRASH
    with host.locks.hold("copy", id):  # QEMU makes one at a time, and volumes are copied too
        # The copy shows the instant when it begins: the guest need not stay frozen until its end.
        with quiesced_guest(host, document) as frozen:
            hypervisor.begin_copy(id, root.target, path)
        hypervisor.finish_copy(id, path, advance)
    return FROZEN if frozen else CRASH
