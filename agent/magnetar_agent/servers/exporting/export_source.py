# SPDX-License-Identifier: GPL-3.0-or-later
"""The server that is exported: whether it can be, its disks and further files, and the room that they need."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar_agent.servers import GIB, MIB, server_folder, spec
from magnetar_agent.servers.adoption.adopted import is_adopted
from magnetar_agent.servers.disks import own_disks
from magnetar_agent.volumes import attaching
from magnetar_core.errors import Conflict
from magnetar_core.power import LIVE, MISSING, OFF, SUSPENDED

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.storage import Disk
    from magnetar_agent.reconcile.documents import Document

#: Bytes of a virtual disk that one byte of a qcow2's tables describes: 64 KiB by an entry of 8 bytes.
PER_TABLE_BYTE = 8192
#: Bytes for headers, the definition, and the other small files of an export.
SMALL_FILES = 4 * MIB


@dataclass(frozen=True)
class ExportedDisk:
    """A disk of an exported server. *file*: its name in the export. *format*: qcow2, or raw for a CD."""

    disk: Disk
    file: str
    format: str


def exported_disks(host: LocalHost, server: Document) -> list[ExportedDisk]:
    """Return the disks of *server*, with its volumes and its config drive, in the order of the guest's devices."""
    return [ExportedDisk(disk, f"{disk.target}.iso", "raw") if disk.device == "cdrom" else
            ExportedDisk(disk, f"{disk.target}.qcow2", "qcow2") for disk in spec.arranged_disks(host, server, False)]


def boot_files(host: LocalHost, server: Document) -> dict[str, tuple[Path, str]]:
    """Return the files that *server* boots with, beside its disks, as ``{element: (path, name in the export)}``. The
    element (nvram, kernel or initrd) refers to the file in the domain XML. Files that do not exist yet, such as UEFI
    variables before the first start, are left out."""
    folder, firmware, boot = server_folder(host, server.id), spec.boots_by(host, server), server.state.get("boot") or {}
    files = {"nvram": (firmware.variables, "uefi-variables.fd")} if firmware is not None else {}
    if boot:
        files["kernel"] = (folder / "kernel", "kernel")
    if boot.get("ramdisk"):
        files["initrd"] = (folder / "ramdisk", "ramdisk")
    return {element: (path, name) for element, (path, name) in files.items() if path.is_file()}


def check_exportable(host: LocalHost, server: Document) -> None:
    """Raise ``Conflict`` unless *server* is stopped and complete, and its disks can be read without a key."""
    name, domain = server.name, host.hypervisor.domain(server.id)
    state = domain.state if domain else MISSING
    if is_adopted(server):
        raise Conflict(f"Server {name!r} is an adopted domain, so it runs without Magnetar already. Release it with "
                       "the module adopt, and copy its disks and its definition (virsh dumpxml).")
    if server.want.get("rescue"):
        raise Conflict(f"Server {name!r} is rescued. Unrescue it, stop it, then repeat the call.")
    if server.state.get("unfinished"):
        raise Conflict(f"The last change of server {name!r} was not finished. Repeat that first.")
    if state in LIVE:
        raise Conflict(f"Server {name!r} is {state}, and its disks change while they are copied. Stop it, then repeat "
                       "the call.", power_state=state)
    if state == SUSPENDED:
        raise Conflict(f"Server {name!r} is suspended: an export has its disks, but not its memory. Start it, stop it, "
                       "then repeat the call.", power_state=state)
    if state != OFF:
        raise Conflict(f"Server {name!r} is {state}, and only a stopped server is exported. Start it, stop it, then "
                       "repeat the call.", power_state=state)
    for exported in exported_disks(host, server):
        if exported.disk.key is not None:
            raise Conflict(f"The disk {exported.disk.target} of server {name!r} is encrypted, so the server is not "
                           "exported: the export would hold its content in clear text. Copy what matters out of the "
                           "guest.")


def needed_bytes(host: LocalHost, server: Document) -> int:
    """Return how many bytes the export of *server* needs at most."""
    sizes = {attachment.want["device"]: _volume_size(host, attachment)
             for attachment in attaching.server_attachments(host, server.id)}
    needed = SMALL_FILES + sum(path.stat().st_size for path, _name in boot_files(host, server).values())
    for exported in exported_disks(host, server):
        virtual = sizes.get(exported.disk.target) or _virtual_size(host, server, exported.disk)
        needed += min(_used_bytes(exported.disk, virtual), virtual) + virtual // PER_TABLE_BYTE
    return needed


def _volume_size(host: LocalHost, attachment: Document) -> int:
    volume, origin = host.documents.get("volume", attachment.want["volume"]), attachment.want.get("origin")
    return int(origin["size"] if origin else volume.want["size"] if volume else 0) * GIB


def _virtual_size(host: LocalHost, server: Document, disk: Disk) -> int:
    disk_info = own_disks.inspect_own_disk(host, server, disk.path.name) if disk.remote else host.hypervisor.disk(
        disk.path, disk.format)
    if disk_info is None:
        raise Conflict(f"The disk {disk.target} of server {server.name!r} is missing: {disk.path} does not exist. "
                       "Restore it, then repeat the call.")
    return disk_info.virtual_size


def _used_bytes(disk: Disk, virtual: int) -> int:
    """Return how many bytes of content *disk* has at most. For disks in files, this is the space that the file and its
    backing file occupy. For all other disks it is *virtual*, the size that the guest sees."""
    paths = [] if disk.remote or disk.block_device else [disk.path, *([disk.backing.path] if disk.backing else [])]
    statuses = [path.stat() for path in paths if path.exists()]
    if not statuses or not all(stat.S_ISREG(status.st_mode) for status in statuses):
        return virtual
    return sum(status.st_blocks * 512 for status in statuses)
