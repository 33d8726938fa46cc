# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type keypair: checks public SSH keys, and stores them in normal form: ``type base64
comment``.

Formats: RFC 4253 section 6.6, RFC 5656, RFC 8709, and OpenSSH's PROTOCOL.u2f for the sk- types. Keys that OpenSSH
refuses by default (ssh-dss, RSA below 1024 bits) are refused here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import InvalidField
from magnetar_core.kinds import Keypair

from .document import DocumentDriver

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields

RSA_BITS = (1024, 16384)
#: Size of an uncompressed point of each curve.
POINTS = {"nistp256": 65, "nistp384": 97, "nistp521": 133}
#: The parts after the type in the key, by type; each word names a check in ``_Blob``.
PARTS = {
    "ssh-ed25519": ("ed25519",),
    "ssh-rsa": ("exponent", "modulus"),
    "ecdsa-sha2-nistp256": ("nistp256",),
    "ecdsa-sha2-nistp384": ("nistp384",),
    "ecdsa-sha2-nistp521": ("nistp521",),
    "sk-ssh-ed25519@openssh.com": ("ed25519", "application"),
    "sk-ecdsa-sha2-nistp256@openssh.com": ("nistp256", "application"),
}
_PRIVATE = re.compile(r"PRIVATE KEY|PuTTY-User-Key-File|b3BlbnNzaC1rZXktdjE|Private-Lines", re.IGNORECASE)


class KeypairDriver(DocumentDriver):
    """The resource driver of SSH public keys."""

    def __init__(self) -> None:
        super().__init__(Keypair)

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the requested fields *want* with ``public_key`` checked and in normal form."""
        return {**want, "public_key": normalize_public_key(want["public_key"])}

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the keypair as API responses show it: its fields, and the SHA-256 and MD5 fingerprints of the key.
        *have*: the result of ``observe``. *snapshot*: not used."""
        shown = super().show(host, document, have, snapshot)
        blob = base64.b64decode(document.want["public_key"].split(" ", 2)[1])
        return {**shown, "fingerprint": sha256_fingerprint(blob), "fingerprint_md5": md5_fingerprint(blob)}


def sha256_fingerprint(blob: bytes) -> str:
    """Return the fingerprint of the public key *blob* as ``ssh-keygen -l`` shows it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def md5_fingerprint(blob: bytes) -> str:
    """Return the fingerprint of the public key *blob* as Nova shows it."""
    return hashlib.md5(blob, usedforsecurity=False).digest().hex(":")


def normalize_public_key(text: str) -> str:
    """Return the public key *text* as ``type base64 comment``. Raises ``InvalidField``, whose message never contains
    *text*: a user may have pasted a private key."""
    if _PRIVATE.search(text):
        raise _refused("must be a public key, and this is a private one. It was not kept, but take it as exposed: make "
                       "a new pair, and give the file that ends in .pub")
    line = text.strip()
    if "-- BEGIN " in line:
        raise _refused("must be one line as in authorized_keys; convert it with ssh-keygen -i -f FILE")
    if any(not character.isprintable() and character != "\t" for character in line):
        raise _refused("must be one line of printable text")
    type, _space, remainder = line.replace("\t", " ").partition(" ")
    encoded, _space, comment = remainder.strip().partition(" ")
    if type not in PARTS:
        raise _refused(_unknown(type, line))
    try:
        blob = base64.b64decode(encoded.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise _refused(f"must be {type}, then the key in base64; the base64 is not valid") from None
    _Blob(blob).check_key(type)
    return " ".join(filter(None, (type, base64.b64encode(blob).decode(), comment.strip())))


def _refused(rule: str) -> InvalidField:
    return InvalidField("public_key", rule)


def _unknown(type: str, line: str) -> str:
    if type == "ssh-dss":
        return "must not be of type ssh-dss, which is broken and which OpenSSH refuses; use ssh-ed25519"
    if "-cert-v0" in type:
        return "must be a plain public key, not a certificate"
    if any(f"{key_type} " in line for key_type in PARTS):
        return "must begin with the key's type; options in front of it are not taken"
    return f"must begin with one of {', '.join(PARTS)}"


class _Blob:
    """A parser for the strings and numbers in a binary SSH public key (RFC 4251 section 5)."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def check_key(self, type: str) -> None:
        """Raise ``InvalidField`` unless the data is exactly one complete key of the type *type*, such as ssh-ed25519.
        """
        if self.string() != type.encode():
            raise _refused(f"is damaged: it says {type}, and its base64 is of another type")
        for part in PARTS[type]:
            getattr(self, part if part not in POINTS else "curve")(*([part] if part in POINTS else []))
        if self.data:
            raise _refused("is damaged: something follows the key inside its base64")

    def string(self) -> bytes:
        length = int.from_bytes(self.data[:4], "big")
        if len(self.data) < 4 + length or len(self.data) < 4:
            raise _refused("is damaged: its base64 is cut short")
        content, self.data = self.data[4:4 + length], self.data[4 + length:]
        return content

    def number(self) -> int:
        digits = self.string()
        if not digits or digits[0] & 0x80 or (digits[0] == 0 and not (digits[1:2] and digits[1] & 0x80)):
            raise _refused("is damaged: a number in it is not in normal form")
        return int.from_bytes(digits, "big")

    def ed25519(self) -> None:
        if len(self.string()) != 32:
            raise _refused("is damaged: an ed25519 key has 32 bytes")

    def curve(self, name: str) -> None:
        curve, point = self.string(), self.string()
        if curve != name.encode() or len(point) != POINTS[name] or point[0] != 4:
            raise _refused(f"is damaged: it holds no point of {name}")

    def exponent(self) -> None:
        value = self.number()
        if value < 3 or not value & 1:
            raise _refused("is damaged: the RSA exponent must be odd and at least 3")

    def modulus(self) -> None:
        bits = self.number().bit_length()
        if not RSA_BITS[0] <= bits <= RSA_BITS[1]:
            raise _refused(f"must have {RSA_BITS[0]} to {RSA_BITS[1]} bits as RSA key, and has {bits}; use ssh-ed25519")

    def application(self) -> None:
        if not self.string():
            raise _refused("is damaged: its application is missing")
