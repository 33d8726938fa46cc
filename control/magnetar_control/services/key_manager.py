# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded key manager: certificates in a folder that an operator fills, and keys in another folder."""

from __future__ import annotations

import os
import secrets
import stat
import uuid
from contextlib import suppress
from pathlib import Path

from magnetar_core.errors import Conflict, Forbidden, NotFound

from . import Context

#: Maximum number of bytes to read from a file: far more than a certificate has.
MOST = 64 << 10
#: Bytes of a key.
KEY = 32


class CertificateFolder:
    """The certificates in *folder*, as a key manager: the file ``UUID.pem`` holds the certificate with the id UUID."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def certificate(self, _context: Context, id: str) -> bytes:
        """Return the X.509 certificate with the uuid *id*, as PEM or DER. Raises ``NotFound`` if its file does not
        exist. Raises ``Conflict`` if users other than root or the service own the file or may write to it."""
        try:
            path = self.folder / f"{uuid.UUID(id)}.pem"  # an id is never a path
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (ValueError, OSError):
            raise NotFound(f"There is no certificate {id[:80]} in the key manager. An operator puts it into "
                           "certificates_dir as UUID.pem.", kind="certificate", key=id[:80]) from None
        with os.fdopen(file, "rb") as opened:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
                raise Conflict(f"The certificate {id} is not taken: its file must belong to root or to the service, "
                               "and nobody else may write to it. An operator must see to that.")
            return opened.read(MOST)


class KeyStore:
    """The base class of key managers: creates and returns keys, but leaves their storage to subclasses (``_text``,
    ``_store``). The stored text is the key; if a user owns the key, the user's uuid is on the second line."""

    def create_key(self, id: str, like: str | None = None, owner: str | None = None,
                   asks: Context | None = None) -> str:
        """Return the key with the uuid *id*. If there is none, create it: random, or as a copy of the key *like*.
        *owner*: the user who owns a new key. *asks*: the caller; ``None``: do not check who owns the key. If two
        processes create the key at the same time, both return the same key. Raises ``NotFound`` if *like* does not
        exist, and ``Forbidden`` if the key belongs to another user than the caller."""
        text = self._text(id)
        if text is None:
            like_text = None if like is None else self._text(like)
            if like is not None and like_text is None:
                raise _no_key(like)
            key = _split_key_text(like_text)[0] if like_text else secrets.token_hex(KEY)
            self._store(id, f"{key}\n{owner}" if owner else key)
            text = self._text(id)
        if text is None:
            raise Conflict(f"The key {id} was deleted while it was made.")
        return _split_key_text(text)[0] if asks is None else _key_for(asks, id, text)

    def key(self, context: Context, id: str) -> str:
        """Return the key with the uuid *id*. Raises ``NotFound`` if the key does not exist, and ``Forbidden`` if it
        belongs to another user than the caller (*context*)."""
        text = self._text(id)
        if text is None:
            raise _no_key(id)
        return _key_for(context, id, text)

    def _text(self, id: str) -> str | None:
        """Return the stored text of the key *id*; ``None`` when there is none. Subclasses implement this."""
        raise NotImplementedError

    def _store(self, id: str, text: str) -> None:
        """Store the text of a new key. Do nothing if another process has stored a text for this key meanwhile.
        Subclasses implement this."""
        raise NotImplementedError


def _split_key_text(text: str) -> tuple[str, str | None]:
    """Split the stored *text* of a key. Return the key, and the uuid of the user who owns it (``None``: no user)."""
    key, line, owner = text.partition("\n")
    return key, owner if line else None


def _key_for(context: Context, id: str, text: str) -> str:
    """Return the key in *text*, the stored text of the key *id*. Raises ``Forbidden`` if the key belongs to another
    user than the caller (*context*). A key without a user is returned to every caller."""
    key, owner = _split_key_text(text)
    if owner is not None and owner != context.user_id:
        raise Forbidden(f"The key {id} in the key manager is another user's. Its user must ask.")
    return key


def _no_key(id: str) -> NotFound:
    return NotFound(f"There is no key {id} in the key manager.", kind="key", key=id)


class EmbeddedKeys(CertificateFolder, KeyStore):
    """The key manager inside the control plane, an implementation of ``services.KeyManager``. *folder*: the directory
    of the certificates. *keys*: the directory of the keys, which only the service can read; the file ``UUID`` in it
    holds the key UUID. Machines that use the same database must share both directories."""

    def __init__(self, folder: Path, keys: Path) -> None:
        super().__init__(folder)
        self.keys = keys

    def delete_key(self, id: str) -> None:
        """Delete the key *id*, if it exists."""
        self._path(id).unlink(missing_ok=True)

    def _text(self, id: str) -> str | None:
        try:
            return self._path(id).read_text()
        except FileNotFoundError:
            return None

    def _store(self, id: str, text: str) -> None:
        """Write the text to a temporary file and hard-link it to its final name, so that the key's file is always
        complete."""
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
        folder_fd = os.open(self.keys, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)

    def _path(self, id: str) -> Path:
        return self.keys / str(uuid.UUID(id))  # an id is never a path
