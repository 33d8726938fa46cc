# SPDX-License-Identifier: GPL-3.0-or-later
"""The uuids of the keys of encrypted volumes and backups in the key manager."""

from __future__ import annotations

import uuid

#: Namespace of the uuids of keys.
KEYS = uuid.UUID("c1b1b0a4-4f0c-5d0e-9a3e-3f4b6a0d7e55")


def key_id(id: str) -> str:
    """Return the uuid of an encryption key in the key manager. *id*: the uuid of the volume or backup that is encrypted
    with it."""
    return str(uuid.uuid5(KEYS, id))
