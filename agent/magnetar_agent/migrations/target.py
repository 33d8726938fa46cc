# SPDX-License-Identifier: GPL-3.0-or-later
"""The target of a migration: check for room, admit the source, receive files, and take the server over.

Before the source calls ``arrive``, the guest does not run here, and the server has no document here; the whole copy can
be dropped. As soon as the arrival is recorded, the server belongs to this host.
"""

from __future__ import annotations

import logging
import shutil
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.link import Offer
from magnetar_agent.link.rpc import Rpc
from magnetar_agent.reconcile.documents import Document, sync_folder
from magnetar_agent.reconcile.locks import CHOICES
from magnetar_agent.reconcile.task import NotRemovable
from magnetar_agent.servers import GIB, resolve, server_folder, spec
from magnetar_agent.servers.disks import disk_owner, disk_record, rbd_owner
from magnetar_agent.servers.hardware import hardware, mdevs, memory, pci, tpm
from magnetar_agent.servers.nics import addresses
from magnetar_core.errors import (
    Conflict,
    InvalidField,
    InvalidRequest,
    MagnetarError,
    NoSpace,
    NotFound,
    mask_unforeseen_error,
)
from magnetar_core.hardware.needs import missing_hardware
from magnetar_core.kinds import Server
from magnetar_core.operations import Operation, utc_timestamp
from magnetar_core.power import LIVE, RUNNING

from . import AGENT, DISKS, LIBVIRT, NATIVE, QEMU, coming_disks, keys, target_resources, volumes
from .transfer import NOTE, receive_file_frames

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_agent.reconcile.task import Task

log = logging.getLogger(__name__)


# Before -----------------------------------------------------------------------------------------------------------
def check_migration_target(host: LocalHost, want: Fields) -> None:
    """Check that this host can take the server of a migration. *want*: the migration's fields, with the manifest (the
    source's description of the server). Raises ``Conflict``, ``InvalidField`` or ``NoSpace``. Nothing is changed."""
    manifest = want.get("manifest")
    if not isinstance(manifest, dict) or manifest.get("server") != want["server"]:
        raise InvalidField("manifest", "is required on the target: the manifest that the migration on the source shows")
    manifest = target_resources.target_manifest(manifest)
    if host.links.required() == want["peer"] or manifest["host_id"] == host.hypervisor.host()["id"]:
        raise Conflict(f"Server {manifest['name']!r} is on this very host ({host.name}). Choose another target.")
    _is_free(host, want["server"])
    coming_disks.check_target_folder(host, manifest)
    for at, nic in enumerate(manifest["networks"]):
        resolve.check_plug(host, resolve.nic_plug(nic, f"networks[{at}]"), f"networks[{at}]")
    addresses.complete_addresses(host, [dict(nic) for nic in manifest["networks"]], [], None)
    for nic in manifest["networks"]:
        if other := resolve.mac_owner(host, nic["mac"]):
            raise Conflict(f"The MAC {nic['mac']} belongs to server {other.name!r} of the target.")
        if other := resolve.port_owner(host, nic.get("port")):
            raise Conflict(f"The port {nic['port']} belongs to server {other.name!r} of the target.")
    volumes.check_origins(host, manifest)
    _can_run(host, manifest, want["type"] == "live")
    target_resources.check_target_resources(host, manifest, want["type"] == "live")
    _room(host, manifest)


def _is_free(host: LocalHost, id: str) -> None:
    _is_alone(host, id, "")
    if host.documents.get("server", id):
        raise Conflict(f"The target has a server with the uuid {id} already. Look at it with server_info, and remove "
                       "one of the two.", uuids=[id])
    domain = host.hypervisor.domain(id)
    if domain is not None and not (domain.owned and any(
            d.want["server"] == id for d in host.documents.list("migration") if d.want["side"] == "target")):
        raise Conflict(f"The target has a libvirt domain with the uuid {id} ({domain.name}) that no server of Magnetar "
                       "has. Remove or rename it first.", uuids=[id])


def _is_alone(host: LocalHost, server: str, id: str) -> None:
    for other in host.documents.list("migration"):
        if other.want["side"] == "target" and other.want["server"] == server and other.id != id and \
                other.state.get("prepared") and not other.state.get("settled"):
            raise Conflict(f"The server {server} is on its way here already, from {other.want['peer']} (migration "
                           f"{other.id}). Let that end, or abort it first.", migration=other.id)


