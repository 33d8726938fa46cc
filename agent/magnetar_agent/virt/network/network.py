# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks of libvirt, their leases, and the bridges of the host. Networks without Magnetar's metadata are only
read."""

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
from magnetar_agent.virt.domain.domain import owner_note
from magnetar_agent.virt.tools.process import run_program
from magnetar_agent.virt.tools.templates import fill_template
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
    """The methods of ``LocalHypervisor`` for networks, bridges and NICs."""

    connection: ConnectionPool
    templates: Path
    switch_filter: SwitchFilter
    _reserving = threading.Lock()

    def bridges(self) -> frozenset[str]:
        """Return the names of the host's Linux bridges."""
        return frozenset(path.parent.name for path in NET.glob("*/bridge"))

    def set_function(self, card: str, number: int, settings: Mapping[str, str]) -> None:
        """Set options such as trust of the virtual function *number* of the network device *card*. *settings*:
        ``{option: value}`` as in ip-link(8).
        """
        words = [part for setting in settings.items() for part in setting]
        run_program(["ip", "link", "set", "dev", card, "vf", str(number), *words],
                    f"set virtual function {number} of {card}")

    def plug_representor(self, netdev: str, desired: RepresentorPort | None) -> None:
        """Add the representor *netdev* of a virtual function to Open vSwitch as the OVN port *desired*, and set the
        device up. ``None``: remove it from Open vSwitch."""
        purpose = f"plug {netdev} into Open vSwitch, or pull it out"
        if desired is None:
            run_program(["ovs-vsctl", "--timeout=30", "--if-exists", "del-port", netdev], purpose)
            return
        about = {"iface-id": desired.port, "iface-status": "active", "attached-mac": desired.mac,
                 "vm-id": desired.server}
        run_program(["ovs-vsctl", "--timeout=30", "--may-exist", "add-port", desired.bridge, netdev, "--", "set",
                     "Interface",
                     netdev, *(f'external_ids:{name}="{value}"' for name, value in about.items())], purpose)
        run_program(["ip", "link", "set", "dev", netdev, "up"], f"switch {netdev} on")

    def integration_bridge(self, name: str) -> IntegrationBridge:
        """Return the state of the Open vSwitch bridge *name* and of OVN on this host; see
        ``ovn.inspect_integration_bridge``."""
        return ovn.inspect_integration_bridge(name)

    def filter_switch(self, bridge: str) -> None:
        """Start a thread that keeps a flow in *bridge*, and adds the flow again whenever it is missing. The flow drops
        the router advertisements that OVN has marked; see ``switch_filter``."""
        self.switch_filter.keep(bridge)

    def switch_unfiltered(self) -> str:
        """Return the reason why the flow of ``filter_switch`` is missing; "" if it is not missing."""
        return self.switch_filter.reason

    def routes(self) -> list[tuple[str, IPv4Network]]:
        """Return pairs (device, destination) of the host's IPv4 routes in all routing tables, without default,
        broadcast and multicast routes."""
        return routes.list_ip_routes()

    def networks(self) -> dict[str, NetworkSeen]:
        """Return ``{name: network}`` of all libvirt networks."""
        def networks(conn: Any) -> dict[str, NetworkSeen]:
            seen_networks = (_see(network) for network in conn.listAllNetworks())
            return {network.name: network for network in seen_networks if network is not None}
        return self.connection.call("list the networks", networks, Lane.HOST)

    def make_network(self, spec: NetworkSpec) -> None:
        """Define and start the libvirt network *spec*, with autostart. Raises ``Conflict`` if a network of another
        program has this name."""
        def make(conn: Any) -> None:
            existing = _lookup(conn, spec.name)
            current = None if existing is None else _see(existing)
            if current is not None and (not current.owned or current.uuid != spec.uuid):
                raise _foreign(spec.name)
            network = conn.networkDefineXML(fill_template(
                "network.xml.j2", {"spec": spec, "hosts_file": self._hosts_file(spec)}, self.templates))
            try:
                network.setAutostart(True)
                if not network.isActive():
                    network.create()
            except libvirt.libvirtError:
                if existing is None:
                    network.undefine()
                raise
        self.connection.call(f"make the network {spec.name}", make, Lane.HOST)

    def _hosts_file(self, spec: NetworkSpec) -> Path | None:
        """Write the DHCP reservations of the network *spec* to the file that its dnsmasq reads, and return the file's
        path. Return ``None`` if the network has no DHCP or the file cannot be written; libvirt then stores the
        reservations.
        """
        if not spec.dhcp_start:
            return None
        try:
            with self._reserving:
                reservations.write_reservations(spec.name, dict(spec.hosts))
        except OSError as error:
            log.warning("network %s: %s; its addresses are reserved by libvirt, which takes longer", spec.name, error)
            return None
        return reservations.reservations_path(spec.name)

    def remove_network(self, name: str) -> None:
        """Stop and undefine the libvirt network *name*; a missing one is ignored. Raises ``Conflict`` if Magnetar did
        not create the network."""
        def remove(conn: Any) -> None:
            network = _lookup(conn, name)
            current = None if network is None else _see(network)
            if current is None:
                return
            if not current.owned:
                raise _foreign(name)
            if network.isActive():
                network.destroy()
            if network.isPersistent():
                network.undefine()
            reservations.remove_reservations(name)
        self.connection.call(f"remove the network {name}", remove, Lane.HOST)

    def reserve(self, network: str, mac: str, address: str) -> None:
        """Reserve *address* for *mac* in the DHCP server of the libvirt network *network*."""
        def change(hosts: dict[str, str]) -> dict[str, str]:
            return {other: had for other, had in hosts.items() if other != mac and had != address} | {mac: address}

        self._reserve(f"reserve {address} on the network {network}", network, change)

    def release(self, network: str, mac: str) -> None:
        """Remove the DHCP reservation of *mac* in the libvirt network *network*, and release the leases of *mac*."""
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
                dhcp.release_lease(bridge, server, mac, address)

    def _reserve(self, purpose: str, name: str, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Change the DHCP reservations of the libvirt network *name*, in its definition and in the running dnsmasq.
        *change*: gets ``{MAC: address}`` and returns the new mapping. *purpose*: verb phrase for error messages."""
        def act(conn: Any) -> None:
            network = _lookup(conn, name)
            if network is None:
                return
            if not _owned(network):
                raise _foreign(name)
            with self._reserving:  # read and write belong together
                definition = network.XMLDesc(_INACTIVE)
                if reservations.reads_reservations(name, definition):
                    hosts_before = reservations.read_reservations(name)
                    hosts_after = change(hosts_before)
                    if hosts_after != hosts_before:
                        reservations.write_reservations(name, hosts_after)
                else:
                    _update(network, definition, change, libvirt.VIR_NETWORK_UPDATE_AFFECT_CONFIG)
                if not network.isActive():
                    return
                runs = network.XMLDesc()
                if reservations.reads_reservations(name, runs):
                    reservations.signal_dnsmasq(name)  # also when unchanged: an earlier writer may have died here
                else:
                    _update(network, runs, change, libvirt.VIR_NETWORK_UPDATE_AFFECT_LIVE)
        self.connection.call(purpose, act, Lane.HOST)

    def leases(self, network: str) -> list[Lease]:
        """Return the DHCP leases of the libvirt network *network*, sorted by expiry time."""
        def leases(conn: Any) -> list[Lease]:
            libvirt_network = _lookup(conn, network)
            if libvirt_network is None or not libvirt_network.isActive():
                return []
            return [Lease(lease["mac"], lease["ipaddr"], 6 if lease["type"] == libvirt.VIR_IP_ADDR_TYPE_IPV6 else 4,
                          lease["hostname"])
                    for lease in sorted(libvirt_network.DHCPLeases(), key=lambda lease: int(lease["expirytime"]))]
        return self.connection.call(f"read the leases of the network {network}", leases, Lane.HOST)

    def taps(self, uuid: str | None = None) -> list[Tap]:
        """Return the tap devices of all running domains of Magnetar, or only of the domain *uuid*. Taps that change
        while they are read are left out, so that a tap is never reported for the wrong domain."""
        def taps(conn: Any) -> list[Tap]:
            stable_taps = []
            for domain in conn.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE) if uuid is None else \
                    filter(None, [_domain(conn, uuid)]):
                plugged_before = _plugged(domain)
                indexed = [(nic, _index(nic[1]), _index(nic[1] if nic[3] else nic[2])) for nic in plugged_before]
                plugged_after = _plugged(domain) if indexed else []
                stable_taps += [Tap(domain.UUIDString(), mac, device, index, bridge, bridge_index, switched)
                                for (mac, device, bridge, switched), index, bridge_index in indexed
                                if index and bridge_index and (mac, device, bridge, switched) in plugged_after]
            return stable_taps
        return self.connection.call("read the taps of the domains", taps)


def _domain(conn: Any, uuid: str) -> Any:
    try:
        return conn.lookupByUUIDString(uuid)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def _plugged(domain: Any) -> list[tuple[str, str, str, bool]]:
    """Return tuples (MAC, tap, bridge, whether it is an Open vSwitch bridge) for the NICs of *domain*; empty if the
    domain is not running or Magnetar did not create it."""
    try:
        if not domain.isActive():
            return []
        root = ET.fromstring(domain.XMLDesc())  # noqa: S314 (libvirt wrote it)
    except libvirt.libvirtError as error:
        if error.get_error_code() in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID):
            return []  # it disappeared meanwhile
        raise
    nics = []
    for nic in root.iterfind("devices/interface") if owner_note(root, "server") is not None else ():
        mac, target, source = nic.find("mac"), nic.find("target"), nic.find("source")
        place = [("" if child is None else child.get(name, "")) for child, name in
                 ((mac, "address"), (target, "dev"), (source, "bridge"))]
        if all(place):
            nics.append((place[0], place[1], place[2], nic.find("virtualport") is not None))
    return nics


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
            owned=owner_note(root, "network") is not None, cidrs=_cidrs(root))
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_NETWORK:
            return None  # it disappeared while it was read
        raise


def _cidrs(root: ET.Element) -> tuple[str, ...]:
    """Return the IPv4 networks in *root*, the XML of a libvirt network, in CIDR notation."""
    prefixes = ((ip.get("address"), ip.get("prefix") or ip.get("netmask") or "32") for ip in root.iterfind("ip")
                if ip.get("family", "ipv4") == "ipv4")
    return tuple(str(IPv4Interface(f"{address}/{size}").network) for address, size in prefixes)


def _served(conn: Any, name: str) -> tuple[str, str]:
    """Return (bridge, host's IP address on it) of the libvirt network *name*; "" for a missing value."""
    network = _lookup(conn, name)
    if network is None:
        return "", ""
    root = ET.fromstring(network.XMLDesc())  # noqa: S314 (libvirt wrote it)
    bridge, ip = root.find("bridge"), root.find("ip")
    return "" if bridge is None else bridge.get("name", ""), "" if ip is None else ip.get("address", "")


def _owned(network: Any) -> bool:
    root = ET.fromstring(network.XMLDesc(_INACTIVE if network.isPersistent() else 0))  # noqa: S314 (libvirt wrote it)
    return owner_note(root, "network") is not None


def _update(network: Any, xml: str, change: Callable[[dict[str, str]], dict[str, str]], flag: int) -> None:
    """Change the DHCP reservations of *network* with virNetworkUpdate, for a network whose dnsmasq does not read
    reservations from a file. *xml*: the network's XML. *change*: gets ``{MAC: address}`` and returns the new mapping.
    *flag*: libvirt's flag for the live or the persistent configuration."""
    hosts_before = _hosts(xml)
    hosts_after = change(hosts_before)
    for command, hosts, other_hosts in ((_DELETE, hosts_before, hosts_after), (_ADD, hosts_after, hosts_before)):
        for mac, address in hosts.items():
            if other_hosts.get(mac) != address:
                network.update(command, libvirt.VIR_NETWORK_SECTION_IP_DHCP_HOST, -1, _host(mac, address), flag)


def _hosts(xml: str) -> dict[str, str]:
    """Return the DHCP reservations ``{MAC: address}`` in *xml*, the XML of a libvirt network."""
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
