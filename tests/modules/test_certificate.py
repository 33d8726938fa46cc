# SPDX-License-Identifier: GPL-3.0-or-later
"""The module certificate: what it makes verifies, what fits stays, and what it cannot do it says."""

from __future__ import annotations

import datetime as dt
import json
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from ansible_collections.magnetar.compute.plugins.modules import certificate

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pathlib import Path


class Pki:
    """A folder with a CA; `make` runs the module."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, name: str, check: bool = False, **options: Any) -> dict[str, Any]:
        params = {
            "path": str(self.folder / f"{name}.pem"), "key_path": str(self.folder / f"{name}.key"), "common_name": name,
            **options, "_ansible_check_mode": check,
        }  # fmt: skip
        if "request" in params:
            del params["key_path"]
        done = subprocess.run(
            [sys.executable, certificate.__file__], check=False, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, input=json.dumps({"ANSIBLE_MODULE_ARGS": params}),
        )  # fmt: skip
        return json.loads(done.stdout)

    def ca(self, **options: Any) -> dict[str, Any]:
        return self.make("ca", valid_for=3650, **options)

    def leaf(self, name: str = "web", **options: Any) -> dict[str, Any]:
        signer = {"ca_path": str(self.folder / "ca.pem"), "ca_key_path": str(self.folder / "ca.key")}
        return self.make(name, **{**signer, **options})

    def read(self, name: str) -> x509.Certificate:
        return x509.load_pem_x509_certificate((self.folder / f"{name}.pem").read_bytes())


@pytest.fixture
def pki(tmp_path):
    return Pki(tmp_path)


def verify(pki, name, *options):
    subprocess.run(["openssl", "verify", "-x509_strict", *options, "-CAfile", pki.folder / "ca.pem",
                    pki.folder / f"{name}.pem"], check=True, stdout=subprocess.PIPE)  # fmt: skip


def test_made_once_and_verified_by_openssl(pki):
    assert pki.ca(check=True)["changed"]
    assert not list(pki.folder.iterdir())
    assert pki.ca()["reason"] == "there is none"
    options = {"names": ["web.example", "10.0.0.1", "fd00::1"], "usage": ["server", "client"]}
    made = pki.leaf(**options)
    assert made["changed"]
    assert made["certificate"] == (pki.folder / "web.pem").read_text()
    verify(pki, "web", "-purpose", "sslserver", "-verify_hostname", "web.example")
    verify(pki, "web", "-purpose", "sslclient", "-verify_ip", "fd00::1")
    for key in ("ca.key", "web.key"):
        assert stat.S_IMODE((pki.folder / key).stat().st_mode) == 0o600
    for again in (pki.ca(), pki.leaf(**options), pki.leaf(check=True, **options)):
        assert not again["changed"]
        assert again["diff"]["before"] == again["diff"]["after"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"names": ["other.example"]}, "its names differ"),
        ({"usage": ["server"]}, "its usage differs"),
        ({"common_name": "other"}, "it is for another name"),
        ({"renew_before": 366}, "it ends in 364 days"),
        ({"force": True}, "force is set"),
    ],
)
def test_replaced_when_it_does_not_fit(pki, change, reason):
    pki.ca()
    pki.leaf()
    key = (pki.folder / "web.key").read_bytes()
    before = pki.read("web")
    foreseen = pki.leaf(check=True, **change)
    assert foreseen["reason"] == reason
    assert pki.read("web") == before
    assert pki.leaf(**change)["reason"] == reason
    assert pki.read("web") != before
    assert (pki.folder / "web.key").read_bytes() == key
    verify(pki, "web")


def test_replaced_when_the_ca_is_another(pki):
    pki.ca()
    pki.leaf()
    for name in ("ca.pem", "ca.key"):
        (pki.folder / name).unlink()
    pki.ca()
    assert pki.leaf()["reason"] == "another CA signed it"
    verify(pki, "web")


def test_a_request_gives_its_key_and_nothing_else(pki):
    pki.ca()
    subprocess.run(["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-keyout", pki.folder / "own.key", "-out", pki.folder / "own.csr", "-subj", "/CN=root",
                    "-addext", "subjectAltName=DNS:evil.example"], check=True, stderr=subprocess.PIPE)  # fmt: skip
    request = (pki.folder / "own.csr").read_text()
    pki.leaf("host", request=request, names=["host.example"])
    made = pki.read("host")
    own = serialization.load_pem_private_key((pki.folder / "own.key").read_bytes(), None)
    assert made.public_key() == own.public_key()
    assert made.subject.rfc4514_string() == "CN=host"
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["host.example"]
    assert not pki.leaf("host", request=request, names=["host.example"])["changed"]
    broken = request.replace("M", "N", 1)
    assert "certificate request" in pki.leaf("host", request=broken)["msg"]


def test_a_certificate_never_outlives_its_ca(pki):
    pki.make("ca", valid_for=10, renew_before=1)
    pki.leaf(valid_for=400, renew_before=1)
    assert pki.read("web").not_valid_after_utc <= pki.read("ca").not_valid_after_utc
    assert pki.read("web").not_valid_before_utc < dt.datetime.now(dt.UTC)


def test_a_renewed_ca_keeps_what_it_signed(pki):
    pki.ca()
    pki.leaf()
    assert pki.ca(force=True)["changed"]
    verify(pki, "web")
    assert not pki.leaf()["changed"]


def test_the_passphrase_of_the_ca(pki):
    pki.ca(ca_passphrase="secret")
    assert b"ENCRYPTED" in (pki.folder / "ca.key").read_bytes()
    refused = pki.leaf()
    assert refused["failed"]
    assert "ca_passphrase" in refused["msg"]
    assert pki.leaf(ca_passphrase="secret")["changed"]
    assert b"ENCRYPTED" not in (pki.folder / "web.key").read_bytes()
    verify(pki, "web")


def test_what_cannot_be_done_is_said(pki):
    missing = pki.leaf()
    assert missing["failed"]
    assert "The CA is not there" in missing["msg"]
    pki.ca()
    assert "neither an address nor a DNS name" in pki.leaf(names=["\u00fc.example"])["msg"]
    (pki.folder / "web.pem").write_text("nonsense")
    assert "is not a certificate" in pki.leaf()["msg"]
    assert (pki.folder / "web.pem").read_text() == "nonsense"
