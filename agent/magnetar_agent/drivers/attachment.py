# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type volume_attachment: plugs volumes into servers and unplugs them. ``servers.spec`` puts
attached volumes into the domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware import devices
from magnetar_agent.host import hypervisor as hv
from magnetar_agent.host.storage import Disk
from magnetar_agent.migrations import ARRIVING, refuse_while_it_moves
from magnetar_agent.reconcile.documents import Document
from magnetar_agent.servers import domains_of_server, rescue, spec
from magnetar_agent.servers.adoption.adopted import refuse_adopted
from magnetar_agent.volumes import attaching, content, holders_of_volume, is_content_complete, remote, swapping
from magnetar_core.errors import Conflict, InvalidField, MagnetarError, Unreachable
from magnetar_core.fields import SHOW
from magnetar_core.hardware.architectures import check_bus
from magnetar_core.hardware.machines import machine_architecture
from magnetar_core.hardware.merge import PREFIX
from magnetar_core.kinds import VolumeAttachment
from magnetar_core.operations import utc_timestamp
from magnetar_core.plan import Step
from magnetar_core.power import LIVE, SUSPENDED
from magnetar_core.reconcile import refuse_missing
from magnetar_core.server_plan import server_hardware
from magnetar_core.values import Uuid

from .document import DocumentDriver

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_agent.reconcile.task import Task, Verb

MISSING = "missing"
ROOT = 0
ASLEEP = ("The server is suspended to disk and would wake up to other disks than it fell asleep with. Start it, or "
          "stop it, then repeat the call.")


