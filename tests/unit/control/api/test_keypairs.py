# SPDX-License-Identifier: GPL-3.0-or-later
"""os-keypairs: import and (before 2.92) making, fingerprints, whose they are, pages, quota."""

import base64
import hashlib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from .compute import Compute

LINE = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes(
    serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode() + " me@example"
MD5 = hashlib.md5(base64.b64decode(LINE.split()[1])).digest().hex(":")


def kept(caller, name="mine", version="2.10", **more):
    return caller.post("/os-keypairs", {"keypair": {"name": name, "public_key": LINE, **more}}, version)


def names(reply):
    return [one["keypair"]["name"] for one in reply.json["keypairs"]]


def test_a_public_key_is_kept_shown_and_deleted(compute):
    reply = kept(compute.alice)
    assert (reply.status, reply.json) == (201, {"keypair": {
        "name": "mine", "public_key": LINE, "fingerprint": MD5, "user_id": "alice", "type": "ssh"}})
    shown = compute.alice.get("/os-keypairs/mine", "2.10").json["keypair"]
    assert isinstance(shown.pop("id"), int)
    assert len(shown.pop("created_at")) == 26
    assert shown == {**reply.json["keypair"], "deleted": False, "deleted_at": None, "updated_at": None}
    assert compute.alice.get("/os-keypairs", "2.2").json == {"keypairs": [{"keypair": {
        "name": "mine", "public_key": LINE, "fingerprint": MD5, "type": "ssh"}}]}
    assert compute.alice.delete("/os-keypairs/mine", "2.2").status == 204
    again = compute.alice.delete("/os-keypairs/mine", "2.2")
    assert (again.status, again.message) == (404, "Keypair mine not found for user alice")
    assert compute.alice.get("/os-keypairs/mine").status == 404


def test_the_first_version_has_other_codes_and_no_type(small):
    reply = kept(small.alice, version="2.1")
    assert reply.status == 200
    assert "type" not in reply.json["keypair"]
    assert "type" not in small.alice.get("/os-keypairs/mine").json["keypair"]
    assert "type" not in small.alice.get("/os-keypairs").json["keypairs"][0]["keypair"]
    assert small.alice.delete("/os-keypairs/mine").status == 202
    assert kept(small.alice, version="2.1", type="ssh").status == 400
    assert kept(small.alice, version="2.9", user_id="alice").status == 400


def test_a_pair_is_made_on_request_and_its_private_half_given_once(small):
    reply = small.alice.post("/os-keypairs", {"keypair": {"name": "made"}}, "2.91")
    assert reply.status == 201
    pair = reply.json["keypair"]
    key = serialization.load_pem_private_key(pair["private_key"].encode(), None)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    assert pair["public_key"] == line.decode() + " Generated-by-Nova"
    assert pair["private_key"].startswith("-----BEGIN RSA PRIVATE KEY-----")
    shown = small.alice.get("/os-keypairs/made", "2.91").json["keypair"]
    assert "private_key" not in shown
    assert shown["fingerprint"] == pair["fingerprint"]


def test_no_pair_is_made_since_2_92(small):
    reply = small.alice.post("/os-keypairs", {"keypair": {"name": "made"}}, "2.92")
    assert reply.status == 400
    assert "keypair.public_key: is required" in reply.message
    assert kept(small.alice, "me@home.example", "2.92").status == 201
    assert kept(small.alice, "you@home.example", "2.91").status == 400


def test_a_certificate_is_kept_or_made_for_windows(small):
    reply = small.alice.post("/os-keypairs", {"keypair": {"name": "win", "type": "x509"}}, "2.2")
    pair = reply.json["keypair"]
    certificate = x509.load_pem_x509_certificate(pair["public_key"].encode())
    assert certificate.fingerprint(hashes.SHA1()).hex(":") == pair["fingerprint"]
    again = small.alice.post("/os-keypairs", {"keypair": {
        "name": "same", "type": "x509", "public_key": pair["public_key"]}}, "2.92")
    assert again.json["keypair"]["fingerprint"] == pair["fingerprint"]
    wrong = small.alice.post("/os-keypairs", {"keypair": {"name": "x", "type": "x509", "public_key": LINE}}, "2.92")
    assert wrong.status == 400


@pytest.mark.parametrize(("more", "named"), [
    ({"public_key": "ssh-rsa nonsense"}, "keypair.public_key"), ({"public_key": ""}, "keypair.public_key"),
    ({"public_key": 1}, "keypair.public_key"), ({"name": "a/b"}, "keypair.name"), ({"name": " a"}, "keypair.name"),
    ({"name": ""}, "keypair.name"), ({"name": "x" * 256}, "keypair.name"), ({"type": "gpg"}, "keypair.type"),
    ({"colour": "red"}, "keypair.colour"), ({"name": "a\u0000b"}, "keypair.name")])
def test_a_wrong_key_is_refused_by_name(small, more, named):
    reply = kept(small.alice, **{"version": "2.92", **more})
    assert reply.status == 400
    assert named in reply.message
    assert small.alice.get("/os-keypairs").json == {"keypairs": []}


def test_a_private_key_is_refused_and_not_repeated(small):
    key = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()).decode()
    reply = kept(small.alice, public_key=key)
    assert reply.status == 400
    assert "take it as exposed" in reply.message
    assert key.split("\n")[1] not in reply.message


