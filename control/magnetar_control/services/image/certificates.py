# SPDX-License-Identifier: GPL-3.0-or-later
"""The check of certificates of signed images: a certificate must be linked to a certificate that the user trusts
(X.509, RFC 5280). Root certificates are not needed: every certificate that the user names is trusted, if it may sign
certificates."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from magnetar_core.errors import ImageRefused

#: Values of img_signature_hash_method.
HASHES: Mapping[str, hashes.HashAlgorithm] = {
    "SHA-224": hashes.SHA224(), "SHA-256": hashes.SHA256(), "SHA-384": hashes.SHA384(), "SHA-512": hashes.SHA512()}


def load_certificate(data: bytes, id: str) -> x509.Certificate:
    """Return the X.509 certificate in *data* (PEM or DER). Raises ``ImageRefused``; *id* is the certificate's id, for
    the error."""
    try:
        return x509.load_pem_x509_certificate(data) if b"-----BEGIN" in data else x509.load_der_x509_certificate(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ImageRefused(f"What the key manager has as {id} is no X.509 certificate.") from None


def check_chain(certificate: x509.Certificate, id: str, trusted: Mapping[str, x509.Certificate],
                moment: datetime) -> None:
    """Check that *certificate* was signed, directly or through other trusted certificates, by one of the *trusted*
    certificates (by id). All certificates used must be valid at *moment*, and their path length constraints must hold.
    *id*: the id of *certificate*, for the error. Raises ``ImageRefused``."""
    failed = f"Image signature certificate validation failed for certificate: {id}."
    why = validity_problem(certificate, moment) or _no_signer(certificate)
    if why:
        raise ImageRefused(f"{failed} It {why}.")
    unfit = {certificate_id: why for certificate_id, trusted_certificate in trusted.items()
             if (why := validity_problem(trusted_certificate, moment) or _no_ca(trusted_certificate))}
    signers = {certificate_id: trusted_certificate for certificate_id,
               trusted_certificate in trusted.items() if certificate_id not in unfit}
    used: list[str] = []
    while signer := next((certificate_id for certificate_id in signers if certificate_id not in used
                          and _signed(certificate, signers[certificate_id])), None):
        longest = signers[signer].extensions.get_extension_for_class(x509.BasicConstraints).value.path_length
        if longest is not None and longest < len(used):
            raise ImageRefused(f"{failed} The trusted certificate {signer} allows {longest} certificates that sign "
                               f"others below it (pathlen), and there are {len(used)}.")
        used.append(signer)
        certificate = signers[signer]
    if not used:
        unfit_text = "".join(f" {certificate_id} {why}." for certificate_id, why in unfit.items())
        raise ImageRefused(f"{failed} Certificate chain building failed: none of the trusted certificates has signed "
                           f"it.{unfit_text} Name the certificate of its issuer in trusted_image_certificates.")


def validity_problem(certificate: x509.Certificate, moment: datetime) -> str:
    """Return the reason why the certificate is not valid at *moment*; an empty text if it is valid."""
    if moment < certificate.not_valid_before_utc:
        return f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
    if moment > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    return ""


def _no_signer(certificate: x509.Certificate) -> str:
    """Return the reason why the certificate may not sign images, such as a keyUsage without digitalSignature; an empty
    text if it may."""
    try:
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return ""
    except ValueError:
        return "has extensions that cannot be read"
    return "" if usage.digital_signature or usage.content_commitment else "has no digitalSignature in its keyUsage"


def _no_ca(certificate: x509.Certificate) -> str:
    """Return the reason why the certificate may not sign other certificates; an empty text if it may."""
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound as missing:
        name = "basicConstraints" if missing.oid == x509.BasicConstraints.oid else "keyUsage"
        return f"is no CA: it has no {name}"
    except ValueError:
        return "has extensions that cannot be read"
    if not constraints.ca:
        return "is no CA: its basicConstraints say CA:FALSE"
    return "" if usage.key_cert_sign else "is no CA: it has no keyCertSign in its keyUsage"


def _signed(certificate: x509.Certificate, signer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def signature_problem(certificate: x509.Certificate, id: str, key_type: str, method: str, value: bytes,
                      digest: bytes) -> str | None:
    """Return the reason why *value* is not a valid signature of *digest* by the key of *certificate*; ``None`` if it is
    valid. *id*: the id of the certificate, for the text. *key_type*, *method*: the image's properties
    ``img_signature_key_type`` and ``img_signature_hash_method``."""
    hash_method = HASHES[method]
    hashed = Prehashed(hash_method)
    try:
        key = certificate.public_key()
        if key_type == "RSA-PSS" and isinstance(key, rsa.RSAPublicKey):
            key.verify(value, digest, padding.PSS(padding.MGF1(hash_method), padding.PSS.AUTO), hashed)
        elif key_type == "DSA" and isinstance(key, dsa.DSAPublicKey):
            key.verify(value, digest, hashed)
        elif isinstance(key, ec.EllipticCurvePublicKey) and key_type == f"ECC_{key.curve.name.upper()}":
            key.verify(value, digest, ec.ECDSA(hashed))
        else:
            return f"img_signature_key_type is {key_type}, and the key of certificate {id} is of another type"
    except InvalidSignature:
        return f"the content is not what was signed, or not with the key of certificate {id}"
    except (ValueError, UnsupportedAlgorithm) as error:
        return f"its signature cannot be looked at ({error})"
    return None
