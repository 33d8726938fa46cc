# SPDX-License-Identifier: GPL-3.0-or-later
"""The ``LocalHypervisor`` protocol: all operations on a host. ``virt.LibvirtHypervisor`` and ``FakeHypervisor``
implement it.

Sizes are bytes unless a name says MiB. Every call may raise ``HypervisorDown`` (no answer; try later) or
``HypervisorError`` (refused, with the message of libvirt or qemu-img). A call whose result already exists, such as
starting a running domain, is not an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import Any, Protocol

from magnetar_agent.hardware.cpu import CpuChoices, CpuMode, Features
from magnetar_agent.hardware.firmware import Firmware
from magnetar_agent.hardware.mdev import Mdev
from magnetar_agent.hardware.numa import Numa
from magnetar_agent.hardware.pci import PciDevice
from magnetar_agent.hardware.pmem import GuestPmem
from magnetar_agent.hardware.sev import LaunchSecurity
from magnetar_core.hardware.numa import HostCell

from .foreign_domains import HypervisorAdoption
from .load_meter import GuestUsage
from .networks import HypervisorNetworks, Nic
from .storage import Disk, DiskKey, Export, HypervisorDisks, HypervisorStorage, Mirror, SharedFolder

#: The reason why a guest has no server of a type of graphics.
NO_GRAPHICS = {
    "vnc": "The guest has no VNC server: its domain was made by something else. Add one to the domain of an adopted "
           "server (virsh edit); stop another server and start it again.",
    "spice": "The guest has no SPICE server: the agent's setting spice was false when it began. Set it to true, and "
             "stop the server and start it again."}


@dataclass(frozen=True)
class Domain:
    """The observed state of a domain. *owned*: the domain has Magnetar's metadata with the same *uuid*. *adopted*:
    another program has defined it, and Magnetar never changes its definition.

    *reason* says why the domain is in this state: ``guest`` (it shut itself down), ``outside`` (another program
    destroyed it), ``failed`` (QEMU died), ``panic``, ``saved``, ``io-error``, ``unknown``.

    The fields after *reason* come from the inactive XML, the persistent definition, which may contain changes that the
    running domain does not have yet. *hardware*: the hardware in Magnetar's metadata. *cpuset*: the CPUs that the
    domain may run on; "" for any. *cpu*: the CPU mode in Magnetar's metadata. *file_backed*: its memory is in files.
    *probed*: some disks do not name their backing file, so libvirt will read it from the disks' headers at the next
    start. *spice*: it has a SPICE server.
    """

    uuid: str
    name: str
    state: str
    reason: str = "unknown"
    owned: bool = False
    adopted: bool = False
    persistent: bool = True
    vcpus: int = 1
    ram_mib: int = 0
    machine: str = ""
    virt_type: str = "qemu"
    nics: tuple[Nic, ...] = ()
    disks: tuple[Disk, ...] = ()
    description: str = ""
    title: str = ""
    probed: bool = False
    spice: bool = False
    hardware: Mapping[str, Any] = field(default_factory=dict)
    cpuset: str = ""
    cpu: str = ""
    file_backed: bool = False


@dataclass(frozen=True)
class DomainSpec:
    """The desired state of a domain, which the template ``domain.xml.j2`` renders. See ``virt.domain.domain``.
    *hardware*: fields of ``core.hardware.rows`` that differ from the defaults."""

    uuid: str
    name: str
    title: str
    vcpus: int
    ram_mib: int
    virt_type: str
    machine: str
    disks: tuple[Disk, ...]
    nics: tuple[Nic, ...]
    console_log: Path
    description: str = ""
    kernel: Path | None = None
    ramdisk: Path | None = None
    cmdline: str | None = None
    boot: tuple[str, ...] = ("hd", "cdrom")
    metadata: Mapping[str, str] = field(default_factory=dict)
    shares: tuple[SharedFolder, ...] = ()
    #: Whether the domain has, besides VNC, a SPICE server and the channel of the guest's SPICE agent.
    spice: bool = False
    hardware: Mapping[str, Any] = field(default_factory=dict)
    #: Resources of the host: CPUs, NUMA cells and pages, firmware (``None`` for BIOS), PCI devices, a mediated device
    #: (uuid) and persistent memory.
    numa: Numa = field(default_factory=Numa)
    firmware: Firmware | None = None
    pci: tuple[PciDevice, ...] = ()
    mdev: str = ""
    pmem: tuple[GuestPmem, ...] = ()
    security: LaunchSecurity | None = None
    #: The CPU mode, if the settings name one.
    cpu: CpuMode | None = None
    #: Whether the guest's memory is in files.
    file_backed: bool = False


@dataclass(frozen=True)
class MigrationParams:
    """The parameters of a live migration.

    *libvirt*, *qemu* and *disks*: unix sockets on this host that lead to the target's libvirt and to its two QEMU
    sockets; QEMU listens on the same paths there. *folder*: the folder of the guest's files, as a pair (path on the
    source, path on the target). Without *copies_disks* both hosts share the folder, and no disk is copied. *nics*: the
    target's (network, bridge, tap, port) of each NIC, by MAC. *devices*: the alias of each PCI device of this host, by
    its address.

    *native*: the host that QEMU sends memory and disks to directly, and the name in the certificate that QEMU shows
    there; without it memory and disks go through the sockets. *persistent* is the domain's XML for later starts at the
    target. *bandwidth* is MiB/s, *max_downtime* ms, *time_limit* s. *downtime_steps*: the number of steps to reach
    *max_downtime* (without it, one step), one every *downtime_delay* s. *post_copy*: whether a call of
    ``LocalHypervisor.post_copy`` may switch to post-copy.
    """

    libvirt: Path
    qemu: Path
    disks: Path
    persistent: str
    folder: tuple[Path, Path]
    nics: Mapping[str, tuple[str | None, str | None, str | None, str | None]] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    bandwidth: int | None = None
    max_downtime: int | None = None
    downtime_steps: int | None = None
    downtime_delay: int | None = None
    auto_converge: bool = True
    post_copy: bool = False
    time_limit: int | None = None
    on_time_limit: str = "abort"
    native: tuple[str, str] | None = None
    copies_disks: bool = True

    @property
    def may_post_copy(self) -> bool:
        """Return whether the guest may run at the target before all of its memory is there."""
        return self.post_copy or bool(self.time_limit and self.on_time_limit == "post_copy")


#: Called with the progress of a migration: ``{done, total, remaining, dirty_rate}`` in bytes. Raises ``Cancelled``.
ProgressCallback = Callable[[Mapping[str, int]], None]
#: Called when the guest is off at the source; returns whether it is complete at the target.
CutOverCallback = Callable[[], bool]
#: Counters of a disk, and of a NIC as the guest sees them. A counter that is not available is ``None``.
DISK_COUNTERS = ("read_bytes", "read_requests", "write_bytes", "write_requests", "errors")
NIC_COUNTERS = ("rx_octets", "rx_packets", "rx_errors", "rx_drop", "tx_octets", "tx_packets", "tx_errors", "tx_drop")


@dataclass(frozen=True)
class DomainEvent:
    """An event of a domain. *what* is defined, undefined, started, suspended, resumed, stopped, crashed, rebooted (by
    the guest or its reset button), detached or kept (the guest released a device, or refused to), agent (its guest
    agent has come up)."""

    uuid: str
    what: str
    reason: str = "unknown"


class LocalHypervisor(HypervisorNetworks, HypervisorDisks, HypervisorStorage, HypervisorAdoption, Protocol):
    """The operations on a host: on its domains, networks, disks and storage pools."""

    # The host ---------------------------------------------------------------------------------------------------
    def connected(self) -> bool:
        """Return whether libvirt answers now; never raises."""

    def host(self) -> dict[str, Any]:
        """Return the host's facts, by the names of ``kinds.host``: id, name, hypervisor_type, …, cpu_model,
        memory_mb."""

    def kvm(self) -> dict[str, Any]:
        """Return ``{"usable", "reason", "checked_at"}`` of a test that starts a tiny guest under KVM, with a time
        limit."""

    def serves_shares(self) -> bool:
        """Return whether the host has virtiofsd, which serves folders to guests."""

    def has_spice(self) -> bool:
        """Return whether QEMU has SPICE."""

    def lacks_traffic_control(self) -> str:
        """Return what the host lacks to limit the traffic of NICs; "" if nothing."""

    def numa_cells(self) -> list[HostCell]:
        """Return the NUMA cells of the host by id, at least one. All CPUs of a cell are returned as shared CPUs (the
        settings that dedicate CPUs are applied elsewhere), and of its pages only the large ones."""

    def cpu_choices(self, virt_type: str) -> CpuChoices:
        """Return the CPU modes and models that guests of this type (kvm, qemu) can have."""

    def cpu_features(self, virt_type: str, model: str = "", features: Features = ()) -> frozenset[str]:
        """Return the features of a guest's CPU of this *model* (default: the host's) with *features* added. Raises
        ``HypervisorError`` for a model or feature that is unknown, or that the host cannot provide."""

    def on_event(self, listener: Callable[[DomainEvent], None]) -> None:
        """Call *listener* for each event of a domain, from the event thread; it must return quickly."""

    def on_connect(self, listener: Callable[[], None]) -> None:
        """Call *listener* after each (re)connection to libvirt, from a separate thread."""

    def close(self) -> None:
        """Stop threads and connections."""

    # Domains ----------------------------------------------------------------------------------------------------
    def domains(self) -> dict[str, Domain]:
        """Return all domains of the host by uuid, Magnetar's and others, with few calls."""

    def domain(self, uuid: str) -> Domain | None:
        """Return one domain; ``None`` when it does not exist."""

    def render(self, spec: DomainSpec) -> str:
        """Return the domain XML of *spec*; no side effects."""

    def define(self, spec: DomainSpec) -> None:
        """Define the domain of *spec*, or redefine it if it exists. Raises ``Conflict`` when the uuid or name belongs
        to a domain that is not Magnetar's, or is adopted."""

    def undefine(self, uuid: str, keep_nvram: bool = False) -> None:
        """Remove the definition of a stopped domain, its managed save, the state of its TPM, and its UEFI variables
        unless *keep_nvram*; UEFI variables and TPM of an adopted domain stay. Raises ``Conflict`` when the domain is
        not Magnetar's. A missing domain is no error."""

    def start(self, uuid: str, paused: bool = False, secret: str | None = None, keys: Sequence[DiskKey] = ()) -> None:
        """Start a stopped domain, or restore a suspended one; *paused*: do not run its CPUs yet. *secret*: the secret
        of its TPM; *keys*: the keys of its encrypted disks."""

    def save_tpm(self, uuid: str, path: Path) -> None:
        """Copy the TPM state of a domain that is off to the file *path*. If there is no state, no file exists
        afterwards."""

    def load_tpm(self, uuid: str, path: Path) -> None:
        """Load the file that ``save_tpm`` wrote into the TPM of a domain that is off. If the file is missing, the TPM
        starts empty."""

    def shutdown(self, uuid: str) -> None:
        """Press the power button (ACPI) of the domain; return immediately."""

    def destroy(self, uuid: str) -> None:
        """Power the domain off without asking its guest."""

    def pause(self, uuid: str) -> None:
        """Stop the domain's CPUs."""

    def resume(self, uuid: str) -> None:
        """Let the domain's CPUs run."""

    def save(self, uuid: str) -> None:
        """Suspend the domain to disk (managed save)."""

    def discard_save(self, uuid: str) -> None:
        """Remove the managed save, so that the next start boots."""

    def reboot(self, uuid: str) -> None:
        """Ask the guest to reboot (ACPI); return immediately."""

    # Devices of running domains ---------------------------------------------------------------------------------
    def running(self, uuid: str) -> Domain | None:
        """Return the domain with its current devices; ``None`` when it does not run. ``domain`` returns the devices of
        its next start."""

    def attach(self, uuid: str, device: Disk | Nic) -> None:
        """Plug a device into a running domain, until the domain stops. If it has the device already (by target or MAC),
        that is no error."""

    def detach(self, uuid: str, device: Disk | Nic) -> None:
        """Ask the guest of a running domain to release a device, and return. The guest may take long: see ``running``
        and the event ``detached``. Repeating the call, or calling it for a missing device, is no error."""

    def resize(self, uuid: str, target: str, size: int) -> None:
        """Tell a running domain that its disk *target* has *size* bytes; QEMU grows the file."""

    # Mediated devices -------------------------------------------------------------------------------------------
    def mdevs(self) -> list[Mdev]:
        """Return the mediated devices of PCI devices, sorted. They do not survive a boot of the host."""

    def make_mdev(self, mdev: Mdev) -> None:
        """Create the mediated device *mdev*. Raises ``HypervisorError`` when its parent has none left, or the host
        lacks the tools."""

    def remove_mdev(self, uuid: str) -> None:
        """Remove a mediated device; a missing one is no error."""

    def card_serials(self) -> Mapping[str, str]:
        """Map the address of each PCI device to the serial number of its card, for cards whose vital product data (VPD)
        have one."""

    def empty_pmem(self, path: Path) -> None:
        """Write zeros to a whole namespace of persistent memory, or to a file in place of one, which keeps its size.
        Raises ``HypervisorError`` when *path* is missing, or the host lacks the tools."""

    # Consoles ---------------------------------------------------------------------------------------------------
    def open_graphics(self, uuid: str, type: str) -> socket:
        """Return a connected socket to the VNC or SPICE server (*type* vnc or spice) of an active domain; it is closed
        when the domain ends. Raises ``Conflict`` when the domain does not run, or has no such server."""

    def open_serial(self, uuid: str) -> int:
        """Return a descriptor of the serial line of an active domain, raw and non-blocking; it ends with the domain.
        The caller must read all output of the guest from the descriptor, although the console log has it too. Raises
        the errors of ``open_graphics``.
        """

    def send_break(self, uuid: str) -> None:
        """Send a break over the serial line of an active domain."""

    # Inside the guest -------------------------------------------------------------------------------------------
    def freeze(self, uuid: str) -> bool:
        """Ask the guest agent to freeze the file systems. Return whether they are frozen; ``False`` when no agent
        answers."""

    def thaw(self, uuid: str) -> None:
        """Thaw the file systems that ``freeze`` froze. No error when nothing is frozen, or no agent answers."""

    def agent_connected(self, uuid: str) -> bool:
        """Return whether the guest agent of an active domain has come up, according to its channel."""

    def set_password(self, uuid: str, user: str, password: str) -> None:
        """Have the guest agent set the *password* of *user*. Raises ``Conflict`` when no agent answers."""

    def ask_guest_agent(self, uuid: str, request: str, seconds: int) -> str:
        """Send the JSON *request* to the guest agent, and return the JSON of its answer, as the guest wrote it. Raises
        ``NoGuestAgent`` when no agent answers within *seconds*, ``GuestRefused`` for an error of the agent."""

    def inject_nmi(self, uuid: str) -> None:
        """Send a non-maskable interrupt to the guest, which writes a dump or panics, depending on its setup."""

    # Another disk for a running domain ---------------------------------------------------------------------------
    def capacity(self, uuid: str, target: str) -> int:
        """Return the size in bytes that the guest of an active domain sees of its disk *target*."""

    def begin_mirror(self, uuid: str, target: str, disk: Disk) -> None:
        """Begin to copy the disk *target* of an active domain to *disk*, together with all writes of the guest
        meanwhile. The content of *disk* is lost. *disk* has the same size; a raw one may be larger, and the guest sees
        that size at its next start at the latest. Raises ``Conflict`` when *target* is being copied to another disk."""

    def mirror(self, uuid: str, target: str) -> Mirror | None:
        """Return the state of the copy of the disk *target* that ``begin_mirror`` began; ``None`` when there is none,
        or it has ended."""

    def pivot(self, uuid: str, target: str) -> None:
        """Switch the domain, and its definition, from the disk *target* to its copy; device name and serial number
        stay. Raises ``HypervisorError`` while the two disks differ."""

    def end_mirror(self, uuid: str, target: str, path: Path) -> None:
        """End the copy of the disk *target* to the disk *path*; the domain keeps *target*. No error when there is no
        copy."""

    # Disks for other hosts --------------------------------------------------------------------------------------
    def serve(self, export: Export) -> None:
        """Serve the disk of *export* over NBD (qemu-nbd) at a unix socket until ``unserve``; return when clients can
        connect. A server that dies is started again. A disk that is already served in the same way is no error; if it
        is served differently, its clients are disconnected and the server is replaced."""

    def serving(self, id: str) -> Export | None:
        """Return the running export with this id; ``None`` when there is none."""

    def reconnect_disk(self, uuid: str, socket: Path) -> None:
        """Make QEMU of an active domain read from the disk that it reaches at *socket*. After a broken connection, QEMU
        connects again at the second or third read."""

    def unserve(self, id: str) -> None:
        """Flush cached writes, end the NBD server and disconnect its clients. A disk that is not served is no error."""

    # Migration --------------------------------------------------------------------------------------------------
    def libvirt_socket(self) -> Path:
        """Return the path of this host's libvirtd socket. Other hosts' libvirtds connect to the socket through a
        link."""

    def cpu(self, uuid: str) -> str | None:
        """Return the CPU of a running domain as XML of libvirt; ``None`` when any host can emulate it."""

    def cpu_lacks(self, cpu: str) -> str:
        """Return a text with the model of *cpu* (from the method ``cpu``, of a KVM guest) and those of its features
        that this host lacks; "" if it lacks none."""

    def migrate(self, uuid: str, params: MigrationParams, on_progress: ProgressCallback,
                on_cut_over: CutOverCallback) -> None:
        """Migrate a running domain live to another host, as *params* say. *on_progress* is called repeatedly with the
        progress. *on_cut_over* is called once, as early as the result is certain: the domain is then off here and
        paused at the target; after post-copy it runs at the target. After an exception, ``domain`` tells whether the
        domain still runs here."""

    def post_copy(self, uuid: str) -> bool:
        """Switch a migrating domain to post-copy, if its parameters allow that: the domain then runs at the target, and
        the rest of its memory follows. Return ``False`` while post-copy cannot begin: disks are still being copied."""

    def arrived(self, uuid: str) -> bool:
        """Return whether a migrated domain is complete on this host: active and persistent."""

    def abort_stale_job(self, uuid: str) -> None:
        """Abort a migration of this domain that an earlier process of the agent began, and wait for its end."""

    # Statistics -----------------------------------------------------------------------------------------------------
    def statistics(self, uuid: str) -> dict[str, Any] | None:
        """Return the usage of an active domain since it was started; ``None`` when it is off. Raises ``Conflict`` when
        the domain is not Magnetar's.

        ``virt_type``; ``uptime`` in s; ``cpus`` ``{id, time}`` in ns; ``memory`` in KiB, with the names of
        virDomainMemoryStats and ``maximum``; ``disks`` ``{device}`` with ``DISK_COUNTERS``; ``nics`` ``{device, mac}``
        with ``NIC_COUNTERS``. Values that only QEMU knows are ``None`` or missing while other calls wait for an answer
        of QEMU.
        """

    def guest_usages(self) -> dict[str, GuestUsage]:
        """Return the usage of each active domain of Magnetar, by uuid, from its process: no QEMU is asked. A domain
        whose process cannot be read is missing."""

    def uptime(self) -> dict[str, Any]:
        """Return ``time`` of day (HH:MM:SS), ``uptime`` in s, ``users`` logged in, ``load_average`` of 1, 5 and 15
        minutes. Works without libvirt."""

    # Other files ----------------------------------------------------------------------------------------------------
    def make_iso(self, path: Path, label: str, files: Mapping[str, bytes], flushed: bool = True) -> None:
        """Write an ISO 9660 image with Joliet and Rock Ridge names atomically. *flushed*: as in ``make_disk``."""

    def make_vfat(self, path: Path, label: str, files: Mapping[str, bytes], flushed: bool = True) -> None:
        """Write a sparse FAT16 file system of 64 MiB with long names atomically. *flushed*: as in ``make_disk``."""

    def permit(self, paths: Iterable[Path]) -> None:
        """Let QEMU's user read everything under these paths. (libvirt changes the ownership when a domain starts.)"""
