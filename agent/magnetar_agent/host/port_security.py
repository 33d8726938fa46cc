# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of the frames that guests may send and receive.

The filter of each NIC follows from the documents of its server and security groups, not from the state of running
guests. One thread loads the filters into the kernel (``virt.network.port_filter``). Operations do not wait for the
thread: a NIC that the filter does not contain yet sends and receives nothing. The filter stays when the agent or
libvirt ends, and is removed with the last NIC and network. A flushed filter is loaded again immediately: the kernel
reports removed tables.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from dataclasses import replace
from ipaddress import IPv4Network, ip_interface
from typing import TYPE_CHECKING, Any

from magnetar_agent.drivers.group_filter import parse_group_rule
from magnetar_agent.metadata.steering import Steering
from magnetar_agent.servers.adoption.adopted import is_adopted
from magnetar_agent.servers.nics.addresses import bare_address, managed_network
from magnetar_core.errors import MagnetarError
from magnetar_core.hardware.pci import REMOTE

from .networks import Port, PortFilter, PortGroup, tap_name, tap_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from magnetar_agent.reconcile.documents import Document, Fields

    from .host import LocalHost

log = logging.getLogger(__name__)

#: Seconds between two checks that the filter exists, in case the kernel's report is missed.
POLL_INTERVAL = 30.0
#: Seconds over which changes are gathered: the operation that starts a guest ends meanwhile, and many starts are one
#: change.
GATHER = 0.02
#: Tasks of the thread besides ids of servers: check all servers; the security groups; that the filter exists; end.
ALL, GROUPS, THERE, END = "", "groups", "there", "end"


