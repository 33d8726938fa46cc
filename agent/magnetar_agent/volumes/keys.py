# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of encrypted volumes and snapshots (format ``luks``). The key is QEMU's passphrase to open the content.

A document has its key only sealed with the host's own key (AES-GCM), the file ``STATE_DIR/keys/seal``, which only root
can read. A copy of an encrypted volume has the key of its source, so its bytes are copied without decryption.
"""

from __future__ import annotations

import base64
import os
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from magnetar_agent.host.storage import DiskKey
from magnetar_agent.reconcile.documents import write_atomically
from magnetar_core.errors import Conflict

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

#: The format of encrypted content, and the name of the sealed key in a document's ``state``.
LUKS, SEALED = "luks", "sealed_key"
#: Bytes of a key, of the host's own key, and of a nonce.
SIZE, OWN, NONCE = 32, 32, 12
_MAKING = threading.Lock()


def draw_key() -> str:
    """Return a new random key, in hexadecimal digits."""
    return secrets.token_hex(SIZE)


def seal_key(host: LocalHost, key: str) -> str:
    """Return *key* encrypted with the host's own key, as base64, so that a document (the JSON file of a resource) can
    store it."""
    nonce = secrets.token_bytes(NONCE)
    return base64.b64encode(nonce + AESGCM(_host_key(host)).encrypt(nonce, key.encode(), None)).decode()


def document_key(host: LocalHost, document: Document) -> DiskKey | None:
    """Return the key of the volume or snapshot in *document*; ``None`` if it is not encrypted. Raises ``Conflict`` if
    the key is lost."""
    secret = open_sealed_key(host, document, SEALED)
    return None if secret is None else DiskKey(document.id, secret)


def open_sealed_key(host: LocalHost, document: Document, name: str) -> str | None:
    """Decrypt and return the key in the field *name* of the document's state; ``None`` if the field is missing. Raises
    ``Conflict`` if the key cannot be decrypted."""
    sealed = document.state.get(name)
    if sealed is None:
        return None
    try:
        return _opened(host, sealed)
    except (InvalidTag, FileNotFoundError):
        raise Conflict(f"The key of the encrypted {document.kind.replace('_', ' ')} {document.name!r} cannot be read: "
                       f"{_path(host)} is missing, or not the one with which it was sealed. Restore that file from a "
                       "backup of this host; without it the content cannot be read by anybody.") from None


def is_sealed(host: LocalHost, key: str, sealed: str) -> bool:
    """Return whether *sealed* is *key*, encrypted by ``seal_key``; ``False`` if *sealed* cannot be decrypted."""
    try:
        return _opened(host, sealed) == key
    except (InvalidTag, FileNotFoundError):
        return False


def _opened(host: LocalHost, sealed: str) -> str:
    sealed_bytes = base64.b64decode(sealed)
    return AESGCM(_host_key(host, make=False)).decrypt(sealed_bytes[:NONCE], sealed_bytes[NONCE:], None).decode()


def _path(host: LocalHost) -> Path:
    return Path(host.settings.state_dir) / "keys" / "seal"


def _host_key(host: LocalHost, make: bool = True) -> bytes:
    """Return the host's own key, which encrypts the stored keys of volumes. *make*: create the key if it is missing."""
    path = _path(host)
    with _MAKING:
        if make and not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, os.urandom(OWN))
        return path.read_bytes()
