# SPDX-License-Identifier: GPL-3.0-or-later
"""Signatures of images: what is verified, by which certificates, and what is refused."""

import base64
import hashlib
import os
import threading
import time

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa

from magnetar_control.services import Context
from magnetar_control.services.image.signatures import GONE, METHODS, Signatures
from magnetar_control.services.key_manager import CertificateFolder
from magnetar_core.errors import Cancelled, Conflict, ImageRefused, NotFound

from .glance import RAW, Glance
from .signing import Chain, Signer, checksum

USER = Context("ann", "project-ann")
ID = "5c8b2a52-0c5f-4f0a-9f4c-3b8f0f6a4e11"


class Images:
    """One image; *told* is what the service says of its content: ``sha512``, ``sha256`` or nothing. ``reads`` counts
    how often the content is read."""

    def __init__(self, properties, content=RAW, told="sha512"):
        self.properties, self.bytes, self.told, self.reads = properties, content, told, 0
        self.value = getattr(hashlib, told)(content).hexdigest() if told else None

    def show(self, _context, id):
        return {"id": id, "properties": self.properties, "os_hash_algo": self.told, "os_hash_value": self.value}

    def content(self, _id):
        self.reads += 1
        return iter([self.bytes[:1000], self.bytes[1000:]]), len(self.bytes)


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return Chain(tmp_path_factory.mktemp("keys") / "certificates")


def check(chain, images, trusted=(), proceed=lambda: None, verify=True, validate=False, defaults=()):
    return Signatures(CertificateFolder(chain.folder), images, verify, validate, defaults).check(
        USER, ID, trusted, proceed)


def refused(chain, images, *trusted, **more):
    with pytest.raises(ImageRefused) as error:
        check(chain, images, trusted, **more)
    return error.value.message


@pytest.mark.parametrize("method", METHODS)
def test_a_good_signature(chain, method):
    images = Images(chain.client.properties(RAW, method))
    assert check(chain, images) == checksum(RAW)
    assert images.reads == (method != "SHA-512")  # the service has told that digest, and agents compare it


KEYS = {"RSA-PSS": lambda: rsa.generate_private_key(65537, 3072), "DSA": lambda: dsa.generate_private_key(2048),
        "ECC_SECP521R1": lambda: ec.generate_private_key(ec.SECP521R1()),
        "ECC_SECP384R1": lambda: ec.generate_private_key(ec.SECP384R1())}


@pytest.mark.parametrize("kind", KEYS)
def test_each_type_of_key(chain, kind):
    signer = chain.keep(Signer("other", chain.second, key=KEYS[kind](), ca=False))
    assert check(chain, Images(signer.properties(RAW, "SHA-384", kind)), [chain.second.id]) == checksum(RAW)
    other = next(one for one in KEYS if one != kind)
    wrong = {**signer.properties(RAW, "SHA-384", kind), "img_signature_key_type": other}
    assert f"img_signature_key_type is {other}" in refused(chain, Images(wrong))


@pytest.mark.parametrize(("verify", "validate", "trusted", "defaults", "good"), [
    (False, False, False, False, None), (False, True, False, True, None), (True, False, False, True, True),
    (True, True, False, True, True), (True, True, False, False, False), (False, False, True, False, True),
    (True, True, True, False, True)])
def test_when_what_is_asked(chain, verify, validate, trusted, defaults, good):
    """The client's certificate is linked to trusted ones, where these are given."""
    def ask(properties):
        return check(chain, Images(properties), chain.trusted if trusted else (), verify=verify, validate=validate,
                     defaults=chain.trusted if defaults else ())

    signed = chain.client.properties(RAW)
    if good is None:
        assert ask(signed) is None and ask({}) is None
    elif good:
        assert ask(signed) == checksum(RAW)
        with pytest.raises(ImageRefused, match="it has no img_signature, img_signature_hash_method"):
            ask({})
    else:
        with pytest.raises(ImageRefused, match="Certificate chain building failed"):
            ask(signed)


def test_whom_to_trust(chain):
    images = Images(chain.client.properties(RAW))
    for trusted in ([chain.second], [chain.second, chain.first], [chain.root, chain.first, chain.second]):
        assert check(chain, images, [one.id for one in trusted]) == checksum(RAW)
    for trusted in ([chain.root], [chain.first], [chain.root, chain.first], [chain.client]):
        said = refused(chain, images, *(one.id for one in trusted))
        assert f"validation failed for certificate: {chain.client.id}. Certificate chain building failed" in said
    same_name = chain.keep(Signer("second", chain.first))
    assert "none of the trusted certificates has signed it" in refused(chain, images, same_name.id)


