# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image is, found from its bytes alone: ``inspect`` looks at the first 2 MiB and trusts nothing in them.

Disk formats are told by oslo.utils' format_inspector, which OpenStack wrote for hostile images (CVE-2024-32498).
Kernels and ramdisks are told by their magic. What QEMU would follow out of the file is refused: backing files, data
files, VMDK extents. Formats other than raw, qcow2, iso, aki and ari are refused by name.
"""

from __future__ import annotations

import bz2
import io
import logging
import lzma
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oslo_utils.imageutils import format_inspector

from magnetar_core.errors import ImageRefused

if TYPE_CHECKING:
    from collections.abc import Callable

#: How much of the beginning ``inspect`` wants: every header that it reads ends before this.
HEAD = 2 * 2**20
SECTOR = 512
_CHUNK = 64 * 1024

# Its warnings repeat what the refusal says; its errors are about content that is refused anyway.
logging.getLogger(format_inspector.__name__).setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Facts:
    """*format* is raw, qcow2, iso, aki or ari; *virtual_size* is what a guest sees of it, in bytes."""

    format: str
    virtual_size: int


def inspect(head: bytes, size: int, max_virtual: int, claimed: str | None = None) -> Facts:
    """What the content of *size* bytes that begins with *head* is. *head* has ``HEAD`` bytes, or all of it.

    *claimed* is the format that the user says; it decides nothing but whether a bare compressed file may be a ramdisk.
    Raises ``ImageRefused`` with the reason, whatever the bytes are, and nothing else.
    """
    if not size:
        raise ImageRefused("The image is empty.")
    try:
        facts = _inspect(head, size, claimed)
    except ImageRefused:
        raise
    except Exception as error:  # the content is hostile or damaged: a parser that trips over it must not pass it
        raise ImageRefused(f"The headers of the image are damaged ({type(error).__name__}), so it is not taken "
                           "in.") from error
    if facts.virtual_size > max_virtual:
        raise ImageRefused(
            f"The image claims a virtual size of {facts.virtual_size} bytes, and this host takes images up to "
            f"{max_virtual} bytes. If the claim is right, raise image_max_virtual_bytes in the agent's settings.")
    if claimed not in (None, facts.format):
        raise ImageRefused(f"disk_format says {claimed}, and the content is {facts.format}. Give the right "
                           "disk_format, or leave it out: it is found from the content.")
    return facts


def _inspect(head: bytes, size: int, claimed: str | None) -> Facts:
    names = _formats(head)
    boot = _boot_format(head, claimed)
    if len(names) > 1 or (boot and names):
        both = ", ".join(sorted({*names, *filter(None, [boot])}))
        raise ImageRefused(f"The content looks like several formats at once ({both}), which is how a hidden one is "
                           "smuggled in. Convert it with qemu-img to one format.")
    if boot:
        return Facts(boot, size)
    name = names.pop() if names else "raw"
    if name not in CHECKS:
        raise ImageRefused(f"Format {name} is not supported{ADVICE.get(name, '')}. Convert it: qemu-img convert -O "
                           "qcow2 OLD NEW.")
    return CHECKS[name](head, size)


#: Why formats that are known are not taken in, where there is more to say.
ADVICE = {
    "vmdk": ": a VMDK can name further files (extents) of the host",
    "luks": ": a guest cannot boot an encrypted image without its key",
}


def _formats(head: bytes) -> set[str]:
    """Formats whose signatures the content bears; a partition table alone (MBR, GPT) is raw, and so is none."""
    wrapper = format_inspector.InspectWrapper(io.BytesIO(head))
    while wrapper.read(_CHUNK):
        pass
    wrapper.close()
    found = {str(match) for match in wrapper.formats or ()} - {"raw", "gpt"}
    if head.lstrip()[:21].lower() == b"# disk descriptorfile":
        found.add("vmdk")
    return found


def _raw(head: bytes, size: int) -> Facts:
    for offset, magic, what in NOT_DISKS:
        if head[offset:offset + len(magic)] == magic:
            raise ImageRefused(f"The content is {what}, not a disk. Unpack it, and give the disk that is inside.")
    if size % SECTOR:
        raise ImageRefused(f"The content is no known format, and no raw disk either: its {size} bytes are not a "
                           f"multiple of {SECTOR}. Is it an error page, or cut short?")
    return Facts("raw", size)


#: Offset, magic and name of what is often given in place of a disk.
NOT_DISKS = (
    (257, b"ustar", "a tar archive (an OVA is one)"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
)


def _iso(_head: bytes, size: int) -> Facts:
    return Facts("iso", size)


#: Incompatible features of qcow2 (docs/interop/qcow2.txt of QEMU): bit, and why an image with it is refused.
QCOW2_REFUSED = {
    0: "it was not closed cleanly (dirty); repair it with qemu-img check -r all",
    1: "it is marked corrupt; repair it with qemu-img check -r all",
    2: "it keeps its data in an external file, which could be any file of the host",
}
QCOW2_KNOWN = {*QCOW2_REFUSED, 3, 4}  # 3: compression type, 4: extended L2 entries


def _qcow2(head: bytes, size: int) -> Facts:
    if len(head) < 104:
        raise ImageRefused("The qcow2 header is cut short.")
    (version, backing, backing_length, cluster_bits, virtual, crypt, l1_size, l1_at, refcounts_at,
     _clusters) = struct.unpack(">4xIQIIQIIQQI", head[:60])
    features = struct.unpack(">Q", head[72:80])[0] if version == 3 else 0
    reasons = [
        (version not in (2, 3), f"its version is {version}, and 2 and 3 are known"),
        (backing or backing_length, "it has a backing file, which could be any file of the host; flatten it with "
                                    "qemu-img convert"),
        (crypt, "it is encrypted"),
        (not 9 <= cluster_bits <= 21, f"its cluster size of 2^{cluster_bits} bytes is out of range"),
        *((features >> bit & 1, why) for bit, why in QCOW2_REFUSED.items()),
        (any(features >> bit & 1 for bit in range(64) if bit not in QCOW2_KNOWN),
         f"it uses features that are unknown here ({features:#x})"),
        (not virtual, "its virtual size is 0"),
        (max(l1_at + 8 * l1_size, refcounts_at) > size, "its tables lie beyond its end: it is cut short"),
    ]
    for applies, why in reasons:
        if applies:
            raise ImageRefused(f"The qcow2 image is refused: {why}.")
    return Facts("qcow2", virtual)


#: Check of each disk format that is taken in.
CHECKS: dict[str, Callable[[bytes, int], Facts]] = {"raw": _raw, "qcow2": _qcow2, "iso": _iso}


def _boot_format(head: bytes, claimed: str | None) -> str | None:
    """``aki`` for a kernel, ``ari`` for a ramdisk, else ``None``."""
    if _kernel(head):
        return "aki"
    if _cpio(head):
        return "ari"
    for magic, name, opener in COMPRESSIONS:
        if head.startswith(magic):
            if claimed == "ari" or (opener and _cpio(_beginning(head, opener))):
                return "ari"
            if name == "lzma":  # three bytes are no signature: without a cpio inside it is whatever else it is
                return None
            raise ImageRefused(
                f"The content is compressed with {name}, and " +
                ("no ramdisk (cpio) is inside. " if opener else "what is inside cannot be seen. ") +
                "Decompress a disk before you give it; for a ramdisk, say disk_format: ari.")
    return None


def _kernel(head: bytes) -> bool:
    """A Linux bzImage (boot protocol header at 0x202), or a PE file such as a kernel with an EFI stub."""
    if head[0x1FE:0x200] == b"\x55\xaa" and head[0x202:0x206] == b"HdrS":
        return True
    if head[:2] != b"MZ" or len(head) < 0x40:
        return False
    (at,) = struct.unpack("<I", head[0x3C:0x40])
    return bool(head[at:at + 4] == b"PE\0\0")


def _cpio(head: bytes) -> bool:
    """A newc cpio archive, which is what an initramfs is; it may have zeros in front."""
    return head.lstrip(b"\0")[:6] in (b"070701", b"070702")


def _beginning(head: bytes, opener: Callable[[bytes], bytes]) -> bytes:
    """The first bytes of compressed content; nothing when it is damaged."""
    try:
        return opener(head[:_CHUNK])
    except (OSError, zlib.error, lzma.LZMAError, EOFError, ValueError):
        return b""


_FIRST = 4096  # decompressed bytes that are looked at, however much the content would expand to
_MEMORY = 256 * 2**20

#: Magic, name, and how to see the first bytes of what is inside (``None``: not with Python's library).
COMPRESSIONS: tuple[tuple[bytes, str, Callable[[bytes], bytes] | None], ...] = (
    (b"\x1f\x8b", "gzip", lambda data: zlib.decompressobj(31).decompress(data, _FIRST)),
    (b"\xfd7zXZ\x00", "xz", lambda data: lzma.LZMADecompressor(memlimit=_MEMORY).decompress(data, _FIRST)),
    (b"BZh", "bzip2", lambda data: bz2.BZ2Decompressor().decompress(data, _FIRST)),
    (b"\x28\xb5\x2f\xfd", "zstd", None),
    (b"\x02\x21\x4c\x18", "lz4", None),
    (b"\x04\x22\x4d\x18", "lz4", None),
    (b"\x5d\x00\x00", "lzma",
     lambda data: lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=_MEMORY).decompress(data, _FIRST)),
)
