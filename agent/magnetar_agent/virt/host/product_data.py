# SPDX-License-Identifier: GPL-3.0-or-later
"""Vital product data (VPD) of PCI devices, from libvirt's node devices (libvirt 7.9.0 or newer)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.virt.connection.limits import Lane

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar_agent.virt.connection.pool import ConnectionPool

#: The node devices for virConnectListAllNodeDevices to list; 0 when the library does not know VPD.
_WITH_DATA = getattr(libvirt, "VIR_CONNECT_LIST_NODE_DEVICES_CAP_VPD", 0)


class ProductData:
    """The methods of ``LocalHypervisor`` for the vital product data (VPD) of PCI devices."""

    connection: ConnectionPool
    _serials: Mapping[str, str] = MappingProxyType({})

    def card_serials(self) -> Mapping[str, str]:
        """Return ``{PCI address: serial number}`` of PCI cards with vital product data. Cached while the device exists,
        because reading is slow."""
        def look(conn: Any) -> dict[str, str]:
            known_serials, serials = self._serials, {}
            for device in conn.listAllDevices(_WITH_DATA) if _WITH_DATA else ():
                address = _address(device.name())
                serials[address] = known_serials[address] if address in known_serials else serial_number(
                    device.XMLDesc())
            return serials
        self._serials = self.connection.call("look at the vital product data of devices", look, Lane.HOST)
        return {address: serial for address, serial in self._serials.items() if serial}


def serial_number(text: str) -> str:
    """Return the card's serial number in *text*, the XML of a libvirt node device; "" if it has none."""
    root = ET.fromstring(text)  # noqa: S314 (libvirt wrote it)
    place = "capability[@type='pci']/capability[@type='vpd']/fields[@access='readonly']"
    return (root.findtext(f"{place}/serial_number") or "").strip()


def _address(name: str) -> str:
    """Return the PCI address in *name*, a libvirt node device name such as ``pci_0000_3b_00_2``."""
    domain, bus, slot, function = name.removeprefix("pci_").split("_")
    return f"{domain}:{bus}:{slot}.{function}"