@pytest.mark.parametrize(("said", "of_signer", "of_client"), [
    ("expired on 20", {"since": -3, "until": -1}, {}), ("is not valid before 20", {"since": 1}, {}),
    ("is no CA: it has no basicConstraints", {"ca": None}, {}), ("CA:FALSE", {"ca": False}, {}),
    ("is no CA: it has no keyUsage", {"usage": None}, {}), ("no keyCertSign", {"usage": ("digital_signature",)}, {}),
    ("It expired on 20", {}, {"since": -3, "until": -1}), ("It is not valid before", {}, {"since": 1}),
    ("It has no digitalSignature", {}, {"usage": ("key_cert_sign",)})])
def test_certificates_that_are_not_good(chain, said, of_signer, of_client):
    signer = chain.keep(Signer("signer", chain.first, **of_signer))
    client = chain.keep(Signer("client", signer, **{"ca": False, **of_client}))
    assert said in refused(chain, Images(client.properties(RAW)), signer.id, chain.first.id)


def test_a_chain_longer_than_it_may_be(chain):
    short = chain.keep(Signer("short", chain.root, longest=0))
    below = chain.keep(Signer("below", short))
    client = chain.keep(Signer("client", below, ca=False))
    assert "allows 0 certificates that sign others below it" in refused(
        chain, Images(client.properties(RAW)), short.id, below.id)


def test_without_trusted_ones_an_expired_certificate_signs_nothing_either(chain):
    client = chain.keep(Signer("client", chain.second, ca=False, since=-3, until=-1))
    assert f"the certificate {client.id} expired on" in refused(chain, Images(client.properties(RAW)))


def test_certificates_that_are_not_there(chain):
    signed, away = chain.client.properties(RAW), "7d9e1a05-9f54-4b1c-8a38-0d7ad0b5a6c1"
    for id in (away, "../root", "no uuid", ""):
        if id:
            assert "There is no certificate" in refused(chain, Images(signed), chain.second.id, id)
        assert refused(chain, Images({**signed, "img_signature_certificate_uuid": id}))
    (chain.folder / f"{away}.pem").write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    (chain.folder / f"{away}.pem").chmod(0o600)
    assert "is no X.509 certificate" in refused(chain, Images(signed), away)
    (chain.folder / f"{away}.pem").unlink()


@pytest.mark.parametrize(("change", "said"), [
    ({"img_signature": base64.b64encode(b"a" * 256).decode()}, "the content is not what was signed"),
    ({"img_signature": ""}, "it has no img_signature."), ({"img_signature": "?"}, "is not base64"),
    ({"img_signature_hash_method": "SHA-384"}, "the content is not what was signed"),
    ({"img_signature_hash_method": "MD5"}, "must be one of SHA-224, SHA-256, SHA-384, SHA-512"),
    ({"img_signature_key_type": "RSA"}, "must be one of RSA-PSS, DSA, ECC_SECP521R1"),
    *(({"img_signature_key_type": name}, f"is {name}, a curve over a binary field, which OpenSSL does not know")
      for name in GONE), ({"img_signature_key_type": "DSA"}, "is of another type")])
def test_signatures_that_are_not_good(chain, change, said):
    assert said in refused(chain, Images({**chain.client.properties(RAW), **change}), *chain.trusted)


@pytest.mark.parametrize("told", ["sha512", "sha256", None])
def test_content_that_is_not_what_was_signed(chain, told):
    for method in METHODS:
        images = Images(chain.client.properties(RAW, method), RAW[:-1] + b"?", told)
        assert "the content is not what was signed" in refused(chain, images)


def test_content_that_is_not_what_the_service_says(chain):
    images = Images(chain.client.properties(RAW))
    images.value = hashlib.sha512(b"other").hexdigest()
    assert "is not what the image service says" in refused(chain, images)