class PortSecurity:
    """The thread that updates the host's packet filter for guests' NICs when documents (desired states of resources)
    change."""

    def __init__(self, host: LocalHost) -> None:
        self.host = host
        self.prefix = tap_prefix(host.settings.state_dir)
        self.metadata = Steering.of(host.settings.state_dir).device
        self._todo: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="port-security", daemon=True)
        self._ending = threading.Event()
        self._loaded: PortFilter | None = None
        #: Ports by server; those of an incoming server are known before its guest arrives.
        self._ports: dict[str, frozenset[Port]] = {}
        self._seeded = False
        #: NICs by server, as last sent to the thread.
        self._nics: dict[str, Fields] = {}
        #: Why ports are not filtered as they should be; "" if they are.
        self.reason = ""

    def start(self) -> None:
        """Load the filter, and start the thread that updates it. Must be called before any guest is started."""
        self.host.documents.listen(self._written)
        self.host.hypervisor.on_connect(lambda: self._todo.put(THERE))
        self.host.hypervisor.on_filters_gone(lambda: self._todo.put(THERE))
        self._keep({ALL})
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. The filter stays in the kernel."""
        if self._thread.is_alive():
            self._ending.set()
            self._todo.put(END)
            self._thread.join(20)

    def status(self) -> dict[str, Any]:
        """Return the host's field ``port_security``: ``ports``, the number of filtered NICs, and ``reason``, why
        filters are missing or incomplete ("" if they are complete)."""
        ports = self._loaded.ports if self._loaded else ()
        return {"ports": sum(not port.switched for port in ports),
                "reason": self.reason or self.host.hypervisor.switch_unfiltered()}

    # Called from other threads --------------------------------------------------------------------------------------
    def _written(self, document: Document, removed: bool) -> None:
        if document.kind == "server":
            self._server_written(document.id)
        elif document.kind == "network":
            self._todo.put(ALL)
        elif document.kind == "group_filter":
            self._todo.put(GROUPS)
        elif document.kind == "migration" and document.want["side"] == "target":
            self._todo.put(document.want["server"])

    def _server_written(self, id: str) -> None:
        """Wake the thread if the server's NICs have changed. Other changes are ignored: a document is written several
        times while a server is created, and each update of the filter would delay the server."""
        server = self.host.documents.peek_by_id("server", id)
        nics: Any = server.want["networks"] if server is not None else []
        changed = nics != self._nics.get(id, [])
        if nics:
            self._nics[id] = nics
        else:
            self._nics.pop(id, None)
        if changed or self.reason:
            self._todo.put(id)

    # The thread -----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            todo = set[str]()
            with contextlib.suppress(queue.Empty):
                todo.add(self._todo.get(timeout=POLL_INTERVAL))
                self._ending.wait(GATHER)
                while True:
                    todo.add(self._todo.get_nowait())
            self._keep((todo - {END}) or {THERE})
            if END in todo:
                return

    def _keep(self, todo: set[str]) -> None:
        """Read from the documents the ports of the servers in *todo* (ids, or a constant such as ``ALL``). Update the
        filter in the kernel if the ports have changed or the filter was removed. Errors are logged, and stored in
        ``reason``."""
        try:
            if self.reason or (THERE in todo and self._loaded is not None and not self._is_there()):
                self._loaded, self._seeded = None, False
            self._read_ports(todo)
            self._load()
            problem = ""
        except MagnetarError as error:
            problem = error.message
        except Exception as error:  # the thread must live: guests are kept apart by its filter
            log.exception("port security")
            problem = str(error)
        if problem and problem != self.reason:
            log.error("guests' ports are not filtered as they should be: %s", problem)
        self.reason = problem

    def _is_there(self) -> bool:
        none = self._loaded is None or not (self._loaded.ports or self._loaded.bridges)
        return none or self.host.hypervisor.filters_ports(self.prefix)

    def _read_ports(self, todo: set[str]) -> None:
        """Read the ports of the servers in *todo* (ids; ``ALL``: all servers) from the documents into ``_ports``."""
        documents = self.host.documents
        if ALL in todo or self._loaded is None:
            todo = {server.id for server in documents.peek("server")} | {
                migration.want["server"] for migration in documents.peek("migration")
                if migration.want["side"] == "target"}
            self._ports = {}
        coming = None
        for id in todo - {ALL, GROUPS, THERE}:
            server = documents.peek_by_id("server", id)
            if server is None:
                coming = _coming(self.host) if coming is None else coming
            if is_adopted(server):
                continue  # its definition names its taps, and its network is as it was
            nics = server.want["networks"] if server is not None else coming.get(id, ()) if coming else ()
            self._ports.pop(id, None)
            if any(nic.get("port") and nic.get("vnic_type") != REMOTE for nic in nics):
                self.host.hypervisor.filter_switch(self.host.settings.integration_bridge)
            if taps := [nic for nic in nics if not nic.get("physical_network")]:
                self._ports[id] = frozenset(port_of_nic(self.host, id, nic) for nic in taps)

    def _load(self) -> None:
        ports = frozenset[Port]().union(*self._ports.values())
        desired = PortFilter(
            self.prefix, ports,
            frozenset(network.want["bridge"] for network in self.host.documents.peek("network")
                      if network.want["mode"] != "bridge" and network.want.get("bridge")),
            self.host.settings.guest_ports, self._groups(ports), self.metadata)
        if desired != self._loaded:
            loaded, self._loaded = self._loaded, None  # if the next call fails, the loaded filter is unknown
            self.host.hypervisor.filter_ports(desired, loaded)
            self._loaded = desired
        if not self._seeded:
            self._seed(desired)

    def _groups(self, ports: frozenset[Port]) -> frozenset[PortGroup]:
        """Return the security groups of *ports*, and the groups that the rules of these groups refer to."""
        members: dict[str, set[str]] = {}
        for port in ports:
            for id in port.groups or ():
                members.setdefault(id, set()).update(address for address in port.addresses if "/" not in address)
        groups: dict[str, PortGroup] = {}
        named = set(members)
        while named:
            id = named.pop()
            document = self.host.documents.peek_by_id("group_filter", id)
            want = document.want if document is not None else {"rules": (), "members": ()}
            groups[id] = PortGroup(id, tuple(map(parse_group_rule, want["rules"])),
                                   frozenset((*want["members"], *members.get(id, ()))))
            if id in members:  # for a group that is only named, its addresses are enough
                named |= {rule.group for rule in groups[id].rules if rule.group is not None} - groups.keys()
        return frozenset(groups.values())

    def _seed(self, desired: PortFilter) -> None:
        """Permit the addresses that DHCP assigned to ports of *desired* before the filter was loaded. The filter itself
        learns only addresses that are assigned later."""
        taps = {port.mac: port.tap for port in desired.ports if port.dhcp}
        with contextlib.suppress(MagnetarError):  # libvirt is away: try again once it is back
            networks = [network.name for network in self.host.documents.peek("network")
                        if network.want.get("dhcp")] if taps else []
            self.host.hypervisor.allow_leased(self.prefix, [
                (taps[lease.mac], lease.address) for name in networks for lease in self.host.hypervisor.leases(name)
                if lease.version == 4 and lease.mac in taps])
            self._seeded = True


def port_of_nic(host: LocalHost, server: str, nic: Fields) -> Port:
    """Return the filter rules for the NIC *nic* (an item of ``networks``) of the server with the uuid *server*."""
    tap = tap_name(host.settings.state_dir, server, nic["mac"])
    if nic.get("port"):
        return Port(tap, nic["mac"], switched=True)
    if not nic.get("port_security", True):
        return Port(tap, nic["mac"], secure=False)
    return replace(_addressed(host, tap, nic), groups=_groups_of(nic))


def _groups_of(nic: Fields) -> tuple[str, ...] | None:
    return None if nic.get("security_groups") is None else tuple(sorted(nic["security_groups"]))


def _addressed(host: LocalHost, tap: str, nic: Fields) -> Port:
    """Return the filter rules for a NIC with port security; the caller adds the NIC's security groups. *tap*: its tap
    device. *nic*: an item of ``networks`` of a server."""
    network = managed_network(host, nic)
    allowed = [_short(address) for address in nic.get("allowed_addresses") or ()]
    four = tuple(dict.fromkeys(filter(None, (bare_address(nic),
                                             *(address for address in allowed if ":" not in address)))))
    six = tuple(address for address in allowed if ":" in address)
    if network is None:
        return Port(tap, nic["mac"], four or None, six or None)
    asks = bool(network.want["dhcp"]) and not bare_address(nic)
    addresses_known = bool(four) or asks
    gateway = str(IPv4Network(network.want["cidr"]).network_address + 1)
    return Port(tap, nic["mac"], four if addresses_known else None, six, asks, () if addresses_known else (gateway,),
                resolver=gateway if _groups_of(nic) is not None else "")


def _short(address: str) -> str:
    """Return *address* without the prefix length if it is a single address (/32 or /128)."""
    interface = ip_interface(address)
    return str(interface.ip) if interface.network.prefixlen == interface.max_prefixlen else str(interface.network)


def _coming(host: LocalHost) -> dict[str, Iterable[Fields]]:
    """Return the NICs of servers that are migrating to this host, by the server's uuid."""
    return {migration.want["server"]: migration.state["server"]["want"]["networks"]
            for migration in host.documents.peek("migration")
            if migration.want["side"] == "target" and migration.state.get("server")}
