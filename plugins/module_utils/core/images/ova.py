# SPDX-License-Identifier: GPL-3.0-or-later
"""OVA archives: a tar with a description (OVF) and disks, of which one becomes the content of an image.

An archive may come from anybody, so only the plainest form is read, and everything else is refused with its name. The
tar is read by hand: its headers one by one, regular files with plain names only. The description is limited in size.
Disks are named by the description, but their format is found from their content, as for every image.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Optional

from ..errors import ImageRefused
from .hyperv import ReadAt
from .ovf import DescribedDisk, Description, parse_description, refuse_ova

#: Size of tar's blocks; offset and text by which a tar is known.
BLOCK = 512
MAGIC_AT, MAGIC = 257, b"ustar"
#: The most files of an archive, and the most bytes of its description, manifest and extended headers.
MOST_FILES, MOST_TEXT = 64, 1 << 20
#: tar's types of entries, for messages; files have the type 0 or none.
TYPES = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"5": "a folder",
         b"6": "a pipe", b"7": "a contiguous file", b"L": "a file with a long name", b"K": "a link with a long name",
         b"S": "a sparse file", b"V": "a volume label", b"M": "a part of another archive"}
#: Records of extended headers that only say who owned a file, and when it changed.
HARMLESS = ("mtime", "atime", "ctime", "uid", "gid", "uname", "gname", "comment")
_PLAIN = re.compile(r"[^/\\\x00-\x1f\x7f]{1,200}")
_DIGEST = re.compile(r"(SHA1|SHA256|SHA512) ?\(([^()]{1,200})\) ?= ?([0-9a-fA-F]{1,128})")


class ArchiveMember(NamedTuple):
    """A file in an archive: its bytes are *size* bytes at *offset*."""

    name: str
    offset: int
    size: int


class ArchivedDisk(NamedTuple):
    """A disk of an OVA. *algorithm*, *digest*: the digest of the disk's file in the manifest of the archive; both empty
    if the manifest has no digest of the file."""

    member: ArchiveMember
    algorithm: str = ""
    digest: str = ""


class Ova(NamedTuple):
    """An OVA archive. *description*: the content of its OVF file. *members*: its files by name. *digests*: (algorithm,
    hexadecimal digest) by file name, from the archive's manifest."""

    description: Description
    members: Mapping[str, ArchiveMember]
    digests: Mapping[str, tuple[str, str]]

    def disk(self, name: Optional[str] = None) -> ArchivedDisk:
        """Return the disk with the file *name*; without *name*, return the only disk. Raises ``ImageRefused`` if there
        is no such disk, if there are several disks and no *name*, or if the disk is not supported."""
        disks = self.description.disks
        names = ", ".join(disk.name[:60] for disk in disks[:8])
        if name is None and len(disks) != 1:
            advice = ". Name one of them as ova_disk, and make an image of each" if disks else ""
            raise ImageRefused("The OVA is refused: it has %d disks%s, and an image is one disk%s." % (
                len(disks), " (%s)" % names if names else "", advice), disks=[disk.name for disk in disks])
        chosen: Optional[DescribedDisk] = next((disk for disk in disks if name in (None, disk.name)), None)
        if chosen is None:
            raise ImageRefused("The OVA has no disk %r. Its disks: %s." % (name, names or "none"), field="ova_disk")
        if chosen.refused:
            raise refuse_ova(chosen.refused)
        if chosen.name not in self.members:
            raise refuse_ova("its description names the disk %r, which is not in the archive" % chosen.name[:100])
        return ArchivedDisk(self.members[chosen.name], *self.digests.get(chosen.name, ("", "")))


def is_archive(head: bytes) -> bool:
    """Return whether content that begins with *head* is a tar archive."""
    return head[MAGIC_AT:MAGIC_AT + len(MAGIC)] == MAGIC


