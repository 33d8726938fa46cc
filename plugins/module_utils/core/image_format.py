# SPDX-License-Identifier: GPL-3.0-or-later
"""Detection of an image's format from its content alone. ``inspect_image`` trusts nothing in the
content.

References that QEMU would follow out of the file are refused: backing files, data files, VMDK extents. Content that
matches two formats is refused too. Formats other than raw, qcow2, vmdk, vhd, vhdx, iso, aki and ari are refused by
name. Each byte is read a fixed number of times; compressed content is expanded by ``_FIRST`` bytes at most.
"""

from __future__ import annotations

import bz2
import lzma
import string
import struct
import zlib
from typing import Any, Callable, Mapping, NamedTuple, Optional

from .errors import ImageRefused
from .images import hyperv
from .images.hyperv import ReadAt
from .kinds.image import FORMATS

#: Bytes of the beginning that ``inspect_image`` needs: every header that it reads ends before this.
HEAD = 2 * 2**20
SECTOR = 512


class Facts(NamedTuple):
    """The result of an image inspection. *format*: one of ``FORMATS``. *virtual_size*: the size of the disk that a
    guest sees, in bytes.
    """

    format: str
    virtual_size: int


def inspect_image(head: bytes, size: int, claimed: Optional[str] = None, encrypted: bool = False,
                  read: Optional[ReadAt] = None) -> Facts:
    """Return the format and virtual size of an image of *size* bytes that begins with *head*: ``HEAD`` bytes, or the
    whole content. Raises only ``ImageRefused``, with the reason.

    *claimed*: the format that the user states; it only decides whether a compressed file may be a ramdisk. *encrypted*:
    if true, the image must be a qcow2 that is encrypted with LUKS; if false, encrypted images are refused. *read*: a
    function (offset, length) that reads the content, for formats whose tables may lie behind *head* (VHD, VHDX). By
    default, only *head* is read.
    """
    if not size:
        raise ImageRefused("The image is empty.")
    try:
        if encrypted and detect_image_format(head, claimed) != "qcow2":
            raise ImageRefused("The image is said to be encrypted (%s), and only a qcow2 can be." % SECRET_UUID)
        return _qcow2(head, size, LUKS) if encrypted else _inspect(head, size, claimed, read or _reader_of(head))
    except ImageRefused:
        raise
    except Exception as error:  # the content is hostile or damaged, and must not pass when a parser fails
        raise ImageRefused(f"The headers of the image are damaged ({type(error).__name__}), so it is not taken "
                           "in.") from error


def _inspect(head: bytes, size: int, claimed: Optional[str], read: ReadAt) -> Facts:
    name = detect_image_format(head, claimed)
    if name == "raw" and hyperv.is_fixed_vhd(read, size):
        name = "vhd"
    if name in CONVERTED:
        return Facts(name, converted_disk_size(name, size, read))
    return CHECKS[name](head, size) if name in CHECKS else Facts(name, size)


def _reader_of(content: bytes) -> ReadAt:
    """Return a function that reads *content* at an offset."""
    return lambda at, length: content[at:at + length]


def detect_image_format(head: bytes, claimed: Optional[str] = None) -> str:
    """Return the format of an image that begins with *head*, for callers that need the format before the whole image
    has arrived. Only ``inspect_image`` decides whether the content is safe. *claimed*: as in ``inspect_image``. Raises
    ``ImageRefused`` for formats that are not accepted.
    """
    names = disk_formats(head)
    boot = _boot_format(head, claimed)
    if len(names) > 1 or (boot and names):
        both = ", ".join(sorted({*names, *filter(None, [boot])}))
        raise ImageRefused(f"The content looks like several formats at once ({both}), which is how a hidden one is "
                           "smuggled in. Convert it with qemu-img to one format.")
    name = boot or (names.pop() if names else "raw")
    if name not in FORMATS:
        raise ImageRefused(f"Format {name} is not supported{ADVICE.get(name, '')}. Convert it: qemu-img convert -O "
                           "qcow2 OLD NEW.")
    if name == "vmdk" and not head.startswith(b"KDMV"):
        raise ImageRefused("The content is the descriptor of a VMDK, whose content is in other files (extents), which "
                           "could be any of the host. Convert it: qemu-img convert -O qcow2 OLD NEW.")
    return name


