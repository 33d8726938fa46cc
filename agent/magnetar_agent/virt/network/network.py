# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks on libvirt, their leases, and the bridges of the host. Networks without our metadata are only looked at."""

from __future__ import annotations

import logging
import socket
import threading
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.host.networks import IntegrationBridge, Lease, NetworkSeen, NetworkSpec, RepresentorPort, Tap
from magnetar_agent.virt.connection.limits import Lane
from magnetar_agent.virt.domain.domain import owner
from magnetar_agent.virt.tools.process import run
from magnetar_agent.virt.tools.templates import fill
from magnetar_core.errors import Conflict

from . import dhcp, ovn, reservations, routes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from magnetar_agent.virt.connection.pool import ConnectionPool

    from .switch_filter import SwitchFilter

log = logging.getLogger(__name__)
_INACTIVE = libvirt.VIR_NETWORK_XML_INACTIVE
_ADD, _DELETE = libvirt.VIR_NETWORK_UPDATE_COMMAND_ADD_LAST, libvirt.VIR_NETWORK_UPDATE_COMMAND_DELETE
NET = Path("/sys/class/net")


class LibvirtNetworks:
    """The network part of ``LocalHypervisor``."""

    connection: ConnectionPool
    templates: Path
    switch_filter: SwitchFilter
    _reserving = threading.Lock()

    def bridges(self) -> frozenset[str]:
        """Devices under /sys/class/net that are bridges."""
        return frozenset(path.parent.name for path in NET.glob("*/bridge"))

    def set_function(self, card: str, number: int, settings: Mapping[str, str]) -> None:
        """ip-link(8), which asks the card's driver."""
        words = [word for one in settings.items() for word in one]
        run(["ip", "link", "set", "dev", card, "vf", str(number), *words], f"set virtual function {number} of {card}")

    def plug_representor(self, netdev: str, wanted: RepresentorPort | None) -> None:
        """ovs-vsctl(8), as libvirt does for taps, and ip-link(8)."""
        what = f"plug {netdev} into Open vSwitch, or pull it out"
        if wanted is None:
            run(["ovs-vsctl", "--timeout=30", "--if-exists", "del-port", netdev], what)
            return
        about = {"iface-id": wanted.port, "iface-status": "active", "attached-mac": wanted.mac, "vm-id": wanted.server}
        run(["ovs-vsctl", "--timeout=30", "--may-exist", "add-port", wanted.bridge, netdev, "--", "set", "Interface",
             netdev, *(f'external_ids:{name}="{value}"' for name, value in about.items())], what)
        run(["ip", "link", "set", "dev", netdev, "up"], f"switch {netdev} on")

    def integration_bridge(self, name: str) -> IntegrationBridge:
        """See ``ovn``."""
        return ovn.look(name)

    def filter_switch(self, bridge: str) -> None:
        """See ``switch_filter``."""
        self.switch_filter.keep(bridge)

    def switch_unfiltered(self) -> str:
        """See ``switch_filter``."""
        return self.switch_filter.reason

    def routes(self) -> list[tuple[str, IPv4Network]]:
        """Routes of all tables, and addresses."""
        return routes.routes()

    def networks(self) -> dict[str, NetworkSeen]:
        """virConnectListAllNetworks and the XML of each."""
        def networks(conn: Any) -> dict[str, NetworkSeen]:
            seen = (_see(network) for network in conn.listAllNetworks())
            return {network.name: network for network in seen if network is not None}
        return self.connection.call("list the networks", networks, Lane.HOST)

    def make_network(self, spec: NetworkSpec) -> None:
        """Define, set to start with libvirt, start. One that cannot be started for the first time is not left."""
        def make(conn: Any) -> None:
            there = _lookup(conn, spec.name)
            seen = None if there is None else _see(there)
            if seen is not None and (not seen.owned or seen.uuid != spec.uuid):
                raise _foreign(spec.name)
            network = conn.networkDefineXML(fill(
                "network.xml.j2", {"spec": spec, "hosts_file": self._hosts_file(spec)}, self.templates))
            try:
                network.setAutostart(True)
                if not network.isActive():
                    network.create()
            except libvirt.libvirtError:
                if there is None:
                    network.undefine()
                raise
        self.connection.call(f"make the network {spec.name}", make, Lane.HOST)

    def _hosts_file(self, spec: NetworkSpec) -> Path | None:
        """The file of reservations, written; none where the agent may not write it, as under an older unit."""
        if not spec.dhcp_start:
            return None
        try:
            with self._reserving:
                reservations.write(spec.name, dict(spec.hosts))
        except OSError as error:
            log.warning("network %s: %s; its addresses are reserved by libvirt, which takes longer", spec.name, error)
            return None
        return reservations.path(spec.name)

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
            reservations.remove(name)
        self.connection.call(f"remove the network {name}", remove, Lane.HOST)

    def reserve(self, network: str, mac: str, address: str) -> None:
        """In the file of reservations, or by virNetworkUpdate."""
        def change(hosts: dict[str, str]) -> dict[str, str]:
            return {other: had for other, had in hosts.items() if other != mac and had != address} | {mac: address}

        self._reserve(f"reserve {address} on the network {network}", network, change)

    def release(self, network: str, mac: str) -> None:
        """As ``reserve``, and an end of the lease; also of one that libvirt has not heard of yet."""
        leased: set[str] = set()

        def change(hosts: dict[str, str]) -> dict[str, str]:
            leased.update(address for other, address in hosts.items() if other == mac)
            return {other: address for other, address in hosts.items() if other != mac}

        self._reserve(f"release the address of {mac} on the network {network}", network, change)
        leased.update(lease.address for lease in self.leases(network) if lease.mac == mac and lease.version == 4)
        if leased:
            bridge, server = self.connection.call(f"read the network {network}",
                                                  lambda conn: _served(conn, network), Lane.HOST)
            for address in leased if bridge and server else ():
                dhcp.release(bridge, server, mac, address)

    def _reserve(self, what: str, name: str, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Update the definition, then the running network; skip what is right already."""
        def act(conn: Any) -> None:
            network = _lookup(conn, name)
            if network is None:
                return
            if not _owned(network):
                raise _foreign(name)
            with self._reserving:  # what is read and what is written belong together
                kept = network.XMLDesc(_INACTIVE)
                if reservations.used(name, kept):
                    before = reservations.read(name)
                    after = change(before)
                    if after != before:
                        reservations.write(name, after)
                else:
                    _update(network, kept, change, libvirt.VIR_NETWORK_UPDATE_AFFECT_CONFIG)
                if not network.isActive():
                    return
                runs = network.XMLDesc()
                if reservations.used(name, runs):
                    reservations.tell(name)  # even of nothing new: whoever wrote it may have died before this
                else:
                    _update(network, runs, change, libvirt.VIR_NETWORK_UPDATE_AFFECT_LIVE)
        self.connection.call(what, act, Lane.HOST)

    def leases(self, network: str) -> list[Lease]:
        """virNetworkGetDHCPLeases."""
        def leases(conn: Any) -> list[Lease]:
            found = _lookup(conn, network)
            if found is None or not found.isActive():
                return []
            return [Lease(lease["mac"], lease["ipaddr"], 6 if lease["type"] == libvirt.VIR_IP_ADDR_TYPE_IPV6 else 4,
                          lease["hostname"])
                    for lease in sorted(found.DHCPLeases(), key=lambda lease: int(lease["expirytime"]))]
        return self.connection.call(f"read the leases of the network {network}", leases, Lane.HOST)

    def taps(self, uuid: str | None = None) -> list[Tap]:
        """The live XML of each active domain, twice: a device that is in both was the domain's in between, when its
        number was asked for."""
        def taps(conn: Any) -> list[Tap]:
            found = []
            for domain in conn.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE) if uuid is None else \
                    filter(None, [_domain(conn, uuid)]):
                before = _plugged(domain)
                seen = [(one, _index(one[1]), _index(one[1] if one[3] else one[2])) for one in before]
                after = _plugged(domain) if seen else []
                found += [Tap(domain.UUIDString(), mac, device, index, bridge, bridge_index, switched)
                          for (mac, device, bridge, switched), index, bridge_index in seen
                          if index and bridge_index and (mac, device, bridge, switched) in after]
            return found
        return self.connection.call("read the taps of the domains", taps)


def _domain(conn: Any, uuid: str) -> Any:
    try:
        return conn.lookupByUUIDString(uuid)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def _plugged(domain: Any) -> list[tuple[str, str, str, bool]]:
    """MAC, tap and bridge of each NIC of a running domain of ours, and whether that bridge is Open vSwitch's."""
    try:
        if not domain.isActive():
            return []
        root = ET.fromstring(domain.XMLDesc())  # noqa: S314 (libvirt wrote it)
    except libvirt.libvirtError as error:
        if error.get_error_code() in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID):
            return []  # it went away meanwhile
        raise
    found = []
    for nic in root.iterfind("devices/interface") if owner(root, "server") is not None else ():
        mac, target, source = nic.find("mac"), nic.find("target"), nic.find("source")
        place = [("" if one is None else one.get(name, "")) for one, name in
                 ((mac, "address"), (target, "dev"), (source, "bridge"))]
        if all(place):
            found.append((place[0], place[1], place[2], nic.find("virtualport") is not None))
    return found