def read_ova(read: ReadAt, size: int) -> Ova:
    """Return the content of an OVA archive of *size* bytes. *read*: a function (offset, length) that reads the archive.
    Raises ``ImageRefused`` if the archive is not an OVA, or has unusual entries such as links or folders."""
    members: dict[str, ArchiveMember] = {}
    for member in _members(read, size):
        if member.name in members:
            raise refuse_ova("it has two files %r" % member.name)
        members[member.name] = member
    descriptions = [member for name, member in members.items() if name.lower().endswith(".ovf")]
    if len(descriptions) != 1:
        raise refuse_ova("it has %d files .ovf, and an OVA has one" % len(descriptions))
    (description,) = descriptions
    manifest = members.get(description.name[:-len(".ovf")] + ".mf")
    digests = _manifest_digests(_text(read, manifest)) if manifest else {}
    return Ova(parse_description(_text(read, description)), members, digests)


def _members(read: ReadAt, size: int) -> Iterator[ArchiveMember]:
    """Yield the files of the archive that *read* reads. Raises ``ImageRefused`` for entries other than regular files
    with plain names, and for entries that reach beyond the archive's *size* bytes.
    """
    at, count = 0, 0
    while True:
        header = read(at, BLOCK)
        if not header.strip(b"\0"):
            return  # the end is a block of zeros, or the end of the file
        if len(header) < BLOCK or not is_archive(header) or not _sum_is_right(header):
            raise refuse_ova("a header of the archive is damaged (byte %d)" % at)
        count += 1
        kind, name, length = header[156:157], _name(header), _number(header[124:136])
        if count > 2 * MOST_FILES:
            raise refuse_ova("it has more than %d files" % MOST_FILES)
        if at + BLOCK + length > size:
            raise refuse_ova("the file %r in it ends behind the end of the archive" % name)
        if kind in (b"x", b"g"):
            _check_extended(read(at + BLOCK, min(length, MOST_TEXT)), length)
        elif kind not in (b"0", b"\0"):
            raise refuse_ova("%r in it is %s" % (name, TYPES.get(kind, "of an unknown type")))
        else:
            yield ArchiveMember(_plain_name(name), at + BLOCK, length)
        at += BLOCK + -(-length // BLOCK) * BLOCK


def _sum_is_right(header: bytes) -> bool:
    return sum(header[:148]) + 8 * 32 + sum(header[156:]) == _number(header[148:156])


def _number(field: bytes) -> int:
    """Return the number in a field of a tar header: octal digits, or binary for sizes from 8 GiB on."""
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if not re.fullmatch(rb"[0-7]*", digits):
        raise refuse_ova("a number in its headers is none")
    return int(digits or b"0", 8)


def _name(header: bytes) -> str:
    return header[:100].split(b"\0")[0].decode(errors="replace")


def _plain_name(name: str) -> str:
    plain = name.removeprefix("./")
    if not _PLAIN.fullmatch(plain) or plain in (".", ".."):
        raise refuse_ova("the file %r in it lies in a folder, or has an odd name" % name[:100])
    return plain


def _check_extended(text: bytes, length: int) -> None:
    """Raise ``ImageRefused`` if an extended header of *length* bytes says more about a file than its owner and times,
    such as another name or size. *text*: its content.
    """
    if length > MOST_TEXT:
        raise refuse_ova("an extended header in it is too long")
    for record in text.split(b"\n"):
        key = record.partition(b" ")[2].partition(b"=")[0].decode(errors="replace")
        if record and key not in HARMLESS:
            raise refuse_ova("an extended header in it sets %r" % key[:40])


def _text(read: ReadAt, member: ArchiveMember) -> bytes:
    if member.size > MOST_TEXT:
        raise refuse_ova("the file %r in it has %d bytes, and %d are allowed" % (member.name, member.size, MOST_TEXT))
    return read(member.offset, member.size)


def _manifest_digests(text: bytes) -> dict[str, tuple[str, str]]:
    """Return algorithm and hexadecimal digest by file name from the content *text* of an archive's manifest."""
    digests = {}
    for line in text.decode(errors="replace").splitlines():
        match = _DIGEST.fullmatch(line.strip())
        if match:
            digests[match[2]] = (match[1].lower(), match[3].lower())
    return digests