#: Advice for known formats that are refused.
ADVICE = {
    "luks": ": a guest cannot boot an encrypted image without its key",
}
#: Offset and bytes that identify a format for QEMU or a guest. A partition table alone (MBR, GPT) is raw.
SIGNATURES = (
    (0, b"QFI\xfb", "qcow2"), (0, b"QED\0", "qed"), (0, b"conectix", "vhd"), (0, b"vhdxfile", "vhdx"),
    (0, b"KDMV", "vmdk"), (0, b"LUKS\xba\xbe", "luks"), (64, b"\x7f\x10\xda\xbe", "vdi"),
    (32769, b"CD001", "iso"), (32769, b"NSR02", "iso"), (32769, b"NSR03", "iso"))
_TEXT = string.printable.encode() + b"\x1c\x1d\x1e\x1f"


def disk_formats(head: bytes) -> set[str]:
    """Return the disk formats whose signatures are in *head*, the beginning of an image; empty for raw content."""
    formats = {name for at, magic, name in SIGNATURES if head[at:at + len(magic)] == magic}
    return formats | {"vmdk"} if _describes_vmdk(head) else formats


def _describes_vmdk(head: bytes) -> bool:
    """Return whether *head*, the beginning of an image, is a VMDK descriptor, which refers to other files (extents)
    with the content.
    """
    text = head.split(b"\0", 1)[0].lower()
    return text.lstrip().startswith(b"# disk descriptorfile") or (
        not head[:SECTOR].translate(None, _TEXT) and b'createtype="' in text)


def _raw(head: bytes, size: int) -> Facts:
    for offset, magic, description in NOT_DISKS:
        if head[offset:offset + len(magic)] == magic:
            raise ImageRefused(
                f"The content is {description}, not a disk. Unpack it, and give the disk that is inside.")
    if OVF in head[:SECTOR * 8] and head.lstrip(b"\xef\xbb\xbf \r\n")[:1] == b"<":
        raise ImageRefused(f"The content is the description of a guest (.ovf), whose disks are other files. {PACK_OVF}")
    if size % SECTOR:
        raise ImageRefused(f"The content is no known format, and no raw disk either: its {size} bytes are not a "
                           f"multiple of {SECTOR}. Is it an error page, or cut short?")
    return Facts("raw", size)


