# SPDX-License-Identifier: GPL-3.0-or-later
"""The verbs of the server driver. Each may be done twice; where it matters, it writes the document before it acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from magnetar_agent.host.file_modes import make_folder
from magnetar_agent.host.host import LocalHost
from magnetar_agent.host.storage import DiskKey
from magnetar_agent.metadata import configdrive
from magnetar_agent.reconcile.documents import HELD, Document, Fields, sync_folder
from magnetar_agent.reconcile.task import Task, Verb
from magnetar_agent.servers.disks import block_devices, disk_layout, encryption, image_links, own_disks, pmem
from magnetar_agent.servers.hardware import mdevs, pci, placement, tpm
from magnetar_agent.servers.nics import addresses, function_settings, nics
from magnetar_agent.settings import NO_INJECTION
from magnetar_agent.volumes import reimaging, remote
from magnetar_core.errors import Conflict, HypervisorError, MagnetarError, Unreachable
from magnetar_core.server_plan import drive_digest

from . import GIB, MIB, admin_password, folder, guest_data, rebuild, rescue, resize, shutdown, spec


def disks(task: Task) -> None:
    """Make what is missing of root, ephemeral and swap disks, and hold on to the image's files by hard links."""
    host, document, want = task.host, task.document, task.document.want
    place = folder(host, document.id)
    make_folder(place)
    if want["image"]:
        _hold(task, place)
    encryption.draw(task)
    disk_layout.draw(host, document)
    key = encryption.of(host, document)
    sizes, made = resize.seen(document)["sizes"], document.state.get("made", [])
    there = (place / "disk").exists() and not (own_disks.is_made_anew(document) and "disk" not in made)
    root = _root(task, place, key) if "disk" in spec.files(want) and not there else None
    for one in spec.local_disks(want):
        if one.file not in made or not (place / one.file).exists():
            own_disks.make(task, one.file, one.size, one.label, key=key)
            sizes[one.file] = one.size
    if host.settings.inject_partition != NO_INJECTION and "disk" not in made and "disk" in spec.files(want):
        from magnetar_agent.servers.disks import injection  # of few hosts

        injection.inject(task)
    if root is None:
        seen = own_disks.seen(host, document, "disk")
        root = seen.virtual_size if seen else 0
    document.state["root_bytes"] = root
    document.state["sizes"] = sizes
    document.state["made"] = sorted({*made, *(set(spec.files(want)) - {"config.iso"})})
    task.note(place)


def _hold(task: Task, place: Path) -> None:
    """Links to the image's content: the image may be removed, what the server stands on stays until it goes. What is
    held is not looked at again: the image may have other content by now."""
    document, id = task.document, task.document.want["image"]
    base = document.state.get("base")
    if base and (_holds(document, base, place) or task.host.documents.get("image", id) is None):
        return
    if base is None and not (place / "disk").exists():
        image_links.unlink(place)  # what a crash left, before it was noted which content it is
    held = image_links.link_image(task.host, id, place)
    document.state.update(image_name=held["name"], iso=held["iso"])
    document.state[shutdown.FIELD] = held[shutdown.FIELD]
    if held["boot"]:
        document.state["boot"] = held["boot"]
    document.state["base"] = {name: held[name] for name in ("image", "format", "virtual_size", "encrypted", "digest")
                              if name != "encrypted" or held[name]}
    task.note(place)


def _holds(document: Document, base: Fields, place: Path) -> bool:
    """Whether what is noted of the server's image is true of what it stands on."""
    if base.get("image", document.want["image"]) != document.want["image"]:
        return False
    copied = document.want["root_format"] != "qcow2" or base.get("encrypted")
    held = place / ("kernel" if base["format"] == "aki" else "base")
    return bool(copied and (place / "disk").exists()) or held.exists()


def _root(task: Task, place: Path, key: DiskKey | None) -> int:
    """Make the root disk; its size in bytes."""
    want = task.document.want
    size = want["flavor"]["disk"] * GIB
    held = task.document.state.get("base")
    if held is None or held["format"] in ("iso", "aki"):
        own_disks.make(task, "disk", size or MIB, key=key)
        return int(size or MIB)
    base = place / "base"
    size = max(size, held["virtual_size"])
    if backing := spec.root_backing(want, task.document.state, place):
        own_disks.make(task, "disk", size, backing=backing, key=key)
        return int(size)
    own_disks.copy_image(task, base, held["format"], size, key)
    base.unlink(missing_ok=True)
    sync_folder(place)
    return int(size)


def drive(task: Task) -> None:
    """Write the config drive; what it says is drawn once and kept before a guest reads it, so a second writing says the
    same."""
    host, document = task.host, task.document
    place = folder(host, document.id)
    make_folder(place)
    guest_data.draw(host, document)
    late = own_disks.is_made_anew(document)
    guest_data.write_drive(host, document, configdrive.FILE, flushed=not late)
    document.state["drive"] = drive_digest(document.want)
    document.state["made"] = sorted({*document.state.get("made", []), configdrive.FILE})
    task.note(place, *([place / configdrive.FILE] if late else ()))


def rescue_drive(task: Task) -> None:
    """Write the config drive of a rescue, which tells its password."""
    guest_data.write_drive(task.host, task.document, rescue.DRIVE)
    task.note(folder(task.host, task.document.id))