class AttachmentDriver(DocumentDriver):
    """The resource driver of volume attachments. A server can have at most one attachment of the same volume."""

    unique_names = False

    def __init__(self) -> None:
        super().__init__(VolumeAttachment)
        self.verbs: Mapping[str, Verb] = {"attach": _attach, "detach": _detach, "release": _release,
                                          "swap": swapping.swap_volume, "abandon": swapping.abandon_swap}

    def locate(self, host: LocalHost, key: str) -> str:
        """Return the attachment's uuid for a key SERVER:VOLUME (names or uuids). Return any other *key* unchanged."""
        if ":" not in key:
            return key
        pairs = [(key[:at], key[at + 1:]) for at, letter in enumerate(key) if letter == ":"]
        for first, second in pairs:
            server, volume = host.documents.peek_by_key("server", first), host.documents.peek_by_key("volume", second)
            if server and volume:
                return attaching.attachment_id(server.id, volume.id)
            for attachment in attaching.server_attachments(host, server.id, include_detaching=True) if server else ():
                if (attachment.want.get("origin") or {}).get("volume_name") == second:
                    return attachment.id
        return attaching.attachment_id(*pairs[0])

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the requested fields *want* with the uuids of server and volume, and with a device name such as vdb.
        *document*: the stored attachment; ``None`` for a new one. Raises ``InvalidField`` or ``Conflict`` for a volume
        that cannot be attached."""
        server = _find_resource(host, "server", want["server"], document)
        refuse_while_it_moves(host, host.documents.get("server", server.id))
        refuse_adopted(server, self.kind.noun)
        volume = _remote_volume(host, want, document) if want.get("origin") else \
            _find_resource(host, "volume", want["volume"], document)
        completed = {**want, "server": server.id, "volume": volume.id, "name": f"{server.id}:{volume.id}"}
        if completed["boot_index"] == -1:
            completed["boot_index"] = None
        if "device" in completed:
            completed["device"] = completed["device"].removeprefix("/dev/")
        if document is not None:
            for name in ("replaces", "serial"):  # given once, when it was made
                completed.pop(name, None)
                if name in document.want:
                    completed[name] = document.want[name]
        elif completed.get("replaces"):
            _check_new(host, completed, server, volume)
            swapping.complete_swap(host, completed, server, self._replaced(host, server, completed["replaces"]), volume)
        else:
            _check_new(host, completed, server, volume)
            taken = spec.taken_targets(host, server)
            if completed.setdefault("device", attaching.draw_device_name(completed["bus"], taken)) in taken:
                raise Conflict(
                    f"device: server {server.name!r} has a disk {completed['device']} already. Leave it out to "
                               "have a free one drawn.", field="device")
        return completed

    def _replaced(self, host: LocalHost, server: Document, volume: str) -> Document | None:
        """Return the stored attachment of *volume* (a name or uuid) to *server* that a new attachment will replace;
        ``None`` if there is none."""
        return host.documents.get(self.kind.noun, self.locate(host, f"{server.id}:{volume}"))

    def release(self, host: LocalHost, document: Document) -> None:
        """Raise ``Conflict`` if the volume must not be detached: it is a root disk or is being swapped, or its server
        is migrating."""
        if document.state.get(attaching.REPLACED):
            return
        if any(swap.want["replaces"] == document.want["volume"]
               for swap in swapping.active_swaps(host, document.want["server"])):
            raise Conflict("The volume is being swapped for another one. Wait until that has ended, or cancel its "
                           "operation.")
        refuse_while_it_moves(host, host.documents.get("server", document.want["server"]))
        volume = host.documents.get("volume", document.want["volume"])
        server = host.documents.get("server", document.want["server"])
        if volume and server and not server.deleting:
            content.refuse_while_moving(volume)
        if document.state.get(ARRIVING):
            raise Conflict(f"The server of the volume is on its way to this host (migration {document.state[ARRIVING]}"
                           "). Wait until it has arrived.")
        if document.want["boot_index"] == ROOT:
            raise Conflict("The volume is the root disk of its server, which cannot be without it. Delete the server.")

    def snapshot(self, host: LocalHost, document: Document | None = None) -> Any:
        """Return all libvirt domains by uuid, for many ``observe`` calls. *document*: return only the domain of this
        attachment's server."""
        return host.hypervisor.domains() if document is None else domains_of_server(host, document.want["server"])

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """Return the attachment's fields with the server's state (``power``), and whether the volume is in the domain's
        persistent definition (``defined``) and in the running domain (``plugged``). With a *snapshot*, ``plugged``
        equals ``defined``, because the running domain is not read."""
        id, target = document.want["server"], document.want["device"]
        if not attaching.is_current(host, document) or document.want.get("replaces"):
            swaps = bool(document.want.get("replaces"))
            return {**document.want, "power": MISSING, "defined": False, "plugged": False, "swaps": swaps}
        domain = host.hypervisor.domain(id) if snapshot is None else snapshot.get(id)
        if domain is None or not domain.owned or _rescued(host, id):
            return {**document.want, "power": MISSING, "defined": False, "plugged": False}
        defined = plugged = _there(document, domain, target)
        if snapshot is None and domain.state in LIVE:
            runs = host.hypervisor.running(id)
            plugged = runs is not None and _there(document, runs, target)
        return {**document.want, "power": domain.state, "defined": defined, "plugged": plugged}

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield the steps that attach or detach the volume (``plan_attachment``)."""
        return plan_attachment(want, have)

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the attachment's fields as API responses show them, with the names of server and volume."""
        server = host.documents.get("server", document.want["server"])
        have, state = have or {}, document.state
        runs = have.get("power") in LIVE
        in_place = not have.get("swaps") and (have.get("power") == MISSING or (
            have.get("defined") and (have.get("plugged") or not runs)))
        values = {**document.want, "id": document.id, "name": document.name, "fault": state.get("fault"),
                  "server_name": server.name if server else "", "volume_name": _volume_name(host, document),
                  "serial": attaching.disk_serial(document)[:20],
                  "status": "attached" if in_place else "attaching" if state.get("unfinished") else "error",
                  "created_at": document.created_at, "updated_at": document.updated_at}
        return {f.name: values.get(f.name) for f in self.kind.fields if SHOW in f.on}