def _can_run(host: LocalHost, manifest: Fields, live: bool) -> None:
    if manifest["virt_type"] == "kvm" and not host.hypervisor.kvm()["usable"]:
        raise Conflict(f"The target cannot run guests under KVM: {host.hypervisor.kvm()['reason']}. Choose a host "
                       "that can.")
    requirements = {**(manifest.get("hardware") or {}), "machine": manifest["machine"]}
    if live and manifest.get("secure_boot"):
        requirements["secure_boot"] = "required"
    for name, missing_part in missing_hardware(requirements, host.hypervisor.host()
                                               | pci.pci_facts(host, pci.assignable_devices(host)) | mdevs.mdev_facts(
            host, mdevs.divisible_devices(host))):
        raise Conflict(f"The server's hardware {name} ({requirements[name]}) cannot be had on the target, which lacks "
                       f"{missing_part}. Install it there and restart libvirtd, or choose another host.")
    if live and manifest["cpu"] and (lacks := host.hypervisor.cpu_lacks(manifest["cpu"])):
        raise Conflict(f"The guest cannot keep on the target the CPU that it sees, {lacks}. Migrate it cold, or choose "
                       "a host with the same CPU or a newer one.")
    hardware.check_cpu(host, requirements, manifest["virt_type"])
    if live and manifest.get("spice") and not host.hypervisor.has_spice():
        raise Conflict("The guest has a SPICE server, and the target's QEMU has no SPICE. Migrate it cold, install "
                       "SPICE there (on Debian 13 the package qemu-system-modules-spice has it), or choose another "
                       "host.")
    datapath = spec.switch_datapath(host, manifest["networks"])
    if live and datapath and manifest.get("datapath") not in (None, "", datapath):
        raise Conflict(
            f"Open vSwitch forwards by the datapath {datapath} on the target, and by {manifest['datapath']} on the "
                       "source: the guest's NICs have other features there, which a running guest cannot change. "
                       "Migrate it cold, or choose a host with the same datapath.")


def _room(host: LocalHost, manifest: Fields) -> None:
    total = memory.guest_memory_total(host)
    coming = _coming(host)
    used = sum(d.want["flavor"]["ram"] for d in host.documents.list("server") if d.want["power"] in LIVE)
    used += sum(incoming["ram"] for incoming in coming if incoming["power"] in LIVE)
    names = ", ".join(sorted(incoming["name"] for incoming in coming))
    noted = f" Room is kept for what is on its way there ({names}); abort what failed." if names else ""
    if manifest["power"] in LIVE and used + manifest["ram"] > total:
        raise NoSpace(
            f"The server has {manifest['ram']} MiB of memory, and the target has {max(0, total - used)} MiB left "
                      f"of {total}. Choose another host, or stop servers there.{noted}")
    free = max(0, host.disk_space()[1] - sum(_missing(host, incoming) for incoming in coming))
    if not coming_disks.are_disks_shared(host, manifest) and manifest["bytes"] > free:
        raise NoSpace(f"The disks of the server take {manifest['bytes'] / GIB:.1f} GiB, and the target has "
                      f"{free / GIB:.1f} GiB left under {host.settings.servers_folder}. Choose another host, or free "
                      f"some.{noted}")
    coming_disks.check_disk_room(host, manifest, [migration.want["manifest"] for migration in _on_their_way(host)
                                                  if "server" not in migration.state])


def _coming(host: LocalHost) -> list[Fields]:
    """Return the manifests of the servers that are migrating to this host and have not arrived."""
    return [migration.want["manifest"] for migration in _on_their_way(host)]


def _on_their_way(host: LocalHost) -> list[Document]:
    return [migration for migration in host.documents.list("migration")
            if migration.want["side"] == "target" and not migration.state.get("settled") and not migration.deleting
            and host.documents.get("server", migration.want["server"]) is None]


def _missing(host: LocalHost, manifest: Fields) -> int:
    """Return how many bytes of the incoming server's disks have not arrived. *manifest*: the source's description of
    the server."""
    if coming_disks.are_disks_shared(host, manifest):
        return 0
    bytes_present = 0
    with suppress(OSError):  # it has not begun, or ends just now
        bytes_present = sum(path.stat().st_blocks * 512 for path in server_folder(host, manifest["server"]).iterdir())
    return max(0, int(manifest["bytes"]) - bytes_present)


