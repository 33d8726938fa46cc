# SPDX-License-Identifier: GPL-3.0-or-later
"""OVA archives, good and hostile ones."""

from __future__ import annotations

import hashlib
import io
import tarfile

OVF = """<?xml version="1.0" encoding="UTF-8"?>
{before}<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1">
<References>{files}</References><DiskSection><Info>Disks</Info>{disks}</DiskSection>
<VirtualSystem ovf:id="vm"><Info>A guest</Info>{inside}</VirtualSystem></Envelope>"""


def description(*names: str, before: str = "", inside: str = "", file: str = "", disk: str = "") -> bytes:
    """Return an OVF description of the disk files *names*. *file*, *disk*: further attributes of their elements."""
    files = "".join(f'<File ovf:id="file{number}" ovf:href="{name}" {file}/>' for number, name in enumerate(names))
    disks = "".join(f'<Disk ovf:diskId="disk{number}" ovf:fileRef="file{number}" ovf:capacity="1" {disk}/>'
                    for number in range(len(names)))
    return OVF.format(before=before, files=files, disks=disks, inside=inside).encode()


def archive(*members: tuple[str, bytes | tarfile.TarInfo]) -> bytes:
    """Return a tar archive of *members*: names with contents, or with the header of an entry without content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members:
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def make_ova(disk: bytes, manifest: bool = True, name: str = "web.vmdk") -> bytes:
    """Return an OVA with *disk*, and with a *manifest* of its digests."""
    ovf = description(name)
    text = "".join(f"SHA256({one})= {hashlib.sha256(data).hexdigest()}\n" for one, data in (("web.ovf", ovf),
                                                                                            (name, disk)))
    return archive(("web.ovf", ovf), *((("web.mf", text.encode()),) if manifest else ()), (name, disk))


def entry(name: str, type: bytes, link: str = "") -> tuple[str, tarfile.TarInfo]:
    """Return an entry of another type than a file, such as a link to *link*."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = type, link
    return name, info
