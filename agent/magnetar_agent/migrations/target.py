# SPDX-License-Identifier: GPL-3.0-or-later
"""The target's half: say whether there is room, let the source in, take files, and take the server over.

Nothing of the server runs here, and no document of it is here, before the source says ``arrive``; until then all of it
can be dropped. From the line that notes the arrival on, the server is this host's.
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

from magnetar_agent.host.file_modes import make_folder
from magnetar_agent.link import Offer
from magnetar_agent.link.rpc import Rpc
from magnetar_agent.reconcile.documents import Document, sync_folder
from magnetar_agent.reconcile.locks import CHOICES
from magnetar_agent.reconcile.task import NotRemovable
from magnetar_agent.servers import GIB, folder, resolve, spec
from magnetar_agent.servers.hardware import hardware, mdevs, memory, pci, tpm
from magnetar_agent.servers.nics import addresses
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, MagnetarError, NoSpace, NotFound, unforeseen
from magnetar_core.hardware.needs import lacking
from magnetar_core.kinds import Server
from magnetar_core.operations import Operation, now
from magnetar_core.power import LIVE, RUNNING

from . import AGENT, DISKS, LIBVIRT, NATIVE, QEMU, becoming, coming_disks, keys, volumes
from .transfer import NOTE, receive

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_agent.reconcile.task import Task

log = logging.getLogger(__name__)


# Before -----------------------------------------------------------------------------------------------------------
def check_target(host: LocalHost, want: Fields) -> None:
    """Raise ``Conflict``, ``InvalidField`` or ``NoSpace`` for what cannot come, before anything is done."""
    told = want.get("manifest")
    if not isinstance(told, dict) or told.get("server") != want["server"]:
        raise InvalidField("manifest", "is required on the target: what the source's half shows under that name")
    told = becoming.manifest(told)
    if host.links.required() == want["peer"] or told["host_id"] == host.hypervisor.host()["id"]:
        raise Conflict(f"Server {told['name']!r} is on this very host ({host.name}). Choose another target.")
    _is_free(host, want["server"])
    for at, nic in enumerate(told["networks"]):
        resolve.check_plug(host, resolve.plug(nic, f"networks[{at}]"), f"networks[{at}]")
    addresses.complete(host, [dict(nic) for nic in told["networks"]], [], None)
    for nic in told["networks"]:
        if other := resolve.mac_owner(host, nic["mac"]):
            raise Conflict(f"The MAC {nic['mac']} belongs to server {other.name!r} of the target.")
        if other := resolve.port_owner(host, nic.get("port")):
            raise Conflict(f"The port {nic['port']} belongs to server {other.name!r} of the target.")
    volumes.check_origins(host, told)
    _can_run(host, told, want["type"] == "live")
    becoming.check(host, told, want["type"] == "live")
    _room(host, told)


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


def _can_run(host: LocalHost, told: Fields, live: bool) -> None:
    if told["virt_type"] == "kvm" and not host.hypervisor.kvm()["usable"]:
        raise Conflict(f"The target cannot run guests under KVM: {host.hypervisor.kvm()['reason']}. Choose a host "
                       "that can.")
    wanted = {**(told.get("hardware") or {}), "machine": told["machine"]}
    if live and told.get("secure_boot"):
        wanted["secure_boot"] = "required"
    for name, what in lacking(wanted, host.hypervisor.host() | pci.told(host, pci.devices(host)) | mdevs.told(
            host, mdevs.devices(host))):
        raise Conflict(f"The server's hardware {name} ({wanted[name]}) cannot be had on the target, which lacks "
                       f"{what}. Install it there and restart libvirtd, or choose another host.")
    if live and told["cpu"] and (lacks := host.hypervisor.cpu_lacks(told["cpu"])):
        raise Conflict(f"The guest cannot keep on the target the CPU that it sees, {lacks}. Migrate it cold, or choose "
                       "a host with the same CPU or a newer one.")
    hardware.check_cpu(host, wanted, told["virt_type"])
    if live and told.get("spice") and not host.hypervisor.has_spice():
        raise Conflict("The guest has a SPICE server, and the target's QEMU has no SPICE. Migrate it cold, install "
                       "SPICE there (on Debian 13 the package qemu-system-modules-spice has it), or choose another "
                       "host.")
    here = spec.datapath(host, told["networks"])
    if live and here and told.get("datapath") not in (None, "", here):
        raise Conflict(f"Open vSwitch forwards by the datapath {here} on the target, and by {told['datapath']} on the "
                       "source: the guest's NICs have other features there, which a running guest cannot change. "
                       "Migrate it cold, or choose a host with the same datapath.")


def _room(host: LocalHost, told: Fields) -> None:
    total = memory.total(host)
    coming = _coming(host)
    used = sum(d.want["flavor"]["ram"] for d in host.documents.list("server") if d.want["power"] in LIVE)
    used += sum(one["ram"] for one in coming if one["power"] in LIVE)
    names = ", ".join(sorted(one["name"] for one in coming))
    noted = f" Room is kept for what is on its way there ({names}); abort what failed." if names else ""
    if told["power"] in LIVE and used + told["ram"] > total:
        raise NoSpace(f"The server has {told['ram']} MiB of memory, and the target has {max(0, total - used)} MiB left "
                      f"of {total}. Choose another host, or stop servers there.{noted}")
    free = max(0, shutil.disk_usage(host.settings.state_dir).free - sum(_missing(host, one) for one in coming))
    if told["bytes"] > free:
        raise NoSpace(f"The disks of the server take {told['bytes'] / GIB:.1f} GiB, and the target has "
                      f"{free / GIB:.1f} GiB left under {host.settings.state_dir}. Choose another host, or free some."
                      f"{noted}")
    coming_disks.check(host, told, [one.want["manifest"] for one in _on_their_way(host) if "server" not in one.state])


def _coming(host: LocalHost) -> list[Fields]:
    """Manifests of the servers that were let in and are not this host's yet."""
    return [one.want["manifest"] for one in _on_their_way(host)]