def prepare_target(task: Task) -> None:
    """Let the source's agent connect to this host for the migration. Raises ``Conflict`` if another migration of the
    server to this host has not ended."""
    server = task.document.want["server"]
    with task.host.locks.hold("server", server):
        _is_alone(task.host, server, task.document.id)
        task.document.state["prepared"] = True
        task.keep()
    offer_migration_link(task.host, task.document)


def offer_migration_link(host: LocalHost, document: Document) -> None:
    """Let the source's agent connect to the endpoints of this migration: this agent, libvirt, and two sockets of QEMU.
    Must be called again after a restart of the agent."""
    run = run_folder(host, document.id)
    host.links.offer(Offer(document.id, frozenset([document.want["peer"]]), {
        AGENT: partial(_talk, host, document.id), LIBVIRT: host.hypervisor.libvirt_socket(),
        QEMU: run / QEMU, DISKS: run / DISKS,
    }))


def resume_migrations(host: LocalHost) -> None:
    """Let the sources of all unfinished migrations to this host connect again, and take over servers that have arrived.
    Called when the agent starts."""
    for document in host.documents.list("migration"):
        if document.want["side"] != "target":
            continue
        # The connection with the lent keys has ended, maybe after all else of the migration.
        keys.take_back_keys(host, document.want["server"])
        if document.state.get("settled"):
            continue
        if not document.deleting:
            offer_migration_link(host, document)
            if document.state.get("arrived") and host.documents.get("server", document.want["server"]) is None:
                try:
                    _take_over(host, document)
                except MagnetarError as error:
                    log.warning("server %s has arrived and cannot be taken over yet: %s", document.name, error)


def run_folder(host: LocalHost, id: str) -> Path:
    """Return the folder with QEMU's sockets for the migration *id*. It has the same path on the source."""
    return host.settings.socket.parent / "links" / id


# The connection ---------------------------------------------------------------------------------------------------
def _talk(host: LocalHost, id: str, sock: socket.socket, _peer: str) -> None:
    """Answer the source's calls on the connection *sock*. When the connection ends, remove from libvirt the keys that
    the call ``ready`` stored in it; if the migration is repeated, ``ready`` stores the keys again."""
    with Rpc(sock) as talk, ExitStack() as lent:
        while (line := talk.receive()) is not None:
            try:
                op = OPS.get(str(line.get("op")))
                if op is None:
                    raise InvalidRequest(f"The target does not know {line.get('op')!r}; is its agent older?")
                document = _document(host, id)
                if op is _ready:
                    lent.callback(keys.take_back_keys, host, document.want["server"], talk)
                answer = op(host, document, talk, line)
            except MagnetarError as error:
                talk.send({"error": error.as_dict()})
                if line.get("op") == "file":
                    return  # the rest of the file may still come, and would be read as lines
            except Exception as error:
                log.exception("migration %s: %s failed", id, line.get("op"))
                talk.send({"error": mask_unforeseen_error(error).as_dict()})
                return
            else:
                talk.send(answer)


def _document(host: LocalHost, id: str) -> Document:
    document = host.documents.get("migration", id)
    if document is None or document.deleting:
        raise NotFound(f"The target knows no migration {id} any more; it was aborted there.")
    return document


def _look(host: LocalHost, document: Document, _talk: Rpc, _line: Fields) -> Fields:
    """Answer the call ``look``: return ``arrived``, whether this host has the complete server, and ``shared_disks``,
    whether both hosts share its disks (as recorded by the call ``begin``)."""
    shared = document.state.get(coming_disks.SHARED)
    if shared is None:
        shared = coming_disks.are_disks_shared(host, document.want["manifest"])
    return {coming_disks.SHARED: shared, "arrived": bool(document.state.get("arrived")) or (
        document.want["type"] == "live" and host.hypervisor.arrived(document.want["server"]))}


