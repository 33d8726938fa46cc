# SPDX-License-Identifier: GPL-3.0-or-later
"""OVA archives: a tar with a description (OVF) and one disk, which becomes the content of an image.

An archive may come from anybody, so only the plainest form is read, and everything else is refused with its name. The
tar is read by hand: its headers one by one, regular files with plain names only. The description is limited in size,
and may have no document type, so nothing in it expands. The disk is named by the description, but its format is found
from its content, as for every image.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING, NamedTuple
from xml.parsers import expat

from magnetar_core.errors import ImageRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Size of tar's blocks; offset and text by which a tar is known.
BLOCK = 512
MAGIC_AT, MAGIC = 257, b"ustar"
#: The most files of an archive, and the most bytes of its description, manifest and extended headers.
MOST_FILES, MOST_TEXT = 64, 1 << 20
#: How deep elements of a description may be nested.
MOST_DEPTH = 64
#: tar's types of entries, for messages; files have the type 0 or none.
TYPES = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"5": "a folder",
         b"6": "a pipe", b"7": "a contiguous file", b"L": "a file with a long name", b"K": "a link with a long name",
         b"S": "a sparse file", b"V": "a volume label", b"M": "a part of another archive"}
#: Records of extended headers that only say who owned a file, and when it changed.
HARMLESS = ("mtime", "atime", "ctime", "uid", "gid", "uname", "gname", "comment")
#: Namespace of the elements and attributes of a description, for versions 1 and 2.
_NAMESPACE = re.compile(r"http://schemas\.dmtf\.org/ovf/envelope/[12] ")
_PLAIN = re.compile(r"[^/\\\x00-\x1f\x7f]{1,200}")
_DIGEST = re.compile(r"(SHA1|SHA256|SHA512) ?\(([^()]{1,200})\) ?= ?([0-9a-fA-F]{1,128})")
_PIECE = 1 << 20


class ArchiveMember(NamedTuple):
    """A file in an archive: its bytes are *size* bytes at *offset*."""

    name: str
    offset: int
    size: int


class ArchivedDisk(NamedTuple):
    """The disk of an OVA. *algorithm*, *digest*: its digest by the archive's manifest; both empty without one."""

    member: ArchiveMember
    algorithm: str = ""
    digest: str = ""


def is_archive(head: bytes) -> bool:
    """Return whether content that begins with *head* is a tar archive."""
    return head[MAGIC_AT:MAGIC_AT + len(MAGIC)] == MAGIC


def find_archived_disk(descriptor: int, size: int) -> ArchivedDisk:
    """Return the disk of the OVA archive of *size* bytes in the open file *descriptor*. Raises ``ImageRefused`` for an
    archive that is not an OVA with exactly one disk, or has anything unusual."""
    members = {}
    for member in _members(descriptor, size):
        if member.name in members:
            raise _refused(f"it has two files {member.name!r}")
        members[member.name] = member
    descriptions = [member for name, member in members.items() if name.lower().endswith(".ovf")]
    if len(descriptions) != 1:
        raise _refused(f"it has {len(descriptions)} files .ovf, and an OVA has one")
    (description,) = descriptions
    name = _disk_name(_text(descriptor, description))
    if name not in members:
        raise _refused(f"its description names the disk {name[:100]!r}, which is not in the archive")
    manifest = members.get(description.name[:-len(".ovf")] + ".mf")
    digests = _manifest_digests(_text(descriptor, manifest)) if manifest else {}
    return ArchivedDisk(members[name], *digests.get(name, ("", "")))


def copy_archived_disk(descriptor: int, disk: ArchivedDisk, target: int, advance: Callable[[int], None]) -> None:
    """Copy *disk* from the archive in the open file *descriptor* to the empty open file *target*. *advance*: called
    with the copied bytes. Raises ``ImageRefused`` if the content does not fit the archive's manifest."""
    digest = hashlib.new(disk.algorithm, usedforsecurity=False) if disk.algorithm else None
    done, size = 0, disk.member.size
    while done < size:
        piece = os.pread(descriptor, min(_PIECE, size - done), disk.member.offset + done)
        if not piece:
            raise _refused("it is cut short")
        if digest is not None:
            digest.update(piece)
        view, at = memoryview(piece), done
        done += len(piece)
        while view:
            count = os.pwrite(target, view, at)
            view, at = view[count:], at + count
        advance(done)
    if digest is not None and digest.hexdigest() != disk.digest:
        raise ImageRefused(f"The disk {disk.member.name!r} of the OVA has another digest ({disk.algorithm}) than the "
                           "archive's manifest says. It was damaged on its way. Export it again.")


def _refused(why: str) -> ImageRefused:
    return ImageRefused(f"The OVA is refused: {why}. Unpack it (tar -xf), and give its disk as the image.")


