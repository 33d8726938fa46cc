# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host can do: the ``LocalHypervisor`` protocol. ``virt.LibvirtHypervisor`` and ``FakeHypervisor`` implement it.

Sizes are bytes unless a name says MiB. Every call may raise ``HypervisorDown`` (no answer; try later) or
``HypervisorError`` (refused, with libvirt's or qemu-img's words). Calls on something that is already as asked, such as
starting a running domain, are not errors.
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

from .networks import HypervisorNetworks, Nic
from .statistics import HypervisorStatistics
from .storage import Disk, DiskKey, Export, HypervisorDisks, HypervisorStorage, Mirror, SharedFolder

#: Why a guest lacks a type of graphics.
NO_GRAPHICS = {
    "vnc": "The guest has no VNC server: its domain was made by something else. Stop the server and start it again.",
    "spice": "The guest has no SPICE server: the agent's setting spice was false when it began. Set it to true, and "
             "stop the server and start it again."}


@dataclass(frozen=True)
class Domain:
    """What is seen of a domain. *owned* is true when it carries Magnetar's metadata for *uuid*.

    *reason* says why it is in this state: ``guest`` (shut itself down), ``outside`` (destroyed by somebody), ``failed``
    (QEMU died), ``panic``, ``saved``, ``io-error``, ``unknown``. *autonomous* facts of the persistent definition
    follow; they come from the inactive XML, so a pending change shows. *hardware*: what was noted of it there.
    *cpuset*: the CPUs that it may be on; "" for any. *cpu*: the note of the CPU mode with which it was defined.
    *file_backed*: its memory is in files.
    *probed*: not all disks say what they stand on, so libvirt reads it from them at the next start. *spice*: it has a
    SPICE server.
    """

    uuid: str
    name: str
    state: str
    reason: str = "unknown"
    owned: bool = False
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
    """What the agent wants a domain to be; the template ``domain.xml.j2`` writes it down. See ``virt.domain.domain``.
    *hardware*: fields of ``core.hardware.rows``, those that are not usual."""

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
    #: Whether it has a SPICE server, and the channel of the guest's SPICE agent, beside VNC.
    spice: bool = False
    hardware: Mapping[str, Any] = field(default_factory=dict)
    #: CPUs, NUMA cells and pages of the host, firmware (``None`` for BIOS), PCI devices, mediated device (a uuid) and
    #: persistent memory that it has.
    numa: Numa = field(default_factory=Numa)
    firmware: Firmware | None = None
    pci: tuple[PciDevice, ...] = ()
    mdev: str = ""
    pmem: tuple[GuestPmem, ...] = ()
    security: LaunchSecurity | None = None
    #: The CPU mode, where the settings say one.
    cpu: CpuMode | None = None
    #: Whether its memory is in files.
    file_backed: bool = False