def _begin(host: LocalHost, document: Document, _talk: Rpc, line: Fields) -> Fields:
    """Answer the call ``begin``, with the arguments *line*: remove the domain of an earlier attempt, store the server's
    document in the migration's *document*, and prepare the server's disks.

    Return what the source needs to send the server: how many bytes of each file this host has already, and the folders,
    NICs and domain XML on this host.
    """
    sent_server, id = line["document"], document.want["server"]
    _not_arrived(document)
    if sent_server["id"] != id:
        raise Conflict("The source sends another server than was agreed.")
    document.state[coming_disks.SHARED] = bool(line.get(coming_disks.SHARED))
    if document.state[coming_disks.SHARED] != coming_disks.are_disks_shared(host, document.want["manifest"]):
        raise Conflict("The hosts do not agree whether they share the server's disks: the setting instances_path, or "
                       "what is mounted there, has changed on one of them. Abort the migration, and begin another.")
    _discard(host, id)
    keys.import_server_keys(host, sent_server, line)
    coming_disks.set_disk_location(sent_server, document.state.get("server"))
    document.state["server"], document.state["disks"] = sent_server, line["disks"] if line["live"] else []
    document.state[NATIVE] = bool(line.get(NATIVE)) and host.settings.native_tls
    with host.locks.hold(*CHOICES):
        target_resources.claim_target_resources(host, document.want["manifest"], sent_server, line["live"])
        host.documents.write(document)
    server = _server(document)
    present = coming_disks.prepare_target_disks(host, document, server, line)
    run = run_folder(host, document.id)
    shutil.rmtree(run, ignore_errors=True)  # nothing in it is ours: QEMU's user may have put it there
    make_state_folder(run.parent)
    make_state_folder(run, 0o750)
    host.hypervisor.permit([run])
    run.chmod(0o770)  # QEMU makes its sockets in it
    volumes.prepare_attachments(host, document, line.get("volumes", []))
    return {
        # Earlier agents read "have": they send no states, and must send everything.
        "have": {}, "kept": present, "folder": str(server_folder(host, id)), "run": str(run),
        "nics": {nic.mac: [nic.network, nic.bridge, nic.tap, nic.port] for nic in spec.domain_nics(host, server)},
        NATIVE: document.state[NATIVE],
        "xml": host.hypervisor.render(spec.domain_spec(host, server)),
    }


def _file(host: LocalHost, document: Document, talk: Rpc, line: Fields) -> Fields:
    """Answer the call ``file``: receive one file of the server from *talk*. *line*: the arguments: the file's name,
    mode, state (``file_state``), and the offset at which the content begins."""
    _not_arrived(document)
    path = server_folder(host, document.want["server"]) / coming_disks.check_file_name(line["name"])
    linked = coming_disks.is_linked(document.state["server"]["want"], path.name)
    receive_file_frames(talk, path, int(line["offset"]), bool(line.get("append")), line.get("state"), linked)
    if not linked:
        path.chmod(int(line["mode"]) & 0o750)
    return {}


def _ready(host: LocalHost, document: Document, talk: Rpc, _line: Fields) -> Fields:
    """Answer the call ``ready``, which the source sends after all files: create the disks into which libvirt will copy,
    and let QEMU read the server's files."""
    _not_arrived(document)
    place = server_folder(host, document.want["server"])
    server = _server(document)
    key = keys.lend_server_keys(host, server, talk) if document.want["type"] == "live" else None
    coming_disks.make_target_disks(host, server, document.state["disks"], key)
    sync_folder(place)
    host.hypervisor.permit([place])
    return {}


def _arrive(host: LocalHost, document: Document, _talk: Rpc, _line: Fields) -> Fields:
    """Answer the call ``arrive``, which the source sends when the guest is off on the source for good: record that the
    server belongs to this host from now on, and take it over."""
    if not document.state.get("arrived"):
        if document.want["type"] == "live" and not host.hypervisor.arrived(document.want["server"]):
            raise Conflict("The target has no complete copy of the guest. Repeat the call.")
        document.state["arrived"] = utc_timestamp()
        host.documents.write(document)
    try:
        _take_over(host, document)
    except MagnetarError as error:
        # It has arrived all the same, and the next phase tries again.
        log.warning("server %s arrived and cannot be taken over yet: %s", document.name, error)
    return {}


def _drop(host: LocalHost, document: Document, _talk: Rpc, _line: Fields) -> Fields:
    """Answer the call ``drop``: remove the incomplete copy of the server. Raises ``Conflict`` if the server has
    arrived."""
    _not_arrived(document)
    remove_copy(host, document)
    return {}


OPS: Mapping[str, Callable[[LocalHost, Document, Rpc, Any], Fields]] = {
    "look": _look, "begin": _begin, "file": _file, "ready": _ready, "arrive": _arrive, "drop": _drop,
}


def _not_arrived(document: Document) -> None:
    if document.state.get("arrived"):
        raise Conflict("The server has arrived here already.")