def plan_attachment(want: Fields | None, have: Fields | None) -> Iterator[Step]:
    """Yield the steps that change an attachment from its current fields *have* (see ``AttachmentDriver.observe``) to
    the requested fields *want*; ``None``: no attachment. Raises ``Conflict`` for a suspended server, because the disks
    must not change before the server resumes."""
    if want is not None and want.get("replaces"):
        yield Step("swap", "copy the old volume and go on with the new one")
        return
    if want is None and have and have.get("swaps"):
        yield Step("abandon", "stay with the old volume")
    have = have or {"power": MISSING, "defined": False, "plugged": False}
    runs = have["power"] in LIVE
    attached = have["defined"] and (have["plugged"] or not runs)
    loose = not have["defined"] and not (have["plugged"] and runs)
    if have["power"] == SUSPENDED and not (attached if want else loose):
        raise Conflict(ASLEEP)
    if want is None and not loose:
        yield Step("detach", "detach the volume")
    if want is None and have.get("origin"):
        yield Step("release", "tell the volume's host")
    elif want is not None and not attached and (have["power"] != MISSING or not have.get("server")):
        yield Step("attach", "attach the volume")


def _rescued(host: LocalHost, server: str) -> bool:
    """Return whether the server is in a rescue mode that detaches its volumes. A rescue with stable device names keeps
    the volumes attached."""
    server_document = host.documents.get("server", server)
    return server_document is not None and bool(server_document.want.get("rescue")) and not rescue.keeps_disks(
        server_document)


def _there(document: Document, domain: hv.Domain, target: str) -> bool:
    return any(disk.target == target and disk.serial == attaching.disk_serial(document) for disk in domain.disks)


def _find_resource(host: LocalHost, resource_type: str, key: str, document: Document | None) -> Document:
    """Return the stored server or volume with the name or uuid *key*. *resource_type*: ``server`` or ``volume``.
    *document*: the stored attachment; if it is ``None`` (a new attachment), a resource that is being removed counts as
    missing. Raises ``InvalidField`` if the resource is missing."""
    current_key = document.want[resource_type] if document else None
    resolved = host.documents.find(resource_type, key) if current_key else host.documents.standing(resource_type, key)
    if resolved is None and current_key == key:
        return Document(resource_type, key, key, {})
    if resolved is None:
        refuse_missing(InvalidField(resource_type, f"must name a {resource_type} of this host", key), resource_type,
                       key)
        return Document(resource_type, key, key, {"multiattach": False, "format": "raw", "size": 1}, {"made": True})
    return resolved


def _remote_volume(host: LocalHost, want: Fields, document: Document | None) -> Document:
    """Return a substitute for the stored document of a volume that is on another host. The substitute's fields come
    from ``origin`` in *want*: the data about the volume that its host has provided. *document*: the stored attachment;
    ``None`` for a new one. Raises ``InvalidField`` or ``Conflict`` for an ``origin`` that cannot be used."""
    Uuid().check(want["volume"], "volume")
    origin = want["origin"]
    remote.check_origin(host, origin)
    if document and not document.want.get("origin"):
        raise Conflict("The volume is attached as one of this host. Detach it first.", field="origin")
    return Document("volume", want["volume"], origin["volume_name"], {
        "multiattach": origin["multiattach"], "format": origin["format"], "size": origin["size"]}, {"made": True})