def _index(device: str) -> int:
    try:
        return socket.if_nametoindex(device)
    except OSError:
        return 0


def _see(network: Any) -> NetworkSeen | None:
    try:
        persistent = network.isPersistent()
        root = ET.fromstring(network.XMLDesc(_INACTIVE if persistent else 0))  # noqa: S314 (libvirt wrote it)
        bridge = root.find("bridge")
        return NetworkSeen(
            uuid=root.findtext("uuid", ""), name=root.findtext("name", ""), active=bool(network.isActive()),
            autostart=bool(persistent and network.autostart()), bridge=None if bridge is None else bridge.get("name"),
            owned=owner(root, "network") is not None, cidrs=_cidrs(root))
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_NETWORK:
            return None  # it vanished while it was looked at
        raise


def _cidrs(root: ET.Element) -> tuple[str, ...]:
    """The IPv4 networks that hosts of a libvirt network have."""
    given = ((ip.get("address"), ip.get("prefix") or ip.get("netmask") or "32") for ip in root.iterfind("ip")
             if ip.get("family", "ipv4") == "ipv4")
    return tuple(str(IPv4Interface(f"{address}/{size}").network) for address, size in given)


def _served(conn: Any, name: str) -> tuple[str, str]:
    """The bridge of a network, and the host's address on it."""
    network = _lookup(conn, name)
    if network is None:
        return "", ""
    root = ET.fromstring(network.XMLDesc())  # noqa: S314 (libvirt wrote it)
    bridge, ip = root.find("bridge"), root.find("ip")
    return "" if bridge is None else bridge.get("name", ""), "" if ip is None else ip.get("address", "")


def _owned(network: Any) -> bool:
    root = ET.fromstring(network.XMLDesc(_INACTIVE if network.isPersistent() else 0))  # noqa: S314 (libvirt wrote it)
    return owner(root, "network") is not None


def _update(network: Any, xml: str, change: Callable[[dict[str, str]], dict[str, str]], flag: int) -> None:
    """virNetworkUpdate of a network that reads no file."""
    before = _hosts(xml)
    after = change(before)
    for command, here, there in ((_DELETE, before, after), (_ADD, after, before)):
        for mac, address in here.items():
            if there.get(mac) != address:
                network.update(command, libvirt.VIR_NETWORK_SECTION_IP_DHCP_HOST, -1, _host(mac, address), flag)


def _hosts(xml: str) -> dict[str, str]:
    """Address by MAC of the hosts that DHCP knows."""
    root = ET.fromstring(xml)  # noqa: S314 (libvirt wrote it)
    return {host.get("mac", "").lower(): host.get("ip", "") for host in root.iterfind("ip/dhcp/host")
            if host.get("mac")}


def _host(mac: str, address: str) -> str:
    return f"<host mac='{mac}' ip='{address}'/>"


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
