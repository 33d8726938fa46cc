# SPDX-License-Identifier: GPL-3.0-or-later
"""Which frames guests may send and get: the filter of each NIC follows from the server's document, and those of its
security groups, and from nothing that runs.

One thread has the kernel filter as the documents say now (``virt.network.port_filter``). Nobody waits for it: a NIC
that the filter does not know yet sends and hears nothing. It outlives the agent, and libvirt, and goes with the last
NIC and network. What somebody flushes is loaded again at once: the kernel tells of tables that go.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from dataclasses import replace
from ipaddress import IPv4Network, ip_interface
from typing import TYPE_CHECKING, Any

from magnetar_agent.drivers.group_filter import rule
from magnetar_agent.metadata.steering import Steering
from magnetar_agent.servers.nics.addresses import bare_address, managed_network
from magnetar_core.errors import MagnetarError
from magnetar_core.hardware.pci import REMOTE

from .networks import Port, PortFilter, PortGroup, tap_name, tap_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from magnetar_agent.reconcile.documents import Document, Fields

    from .host import LocalHost

log = logging.getLogger(__name__)

#: Seconds between two looks whether the filter is there, should the kernel's word be missed.
LOOK = 30.0
#: Seconds in which changes gather: the operation that starts a guest ends meanwhile, and many starts are one change.
GATHER = 0.02
#: What is to be done: look at a server or at all; at security groups; look whether the filter is there; end.
ALL, GROUPS, THERE, END = "", "groups", "there", "end"


class PortSecurity:
    """See the head of this file."""

    def __init__(self, host: LocalHost) -> None:
        self.host = host
        self.prefix = tap_prefix(host.settings.state_dir)
        self.metadata = Steering.of(host.settings.state_dir).device
        self._todo: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="port-security", daemon=True)
        self._ending = threading.Event()
        self._loaded: PortFilter | None = None
        #: By server; what a migration brings is known before the guest comes.
        self._ports: dict[str, frozenset[Port]] = {}
        self._seeded = False
        #: By server, as last told to the thread.
        self._nics: dict[str, Fields] = {}
        #: Why ports are not filtered as they should be; "": they are.
        self.reason = ""

    def start(self) -> None:
        """Load the filter, before any guest is started, and keep it from now on."""
        self.host.documents.listen(self._written)
        self.host.hypervisor.on_connect(lambda: self._todo.put(THERE))
        self.host.hypervisor.on_filters_gone(lambda: self._todo.put(THERE))
        self._keep({ALL})
        self._thread.start()

    def close(self) -> None:
        """End. The filter stays as long as there are servers."""
        if self._thread.is_alive():
            self._ending.set()
            self._todo.put(END)
            self._thread.join(20)

    def status(self) -> dict[str, Any]:
        """The field ``port_security`` of ``kinds.Host``."""
        ports = self._loaded.ports if self._loaded else ()
        return {"ports": sum(not one.switched for one in ports),
                "reason": self.reason or self.host.hypervisor.switch_unfiltered()}

    # What comes from other threads ----------------------------------------------------------------------------------
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
        """Wake the thread where other NICs are filtered now: a server is written several times while it is made, and
        each look takes time from who makes it."""
        found = self.host.documents.look("server", id)
        nics: Any = found.want["networks"] if found is not None else []
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
                todo.add(self._todo.get(timeout=LOOK))
                self._ending.wait(GATHER)
                while True:
                    todo.add(self._todo.get_nowait())
            self._keep((todo - {END}) or {THERE})
            if END in todo:
                return

    def _keep(self, todo: set[str]) -> None:
        """Have the kernel filter as the documents say."""
        try:
            if self.reason or (THERE in todo and self._loaded is not None and not self._is_there()):
                self._loaded, self._seeded = None, False
            self._look(todo)
            self._load()
            said = ""
        except MagnetarError as error:
            said = error.message
        except Exception as error:  # the thread must live: guests are kept apart by it
            log.exception("port security")
            said = str(error)
        if said and said != self.reason:
            log.error("guests' ports are not filtered as they should be: %s", said)
        self.reason = said

    def _is_there(self) -> bool:
        none = self._loaded is None or not (self._loaded.ports or self._loaded.bridges)
        return none or self.host.hypervisor.filters_ports(self.prefix)

    def _look(self, todo: set[str]) -> None:
        """Find the ports of servers that have changed."""
        documents = self.host.documents
        if ALL in todo or self._loaded is None:
            todo = {one.id for one in documents.peek("server")} | {
                one.want["server"] for one in documents.peek("migration") if one.want["side"] == "target"}
            self._ports = {}
        coming = None
        for id in todo - {ALL, GROUPS, THERE}:
            server = documents.look("server", id)
            if server is None:
                coming = _coming(self.host) if coming is None else coming
            nics = server.want["networks"] if server is not None else coming.get(id, ()) if coming else ()
            self._ports.pop(id, None)
            if any(nic.get("port") and nic.get("vnic_type") != REMOTE for nic in nics):
                self.host.hypervisor.filter_switch(self.host.settings.integration_bridge)
            if taps := [nic for nic in nics if not nic.get("physical_network")]:
                self._ports[id] = frozenset(port(self.host, id, nic) for nic in taps)

    def _load(self) -> None:
        ports = frozenset[Port]().union(*self._ports.values())
        wanted = PortFilter(
            self.prefix, ports,
            frozenset(one.want["bridge"] for one in self.host.documents.peek("network")
                      if one.want["mode"] != "bridge" and one.want.get("bridge")),
            self.host.settings.guest_ports, self._groups(ports), self.metadata)
        if wanted != self._loaded:
            before, self._loaded = self._loaded, None  # whatever is loaded when this fails
            self.host.hypervisor.filter_ports(wanted, before)
            self._loaded = wanted
        if not self._seeded:
            self._seed(wanted)

    def _groups(self, ports: frozenset[Port]) -> frozenset[PortGroup]:
        """The security groups that *ports* have, and those that rules of these name."""
        members: dict[str, set[str]] = {}
        for port in ports:
            for id in port.groups or ():
                members.setdefault(id, set()).update(one for one in port.addresses if "/" not in one)
        found: dict[str, PortGroup] = {}
        named = set(members)
        while named:
            id = named.pop()
            said = self.host.documents.look("group_filter", id)
            want = said.want if said is not None else {"rules": (), "members": ()}
            found[id] = PortGroup(id, tuple(map(rule, want["rules"])),
                                  frozenset((*want["members"], *members.get(id, ()))))
            if id in members:  # of one that is named only, the addresses matter
                named |= {one.group for one in found[id].rules if one.group is not None} - found.keys()
        return frozenset(found.values())

    def _seed(self, wanted: PortFilter) -> None:
        """Tell of addresses that DHCP gave while there was no filter to learn them."""
        taps = {one.mac: one.tap for one in wanted.ports if one.dhcp}
        with contextlib.suppress(MagnetarError):  # libvirt is away: once it is back
            networks = [one.name for one in self.host.documents.peek("network") if one.want.get("dhcp")] if taps else []
            self.host.hypervisor.allow_leased(self.prefix, [
                (taps[lease.mac], lease.address) for name in networks for lease in self.host.hypervisor.leases(name)
                if lease.version == 4 and lease.mac in taps])
            self._seeded = True


def port(host: LocalHost, server: str, nic: Fields) -> Port:
    """What may come from a server's NIC."""
    tap = tap_name(host.settings.state_dir, server, nic["mac"])
    if nic.get("port"):
        return Port(tap, nic["mac"], switched=True)
    if not nic.get("port_security", True):
        return Port(tap, nic["mac"], secure=False)
    return replace(_addressed(host, tap, nic), groups=_groups_of(nic))


