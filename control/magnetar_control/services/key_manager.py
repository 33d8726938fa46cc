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


class KeyStore:
    """Keys, of each store of them. What is kept of a key is a text: the key, and on the next line the uuid of the user
    whose it is, if it is a user's."""

    def create_key(self, id: str, like: str | None = None, owner: str | None = None,
                   asks: Context | None = None) -> str:
        """See ``services.KeyManager``. Of two that are made at once the first stays."""
        text = self._text(id)
        if text is None:
            known = None if like is None else self._text(like)
            if like is not None and known is None:
                raise _none(like)
            key = _parsed(known)[0] if known else secrets.token_hex(KEY)
            self._store(id, f"{key}\n{owner}" if owner else key)
            text = self._text(id)
        if text is None:
            raise Conflict(f"The key {id} was deleted while it was made.")
        return _parsed(text)[0] if asks is None else _for(asks, id, text)

    def key(self, context: Context, id: str) -> str:
        """See ``services.KeyManager``."""
        text = self._text(id)
        if text is None:
            raise _none(id)
        return _for(context, id, text)

    def _text(self, id: str) -> str | None:
        """What is kept of a key; ``None`` where there is none."""
        raise NotImplementedError

    def _store(self, id: str, text: str) -> None:
        """Keep this of a new key; where another was kept meanwhile, that stays."""
        raise NotImplementedError


def _parsed(text: str) -> tuple[str, str | None]:
    """The key, and the user whose it is."""
    key, line, owner = text.partition("\n")
    return key, owner if line else None


def _for(context: Context, id: str, text: str) -> str:
    """The key, for who asks."""
    key, owner = _parsed(text)
    if owner is not None and owner != context.user_id:
        raise Forbidden(f"The key {id} in the key manager is another user's. Its user must ask.")
    return key


def _none(id: str) -> NotFound:
    return NotFound(f"There is no key {id} in the key manager.", kind="key", key=id)


class EmbeddedKeys(CertificateFolder, KeyStore):
    """Implements ``services.KeyManager``: beside the certificates, the key UUID is the file ``UUID`` in the folder
    *keys*, which nobody but the service can read. Machines that share the database share both folders."""

    def __init__(self, folder: Path, keys: Path) -> None:
        super().__init__(folder)
        self.keys = keys

    def delete_key(self, id: str) -> None:
        """See ``services.KeyManager``."""
        self._path(id).unlink(missing_ok=True)

    def _text(self, id: str) -> str | None:
        try:
            return self._path(id).read_text()
        except FileNotFoundError:
            return None

    def _store(self, id: str, text: str) -> None:
        """Written beside its place and linked, so that it is there in full."""
        path = self._path(id)
        self.keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
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

    def _path(self, id: str) -> Path:
        return self.keys / str(uuid.UUID(id))  # an id is never a path