#: Offset, magic and name of files that are often sent in place of a disk.
NOT_DISKS = (
    (257, b"ustar", "a tar archive (an OVA is one)"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
)
#: Namespace of a description of a guest, and what to do with a folder that has one.
OVF = b"http://schemas.dmtf.org/ovf/envelope/"
PACK_OVF = "Pack its folder to an OVA: tar -cf NAME.ova NAME.ovf *.vmdk, and give the OVA."


def _iso(_head: bytes, size: int) -> Facts:
    return Facts("iso", size)


#: Incompatible features of qcow2 (docs/interop/qcow2.txt of QEMU): bit, and the reason for refusing an image with it.
QCOW2_REFUSED = {
    0: "it was not closed cleanly (dirty); repair it with qemu-img check -r all",
    1: "it is marked corrupt; repair it with qemu-img check -r all",
    2: "it keeps its data in an external file, which could be any file of the host",
}
QCOW2_KNOWN = {*QCOW2_REFUSED, 3, 4}  # 3: compression type, 4: extended L2 entries


#: The property of an image with encrypted content (uuid of the key in the key manager), and the value in a qcow2's
#: header.
SECRET_UUID, LUKS = "hw_ephemeral_encryption_secret_uuid", 2


def is_encrypted(image: Mapping[str, Any]) -> bool:
    """Return whether the ``properties`` of an *image* declare encrypted content."""
    return SECRET_UUID in (image.get("properties") or {})


def _qcow2(head: bytes, size: int, crypt_wanted: int = 0) -> Facts:
    if len(head) < 104:
        raise ImageRefused("The qcow2 header is cut short.")
    (version, backing, backing_length, cluster_bits, virtual, crypt, l1_size, l1_at, refcounts_at,
     _clusters) = struct.unpack(">4xIQIIQIIQQI", head[:60])
    features = struct.unpack(">Q", head[72:80])[0] if version == 3 else 0
    reasons = [
        (version not in (2, 3), f"its version is {version}, and 2 and 3 are known"),
        (backing or backing_length, "it has a backing file, which could be any file of the host; flatten it with "
                                    "qemu-img convert"),
        (crypt != crypt_wanted, "it is encrypted" if not crypt_wanted else
         "it is not encrypted with LUKS, and %s says so" % SECRET_UUID),
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


#: The header of a sparse VMDK (QEMU's block/vmdk.c, VMDK4Header): magic, version, flags, and in sectors the capacity,
#: the size of a grain, and the place and size of the descriptor.
_VMDK = struct.Struct("<4sIIQQQQ")
#: Values of createType for VMDKs that are a single file (Nova's vmdk_allowed_types).
VMDK_TYPES = ("streamOptimized", "monolithicSparse")
#: Range of the descriptor that QEMU reads.
_DESCRIBED = slice(SECTOR, 21 * SECTOR)


def _vmdk(head: bytes, _size: int) -> Facts:
    """Return format and size of a VMDK image that begins with *head*. Raises ``ImageRefused`` unless it is a single
    sparse file, because QEMU would open all other files that a VMDK refers to.
    """
    if len(head) < _DESCRIBED.stop or not head.startswith(b"KDMV"):
        raise ImageRefused("The header of the VMDK is cut short.")
    _magic, version, _flags, capacity, _grain, at, length = _VMDK.unpack_from(head)
    text = head[_DESCRIBED].split(b"\0", 1)[0].decode("latin-1")
    lines = [line.strip() for line in text.splitlines()]
    descriptor = {name.strip().lower(): value.strip().strip('"') for name, mark, value in (
        line.partition("=") for line in lines) if mark}
    extents = [line.split() for line in lines if line.split(None, 1)[:1] in (["RW"], ["RDONLY"], ["NOACCESS"])]
    kinds = [line for line in lines if line.lower().replace(" ", "").startswith("createtype=")]
    reasons = [
        (version not in (1, 2, 3), "its version is %d, and 1 to 3 are known" % version),
        (not capacity, "its capacity is 0, so that other files (extents) have its content"),
        (at != 1 or not 0 < length <= 20, "its descriptor is not where QEMU reads it"),
        (len(kinds) != 1 or descriptor.get("createtype") not in VMDK_TYPES,
         "its createType is %s, and only %s are one file" % (
             descriptor.get("createtype", "not said")[:40], " and ".join(VMDK_TYPES))),
        ([extent[1:3] for extent in extents] != [[str(capacity), "SPARSE"]],
         "its descriptor must name one extent, the file itself (SPARSE), and names others"),
        ("parentfilenamehint" in text.lower() or descriptor.get("parentcid", "ffffffff").lower() != "ffffffff",
         "it stands on another file (a parent); merge the two with qemu-img convert"),
    ]
    for applies, why in reasons:
        if applies:
            raise ImageRefused("The VMDK is refused: %s." % why)
    return Facts("vmdk", capacity * SECTOR)


def converted_disk_size(format: str, size: int, read: ReadAt) -> int:
    """Return the virtual size in bytes of a disk in one of the formats ``CONVERTED``. *size*: bytes of the disk's
    content. *read*: a function (offset, length) that reads the content. Raises ``ImageRefused`` if the content is not
    an acceptable disk of this format."""
    return CONVERTED[format](read, size)


def _vmdk_size(read: ReadAt, size: int) -> int:
    return _vmdk(read(0, _DESCRIBED.stop), size).virtual_size


#: Function for the virtual size of each format that a host converts to qcow2.
CONVERTED: dict[str, Callable[[ReadAt, int], int]] = {
    "vmdk": _vmdk_size, "vhd": hyperv.vhd_size, "vhdx": hyperv.vhdx_size}


#: The longest name of a backing file (docs/interop/qcow2.txt).
NAME_MAX = 1023


class Qcow2Header(NamedTuple):
    """Fields of a qcow2 header: the size in bytes of the disk that a guest sees, the name of the backing file (``None``
    if there is none), and whether the content is encrypted.
    """

    virtual_size: int
    backing: Optional[bytes]
    encrypted: bool


def qcow2_header(head: bytes) -> Qcow2Header:
    """Return the header of a qcow2 disk that begins with *head*. A guest may have forged the header, so the caller must
    compare the name of the backing file with the file that the disk was created on. Raises ``ImageRefused`` for other
    formats, for a qcow2 with an external data file, and if the name of a backing file is not in *head*.
    """
    if len(head) < 72 or head[:4] != b"QFI\xfb":
        raise ImageRefused("It is no qcow2.")
    version, at, length, _bits, virtual, crypt = struct.unpack(">4xIQIIQI", head[:36])
    if version not in (2, 3):
        raise ImageRefused(f"The version of the qcow2 is {version}, and 2 and 3 are known.")
    if version == 3 and struct.unpack(">Q", head[72:80].ljust(8, b"\xff"))[0] >> 2 & 1:
        raise ImageRefused(f"The qcow2 is refused: {QCOW2_REFUSED[2]}.")
    if at and not 0 < length <= min(NAME_MAX, len(head) - at):
        raise ImageRefused("The qcow2 is refused: the name of its backing file is damaged.")
    return Qcow2Header(virtual, head[at:at + length] if at else None, bool(crypt))


#: Check of each disk format that a server can boot from as it is.
CHECKS: dict[str, Callable[[bytes, int], Facts]] = {"raw": _raw, "qcow2": _qcow2, "iso": _iso}


def _boot_format(head: bytes, claimed: Optional[str]) -> Optional[str]:
    """Return ``aki`` if *head* is the beginning of a kernel, ``ari`` for a ramdisk, otherwise ``None``. *claimed*: the
    format that the user states; ``ari`` makes any compressed file count as a ramdisk. Raises ``ImageRefused`` for a
    compressed file in which no ramdisk is found, except for lzma, whose signature is too short to be certain.
    """
    if _is_kernel(head):
        return "aki"
    if _is_cpio(head):
        return "ari"
    for magic, name, opener in COMPRESSIONS:
        if head.startswith(magic):
            if claimed == "ari" or (opener and _is_cpio(_beginning(head, opener))):
                return "ari"
            if name == "lzma":  # three bytes are no signature, so without a cpio inside it may be anything
                return None
            raise ImageRefused(
                f"The content is compressed with {name}, and " +
                ("no ramdisk (cpio) is inside. " if opener else "what is inside cannot be seen. ") +
                "Decompress a disk before you give it; for a ramdisk, say disk_format: ari.")
    return None


def _is_kernel(head: bytes) -> bool:
    """Return whether *head* is the beginning of a Linux kernel: a bzImage (boot protocol header at 0x202), or a PE file
    such as a kernel with EFI stub.
    """
    if head[0x1FE:0x200] == b"\x55\xaa" and head[0x202:0x206] == b"HdrS":
        return True
    if head[:2] != b"MZ" or len(head) < 0x40:
        return False
    (at,) = struct.unpack("<I", head[0x3C:0x40])
    return bool(head[at:at + 4] == b"PE\0\0")


def _is_cpio(head: bytes) -> bool:
    """Return whether *head* is the beginning of a cpio archive of the type newc, the format of an initramfs. Zero bytes
    before the archive are ignored.
    """
    return head.lstrip(b"\0")[:6] in (b"070701", b"070702")


def _beginning(head: bytes, opener: Callable[[bytes], bytes]) -> bytes:
    """Return the first bytes of the compressed content *head*, decompressed by the function *opener*; empty if the
    content is damaged.
    """
    try:
        return opener(head[:_COMPRESSED])
    except (OSError, zlib.error, lzma.LZMAError, EOFError, ValueError):
        return b""


_COMPRESSED = 64 * 1024  # bytes that are expanded
_FIRST = 4096  # limit of expanded bytes, however much there would be
_MEMORY = 256 * 2**20

#: Magic, name, and expansion of the first bytes (``None``: not in Python's library).
COMPRESSIONS: tuple[tuple[bytes, str, Optional[Callable[[bytes], bytes]]], ...] = (
    (b"\x1f\x8b", "gzip", lambda data: zlib.decompressobj(31).decompress(data, _FIRST)),
    (b"\xfd7zXZ\x00", "xz", lambda data: lzma.LZMADecompressor(memlimit=_MEMORY).decompress(data, _FIRST)),
    (b"BZh", "bzip2", lambda data: bz2.BZ2Decompressor().decompress(data, _FIRST)),
    (b"\x28\xb5\x2f\xfd", "zstd", None),
    (b"\x02\x21\x4c\x18", "lz4", None),
    (b"\x04\x22\x4d\x18", "lz4", None),
    (b"\x5d\x00\x00", "lzma",
     lambda data: lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=_MEMORY).decompress(data, _FIRST)),
)