def forget_password(task: Task) -> None:
    """The config drive has the password already, or there is none."""
    admin_password.told(task.document)
    task.note()


def define(task: Task) -> None:
    """Tell libvirt what the domain is to be."""
    place = folder(task.host, task.document.id)
    make_folder(place)
    task.host.hypervisor.permit([place])
    own_disks.tidy(task.host, task.document, spec.files(task.document.want))
    _choose(task.host, task.document, task.keep)
    tpm.keep_secret(task)
    encryption.draw(task)
    _define(task.host, task.document, task.keep)


def grow(task: Task) -> None:
    """Grow the root disk to the flavor's size."""
    size = task.document.want["flavor"]["disk"] * GIB
    own_disks.grow(task, "disk", size)
    task.document.state["root_bytes"] = size
    task.keep()


def start(task: Task, paused: bool = False) -> None:
    """Start, or restore what was suspended."""
    _check_free(task)
    own_disks.check_here(task.host, task.document)
    _clear_reason(task)
    _reach_volumes(task)
    task.keep_notes()
    nics.forget_pulled(task)
    settle(task.host, task.document, task.keep)
    tpm.keep_secret(task)
    tpm.start(task.host, task.document, paused=paused, given=task.operation.given.get(tpm.GIVEN))


def start_paused(task: Task) -> None:
    """Start with the CPUs stopped."""
    start(task, paused=True)


def settle(host: LocalHost, document: Document, keep: Callable[[], None]) -> None:
    """CPUs, pages and devices of the host must be there when QEMU starts; the host may have fewer than before. *keep*
    writes the document."""
    _choose(host, document, keep)
    function_settings.apply(host, document)
    if placement.REDEFINE in document.state or pci.are_by_name(document.want):
        _define(host, document, keep)


def _choose(host: LocalHost, document: Document, keep: Callable[[], None]) -> None:
    """See ``settle`` of ``placement``, ``pci``, ``mdevs`` and ``pmem``."""
    changes = pci.BEFORE in document.want
    placement.settle(host, document, keep, pci.cells(host, document.want, document.id))
    pci.settle(host, document, keep)
    mdevs.settle(host, document, keep)
    pmem.settle(host, document, keep)
    if changes and pci.BEFORE not in document.want:
        function_settings.give_back(host)


def _define(host: LocalHost, document: Document, keep: Callable[[], None]) -> None:
    host.hypervisor.define(spec.domain(host, document))
    if document.state.pop(placement.REDEFINE, None):
        keep()


def _check_free(task: Task) -> None:
    """Raises ``Conflict`` for a server that waits for the word of its cloud, which may have evacuated it."""
    if task.document.state.get(HELD):
        raise Conflict(f"Server {task.document.name!r} belongs to a cloud, which may have evacuated it before this "
                       "host was booted. Its cloud starts it, or removes it, as soon as one of its conductors "
                       "reaches this agent.")


def _reach_volumes(task: Task) -> None:
    """Volumes of other hosts must be there when QEMU starts; after an outage of all hosts they may come up later."""
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
    """What stopped it last is over."""
    if task.document.state.pop("reason", None) or task.document.state.pop("crashed", None):
        task.document.state.pop("crashed", None)
        task.keep()


def stop(task: Task) -> None:
    """Let the guest power itself off; what does not in its time loses its power (as Nova's os-stop)."""
    _clear_reason(task)
    shutdown.shut_down(task)


def pause(task: Task) -> None:
    """Stop the CPUs."""
    task.host.hypervisor.pause(task.document.id)


def resume(task: Task) -> None:
    """Let the CPUs run."""
    _clear_reason(task)
    task.host.hypervisor.resume(task.document.id)


def save(task: Task) -> None:
    """Suspend to disk, without NICs that are devices of the host."""
    nics.pull(task)
    try:
        task.host.hypervisor.save(task.document.id)
    except MagnetarError:
        nics.put_back(task)
        raise


def destroy(task: Task) -> None:
    """Pull the plug."""
    task.host.hypervisor.destroy(task.document.id)


def undefine(task: Task) -> None:
    """Forget the domain."""
    task.host.hypervisor.undefine(task.document.id)


def erase(task: Task) -> None:
    """Remove the server's folder, its virtual GPU, what is in its persistent memory, and what is in its TPM where its
    domain has gone before."""
    if task.document.state.get(tpm.HAD):
        task.host.hypervisor.undefine(task.document.id)
    mdevs.remove(task.host, task.document)
    pmem.remove(task.host, task.document)
    function_settings.remove(task.host, task.document)
    try:
        own_disks.remove_all(task.host, task.document)
    except OSError as error:
        place = folder(task.host, task.document.id)
        raise HypervisorError(f"The disks of server {task.document.name!r} cannot be removed: {error}. Look at "
                              f"{place}, then delete the server again.") from error


VERBS: Mapping[str, Verb] = {
    verb.__name__: verb
    for verb in (disks, drive, rescue_drive, forget_password, define, grow, start, start_paused, stop, pause, resume,
                 save, destroy, undefine, erase,
                 block_devices.volumes, block_devices.free, nics.plug, addresses.reserve, addresses.release,
                 resize.drop_swap, resize.grow_ephemeral, rebuild.reimage, rebuild.wipe, rebuild.rebuilt,
                 rebuild.discard,
                 rescue.rescue, rescue.unrescue)
}