def _members(descriptor: int, size: int) -> Iterator[ArchiveMember]:
    """Yield the files of the archive in the open file *descriptor*. Raises ``ImageRefused`` for entries other than
    regular files with plain names, and for entries that reach beyond the archive's *size* bytes."""
    at, count = 0, 0
    while True:
        header = os.pread(descriptor, BLOCK, at)
        if not header.strip(b"\0"):
            return  # the end is a block of zeros, or the end of the file
        if len(header) < BLOCK or not is_archive(header) or not _sum_is_right(header):
            raise _refused(f"a header of the archive is damaged (byte {at})")
        count += 1
        kind, name, length = header[156:157], _name(header), _number(header[124:136])
        if count > 2 * MOST_FILES:
            raise _refused(f"it has more than {MOST_FILES} files")
        if at + BLOCK + length > size:
            raise _refused(f"the file {name!r} in it ends behind the end of the archive")
        if kind in (b"x", b"g"):
            _check_extended(os.pread(descriptor, min(length, MOST_TEXT), at + BLOCK), length)
        elif kind not in (b"0", b"\0"):
            raise _refused(f"{name!r} in it is {TYPES.get(kind, 'of an unknown type')}")
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
        raise _refused("a number in its headers is none")
    return int(digits or b"0", 8)


def _name(header: bytes) -> str:
    return header[:100].split(b"\0")[0].decode(errors="replace")


def _plain_name(name: str) -> str:
    plain = name.removeprefix("./")
    if not _PLAIN.fullmatch(plain) or plain in (".", ".."):
        raise _refused(f"the file {name[:100]!r} in it lies in a folder, or has an odd name")
    return plain


def _check_extended(text: bytes, length: int) -> None:
    """Raise ``ImageRefused`` if an extended header of *length* bytes says more about a file than its owner and times,
    such as another name or size. *text*: its content."""
    if length > MOST_TEXT:
        raise _refused("an extended header in it is too long")
    for record in text.split(b"\n"):
        key = record.partition(b" ")[2].partition(b"=")[0].decode(errors="replace")
        if record and key not in HARMLESS:
            raise _refused(f"an extended header in it sets {key[:40]!r}")


def _text(descriptor: int, member: ArchiveMember) -> bytes:
    if member.size > MOST_TEXT:
        raise _refused(f"the file {member.name!r} in it has {member.size} bytes, and {MOST_TEXT} are allowed")
    return os.pread(descriptor, member.size, member.offset)


def _manifest_digests(text: bytes) -> dict[str, tuple[str, str]]:
    """Return algorithm and hexadecimal digest by file name from the content *text* of an archive's manifest."""
    digests = {}
    for line in text.decode(errors="replace").splitlines():
        match = _DIGEST.fullmatch(line.strip())
        if match:
            digests[match[2]] = (match[1].lower(), match[3].lower())
    return digests


class _Description:
    """The files and disks that an OVF description lists."""

    def __init__(self) -> None:
        self.files: list[dict[str, str]] = []
        self.disks: list[dict[str, str]] = []
        self._depth = 0

    def parse(self, text: bytes) -> None:
        """Read the description *text*. Raises ``ImageRefused`` if it has a document type or is nested too deeply."""
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartElementHandler, parser.EndElementHandler = self._begin, self._end
        parser.StartDoctypeDeclHandler = self._doctype
        try:
            parser.Parse(text, True)
        except expat.ExpatError as error:
            raise _refused(f"its description is no XML ({expat.ErrorString(error.code)})") from None

    @staticmethod
    def _doctype(*_args: object) -> None:
        raise _refused("its description has a document type, which could expand without end or name other files")

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise _refused("its description is nested too deeply")
        plain = {_NAMESPACE.sub("", key): value for key, value in attributes.items()}
        if _NAMESPACE.match(name) and name.endswith(" File"):
            self.files.append(plain)
        elif _NAMESPACE.match(name) and name.endswith(" Disk"):
            self.disks.append(plain)

    def file(self, id: str) -> dict[str, str] | None:
        """Return the attributes of the file with this *id*; ``None`` if the description does not list it."""
        return next((file for file in self.files if file.get("id") == id), None)

    def _end(self, _name: str) -> None:
        self._depth -= 1


def _disk_name(text: bytes) -> str:
    """Return the file name of the only disk in the description *text*. Raises ``ImageRefused`` if it has no disk or
    several, or the disk is stored in a form that is not supported."""
    description = _Description()
    description.parse(text)
    disks = [disk for disk in description.disks if disk.get("fileRef")]
    if len(disks) != 1:
        names = ", ".join((description.file(disk["fileRef"]) or {}).get("href", "?")[:60] for disk in disks[:8])
        raise _refused(f"it has {len(disks)} disks{names and f' ({names})'}, and an image is one disk")
    (disk,) = disks
    file = description.file(disk["fileRef"])
    if file is None:
        raise _refused(f"its disk is the file {disk['fileRef'][:60]!r}, which its description does not list")
    if disk.get("parentRef"):
        raise _refused("its disk has a parent")
    if file.get("compression", "identity") != "identity" or file.get("chunkSize"):
        raise _refused("its disk is compressed or in pieces")
    return file.get("href", "")
