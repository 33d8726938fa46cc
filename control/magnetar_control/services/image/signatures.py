# SPDX-License-Identifier: GPL-3.0-or-later
"""The verification of images' signatures. Four properties of an image hold the signature of the digest of its content,
and name a certificate in the key manager. Source: the documentation of image signature verification of Glance and Nova.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from magnetar_control.services import Context, Images, KeyManager
from magnetar_core.document import Document
from magnetar_core.errors import ImageRefused, NotFound

from .fields import SIGNATURE

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

# Functions import the module certificates where they use it: it loads 10 MiB of libraries that few clouds need.

#: Values of img_signature_hash_method.
METHODS = ("SHA-224", "SHA-256", "SHA-384", "SHA-512")
#: Values of img_signature_key_type.
KEY_TYPES = ("RSA-PSS", "DSA", "ECC_SECP521R1", "ECC_SECP384R1")
#: Key types that only Glance supports: OpenSSL 4, which cryptography uses, no longer supports curves over binary
#: fields.
GONE = ("ECC_SECT571K1", "ECC_SECT409K1", "ECC_SECT571R1", "ECC_SECT409R1")
#: Number of cached digests of contents; when it is exceeded, the cache is emptied.
REMEMBERED = 1000


class Signature(NamedTuple):
    """The signature of an image. *image*: the image's uuid. *value*: the signature itself. *method*, *key_type*: the
    hash method and the key type, as in the image's properties. *certificate*: the id of the certificate in the key
    manager."""

    image: str
    value: bytes
    method: str
    key_type: str
    certificate: str

    def check(self, certificate: Certificate, digest: bytes) -> None:
        """Raise ``ImageRefused`` unless the signature of the content's *digest* was made with the key of
        *certificate*."""
        from . import certificates

        if why := certificates.signature_problem(certificate, self.certificate, self.key_type, self.method, self.value,
                                                 digest):
            raise signature_refusal(self.image, why)


def signature_refusal(image: str, why: str) -> ImageRefused:
    """Return the error for an image whose signature verification fails. *image*: the image's uuid. *why*: the reason,
    for users."""
    return ImageRefused(f"Image signature verification failed for image {image}: {why}.")


def signature_of(image: Mapping[str, Any]) -> Signature:
    """Return the signature that is stored in the properties of *image*. Raises ``ImageRefused`` if a property of the
    signature is missing or not supported, or if the signature is not base64."""
    id, properties = str(image["id"]), image.get("properties") or {}
    lacking = [name for name in SIGNATURE if not properties.get(name)]
    if lacking:
        raise signature_refusal(
            id, f"it has no {', '.join(lacking)}. Give the image all of {', '.join(SIGNATURE)}, or take one "
                          "that is signed")
    value, method, key_type, certificate = (str(properties[name]) for name in SIGNATURE)
    if key_type in GONE:
        raise signature_refusal(
            id, f"its img_signature_key_type is {key_type}, a curve over a binary field, which OpenSSL does "
                          f"not know any more. Sign the image with a key of another type: {', '.join(KEY_TYPES)}")
    for name, setting, supported in (("img_signature_hash_method", method, METHODS),
                                     ("img_signature_key_type", key_type, KEY_TYPES)):
        if setting not in supported:
            raise signature_refusal(id, f"its {name} is {setting[:40]}, and must be one of {', '.join(supported)}")
    try:
        return Signature(id, base64.b64decode("".join(value.split()), validate=True), method, key_type, certificate)
    except (binascii.Error, ValueError):
        raise signature_refusal(id, "its img_signature is not base64") from None


def certificate_of(keys: KeyManager, context: Context, id: str, image: str) -> Certificate:
    """Return the certificate with the id *id* from the key manager *keys*. *image*: the uuid of the image, for the
    error. Raises ``ImageRefused`` if the certificate does not exist."""
    from . import certificates

    try:
        return certificates.load_certificate(keys.certificate(context, id), id)
    except NotFound as error:
        raise signature_refusal(image, error.message.rstrip(".")) from None


class SignedUpload:
    """The verification of a signed image while its content is uploaded. *keys*: the key manager with the certificate.
    The constructor raises ``ImageRefused`` if the signature is incomplete or its certificate is missing or not valid.
    """

    def __init__(self, image: Document, keys: KeyManager, context: Context) -> None:
        from . import certificates

        self.signature = signature_of(image)
        self.certificate = certificate_of(keys, context, self.signature.certificate, self.signature.image)
        if why := certificates.validity_problem(self.certificate, datetime.now(UTC)):
            raise signature_refusal(self.signature.image, f"the certificate {self.signature.certificate} {why}")
        self._digest = _hash(self.signature.method)

    def seen(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield *chunks* unchanged, and add each chunk to the digest that ``check`` verifies."""
        for chunk in chunks:
            self._digest.update(chunk)
            yield chunk

    def check(self) -> None:
        """Raise ``ImageRefused`` when the signature does not match the content that ``seen`` has read."""
        self.signature.check(self.certificate, self._digest.digest())


