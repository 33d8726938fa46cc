# SPDX-License-Identifier: GPL-3.0-or-later
"""A CA and certificates for tests of TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_CA_USAGE = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False)


class Pki:
    """A CA in *folder*, with the certificate ``ca.pem``. ``issue`` writes ``NAME.pem`` and ``NAME.key``."""

    def __init__(self, folder: Path, name: str = "test CA") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.ca = folder, folder / "ca.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self.ca.write_bytes(self._signed(self._name, self._key, None).public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, days: float = 1) -> tuple[Path, Path]:
        """Create a certificate for *name*, valid for *days* days, for servers and clients, also on 127.0.0.1; return
        its file and its key's."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._signed(_named(name), key, x509.SubjectAlternativeName([
            x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), days)
        where = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        where[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
        where[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                               serialization.NoEncryption()))
        return where

    def _signed(self, name: x509.Name, key: ec.EllipticCurvePrivateKey,
                names: x509.SubjectAlternativeName | None, days: float = 1) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateBuilder(
            issuer_name=self._name, subject_name=name, public_key=key.public_key(),
            serial_number=x509.random_serial_number(), not_valid_before=now - dt.timedelta(2),
            not_valid_after=now + dt.timedelta(days))
        builder = builder.add_extension(x509.BasicConstraints(names is None, None), True)
        # Python 3.13 accepts no certificate without these.
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                                        False)
        if names is None:
            builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            return builder.add_extension(_CA_USAGE, True).sign(self._key, hashes.SHA256())
        return builder.add_extension(names, False).sign(self._key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
