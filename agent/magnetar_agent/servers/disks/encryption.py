# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers whose own disks are encrypted (``ephemeral_encryption`` of their hardware): what their key is.

A server has one key, which opens the LUKS header of each of its disks; what a disk holds is encrypted by a key that
QEMU draws for that disk alone. It is sealed as those of volumes are, in ``document.state``, and when a cloud gives it,
in ``disk_key`` of what is wanted until a disk is made with it.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from magnetar_agent.host.storage import DiskKey
from magnetar_agent.volumes import keys
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.image_format import is_encrypted
from magnetar_core.server_plan import disk_sizes, hardware, root_volume

from . import root_pool

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

#: The field of ``hardware``, and that of the server by which a cloud gives the key.
FIELD, GIVEN = "ephemeral_encryption", "disk_key"
#: Namespace of the uuids by which libvirt knows the keys: one for each server. A TPM's secret has the server's own.
NAMESPACE = uuid.UUID("0d6f2a0c-41f5-5a3e-9d0b-7c1f1c5b6e8f")


def is_wanted(want: Fields) -> bool:
    """Whether the server's own disks are to be encrypted."""
    return bool(hardware(want).get(FIELD))


def has_disks(want: Fields) -> bool:
    """Whether it has such disks: one that boots from a volume may have none."""
    return is_wanted(want) and (root_volume(want) is None or bool(disk_sizes(want)))


def complete(host: LocalHost, found: Fields, old: Fields, root_format: str, image: Document | None) -> None:
    """Seal the key that is given, and choose the format of the root disk. *root_format*: the one asked for. Raises
    ``InvalidField`` for what an encrypted server cannot have, for one that is to become one, or be one no more, and for
    an *image* that it cannot open."""
    wanted = is_wanted(found)
    if old and wanted != is_wanted(old):
        raise InvalidField(f"hardware.{FIELD}", "is decided when a server is made: its disks are encrypted, or not, "
                                                "until it is removed. Make another server", wanted)
    given = found.get(GIVEN)
    if given and not wanted:
        raise InvalidField(GIVEN, f"is for servers with {FIELD}")
    kept = old.get(GIVEN)
    if given and given != kept:
        found[GIVEN] = kept if kept and keys.is_sealed(host, given, kept) else keys.seal(host, given)
    if wanted and (what := root_pool.WHAT.get(found["root_format"])):
        raise InvalidField(f"hardware.{FIELD}", f"cannot be had on host {host.name} with root_format "
                                                f"{found['root_format']}: {what} are not encrypted. Choose another "
                                                "host, or encrypted volumes", wanted)
    if wanted and found["root_format"] != "qcow2":
        if root_format != "auto":
            raise InvalidField("root_format", f"must be qcow2 for a server with {FIELD}, or auto", root_format)
        found["root_format"] = "qcow2"
    if image and found["image"] != old.get("image"):
        _check_image(found, image)


def _check_image(found: Fields, image: Document) -> None:
    """Raise ``InvalidField`` for an *image* with encrypted content, unless a cloud gives its key, which is the server's
    then."""
    if is_encrypted(image.want) and not (is_wanted(found) and found.get(GIVEN)):
        raise InvalidField("image", f"must be one that can be read: the content of {image.name!r} is encrypted, as it "
                                    "is the root disk of a shelved server. Unshelve that server")


def named(document: Document) -> DiskKey | None:
    """The key without its secret, as a definition has it; ``None`` for a server that is not encrypted."""
    return by_name(hardware(document.want), document.id)


def by_name(parts: Fields, id: str) -> DiskKey | None:
    """The same, of the server with this *id* and its hardware."""
    return DiskKey(name_of(id)) if parts.get(FIELD) else None


def name_of(id: str) -> str:
    """The uuid by which libvirt knows the key of the server with this *id*."""
    return str(uuid.uuid5(NAMESPACE, id))


def of(host: LocalHost, document: Document) -> DiskKey | None:
    """The key with its secret. Raises ``Conflict`` where it is lost."""
    name = named(document)
    if name is None:
        return None
    found = keys.of(host, document)
    if found is None:
        raise Conflict(f"The key of the encrypted disks of server {document.name!r} is not in its document. Rebuild "
                       "the server, which makes its disks anew.")
    return replace(name, secret=found.secret)


def draw(task: Task) -> None:
    """Keep the key with which disks are about to be made: the one that a cloud gave, else a new one."""
    document = task.document
    if is_wanted(document.want) and keys.SEALED not in document.state:
        document.state[keys.SEALED] = document.want.get(GIVEN) or keys.seal(task.host, keys.draw())
        task.keep()


def leave(host: LocalHost, server: Document) -> str | None:
    """The key for the host to which the server goes; ``None`` for a server that is not encrypted."""
    found = of(host, server)
    return found.secret if found else None


def arrive(host: LocalHost, server: Fields, key: str | None) -> None:
    """Seal the *key* that came with a *server*, parts of a document, as this host's."""
    server["want"].pop(GIVEN, None)
    server["state"].pop(keys.SEALED, None)
    if key:
        server["state"][keys.SEALED] = keys.seal(host, key)
