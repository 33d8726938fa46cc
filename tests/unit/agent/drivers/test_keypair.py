# SPDX-License-Identifier: GPL-3.0-or-later
"""Public keys as OpenSSH makes them, and what is refused."""

from __future__ import annotations

import base64
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest

from magnetar_agent.drivers.keypair import normalize_public_key
from magnetar_core.errors import Immutable, InvalidField

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.agent.conftest import Host

needs_ssh = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen")
KINDS = [("ed25519", None), ("ecdsa", "256"), ("ecdsa", "384"), ("ecdsa", "521"), ("rsa", "1024"), ("rsa", "2048")]


def made(folder: Path, kind: str, bits: str | None) -> Path:
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, *(["-b", bits] if bits else []), "-N", "", "-C", "me at home", "-f",
                    key], check=True)
    return key


def blob(*parts: bytes) -> str:
    return base64.b64encode(b"".join(struct.pack(">I", len(part)) + part for part in parts)).decode()


ED25519 = "ssh-ed25519 " + blob(b"ssh-ed25519", bytes(range(32)))


@needs_ssh
@pytest.mark.parametrize(("kind", "bits"), KINDS)
def test_fingerprints_are_those_of_ssh_keygen(host: Host, tmp_path: Path, kind: str, bits: str | None) -> None:
    key = made(tmp_path, kind, bits)
    shown = host.ensure("keypair", "me", {"public_key": key.with_suffix(".pub").read_text()}).resource
    for field, algorithm in (("fingerprint", "sha256"), ("fingerprint_md5", "md5")):
        said = subprocess.run(["ssh-keygen", "-l", "-E", algorithm, "-f", key], check=True, capture_output=True,
                              text=True).stdout.split()[1]
        assert said == (f"MD5:{shown[field]}" if algorithm == "md5" else shown[field])
    assert shown["public_key"] == key.with_suffix(".pub").read_text().strip()


@needs_ssh
def test_a_private_key_is_refused_and_not_repeated(host: Host, tmp_path: Path) -> None:
    private = made(tmp_path, "ed25519", None).read_text()
    with pytest.raises(InvalidField, match="exposed") as caught:
        host.ensure("keypair", "me", {"public_key": private})
    assert private.splitlines()[1][:20] not in str(caught.value.as_dict())
    assert host.agent.host.documents.list("keypair") == []


def test_security_keys_are_taken() -> None:
    for type, *parts in (("sk-ssh-ed25519@openssh.com", bytes(32), b"ssh:"),
                         ("sk-ecdsa-sha2-nistp256@openssh.com", b"nistp256", b"\4" + bytes(64), b"ssh:")):
        assert normalize_public_key(f"{type} {blob(type.encode(), *parts)}").startswith(type)


def test_the_normal_form_has_one_blank_between_its_parts() -> None:
    assert normalize_public_key(f"  {ED25519.replace(' ', chr(9))}   me   \n") == f"{ED25519} me"
    assert normalize_public_key(ED25519) == ED25519


MODULUS = b"\0" + b"\xff" * 128


@pytest.mark.parametrize(("text", "why"), [
    ("ssh-dss AAAAB3NzaC1kc3MAAACBAP", "ssh-dss, which is broken"),
    ("ssh-ed25519-cert-v01@openssh.com AAAA", "certificate"),
    (f'command="ls" {ED25519}', "options"),
    (f"{ED25519}\n{ED25519}", "one line"),
    (f"{ED25519} a\x1b[0mb", "printable"),
    ("---- BEGIN SSH2 PUBLIC KEY ----", "ssh-keygen -i"),
    ("-----BEGIN RSA PRIVATE KEY-----", "exposed"),
    ("hello, world, this is no key", "must begin with one of"),
    ("ssh-ed25519", "cut short|base64"),
    ("ssh-ed25519 AAA!", "base64 is not valid"),
    ("ssh-ed25519 AAAé", "base64 is not valid"),
    (ED25519[:-8], "base64|cut short"),
    ("ssh-ed25519 " + blob(b"ssh-rsa", bytes(32)), "another type"),
    ("ssh-ed25519 " + blob(b"ssh-ed25519", bytes(31)), "32 bytes"),
    ("ssh-ed25519 " + blob(b"ssh-ed25519", bytes(32), b"more"), "something follows"),
    ("ssh-rsa " + blob(b"ssh-rsa", b"\1\0\1", MODULUS[:65]), "1024 to 16384 bits.*has 512"),
    ("ssh-rsa " + blob(b"ssh-rsa", b"\1\0\0", MODULUS), "exponent"),
    ("ssh-rsa " + blob(b"ssh-rsa", b"\1\0\1", b"\0" + MODULUS), "normal form"),
    ("ssh-rsa " + blob(b"ssh-rsa", b"\1\0\1", b"\xff" * 128), "normal form"),
    ("ecdsa-sha2-nistp256 " + blob(b"ecdsa-sha2-nistp256", b"nistp384", b"\4" + bytes(64)), "point of nistp256"),
    ("ecdsa-sha2-nistp256 " + blob(b"ecdsa-sha2-nistp256", b"nistp256", b"\2" + bytes(32)), "point of nistp256"),
    ("sk-ssh-ed25519@openssh.com " + blob(b"sk-ssh-ed25519@openssh.com", bytes(32), b""), "application"),
], ids=lambda text: text[:40])
def test_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidField, match=why) as caught:
        normalize_public_key(text)
    assert caught.value.details["field"] == "public_key"


def test_a_key_does_not_change_in_silence(host: Host) -> None:
    assert host.ensure("keypair", "me", {"public_key": ED25519}).changed
    assert not host.ensure("keypair", "me", {"public_key": ED25519 + "\n"}).changed
    other = "ssh-ed25519 " + blob(b"ssh-ed25519", bytes(32))
    with pytest.raises(Immutable, match="public_key"):
        host.ensure("keypair", "me", {"public_key": other})
    assert host.ensure("keypair", "me", {"public_key": other}, on_immutable="recreate").resource["public_key"] == other
    assert host.ensure("keypair", "me", None).changed
