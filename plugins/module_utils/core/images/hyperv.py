# SPDX-License-Identifier: GPL-3.0-or-later
"""Headers of VHD and VHDX, the disk formats of Virtual PC and Hyper-V.

A differencing disk names its parent, another file, and is refused. The checks read a fixed number of bytes, wherever
the disk claims that its tables are.
"""

from __future__ import annotations

import struct
from typing import Callable, Iterator

from ..errors import ImageRefused

#: Reads at an offset as many bytes as are asked for; fewer at the end of the content.
ReadAt = Callable[[int, int], bytes]

#: Length and signature of a VHD's footer. A dynamic VHD also begins with a copy of it.
FOOTER, COOKIE = 512, b"conectix"
#: Fields of a footer: signature, offset of the next header, virtual size in bytes, type, checksum.
_FOOTER = struct.Struct(">8s8xQ24xQ4xII")
_CHECKSUM_AT = 64
FIXED, DYNAMIC, DIFFERENCING = 2, 3, 4
#: The header of a dynamic VHD begins with this; the name of a parent is at an offset in it, in UTF-16.
SPARSE, _SPARSE_LENGTH, _PARENT_NAME = b"cxsparse", 1024, slice(64, 576)

#: Signature of a VHDX, and place and signature of the table of its regions and of its items of metadata.
VHDX, _REGIONS_AT, _REGIONS, _ITEMS = b"vhdxfile", 192 * 1024, b"regi", b"metadata"
#: Length of each of these two tables, and of one entry; each entry begins with a GUID.
_TABLE, _ENTRY = 64 * 1024, 32
_MOST_ENTRIES = 2047
#: GUIDs of the region with metadata and of items in it: parameters of the file, virtual size, size of a sector.
_METADATA = bytes.fromhex("06a27c8b90479a4bb8fe575f050f886e")
_PARAMETERS = bytes.fromhex("3767a1ca36fa434db3b633f0aa44e76b")
_SIZE = bytes.fromhex("2442a52f1bcd7648b2115dbed83bf4b8")
_SECTOR = bytes.fromhex("1dbf41816fa90947ba47f233a8faab5f")
#: Bit of the parameters: the disk has a parent.
_HAS_PARENT = 2
SECTOR_SIZE = 512


def is_fixed_vhd(read: ReadAt, size: int) -> bool:
    """Return whether content of *size* bytes is a VHD of fixed size: raw content with a footer behind it. Content that
    also begins with a footer is read as a dynamic VHD by qemu-img, so it is none.
    """
    if size <= FOOTER or size % FOOTER or read(0, len(COOKIE)) == COOKIE:
        return False
    footer = read(size - FOOTER, FOOTER)
    if len(footer) < FOOTER or not footer.startswith(COOKIE) or not _sum_fits(footer):
        return False
    _cookie, _next, virtual, kind, _sum = _FOOTER.unpack_from(footer)
    return bool(kind == FIXED and virtual == size - FOOTER)


def vhd_size(read: ReadAt, size: int) -> int:
    """Return the virtual size in bytes of a VHD. *read*: a function (offset, length) that reads the VHD. *size*: the
    bytes of the VHD file. Raises ``ImageRefused`` for a damaged disk, and for a differencing disk."""
    if is_fixed_vhd(read, size):
        return size - FOOTER
    footer = read(0, FOOTER)
    if len(footer) < FOOTER:
        raise _refused("VHD", "its footer is cut short")
    _cookie, at, virtual, kind, _sum = _FOOTER.unpack_from(footer)
    header = read(at, _SPARSE_LENGTH) if at <= size - _SPARSE_LENGTH else b""
    reasons = (
        (not _sum_fits(footer), "the checksum of its footer is wrong"),
        (kind == DIFFERENCING, _differencing(header)),
        (kind != DYNAMIC, "its type is %d, and %d (fixed) and %d (dynamic) are known" % (kind, FIXED, DYNAMIC)),
        (not header.startswith(SPARSE), "its header is missing: it is damaged or cut short"),
        (not virtual or virtual % SECTOR_SIZE, "its virtual size of %d bytes is not possible" % virtual),
    )
    _raise_first("VHD", reasons)
    return int(virtual)


