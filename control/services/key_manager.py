# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded key manager: certificates in a folder, which an operator puts there, and keys in another."""

from __future__ import annotations

import os
import secrets
import stat
import uuid
from contextlib import suppress
from pathlib import Path

from magnetar_core.errors import Conflict, Forbidden, NotFound

from . import Context

#: Bytes that are read of a file: far more than a certificate has.
MOST = 64 << 10
#: Bytes of a key.
KEY = 32


class CertificateFolder:
    """The certificate with the id UUID is the file ``UUID.pem`` in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def certificate(self, _context: Context, id: str) -> bytes:
        """See ``services.KeyManager``. Raises ``Conflict`` for a file that another than root or the service may have
        written."""
        try:
            path = self.folder / f"{uuid.UUID(id)}.pem"  # an id is never a path
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (ValueError, OSError):
            raise NotFound(f"There is no certificate {id[:80]} in the key manager. An operator puts it into "
                           "certificates_dir as UUID.pem.", kind="certificate", key=id[:80]) from None
        with os.fdopen(file, "rb") as opened:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
                raise Conflict(f"The certificate {id} is not taken: its file must belong to root or to the service, "
                               "and nobody else may write to it. An operator must see to that.")
            return opened.read(MOST)


class EmbeddedKeys(CertificateFolder):
    """Implements ``services.KeyManager``: beside the certificates, the key UUID is the file ``UUID`` in the folder
    *keys*, which nobody but the service can read: the key, and on the next line the uuid of the user whose it is, if it
    is a user's. Machines that share the database share both folders."""

    def __init__(self, folder: Path, keys: Path) -> None:
        super().__init__(folder)
        self.keys = keys

    def create_key(self, id: str, like: str | None = None, owner: str | None = None) -> str:
        """Written beside its place and linked, so that a key is there in full, and the first of two stays."""
        if like is not None and self._key(like) is None and self._key(id) is None:
            raise NotFound(f"There is no key {like} in the key manager.", kind="key", key=like)
        path = self._path(id)
        if not path.exists():
            self.keys.mkdir(mode=0o700, parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
            try:
                with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write((like and self._key(like)) or secrets.token_hex(KEY))
                    if owner:
                        file.write(f"\n{owner}")
                    file.flush()
                    os.fsync(file.fileno())
                with suppress(FileExistsError):
                    os.link(part, path)
            finally:
                part.unlink(missing_ok=True)
            held = os.open(self.keys, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(held)
            finally:
                os.close(held)
        return str(self._key(id))

    def key(self, context: Context, id: str) -> str:
        """See ``services.KeyManager``."""
        try:
            found, *owner = self._path(id).read_text().split("\n")
        except FileNotFoundError:
            raise NotFound(f"There is no key {id} in the key manager.", kind="key", key=id) from None
        if owner and owner != [context.user_id]:
            raise Forbidden(f"The key {id} in the key manager is another user's. Its user must ask.")
        return found

    def delete_key(self, id: str) -> None:
        """See ``services.KeyManager``."""
        self._path(id).unlink(missing_ok=True)

    def _key(self, id: str) -> str | None:
        path = self._path(id)
        return path.read_text().partition("\n")[0] if path.exists() else None

    def _path(self, id: str) -> Path:
        return self.keys / str(uuid.UUID(id))  # an id is never a path
