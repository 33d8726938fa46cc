# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image is, from its bytes: cases in tests/cases/image_format.yml, any bytes at all, what QEMU makes, and that
nothing passes of which OpenStack's inspector knows another format."""

from __future__ import annotations

import bz2
import gzip
import io
import logging
import lzma
import random
import shutil
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from oslo_utils.imageutils import format_inspector

from magnetar_core.errors import ImageRefused
from magnetar_core.image_format import HEAD, Facts, detect_image_format, disk_formats, inspect_image, qcow2_header
from magnetar_core.kinds.image import FORMATS

from .images import CPIO, MIB, iso, kernel, mbr, pe, qcow2, sparse_vmdk, vhd, vhdx, vmdk, zeros

CASES = yaml.safe_load((Path(__file__).parents[2] / "cases/image_format.yml").read_text(encoding="utf-8"))
BUILDERS = {"qcow2": qcow2, "mbr": mbr, "iso": iso, "kernel": kernel, "pe": pe, "vmdk": vmdk,
            "sparse_vmdk": sparse_vmdk, "vhd": vhd, "vhdx": vhdx, "cpio": lambda: CPIO, "zeros": zeros}
COMPRESSIONS = {"gzip": partial(gzip.compress, mtime=0), "xz": lzma.compress, "bzip2": bz2.compress,
                "lzma": partial(lzma.compress, format=lzma.FORMAT_ALONE)}


def content(told: dict[str, Any]) -> bytes:
    """The content of a case: what a builder makes, with bytes *at* offsets, compressed, *cut* to a length."""
    [(name, args)] = [(key, args) for key, args in told.items() if key in BUILDERS]
    data = bytearray(BUILDERS[name](**args))
    for at, text in told.get("at", {}).items():
        data[at:at + len(text)] = text.encode("latin-1")
    if compression := told.get("compressed"):
        data = COMPRESSIONS[compression](bytes(data))
    return bytes(data[:told.get("cut")])


def look(data: bytes, claimed: str | None = None) -> Facts:
    return inspect_image(data[:HEAD], len(data), claimed, read=lambda at, length: data[at:at + length])


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    data = content(case["content"])
    if "refused" in case:
        with pytest.raises(ImageRefused, match=f"(?s){case['refused']}"):
            look(data, case.get("claimed"))
    else:
        assert look(data, case.get("claimed")) == Facts(case["format"], case.get("virtual_size", len(data)))
        assert detect_image_format(data, case.get("claimed")) == case.get("early", case["format"])


def test_a_gzip_bomb_is_not_expanded() -> None:
    assert look(gzip.compress(CPIO + bytes(200 * MIB), 9)).format == "ari"


@pytest.mark.parametrize("length", [1, 4, 7, 8, 31, 71, 72, 79, 103])
def test_every_prefix_of_a_header_is_refused(length: int) -> None:
    with pytest.raises(ImageRefused):
        look(qcow2()[:length])


def test_a_dynamic_vhd_that_ends_as_a_fixed_one_is_read_as_dynamic() -> None:
    """As qemu-img reads it, which looks at the beginning first."""
    dynamic = vhd(size=2 * MIB).ljust(4096, b"\0")
    assert look(dynamic + vhd(kind=2, size=len(dynamic))[-512:]) == Facts("vhd", 2 * MIB)
    with pytest.raises(ImageRefused, match="differencing"):
        look(vhd(kind=4).ljust(4096, b"\0") + vhd(kind=2, size=4096)[-512:])


SEEDS: list[bytes] = [qcow2(), qcow2(version=2), mbr(), iso(), kernel(), pe(), CPIO, vmdk("x"), gzip.compress(CPIO),
                      lzma.compress(CPIO), lzma.compress(CPIO, lzma.FORMAT_ALONE), b"vhdxfile" + bytes(MIB),
                      vhd(), vhd(kind=2), vhd(kind=4), vhdx(),
                      b"KDMV" + bytes(4096), sparse_vmdk(), b"LUKS\xba\xbe" + bytes(4096)]


def damaged(seed: int) -> bytes:
    """An image with a few bytes changed, often in its header, and often cut."""
    chance = random.Random(seed)
    data = bytearray(chance.choice(SEEDS))
    for _time in range(chance.randrange(1, 40)):
        at = chance.choice((chance.randrange(len(data)), chance.randrange(min(600, len(data)))))
        data[at:at + 8] = chance.choice((chance.randbytes(8), b"\xff" * 8, bytes(8)))
    return bytes(data[:chance.choice((len(data), chance.randrange(len(data) + 1)))])


@pytest.mark.parametrize("seed", range(300))
def test_any_bytes_are_taken_or_refused(seed: int) -> None:
    """Whatever the headers are, the answer is facts or ``ImageRefused``, never another exception."""
    with suppress(ImageRefused):
        assert look(damaged(seed), (None, "ari")[seed % 2]).format in FORMATS


