# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type network: records existing bridges of the host, and makes libvirt networks (nat,
isolated).

The libvirt network has the document's name and uuid. A network that the agent did not make is never adopted; servers
may use it by its name without a document.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.networks import NetworkSeen, NetworkSpec
from magnetar_agent.servers.nics.addresses import dhcp_hosts
from magnetar_core import addresses
from magnetar_core.errors import Conflict, InUse, InvalidField
from magnetar_core.kinds import Network
from magnetar_core.plan import Step

from .document import DocumentDriver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task, Verb

MTU_MIN = 576
_DOMAIN = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")


@dataclass(frozen=True)
class HostNetworks:
    """A snapshot of the host: its libvirt networks by name, and the names of its bridges."""

    networks: Mapping[str, NetworkSeen]
    bridges: frozenset[str]


class NetworkDriver(DocumentDriver):
    """The resource driver of networks: existing bridges of the host, and libvirt networks that the agent creates."""

    def __init__(self) -> None:
        super().__init__(Network)
        self.verbs: Mapping[str, Verb] = {"make": _make, "remove": _remove}

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the requested fields *want* with the missing values filled in: addresses, DHCP range and name of the
        bridge. *document*: the stored network, ``None`` for a new one. Raises ``InvalidField`` or ``Conflict`` for a
        network that cannot work on this host."""
        want = _renewed(want, document.want) if document else dict(want)
        if want["mode"] == "ovn":
            raise InvalidField("mode", "must be bridge, nat or isolated: ovn is over all hosts of a cloud, which makes "
                                       "it. Ask the cloud for it", "ovn")
        if want.get("qos_policy"):
            raise InvalidField("qos_policy", "is for networks of a cloud with OVN, which has QoS policies",
                               want["qos_policy"])
        if document is None:
            _check_name(want["name"], host.hypervisor.networks())
        if want["mode"] == "bridge":
            return _existing(host, want)
        net = addresses.normalize_cidr(want)
        if document is None or want["cidr"] != document.want.get("cidr"):
            _check_free(host, want, net, document)
        if document is None or want.get("bridge") != document.want.get("bridge"):
            want["bridge"] = _bridge(host, want.get("bridge"), document)
        _dhcp(want, net)
        _check_rest(want)
        return want

    def release(self, host: LocalHost, document: Document) -> None:
        """Raise ``InUse`` while a server has a NIC on the network."""
        users = [server.name for server in host.documents.list("server")
                 if any(nic.get("network") in (document.id, document.name) for nic in server.want.get("networks", []))]
        if users:
            raise InUse(f"Network {document.name!r} is used by {', '.join(users)}. Remove these servers, or their NICs "
                        "on it, first.", users=users)

    def snapshot(self, host: LocalHost, document: Document | None = None) -> HostNetworks:
        """Return the networks and bridges of the host."""
        return HostNetworks(host.hypervisor.networks(), host.hypervisor.bridges())

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """Return the document's fields and the state of the network on the host: ``made`` (this agent created it in
        libvirt), ``active``, and ``autostart``. *snapshot*: a result of the method ``snapshot``; ``None``: ask libvirt
        now."""
        host_networks: HostNetworks = snapshot or self.snapshot(host)
        if document.want["mode"] == "bridge":
            return {**document.want, "made": False, "active": document.want["bridge"] in host_networks.bridges}
        network = host_networks.networks.get(document.name)
        made = network is not None and network.owned and network.uuid == document.id
        return {**document.want, "made": made, "active": bool(made and network and network.active),
                "autostart": bool(made and network and network.autostart)}

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield the steps that create, start or remove the libvirt network, from the current state *have* (the result
        of ``observe``) to the requested fields *want* (``None``: remove it). For an existing bridge of the host there
        are no steps."""
        made = bool(have and have["made"])
        if want is None:
            if made:
                yield Step("remove", "remove the libvirt network")
        elif want["mode"] != "bridge" and not (have and made and have["active"] and have["autostart"]):
            yield Step("make", "start the libvirt network" if made else "make the libvirt network")

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the network as API responses show it, with ``active`` (whether it is up) and ``managed`` (whether the
        agent created it). *have*: the result of ``observe``."""
        shown = super().show(host, document, have, snapshot)
        active = (have or {}).get("active", True)
        return {**shown, "active": active, "managed": document.want["mode"] != "bridge"}


def _make(task: Task) -> None:
    want = task.document.want
    net = IPv4Network(want["cidr"])
    task.host.hypervisor.make_network(NetworkSpec(
        uuid=task.document.id, name=want["name"], mode=want["mode"], bridge=want["bridge"],
        address=str(net.network_address + 1), prefix=net.prefixlen, dhcp_start=want["dhcp_start"],
        dhcp_end=want["dhcp_end"], domain=want["domain"], mtu=want["mtu"],
        hosts=dhcp_hosts(task.host, task.document) if want["dhcp"] else ()))


def _remove(task: Task) -> None:
    task.host.hypervisor.remove_network(task.document.name)


def _renewed(want: Fields, old: Fields) -> Fields:
    """Return a copy of the requested fields *want* without the values that must be computed again because the mode, the
    addresses or the DHCP setting differ from the stored fields *old*. A value in *want* that differs from the stored
    one stays, because the caller has chosen it."""
    want = dict(want)
    follow: tuple[str, ...] = ("cidr", "bridge", "dhcp") if want["mode"] != old["mode"] else ()
    if follow or want.get("cidr") != old.get("cidr") or want.get("dhcp") != old.get("dhcp"):
        follow += ("dhcp_start", "dhcp_end")
    for name in follow:
        if name in want and want[name] == old.get(name):
            del want[name]
    return want


def _check_name(name: str, networks: Mapping[str, NetworkSeen]) -> None:
    if name in networks:
        raise Conflict(f"The host has a libvirt network {name!r} already, which is no document of this agent; it is "
                       "not adopted. Servers can use it by its name as it is; for a network of your own choose another "
                       "name, or remove that one with virsh net-destroy and net-undefine.")


def _existing(host: LocalHost, want: Fields) -> Fields:
    """Return the requested fields *want* of a network of mode ``bridge``, with defaults. Raises ``InvalidField`` if the
    bridge does not exist, or if *want* has addresses or DHCP settings, which the agent does not set on an existing
    bridge."""
    if not want.get("bridge"):
        raise InvalidField("bridge", "is required with mode bridge")
    for name in ("cidr", "dhcp", "dhcp_start", "dhcp_end", "domain", "mtu"):
        if want.get(name):
            raise InvalidField(name, "is for the modes nat and isolated; an existing bridge is used as it is")
    bridges = host.hypervisor.bridges()
    if want["bridge"] not in bridges:
        bridges_text = f"has {', '.join(sorted(bridges))}" if bridges else "has none"
        raise InvalidField("bridge", f"must be an existing bridge of the host, which {bridges_text}", want["bridge"])
    return {**want, "dhcp": False, "dhcp_start": None, "dhcp_end": None}


def _check_free(host: LocalHost, want: Fields, net: IPv4Network, document: Document | None) -> None:
    """Raise ``InvalidField`` if the addresses *net* of the network *want* overlap with another network of the agent or
    of libvirt, or with a route of the host. In the case of an overlap, the host's traffic to these addresses would go
    to the guests. *document*: the stored network, whose own addresses are ignored; ``None`` for a new one."""
    for other in host.documents.list("network"):
        cidr = other.want.get("cidr")
        if cidr and (document is None or other.id != document.id) and net.overlaps(IPv4Network(cidr)):
            raise InvalidField("cidr", f"overlaps with {cidr} of network {other.name!r}", want["cidr"])
    for network in host.hypervisor.networks().values():
        taken = next((cidr for cidr in network.cidrs if net.overlaps(IPv4Network(cidr))), None)
        if taken and network.name != want["name"]:
            raise InvalidField("cidr", f"overlaps with {taken} of libvirt's network {network.name!r}", want["cidr"])
    own_bridge = document.want.get("bridge") if document else None
    for device, route in host.hypervisor.routes():
        if device != own_bridge and net.overlaps(route):
            raise InvalidField("cidr", f"overlaps with {route}, which the host has on {device or 'no device'}",
                               want["cidr"])


def _bridge(host: LocalHost, requested_name: str | None, document: Document | None) -> str:
    """Return the name of the bridge to create: *requested_name*, or without a requested name the first free
    ``magbr<N>``. Raises ``InvalidField`` if another bridge has the requested name. *document*: the stored network,
    whose present bridge counts as free; ``None`` for a new network."""
    other_bridges = [other.want.get("bridge") for other in host.documents.list("network")
                     if document is None or other.id != document.id]
    taken = {*host.hypervisor.bridges(), *filter(None, other_bridges),
             *(network.bridge for network in host.hypervisor.networks().values() if network.bridge)}
    if requested_name in taken:
        raise InvalidField("bridge", "must be a name that no bridge of the host has; leave it out to have one drawn",
                           requested_name)
    return requested_name or next(name for name in map("magbr{}".format, range(len(taken) + 1)) if name not in taken)


def _dhcp(want: Fields, net: IPv4Network) -> None:
    """Fill in the DHCP range in *want*: by default all addresses of *net* except the first, which the host has. Without
    DHCP, raise ``InvalidField`` if *want* has a range."""
    dhcp_range = {name: want.get(name) for name in ("dhcp_start", "dhcp_end")}
    want.setdefault("dhcp", True)
    if not want["dhcp"]:
        for name, value in dhcp_range.items():
            if value:
                raise InvalidField(name, "needs dhcp to be true", value)
        want.update(dict.fromkeys(dhcp_range))
        return
    addresses.fill_dhcp_range(want, net)


def _check_rest(want: Fields) -> None:
    if want["domain"] is not None and not (len(want["domain"]) <= 253 and _DOMAIN.fullmatch(want["domain"])):
        raise InvalidField("domain", "must be a DNS domain such as lab.example", want["domain"])
    if 0 < want["mtu"] < MTU_MIN:
        raise InvalidField("mtu", f"must be 0 (the default) or at least {MTU_MIN}", want["mtu"])