def _on_their_way(host: LocalHost) -> list[Document]:
    return [one for one in host.documents.list("migration")
            if one.want["side"] == "target" and not one.state.get("settled") and not one.deleting
            and host.documents.get("server", one.want["server"]) is None]


def _missing(host: LocalHost, told: Fields) -> int:
    """Bytes of its disks that have not come yet."""
    here = 0
    with suppress(OSError):  # it has not begun, or ends just now
        here = sum(path.stat().st_blocks * 512 for path in folder(host, told["server"]).iterdir())
    return max(0, int(told["bytes"]) - here)


def prepare(task: Task) -> None:
    """Let the source in."""
    server = task.document.want["server"]
    with task.host.locks.hold("server", server):
        _is_alone(task.host, server, task.document.id)
        task.document.state["prepared"] = True
        task.keep()
    offer(task.host, task.document)


def offer(host: LocalHost, document: Document) -> None:
    """Offer the doors of this migration; also after a restart of the agent."""
    run = run_folder(host, document.id)
    host.links.offer(Offer(document.id, frozenset([document.want["peer"]]), {
        AGENT: partial(_talk, host, document.id), LIBVIRT: host.hypervisor.libvirt_socket(),
        QEMU: run / QEMU, DISKS: run / DISKS,
    }))


def resume(host: LocalHost) -> None:
    """After a start of the agent: let sources in again, and finish what has arrived."""
    for document in host.documents.list("migration"):
        if document.want["side"] != "target":
            continue
        # The talk for which libvirt had them has ended, maybe after all else of the migration.
        keys.take_back(host, document.want["server"])
        if document.state.get("settled"):
            continue
        if not document.deleting:
            offer(host, document)
            if document.state.get("arrived") and host.documents.get("server", document.want["server"]) is None:
                try:
                    _take_over(host, document)
                except MagnetarError as error:
                    log.warning("server %s has arrived and cannot be taken over yet: %s", document.name, error)


def run_folder(host: LocalHost, id: str) -> Path:
    """Where QEMU listens for what comes; the source has its sockets under the same path."""
    return host.settings.socket.parent / "links" / id