@dataclass(frozen=True)
class MigrationParams:
    """How a running domain goes to another host: unix sockets here that lead to libvirt's and to QEMU's two there (QEMU
    listens on the same paths there), and what differs there: *folder* of its files (here, there), *nics* by MAC
    (network, bridge, tap, port). *devices*: the alias of each PCI device here, by its address.

    *native*: the host that QEMU's memory and disks go to straight, and the name in the certificate that QEMU shows
    there; without it they go through the sockets. *persistent* is the domain's XML for later starts there. *bandwidth*
    is MiB/s, *max_downtime* ms, *time_limit* s. *downtime_steps*: in how many steps *max_downtime* is reached (all at
    once without), every *downtime_delay* s. *post_copy*: the memory may follow the guest, when ``post_copy`` asks.
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

    @property
    def may_post_copy(self) -> bool:
        """Whether the guest may run at the target before all of its memory is there."""
        return self.post_copy or bool(self.time_limit and self.on_time_limit == "post_copy")


#: Called with the progress of a migration: ``{done, total, remaining, dirty_rate}`` in bytes. It raises ``Cancelled``.
Going = Callable[[Mapping[str, int]], None]
#: Called when the guest is off here; returns whether it is complete on the other host.
Gone = Callable[[], bool]


@dataclass(frozen=True)
class DomainEvent:
    """Something happened to a domain: *what* is defined, undefined, started, suspended, resumed, stopped, crashed,
    rebooted (by the guest or its reset button), detached or kept (the guest let go of a device, or refused to), agent
    (its guest agent has come up)."""

    uuid: str
    what: str
    reason: str = "unknown"


class LocalHypervisor(HypervisorStatistics, HypervisorNetworks, HypervisorDisks, HypervisorStorage, Protocol):
    """A host on which domains, networks and disks are made."""

    # The host ---------------------------------------------------------------------------------------------------
    def connected(self) -> bool:
        """Whether libvirt answers now; never raises."""

    def host(self) -> dict[str, Any]:
        """Facts of the host under the names of ``kinds.host``: id, name, hypervisor_type, …, cpu_model, memory_mb."""

    def kvm(self) -> dict[str, Any]:
        """``{"usable", "reason", "checked_at"}``: a tiny guest was really started under KVM, with a time limit."""

    def serves_shares(self) -> bool:
        """Whether there is a virtiofsd, which serves folders to guests."""

    def has_spice(self) -> bool:
        """Whether QEMU has SPICE."""

    def lacks_traffic_control(self) -> str:
        """What the host lacks to limit what passes NICs; "" where it lacks nothing."""

    def numa_cells(self) -> list[HostCell]:
        """The NUMA cells of the host, by id: all CPUs as shared ones, all memory, and all large pages. At least one."""

    def cpu_choices(self, virt_type: str) -> CpuChoices:
        """The CPU modes and models that guests of this type (kvm, qemu) can have."""

    def cpu_features(self, virt_type: str, model: str = "", features: Features = ()) -> frozenset[str]:
        """The features of a guest's CPU of this *model* (of the host's, without one) with *features* besides. Raises
        ``HypervisorError`` for a model or feature that nobody knows, or that the host cannot give."""

    def on_event(self, listener: Callable[[DomainEvent], None]) -> None:
        """Call *listener* for each event, from the event thread; it must return quickly."""

    def on_connect(self, listener: Callable[[], None]) -> None:
        """Call *listener* after each (re)connection to libvirt, from a thread of its own."""

    def close(self) -> None:
        """Stop threads and connections."""

    # Domains ----------------------------------------------------------------------------------------------------
    def domains(self) -> dict[str, Domain]:
        """All domains of the host by uuid, ours and others'; one pass, few calls."""

    def domain(self, uuid: str) -> Domain | None:
        """One domain."""

    def render(self, spec: DomainSpec) -> str:
        """The domain XML of *spec*; pure."""

    def define(self, spec: DomainSpec) -> None:
        """Define or redefine. Raises ``Conflict`` when a domain of that uuid or name exists that is not ours."""

    def undefine(self, uuid: str) -> None:
        """Forget a stopped domain with its managed save, UEFI's variables and what is in its TPM. Not ours:
        ``Conflict``. Gone: fine."""

    def start(self, uuid: str, paused: bool = False, secret: str | None = None, keys: Sequence[DiskKey] = ()) -> None:
        """Start a stopped domain, or restore a suspended one. *secret*: of its TPM, *keys*: of its encrypted disks."""

    def save_tpm(self, uuid: str, path: Path) -> None:
        """Copy what is in the TPM of a domain that is off to the file *path*; where there is nothing, there is no file
        afterwards."""

    def load_tpm(self, uuid: str, path: Path) -> None:
        """Put what ``save_tpm`` wrote into the TPM of a domain that is off. No file: fine, the TPM is new."""

    def shutdown(self, uuid: str) -> None:
        """Press the power button (ACPI); returns at once."""

    def destroy(self, uuid: str) -> None:
        """Pull the plug."""

    def pause(self, uuid: str) -> None:
        """Stop the CPUs."""

    def resume(self, uuid: str) -> None:
        """Let the CPUs run."""

    def save(self, uuid: str) -> None:
        """Suspend to disk (managed save)."""

    def discard_save(self, uuid: str) -> None:
        """Drop the managed save, so that the next start boots."""

    def reboot(self, uuid: str) -> None:
        """Ask the guest to reboot (ACPI); returns at once."""

    # Devices of running domains ---------------------------------------------------------------------------------
    def running(self, uuid: str) -> Domain | None:
        """A domain with the devices that it has now (``domain``: of its next start); ``None`` when it does not run."""

    def attach(self, uuid: str, device: Disk | Nic) -> None:
        """Plug a device into a running domain, until it stops; one that is there (by target or MAC) is fine."""

    def detach(self, uuid: str, device: Disk | Nic) -> None:
        """Ask the guest of a running domain to let go of a device. It may take its time: see ``running`` and the event
        ``detached``. One that is gone is fine, and so is asking again."""

    def resize(self, uuid: str, target: str, size: int) -> None:
        """Tell a running domain that its disk *target* has *size* bytes; QEMU grows the file."""

    # Mediated devices -------------------------------------------------------------------------------------------
    def mdevs(self) -> list[Mdev]:
        """Those that exist, of PCI devices, in order. The kernel forgets them with each boot."""

    def make_mdev(self, mdev: Mdev) -> None:
        """Make one. Raises ``HypervisorError`` where its parent has none left, or the host lacks what makes them."""

    def remove_mdev(self, uuid: str) -> None:
        """Remove one; gone is fine."""

    def card_serials(self) -> Mapping[str, str]:
        """Address of a PCI device to the serial number of the card that it is on, of those whose vital product data
        (VPD) have one."""

    def empty_pmem(self, path: Path) -> None:
        """Write zeros to all of a namespace of persistent memory, or to a file in place of one, which keeps its size.
        Raises ``HypervisorError`` where it is gone, or the host lacks what does it."""

    # Consoles ---------------------------------------------------------------------------------------------------
    def open_graphics(self, uuid: str, type: str) -> socket:
        """A connection to the VNC or SPICE server (*type* vnc or spice) of an active domain; it ends with the domain.
        ``Conflict`` when it does not run, or has none."""

    def open_serial(self, uuid: str) -> int:
        """A descriptor of the serial line of an active domain, raw and non-blocking; it ends with the domain. What the
        guest says has to be read of it, though it is in the log too. Errors as of ``open_graphics``."""

    def send_break(self, uuid: str) -> None:
        """Send a break over the serial line of an active domain."""

    # Inside the guest -------------------------------------------------------------------------------------------
    def freeze(self, uuid: str) -> bool:
        """Ask the guest agent to freeze the file systems: whether they are; ``False`` when no agent does it."""

    def thaw(self, uuid: str) -> None:
        """Undo ``freeze``; fine when nothing is frozen, or no agent answers."""

    def agent_connected(self, uuid: str) -> bool:
        """Whether the guest agent of an active domain has come up, as far as its channel shows."""

    def set_password(self, uuid: str, user: str, password: str) -> None:
        """Have the guest agent set a password. ``Conflict`` when no agent answers."""

    def inject_nmi(self, uuid: str) -> None:
        """Send a non-maskable interrupt, on which the guest writes a dump or panics, as it is set up."""

    # Another disk for a running domain ---------------------------------------------------------------------------
    def capacity(self, uuid: str, target: str) -> int:
        """Bytes that the guest of an active domain sees of its disk *target*."""

    def begin_mirror(self, uuid: str, target: str, disk: Disk) -> None:
        """Begin to copy the disk *target* of an active domain to *disk*, whose content is lost, and all that the guest
        writes meanwhile. *disk* has the same size; a raw one may have more, which the guest sees at its next start
        at the latest. Raises ``Conflict`` where the disk is being copied to another one."""

    def mirror(self, uuid: str, target: str) -> Mirror | None:
        """The copy that is under way; ``None`` when there is none (any more)."""

    def pivot(self, uuid: str, target: str) -> None:
        """From now on the domain has the disk that its disk *target* was copied to, also by its definition; device and
        serial number stay. Raises ``HypervisorError`` when both do not hold the same yet."""

    def end_mirror(self, uuid: str, target: str, path: Path) -> None:
        """End the copy to the disk *path*; the domain keeps its disk. Fine when there is none."""

    # Disks for other hosts --------------------------------------------------------------------------------------
    def serve(self, export: Export) -> None:
        """Run an NBD server (qemu-nbd) for a disk at a unix socket until ``unserve``; a server
        that dies is started again. Returns when it can be connected to. One that is served already, in the same way,
        is fine; in another way, its clients are cut and the server is replaced."""

    def serving(self, id: str) -> Export | None:
        """The running export with this id."""

    def rejoin(self, uuid: str, socket: Path) -> None:
        """Make QEMU of an active domain read from the disk that it reaches at *socket*: when the connection broke, it
        connects again at the second or third time."""

    def unserve(self, id: str) -> None:
        """End the NBD server and cut its clients; cached writes are flushed. Fine when it is not served."""

    # Migration --------------------------------------------------------------------------------------------------
    def libvirt_socket(self) -> Path:
        """The socket of this host's libvirtd, for the libvirtd of another host that comes through a link."""

    def cpu(self, uuid: str) -> str | None:
        """The CPU model of a running domain, as libvirt's XML; ``None`` when any host can emulate it."""

    def cpu_lacks(self, cpu: str) -> str:
        """What this host lacks for that CPU of a KVM guest, with its model; "" where it lacks nothing."""

    def migrate(self, uuid: str, passage: MigrationParams, going: Going, gone: Gone) -> None:
        """Move a running domain; it is off here and paused there when *gone* is called, except after post-copy, where
        it runs there. *gone* is called once, as early as that is sure. When this raises, ``domain`` tells whether it
        still runs here."""

    def post_copy(self, uuid: str) -> bool:
        """Have a domain that migrates, and may, go on at the target now, while the rest of its memory follows. False
        where that cannot begin yet: disks are still copied."""

    def arrived(self, uuid: str) -> bool:
        """Whether a migrated domain is complete here: it is active and persistent."""

    def stray(self, uuid: str) -> None:
        """Abort a migration of this domain that an earlier process of the agent began, and wait for its end."""

    # Other files ----------------------------------------------------------------------------------------------------
    def make_iso(self, path: Path, label: str, files: Mapping[str, bytes], flushed: bool = True) -> None:
        """Write an ISO 9660 image with Joliet and Rock Ridge names, complete or not at all, and *flushed*, as
        ``make_disk`` does."""

    def make_vfat(self, path: Path, label: str, files: Mapping[str, bytes], flushed: bool = True) -> None:
        """Write a FAT16 file system of 64 MiB with long names, sparse, complete or not at all, as ``make_disk``."""

    def permit(self, paths: Iterable[Path]) -> None:
        """Let QEMU's user read what lies under these paths (ownership is libvirt's matter at start)."""