def test_names_are_unique_for_each_user(compute):
    kept(compute.alice)
    again = kept(compute.alice)
    assert (again.status, again.message) == (409, "Key pair 'mine' already exists.")
    assert kept(compute.bob).status == 201


def test_others_keys_are_for_administrators(compute):
    kept(compute.alice)
    assert compute.bob.get("/os-keypairs").json == {"keypairs": []}
    assert compute.bob.get("/os-keypairs/mine").status == 404
    for path in ("/os-keypairs?user_id=alice", "/os-keypairs/mine?user_id=alice"):
        assert compute.bob.get(path, "2.10").status == 403
        assert compute.admin.get(path, "2.10").status == 200
        assert compute.admin.get(path, "2.9").status == (404 if "mine" in path else 200)
    assert kept(compute.bob, "his", user_id="alice").status == 403
    assert kept(compute.admin, "his", user_id="alice").json["keypair"]["user_id"] == "alice"
    assert compute.bob.delete("/os-keypairs/his?user_id=alice", "2.10").status == 403
    assert compute.admin.delete("/os-keypairs/his?user_id=alice", "2.10").status == 204
    assert names(compute.alice.get("/os-keypairs")) == ["mine"]


def test_pages_by_name(compute):
    for name in ("c", "a", "b"):
        kept(compute.alice, name)
    assert names(compute.alice.get("/os-keypairs?limit=1&marker=a", "2.34")) == ["a", "b", "c"]
    page = compute.alice.get("/os-keypairs?limit=2", "2.35")
    assert names(page) == ["a", "b"]
    assert page.json["keypairs_links"] == [
        {"rel": "next", "href": "http://cloud/v2.1/os-keypairs?limit=2&marker=b"}]
    rest = compute.alice.get("/os-keypairs?limit=2&marker=b", "2.35")
    assert names(rest) == ["c"]
    assert "keypairs_links" not in rest.json
    assert compute.alice.get("/os-keypairs?marker=none", "2.35").status == 400
    assert compute.alice.get("/os-keypairs?limit=-1", "2.35").status == 400


def test_unknown_parameters_are_refused_since_2_75(small):
    kept(small.alice)
    for path in ("/os-keypairs?colour=red", "/os-keypairs/mine?colour=red"):
        assert small.alice.get(path, "2.74").status == 200
        assert small.alice.get(path, "2.75").status == 400


def test_no_more_keys_than_the_quota(sqlite_three, tmp_path):
    from .compute import emptied
    api = Compute(sqlite_three, tmp_path, quota_key_pairs=1)
    assert kept(api.alice).status == 201
    reply = kept(api.alice, "second")
    assert (reply.status, reply.message) == (403, "Quota exceeded, too many key pairs.")
    assert api.alice.post("/os-keypairs", {"keypair": {"name": "third"}}).status == 403
    emptied(sqlite_three)


def test_a_list_is_one_query_however_long(small):
    for number in range(10):
        kept(small.alice, str(number))
    with small.counted() as seen:
        assert len(names(small.alice.get("/os-keypairs", "2.35"))) == 10
    assert len(seen) == 1


def test_old_key_types_are_refused(small):
    assert kept(small.alice, public_key="ssh-dss AAAAB3NzaC1kc3MAAACB").status == 400