# The talk ---------------------------------------------------------------------------------------------------------
def _talk(host: LocalHost, id: str, sock: socket.socket, _peer: str) -> None:
    """Answer the calls of the source. What it has keys for ends with the talk: a repetition lends them anew."""
    with Rpc(sock) as talk, ExitStack() as lent:
        while (line := talk.receive()) is not None:
            try:
                op = OPS.get(str(line.get("op")))
                if op is None:
                    raise InvalidRequest(f"The target does not know {line.get('op')!r}; is its agent older?")
                document = _document(host, id)
                if op is _ready:
                    lent.callback(keys.take_back, host, document.want["server"], talk)
                answer = op(host, document, talk, line)
            except MagnetarError as error:
                talk.send({"error": error.as_dict()})
                if line.get("op") == "file":
                    return  # the rest of the file may still come, and would be read as lines
            except Exception as error:
                log.exception("migration %s: %s failed", id, line.get("op"))
                talk.send({"error": unforeseen(error).as_dict()})
                return
            else:
                talk.send(answer)


def _document(host: LocalHost, id: str) -> Document:
    found = host.documents.get("migration", id)
    if found is None or found.deleting:
        raise NotFound(f"The target knows no migration {id} any more; it was aborted there.")
    return found


def _look(host: LocalHost, document: Document, _talk: Rpc, _line: Fields) -> Fields:
    """Whether all of the server is here."""
    return {"arrived": bool(document.state.get("arrived")) or (
        document.want["type"] == "live" and host.hypervisor.arrived(document.want["server"]))}


def _begin(host: LocalHost, document: Document, _talk: Rpc, line: Fields) -> Fields:
    """Keep the server's document and make its disks; what an earlier attempt left of a running guest goes."""
    given, id = line["document"], document.want["server"]
    _not_arrived(document)
    if given["id"] != id:
        raise Conflict("The source sends another server than was agreed.")
    _discard(host, id)
    keys.arrive(host, given, line)
    coming_disks.arrive(given, document.state.get("server"))
    document.state["server"], document.state["disks"] = given, line["disks"] if line["live"] else []
    document.state[NATIVE] = bool(line.get(NATIVE)) and host.settings.native_tls
    with host.locks.hold(*CHOICES):
        becoming.arrive(host, document.want["manifest"], given, line["live"])
        host.documents.write(document)
    server = _server(document)
    kept = coming_disks.begin(host, document, server, line)
    run = run_folder(host, document.id)
    shutil.rmtree(run, ignore_errors=True)  # nothing in it is ours: QEMU's user may have put it there
    make_folder(run.parent)
    make_folder(run, 0o750)
    host.hypervisor.permit([run])
    run.chmod(0o770)  # QEMU makes its sockets in it
    volumes.prepare(host, document, line.get("volumes", []))
    return {
        # "have" is what earlier agents go by: they do not say states, and are to send everything.
        "have": {}, "kept": kept, "folder": str(folder(host, id)), "run": str(run),
        "nics": {nic.mac: [nic.network, nic.bridge, nic.tap, nic.port] for nic in spec.nics(host, server)},
        NATIVE: document.state[NATIVE],
        "xml": host.hypervisor.render(spec.domain(host, server)),
    }


def _file(host: LocalHost, document: Document, talk: Rpc, line: Fields) -> Fields:
    """One file."""
    _not_arrived(document)
    path = folder(host, document.want["server"]) / coming_disks.checked(line["name"])
    linked = coming_disks.is_linked(document.state["server"]["want"], path.name)
    receive(talk, path, int(line["offset"]), bool(line.get("append")), line.get("state"), linked)
    if not linked:
        path.chmod(int(line["mode"]) & 0o750)
    return {}


def _ready(host: LocalHost, document: Document, talk: Rpc, _line: Fields) -> Fields:
    """All files are here: make the disks that libvirt will fill, and let QEMU read what it must."""
    _not_arrived(document)
    place = folder(host, document.want["server"])
    server = _server(document)
    key = keys.lend(host, server, talk) if document.want["type"] == "live" else None
    coming_disks.make(host, server, document.state["disks"], key)
    sync_folder(place)
    host.hypervisor.permit([place])
    return {}


