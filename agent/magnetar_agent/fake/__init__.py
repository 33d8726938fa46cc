# SPDX-License-Identifier: GPL-3.0-or-later
"""``FakeHypervisor``: a host without libvirt, for unit tests and for simulating many hosts.

It follows the contract of ``LocalHypervisor`` (``tests/contract/test_hypervisor.py`` runs against both). Domains and
networks are in memory, and in a JSON file when a folder is given, so that they outlive a killed agent as libvirt's do.
Disks are real small files: sparse raw files and qcow2 headers. Guests obey immediately, unless their uuid is in
``deaf``.
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
from magnetar_core.operations import utc_timestamp
from magnetar_core.power import CRASHED, OFF, PAUSED, RUNNING

from .adoption import Adoptions
from .consoles import Consoles
from .devices import Devices
from .disks import Disks
from .guest_agent import GuestAgent
from .migrate import Migrations
from .mirror import Mirrors
from .state import FakeDomain, FakeNetwork, host_of, parse_domain
from .statistics import Statistics
from .storage import Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from ipaddress import IPv4Network

__all__ = ["FakeHypervisor"]


class FakeHypervisor(GuestAgent, Consoles, Mirrors, Devices, Statistics, Migrations, Storage, Disks, Adoptions):
    """A complete fake of a host's hypervisor, for tests and simulations. Each call takes *delay* seconds. The state is
    stored in files in *folder*, or only in memory if *folder* is ``None``."""

    #: The result of ``routes``: the host is on no network that could conflict.
    on_networks: Sequence[tuple[str, IPv4Network]] = ()
    #: Whether the host has virtiofsd.
    virtiofsd = True
    #: Whether QEMU has SPICE.
    spice = True
    #: The firmware that guests can have, and whether with secure boot.
    firmware: Sequence[str] = ("bios", "uefi")
    secure_boot = True
    #: Versions of TPM that guests can have.
    tpm_versions: Sequence[str] = ("1.2", "2.0")
    #: Formats of encrypted disks.
    disk_encryption: Sequence[str] = ("luks",)
    #: Machine types that guests can have, each with its version.
    machine_types: Mapping[str, str] = {
        **{name: name for name in ("pc-i440fx-7.1", "pc-i440fx-7.2", "pc-q35-7.1", "pc-q35-7.2")},
        "pc": "pc-i440fx-7.2", "q35": "pc-q35-7.2"}
    #: Other architectures that guests can have.
    emulated_architectures: Sequence[str] = ()
    #: Parameters of memory encryption.
    memory_encryption: Mapping[str, Mapping[str, int]] = {}
    #: Features of the CPU models that libvirt knows; ``None`` for models that this host cannot provide.
    cpu_models: Mapping[str, frozenset[str] | None] = {
        "qemu64": frozenset(("sse2", "pni")), "Nehalem": frozenset(("sse2", "pni", "ssse3", "vmx")),
        "Haswell": frozenset(("sse2", "pni", "ssse3", "vmx", "avx2")), "Icelake-Server": None}
    #: Why the host cannot limit NICs; empty if it can.
    no_traffic_control = ""
    #: The result of ``numa_cells``: one cell without large pages.
    cells: Sequence[HostCell] = (HostCell(0, frozenset(), frozenset(range(16)), 65536),)
    #: The result of ``taps``: its guests have no NICs that could send a packet.
    plugged_taps: Sequence[Tap] = ()

    #: The loaded filter of ports, and the addresses added to it.
    filtered: PortFilter | None = None
    leased: Sequence[tuple[str, str]] = ()
    #: The bridge of Open vSwitch that drops marked packets, and why it does not.
    filtered_switch, switch_lacks = "", ""
    _on_filters_gone: Callable[[], None] | None = None

    # Called by tests ----------------------------------------------------------------------------------------------
    def flush_filters(self) -> None:
        """Simulate that an operator flushes the host's firewall, which also removes the agent's filters."""
        self.filtered = None
        if self._on_filters_gone is not None:
            self._on_filters_gone()

    def fail_next(self, method: str, error: Exception, times: int = 1) -> None:
        """Make the next *times* calls of the method named *method* raise *error*, before they change anything."""
        self._failures[method].extend([error] * times)

    def disconnect(self) -> None:
        """Simulate that libvirt stops answering."""
        self._connected = False

    def reconnect(self) -> None:
        """Simulate that libvirt answers again, and call the listeners that ``on_connect`` has registered."""
        self._connected = True
        for listener in list(self._on_connect):
            threading.Thread(target=listener, name="fake-connected", daemon=True).start()

    def guest_powers_off(self, uuid: str) -> None:
        """Simulate that the guest shuts itself down."""
        self._outside(uuid, OFF, "guest", DomainEvent(uuid, "stopped", "guest"))

    def guest_reboots(self, uuid: str) -> None:
        """Simulate that the guest reboots itself."""
        self._outside(uuid, RUNNING, "unknown", DomainEvent(uuid, "rebooted"))

    def crash(self, uuid: str, reason: str = "failed") -> None:
        """Simulate that QEMU dies (*reason* ``failed``) or that the guest panics (*reason* ``panic``)."""
        self._outside(uuid, CRASHED, reason, DomainEvent(uuid, "crashed", reason))

    def waits_for_disk(self, uuid: str) -> None:
        """Simulate that QEMU pauses the guest because of an I/O error of a disk."""
        self._outside(uuid, PAUSED, "io-error", DomainEvent(uuid, "suspended", "io-error"))

    def destroyed_outside(self, uuid: str) -> None:
        """Simulate that an operator powers the domain off with ``virsh destroy``."""
        self._outside(uuid, OFF, "outside", DomainEvent(uuid, "stopped", "outside"))

    def undefined_outside(self, uuid: str) -> None:
        """Simulate that an operator removes the domain with ``virsh destroy`` and ``virsh undefine``."""
        with self._change(f"domain {uuid}"):
            del self._domains[uuid]
            self._events += [DomainEvent(uuid, "stopped", "outside"), DomainEvent(uuid, "undefined")]

    def undefined_while_it_runs(self, uuid: str) -> None:
        """Simulate that an operator runs ``virsh undefine`` on a running domain: the domain runs on, and disappears
        when it stops."""
        with self._change(f"domain {uuid}"):
            self._domains[uuid].persistent = False
            self._events.append(DomainEvent(uuid, "undefined"))

    def defined_outside(self, xml: str, state: str = OFF) -> None:
        """Simulate that another program defines the domain *xml*, or replaces its definition. *state*: the domain's
        power state afterwards."""
        uuid = parse_domain(xml).uuid
        with self._change(f"domain {uuid}"):
            self._domains[uuid] = FakeDomain(xml, state, live=xml)
            self._events.append(DomainEvent(uuid, "defined"))

    def xml(self, uuid: str) -> str:
        """Return the XML of the domain's definition."""
        return self._domains[uuid].xml

    def network_outside(self, name: str, active: bool = True, cidrs: tuple[str, ...] = ()) -> None:
        """Simulate that another program creates a libvirt network. *active*: whether it is started. *cidrs*: its IPv4
        networks."""
        with self._change(f"network {name}"):
            self._networks[name] = FakeNetwork(NetworkSeen(f"outside-{name}", name, active, active, "virbr0",
                                                           cidrs=cidrs))

    def lease(self, network: str, lease: Lease) -> None:
        """Add a DHCP lease to the network."""
        with self._change(f"network {network}"):
            self._networks[network].leases.append(lease)

    def host_reboots(self) -> None:
        """Simulate a reboot of the host: afterwards no guest runs, and the reason of each stop is ``unknown``.
        Definitions and managed saves remain, mediated devices do not."""
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
                        architecture: dict.fromkeys((name := MACHINES[architecture], f"{name}-7.2"), f"{name}-7.2")
                        for architecture in self.emulated_architectures}},
                    "firmware": list(self.firmware), "secure_boot": self.secure_boot,
                    "tpm_versions": list(self.tpm_versions), "disk_encryption": list(self.disk_encryption),
                    "memory_encryption": {name: dict(parameters) for name,
                                          parameters in self.memory_encryption.items()},
                    "virt_types": ["kvm", "qemu"] if self._kvm else ["qemu"]}

    def kvm(self) -> dict[str, Any]:
        return {"usable": self._kvm, "reason": "the fake was told so", "checked_at": utc_timestamp()}

    def cpu_choices(self, virt_type: str) -> CpuChoices:
        with self._call("cpu_choices"):
            modes = frozenset((HOST_MODEL, MAXIMUM, CUSTOM, *([PASSTHROUGH] if virt_type == "kvm" else [])))
            return CpuChoices(modes, {name: features is not None for name, features in self.cpu_models.items()})

    def cpu_features(self, virt_type: str, model: str = "", features: Features = ()) -> frozenset[str]:
        with self._call("cpu_features"):
            model_features = self.cpu_models.get(model or "qemu64")
            if model_features is None:
                raise HypervisorError(f"libvirt could not tell the features of the CPU {model}: it is unknown, or not "
                                      "for this host.")
            every = frozenset[str]().union(*(known_features or () for known_features in self.cpu_models.values()))
            if unknown := sorted({name for _policy, name in features} - every):
                raise HypervisorError(f"libvirt could not tell the features of the CPU {model}: unknown CPU feature: "
                                      f"{unknown[0]}.")
            return with_features(model_features, features)

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
            existing = self._networks.get(spec.name)
            if existing and (not existing.seen.owned or existing.seen.uuid != spec.uuid):
                raise Conflict(f"The libvirt network {spec.name} was not made by Magnetar for this resource, so it is "
                               "not touched. Choose another name, or remove that network.")
            network_seen = NetworkSeen(spec.uuid, spec.name, True, True, spec.bridge, True,
                                       (str(IPv4Interface(f"{spec.address}/{spec.prefix}").network),))
            hosts = dict(spec.hosts)
            changed.extend(host_of(spec.name, mac) for mac in {**hosts, **(existing.hosts if existing else {})})
            self._networks[spec.name] = FakeNetwork(network_seen, existing.leases if existing else [], hosts)

    def remove_network(self, name: str) -> None:
        with self._call("remove_network", f"network {name}") as changed:
            existing = self._networks.get(name)
            if existing and not existing.seen.owned:
                raise Conflict(f"The libvirt network {name} was not made by Magnetar, so it is not touched.")
            changed.extend(host_of(name, mac) for mac in (existing.hosts if existing else ()))
            self._networks.pop(name, None)

    def reserve(self, network: str, mac: str, address: str) -> None:
        with self._call("reserve", host_of(network, mac)) as changed:
            if made_network := self._made(network):
                for other in [m for m, a in made_network.hosts.items() if a == address and m != mac]:
                    changed.append(host_of(network, other))
                    del made_network.hosts[other]
                made_network.hosts[mac] = address

    def release(self, network: str, mac: str) -> None:
        with self._call("release", host_of(network, mac)) as changed:
            changed.append(f"network {network}")  # its leases are stored with it
            if made_network := self._made(network):
                made_network.hosts.pop(mac, None)
                made_network.leases = [lease for lease in made_network.leases if lease.mac != mac]

    def _made(self, name: str) -> FakeNetwork | None:
        existing = self._networks.get(name)
        if existing and not existing.seen.owned:
            raise Conflict(f"The libvirt network {name} was not made by Magnetar, so it is not touched.")
        return existing

    def reserved(self, network: str) -> dict[str, str]:
        """Return the DHCP reservations of *network* as a mapping of MAC to IP address."""
        return dict(self._networks[network].hosts)

    def taps(self, uuid: str | None = None) -> list[Tap]:
        return [tap for tap in self.plugged_taps if uuid in (None, tap.server)]

    def filter_ports(self, desired: PortFilter, loaded: PortFilter | None = None) -> None:
        with self._call("filter_ports", needs_libvirt=False):
            assert loaded in (None, self.filtered)
            self.filtered = desired

    def filters_ports(self, prefix: str) -> bool:
        return self.filtered is not None

    def on_filters_gone(self, listener: Callable[[], None]) -> None:
        self._on_filters_gone = listener

    def allow_leased(self, prefix: str, leased: Sequence[tuple[str, str]]) -> None:
        self.leased = tuple(leased)

    def leases(self, network: str) -> list[Lease]:
        with self._call("leases"):
            network_state = self._networks.get(network)
            return list(network_state.leases) if network_state and network_state.seen.active else []
