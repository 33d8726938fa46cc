# SPDX-License-Identifier: GPL-3.0-or-later
"""os-keypairs: the pairs that are made here (until 2.92), private keys, and how many queries a list is."""

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

LINE = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes(
    serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode() + " me@example"


def kept(caller, name="mine", version="2.10", **more):
    return caller.post("/os-keypairs", {"keypair": {"name": name, "public_key": LINE, **more}}, version)


def names(reply):
    return [one["keypair"]["name"] for one in reply.json["keypairs"]]


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


def test_a_private_key_is_refused_and_not_repeated(small):
    key = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()).decode()
    reply = kept(small.alice, public_key=key)
    assert reply.status == 400
    assert "take it as exposed" in reply.message
    assert key.split("\n")[1] not in reply.message


def test_a_list_is_one_query_however_long(small):
    for number in range(10):
        kept(small.alice, str(number))
    with small.counted() as seen:
        assert len(names(small.alice.get("/os-keypairs", "2.35"))) == 10
    assert len(seen) == 1
