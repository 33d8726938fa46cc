# SPDX-License-Identifier: GPL-3.0-or-later
"""Public keys and certificates of key pairs: their validation, Nova's fingerprints, and the generation of pairs."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from magnetar_core.errors import InvalidField

BITS = 2048
#: The lifetime of a generated certificate.
LIFE = timedelta(days=3650)
#: Microsoft's user principal name, from which WinRM learns the certificate's user.
PRINCIPAL = ObjectIdentifier("1.3.6.1.4.1.311.20.2.3")
_PRIVATE = re.compile(r"PRIVATE KEY|PuTTY-User-Key-File|b3BlbnNzaC1rZXktdjE|Private-Lines", re.IGNORECASE)
FIELD = "public_key"


def public_key_fingerprint(kind: str, public: str) -> str:
    """Return the fingerprint that Nova shows for a public key: MD5 for the *kind* ``ssh``, SHA-1 of the certificate for
    ``x509``. Raises ``InvalidField``; its message never quotes the key, because the user may have pasted a private key.
    """
    if _PRIVATE.search(public):
        raise InvalidField(FIELD, "must be a public key, and this is a private one. It was not kept, but take it as "
                                  "exposed: make a new pair, and give the file that ends in .pub")
    return _of_certificate(public) if kind == "x509" else _of_ssh(public)


def _of_ssh(public: str) -> str:
    words = public.split()
    try:
        serialization.load_ssh_public_key(public.strip().encode())
        blob = base64.b64decode(words[1])
    except (ValueError, IndexError, UnsupportedAlgorithm):
        raise InvalidField(FIELD, "Keypair data is invalid: failed to generate fingerprint; it must be one line as in "
                                  "a file that ends in .pub, such as ssh-ed25519 AAAA…") from None
    return hashlib.md5(blob, usedforsecurity=False).digest().hex(":")


def _of_certificate(public: str) -> str:
    try:
        certificate = x509.load_pem_x509_certificate(public.encode())
    except ValueError:
        raise InvalidField(FIELD, "Keypair data is invalid: failed to generate X509 fingerprint; it must be a "
                                  "certificate in PEM form") from None
    return certificate.fingerprint(hashes.SHA1()).hex(":")  # noqa: S303 - a name for it, as Nova shows it


def generate_key_pair(kind: str, user: str) -> tuple[str, str]:
    """Return the private key (PEM) and the public part of a new key pair for *user*. *kind*: ``ssh`` for an SSH public
    key, ``x509`` for a certificate."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=BITS)
    if kind == "x509":
        form, public = serialization.PrivateFormat.PKCS8, _certificate(key, user)
    else:
        form = serialization.PrivateFormat.TraditionalOpenSSL
        line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        public = line.decode() + " Generated-by-Nova"
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return private.decode(), public


def _certificate(key: rsa.RSAPrivateKey, user: str) -> str:
    """Return a self-signed client certificate (PEM) for *key*, with which WinRM logs in *user*."""
    moment = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, user[:64])])
    principal = f"{user}@localhost".encode()[:127]
    other = x509.OtherName(PRINCIPAL, b"\x0c" + bytes([len(principal)]) + principal)  # DER: UTF8String
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(
        x509.random_serial_number()).not_valid_before(moment).not_valid_after(moment + LIFE).add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False).add_extension(
        x509.SubjectAlternativeName([other]), critical=False).sign(key, hashes.SHA256())
    return built.public_bytes(serialization.Encoding.PEM).decode()
