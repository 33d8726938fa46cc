# SPDX-License-Identifier: GPL-3.0-or-later
"""Known host keys of SSH: OpenSSH's files, with hashed names, patterns and revoked keys.

Paramiko's own reader knows neither patterns nor revoked keys, and one key of each type only. Marks of certificate
authorities are left out, as Paramiko cannot check a host's certificate.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
from typing import Iterable, Iterator, NamedTuple, Optional

KNOWN, UNKNOWN, CHANGED, REVOKED = "known", "unknown", "changed", "revoked"


class Line(NamedTuple):
    """A line: ``place`` is ``file:number``, ``names`` the hosts, ``key`` the public key as bytes."""

    place: str
    revoked: bool
    names: str
    type: str
    key: bytes


class Verdict(NamedTuple):
    """What is known of a shown key, and the line that says it."""

    word: str
    line: Optional[Line] = None


def read(paths: Iterable[str]) -> list[Line]:
    """The lines of the files; one that does not exist has none. Raises ``OSError`` when one cannot be read."""
    found: list[Line] = []
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                found.extend(_lines(path, stream))
        except FileNotFoundError:
            continue
    return found


def of(lines: Iterable[Line], name: str) -> list[Line]:
    """The lines about the host *name*, as ``host`` or ``[host]:port``."""
    return [line for line in lines if _names(line.names, name)]


def judge(lines: Iterable[Line], shown: bytes) -> Verdict:
    """What *lines* about a host say of the key that it has *shown*."""
    kept = list(lines)
    same = [line for line in kept if line.key == shown]
    revoked = [line for line in same if line.revoked]
    if revoked:
        return Verdict(REVOKED, revoked[0])
    if same:
        return Verdict(KNOWN, same[0])
    others = [line for line in kept if not line.revoked]
    return Verdict(CHANGED, others[0]) if others else Verdict(UNKNOWN)


def named(host: str, port: int) -> str:
    """How the files name a host."""
    return host if port == 22 else "[%s]:%d" % (host, port)


def fingerprint(key: bytes) -> str:
    """SHA256:…, as ``ssh-keygen -l`` shows it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _lines(path: str, stream: Iterable[str]) -> Iterator[Line]:
    for number, text in enumerate(stream, 1):
        words = text.split()
        mark = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or mark not in ("", "@revoked"):
            continue
        try:
            key = base64.b64decode(words[2], validate=True)
        except ValueError:
            continue
        yield Line("%s:%d" % (path, number), bool(mark), words[0], words[1], key)


def _names(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        return _hashed(patterns, name)
    fits = False
    for pattern in patterns.lower().split(","):
        if _matches(pattern.lstrip("!"), name.lower()):
            if pattern.startswith("!"):
                return False
            fits = True
    return fits


def _matches(pattern: str, name: str) -> bool:
    """In patterns only ``*`` and ``?`` are special. Brackets are part of a name: ``[host]:port``."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _hashed(text: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in text.split("|")[2:4])
    except ValueError:
        return False
    made = hmac.new(salt, name.lower().encode(), hashlib.sha1).digest()
    return hmac.compare_digest(made, digest)
