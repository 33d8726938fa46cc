# SPDX-License-Identifier: GPL-3.0-or-later
"""Passwords as they are kept: scrypt (RFC 7914) with a salt of its own each, compared in constant time. Secrets that
this service has drawn have 256 random bits: nobody can try them all, so SHA-256 is enough, and takes no time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading

#: Cost of new hashes: 16 MiB and some 40 ms. Kept beside each hash, so that it may be raised.
COST = (2**14, 8, 1)
#: Longest password in characters.
LONGEST = 4096
# So many at once: each takes 16 MiB while it lasts.
_AT_ONCE = threading.BoundedSemaphore(4)
_DUMMY_SALT = secrets.token_bytes(16)


def hashed(password: str) -> str:
    """The text to keep of *password*."""
    salt = secrets.token_bytes(16)
    kept = (base64.b64encode(part).decode() for part in (salt, _scrypt(password, salt, COST)))
    return "$".join(["scrypt", *map(str, COST), *kept])


def hashed_secret(secret: str) -> str:
    """Return the text to keep of a *secret* that ``drawn`` has made."""
    return f"sha256${hashlib.sha256(secret.encode()).hexdigest()}"


def matches(password: str, kept: str | None) -> bool:
    """Return whether *password* is the one of which *kept* was kept (``None``: there is none).

    Every refusal takes one slow hash, so that its time does not tell whether there is such a user or credential. Only
    the right secret of those that ``drawn`` has made takes none.
    """
    if kept is None or kept.startswith("sha256$"):
        if kept is not None and hmac.compare_digest(hashed_secret(password[:LONGEST]), kept):
            return True
        _scrypt(password, _DUMMY_SALT, COST)
        return False
    name, n, r, p, salt, known = kept.split("$")
    if name != "scrypt":
        raise ValueError(f"a password is kept as {name}, which is unknown here")
    made = _scrypt(password, base64.b64decode(salt), (int(n), int(r), int(p)))
    return hmac.compare_digest(made, base64.b64decode(known))


def drawn() -> str:
    """Return a new password or secret of 256 random bits."""
    return secrets.token_urlsafe(32)


def _scrypt(password: str, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    n, r, p = cost
    with _AT_ONCE:
        return hashlib.scrypt(password[:LONGEST].encode(), salt=salt, n=n, r=r, p=p, maxmem=256 * n * r * p, dklen=32)
