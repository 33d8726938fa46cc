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
    """The observed state of a libvirt domain. *owned*: the domain's metadata has Magnetar's element with the domain's
    own *uuid*. A clone is not owned: its element has the uuid of the original domain. *adopted*: another program has
    defined the owned domain. Magnetar then changes nothing but its own element in the definition.

    *reason* is the cause of the state: ``guest`` (the guest shut itself down), ``outside`` (another program destroyed
    it), ``failed`` (QEMU died), ``panic``, ``saved``, ``io-error``, ``unknown``.

    The fields after *reason* come from the persistent (inactive) XML, which may differ from the running domain.
    *hardware*, *cpu* (the CPU mode): from Magnetar's metadata. *cpuset*: the CPUs that the domain may run on; "" for
    any. *file_backed*: its memory is in files. *probed*: some disks do not specify their backing file, so libvirt will
    read it from the disks' headers at the next start. *spice*: it has a SPICE server.
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
    """The desired state of a domain, from which the template ``domain.xml.j2`` makes libvirt's XML
    (``virt.domain.domain``). *hardware*: the server's hardware fields that differ from the defaults. Hardware fields
    are made from extra specs and image properties, see ``core.hardware.rows``."""

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

    *libvirt*, *qemu*, *disks*: unix sockets on this host. The agent forwards *libvirt* to the target's libvirt, and
    *qemu* and *disks* to the target's QEMU, whose two sockets have the same paths. *folder*: the folder of the guest's
    files, as (path on the source, path on the target). *copies_disks*: false if both hosts share that folder. *nics*:
    (network, bridge, tap, port) on the target by MAC. *devices*: the alias of each PCI device by its address on this
    host.

    *native*: the host that QEMU sends memory and disks to directly, and the name in that host's certificate; ``None``:
    memory and disks go through the sockets. *persistent*: the domain's XML for later starts on the target. *bandwidth*:
    MiB/s. *max_downtime*: ms, reached in *downtime_steps* steps (``None``: one step), with *downtime_delay* seconds
    between two steps. *time_limit*: seconds. *post_copy*: whether the method ``LocalHypervisor.post_copy`` is allowed.
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
        """Return whether the migration may switch to post-copy: the guest then runs on the target before all of its
        memory has arrived."""
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
    """An event of a domain. *what*: defined, undefined, started, suspended, resumed, stopped, crashed, rebooted (by the
    guest or a reset), detached (the guest released a device), kept (the guest refused to release a device), or agent
    (the guest agent has connected). *reason*: as in ``Domain``."""

    uuid: str
    what: str
    reason: str = "unknown"


class LocalHypervisor(HypervisorNetworks, HypervisorDisks, HypervisorStorage, HypervisorAdoption, Protocol):
    """The operations of an agent on its host: on domains, networks, disks and storage pools."""

    # The host ---------------------------------------------------------------------------------------------------
    def connected(self) -> bool:
        """Return whether libvirt answers now; never raises."""

    def host(self) -> dict[str, Any]:
        """Return facts about the host, such as ``cpu_model`` and ``memory_mb``, under the field names of the API's
        resource ``host``."""

    def kvm(self) -> dict[str, Any]:
        """Return whether guests can use KVM, as ``{"usable", "reason", "checked_at"}``. A test starts a small guest
        under KVM, with a time limit."""

    def serves_shares(self) -> bool:
        """Return whether the host has virtiofsd, which shares folders of the host with guests."""

    def has_spice(self) -> bool:
        """Return whether the host's QEMU supports SPICE."""

    def lacks_traffic_control(self) -> str:
        """Return why the host cannot limit the bandwidth of NICs; "" if it can."""

    def numa_cells(self) -> list[HostCell]:
        """Return the NUMA nodes of the host, sorted by id; at least one. All CPUs are returned as shared: the settings
        for dedicated CPUs are applied elsewhere. Of the memory pages, only huge pages are returned."""

    def cpu_choices(self, virt_type: str) -> CpuChoices:
        """Return the CPU modes and models that guests of the type *virt_type* (kvm or qemu) can have."""

    def cpu_features(self, virt_type: str, model: str = "", features: Features = ()) -> frozenset[str]:
        """Return the features of a guest's CPU *model* (default: the host's CPU) after applying *features*: pairs of
        libvirt's policy and the name. *virt_type*: kvm or qemu. Raises ``HypervisorError`` for a model or feature that
        is unknown or not supported by the host."""

    def on_event(self, listener: Callable[[DomainEvent], None]) -> None:
        """Call *listener* for each event of a domain, from the event thread; *listener* must return quickly."""

    def on_connect(self, listener: Callable[[], None]) -> None:
        """Call *listener* after each (re)connection to libvirt, from a separate thread."""

    def close(self) -> None:
        """Stop the threads and close the connections."""

    # Domains ----------------------------------------------------------------------------------------------------
    def domains(self) -> dict[str, Domain]:
        """Return all domains of the host by uuid, including domains of other programs."""

    def domain(self, uuid: str) -> Domain | None:
        """Return the domain with the devices that it will have at its next start; ``None`` when it does not exist."""

    def render(self, spec: DomainSpec) -> str:
        """Return the domain XML of *spec*; no side effects."""

    def define(self, spec: DomainSpec) -> None:
        """Define the domain of *spec*, or redefine it if it exists. Raises ``Conflict`` when another program defined a
        domain with that uuid or name, even if Magnetar has adopted it."""

    def undefine(self, uuid: str, keep_nvram: bool = False) -> None:
        """Remove a stopped domain's definition, managed save, TPM state, and UEFI variables unless *keep_nvram*. An
        adopted domain's TPM state and UEFI variables stay. Raises ``Conflict`` when another program defined the domain
        and Magnetar has not adopted it. Does nothing for a missing domain."""

    def start(self, uuid: str, paused: bool = False, secret: str | None = None, keys: Sequence[DiskKey] = ()) -> None:
        """Start a stopped domain, or restore a suspended one. *paused*: do not let its CPUs run yet. *secret*: the
        secret of its TPM. *keys*: the keys of its encrypted disks."""

    def save_tpm(self, uuid: str, path: Path) -> None:
        """Copy the TPM state of a stopped domain to the file *path*. If the domain has no TPM state, remove the file.
        """

    def load_tpm(self, uuid: str, path: Path) -> None:
        """Replace the TPM state of a stopped domain by the file *path*, which ``save_tpm`` wrote. Does nothing if the
        file is missing."""

    def shutdown(self, uuid: str) -> None:
        """Press the domain's power button (ACPI). Does not wait for the guest to shut down."""

    def destroy(self, uuid: str) -> None:
        """Power the domain off immediately, without a shutdown of the guest."""

    def pause(self, uuid: str) -> None:
        """Pause the domain's CPUs."""

    def resume(self, uuid: str) -> None:
        """Let the CPUs of a paused domain run."""

    def save(self, uuid: str) -> None:
        """Suspend the domain to disk (managed save)."""

    def discard_save(self, uuid: str) -> None:
        """Remove the domain's managed save, so that the next start boots the guest."""

    def reboot(self, uuid: str) -> None:
        """Ask the guest to reboot (ACPI). Does not wait for the reboot."""

    # Devices of running domains ---------------------------------------------------------------------------------
    def running(self, uuid: str) -> Domain | None:
        """Return the domain with the devices that it has now; ``None`` when it does not run."""

    def attach(self, uuid: str, device: Disk | Nic) -> None:
        """Hot-plug a device into a running domain; the definition is not changed. Does nothing if the domain already
        has a disk with this device name or a NIC with this MAC."""

    def detach(self, uuid: str, device: Disk | Nic) -> None:
        """Ask the guest of a running domain to release a device. Does not wait: the guest may take long, and the event
        ``detached`` reports the release. May be repeated, and does nothing for a missing device."""

    def resize(self, uuid: str, target: str, size: int) -> None:
        """Tell a running domain that its disk with the device name *target* has *size* bytes now; if the disk is a
        file, QEMU grows the file."""

    # Mediated devices -------------------------------------------------------------------------------------------
    def mdevs(self) -> list[Mdev]:
        """Return the host's mediated devices, sorted. They disappear when the host reboots."""

    def make_mdev(self, mdev: Mdev) -> None:
        """Create the mediated device *mdev*. Raises ``HypervisorError`` when its parent supports no further device, or
        the host lacks the tools."""

    def remove_mdev(self, uuid: str) -> None:
        """Remove a mediated device. Does nothing if it does not exist."""

    def card_serials(self) -> Mapping[str, str]:
        """Return the serial number of the card by PCI address, for devices whose vital product data (VPD) contain one.
        """

    def empty_pmem(self, path: Path) -> None:
        """Overwrite a persistent memory namespace, or the file used instead of a namespace, with zeros; its size stays.
        Raises ``HypervisorError`` when *path* is missing, or the host lacks the tools."""

    # Consoles ---------------------------------------------------------------------------------------------------
    def open_graphics(self, uuid: str, type: str) -> socket:
        """Return a socket connected to the VNC or SPICE server (*type* vnc or spice) of an active domain. The
        connection ends with the domain. Raises ``Conflict`` when the domain does not run, or has no such server."""

    def open_serial(self, uuid: str) -> int:
        """Return a raw, non-blocking descriptor of the serial console of an active domain, valid until the domain ends.
        The caller must read all output from the descriptor, although the console log also contains the output. Raises
        ``Conflict`` when the domain does not run, or has no serial console."""

    def send_break(self, uuid: str) -> None:
        """Send a break signal over the serial console of an active domain."""

    # Inside the guest -------------------------------------------------------------------------------------------
    def freeze(self, uuid: str) -> bool:
        """Ask the guest agent to freeze the guest's file systems. Return whether they are frozen; ``False`` when no
        guest agent answers."""

    def thaw(self, uuid: str) -> None:
        """Thaw the file systems that ``freeze`` froze. Does nothing when none are frozen, or no guest agent answers."""

    def agent_connected(self, uuid: str) -> bool:
        """Return whether the guest agent of an active domain is connected, by the state of its virtio channel."""

    def set_password(self, uuid: str, user: str, password: str) -> None:
        """Have the guest agent set the *password* of *user*. Raises ``Conflict`` when no guest agent answers."""

    def ask_guest_agent(self, uuid: str, request: str, seconds: int) -> str:
        """Send the JSON *request* to the guest agent and return its JSON answer, unchecked. Raises ``NoGuestAgent``
        when no guest agent answers within *seconds*, ``GuestRefused`` when it answers with an error."""

    def inject_nmi(self, uuid: str) -> None:
        """Send a non-maskable interrupt to the guest. Depending on its configuration, the guest writes a crash dump or
        panics."""

    # Another disk for a running domain ---------------------------------------------------------------------------
    def capacity(self, uuid: str, target: str) -> int:
        """Return the size in bytes that the guest of an active domain sees for its disk with the device name *target*.
        """

    def begin_mirror(self, uuid: str, target: str, disk: Disk) -> None:
        """Start mirroring the disk with the device name *target* of an active domain to *disk*, including writes of the
        guest meanwhile. The old content of *disk* is lost. *disk* must have the same size; a raw disk may be larger,
        and the guest sees the larger size at its next start at the latest. Raises ``Conflict`` when the disk is already
        being mirrored to another disk."""

    def mirror(self, uuid: str, target: str) -> Mirror | None:
        """Return the progress of the copy that ``begin_mirror`` started for the disk with the device name *target*;
        ``None`` when there is no copy, or the copy has ended."""

    def pivot(self, uuid: str, target: str) -> None:
        """Switch the running domain and its definition from the disk with the device name *target* to its mirror copy;
        device name and serial number stay. Raises ``HypervisorError`` while the copy is not complete."""

    def end_mirror(self, uuid: str, target: str, path: Path) -> None:
        """Cancel the copy that ``begin_mirror`` started for the disk with the device name *target* to the disk *path*;
        the domain continues with its old disk. Does nothing when there is no such copy."""

    # Disks for other hosts --------------------------------------------------------------------------------------
    def serve(self, export: Export) -> None:
        """Serve the disk of *export* over NBD (qemu-nbd) at its unix socket until ``unserve``. Return when clients can
        connect. A server that dies is restarted. Do nothing if *export* is served already. If a different export with
        the same id is served, replace that export's server, which disconnects the clients."""

    def serving(self, id: str) -> Export | None:
        """Return the export with the id *id* if its NBD server runs; otherwise ``None``."""

    def reconnect_disk(self, uuid: str, socket: Path) -> None:
        """Make QEMU of an active domain reconnect to the disk behind the unix socket *socket*, by reading from this
        disk. After a broken connection, QEMU reconnects only at the second or third read."""

    def unserve(self, id: str) -> None:
        """Flush cached writes, stop the NBD server of the export with the id *id*, and disconnect its clients. Does
        nothing if no such server runs."""

    # Migration --------------------------------------------------------------------------------------------------
    def libvirt_socket(self) -> Path:
        """Return the path of the local libvirtd's unix socket, for migrations: the other host's libvirtd connects to it
        through a connection between the agents."""

    def cpu(self, uuid: str) -> str | None:
        """Return the CPU of a running domain as libvirt's XML, for ``cpu_lacks`` on another host; ``None`` when any
        host can emulate this CPU."""

    def cpu_lacks(self, cpu: str) -> str:
        """Return a text with the CPU model and the features that this host lacks for the guest CPU *cpu* (XML from the
        method ``cpu`` of another host); "" if it lacks none."""

    def migrate(self, uuid: str, params: MigrationParams, on_progress: ProgressCallback,
                on_cut_over: CutOverCallback) -> None:
        """Migrate a running domain live to another host, with the parameters *params*.

        *on_progress* is called repeatedly with the progress in bytes. *on_cut_over* is called once, as soon as success
        is certain: the domain is then off here, and on the target it is paused or, after post-copy, running. After an
        exception, call ``domain`` to find out whether the domain still runs here.
        """

    def post_copy(self, uuid: str) -> bool:
        """Switch a migrating domain to post-copy, if its parameters allow that: the domain continues on the target, and
        the rest of its memory follows. Return ``False`` if that is not possible yet, because disks are still being
        copied."""

    def arrived(self, uuid: str) -> bool:
        """Return whether an incoming domain is complete on this host: active and with a persistent definition."""

    def abort_stale_job(self, uuid: str) -> None:
        """Abort a migration of this domain that was started by a former process of the agent, and wait for its end."""

    # Statistics -----------------------------------------------------------------------------------------------------
    def statistics(self, uuid: str) -> dict[str, Any] | None:
        """Return the usage of an active domain since its start; ``None`` when it is off. Raises ``Conflict`` when
        another program defined the domain and Magnetar has not adopted it.

        The result has the fields ``virt_type``; ``uptime`` in s; ``cpus``: list of ``{id, time}``, time in ns;
        ``memory``: KiB, with the names of virDomainMemoryStats and ``maximum``; ``disks``: list of ``{device}`` with
        ``DISK_COUNTERS``; ``nics``: list of ``{device, mac}`` with ``NIC_COUNTERS``. Values that only QEMU can provide
        are ``None`` or missing while QEMU is busy with other calls.
        """

    def guest_usages(self) -> dict[str, GuestUsage]:
        """Return the CPU and memory usage of each active domain of Magnetar, by uuid. The usage is read from /proc,
        without QEMU. Domains whose process cannot be read are left out."""

    def uptime(self) -> dict[str, Any]:
        """Return the host's ``time`` (HH:MM:SS), ``uptime`` in s, ``users`` (the number of logged-in users) and
        ``load_average`` of 1, 5 and 15 minutes. Works without libvirt."""

    # Other files ----------------------------------------------------------------------------------------------------
    def make_iso(self, path: Path, label: str, files: Mapping[str, bytes], flushed: bool = True) -> None:
        """Write an ISO 9660 image with Joliet and Rock Ridge names to *path* atomically. *label*: the volume label.
        *files*: content by path in the image. *flushed*: flush the file to disk; if false, the caller must do this."""

    def make_vfat(self, path: Path, label: str, files: Mapping[str, bytes], flushed: bool = True) -> None:
        """Write a sparse image of a FAT16 file system of 64 MiB with long names to *path* atomically. *label*: the
        volume label. *files*: content by path in the image. *flushed*: flush the file to disk; if false, the caller
        must do this."""

    def permit(self, paths: Iterable[Path]) -> None:
        """Let QEMU's user read all files under *paths* now. Without this call, libvirt changes the owner of a domain's
        files only when the domain starts."""