def vhdx_size(read: ReadAt, size: int) -> int:
    """Return the virtual size in bytes of a VHDX. *read*: a function (offset, length) that reads the VHDX. *size*: the
    bytes of the VHDX file. Raises ``ImageRefused`` for a damaged disk, a differencing disk, and a disk with sectors of
    4 KiB."""
    regions = dict(_entries(read(_REGIONS_AT, _TABLE), _REGIONS, 8))
    if _METADATA not in regions:
        raise _refused("VHDX", "its table of regions is damaged or cut short")
    (begin,) = struct.unpack_from("<Q", regions[_METADATA], 16)
    items = dict(_entries(read(begin, _TABLE), _ITEMS, 10, "<H") if begin <= size - _TABLE else ())
    parameters = _item(read, begin, items.get(_PARAMETERS), "<4xI")
    virtual, sector = _item(read, begin, items.get(_SIZE), "<Q"), _item(read, begin, items.get(_SECTOR), "<I")
    _raise_first("VHDX", (
        (parameters & _HAS_PARENT, _differencing(b"")),
        (sector != SECTOR_SIZE, "its sectors have %d bytes, and servers have disks with sectors of %d" % (
            sector, SECTOR_SIZE)),
        (not virtual or virtual % SECTOR_SIZE, "its virtual size of %d bytes is not possible" % virtual),
    ))
    return virtual


def _sum_fits(footer: bytes) -> bool:
    """Return whether the checksum in the *footer* of a VHD is correct. The checksum is the complement of the sum of all
    other bytes of the footer."""
    (expected,) = struct.unpack_from(">I", footer, _CHECKSUM_AT)
    return bool(expected == ~sum(footer[:_CHECKSUM_AT] + footer[_CHECKSUM_AT + 4:FOOTER]) & 0xFFFFFFFF)


def _entries(table: bytes, signature: bytes, count_at: int, count_form: str = "<I") -> Iterator[tuple[bytes, bytes]]:
    """Yield (GUID, bytes) of each entry of *table*, a table of a VHDX. Yield nothing if *table* is too short or does
    not begin with *signature*. *count_at*, *count_form*: offset and ``struct`` format of the number of entries in
    *table*."""
    if len(table) < _TABLE or not table.startswith(signature):
        return
    (count,) = struct.unpack_from(count_form, table, count_at)
    first = 16 if signature == _REGIONS else _ENTRY
    for at in range(first, first + _ENTRY * min(count, _MOST_ENTRIES), _ENTRY):
        entry = table[at:at + _ENTRY]
        if len(entry) == _ENTRY:
            yield entry[:16], entry


def _item(read: ReadAt, begin: int, entry: bytes | None, form: str) -> int:
    """Return the number in an item of a VHDX's metadata. *entry*: the entry of this item in the metadata table;
    ``None`` if it is missing. *begin*: the offset of the metadata region. *form*: the ``struct`` format of the number.
    Raises ``ImageRefused``."""
    if entry is None:
        raise _refused("VHDX", "its metadata is damaged or cut short")
    offset, _length = struct.unpack_from("<II", entry, 16)
    data = read(begin + offset, struct.calcsize(form))
    if len(data) < struct.calcsize(form):
        raise _refused("VHDX", "its metadata is cut short")
    return int(struct.unpack(form, data)[0])


def _differencing(header: bytes) -> str:
    """Return the reason for refusing a differencing disk. *header*: the header of a VHD, which names the parent."""
    name = header[_PARENT_NAME].decode("utf-16-be", errors="replace").partition("\0")[0]
    plain = "".join(letter for letter in name if letter.isprintable())[:100]
    return ("it is a differencing disk, which has only the changes to its parent%s, another file. Merge the two in "
            "Hyper-V (Edit Disk, Merge), and give the result" % (" (%s)" % plain if plain else ""))


def _raise_first(format: str, reasons: tuple[tuple[object, str], ...]) -> None:
    for applies, why in reasons:
        if applies:
            raise _refused(format, why)


def _refused(format: str, why: str) -> ImageRefused:
    return ImageRefused("The %s is refused: %s." % (format, why))
