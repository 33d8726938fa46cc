# SPDX-License-Identifier: GPL-3.0-or-later
"""What is written into a server's root disk when that is made, where the settings ask for it (``inject_partition``).

As at Nova a server is made whose key, password or metadata could not be written, and one whose files could not fails.
Each thing may be written twice, so what a crash interrupts is done again. An image of the server itself, which it is
made of when it is unshelved, has its files already; those that a rebuild asks for are written into it too.
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
from magnetar_core.reconcile import warn

from . import encryption

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document
    from magnetar_agent.reconcile.task import Task

log = logging.getLogger(__name__)

_SALT = string.ascii_letters + string.digits + "./"
#: Where crypt(3) is, and bytes for its ``struct crypt_data``, of which it uses 32 KiB (libxcrypt) or 128 KiB (glibc).
_LIBRARIES, _CRYPT_DATA = ("libcrypt.so.1", "libcrypt.so.2"), 256 * 1024


def inject(task: Task) -> None:
    """Write into the root disk, which was made a moment ago. Raises ``HypervisorError`` when its files cannot be
    written; what else cannot is told in the log and as a warning."""
    host, document = task.host, task.document
    guest_data.draw(host, document)
    given, failed = _given(host, document), dict[str, str]()
    try:
        given = replace(given, password=_hashed(host, document))
    except HypervisorError as error:
        failed["password"] = error.message.rstrip(".")
    if not given.named():
        _tell(document, failed)
        return
    task.operation.advance(0, None, phase="write into the root disk")
    root = replace(spec.local(host, document, rescued=False)[0], key=encryption.of(host, document))
    try:
        said = host.hypervisor.inject(root, given, document.want["virt_type"] == "kvm")
    except (Cancelled, HypervisorDown):
        raise
    except MagnetarError as error:
        if given.files:
            raise
        # A cloud tells its users what is warned of, and not of a host's paths and programs.
        log.warning("server %s: %s", document.name, error.message, extra={"server": document.id})
        said = dict.fromkeys(given.named(), "the host could not do it; its log says why")
    _tell(document, {**failed, **{name: why for name, why in said.items() if name in given.named()}})


def _tell(document: Document, failed: Mapping[str, str]) -> None:
    if "files" in failed:
        raise HypervisorError(f"The files of server {document.name!r} were not written into its root disk: "
                              f"{failed['files']}. Make it without personality, of another image, or have the host's "
                              "operator set inject_partition to what fits the image.")
    for why in sorted({*failed.values()}):
        names = ", ".join(name for name in sorted(failed) if failed[name] == why)
        text = f"Not written into the root disk: {names} ({why})."
        log.warning("server %s: %s", document.name, text, extra={"server": document.id})
        warn(text)


def _given(host: LocalHost, document: Document) -> Injection:
    want, settings = document.want, host.settings
    key = next((one.data.strip() for one in guest_data.keys(host, document) if one.type == "ssh"), None)
    # A kernel of its own boots an image that is a file system, as a whole.
    partition = 0 if document.state.get("boot") else settings.inject_partition
    files = () if _has_its_files(host, document) else want.get("personality") or ()
    return Injection(partition, None, key if settings.inject_key else None, want["metadata"],
                     tuple((one["path"], one["contents"]) for one in files))


def _hashed(host: LocalHost, document: Document) -> str | None:
    """Its password, as it is written. Raises ``HypervisorError``."""
    password = document.want.get("admin_pass") if host.settings.inject_password else None
    return crypt(password) if password else None


def _has_its_files(host: LocalHost, document: Document) -> bool:
    """Whether the image is one of this server, and a rebuild asks for no new ones."""
    if document.state.get("rebuild", {}).get("personality"):
        return False
    image = host.documents.get("image", document.want["image"]) if document.want["image"] else None
    return image is not None and image.want["properties"].get("instance_uuid") == document.id


def crypt(password: str) -> str:
    """A hash by SHA-512 as /etc/shadow has it, by the host's crypt(3): Python has none from 3.13 on. Raises
    ``HypervisorError`` where there is no libcrypt."""
    library = _library()
    library.crypt_r.restype = ctypes.c_char_p
    data = ctypes.create_string_buffer(_CRYPT_DATA)  # which the answer lies in
    salt = "".join(secrets.choice(_SALT) for _letter in range(16))
    found: bytes | None = library.crypt_r(password.encode(), f"$6${salt}$".encode(), data)
    if not found or not found.startswith(b"$6$"):
        raise HypervisorError("The host's crypt(3) makes no hash by SHA-512 of it. Use a password of up to 511 bytes.")
    return found.decode()


def _library() -> Any:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise HypervisorError("The host has no libcrypt, which makes hashes of passwords. Install it (libcrypt1).")
