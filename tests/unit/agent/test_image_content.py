# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image is, from its bytes: good ones of every format, hostile ones, and any bytes at all."""

from __future__ import annotations

import gzip
import lzma
import random
import shutil
import struct
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_agent.images.content import HEAD, Facts, inspect
from magnetar_core.errors import ImageRefused

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20
LIMIT = 2 * 2**40
CPIO = b"070701" + b"0" * 104 + b"TRAILER!!!\0" + bytes(391)


def qcow2(version: int = 3, backing: int = 0, backing_length: int = 0, cluster_bits: int = 16, size: int = 10 * MIB,
          crypt: int = 0, l1_size: int = 1, l1: int = 196608, features: int = 0) -> bytes:
    """A qcow2 header, and room for the tables that it names."""
    head = struct.pack(">4sIQIIQIIQQIIQQQQII", b"QFI\xfb", version, backing, backing_length, cluster_bits, size, crypt,
                       l1_size, l1, 65536, 1, 0, 0, features, 0, 0, 4, 104)
    return head.ljust(262144, b"\0")


def mbr(type: int = 0x83) -> bytes:
    """A disk with one partition."""
    entry = struct.pack("<B3BB3BII", 0x80, 0, 2, 0, type, 0, 0, 0, 1, 2000)
    return (bytes(446) + entry + bytes(48) + b"\x55\xaa").ljust(MIB, b"\0")


def kernel() -> bytes:
    """The beginning of a bzImage."""
    head = bytearray(MIB)
    head[0x1FE:0x200], head[0x202:0x206] = b"\x55\xaa", b"HdrS"
    return bytes(head)


def pe() -> bytes:
    """The beginning of a kernel with an EFI stub only."""
    head = bytearray(4096)
    head[:2], head[0x3C:0x40], head[0x80:0x84] = b"MZ", struct.pack("<I", 0x80), b"PE\0\0"
    return bytes(head)


def iso() -> bytes:
    """The descriptor of an ISO 9660 volume."""
    found = bytearray(MIB)
    found[32768:32775] = b"\x01CD001\x01"
    found[32768 + 80:32768 + 88] = struct.pack("<L", 512) + struct.pack(">L", 512)
    found[32768 + 128:32768 + 132] = struct.pack("<H", 2048) + struct.pack(">H", 2048)
    return bytes(found)


def vmdk(extent: str) -> bytes:
    """A text descriptor that names an extent."""
    return (f'# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType="monolithicFlat"\n'
            f'RW 20480 FLAT "{extent}" 0\n').encode().ljust(1024, b"\n")


def look(data: bytes, claimed: str | None = None, limit: int = LIMIT) -> Facts:
    return inspect(data[:HEAD], len(data), limit, claimed)


@pytest.mark.parametrize(("data", "facts"), [
    (bytes(MIB), Facts("raw", MIB)),
    (mbr(), Facts("raw", MIB)),
    (mbr(0xEE), Facts("raw", MIB)),
    (qcow2(), Facts("qcow2", 10 * MIB)),
    (qcow2(version=2), Facts("qcow2", 10 * MIB)),
    (qcow2(features=1 << 3), Facts("qcow2", 10 * MIB)),
    (iso(), Facts("iso", MIB)),
    (mbr()[:512] + iso()[512:], Facts("iso", MIB)),
    (kernel(), Facts("aki", MIB)),
    (pe(), Facts("aki", 4096)),
    (CPIO, Facts("ari", len(CPIO))),
    (gzip.compress(CPIO, mtime=0), Facts("ari", len(gzip.compress(CPIO, mtime=0)))),
    (lzma.compress(CPIO), Facts("ari", len(lzma.compress(CPIO)))),
    (lzma.compress(CPIO, lzma.FORMAT_ALONE), Facts("ari", len(lzma.compress(CPIO, lzma.FORMAT_ALONE)))),
], ids=["raw", "mbr", "gpt", "qcow2", "qcow2 v2", "qcow2 zstd", "iso", "hybrid iso", "bzImage", "efi stub", "cpio",
        "gzip", "xz", "lzma"])
def test_taken(data: bytes, facts: Facts) -> None:
    assert look(data) == facts