@pytest.mark.parametrize("data", [*SEEDS, *(content(case["content"]) for case in CASES), *map(damaged, range(300))],
                         ids=lambda _data: "")
def test_whatever_openstack_knows_is_known(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(format_inspector.__name__), "disabled", True)
    wrapper = format_inspector.InspectWrapper(io.BytesIO(data[:HEAD]))
    while wrapper.read(65536):
        pass
    wrapper.close()
    with suppress(AttributeError):  # its own: text that is no ASCII
        assert {str(found) for found in wrapper.formats or ()} - {"raw", "gpt"} <= disk_formats(data[:HEAD])


@pytest.mark.skipif(not shutil.which("qemu-img"), reason="needs qemu-img")
@pytest.mark.parametrize("options", [["-f", "qcow2"], ["-f", "qcow2", "-o", "compat=0.10"],
                                     ["-f", "qcow2", "-o", "extended_l2=on"], ["-f", "raw"], ["-f", "vmdk"],
                                     ["-f", "vmdk", "-o", "subformat=streamOptimized"], ["-f", "vhdx"],
                                     ["-f", "vhdx", "-o", "subformat=fixed"], ["-f", "vpc", "-o", "force_size=on"],
                                     ["-f", "vpc", "-o", "force_size=on,subformat=fixed"]], ids=" ".join)
def test_what_qemu_makes_is_taken(tmp_path: Path, options: list[str]) -> None:
    image = tmp_path / "image"
    subprocess.run(["qemu-img", "create", "-q", *options, image, "64M"], check=True)
    assert look(image.read_bytes()) == Facts({"vpc": "vhd"}.get(options[1], options[1]), 64 * MIB)


@pytest.mark.skipif(not shutil.which("qemu-img"), reason="needs qemu-img")
@pytest.mark.parametrize("more", [["-b", "/etc/passwd", "-F", "raw"], ["-o", "data_file={}"]], ids=["backing", "data"])
def test_what_points_out_of_the_file_is_refused(tmp_path: Path, more: list[Any]) -> None:
    image = tmp_path / "image"
    arguments = [part.format(tmp_path / "data") for part in more]
    subprocess.run(["qemu-img", "create", "-q", "-u", "-f", "qcow2", *arguments, image, "64M"], check=True)
    with pytest.raises(ImageRefused, match="any file of the host"):
        look(image.read_bytes())


@pytest.mark.skipif(not shutil.which("qemu-img"), reason="needs qemu-img")
@pytest.mark.parametrize("format", ["monolithicFlat", "twoGbMaxExtentSparse", "twoGbMaxExtentFlat"])
def test_a_vmdk_of_several_files_is_refused(tmp_path: Path, format: str) -> None:
    image = tmp_path / "image"
    subprocess.run(["qemu-img", "create", "-q", "-f", "vmdk", "-o", f"subformat={format}", image, "64M"], check=True)
    with pytest.raises(ImageRefused, match="extents"):
        look(image.read_bytes())


# Headers of disks that guests have had ----------------------------------------------------------------------------
NAMED = qcow2(backing=512, backing_length=11)[:512] + b"/etc/passwd"


@pytest.mark.parametrize(("head", "seen"), [
    (qcow2(), (10 * MIB, None, False)), (qcow2(version=2), (10 * MIB, None, False)),
    (qcow2(version=2, features=4), (10 * MIB, None, False)), (qcow2(features=1), (10 * MIB, None, False)),
    (NAMED, (10 * MIB, b"/etc/passwd", False)), (qcow2(backing_length=11), (10 * MIB, None, False)),
    (qcow2(size=2**63), (2**63, None, False)), (qcow2(crypt=2), (10 * MIB, None, True)),
])
def test_a_header_of_a_disk(head: bytes, seen: tuple[int, bytes | None, bool]) -> None:
    assert qcow2_header(head) == seen


@pytest.mark.parametrize(("head", "why"), [
    (b"", "no qcow2"), (bytes(512), "no qcow2"), (qcow2()[:71], "no qcow2"), (qcow2(version=4), "version"),
    (qcow2(features=4), "external file"), (qcow2()[:76], "external file"), (NAMED[:-1], "damaged"),
    (qcow2(backing=512), "damaged"), (qcow2(backing=512, backing_length=1024), "damaged"),
    (qcow2(backing=2**63, backing_length=1), "damaged"), (qcow2(backing=2**21, backing_length=9), "damaged"),
])
def test_a_header_that_is_refused(head: bytes, why: str) -> None:
    with pytest.raises(ImageRefused, match=why):
        qcow2_header(head)


def test_any_header_is_told_or_refused() -> None:
    draw = random.Random(15)
    for _time in range(2000):
        head = bytearray(NAMED)
        for _change in range(draw.randrange(1, 9)):
            head[draw.randrange(4, 104)] = draw.randrange(256)
        with suppress(ImageRefused):
            assert qcow2_header(bytes(head[:draw.choice([72, 80, 104, 523])])).virtual_size >= 0
