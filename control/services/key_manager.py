# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded key manager: certificates in a folder, which an operator puts there."""

from __future__ import annotations

import os
import stat
import uuid
from pathlib import Path

from magnetar_core.errors import Conflict, NotFound

from . import Context

#: Bytes that are read of a file: far more than a certificate has.
MOST = 64 << 10


class CertificateFolder:
    """Implements ``services.KeyManager``: the certificate with the id UUID is the file ``UUID.pem`` in *folder*."""

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
