# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates and signatures for tests: a root, two intermediates, and a client that signs images (spec row CERT-20).
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import uuid

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)
USAGE = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")


def _name(common):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


class Signer:
    """A certificate with its key. *issuer*: another signer; left out, it signs itself. *ca*: what its basicConstraints
    say, ``None`` for no such extension; *usage*: what its key is for, ``None`` for no such extension."""

    def __init__(self, common, issuer=None, *, key=None, ca=True, longest=None, usage=("digital_signature",
                 "key_cert_sign"), since=-1, until=100):
        self.id, self.key = str(uuid.uuid4()), key or rsa.generate_private_key(65537, 2048)
        moment, signer = dt.datetime.now(dt.UTC), issuer or self
        self.common = common
        built = x509.CertificateBuilder().subject_name(_name(common)).issuer_name(_name(signer.common)).public_key(
            self.key.public_key()).serial_number(x509.random_serial_number()).not_valid_before(
            moment + since * DAY).not_valid_after(moment + until * DAY)
        if ca is not None:
            built = built.add_extension(x509.BasicConstraints(ca, longest if ca else None), critical=True)
        if usage is not None:
            built = built.add_extension(x509.KeyUsage(**{name: name in usage for name in USAGE}), critical=True)
        self.certificate = built.sign(signer.key, hashes.SHA256())

    @property
    def pem(self):
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def properties(self, content, method="SHA-256", key_type="RSA-PSS"):
        """Those of an image of this content."""
        digest = getattr(hashes, method.replace("-", ""))()
        if key_type == "RSA-PSS":
            value = self.key.sign(content, padding.PSS(padding.MGF1(digest), padding.PSS.MAX_LENGTH), digest)
        elif key_type == "DSA":
            value = self.key.sign(content, digest)
        else:
            value = self.key.sign(content, ec.ECDSA(digest))
        return {"img_signature": base64.b64encode(value).decode(), "img_signature_hash_method": method,
                "img_signature_key_type": key_type, "img_signature_certificate_uuid": self.id}


class Chain:
    """Four certificates, and a folder that has them as the embedded key manager wants them."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(mode=0o700)
        self.root = Signer("root", longest=2)
        self.first = Signer("first", self.root, longest=1)
        self.second = Signer("second", self.first, longest=1)
        self.client = Signer("client", self.second, ca=False)
        self.keep(self.root, self.first, self.second, self.client)
        self.trusted = [self.second.id, self.first.id]

    def keep(self, *signers):
        """Have the key manager know them; returns the last."""
        for one in signers:
            path = self.folder / f"{one.id}.pem"
            path.write_bytes(one.pem)
            path.chmod(0o644)
        return signers[-1]


def checksum(content):
    """As agents take it."""
    return f"sha512:{hashlib.sha512(content).hexdigest()}"
