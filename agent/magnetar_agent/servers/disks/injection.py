# SPDX-License-Identifier: GPL-3.0-or-later
"""Injection into a server's root disk when it is made, if the settings enable that (``inject_partition``).

As in Nova, a server is made even if its key, password or metadata could not be written, but fails if its files could
not. Each part may be written twice, so an interrupted injection is repeated. An image of the server itself, as for an
unshelve, has its files already; files of a rebuild request are written into it, too.
"""

from __future__ import annotations

import ctypes
import logging
import secrets
import string
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.storage import Injection
from magnetar_agent.servers import guest_data, spec
from magnetar_core.errors import Cancelled, HypervisorDown, HypervisorError, MagnetarError
from magnetar_core.reconcile import warn_caller

from . import encryption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document
    from magnetar_agent.reconcile.task import Task

log = logging.getLogger(__name__)

_SALT = string.ascii_letters + string.digits + "./"
#: Libraries with crypt(3), and bytes for its ``struct crypt_data``: it uses 32 KiB (libxcrypt) or 128 KiB (glibc).
_LIBRARIES, _CRYPT_DATA = ("libcrypt.so.1", "libcrypt.so.2"), 256 * 1024


def inject_root_disk(task: Task) -> None:
    """Write the SSH key, metadata, password and files of a server into its newly created root disk, as Nova's file
    injection does. Raises ``HypervisorError`` if the files cannot be written; failures to write the other parts are
    logged and returned to the API client as a warning."""
    host, document = task.host, task.document
    guest_data.draw_guest_seed(host, document)
    injection, failed = _requested_injection(host, document), dict[str, str]()
    try:
        injection = replace(injection, password=_hashed(host, document))
    except HypervisorError as error:
        failed["password"] = error.message.rstrip(".")
    if not injection.parts():
        _tell(document, failed)
        return
    task.operation.advance(0, None, phase="write into the root disk")
    root = replace(spec.own_disk_set(host, document, rescued=False)[0], key=encryption.open_disk_key(host, document))
    try:
        refused = host.hypervisor.inject(root, injection, document.want["virt_type"] == "kvm")
    except (Cancelled, HypervisorDown):
        raise
    except MagnetarError as error:
        if injection.files:
            raise
        # A cloud shows warnings to its users, who must not see a host's paths and programs.
        log.warning("server %s: %s", document.name, error.message, extra={"server": document.id})
        refused = dict.fromkeys(injection.parts(), "the host could not do it; its log says why")
    _tell(document, {**failed, **{name: why for name, why in refused.items() if name in injection.parts()}})


def _tell(document: Document, failed: Mapping[str, str]) -> None:
    if "files" in failed:
        raise HypervisorError(f"The files of server {document.name!r} were not written into its root disk: "
                              f"{failed['files']}. Make it without personality, of another image, or have the host's "
                              "operator set inject_partition to what fits the image.")
    for why in sorted({*failed.values()}):
        names = ", ".join(name for name in sorted(failed) if failed[name] == why)
        text = f"Not written into the root disk: {names} ({why})."
        log.warning("server %s: %s", document.name, text, extra={"server": document.id})
        warn_caller(text)


def _requested_injection(host: LocalHost, document: Document) -> Injection:
    want, settings = document.want, host.settings
    key = next((guest_key.data.strip() for guest_key in guest_data.guest_keys(host, document) if guest_key.type
                == "ssh"), None)
    # An image with a separate kernel is one file system, without partitions.
    partition = 0 if document.state.get("boot") else settings.inject_partition
    files = () if _has_its_files(host, document) else want.get("personality") or ()
    return Injection(partition, None, key if settings.inject_key else None, want["metadata"],
                     tuple((file["path"], file["contents"]) for file in files))


def _hashed(host: LocalHost, document: Document) -> str | None:
    """Return the SHA-512 hash of the server's admin password for /etc/shadow; ``None`` if no password is injected.
    Raises ``HypervisorError`` if the host cannot compute the hash."""
    password = document.want.get("admin_pass") if host.settings.inject_password else None
    return crypt_password(password) if password else None


def _has_its_files(host: LocalHost, document: Document) -> bool:
    """Return whether the server's image already contains its injected files (personality): the image is a snapshot of
    this same server, and no rebuild requests new files."""
    if document.state.get("rebuild", {}).get("personality"):
        return False
    image = host.documents.get("image", document.want["image"]) if document.want["image"] else None
    return image is not None and image.want["properties"].get("instance_uuid") == document.id


def crypt_password(password: str) -> str:
    """Return the SHA-512 hash of *password* as used in /etc/shadow. Calls crypt(3) of the host's libcrypt, because
    Python 3.13 removed the ``crypt`` module. Raises ``HypervisorError`` if there is no libcrypt or it refuses the
    password."""
    library = _library()
    library.crypt_r.restype = ctypes.c_char_p
    data = ctypes.create_string_buffer(_CRYPT_DATA)  # crypt returns a pointer into it
    salt = "".join(secrets.choice(_SALT) for _letter in range(16))
    hashed: bytes | None = library.crypt_r(password.encode(), f"$6${salt}$".encode(), data)
    if not hashed or not hashed.startswith(b"$6$"):
        raise HypervisorError("The host's crypt(3) makes no hash by SHA-512 of it. Use a password of up to 511 bytes.")
    return hashed.decode()


def _library() -> Any:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise HypervisorError("The host has no libcrypt, which makes hashes of passwords. Install it (libcrypt1).")
