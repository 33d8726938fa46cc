# SPDX-License-Identifier: GPL-3.0-or-later
"""Known host keys of SSH: OpenSSH's files, with hashed names, patterns and revoked keys.

Paramiko's own reader supports neither patterns nor revoked keys, and only one key of each type. Marks of certificate
authorities are ignored, as Paramiko cannot check a host's certificate.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
from typing import Iterable, Iterator, NamedTuple, Optional

KNOWN, UNKNOWN, CHANGED, REVOKED = "known", "unknown", "changed", "revoked"


class Line(NamedTuple):
    """A line of a known_hosts file. *place*: ``file:number``, for messages. *revoked*: whether the key is revoked.
    *names*: the host names or patterns. *type*: the key type. *key*: the public key as bytes.
    """

    place: str
    revoked: bool
    names: str
    type: str
    key: bytes


class Verdict(NamedTuple):
    """The result of checking a host key. *word*: KNOWN, UNKNOWN, CHANGED or REVOKED. *line*: the line of a known_hosts
    file that determines the result, if any.
    """

    word: str
    line: Optional[Line] = None


def read_known_hosts(paths: Iterable[str]) -> list[Line]:
    """Return the lines of the known_hosts files *paths*. Missing files are skipped. Raises ``OSError`` if a file cannot
    be read.
    """
    lines: list[Line] = []
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                lines.extend(_lines(path, stream))
        except FileNotFoundError:
            continue
    return lines


def lines_of_host(lines: Iterable[Line], name: str) -> list[Line]:
    """Return the *lines* that match the host *name*, which is ``host`` or ``[host]:port``."""
    return [line for line in lines if _names(line.names, name)]


def judge_host_key(lines: Iterable[Line], shown: bytes) -> Verdict:
    """Check the public key *shown*, which a host presents, and return the result. *lines*: the lines of known_hosts
    files for this host.
    """
    host_lines = list(lines)
    same = [line for line in host_lines if line.key == shown]
    revoked = [line for line in same if line.revoked]
    if revoked:
        return Verdict(REVOKED, revoked[0])
    if same:
        return Verdict(KNOWN, same[0])
    valid_lines = [line for line in host_lines if not line.revoked]
    return Verdict(CHANGED, valid_lines[0]) if valid_lines else Verdict(UNKNOWN)


def known_host_name(host: str, port: int) -> str:
    """Return the name of a host as known_hosts files have it: ``host``, or ``[host]:port`` if the port is not 22."""
    return host if port == 22 else "[%s]:%d" % (host, port)


def host_key_fingerprint(key: bytes) -> str:
    """Return the fingerprint of a public key, ``SHA256:…``, as ``ssh-keygen -l`` shows it."""
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
    """Return whether the known_hosts *pattern* matches the host *name*. Only ``*`` and ``?`` are wildcards; brackets,
    as in ``[host]:port``, are not.
    """
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _hashed(text: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in text.split("|")[2:4])
    except ValueError:
        return False
    made = hmac.new(salt, name.lower().encode(), hashlib.sha1).digest()
    return hmac.compare_digest(made, digest)