@pytest.mark.parametrize(("data", "why"), [
    (b"", "empty"),
    (qcow2(backing=512, backing_length=11)[:512] + b"/etc/passwd".ljust(262144, b"\0"), "backing file"),
    (qcow2(features=1 << 2), "external file"),
    (qcow2(features=1 << 1), "corrupt"),
    (qcow2(features=1), "not closed cleanly"),
    (qcow2(features=1 << 40), "unknown here"),
    (qcow2(version=1), "version is 1"),
    (qcow2(crypt=2), "encrypted"),
    (qcow2(cluster_bits=63), "cluster size"),
    (qcow2(size=2**62), "image_max_virtual_bytes"),
    (qcow2(size=0), "virtual size is 0"),
    (qcow2(l1=2**50), "cut short"),
    (qcow2()[:60], "no known format|cut short"),
    (vmdk("/etc/passwd"), "vmdk is not supported.*extents"),
    (b"KDMV" + struct.pack("<IIQQQQIQQ", 1, 3, 20480, 128, 1, 20, 512, 0, 2**64 - 1) + bytes(65472), "vmdk"),
    (b"LUKS\xba\xbe\x00\x01" + bytes(65528), "luks is not supported"),
    (b"vhdxfile" + bytes(65528), "vhdx is not supported"),
    (b"conectix" + bytes(65528), "vhd is not supported"),
    (b"QED\0" + bytes(65532), "qed is not supported"),
    (qcow2()[:32768] + iso()[32768:], "several formats"),
    (bytes(257) + b"ustar" + bytes(250), "tar archive"),
    (b"PK\x03\x04" + bytes(508), "zip archive"),
    (b"<html>404</html>", "no known format|damaged"),
    (gzip.compress(bytes(MIB)), "compressed with gzip.*no ramdisk"),
    (b"\x28\xb5\x2f\xfd" + bytes(508), "compressed with zstd.*disk_format: ari"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_refused(data: bytes, why: str) -> None:
    with pytest.raises(ImageRefused, match=f"(?s){why}"):
        look(data)


def test_a_wrong_claim_is_refused_with_both_names() -> None:
    with pytest.raises(ImageRefused, match="says raw, and the content is qcow2"):
        look(qcow2(), "raw")
    assert look(b"\x28\xb5\x2f\xfd" + bytes(508), "ari").format == "ari"


def test_a_gzip_bomb_is_not_expanded() -> None:
    assert look(gzip.compress(CPIO + bytes(200 * MIB), 9)).format == "ari"


SEEDS: list[bytes] = [qcow2(), qcow2(version=2), mbr(), iso(), kernel(), pe(), CPIO, vmdk("x"), gzip.compress(CPIO),
                      lzma.compress(CPIO), lzma.compress(CPIO, lzma.FORMAT_ALONE), b"vhdxfile" + bytes(MIB),
                      b"KDMV" + bytes(4096), b"LUKS\xba\xbe" + bytes(4096)]


@pytest.mark.parametrize("seed", range(300))
def test_any_bytes_are_taken_or_refused(seed: int) -> None:
    """Whatever the headers are, the answer is facts or ``ImageRefused``, never another exception."""
    chance = random.Random(seed)
    data = bytearray(chance.choice(SEEDS))
    for _time in range(chance.randrange(1, 40)):
        at = chance.choice((chance.randrange(len(data)), chance.randrange(min(600, len(data)))))
        data[at:at + 8] = chance.choice((chance.randbytes(8), b"\xff" * 8, bytes(8)))
    data = data[:chance.choice((len(data), chance.randrange(len(data) + 1)))]
    with suppress(ImageRefused):
        assert look(bytes(data), chance.choice((None, "ari"))).format in ("raw", "qcow2", "iso", "aki", "ari")


@pytest.mark.skipif(not shutil.which("qemu-img"), reason="needs qemu-img")
@pytest.mark.parametrize("options", [["-f", "qcow2"], ["-f", "qcow2", "-o", "compat=0.10"],
                                     ["-f", "qcow2", "-o", "extended_l2=on"], ["-f", "raw"]], ids=" ".join)
def test_what_qemu_makes_is_taken(tmp_path: Path, options: list[str]) -> None:
    image = tmp_path / "image"
    subprocess.run(["qemu-img", "create", "-q", *options, image, "64M"], check=True)
    assert look(image.read_bytes()) == Facts(options[1], 64 * MIB)


@pytest.mark.skipif(not shutil.which("qemu-img"), reason="needs qemu-img")
@pytest.mark.parametrize("more", [["-b", "/etc/passwd", "-F", "raw"], ["-o", "data_file={}"]], ids=["backing", "data"])
def test_what_points_out_of_the_file_is_refused(tmp_path: Path, more: list[Any]) -> None:
    image = tmp_path / "image"
    arguments = [part.format(tmp_path / "data") for part in more]
    subprocess.run(["qemu-img", "create", "-q", "-u", "-f", "qcow2", *arguments, image, "64M"], check=True)
    with pytest.raises(ImageRefused, match="any file of the host"):
        look(image.read_bytes())
