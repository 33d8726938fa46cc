# SPDX-License-Identifier: GPL-3.0-or-later
"""Key pairs: public keys of users, validated, with Nova's fingerprints. A pair can be generated here; its private key
is returned once and never stored."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from magnetar_control.compute.caller import Caller, Owner
from magnetar_control.notifications import payloads
from magnetar_control.store.accounts import keypairs
from magnetar_control.store.accounts.keypairs import KeypairRow
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, NotFound

from . import quotas

RULE = "os_compute_api:os-keypairs:"
BITS = 2048
#: The lifetime of a generated certificate.
LIFE = timedelta(days=3650)
#: Microsoft's user principal name, from which WinRM learns the certificate's user.
PRINCIPAL = ObjectIdentifier("1.3.6.1.4.1.311.20.2.3")
_PRIVATE = re.compile(r"PRIVATE KEY|PuTTY-User-Key-File|b3BlbnNzaC1rZXktdjE|Private-Lines", re.IGNORECASE)
FIELD = "public_key"


class NewKeypair(NamedTuple):
    """A new key pair. *private_key*: only if the cloud has generated the pair."""

    name: str
    user_id: str
    type: str
    public_key: str
    fingerprint: str
    private_key: str | None = None


def list_keypairs(caller: Caller, user: str | None = None, limit: int | None = None,
                  marker: str | None = None) -> Sequence[KeypairRow]:
    """Return rows of at most *limit* key pairs of *user* (the caller when left out), sorted by name, after the key pair
    named *marker*. Raises ``InvalidRequest`` when *marker* does not exist."""
    user = _checked_user(caller, "index", user)
    rows = caller.fetch(keypairs.fetch_keypair_rows, user, limit, marker)
    if rows is None:
        raise InvalidRequest(f"marker [{str(marker)[:255]}] not found")
    return rows


def _checked_user(caller: Caller, action: str, user: str | None) -> str:
    """Return the id of *user*, or of the caller when left out. Raises ``Forbidden`` for another user when the policy of
    *action* does not allow the caller to act for that user."""
    user = user or caller.context.user_id
    caller.check_policy(RULE + action, Owner(caller.project, user))
    return user


def show_keypair(caller: Caller, name: str, user: str | None = None) -> KeypairRow:
    """Return the row of the key pair *name* of *user* (the caller when left out). Raises ``NotFound``."""
    user = _checked_user(caller, "show", user)
    row = caller.fetch(keypairs.fetch_keypair_row, user, name)
    if row is None:
        raise _keypair_missing(name, user)
    return row


def _keypair_missing(name: str, user: str) -> NotFound:
    return NotFound(f"Keypair {name[:255]} not found for user {user}")


def create_keypair(caller: Caller, name: str, public_key: str | None = None, *, type: str = "ssh",
                   user_id: str | None = None) -> NewKeypair:
    """Store a public key (*type* ssh or x509), or generate a pair when *public_key* is left out, for *user_id* or the
    caller; return the key pair. Raises ``Conflict`` when the user has a key pair of that name, ``Forbidden`` when the
    user's quota is used up."""
    user = _checked_user(caller, "create", user_id)
    most = quotas.quota_limits(caller, user=user)["key_pairs"]
    with caller.cloud.store.api.read() as connection:  # before generating a pair for nothing
        if keypairs.fetch_keypair_row(connection, user, name) is not None:
            raise _keypair_exists(name)
        quotas.check_keypair_quota(connection, user, most)
    private = None
    if public_key is None:
        private, public_key = _generate_pair(type, user)
    keypair = NewKeypair(name, user, type, public_key, public_key_fingerprint(type, public_key), private)
    with caller.cloud.store.api.write() as connection:
        quotas.check_keypair_quota(connection, user, most, alone=True)
        row = {"user_id": user, "name": name, "type": type, "fingerprint": keypair.fingerprint,
               "public_key": public_key}
        new = keypairs.insert_keypair_row(connection, **row)
        if new:
            event = "create" if private else "import"
            caller.notify(connection, lambda: payloads.keypair_payload(row), f"keypair.{event}.start",
                          f"keypair.{event}.end")
    if not new:
        raise _keypair_exists(name)
    return keypair


def _keypair_exists(name: str) -> Conflict:
    return Conflict(f"Key pair '{name}' already exists.")


def delete_keypair(caller: Caller, name: str, user: str | None = None) -> None:
    """Delete the key pair *name* of *user* (the caller when left out); servers keep the public key. Raises
    ``NotFound``."""
    user = _checked_user(caller, "delete", user)
    with caller.cloud.store.api.write() as connection:
        row = keypairs.fetch_keypair_row(connection, user, name) if caller.cloud.notifications else None
        if row is not None:
            caller.notify(connection, lambda: payloads.keypair_payload(row.column_values()), "keypair.delete.start",
                          "keypair.delete.end")
        if not keypairs.remove_keypair_row(connection, user, name):
            raise _keypair_missing(name, user)


def public_key_fingerprint(kind: str, public: str) -> str:
    """Return Nova's fingerprint of a public key: MD5 for the *kind* ssh, SHA-1 of the certificate for x509. Raises
    ``InvalidField``, with a message that never quotes the key: the user may have pasted the wrong file."""
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


def _generate_pair(kind: str, user: str) -> tuple[str, str]:
    """Return private and public key of a new pair for *user*. *kind*: ssh for an RSA key, x509 for a certificate."""
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
    """Return a self-signed client certificate that WinRM maps to *user*."""
    moment = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, user[:64])])
    principal = f"{user}@localhost".encode()[:127]
    other = x509.OtherName(PRINCIPAL, b"\x0c" + bytes([len(principal)]) + principal)  # DER: UTF8String
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(
        x509.random_serial_number()).not_valid_before(moment).not_valid_after(moment + LIFE).add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False).add_extension(
        x509.SubjectAlternativeName([other]), critical=False).sign(key, hashes.SHA256())
    return built.public_bytes(serialization.Encoding.PEM).decode()
