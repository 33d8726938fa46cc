# SPDX-License-Identifier: GPL-3.0-or-later
"""``FakeHypervisor``: a host without libvirt, for unit tests and for simulating many hosts.

It keeps to the contract of ``LocalHypervisor`` (``tests/contract/test_hypervisor.py`` runs against both). Domains and
networks are in memory, and in a JSON file when a folder is given, so that they outlive a killed agent as libvirt's do.
Disks are real small files: sparse raw files and qcow2 headers. Guests obey at once, unless their uuid is in ``deaf``.
"""

from __future__ import annotations

import threading
from ipaddress import IPv4Interface
from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware.cpu import (
    CUSTOM,
    HOST_MODEL,
    MAXIMUM,
    PASSTHROUGH,
    CpuChoices,
    Features,
    with_features,
)
from magnetar_agent.host.hypervisor import DomainEvent
from magnetar_agent.host.networks import IntegrationBridge, Lease, NetworkSeen, NetworkSpec, PortFilter, Tap
from magnetar_core.errors import Conflict, HypervisorError
from magnetar_core.hardware.architectures import MACHINES
from magnetar_core.hardware.numa import HostCell
from magnetar_core.operations import now
from magnetar_core.power import CRASHED, OFF, PAUSED, RUNNING

from .consoles import Consoles
from .devices import Devices
from .disks import Disks
from .guest_agent import GuestAgent
from .migrate import Migrations
from .mirror import Mirrors
from .state import FakeDomain, FakeNetwork, host_of, parse
from .statistics import Statistics
from .storage import Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from ipaddress import IPv4Network

__all__ = ["FakeHypervisor"]


