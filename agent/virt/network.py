# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks on libvirt, their leases, and the bridges of the host. Networks without our metadata are only looked at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.hypervisor import Lease, NetworkSeen, NetworkSpec
from magnetar_core.errors import Conflict

from .domain import owner
from .templates import fill

if TYPE_CHECKING:
    from .connection import Connection

_INACTIVE = libvirt.VIR_NETWORK_XML_INACTIVE
NET = Path("/sys/class/net")


class Networks:
    """The network part of ``Hypervisor``."""

    connection: Connection
    templates: Path

    def bridges(self) -> frozenset[str]:
        """Devices under /sys/class/net that are bridges."""
        return frozenset(path.parent.name for path in NET.glob("*/bridge"))

    def networks(self) -> dict[str, NetworkSeen]:
        """virConnectListAllNetworks and the XML of each."""
        def networks(conn: Any) -> dict[str, NetworkSeen]:
            seen = (_see(network) for network in conn.listAllNetworks())
            return {network.name: network for network in seen if network is not None}
        return self.connection.call("list the networks", networks)

    def make_network(self, spec: NetworkSpec) -> None:
        """Define, set to start with libvirt, start. One that cannot be started for the first time is not left."""
        def make(conn: Any) -> None:
            there = _lookup(conn, spec.name)
            seen = None if there is None else _see(there)
            if seen is not None and (not seen.owned or seen.uuid != spec.uuid):
                raise _foreign(spec.name)
            network = conn.networkDefineXML(fill("network.xml.j2", {"spec": spec}, self.templates))
            try:
                network.setAutostart(True)
                if not network.isActive():
                    network.create()
            except libvirt.libvirtError:
                if there is None:
                    network.undefine()
                raise
        self.connection.call(f"make the network {spec.name}", make)

    def remove_network(self, name: str) -> None:
        """virNetworkDestroy and virNetworkUndefine."""
        def remove(conn: Any) -> None:
            network = _lookup(conn, name)
            seen = None if network is None else _see(network)
            if seen is None:
                return
            if not seen.owned:
                raise _foreign(name)
            if network.isActive():
                network.destroy()
            if network.isPersistent():
                network.undefine()
        self.connection.call(f"remove the network {name}", remove)

    def leases(self, network: str) -> list[Lease]:
        """virNetworkGetDHCPLeases."""
        def leases(conn: Any) -> list[Lease]:
            found = _lookup(conn, network)
            if found is None or not found.isActive():
                return []
            return [Lease(lease["mac"], lease["ipaddr"], 6 if lease["type"] == libvirt.VIR_IP_ADDR_TYPE_IPV6 else 4,
                          lease["hostname"])
                    for lease in sorted(found.DHCPLeases(), key=lambda lease: int(lease["expirytime"]))]
        return self.connection.call(f"read the leases of the network {network}", leases)


def _see(network: Any) -> NetworkSeen | None:
    try:
        persistent = network.isPersistent()
        root = ET.fromstring(network.XMLDesc(_INACTIVE if persistent else 0))  # noqa: S314 (libvirt wrote it)
        bridge = root.find("bridge")
        return NetworkSeen(
            uuid=root.findtext("uuid", ""), name=root.findtext("name", ""), active=bool(network.isActive()),
            autostart=bool(persistent and network.autostart()), bridge=None if bridge is None else bridge.get("name"),
            owned=owner(root, "network") is not None)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_NETWORK:
            return None  # it vanished while it was looked at
        raise


def _lookup(conn: Any, name: str) -> Any:
    try:
        return conn.networkLookupByName(name)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_NETWORK:
            return None
        raise


def _foreign(name: str) -> Conflict:
    return Conflict(f"The libvirt network {name} was not made by Magnetar for this resource, so it is not touched. "
                    "Choose another name, or remove that network.")
