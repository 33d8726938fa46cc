# SPDX-License-Identifier: GPL-3.0-or-later
"""What content is, told from its bytes: oslo.utils' format_inspector, which OpenStack wrote for hostile images.

Refused is what QEMU would follow out of the file (backing files, data files), what looks like two formats at once, and
what differs from the disk_format that its owner says. The agents look again, and closer, before they use an image.
"""

from __future__ import annotations

import io
import logging

from oslo_utils.imageutils import format_inspector

#: How much of the beginning is looked at: all headers end before this.
HEAD = 2 * 2**20
SECTOR = 512
#: The disk formats that agents boot servers from, and kernels (aki) and ramdisks (ari).
DISKS, BOOT = ("raw", "qcow2", "iso"), ("aki", "ari")
_CHUNK = 64 * 1024
#: Offset, magic and name of what is often given in place of a disk.
NOT_DISKS = ((257, b"ustar", "a tar archive (an OVA is one)"), (0, b"PK\x03\x04", "a zip archive"),
             (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"), (0, b"\x1f\x8b", "compressed with gzip"),
             (0, b"\xfd7zXZ\x00", "compressed with xz"), (0, b"\x28\xb5\x2f\xfd", "compressed with zstd"),
             (0, b"BZh", "compressed with bzip2"))

# Its warnings repeat what the refusal says.
logging.getLogger(format_inspector.__name__).setLevel(logging.CRITICAL)


class ContentRefused(Exception):
    """The content is not taken in; the text says why."""


def inspect(head: bytes, size: int, claimed: str) -> int:
    """The virtual size in bytes of content of *size* bytes that begins with *head* (``HEAD`` bytes, or all of it) and
    that is *claimed* to be of a format. Raises ``ContentRefused`` and nothing else, whatever the bytes are."""
    if not size:
        raise ContentRefused("The content is empty.")
    try:
        return _inspect(head, size, claimed)
    except ContentRefused:
        raise
    except format_inspector.SafetyCheckFailed as error:
        found = ", ".join(sorted(str(name).replace("_", " ") for name in error.failures))
        raise ContentRefused(f"The {claimed} image is not safe ({found}): it would reach for other files or is "
                             "damaged. Make one file of it with qemu-img convert.") from error
    except Exception as error:  # hostile or damaged: what makes a parser stumble must not pass it
        raise ContentRefused(f"The headers of the content are damaged ({type(error).__name__}).") from error


def _inspect(head: bytes, size: int, claimed: str) -> int:
    wrapper = format_inspector.InspectWrapper(io.BytesIO(head))
    while wrapper.read(_CHUNK):
        pass
    wrapper.close()
    found = {str(match): match for match in wrapper.formats or ()}
    names = set(found) - {"raw", "gpt"}  # a partition table alone is raw
    if head.lstrip()[:21].lower() == b"# disk descriptorfile":
        names.add("vmdk")
    if len(names) > 1:
        raise ContentRefused(f"The content looks like several formats at once ({', '.join(sorted(names))}), which is "
                             "how a hidden one is smuggled in. Make one format of it with qemu-img convert.")
    name = names.pop() if names else "raw"
    if name not in DISKS:
        raise ContentRefused(f"The content is {name}, which is not supported. Convert it: "
                             "qemu-img convert -O qcow2 OLD NEW.")
    if claimed in BOOT and name == "raw":
        return size
    if name != claimed:
        raise ContentRefused(f"disk_format says {claimed}, and the content is {name}. Give the right disk_format.")
    if name == "raw":
        return _raw(head, size)
    found[name].safety_check()
    return int(found[name].virtual_size) if name == "qcow2" else size


def _raw(head: bytes, size: int) -> int:
    for offset, magic, what in NOT_DISKS:
        if head[offset:offset + len(magic)] == magic:
            raise ContentRefused(f"The content is {what}, not a disk. Give the disk that is inside.")
    if size % SECTOR:
        raise ContentRefused(f"The content is no known format, and no raw disk either: its {size} bytes are not a "
                             f"multiple of {SECTOR}. Is it an error page, or cut short?")
    return size
