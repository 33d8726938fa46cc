# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens: claims as compact JSON, signed with HMAC-SHA256. No row per token; what they say is checked when they come.

A token is ``mt.<key id>.<claims>.<signature>``, base64url without padding. It names the user and the scope, not the
roles: these are looked up, so a role that is taken away is gone at once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import NamedTuple

import orjson

PREFIX = "mt"
#: Longest token that is looked at, in characters.
LONGEST = 2048


class Claims(NamedTuple):
    """What a token says. *scope*: project, domain, system or "" (none). Times are seconds since the epoch. The epochs
    are those that user and scope had then. *chain*: ids of the tokens by which it was got, the first first."""

    id: str
    user_id: str
    user_epoch: int
    issued: float
    expires: float
    methods: tuple[str, ...]
    scope: str = ""
    scope_id: str = ""
    scope_epoch: int = 0
    credential_id: str = ""
    chain: str = ""

    @property
    def ancestors(self) -> list[str]:
        """The ids of *chain*: with each of these the token ends."""
        return self.chain.split()


def new_id() -> str:
    """An id for a token; also its audit id."""
    return secrets.token_urlsafe(16)


def signed(claims: Claims, key_id: str, secret: bytes) -> str:
    """The token that says *claims*."""
    head = f"{PREFIX}.{key_id}.{_text(orjson.dumps(tuple(claims)))}"
    return f"{head}.{_text(_mac(head, secret))}"


def read(token: str, keys: Mapping[str, bytes], now: float) -> Claims | None:
    """What *token* says, when one of *keys* signed it and it has not expired; else ``None``."""
    if len(token) > LONGEST or not token.isascii():
        return None
    head, dot, signature = token.rpartition(".")
    words = head.split(".")
    if not dot or len(words) != 3 or words[0] != PREFIX or words[1] not in keys:
        return None
    if not hmac.compare_digest(_text(_mac(head, keys[words[1]])), signature):
        return None
    try:
        found = orjson.loads(base64.urlsafe_b64decode(words[2] + "=" * (-len(words[2]) % 4)))
        claims = Claims(*found)
    except (binascii.Error, ValueError, TypeError):  # signed by us, but by another version
        return None
    return claims._replace(methods=tuple(claims.methods)) if claims.expires > now else None


def _mac(head: str, secret: bytes) -> bytes:
    return hmac.digest(secret, head.encode(), hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