def _groups_of(nic: Fields) -> tuple[str, ...] | None:
    return None if nic.get("security_groups") is None else tuple(sorted(nic["security_groups"]))


def _addressed(host: LocalHost, tap: str, nic: Fields) -> Port:
    """The port of a NIC with port security, without what its security groups say."""
    network = managed_network(host, nic)
    allowed = [_short(one) for one in nic.get("allowed_addresses") or ()]
    four = tuple(dict.fromkeys(filter(None, (bare_address(nic), *(one for one in allowed if ":" not in one)))))
    six = tuple(one for one in allowed if ":" in one)
    if network is None:
        return Port(tap, nic["mac"], four or None, six or None)
    asks = bool(network.want["dhcp"]) and not bare_address(nic)
    known = bool(four) or asks
    gateway = str(IPv4Network(network.want["cidr"]).network_address + 1)
    return Port(tap, nic["mac"], four if known else None, six, asks, () if known else (gateway,),
                resolver=gateway if _groups_of(nic) is not None else "")


def _short(address: str) -> str:
    """Without the prefix of a single address."""
    given = ip_interface(address)
    return str(given.ip) if given.network.prefixlen == given.max_prefixlen else str(given.network)


def _coming(host: LocalHost) -> dict[str, Iterable[Fields]]:
    """The NICs of servers that migrate to this host, by server."""
    return {one.want["server"]: one.state["server"]["want"]["networks"] for one in host.documents.peek("migration")
            if one.want["side"] == "target" and one.state.get("server")}
