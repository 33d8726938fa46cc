# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers of signed images: what was verified is what hosts get, and nothing else becomes a guest."""

from types import SimpleNamespace

import pytest

from tests.support.control.cloud import Cloud
from tests.support.waiting import eventually
from tests.unit.control.image.signing import Signer, checksum
from tests.unit.control.moves.clouds import at, check, row

from .signing import CONTENT, ENGINES, VERSION, signing

pytestmark = ENGINES


@pytest.fixture(scope="module")
def owners(databases):
    """Shared by the tests of a module: nothing is verified unless certificates are named."""
    with Cloud(hosts=2, links=True, databases=databases) as cloud:
        yield signing(cloud)


@pytest.fixture
def owner(owners):
    kept = owners.call.image()
    yield owners
    owners.clear()
    for one in owners.call.get("/image/v2/images").json["images"]:
        if one["id"] != kept:
            owners.call.delete(f"/image/v2/images/{one['id']}")
    eventually(lambda: [one["id"] for one in owners.call.get("/image/v2/images").json["images"]] == [kept])


def test_a_server_of_a_signed_image(owner):
    image, chain = owner.image(), owner.chain
    server = owner.boot(image, *chain.trusted)
    assert server["status"] == "ACTIVE", server["fault"]
    assert server["trusted_image_certificates"] == chain.trusted
    assert owner.contents(image) == {checksum(CONTENT)}
    check(owner.cloud, server["id"])


def test_signatures_that_are_not_good(owner):
    chain, signed = owner.chain, owner.chain.client.properties(CONTENT)
    wrong = chain.client.properties(CONTENT + b"?")
    owner.check_failed(owner.boot(owner.image(wrong), *chain.trusted), "Image signature verification failed",
                       "the content is not what was signed")
    owner.check_failed(owner.boot(owner.image({**signed, "img_signature_hash_method": "SHA-512"}), *chain.trusted),
                       "the content is not what was signed")
    owner.check_failed(owner.boot(owner.image({}), *chain.trusted), "it has no img_signature")
    image = owner.image()
    owner.check_failed(owner.boot(image, chain.root.id), "Image signature certificate validation failed for "
                       f"certificate: {chain.client.id}. Certificate chain building failed")
    owner.check_failed(owner.boot(image, "5c8b2a52-0c5f-4f0a-9f4c-3b8f0f6a4e11"), "There is no certificate")
    expired = chain.keep(Signer("client", chain.second, ca=False, since=-3, until=-1))
    owner.check_failed(owner.boot(owner.image(expired.properties(CONTENT)), *chain.trusted), "It expired on")
    assert owner.boot(image)["status"] == "ACTIVE"  # nobody asked


def test_content_that_changes_between_its_verification_and_the_host(owner, monkeypatch):
    """Whoever has the image service gives other content to hosts: these refuse it, since it is not what was verified.
    A host that was found to have the image before is asked again."""
    image, delivery = owner.image(), owner.cloud.parts.delivery
    with monkeypatch.context() as patched:
        patched.setattr(delivery, "images", SimpleNamespace(
            show=lambda *_args: None, show_with_location=lambda *_args: ({"properties": {}}, ""),
            content=lambda _id: (iter([b"\0" * 65536]), 65536)))
        assert owner.boot(image)["status"] == "ACTIVE"  # what a server gets that asks for nothing
        assert checksum(CONTENT) not in owner.contents(image)
        server = owner.boot(image, *owner.chain.trusted)
        assert server["status"] == "ERROR" and at(owner.cloud, server["id"]) == {}
    server = owner.boot(image, *owner.chain.trusted)
    assert server["status"] == "ACTIVE", server["fault"]
    [found] = [one for one in owner.on_host("image", owner.host_of(server["id"])) if one["id"] == image]
    assert (found["checksum"], found["status"]) == (checksum(CONTENT), "active")


def test_rebuild(owner):
    chain, plain = owner.chain, owner.call.image()
    image, unsigned = owner.image(), owner.image({})
    id = owner.boot(plain)["id"]
    found = owner.act(id, "rebuild", {"imageRef": image, "trusted_image_certificates": chain.trusted}, VERSION)
    assert (found["status"], found["trusted_image_certificates"]) == ("ACTIVE", chain.trusted)
    found = owner.act(id, "rebuild", {"imageRef": image}, VERSION)  # they stay
    assert (found["status"], found["trusted_image_certificates"]) == ("ACTIVE", chain.trusted)
    before = at(owner.cloud, id)
    found = owner.act(id, "rebuild", {"imageRef": unsigned}, VERSION)
    assert found["status"] == "ERROR" and "it has no img_signature" in found["fault"]["message"]
    assert [one["image"] for one in at(owner.cloud, id).values()] == [one["image"] for one in before.values()]
    found = owner.act(id, "rebuild", {"imageRef": unsigned, "trusted_image_certificates": None}, VERSION)
    assert (found["status"], found["trusted_image_certificates"]) == ("ACTIVE", None)
    found = owner.act(id, "rebuild", {"imageRef": unsigned, "trusted_image_certificates": [chain.root.id]}, VERSION)
    assert (found["status"], found["trusted_image_certificates"]) == ("ERROR", [chain.root.id])


def test_a_shelved_server_comes_back(owner):
    """Its own disk, which nobody signs; the image that is made of it has not the signature of the one before."""
    id = owner.boot(owner.image(), *owner.chain.trusted)["id"]
    owner.act(id, "shelve")
    eventually(lambda: row(owner.cloud, id).vm_state == "shelved_offloaded")
    kept = owner.call.get(f"/image/v2/images/{row(owner.cloud, id).shelved_image_id}").json
    assert not [name for name in kept if name.startswith("img_signature")]
    found = owner.act(id, "unshelve")
    assert (found["status"], found["trusted_image_certificates"]) == ("ACTIVE", owner.chain.trusted)
    check(owner.cloud, id)


def test_rescue(owner):
    id = owner.boot(owner.image(), *owner.chain.trusted)["id"]
    unsigned = owner.image({})
    reply = owner.call.act(id, "rescue", {"rescue_image_ref": unsigned})
    assert reply.status == 200, reply
    found = owner.call.settled(id)
    assert found["status"] == "ERROR" and "it has no img_signature" in found["fault"]["message"]


def test_images_of_servers_have_no_signature(owner):
    id = owner.boot(owner.image(), *owner.chain.trusted)["id"]
    image = owner.call.act(id, "createImage", {"name": "copy"}, "2.45").json["image_id"]
    owner.call.settled(id)
    found = owner.call.get(f"/image/v2/images/{image}").json
    assert not [name for name in found if name.startswith("img_signature")]