def is_signed(image: Mapping[str, Any]) -> bool:
    """Return whether an image has all properties that a signature needs."""
    return all((image.get("properties") or {}).get(name) for name in SIGNATURE)


class Signatures:
    """The verification of image signatures before the images reach a host. *verify*: check the signature. *validate*:
    also check that its certificate has a chain to a trusted certificate. *defaults*: the ids of the trusted
    certificates. If the user's request names trusted certificates, both checks are made, with the user's certificates
    instead of *defaults*."""

    def __init__(self, keys: KeyManager, images: Images, verify: bool, validate: bool, defaults: Sequence[str]) -> None:
        self.keys, self.images, self.verify, self.validate, self.defaults = keys, images, verify, validate, defaults
        #: (Image, digest from the image service, hash method) to the digest by that method and the checksum for agents.
        self._known: dict[tuple[str, str, str], tuple[bytes, str]] = {}
        self._lock = threading.Lock()
        self._under_way: WeakValueDictionary[tuple[str, str, str], threading.Lock] = WeakValueDictionary()

    def check(self, context: Context, id: str, trusted: Sequence[str] = (),
              proceed: Callable[[], None] = lambda: None) -> str | None:
        """Verify the signature of the image *id*. Return the checksum of the image's content (``sha512:HEX`` or
        ``sha256:HEX``), so that the agent can check its download. Return ``None``, without a verification, if *trusted*
        is empty and ``verify`` is false.

        *trusted*: ids of certificates that the user named. *proceed*: called repeatedly while the content is read; may
        raise to cancel. Raises ``ImageRefused``, ``Conflict``.
        """
        if not trusted and not self.verify:
            return None
        from . import certificates

        image = self.images.show(context, id)
        if image is None:
            raise signature_refusal(id, "it was removed meanwhile")
        signature = signature_of(image)
        certificate = certificate_of(self.keys, context, signature.certificate, id)
        if trusted or self.validate:
            self._check_trusted(context, signature, certificate, trusted or self.defaults)
        elif why := certificates.validity_problem(certificate, datetime.now(UTC)):
            raise signature_refusal(id, f"the certificate {signature.certificate} {why}")
        digest, checksum = self._digest(image, signature.method, proceed)
        signature.check(certificate, digest)
        return checksum

    def _check_trusted(self, context: Context, signature: Signature, certificate: Certificate,
                       trusted: Sequence[str]) -> None:
        from . import certificates

        trusted_certificates = {trusted_id: certificate_of(self.keys, context, trusted_id, signature.image)
                                for trusted_id in trusted}
        certificates.check_chain(certificate, signature.certificate, trusted_certificates, datetime.now(UTC))

    def _digest(self, image: Document, method: str, proceed: Callable[[], None]) -> tuple[bytes, str]:
        """Return (digest of the image's content by the hash *method*, checksum of the content for the agent, such as
        ``sha512:HEX``). If the image service has reported a digest by this method, return that digest and do not read
        the content. The agent will compare the checksum with its download. Otherwise read the content, and cache the
        result. *proceed*: called repeatedly while the content is read. Raises ``ImageRefused`` if the content does not
        match the digest of the image service."""
        algorithm, value = str(image.get("os_hash_algo")), str(image.get("os_hash_value"))
        has_service_digest = algorithm in ("sha256", "sha512") and re.fullmatch("[0-9a-f]{64}|[0-9a-f]{128}", value)
        if has_service_digest and algorithm == _name(method):
            return bytes.fromhex(value), f"{algorithm}:{value}"
        key = (str(image["id"]), value, method)
        with self._lock:
            lock = self._under_way.setdefault(key, threading.Lock())
        with lock:
            if key not in self._known:
                digests = self._read(key[0], {method, "SHA-512", "SHA-256" if algorithm == "sha256" else method},
                                     proceed)
                if has_service_digest and digests[f"SHA-{algorithm[3:]}"].hex() != value:
                    raise signature_refusal(key[0],
                                            f"its content is not what the image service says (os_hash_value {value})")
                if len(self._known) >= REMEMBERED:
                    self._known = {}
                self._known[key] = digests[method], f"sha512:{digests['SHA-512'].hex()}"
            return self._known[key]

    def _read(self, id: str, methods: set[str], proceed: Callable[[], None]) -> dict[str, bytes]:
        digests = {method: _hash(method) for method in methods}
        for piece in self.images.content(id)[0]:
            proceed()
            for digest in digests.values():
                digest.update(piece)
        return {method: digest.digest() for method, digest in digests.items()}


def _name(method: str) -> str:
    """Return hashlib's name of the hash method in an image's signature, such as sha256 for SHA-256."""
    return method.replace("-", "").lower()


def _hash(method: str) -> Any:
    return hashlib.new(_name(method))
