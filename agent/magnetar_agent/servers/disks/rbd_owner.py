# SPDX-License-Identifier: GPL-3.0-or-later
"""The owner of a server's RBD images, and their change to another host in an evacuation.

The first image of a server has a record: the host that may use the images, and the facts about them. A host writes it
when its server has changed, and reads it before it starts the server or removes its images.

``adopt_rbd_images`` takes over the images of a host that is off. The new host notes the former mark and draws its own,
writes itself into the record, and renames the images from the former mark to its own, the one with the record last. So
a host that returns neither finds its images nor may use those that still have its mark. Until the cloud confirms the
evacuation (``disk_owner.keep_disks``), a removal of the server renames the images back.

Names are compared with the pool's list, since an ``rbd rename`` that is killed may leave an image with two names that
can be opened.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.disk_folder import read_host_owner
from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.migrations import migration_of_server
from magnetar_agent.reconcile.documents import write_atomically
from magnetar_agent.servers import server_folder
from magnetar_core.errors import Conflict, HypervisorError, MagnetarError

from . import rbd_images, root_pool
from .disk_record import ADOPTED, GIVEN, RECORDED, check_disk_record, disk_facts, take_disk_facts
from .root_pool import NOTE, RBD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.storage import RbdPool
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

log = logging.getLogger(__name__)
#: File in the state folder: the identity of the pool for servers' disks, which is needed while Ceph does not answer.
KNOWN = "disk_pool"
#: Notes of servers that need their image's content in files: without it, they get these notes again with it.
_OF_FILES = ("base", "image_name", "iso", "boot")


# The record -------------------------------------------------------------------------------------------------------
def record_rbd_disks(host: LocalHost, document: Document) -> None:
    """Store a record with the first RBD image of the server: this host as the owner of all its images, and the current
    facts about its disks from *document*. Do nothing if the same record was stored before, or if the server has no
    complete RBD image. The caller must write *document*, which notes that the record is stored."""
    files = _recordable_files(host, document)
    if not files:
        return
    text = _record(host, document, files)
    note = {"file": files[0], "digest": hashlib.sha256(text.encode()).hexdigest()[:16]}
    if document.state.get(RECORDED) != note:
        tools = rbd_images.rbd_pool_of_server(host, document)
        tools.annotate(rbd_images.rbd_image_name(document, files[0]), text)
        document.state[RECORDED] = note


def try_to_record(host: LocalHost, document: Document) -> bool:
    """Call ``record_rbd_disks``, and return whether it succeeded. A failure is logged: without the record, other hosts
    cannot take over the images."""
    try:
        record_rbd_disks(host, document)
    except MagnetarError as error:
        log.warning("server %s: Ceph does not know yet that this host has its disks: %s", document.name, error.message,
                    extra={"server": document.id})
        return False
    return True


def record_all_rbd_disks(host: LocalHost) -> None:
    """Call ``try_to_record`` for each server without a record of the owner in Ceph, and write the server's document.
    Such a server was created by an earlier release, or has migrated here while Ceph did not answer. Servers that
    migrate now are left out, because their images may have another owner already. Stop at the first failure."""
    for peeked in host.documents.peek("server"):
        if RECORDED in peeked.state or NOTE not in peeked.state or not rbd_images.uses_rbd_images(peeked.want):
            continue
        with host.locks.hold("server", peeked.id):
            document = host.documents.get("server", peeked.id)
            if document is None or document.deleting or migration_of_server(host, document) or not _recordable_files(
                    host, document):
                continue
            if not try_to_record(host, document):
                return
            host.documents.write(document)


def check_rbd_owner(host: LocalHost, document: Document) -> None:
    """Raise ``Conflict`` if another host is recorded as the owner of the server's RBD images, or if the image with the
    record is missing: another host may have renamed it while taking over the images."""
    if reason := _why_not_mine(host, document):
        raise Conflict(f"{reason} Look for the server there, and delete it here; its disks stay.")


def _why_not_mine(host: LocalHost, document: Document) -> str:
    """Return why this host may not use the server's RBD images; "" if it may. Raises ``MagnetarError`` if the pool
    cannot be used."""
    recorded = document.state.get(RECORDED)
    if not recorded or NOTE not in document.state or not rbd_images.uses_rbd_images(document.want):
        return ""
    tools, name = rbd_images.rbd_pool_of_server(host, document), rbd_images.rbd_image_name(document, recorded["file"])
    record = _read(tools, name)
    if record is None and tools.size(name) is None:
        return (f"The disks of server {document.name!r} are not in Ceph under their names any more: another host may "
                "have taken them over.")
    if record is not None and record["owner"] != read_host_owner(host):
        return f"The disks of server {document.name!r} belong to host {record['host']}, which has taken them over."
    return ""


def _recordable_files(host: LocalHost, document: Document) -> list[str]:
    if not rbd_images.uses_rbd_images(document.want) or NOTE not in document.state:
        return []
    return rbd_images.complete_rbd_disks(host, document)


def _record(host: LocalHost, document: Document, files: list[str]) -> str:
    facts = disk_facts(document)
    if "made" in facts["state"]:  # the config drive is no disk: it is written later, and often
        facts["state"]["made"] = [file for file in facts["state"]["made"] if file != "config.iso"]
    return json.dumps({"owner": read_host_owner(host), "host": host.name, "files": files,
                       "base": document.state[NOTE].get("base"), **facts}, sort_keys=True)


def _read(tools: RbdPool, name: str) -> Any:
    """Return the record of the RBD image *name*: the owner of the server's images, and facts about the disks. ``None``
    if there is no complete record. Raises ``Conflict`` if the record cannot be parsed. *tools*: the Ceph pool."""
    text = tools.annotation(name)
    if text is None:
        return None
    try:
        record = json.loads(text)
        return record if record["owner"] and record["host"] and record["files"] and record["state"] else None
    except (ValueError, KeyError, TypeError) as error:
        raise Conflict(f"The metadata of the RBD image {name}, which say which host may use it, cannot be read: "
                       f"{error}. Remove them (rbd image-meta remove) if the server runs nowhere.") from error


# Evacuation -------------------------------------------------------------------------------------------------------
def adopt_rbd_disks(task: Task) -> None:
    """Take over the existing RBD images of an evacuated server, with their content. The former owner is in the server's
    field ``adopt_disks``. May be repeated. Raises ``Conflict`` if the pool for new servers' disks does not have the
    images, or if the former owner does not own them."""
    host, document = task.host, task.document
    state = document.state
    if NOTE not in state:
        _note_adoption(task)
    if ADOPTED in state and set(state[ADOPTED]["files"]).difference(rbd_images.complete_rbd_disks(host, document)):
        _take(host, document)
        task.keep()


def _note_adoption(task: Task) -> None:
    """Store in the server's document which RBD images the server takes over, and the mark (a random text) for their new
    names. Nothing in Ceph is changed yet. Raises ``Conflict`` if the images cannot be taken over."""
    host, document = task.host, task.document
    if root_pool.type_of(host, host.settings.root_pool) != RBD:
        raise Conflict(f"The disks of server {document.name!r} lie on storage that several hosts reach, and host "
                       f"{host.name} has none (instances_path, or root_pool of type rbd). Choose another host.")
    pool = root_pool.configured_root_pool(host, RBD)
    tools = host.hypervisor.rbd_pool(pool.pool)
    mark, record = _find_record(tools, document)
    check_disk_record(document, record, record["files"])
    former = f"{document.id}_{mark}_"
    if lost := [file for file in record["files"] if tools.size(former + file) is None]:
        raise Conflict(f"{', '.join(lost)} of server {document.name!r} is gone from the pool {pool.name} of Ceph. "
                       "Restore the image, or rebuild the server.", files=lost)
    take_disk_facts(document, record)
    if document.state.get("iso") or document.state.get("boot"):
        for name in _OF_FILES:
            document.state.pop(name, None)
    document.state[ADOPTED] = {"owner": record["owner"], "host": record["host"], "mark": mark,
                               "files": record["files"]}
    document.state[NOTE] = {"name": pool.name, "mark": uuid.uuid4().hex[:8],
                            **({"base": record["base"]} if record["base"] else {})}
    task.keep()


def _find_record(tools: RbdPool, document: Document) -> tuple[str, Fields]:
    """Return the mark and the record of the server's RBD images that belong to the former owner (the field
    ``adopt_disks``). The mark is a random part of the image names; images of earlier owners may have other marks.
    Raises ``Conflict`` unless exactly one mark belongs to the former owner. *tools*: the Ceph pool."""
    records: dict[str, Fields] = {}
    for name in tools.names():
        match = rbd_images.RBD_IMAGE.fullmatch(name)
        mark = match[1].rpartition("_")[2] if match and name.startswith(f"{document.id}_") else None
        if mark and mark not in records and (record := _read(tools, name)):
            records[mark] = record
    found = [mark for mark, record in records.items() if record["owner"] == document.want[GIVEN]]
    if len(found) == 1:
        return found[0], records[found[0]]
    owners = ", ".join(sorted({str(record["host"]) for record in records.values()}))
    raise Conflict(
        f"Ceph has no disks of server {document.name!r} that host {document.want[GIVEN]} could give away, only of "
        f"{owners or 'nobody'}. Look for the server there." if not found else
        f"Ceph has disks of server {document.name!r} under {len(found)} marks, {', '.join(found)}. Remove the images "
        "of those that are left over, then repeat the evacuation.")


def _take(host: LocalHost, document: Document) -> None:
    """Make this host the owner of the server's RBD images, and give the images names with the server's new mark. First
    write this host into the record of the first image: the former owner may then use none of the images. Rename the
    first image last. Raises ``Conflict`` if an image is missing. May be repeated."""
    tools, adopted, place = rbd_images.rbd_pool_of_server(host, document), document.state[ADOPTED], server_folder(
        host, document.id)
    make_state_folder(place)
    former, files = f"{document.id}_{adopted['mark']}_", adopted["files"]
    names = set(tools.names())
    _block_former_clients(host, document, tools, [former + file for file in files if former + file in names])
    if former + files[0] in names:
        tools.annotate(former + files[0], _record(host, document, files))
    for file in reversed(files):
        if former + file in names:
            tools.rename(former + file, rbd_images.rbd_image_name(document, file))
    names = set(tools.names())
    if lost := [file for file in files if rbd_images.rbd_image_name(document, file) not in names]:
        raise Conflict(f"{', '.join(lost)} of server {document.name!r} has gone from Ceph while this host took it "
                       "over. Look for the server on other hosts.", files=lost)
    for file in files:
        rbd_images.complete_rbd_disk(host, document, file)
    record_rbd_disks(host, document)


def _block_former_clients(host: LocalHost, document: Document, tools: RbdPool, names: list[str]) -> None:
    """Have Ceph refuse writes of a QEMU of the former owner that still has the images *names* open, unless the setting
    ``rbd_blocklist`` is off. The cloud knows already that the former owner is off, so a failure is only logged."""
    if not host.settings.rbd_blocklist:
        return
    for name in names:
        try:
            blocked = tools.block_clients(name)
        except HypervisorError as error:
            log.warning("server %s: clients of the RBD image %s are not blocked: %s The Ceph user needs the "
                        "capability mon 'profile rbd', or set rbd_blocklist to false.", document.name, name,
                        error.message, extra={"server": document.id})
            return
        if blocked:
            log.warning("server %s: %s had the RBD image %s of a host that should be off still open, and may not use "
                        "it any more", document.name, ", ".join(blocked), name, extra={"server": document.id})


def leave_rbd_disks(host: LocalHost, document: Document) -> bool:
    """Return whether the RBD images of a server that is being removed from this host must not be removed, because they
    belong to another host. If this host got them in an evacuation that is not confirmed, first give them back to the
    former owner. May be repeated."""
    if not rbd_images.uses_rbd_images(document.want) or NOTE not in document.state:
        return False
    adopted = document.state.get(ADOPTED)
    if adopted is not None:
        return not _give_back(host, document, adopted)
    if reason := _why_not_mine(host, document):
        log.warning("%s They stay.", reason, extra={"server": document.id})
    return bool(reason)


def _give_back(host: LocalHost, document: Document, adopted: Fields) -> bool:
    """Give the server's RBD images their former names again, then write the former owner into their record. Return
    ``False`` if an image cannot be renamed, because the former owner has created an image with that name meanwhile.
    *adopted*: the former owner, the former mark in the names, and the files of the disks."""
    tools, former, renamed = rbd_images.rbd_pool_of_server(host, document), f"{document.id}_{adopted['mark']}_", True
    names = set(tools.names())
    for file in reversed(adopted["files"]):
        name = rbd_images.rbd_image_name(document, file)
        if name in names and former + file in names:
            log.warning("the RBD image %s stays: its former owner has made another one", name,
                        extra={"server": document.id})
            renamed = False
        elif name in names:
            tools.rename(name, former + file)
    first = former + adopted["files"][0]
    record = _read(tools, first)
    if record is not None and record["owner"] == read_host_owner(host):
        tools.annotate(first, json.dumps({**record, "owner": adopted["owner"], "host": adopted["host"]},
                                           sort_keys=True))
    return renamed


# What the host reports ----------------------------------------------------------------------------------------------
def report_disk_pool(host: LocalHost, pools: Iterable[Fields]) -> Fields | None:
    """Return the host's field ``disk_pool``; ``None`` if new servers' disks are not in Ceph. *pools*: the host's
    reports of its pools. While Ceph does not answer, ``id`` is the identity of the pool that was read last and is
    stored in the state folder."""
    name = host.settings.root_pool
    if name is None or root_pool.type_of(host, name) != RBD:
        return None
    report: Mapping[str, Any] = next((pool for pool in pools if pool["name"] == name), {})
    path = Path(host.settings.state_dir) / KNOWN
    known = path.read_text() if path.exists() else ""
    if (identity := report.get("identity")) and identity != known:
        write_atomically(path, identity.encode())
    return {"pool": name, "id": identity or known or None, "owner": read_host_owner(host),
            "reason": report.get("reason", ""), "others": sorted(
                document.id for document in host.documents.peek("server")
                if not rbd_images.uses_rbd_images(document.want) or (
                    NOTE in document.state and document.state[NOTE]["name"] != name))}
