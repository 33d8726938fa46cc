# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates for simulated hosts behind TLS: a CA, one certificate for all hosts, and one for their client."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: Common name of the client's certificate.
CLIENT = "conductor"
DAYS = 365
#: Use of the CA's key: for signatures of certificates only.
CA_USAGE = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False)


class CertificateFiles(NamedTuple):
    """Paths of the PEM files for TLS in a simulation: the CA certificate, and certificates with private keys for the
    simulated hosts and for the client."""

    ca: Path
    host_cert: Path
    host_key: Path
    client_cert: Path
    client_key: Path


def make_certificates(folder: Path, addresses: Iterable[str]) -> CertificateFiles:
    """Create a CA, a certificate for the simulated hosts and one for the client in *folder*. *addresses*: the hosts' IP
    addresses; all of them are in the hosts' certificate."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = CertificateFiles(*(folder / name for name in ("ca.pem", "hosts.pem", "hosts.key", "conductor.pem",
                                                          "conductor.key")))
    ca_key, ca_name = ec.generate_private_key(ec.SECP256R1()), _named("Magnetar simulation")
    _write(files.ca, _sign(ca_name, ca_name, ca_key, ca_key, None).public_bytes(serialization.Encoding.PEM))
    places = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address)) for address in addresses])
    for cert, key_file, name, names in ((files.host_cert, files.host_key, "hosts", places),
                                        (files.client_cert, files.client_key, CLIENT,
                                         x509.SubjectAlternativeName([x509.DNSName(CLIENT)]))):
        key = ec.generate_private_key(ec.SECP256R1())
        _write(cert, _sign(ca_name, _named(name), ca_key, key, names).public_bytes(serialization.Encoding.PEM))
        _write(key_file, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                           serialization.NoEncryption()))
    return files


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _sign(issuer: x509.Name, subject: x509.Name, ca_key: ec.EllipticCurvePrivateKey, key: ec.EllipticCurvePrivateKey,
          names: x509.SubjectAlternativeName | None) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=issuer, subject_name=subject, public_key=key.public_key(),
        serial_number=x509.random_serial_number(), not_valid_before=now - dt.timedelta(1),
        not_valid_after=now + dt.timedelta(DAYS)).add_extension(x509.BasicConstraints(names is None, None), True)
    # Python 3.13 accepts no certificate without the identifiers of keys, and no CA without its usage.
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False)
    if names is None:
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    builder = builder.add_extension(CA_USAGE, True) if names is None else builder.add_extension(names, False)
    return builder.sign(ca_key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
