# SPDX-License-Identifier: GPL-3.0-or-later
"""The verbs of the server driver: the steps that bring a server into its desired state. Each may be repeated; where a
crash would matter, the document is written before the step acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.host.host import LocalHost
from magnetar_agent.host.storage import DiskKey
from magnetar_agent.metadata import configdrive
from magnetar_agent.reconcile.documents import HELD, Document, Fields, sync_folder
from magnetar_agent.reconcile.task import Task, Verb
from magnetar_agent.servers.adoption import adopted, takeover
from magnetar_agent.servers.disks import (
    block_devices,
    disk_layout,
    disk_owner,
    encryption,
    image_links,
    own_disks,
    pmem,
)
from magnetar_agent.servers.hardware import mdevs, pci, placement, tpm
from magnetar_agent.servers.nics import addresses, function_settings, nics
from magnetar_agent.settings import NO_INJECTION
from magnetar_agent.volumes import reimaging, remote
from magnetar_core.errors import Conflict, HypervisorError, MagnetarError, Unreachable
from magnetar_core.server_plan import drive_digest

from . import GIB, MIB, admin_password, guest_data, rebuild, rescue, resize, server_folder, shutdown, spec


def disks(task: Task) -> None:
    """Create the missing root, ephemeral and swap disks of the server, and, in the server's folder, hard links to the
    content of its image."""
    host, document, want = task.host, task.document, task.document.want
    place = server_folder(host, document.id)
    disk_owner.claim_disks(task)
    make_state_folder(place)
    if want["image"]:
        _hold(task, place)
    encryption.draw_disk_key(task)
    disk_layout.draw_disk_layout(host, document)
    key = encryption.open_disk_key(host, document)
    sizes, made = resize.recorded_sizes(document)["sizes"], document.state.get("made", [])
    has_root = (place / "disk").exists() and not (own_disks.is_made_anew(document) and "disk" not in made)
    root = _root(task, place, key) if "disk" in spec.required_files(want) and not has_root else None
    for disk in spec.blank_disks_of_server(want):
        if disk.file not in made or not (place / disk.file).exists():
            own_disks.make_own_disk(task, disk.file, disk.size, disk.label, key=key)
            sizes[disk.file] = disk.size
    if host.settings.inject_partition != NO_INJECTION and "disk" not in made and "disk" in spec.required_files(want):
        from magnetar_agent.servers.disks import injection  # few hosts need it

        injection.inject_root_disk(task)
    if root is None:
        disk_info = own_disks.inspect_own_disk(host, document, "disk")
        root = disk_info.virtual_size if disk_info else 0
    document.state["root_bytes"] = root
    document.state["sizes"] = sizes
    document.state["made"] = sorted({*made, *(set(spec.required_files(want)) - {"config.iso"})})
    task.note(place)
    disk_owner.record_disks(host, document)


def _hold(task: Task, folder: Path) -> None:
    """Create hard links to the image's content in *folder*, the server's folder, so that the content stays available
    after the image is removed. Existing links are not replaced, because the image may have new content now."""
    document, id = task.document, task.document.want["image"]
    base = document.state.get("base")
    if base and (_holds(document, base, folder) or task.host.documents.get("image", id) is None):
        return
    if base is None and not (folder / "disk").exists():
        image_links.unlink_image(folder)  # a crash left it before its content was noted
    linked_image = image_links.link_image(task.host, id, folder)
    document.state.update(image_name=linked_image["name"], iso=linked_image["iso"])
    document.state[shutdown.FIELD] = linked_image[shutdown.FIELD]
    if linked_image["boot"]:
        document.state["boot"] = linked_image["boot"]
    document.state["base"] = {name: linked_image[name] for name in ("image", "format", "virtual_size", "encrypted",
                                                                    "digest")
                              if name != "encrypted" or linked_image[name]}
    task.note(folder)


def _holds(document: Document, base: Fields, folder: Path) -> bool:
    """Return whether *folder*, the server's folder, contains the content of the server's image, as the file ``base`` or
    ``kernel`` or copied into the root disk. *base*: the state field ``base``, which describes the content."""
    if base.get("image", document.want["image"]) != document.want["image"]:
        return False
    copied = document.want["root_format"] != "qcow2" or base.get("encrypted")
    base_path = folder / ("kernel" if base["format"] == "aki" else "base")
    return bool(copied and (folder / "disk").exists()) or base_path.exists()


def _root(task: Task, folder: Path, key: DiskKey | None) -> int:
    """Create the root disk in *folder*, the server's folder, and return its size in bytes. *key*: the key to encrypt
    the disk with; ``None`` for no encryption."""
    want = task.document.want
    size = want["flavor"]["disk"] * GIB
    base_note = task.document.state.get("base")
    if base_note is None or base_note["format"] in ("iso", "aki"):
        own_disks.make_own_disk(task, "disk", size or MIB, key=key)
        return int(size or MIB)
    base = folder / "base"
    size = max(size, base_note["virtual_size"])
    if backing := spec.root_backing(want, task.document.state, folder):
        own_disks.make_own_disk(task, "disk", size, backing=backing, key=key)
        return int(size)
    own_disks.copy_image(task, base, base_note["format"], size, key)
    base.unlink(missing_ok=True)
    sync_folder(folder)
    return int(size)


def drive(task: Task) -> None:
    """Write the server's config drive. Called after the domain is defined, because the drive contains device addresses
    that libvirt assigns. Writing it again produces the same content."""
    host, document = task.host, task.document
    place = server_folder(host, document.id)
    disk_owner.claim_disks(task)
    make_state_folder(place)
    guest_data.draw_guest_seed(host, document)
    late = own_disks.is_made_anew(document)
    guest_data.write_drive(host, document, configdrive.FILE, flushed=not late)
    document.state["drive"] = drive_digest(document.want)
    document.state["made"] = sorted({*document.state.get("made", []), configdrive.FILE})
    task.note(place, *([place / configdrive.FILE] if late else ()))


def rescue_drive(task: Task) -> None:
    """Write the config drive for the rescue system, which contains the rescue's admin password."""
    guest_data.write_drive(task.host, task.document, rescue.DRIVE)
    task.note(server_folder(task.host, task.document.id))