def _server(document: Document) -> Document:
    """Return the server's document that the source sent with the call ``begin``. The document's fields are checked like
    those of an API request."""
    sent_server = document.state["server"]
    fields = {name: sent_server["want"].get(name) for name in {f.name
                                                               for f in Server.settable()} & set(sent_server["want"])}
    fields["flavor"] = {size: sent_server["want"]["flavor"][size] for size in resolve.SIZES}
    Server.check(fields, partial=True)
    # The source's DHCP had the addresses, and the source may have the disks from another host.
    state = {name: note for name, note in sent_server["state"].items() if name not in (addresses.RESERVED,
                                                                                      *disk_record.OF_HOST)}
    return Document("server", document.want["server"], str(sent_server["name"]), dict(sent_server["want"]), state,
                    created_at=str(sent_server["created_at"]))


# The end ----------------------------------------------------------------------------------------------------------
def _take_over(host: LocalHost, document: Document) -> None:
    """Store the document of a server that has arrived, resume its live guest, and apply the document to the host."""
    server = _server(document)
    if host.documents.get("server", server.id) is None:
        if document.state.get(coming_disks.SHARED):
            disk_owner.take_over_disks(host, server)
        volumes.adopt_attachments(host, document)
        volumes.reconnect_volumes(host, server.id)
        if document.want["type"] == "live" and server.want["power"] == RUNNING and \
                host.hypervisor.arrived(server.id):
            host.hypervisor.resume(server.id)
        rbd_owner.try_to_record(host, server)
        tpm.note_tpm_copy(host, server)
        server.state["unfinished"] = True
        server.updated_at = utc_timestamp()
        host.documents.write(server)
    operation = Operation("arrive", "server", server.id, caller="agent")
    try:
        host.revise(Server, server.id, lambda _document: {}, False, operation)
    except NoSpace:
        raise
    except MagnetarError as error:
        # It is here, and its own fault tells the reason.
        log.warning("server %s arrived and cannot be made as wanted: %s", server.name, error)


def clean_up_target(task: Task) -> None:
    """Complete the migration on the target: take the server over if that has not happened, close the link to the
    source, and remove everything that only the migration needed. Raises ``Conflict`` if the server has not arrived."""
    host, document = task.host, task.document
    if not document.state.get("arrived"):
        raise Conflict("The server has not arrived here yet. Move it first: phase moved on the source.")
    _take_over(host, document)
    host.links.withdraw(document.id)
    shutil.rmtree(run_folder(host, document.id), ignore_errors=True)
    for note in server_folder(host, document.want["server"]).glob(f"*{NOTE}"):
        note.unlink(missing_ok=True)
    document.state.pop("server", None)
    document.state["settled"] = utc_timestamp()
    task.keep()


def abandon_target(task: Task) -> None:
    """Abort the migration on the target: remove the incomplete copy of the server. Raises ``NotRemovable`` if the
    server has arrived."""
    host, document = task.host, task.document
    if document.state.get("settled"):
        return
    if document.state.get("arrived"):
        offer_migration_link(host, document)  # a start of the agent offers no migration that is being removed
        raise NotRemovable("The server has arrived here; it cannot be sent back by an abort. Run the migration again "
                           "to settle it, or migrate it back.")
    host.links.withdraw(document.id)
    remove_copy(host, document)


def remove_copy(host: LocalHost, document: Document) -> None:
    """Remove the copy of a server that does not belong to this host: its domain, attachments and files."""
    _discard(host, document.want["server"])
    volumes.drop_attachments(host, document)
    shutil.rmtree(run_folder(host, document.id), ignore_errors=True)
    if host.documents.get("server", document.want["server"]) is None:
        if "server" in document.state:
            coming_disks.remove_target_disks(host, _server(document))
        if not disk_owner.is_folder_of_another_host(host, document.want["server"]):
            shutil.rmtree(server_folder(host, document.want["server"]), ignore_errors=True)


def _discard(host: LocalHost, id: str) -> None:
    """Remove the domain of the server *id* if Magnetar defined it and this host has no document of the server. The
    guest has never run here, as the server belongs to the source."""
    if host.documents.get("server", id) is None:
        domain = host.hypervisor.domain(id)
        if domain is not None and domain.owned:
            host.hypervisor.destroy(id)
            host.hypervisor.undefine(id, keep_nvram=disk_owner.is_folder_of_another_host(host, id))
