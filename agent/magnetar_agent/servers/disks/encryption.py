# SPDX-License-Identifier: GPL-3.0-or-later
"""The key of servers whose own disks are encrypted (``ephemeral_encryption`` of their hardware).

A server has one key, which opens the LUKS header of each of its disks; the content of a disk is encrypted with a key
that QEMU draws for that disk. The server's key is sealed as keys of volumes are, in ``document.state``; a key from a
cloud is in ``disk_key`` of ``want`` until a disk is made with it.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from magnetar_agent.host.storage import DiskKey
from magnetar_agent.volumes import keys
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.image_format import is_encrypted
from magnetar_core.server_plan import server_hardware

from . import root_pool

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

#: The field of ``hardware``, and the field of the server with the key from a cloud.
FIELD, GIVEN = "ephemeral_encryption", "disk_key"
#: Namespace of the uuids of keys in libvirt, one for each server. A TPM's secret has the server's own uuid.
NAMESPACE = uuid.UUID("0d6f2a0c-41f5-5a3e-9d0b-7c1f1c5b6e8f")


def wants_encryption(want: Fields) -> bool:
    """Return whether a server with the fields *want* has encrypted local disks."""
    return bool(server_hardware(want).get(FIELD))


def complete_encryption(host: LocalHost, desired: Fields, old: Fields, root_format: str,
                        image: Document | None) -> None:
    """Complete the requested fields *desired* of a server: seal the disk key (encrypt it with the host's key), and
    choose the format of the root disk. *old*: the stored fields, empty for a new server. *root_format*: the requested
    format of the root disk.

    Raises ``InvalidField`` for fields that an encrypted server cannot have, for a change of the encryption, and for an
    *image* with encrypted content that the server's key cannot decrypt.
    """
    encrypted = wants_encryption(desired)
    if old and encrypted != wants_encryption(old):
        raise InvalidField(f"hardware.{FIELD}", "is decided when a server is made: its disks are encrypted, or not, "
                                                "until it is removed. Make another server", encrypted)
    requested_key = desired.get(GIVEN)
    if requested_key and not encrypted:
        raise InvalidField(GIVEN, f"is for servers with {FIELD}")
    sealed_key = old.get(GIVEN)
    if requested_key and requested_key != sealed_key:
        desired[GIVEN] = sealed_key if sealed_key and keys.is_sealed(host, requested_key,
                                                                     sealed_key) else keys.seal_key(host, requested_key)
    if encrypted and (disk_kind := root_pool.WHAT.get(desired["root_format"])):
        raise InvalidField(f"hardware.{FIELD}", f"cannot be had on host {host.name} with root_format "
                                                f"{desired['root_format']}: {disk_kind} are not encrypted. Choose "
                                                "another "
                                                "host, or encrypted volumes", encrypted)
    if encrypted and desired["root_format"] != "qcow2":
        if root_format != "auto":
            raise InvalidField("root_format", f"must be qcow2 for a server with {FIELD}, or auto", root_format)
        desired["root_format"] = "qcow2"
    if image and desired["image"] != old.get("image"):
        _check_image(desired, image)


def _check_image(desired: Fields, image: Document) -> None:
    """Raise ``InvalidField`` if the content of *image* is encrypted, unless the server *desired* has a disk key from
    the control plane, which decrypts the content."""
    if is_encrypted(image.want) and not (wants_encryption(desired) and desired.get(GIVEN)):
        raise InvalidField("image", f"must be one that can be read: the content of {image.name!r} is encrypted, as it "
                                    "is the root disk of a shelved server. Unshelve that server")


def named_disk_key(document: Document) -> DiskKey | None:
    """Return the server's disk key without the secret, only with its uuid in libvirt; ``None`` if the server is not
    encrypted."""
    return disk_key_by_id(server_hardware(document.want), document.id)


def disk_key_by_id(parts: Fields, id: str) -> DiskKey | None:
    """Return the disk key, without the secret, of the server with the uuid *id*; ``None`` without encryption. *parts*:
    the server's hardware fields (made from extra specs and image properties)."""
    return DiskKey(disk_key_uuid(id)) if parts.get(FIELD) else None


def disk_key_uuid(id: str) -> str:
    """Return the uuid that libvirt uses for the disk key of the server with the uuid *id*."""
    return str(uuid.uuid5(NAMESPACE, id))


def open_disk_key(host: LocalHost, document: Document) -> DiskKey | None:
    """Return the server's disk key with the secret; ``None`` if the server is not encrypted. Raises ``Conflict`` if the
    document has no key."""
    name = named_disk_key(document)
    if name is None:
        return None
    disk_key = keys.document_key(host, document)
    if disk_key is None:
        raise Conflict(f"The key of the encrypted disks of server {document.name!r} is not in its document. Rebuild "
                       "the server, which recreates its disks.")
    return replace(name, secret=disk_key.secret)


def draw_disk_key(task: Task) -> None:
    """Store the sealed disk key in the server's document, before its disks are created: the key that the control plane
    sent, otherwise a random one. Do nothing for a server without encryption."""
    document = task.document
    if wants_encryption(document.want) and keys.SEALED not in document.state:
        document.state[keys.SEALED] = document.want.get(GIVEN) or keys.seal_key(task.host, keys.draw_key())
        task.keep()


def export_disk_key(host: LocalHost, server: Document) -> str | None:
    """Return the secret of the disk key in clear text, for the target of a migration; ``None`` if the server is not
    encrypted."""
    disk_key = open_disk_key(host, server)
    return disk_key.secret if disk_key else None


def import_disk_key(host: LocalHost, server: Fields, key: str | None) -> None:
    """Store the disk *key* of a server that migrates to this host, sealed with this host's key, in *server* (the
    server's document as a dict). ``None``: the server is not encrypted."""
    server["want"].pop(GIVEN, None)
    server["state"].pop(keys.SEALED, None)
    if key:
        server["state"][keys.SEALED] = keys.seal_key(host, key)