def test_what_agents_have_to_get_when_a_service_tells_no_digest(chain):
    assert check(chain, Images(chain.client.properties(RAW, "SHA-512"), told=None)) == checksum(RAW)
    by_sha256 = Images(chain.client.properties(RAW, "SHA-256"), told="sha256")
    assert check(chain, by_sha256) == f"sha256:{hashlib.sha256(RAW).hexdigest()}" and by_sha256.reads == 0
    assert check(chain, Images(chain.client.properties(RAW, "SHA-512"), told="sha256")) == checksum(RAW)


def test_content_is_read_once(chain):
    """However many servers are made of it at once; a certificate is looked at each time."""
    images = Images(chain.client.properties(RAW))
    pieces, images.content = images.content, lambda id: (time.sleep(0.2), pieces(id))[1]
    asked = Signatures(CertificateFolder(chain.folder), images, True, False, ())
    threads = [threading.Thread(target=asked.check, args=(USER, ID)) for _at in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert asked.check(USER, ID) == checksum(RAW) and images.reads == 1
    (chain.folder / f"{chain.client.id}.pem").rename(chain.folder / "away")
    with pytest.raises(ImageRefused, match="There is no certificate"):
        asked.check(USER, ID)
    (chain.folder / "away").rename(chain.folder / f"{chain.client.id}.pem")


def test_reading_ends_when_it_is_cancelled(chain):
    def proceed():
        raise Cancelled

    with pytest.raises(Cancelled):
        check(chain, Images(chain.client.properties(RAW)), proceed=proceed)


def test_an_image_that_is_gone(chain):
    images = Images({})
    images.show = lambda *_args: None
    assert "it was removed meanwhile" in refused(chain, images)


def test_files_of_the_key_manager(chain, tmp_path):
    keys, one = CertificateFolder(tmp_path), chain.client
    path = tmp_path / f"{one.id}.pem"
    path.write_bytes(one.pem)
    path.chmod(0o644)
    assert keys.certificate(USER, one.id) == keys.certificate(USER, one.id.upper()) == one.pem
    for mode in (0o664, 0o646):
        path.chmod(mode)
        with pytest.raises(Conflict, match="nobody else may write to it"):
            keys.certificate(USER, one.id)
    path.rename(tmp_path / "away.pem")
    path.symlink_to(tmp_path / "away.pem")
    for id in (one.id, "away", "../away", f"{tmp_path}/away", "\0"):
        with pytest.raises(NotFound):
            keys.certificate(USER, id)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(Conflict):
        keys.certificate(USER, one.id)


# Uploads ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def glance(chain, database, tmp_path):
    """Of each engine in turn."""
    return Glance(database, tmp_path, keys=CertificateFolder(chain.folder))


def test_an_upload_that_is_what_was_signed(chain, glance):
    id = glance.make("ann", RAW, **chain.client.properties(RAW))
    assert glance.show(id)["status"] == "active"


def test_an_upload_that_is_not(chain, glance):
    id = glance.make("ann", **chain.client.properties(RAW))
    said = glance.put(glance.ann, id, RAW[:-512], 400)
    assert "the content is not what was signed" in str(said.body) and glance.files() == []
    glance.ann("GET", f"/v2/images/{id}", None, 404)
    assert glance.ann("POST", "/v2/images", {"id": id}, 409)  # like any that was deleted
    kept = glance.make("ann", protected=True, **chain.client.properties(RAW))
    glance.put(glance.ann, kept, RAW[:-512], 400)
    assert glance.show(kept)["status"] == "queued" and glance.files() == []
    glance.put(glance.ann, kept, RAW, 204)


def test_an_upload_whose_certificate_is_not_there(chain, glance):
    """Refused before the content is looked at; the image waits for another property, or the certificate."""
    lost = {**chain.client.properties(RAW), "img_signature_certificate_uuid": ID}
    id = glance.make("ann", **lost)
    assert "There is no certificate" in str(glance.put(glance.ann, id, RAW, 400).body)
    assert glance.show(id)["status"] == "queued"


def test_uploads_without_a_whole_signature_pass(chain, glance):
    signed = chain.client.properties(RAW)
    del signed["img_signature"]
    assert glance.show(glance.make("ann", RAW, **signed))["status"] == "active"


def test_where_nothing_is_verified_signatures_are_properties(chain, database, tmp_path):
    plain = Glance(database, tmp_path)
    assert plain.show(plain.make("ann", RAW, **chain.client.properties(b"other")))["status"] == "active"
