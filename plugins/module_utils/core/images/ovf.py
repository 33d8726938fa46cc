# SPDX-License-Identifier: GPL-3.0-or-later
"""The description (OVF) of a guest in an OVA archive: its disk files, and the hardware that it had.

A description may come from anybody. It may have no document type, so nothing in it expands; its depth, the number of
its elements and all texts taken from it are limited. Numbers that make no sense are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from ..errors import ImageRefused

#: How deep elements may be nested, and the most elements.
MOST_DEPTH, MOST_ELEMENTS = 64, 20_000
#: The most disks and NICs of a guest, and the longest text that is reported.
MOST_DEVICES, MOST_TEXT = 32, 255
#: The largest disk in bytes, 2^60: more than a VMDK, VHD or VHDX can have.
MOST_SIZE = 1 << 60
#: Namespace of elements and attributes of a description, for versions 1 and 2. Their names get the prefix ``ovf.``.
_NAMESPACE = re.compile(r"http://schemas\.dmtf\.org/ovf/envelope/[12] ")
#: Elements of devices, and types of resources in them.
_ITEMS = ("ovf.Item", "ovf.StorageItem", "ovf.EthernetPortItem")
_CPU, _MEMORY, _NIC, _DISKS = "3", "4", "10", ("17", "31")
#: Type of a controller's resource to the bus of its disks. SATA and NVMe are both "other storage".
_BUSES = {"5": "ide", "6": "scsi", "20": "sata", "23": "usb"}
#: Names of units of memory, with their bytes.
_UNITS = {"byte": 1, "bytes": 1, "kilobytes": 1 << 10, "kb": 1 << 10, "megabytes": 1 << 20, "mb": 1 << 20,
          "gigabytes": 1 << 30, "gb": 1 << 30}
_POWER = re.compile(r"byte(?:s)? ?\* ?2 ?\^ ?([0-9]{1,2})")
_NUMBER = re.compile(r"[0-9]{1,18}")


class DescribedDisk(NamedTuple):
    """A disk in the description (OVF) of an OVA. *name*: the name of its file. *size*: virtual size in bytes; ``None``
    if unknown. *bus*: ide, scsi, sata, nvme, usb or virtio; ``None`` if unknown. *controller*: the model of the disk's
    controller, as in the description, but in lower case. *refused*: the reason why the disk is not supported; empty if
    it is supported."""

    name: str
    size: Optional[int]
    bus: Optional[str]
    controller: str
    refused: str


class Description(NamedTuple):
    """The content of the description (OVF) of an OVA. *hardware*: the values of the field ``ovf`` of an image, except
    for the disks. If the description has several guests, *hardware* describes the first one."""

    disks: Sequence[DescribedDisk]
    hardware: Mapping[str, Any]

    def as_document(self) -> dict[str, Any]:
        """Return the value of the field ``ovf`` of an image."""
        return {**self.hardware, "disks": [
            {"name": disk.name, "size": disk.size, "bus": disk.bus, "controller": disk.controller}
            for disk in self.disks]}


def parse_description(text: bytes) -> Description:
    """Parse *text*, the description (OVF) of an OVA, and return its content. Raises ``ImageRefused`` if *text* is not
    XML, has a document type, or has too many disks, elements or levels."""
    root = _DescriptionReader().parse(text)
    items = list(_items(root))
    controllers = {item["InstanceID"]: item for item in items if item.get("ResourceType") in _BUSES}
    files = {element.get("ovf.id", ""): element for element in root.iter("ovf.File")}
    slots = {place.rpartition("/")[2]: item for item in items if item.get("ResourceType") in _DISKS
             and (place := item.get("HostResource"))}
    order = {disk: number for number, disk in enumerate(slots)}
    disks = [_disk(element, files.get(element.get("ovf.fileRef", "")), slots, controllers)
             for element in sorted(root.iter("ovf.Disk"),
                                   key=lambda disk: order.get(disk.get("ovf.diskId", ""), len(order)))
             if element.get("ovf.fileRef")]
    if len(disks) > MOST_DEVICES:
        raise refuse_ova("it has %d disks, and servers have %d at most" % (len(disks), MOST_DEVICES))
    return Description(disks, _hardware(root, items))


def refuse_ova(why: str) -> ImageRefused:
    """Return the error for an OVA that is refused. *why*: the reason, a clause whose subject is the archive, such as
    ``it has two disks``."""
    return ImageRefused("The OVA is refused: %s. Unpack it (tar -xf), and give its disk as the image." % why)


class _DescriptionReader:
    """A parser that converts XML to a tree of elements. It refuses a document type, deep nesting, and too many
    elements. In the tree, names have no namespaces; only the OVF namespace becomes the prefix ``ovf.``."""

    def __init__(self) -> None:
        self._builder = TreeBuilder()
        self._depth = self._count = 0

    def parse(self, text: bytes) -> Element:
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartElementHandler, parser.EndElementHandler = self._begin, self._end
        parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = self._builder.data, self._doctype
        try:
            parser.Parse(text, True)
        except expat.ExpatError as error:
            raise refuse_ova("its description is no XML (%s)" % expat.ErrorString(error.code)) from None
        return self._builder.close()

    @staticmethod
    def _doctype(*_args: object) -> None:
        raise refuse_ova("its description has a document type, which could expand without end or name other files")

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._count += 1
        if self._depth > MOST_DEPTH:
            raise refuse_ova("its description is nested too deeply")
        if self._count > MOST_ELEMENTS:
            raise refuse_ova("its description has more than %d elements" % MOST_ELEMENTS)
        prefix = "ovf." if _NAMESPACE.match(name) else ""  # some programs leave it out
        self._builder.start(_plain(name), {_plain(key) if " " in key else prefix + key: value
                                           for key, value in attributes.items()})

    def _end(self, name: str) -> None:
        self._depth -= 1
        self._builder.end(_plain(name))


def _plain(name: str) -> str:
    return _NAMESPACE.sub("ovf.", name) if _NAMESPACE.match(name) else name.rpartition(" ")[2]


def _items(root: Element) -> Iterator[dict[str, str]]:
    """Yield the devices of the first guest, each as ``{name of the XML element: text}``. Devices that belong only to a
    configuration other than the default are omitted, and so are minimum and maximum values (attribute ``bound``)."""
    default = next((element.get("ovf.id") for element in root.iter("ovf.Configuration")
                    if element.get("ovf.default") == "true"), None)
    section = root.find(".//ovf.VirtualHardwareSection")
    for element in section if section is not None else ():
        configuration = element.get("ovf.configuration")
        if element.tag in _ITEMS and not element.get("ovf.bound") and configuration in (None, default):
            yield {"InstanceID": "", **{child.tag: (child.text or "").strip() for child in reversed(element)}}


def _disk(element: Element, file: Optional[Element], slots: Mapping[str, Mapping[str, str]],
          controllers: Mapping[str, Mapping[str, str]]) -> DescribedDisk:
    """Return the disk that *element*, a ``Disk`` element of the description, declares. *file*: the ``File`` element of
    the disk; ``None`` if it is missing. *slots*: for each disk id, the device that uses the disk. *controllers*: the
    controllers by ``InstanceID``."""
    refused = ""
    if file is None:
        refused = "its disk is the file %r, which its description does not list" % element.get("ovf.fileRef", "")[:60]
    elif element.get("ovf.parentRef"):
        refused = "its disk has a parent"
    elif file.get("ovf.compression", "identity") != "identity" or file.get("ovf.chunkSize"):
        refused = "its disk is compressed or in pieces"
    name = "" if file is None else file.get("ovf.href", "")
    if len(name) > MOST_TEXT or not name.isprintable():
        name, refused = _text(name), "the file name %r of its disk is too long, or has odd characters" % name[:60]
    capacity, unit = _count(element.get("ovf.capacity", "")), _unit(element.get("ovf.capacityAllocationUnits", "byte"))
    controller = controllers.get(slots.get(element.get("ovf.diskId", ""), {}).get("Parent", ""), {})
    model, bus = _text(controller.get("ResourceSubType", "")).lower(), _BUSES.get(controller.get("ResourceType", ""))
    if "nvme" in model or "virtio" in model:
        bus = "nvme" if "nvme" in model else "virtio"
    return DescribedDisk(name, _within(capacity * unit, MOST_SIZE), bus, model, refused)


def _hardware(root: Element, items: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    first = root.find(".//ovf.VirtualSystem")
    system = first if first is not None else root
    settings = {element.get("key", element.get("ovf.key", "")): element.get("value", element.get("ovf.value", ""))
                for element in system.iter("Config")}
    uefi = settings.get("firmware", "").lower() == "efi" or any(
        element.tag in ("Firmware", "ovf.Firmware") and  # of VirtualBox, in its own section
        element.get("type", element.get("ovf.type", "")).upper().startswith("EFI") for element in system.iter())
    memory = _quantity(items, _MEMORY)
    unit = _unit(next((item.get("AllocationUnits", "") for item in items if item.get("ResourceType") == _MEMORY), ""))
    return {
        "guests": len(list(root.iter("ovf.VirtualSystem"))),
        "name": _text(system.findtext("ovf.Name") or system.get("ovf.id") or ""),
        "os": _text(system.findtext("ovf.OperatingSystemSection/ovf.Description") or ""),
        "vcpus": _within(_quantity(items, _CPU), 1 << 12),
        "ram": _within(memory * (unit or 1 << 20) >> 20, 1 << 26),
        "firmware": "uefi" if uefi else "bios",
        "secure_boot": settings.get("bootOptions.efiSecureBootEnabled", "").lower() == "true",
        "nics": [{"network": _text(item.get("Connection", "")), "model": _text(item.get("ResourceSubType", "")).lower()}
                 for item in items if item.get("ResourceType") == _NIC][:MOST_DEVICES],
    }


def _quantity(items: Sequence[Mapping[str, str]], kind: str) -> int:
    return next((_count(item.get("VirtualQuantity", "")) for item in items if item.get("ResourceType") == kind), 0)


def _count(text: str) -> int:
    return int(text) if _NUMBER.fullmatch(text) else 0


def _within(number: int, most: int) -> Optional[int]:
    return number if 0 < number <= most else None


def _unit(text: str) -> int:
    """Return the bytes of a unit such as ``byte * 2^20`` or ``MegaBytes``; 0 for an unknown unit."""
    match = _POWER.fullmatch(text.strip().lower())
    return 1 << int(match[1]) if match else _UNITS.get(text.strip().lower(), 0)


def _text(text: str) -> str:
    return "".join(letter for letter in text.strip() if letter.isprintable())[:MOST_TEXT]