def forget_password(task: Task) -> None:
    """Move the admin password in the document to the state field ``admin_pass``, from which the guest agent gets it
    later. Called when the config drive has been written or there is none."""
    admin_password.note_admin_password(task.document)
    task.note()


def define(task: Task) -> None:
    """Define the server's domain in libvirt from its document."""
    place = server_folder(task.host, task.document.id)
    disk_owner.claim_disks(task)
    make_state_folder(place)
    task.host.hypervisor.permit([place])
    own_disks.remove_stale_disks(task.host, task.document, spec.required_files(task.document.want))
    _choose(task.host, task.document, task.keep)
    tpm.keep_secret(task)
    encryption.draw_disk_key(task)
    _define(task.host, task.document, task.keep)
    disk_owner.record_disks(task.host, task.document)


def grow(task: Task) -> None:
    """Grow the server's root disk to the flavor's size."""
    size = task.document.want["flavor"]["disk"] * GIB
    own_disks.grow_own_disk(task, "disk", size)
    task.document.state["root_bytes"] = size
    task.keep()


def start(task: Task, paused: bool = False) -> None:
    """Start the guest, or restore a suspended guest from its saved memory. *paused*: leave its CPUs stopped."""
    _check_free(task)
    if adopted.is_adopted(task.document):
        _clear_reason(task)
        task.host.hypervisor.start(task.document.id, paused)
        return
    own_disks.check_disk_ownership(task.host, task.document)
    _clear_reason(task)
    _reach_volumes(task)
    task.keep_notes()
    disk_owner.record_disks(task.host, task.document)
    nics.forget_pulled(task)
    prepare_for_start(task.host, task.document, task.keep)
    tpm.keep_secret(task)
    tpm.start_guest(task.host, task.document, paused=paused, cloud_secret=task.operation.given.get(tpm.GIVEN))


def start_paused(task: Task) -> None:
    """Start the guest with its CPUs stopped, because the desired power state is paused."""
    start(task, paused=True)


def prepare_for_start(host: LocalHost, document: Document, keep: Callable[[], None]) -> None:
    """Assign the host's CPUs, memory pages and devices to the server before QEMU starts, replacing those that no longer
    exist. Defines the domain again if this changes the domain. *keep*: writes the document to disk."""
    _choose(host, document, keep)
    function_settings.apply_function_settings(host, document)
    if placement.REDEFINE in document.state or pci.are_by_name(document.want):
        _define(host, document, keep)