def _check_new(host: LocalHost, completed: Fields, server: Document, volume: Document) -> None:
    """Raise ``InvalidField`` or ``Conflict`` if *volume* cannot be attached to *server*. *completed*: the fields of the
    new attachment."""
    real = host.documents.get("server", server.id) and host.documents.get("volume", volume.id)
    if completed.pop("id", None) not in (None, attaching.attachment_id(server.id, volume.id)) and real:
        raise InvalidField("id", "follows from server and volume; use SERVER:VOLUME as the key")
    domain = host.hypervisor.domain(server.id)
    if _rescued(host, server.id):
        raise Conflict(f"Server {server.name!r} is rescued, which it is without its volumes. Unrescue it first.")
    if domain and domain.state == SUSPENDED:
        raise Conflict(ASLEEP)
    check_bus(completed["bus"], machine_architecture(server.want.get("machine", "")), "bus")
    if domain and domain.state in LIVE and completed["bus"] == "sata":
        raise Conflict(attaching.SATA)
    if completed["readonly"] and completed["bus"] == "sata":
        raise InvalidField("readonly", attaching.SATA_WRITES)
    if completed["boot_index"] == ROOT:
        raise InvalidField("boot_index", "must not be 0: the root disk is given when the server is made")
    if not is_content_complete(volume):
        raise Conflict(f"Volume {volume.name!r} is still being made. Wait until it is available.")
    if "device" in completed and not completed["device"].startswith(PREFIX[completed["bus"]]):
        raise InvalidField("device", f"must begin with {PREFIX[completed['bus']]} on bus {completed['bus']}",
                           completed["device"])
    other_holders = [holder for holder in holders_of_volume(host, volume.id) if holder.want["server"] != server.id]
    if other_holders and not volume.want["multiattach"]:
        raise Conflict(
            f"Volume {volume.name!r} is attached to server {attaching.server_name(host, other_holders[0])!r} and "
                       "can be in one server only. Detach it there first, or use a volume made with multiattach.",
                       uuids=[other_holders[0].want["server"]])


def _attach(task: Task) -> None:
    """Attach the volume to the running domain of the server, and to its persistent definition."""
    host, want = task.host, task.document.want
    with attaching.hold_server_volume(host, want["server"], want["volume"]):
        server = host.documents.get("server", want["server"])
        disk = attaching.attached_disk(host, task.document)
        if server is None or server.deleting or disk is None:
            raise Conflict("The server or the volume was removed meanwhile.")
        disk = devices.apply_disk_hardware(server_hardware(server.want), disk)
        if want.get("origin"):
            remote.open_volume_socket(host, task.document)
        if attaching.plug_device(host, server.id, disk):
            host.hypervisor.define(spec.domain_spec(host, server))


def _detach(task: Task) -> None:
    """Detach the volume from the running domain, whose guest must release it, and from the persistent definition."""
    host, document, want = task.host, task.document, task.document.want
    with attaching.hold_server_volume(host, want["server"], want["volume"]):
        disk = Disk(host.settings.state_dir, want["device"], bus=want["bus"], serial=attaching.disk_serial(document))
        with suppress(MagnetarError):  # its pool may be inactive; the device name is enough
            disk = attaching.attached_disk(host, document) or disk
        try:
            attaching.unplug_device(host, want["server"], disk, f"Volume {_volume_name(host, document)!r}",
                                    task.operation)
        except Exception as error:
            if document.deleting:  # it stays attached, also after a restart of the agent
                document.deleting = False
                document.state["fault"] = {"code": getattr(error, "code", "internal"), "message": str(error)[:1024],
                                           "created": utc_timestamp()}
                task.keep()
            raise
        server = host.documents.get("server", want["server"])
        domain = host.hypervisor.domain(want["server"])
        if server and domain and domain.owned:
            made = spec.domain_spec(host, server)
            remaining_disks = tuple(attached_disk for attached_disk in made.disks
                                    if (attached_disk.target, attached_disk.serial) != (
                                        want["device"], attaching.disk_serial(document)))
            host.hypervisor.define(replace(made, disks=remaining_disks))


def _release(task: Task) -> None:
    """Tell the host on which the volume is stored that the volume is detached. Raises ``Unreachable`` if that host does
    not answer; the thread ``RemoteVolumes`` later tries again to tell the host."""
    try:
        remote.release_remote_volume(task.host, task.document)
    except Unreachable as error:
        raise Unreachable(f"The server is without the volume, and {task.document.want['origin']['host'] or 'its host'} "
                          f"cannot be told so; until it is, the volume counts as attached there. {error}") from error


def _volume_name(host: LocalHost, document: Document) -> str:
    volume = host.documents.get("volume", document.want["volume"])
    if document.want.get("origin"):
        return str(document.want["origin"]["volume_name"])
    return volume.name if volume else ""
