# SPDX-License-Identifier: GPL-3.0-or-later
"""Stored passwords: scrypt (RFC 7914), each with its own salt, compared in constant time. Secrets that this service
generates have 256 random bits: too many to try them all, so SHA-256 is enough, and takes no time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading

#: Cost of new hashes: 16 MiB and some 40 ms. It is stored with each hash, so that it can be raised.
COST = (2**14, 8, 1)
#: Longest password in characters.
LONGEST = 4096
# Limits concurrent hashes: each needs 16 MiB while it is computed.
_HASH_LIMIT = threading.BoundedSemaphore(4)
_DUMMY_SALT = secrets.token_bytes(16)


def hash_password(password: str) -> str:
    """Return the hash of *password* to store."""
    salt = secrets.token_bytes(16)
    encoded = (base64.b64encode(part).decode() for part in (salt, _scrypt(password, salt, COST)))
    return "$".join(["scrypt", *map(str, COST), *encoded])


def hash_secret(secret: str) -> str:
    """Return the hash to store of a *secret* from ``draw_secret``."""
    return f"sha256${hashlib.sha256(secret.encode()).hexdigest()}"


def password_matches(password: str, stored_hash: str | None) -> bool:
    """Return whether *password* matches *stored_hash* (``None``: no password is stored).

    Every refusal computes one slow hash, so that the time of the answer does not show whether the user or credential
    exists. Only the right secret from ``draw_secret`` is accepted without a slow hash.
    """
    if stored_hash is None or stored_hash.startswith("sha256$"):
        if stored_hash is not None and hmac.compare_digest(hash_secret(password[:LONGEST]), stored_hash):
            return True
        _scrypt(password, _DUMMY_SALT, COST)
        return False
    name, n, r, p, salt, expected = stored_hash.split("$")
    if name != "scrypt":
        raise ValueError(f"a password is kept as {name}, which is unknown here")
    made = _scrypt(password, base64.b64decode(salt), (int(n), int(r), int(p)))
    return hmac.compare_digest(made, base64.b64decode(expected))


def draw_secret() -> str:
    """Return a new password or secret with 256 random bits."""
    return secrets.token_urlsafe(32)


def _scrypt(password: str, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    n, r, p = cost
    with _HASH_LIMIT:
        return hashlib.scrypt(password[:LONGEST].encode(), salt=salt, n=n, r=r, p=p, maxmem=256 * n * r * p, dklen=32)
