# SPDX-License-Identifier: GPL-3.0-or-later
"""The beginnings of images of every sort, for tests."""

from __future__ import annotations

import struct

MIB = 2**20
CPIO = b"070701" + b"0" * 104 + b"TRAILER!!!\0" + bytes(391)


def zeros(size: int) -> bytes:
    """An empty disk."""
    return bytes(size)


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


def sparse_vmdk(capacity: int = 8192, type: str = "monolithicSparse", version: int = 1, at: int = 1, extent: str = "",
                parent: str = "ffffffff", more: str = "") -> bytes:
    """One file with its descriptor inside, as qemu-img makes it, of *capacity* sectors."""
    text = (f'# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID={parent}\n'
            f'{f"createType={chr(34)}{type}{chr(34)}" if type else ""}\n# Extent description\n'
            f'{extent or f"RW {capacity} SPARSE {chr(34)}a.vmdk{chr(34)}"}\n{more}\n')
    header = struct.pack("<4sIIQQQQ", b"KDMV", version, 3, capacity, 128, at, 20)
    return header.ljust(512, b"\0") + text.encode().ljust(65024, b"\0")


def vhd(kind: int = 3, size: int = MIB, header: str = "cxsparse", parent: str = "", damaged: bool = False) -> bytes:
    """A VHD as qemu-img makes it: of fixed size (*kind* 2), dynamic (3) or differencing (4)."""
    fixed = kind == 2
    footer = bytearray(struct.pack(">8sIIQI4sIIQQIII", b"conectix", 2, 0x10000, 2**64 - 1 if fixed else 512, 0, b"win ",
                                   0x60001, 0x5769326B, size, size, 0, kind, 0).ljust(512, b"\0"))
    footer[64:68] = struct.pack(">I", (~sum(footer) + damaged) & 0xFFFFFFFF)
    if fixed:
        return bytes(size) + bytes(footer)
    dynamic = header.encode().ljust(64, b"\0") + parent.encode("utf-16-be")
    return bytes(footer) + dynamic.ljust(1024, b"\0") + b"\xff" * 512 + bytes(footer)


def vhdx(size: int = MIB, flags: int = 0, sector: int = 512, at: int = 2 * MIB, items: int = 3) -> bytes:
    """A VHDX with its table of regions, and metadata at the offset *at*."""
    data = bytearray(at + 2 * 65536)
    data[:8] = b"vhdxfile"
    region = bytes.fromhex("06a27c8b90479a4bb8fe575f050f886e") + struct.pack("<QII", at, MIB, 1)
    data[192 * 1024:192 * 1024 + 16 + 32] = struct.pack("<4sIII", b"regi", 0, 1, 0) + region
    values = (("3767a1ca36fa434db3b633f0aa44e76b", struct.pack("<II", MIB, flags)),
              ("2442a52f1bcd7648b2115dbed83bf4b8", struct.pack("<Q", size)),
              ("1dbf41816fa90947ba47f233a8faab5f", struct.pack("<I", sector)))[:items]
    data[at:at + 32] = struct.pack("<8sHH20x", b"metadata", 0, len(values))
    for number, (guid, value) in enumerate(values):
        place, offset = at + 32 * (number + 1), 65536 + 16 * number
        data[place:place + 32] = bytes.fromhex(guid) + struct.pack("<IIII", offset, len(value), 0, 0)
        data[at + offset:at + offset + len(value)] = value
    return bytes(data)