def _choose(host: LocalHost, document: Document, keep: Callable[[], None]) -> None:
    """Assign CPUs, memory pages and devices of the host (PCI, vGPU, PMEM) to the server before its domain is defined or
    started. *keep*: writes the document to disk."""
    changes = pci.BEFORE in document.want
    placement.prepare_placement(host, document, keep, pci.preferred_device_cells(host, document.want, document.id))
    pci.prepare_pci_devices(host, document, keep)
    mdevs.prepare_mdev(host, document, keep)
    pmem.prepare_pmem(host, document, keep)
    if changes and pci.BEFORE not in document.want:
        function_settings.reset_free_functions(host)


def _define(host: LocalHost, document: Document, keep: Callable[[], None]) -> None:
    host.hypervisor.define(spec.domain_spec(host, document))
    if document.state.pop(placement.REDEFINE, None):
        keep()


def _check_free(task: Task) -> None:
    """Raise ``Conflict`` if the server must wait for the control plane's permission to start, because the control plane
    may have evacuated the server while this host was down."""
    if task.document.state.get(HELD):
        raise Conflict(f"Server {task.document.name!r} belongs to a cloud, which may have evacuated it before this "
                       "host was booted. Its cloud starts it, or removes it, as soon as one of its conductors "
                       "reaches this agent.")


def _reach_volumes(task: Task) -> None:
    """Raise ``Unreachable`` unless QEMU can reach the server's volumes on other hosts. After a power failure of all
    hosts, those hosts may boot later than this one. Raise ``Conflict`` if a volume of the server has incomplete content
    after an unfinished reimage."""
    reimaging.check_whole(task.host, task.document.id)
    state = task.document.state
    try:
        remote.check_reachable(task.host, task.document)
    except Unreachable:
        state[remote.AWAITED] = True
        task.keep()
        raise
    if state.pop(remote.AWAITED, None):
        task.keep()


def _clear_reason(task: Task) -> None:
    """Remove the reason of the server's last stop or crash from its document."""
    if task.document.state.pop("reason", None) or task.document.state.pop("crashed", None):
        task.document.state.pop("crashed", None)
        task.keep()


def stop(task: Task) -> None:
    """Shut down the guest, and power it off if this takes longer than allowed (Nova's os-stop)."""
    _clear_reason(task)
    shutdown.shut_down_guest(task)


def pause(task: Task) -> None:
    """Pause the guest: stop its CPUs."""
    task.host.hypervisor.pause(task.document.id)


def resume(task: Task) -> None:
    """Resume a paused guest."""
    _clear_reason(task)
    task.host.hypervisor.resume(task.document.id)


def save(task: Task) -> None:
    """Suspend the guest: save its memory to disk and stop it. NICs that are PCI devices of the host are unplugged
    first."""
    nics.unplug_device_nics(task)
    try:
        task.host.hypervisor.save(task.document.id)
    except MagnetarError:
        nics.restore_nics(task)
        raise


def destroy(task: Task) -> None:
    """Power off the guest immediately."""
    task.host.hypervisor.destroy(task.document.id)


def undefine(task: Task) -> None:
    """Remove the domain from libvirt. The file with the guest's UEFI variables is not removed if another host may use
    the server's folder."""
    _undefine(task.host, task.document)


def _undefine(host: LocalHost, document: Document) -> None:
    host.hypervisor.undefine(document.id, keep_nvram=disk_owner.must_leave_disks(host, document))


def erase(task: Task) -> None:
    """Remove the server's disks and folder, its vGPU and its TPM state; erase its persistent memory, and reset its
    virtual functions."""
    if task.document.state.get(tpm.HAD):
        _undefine(task.host, task.document)
    mdevs.remove_server_mdev(task.host, task.document)
    pmem.release_pmem(task.host, task.document)
    function_settings.release_functions(task.host, task.document)
    try:
        own_disks.remove_server_folder(task.host, task.document)
    except OSError as error:
        place = server_folder(task.host, task.document.id)
        raise HypervisorError(f"The disks of server {task.document.name!r} cannot be removed: {error}. Look at "
                              f"{place}, then delete the server again.") from error


VERBS: Mapping[str, Verb] = {
    verb.__name__: verb
    for verb in (disks, drive, rescue_drive, forget_password, define, grow, start, start_paused, stop, pause, resume,
                 save, destroy, undefine, erase,
                 block_devices.volumes, block_devices.free, nics.plug, addresses.reserve, addresses.release,
                 resize.drop_swap, resize.grow_ephemeral, rebuild.reimage, rebuild.wipe, rebuild.rebuilt,
                 rebuild.discard,
                 rescue.rescue, rescue.unrescue, takeover.mark_domain, takeover.unmark_domain)
}
