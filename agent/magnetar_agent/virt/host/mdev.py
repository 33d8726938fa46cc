# SPDX-License-Identifier: GPL-3.0-or-later
"""Mediated devices, created through libvirt's node devices, which need mdevctl on the host. The agent does not write to
sysfs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.hardware.mdev import Mdev
from magnetar_agent.virt.connection.limits import Lane
from magnetar_agent.virt.tools.templates import FOLDER, fill_template

if TYPE_CHECKING:
    from magnetar_agent.virt.connection.pool import ConnectionPool


class Mdevs:
    """The methods of ``LocalHypervisor`` for mediated devices (vGPUs)."""

    connection: ConnectionPool

    def mdevs(self) -> list[Mdev]:
        """Return the active mediated devices of the host."""
        def look(conn: Any) -> list[Mdev]:
            return sorted(mdev for _device, mdev in _all(conn))
        made: list[Mdev] = self.connection.call("look at mediated devices", look, Lane.HOST)
        return made

    def make_mdev(self, mdev: Mdev) -> None:
        """Create the mediated device *mdev* on the host. Requires mdevctl."""
        text = fill_template("mdev.xml.j2", {"mdev": mdev, "parent": node_name(mdev.parent)}, FOLDER)
        self.connection.call("make a mediated device (which needs mdevctl)",
                             lambda conn: conn.nodeDeviceCreateXML(text), Lane.HOST)

    def remove_mdev(self, uuid: str) -> None:
        """Remove the mediated device *uuid* from the host; a missing one is ignored."""
        def remove(conn: Any) -> None:
            for device, mdev in _all(conn):
                if mdev.uuid == uuid:
                    device.destroy()
        self.connection.call("remove a mediated device", remove, Lane.HOST)


def node_name(address: str) -> str:
    """Return libvirt's node device name of the PCI device at *address*, such as ``pci_0000_3b_00_2``."""
    return "pci_" + address.replace(":", "_").replace(".", "_")


def mdev_of(text: str) -> Mdev | None:
    """Return the mediated device described by *text*, the XML of a libvirt node device; ``None`` if its parent is not a
    PCI device."""
    root = ET.fromstring(text)  # noqa: S314 (libvirt wrote it)
    kind, capability = root.find("capability/type"), root.find("capability")
    parent = root.findtext("parent", "")
    if kind is None or capability is None or not parent.startswith("pci_"):
        return None
    domain, bus, slot, function = parent.removeprefix("pci_").split("_")
    named = root.findtext("name", "").removeprefix("mdev_")[:36].replace("_", "-")
    return Mdev(capability.findtext("uuid") or named, f"{domain}:{bus}:{slot}.{function}", kind.get("id", ""))


def _all(conn: Any) -> Iterator[tuple[Any, Mdev]]:
    for device in conn.listAllDevices(libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV):
        if mdev := mdev_of(device.XMLDesc()):
            yield device, mdev