def _arrive(host: LocalHost, document: Document, _talk: Rpc, _line: Fields) -> Fields:
    """The guest is off at the source for good: from here on the server is this host's."""
    if not document.state.get("arrived"):
        if document.want["type"] == "live" and not host.hypervisor.arrived(document.want["server"]):
            raise Conflict("The target has no complete copy of the guest. Repeat the call.")
        document.state["arrived"] = now()
        host.documents.write(document)
    try:
        _take_over(host, document)
    except MagnetarError as error:
        # It has arrived all the same, and the next phase tries again.
        log.warning("server %s arrived and cannot be taken over yet: %s", document.name, error)
    return {}


def _drop(host: LocalHost, document: Document, _talk: Rpc, _line: Fields) -> Fields:
    """Remove what has come."""
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
    """The server's document as it came; its fields are checked as those of a wish are."""
    given = document.state["server"]
    fields = {name: given["want"].get(name) for name in {f.name for f in Server.settable()} & set(given["want"])}
    fields["flavor"] = {size: given["want"]["flavor"][size] for size in resolve.SIZES}
    Server.check(fields, partial=True)
    state = {name: note for name, note in given["state"].items() if name != addresses.RESERVED}  # that was its DHCP
    return Document("server", document.want["server"], str(given["name"]), dict(given["want"]), state,
                    created_at=str(given["created_at"]))


# Over -------------------------------------------------------------------------------------------------------------
def _take_over(host: LocalHost, document: Document) -> None:
    """Let the guest run if it ran, then keep the server's document and have it made so."""
    server = _server(document)
    if host.documents.get("server", server.id) is None:
        volumes.keep(host, document)
        volumes.connect(host, server.id)
        if document.want["type"] == "live" and server.want["power"] == RUNNING and \
                host.hypervisor.arrived(server.id):
            host.hypervisor.resume(server.id)
        tpm.came(host, server)
        server.state["unfinished"] = True
        server.updated_at = now()
        host.documents.write(server)
    operation = Operation("arrive", "server", server.id, caller="agent")
    try:
        host.revise(Server, server.id, lambda _document: {}, False, operation)
    except NoSpace:
        raise
    except MagnetarError as error:
        # It is here, and its own fault says what is wrong.
        log.warning("server %s arrived and cannot be made as wanted: %s", server.name, error)


def settle(task: Task) -> None:
    """The source is done: close the link and remove what only the migration needed."""
    host, document = task.host, task.document
    if not document.state.get("arrived"):
        raise Conflict("The server has not arrived here yet. Move it first: phase moved on the source.")
    _take_over(host, document)
    host.links.withdraw(document.id)
    shutil.rmtree(run_folder(host, document.id), ignore_errors=True)
    for note in folder(host, document.want["server"]).glob(f"*{NOTE}"):
        note.unlink(missing_ok=True)
    document.state.pop("server", None)
    document.state["settled"] = now()
    task.keep()


def abandon(task: Task) -> None:
    """Abort: remove what has come. Raises ``NotRemovable`` when the server has arrived."""
    host, document = task.host, task.document
    if document.state.get("settled"):
        return
    if document.state.get("arrived"):
        offer(host, document)  # a start of the agent offers nothing for what is being removed
        raise NotRemovable("The server has arrived here; it cannot be sent back by an abort. Run the migration again "
                           "to settle it, or migrate it back.")
    host.links.withdraw(document.id)
    remove_copy(host, document)


def remove_copy(host: LocalHost, document: Document) -> None:
    """Remove what has come of a server that is not this host's."""
    _discard(host, document.want["server"])
    volumes.drop(host, document)
    shutil.rmtree(run_folder(host, document.id), ignore_errors=True)
    if host.documents.get("server", document.want["server"]) is None:
        if "server" in document.state:
            coming_disks.remove(host, _server(document))
        shutil.rmtree(folder(host, document.want["server"]), ignore_errors=True)


def _discard(host: LocalHost, id: str) -> None:
    """Remove the domain of a guest that never ran here."""
    if host.documents.get("server", id) is None:
        domain = host.hypervisor.domain(id)
        if domain is not None and domain.owned:
            host.hypervisor.destroy(id)
            host.hypervisor.undefine(id)