class FakeHypervisor(GuestAgent, Consoles, Mirrors, Devices, Statistics, Migrations, Storage, Disks):
    """See the head of this file. *delay* seconds pass in each call; *folder* keeps the state."""

    #: What ``routes`` gives: the host is on no network that anybody could meet.
    on_networks: Sequence[tuple[str, IPv4Network]] = ()
    #: Whether there is a virtiofsd.
    virtiofsd = True
    #: Whether QEMU has SPICE.
    spice = True
    #: What guests can boot by, and whether with secure boot.
    firmware: Sequence[str] = ("bios", "uefi")
    secure_boot = True
    #: Versions of TPM that guests can have.
    tpm_versions: Sequence[str] = ("1.2", "2.0")
    #: Formats in which disks can be encrypted.
    disk_encryption: Sequence[str] = ("luks",)
    #: Machine types that guests can have, and the version that each is.
    machine_types: Mapping[str, str] = {
        **{name: name for name in ("pc-i440fx-7.1", "pc-i440fx-7.2", "pc-q35-7.1", "pc-q35-7.2")},
        "pc": "pc-i440fx-7.2", "q35": "pc-q35-7.2"}
    #: Other architectures that guests can have.
    emulated_architectures: Sequence[str] = ()
    #: What can encrypt guests' memory.
    memory_encryption: Mapping[str, Mapping[str, int]] = {}
    #: Features of the CPU models that libvirt knows; ``None`` of those that this host cannot give.
    cpu_models: Mapping[str, frozenset[str] | None] = {
        "qemu64": frozenset(("sse2", "pni")), "Nehalem": frozenset(("sse2", "pni", "ssse3", "vmx")),
        "Haswell": frozenset(("sse2", "pni", "ssse3", "vmx", "avx2")), "Icelake-Server": None}
    #: What it lacks to limit NICs.
    no_traffic_control = ""
    #: What ``numa_cells`` gives: one cell without large pages.
    cells: Sequence[HostCell] = (HostCell(0, frozenset(), frozenset(range(16)), 65536),)
    #: What ``taps`` gives: its guests have no NICs that a packet could come from.
    plugged_taps: Sequence[Tap] = ()

    #: The filter of ports that is loaded, and the addresses that it was told of.
    filtered: PortFilter | None = None
    leased: Sequence[tuple[str, str]] = ()
    #: The bridge of Open vSwitch that drops marked packets, and why it does not.
    filtered_switch, switch_lacks = "", ""
    _on_filters_gone: Callable[[], None] | None = None

    # What tests do to it ------------------------------------------------------------------------------------------
    def flush_filters(self) -> None:
        """Somebody flushes the host's firewall."""
        self.filtered = None
        if self._on_filters_gone is not None:
            self._on_filters_gone()

    def fail_next(self, method: str, error: Exception, times: int = 1) -> None:
        """The next *times* calls of *method* raise *error*, before anything is changed."""
        self._failures[method].extend([error] * times)

    def disconnect(self) -> None:
        """libvirtd is gone."""
        self._connected = False

    def reconnect(self) -> None:
        """libvirtd is back."""
        self._connected = True
        for listener in list(self._on_connect):
            threading.Thread(target=listener, name="fake-connected", daemon=True).start()

    def guest_powers_off(self, uuid: str) -> None:
        """The guest shuts itself down."""
        self._outside(uuid, OFF, "guest", DomainEvent(uuid, "stopped", "guest"))

    def guest_reboots(self, uuid: str) -> None:
        """The guest reboots itself."""
        self._outside(uuid, RUNNING, "unknown", DomainEvent(uuid, "rebooted"))

    def crash(self, uuid: str, reason: str = "failed") -> None:
        """QEMU dies (``failed``), or the guest panics (``panic``)."""
        self._outside(uuid, CRASHED, reason, DomainEvent(uuid, "crashed", reason))

    def waits_for_disk(self, uuid: str) -> None:
        """QEMU stops the guest, since a disk does not answer."""
        self._outside(uuid, PAUSED, "io-error", DomainEvent(uuid, "suspended", "io-error"))

    def destroyed_outside(self, uuid: str) -> None:
        """Somebody runs ``virsh destroy``."""
        self._outside(uuid, OFF, "outside", DomainEvent(uuid, "stopped", "outside"))

    def undefined_outside(self, uuid: str) -> None:
        """Somebody runs ``virsh destroy`` and ``virsh undefine``."""
        with self._change(f"domain {uuid}"):
            del self._domains[uuid]
            self._events += [DomainEvent(uuid, "stopped", "outside"), DomainEvent(uuid, "undefined")]

    def undefined_while_it_runs(self, uuid: str) -> None:
        """Somebody runs ``virsh undefine`` only: it goes when it stops."""
        with self._change(f"domain {uuid}"):
            self._domains[uuid].persistent = False
            self._events.append(DomainEvent(uuid, "undefined"))

    def defined_outside(self, xml: str, state: str = OFF) -> None:
        """Somebody else makes a domain, or edits one."""
        uuid = parse(xml).uuid
        with self._change(f"domain {uuid}"):
            self._domains[uuid] = FakeDomain(xml, state, live=xml)
            self._events.append(DomainEvent(uuid, "defined"))

    def xml(self, uuid: str) -> str:
        """The XML of a domain."""
        return self._domains[uuid].xml

    def network_outside(self, name: str, active: bool = True, cidrs: tuple[str, ...] = ()) -> None:
        """Somebody else makes a network."""
        with self._change(f"network {name}"):
            self._networks[name] = FakeNetwork(NetworkSeen(f"outside-{name}", name, active, active, "virbr0",
                                                           cidrs=cidrs))

    def lease(self, network: str, lease: Lease) -> None:
        """The network gives an address."""
        with self._change(f"network {network}"):
            self._networks[network].leases.append(lease)

    def host_reboots(self) -> None:
        """Nothing runs any more and nobody knows why; managed saves and definitions are still there, mediated devices
        are not."""
        self._mdevs.clear()
        self.functions.clear()
        with self._change(*(f"domain {uuid}" for uuid in self._domains)):
            for domain in self._domains.values():
                if domain.state in (RUNNING, PAUSED, CRASHED):
                    domain.state, domain.reason = OFF, "unknown"

    def _outside(self, uuid: str, state: str, reason: str, event: DomainEvent) -> None:
        with self._change(f"domain {uuid}"):
            domain = self._domains[uuid]
            domain.state, domain.reason = state, reason
            self._events.append(event)

    # The host -----------------------------------------------------------------------------------------------------
    def connected(self) -> bool:
        return self._connected

    def host(self) -> dict[str, Any]:
        with self._call("host"):
            return {"id": f"fake-{self.name}", "name": self.name, "hypervisor_type": "FAKE",
                    "hypervisor_version": "1.0.0", "libvirt_version": "1.0.0", "architecture": "x86_64",
                    "cpu_info": {"arch": "x86_64", "model": "fake", "vendor": "fake", "features": ["avx2", "sse2"],
                                 "topology": {"cells": 1, "sockets": 1, "cores": 16, "threads": 1}},
                    "cpu_model": "fake", "vcpus": 16, "memory_mb": 65536, "kvm": self.kvm(),
                    "emulated_architectures": list(self.emulated_architectures),
                    "machine_types": {"x86_64": dict(self.machine_types), **{
                        one: dict.fromkeys((name := MACHINES[one], f"{name}-7.2"), f"{name}-7.2")
                        for one in self.emulated_architectures}},
                    "firmware": list(self.firmware), "secure_boot": self.secure_boot,
                    "tpm_versions": list(self.tpm_versions), "disk_encryption": list(self.disk_encryption),
                    "memory_encryption": {name: dict(one) for name, one in self.memory_encryption.items()},
                    "virt_types": ["kvm", "qemu"] if self._kvm else ["qemu"]}

    def kvm(self) -> dict[str, Any]:
        return {"usable": self._kvm, "reason": "the fake was told so", "checked_at": now()}

    def cpu_choices(self, virt_type: str) -> CpuChoices:
        with self._call("cpu_choices"):
            modes = frozenset((HOST_MODEL, MAXIMUM, CUSTOM, *([PASSTHROUGH] if virt_type == "kvm" else [])))
            return CpuChoices(modes, {name: found is not None for name, found in self.cpu_models.items()})

    def cpu_features(self, virt_type: str, model: str = "", features: Features = ()) -> frozenset[str]:
        with self._call("cpu_features"):
            known = self.cpu_models.get(model or "qemu64")
            if known is None:
                raise HypervisorError(f"libvirt could not tell the features of the CPU {model}: it is unknown, or not "
                                      "for this host.")
            every = frozenset[str]().union(*(one or () for one in self.cpu_models.values()))
            if unknown := sorted({name for _policy, name in features} - every):
                raise HypervisorError(f"libvirt could not tell the features of the CPU {model}: unknown CPU feature: "
                                      f"{unknown[0]}.")
            return with_features(known, features)

    def serves_shares(self) -> bool:
        return self.virtiofsd

    def has_spice(self) -> bool:
        return self.spice

    def lacks_traffic_control(self) -> str:
        return self.no_traffic_control

    def bridges(self) -> frozenset[str]:
        return self._bridges

    def integration_bridge(self, name: str) -> IntegrationBridge:
        if self.ovn_lacks:
            return IntegrationBridge(name, reason=self.ovn_lacks)
        return IntegrationBridge(name, self.datapath, self.name)

    def filter_switch(self, bridge: str) -> None:
        self.filtered_switch = bridge

    def switch_unfiltered(self) -> str:
        return self.switch_lacks

    def routes(self) -> Sequence[tuple[str, IPv4Network]]:
        return self.on_networks

    def numa_cells(self) -> list[HostCell]:
        with self._call("numa_cells"):
            return list(self.cells)

    def on_event(self, listener: Callable[[DomainEvent], None]) -> None:
        self._on_event.append(listener)

    def on_connect(self, listener: Callable[[], None]) -> None:
        self._on_connect.append(listener)

    def close(self) -> None:
        self._on_event.clear()
        self._on_connect.clear()
        self.close_socket()
        self.close_exports()

    # Networks -----------------------------------------------------------------------------------------------------
    def networks(self) -> dict[str, NetworkSeen]:
        with self._call("networks"):
            return {name: network.seen for name, network in list(self._networks.items())}

    def make_network(self, spec: NetworkSpec) -> None:
        with self._call("make_network", f"network {spec.name}") as changed:
            there = self._networks.get(spec.name)
            if there and (not there.seen.owned or there.seen.uuid != spec.uuid):
                raise Conflict(f"The libvirt network {spec.name} was not made by Magnetar for this resource, so it is "
                               "not touched. Choose another name, or remove that network.")
            seen = NetworkSeen(spec.uuid, spec.name, True, True, spec.bridge, True,
                               (str(IPv4Interface(f"{spec.address}/{spec.prefix}").network),))
            hosts = dict(spec.hosts)
            changed.extend(host_of(spec.name, mac) for mac in {**hosts, **(there.hosts if there else {})})
            self._networks[spec.name] = FakeNetwork(seen, there.leases if there else [], hosts)

    def remove_network(self, name: str) -> None:
        with self._call("remove_network", f"network {name}") as changed:
            there = self._networks.get(name)
            if there and not there.seen.owned:
                raise Conflict(f"The libvirt network {name} was not made by Magnetar, so it is not touched.")
            changed.extend(host_of(name, mac) for mac in (there.hosts if there else ()))
            self._networks.pop(name, None)

    def reserve(self, network: str, mac: str, address: str) -> None:
        with self._call("reserve", host_of(network, mac)) as changed:
            if there := self._made(network):
                for other in [m for m, a in there.hosts.items() if a == address and m != mac]:
                    changed.append(host_of(network, other))
                    del there.hosts[other]
                there.hosts[mac] = address

    def release(self, network: str, mac: str) -> None:
        with self._call("release", host_of(network, mac)) as changed:
            changed.append(f"network {network}")  # with its leases
            if there := self._made(network):
                there.hosts.pop(mac, None)
                there.leases = [lease for lease in there.leases if lease.mac != mac]

    def _made(self, name: str) -> FakeNetwork | None:
        there = self._networks.get(name)
        if there and not there.seen.owned:
            raise Conflict(f"The libvirt network {name} was not made by Magnetar, so it is not touched.")
        return there

    def reserved(self, network: str) -> dict[str, str]:
        """Address by MAC of the hosts that DHCP knows."""
        return dict(self._networks[network].hosts)

    def taps(self, uuid: str | None = None) -> list[Tap]:
        return [tap for tap in self.plugged_taps if uuid in (None, tap.server)]

    def filter_ports(self, wanted: PortFilter, before: PortFilter | None = None) -> None:
        with self._call("filter_ports", needs_libvirt=False):
            assert before in (None, self.filtered)
            self.filtered = wanted

    def filters_ports(self, prefix: str) -> bool:
        return self.filtered is not None

    def on_filters_gone(self, listener: Callable[[], None]) -> None:
        self._on_filters_gone = listener

    def allow_leased(self, prefix: str, leased: Sequence[tuple[str, str]]) -> None:
        self.leased = tuple(leased)

    def leases(self, network: str) -> list[Lease]:
        with self._call("leases"):
            found = self._networks.get(network)
            return list(found.leases) if found and found.seen.active else []
