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


#: Namespaces of a description that names hardware.
SPACES = ('xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1" '
          'xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData" '
          'xmlns:vmw="http://www.vmware.com/schema/ovf"')


def device(kind: int, number: int, **more: object) -> str:
    """Return the element of a device with the resource type *kind*. *more*: its other values by their names."""
    values = {"InstanceID": number, "ResourceType": kind, **more}
    return "<Item>" + "".join(f"<rasd:{name}>{value}</rasd:{name}>" for name, value in values.items()) + "</Item>"


def vmware_description(
        disks: dict[str, int], controller: tuple[int, str] = (6, "VirtualSCSI"), nics: dict[str, str] | None = None,
        firmware: str = "bios", vcpus: object = 2, ram: int = 2048) -> bytes:
    """Return a description as VMware writes it. *disks*: virtual size in bytes by file. *controller*: resource type and
    model of their controller. *nics*: model by the name of the network."""
    files = "".join(f'<File ovf:id="file{at}" ovf:href="{name}"/>' for at, name in enumerate(disks))
    listed = "".join(f'<Disk ovf:diskId="vmdisk{at}" ovf:fileRef="file{at}" ovf:capacity="{size}" '
                     'ovf:capacityAllocationUnits="byte"/>' for at, size in enumerate(disks.values()))
    items = [device(3, 1, VirtualQuantity=vcpus, AllocationUnits="hertz * 10^6"),
             device(4, 2, VirtualQuantity=ram, AllocationUnits="byte * 2^20"),
             device(controller[0], 3, ResourceSubType=controller[1], Address=0),
             *(device(17, 10 + at, Parent=3, AddressOnParent=at, HostResource=f"ovf:/disk/vmdisk{at}")
               for at in range(len(disks))),
             *(device(10, 30 + at, ResourceSubType=model, Connection=network)
               for at, (network, model) in enumerate((nics or {}).items()))]
    return (f'<?xml version="1.0"?><Envelope {SPACES}><References>{files}</References><DiskSection>{listed}'
            '</DiskSection><VirtualSystem ovf:id="shop"><Name>shop</Name><OperatingSystemSection ovf:id="96">'
            '<Description>Debian GNU/Linux 12 (64-bit)</Description></OperatingSystemSection><VirtualHardwareSection>'
            f'{"".join(items)}<vmw:Config vmw:key="firmware" vmw:value="{firmware}"/>'
            '</VirtualHardwareSection></VirtualSystem></Envelope>').encode()
