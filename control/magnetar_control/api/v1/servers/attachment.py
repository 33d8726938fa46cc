# SPDX-License-Identifier: GPL-3.0-or-later
"""The resource drivers of volume_attachment, interface_attachment and share_attachment; their key is
SERVER:RESOURCE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID, uuid5

from magnetar_control.api.v1.driver import CloudDriver
from magnetar_control.api.v1.volume import VOLUMES
from magnetar_control.compute.attachments import interfaces, shares, volume_attachments
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.servers import servers
from magnetar_control.compute.target import find_server_target
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidField, NotFound
from magnetar_core.kinds import InterfaceAttachment, ShareAttachment, VolumeAttachment
from magnetar_core.operations import Operation
from magnetar_core.plan import Step
from magnetar_core.reconcile import refuse_missing

from .server import SERVERS
from .server_actions import ServerActions
from .server_request import NETWORKS, OF_DEVICES
from .server_view import agent_timestamp, nic_id


class Attached(CloudDriver):
    """The base class of the drivers of the v1 API for attachments of volumes, NICs and shares to servers. The key of an
    attachment is SERVER:RESOURCE, such as web1:data.

    *other*: the field of an attachment that names the attached resource, such as ``volume``. *known_by*: the fields of
    an attachment that ``find`` compares with RESOURCE.
    """

    other = ""
    known_by: tuple[str, ...] = ()

    def given(self, key: str, want: Document) -> Document:
        server, colon, other_key = key.partition(":")
        if not colon or not server or not other_key:
            raise InvalidField("key", f"must be SERVER:{self.other.upper()}, each a name or a uuid", key)
        document: Document = self.kind.check({"server": server, **self.from_key(other_key), **want}, partial=True)
        for name, only in self.host_only.items():
            if name in document and document[name] != only:
                raise InvalidField(name, f"in a cloud it is {only!r}", document[name])
        return document

    def from_key(self, other_key: str) -> Document:
        """Return the fields of an attachment that follow from *other_key*, the part of its key after ``SERVER:``, such
        as {"volume": other_key}."""
        return {self.other: other_key}

    def of_servers(self, caller: Caller, rows: Sequence[ServerRow]) -> list[Document]:
        """Return all attachments to the servers *rows*, in the format of the v1 API."""
        raise NotImplementedError

    def every(self, caller: Caller) -> list[Document]:
        return self.of_servers(caller, servers.list_project_servers(caller))

    def find(self, caller: Caller, key: str) -> Document | None:
        """Return the attachment with the key *key*, SERVER:RESOURCE or the attachment's uuid; ``None`` if there is
        none."""
        server, colon, other_key = key.partition(":")
        if not colon:
            return next((attachment for attachment in self.every(caller) if attachment["id"] == key), None)
        row = SERVERS.row(caller, server)
        attachments = [] if row is None else self.of_servers(caller, [row])
        return next((attachment for attachment in attachments if any(
            attachment[name] == (other_key.lower() if name == "mac" else other_key) for name in self.known_by)), None)

    def server(self, caller: Caller, name: str) -> str:
        """Return the uuid of the server with the uuid or name *name*. If it does not exist, raise ``InvalidField``. A
        dry run may assume that an earlier Ansible task creates the server; then return *name*."""
        row = SERVERS.row(caller, name)
        if row is None:
            refuse_missing(InvalidField("server", f"there is no server {name!r} in your project"), "server", name)
        return str(row.id) if row is not None else name


class VolumeAttachments(Attached):
    kind, other, known_by = VolumeAttachment, "volume", ("volume", "volume_name")
    host_only = {"bus": "virtio", "readonly": False, "boot_index": None, "origin": None, "serial": None}
    making = (Step("attach", "attach the volume"),)
    removing = (Step("detach", "detach the volume"),)

    def of_servers(self, caller: Caller, rows: Sequence[ServerRow]) -> list[Document]:
        server_attachments = [(row, attachment) for row in rows for attachment in row.volumes]
        names = VOLUMES.names(caller) if server_attachments else {}
        return [{
            "id": attachment["attachment_id"], "name": f"{row.id}:{attachment['volume_id']}", "server": row.id,
            "volume": attachment["volume_id"], "device": (attachment["device"] or "").rpartition("/")[2],
            "bus": "virtio",
            "tag": attachment.get("tag"), "readonly": False, "boot_index": attachment.get("boot_index"),
            "delete_on_termination": attachment["delete_on_termination"], "origin": None, "replaces": None,
            "server_name": row.name,
            "volume_name": names.get(attachment["volume_id"], ""), "serial": attachment["volume_id"][:20],
            "status": "attached",
            "fault": None, "created_at": agent_timestamp(row.created_at), "updated_at": agent_timestamp(row.updated_at)}
            for row, attachment in server_attachments]

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        if have:
            want = {**want, "server": have["server"], "volume": have["volume"]}
        else:
            volume = VOLUMES.referred(caller, want["volume"], "volume",
                                      f"no volume {want['volume']!r} that you may use")
            want = {**want, "server": self.server(caller, want["server"]),
                    "volume": volume["id"] if volume else want["volume"]}
            if want.get("replaces"):
                want = self._replacing(caller, want)
        device = (want.get("device") or (have or {}).get("device") or "").rpartition("/")[2]
        return {**want, "device": device or None, "name": f"{want['server']}:{want['volume']}"}

    def _replacing(self, caller: Caller, want: Document) -> Document:
        """Return the desired state *want* of an attachment whose volume replaces another one: the field ``replaces``
        becomes the uuid of the old volume, and the fields device and tag are taken from the old volume's attachment.
        Raises ``InvalidField``."""
        old = self.find(caller, f"{want['server']}:{want['replaces']}")
        if old is None:
            refuse_missing(InvalidField("replaces", "must name a volume that the server has", want["replaces"]),
                           "volume", want["replaces"])
            return want
        for name in ("device", "tag"):
            if want.get(name) and want[name].rpartition("/")[2] != old[name]:
                raise InvalidField(name, "cannot differ from that of the volume that is replaced", want[name])
        return {**want, "replaces": old["volume"], "device": old["device"], "tag": old["tag"]}

    def plan(self, want: Document | None, have: Document | None) -> Iterator[Step]:
        if have is None and want is not None and want.get("replaces"):
            yield Step("swap", "copy the old volume and go on with the new one")
        else:
            yield from super().plan(want, have)

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """Check that the volume can be attached and that the requested device name is free. The device name is checked
        because Nova's API would silently choose another name. *have*: the existing attachment that *want* replaces;
        ``None`` if there is none. For a swap (*have* is ``None``, and ``replaces`` in *want* names the old volume),
        check only that the swap is allowed. Raises ``InvalidField``, and ``Conflict``, also if *have* attaches a root
        disk."""
        row = SERVERS.row(caller, want["server"])
        if row is None:
            return  # a dry run assumes the server
        if want.get("replaces") and have is None:
            target = find_server_target(caller, row.id)
            volume_attachments.swap_server_volume.check_allowed(caller, target)
            volume_attachments.check_volume_swap(caller, target, want["replaces"], want["volume"])
            return
        if have and have["boot_index"] == 0:
            raise Conflict("A root disk cannot be detached, and so not be attached again either. Make the server anew.")
        taken = {(attachment["device"] or "").rpartition("/")[2] for attachment in row.volumes
                 if attachment["volume_id"] != want["volume"]}
        taken |= ({"vda"} if row.image_id else set()) | volume_attachments.local_disk_names(row)
        if want["device"] and (want["device"] in taken or not want["device"].startswith("vd")):
            raise InvalidField("device", "must be a free name such as vdb; the server has " + ", ".join(sorted(taken)),
                               want["device"])
        volume = caller.cloud.services.volume.show(caller.context, want["volume"]) if have is None else None
        if volume and volume["status"] not in (("available", "in-use") if volume["multiattach"] else ("available",)):
            raise Conflict(f"Volume {volume['name']!r} is {volume['status']}, and must be available to be attached.")

    def make(self, caller: Caller, want: Document, operation: Operation) -> None:
        self.check_make(caller, want, None)
        if want.get("replaces"):
            ServerActions(caller, want["server"], operation).run(
                "swap_volume", volume_attachments.swap_server_volume, want["replaces"], want["volume"],
                new_request_id=True)
            volume_attachments.update_volume_attachment(caller, find_server_target(caller, want["server"]),
                                                        want["volume"],
                                                        delete_on_termination=want["delete_on_termination"])
            return
        ServerActions(caller, want["server"], operation).run(
            "attach_volume", volume_attachments.attach_server_volume, want["volume"],
            f"/dev/{want['device']}" if want["device"] else None, want["tag"],
            delete_on_termination=want["delete_on_termination"], new_request_id=True)

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """Update delete_on_termination of the attachment; no other field can change."""
        volume_attachments.update_volume_attachment(caller, find_server_target(caller, have["server"]), have["volume"],
                                                    delete_on_termination=want["delete_on_termination"])

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        ServerActions(caller, have["server"], operation).run(
            "detach_volume", volume_attachments.detach_server_volume, have["volume"], new_request_id=True)


class InterfaceAttachments(Attached):
    kind, other, known_by = InterfaceAttachment, "network", ("mac", "network", "_network")
    host_only = {"bridge": None, "port": None, **dict.fromkeys(OF_DEVICES), "model": "virtio"}
    making = removing = (Step("plug", "change the NICs"), Step("define", "define the domain"))

    def from_key(self, other_key: str) -> Document:
        return {"mac": other_key.lower()} if other_key.count(":") == 5 else {"network": other_key}

    def of_servers(self, caller: Caller, rows: Sequence[ServerRow]) -> list[Document]:
        server_nics = [(row, nic, [ip["ip_address"] for ip in nic.get("fixed_ips") or ()])
                       for row in rows for nic in row.nics]
        return [{
            "id": nic_id(nic["port_id"]), "name": f"{row.id}:{nic['mac']}", "server": row.id,
            "network": nic["network"], **self.host_only, "mac": nic["mac"],
            "tag": nic.get("tag"),
            "address": addresses[0] if addresses else None, "server_name": row.name, "_port": nic["port_id"],
            "_network": nic["network_id"],
            "addresses": [{"addr": address, "version": 6 if ":" in address else 4, "mac": nic["mac"],
                           "source": "network"}
                          for address in addresses]}
            for row, nic, addresses in server_nics]

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        if have:
            if want.get("address") not in (None, have["address"]):
                raise Conflict("The address of a NIC of a cloud does not change; remove it and make another.",
                               fields=["address"])
            return {**want, **{name: have[name] for name in ("server", "network", "address", "_network")},
                    "name": f"{have['server']}:{have['network']}"}
        if want.get("mac"):
            raise NotFound(f"Server {want['server']!r} has no NIC {want['mac']}; in a cloud, the network service draws "
                           "MAC addresses. Name a network.")
        if not want.get("network"):
            raise InvalidField("network", "is required")
        network = NETWORKS.referred(caller, want["network"], "network",
                                    f"no network {want['network']!r} that you may use")
        server = self.server(caller, want["server"])
        return {**want, "server": server, "_network": network["id"] if network else None,
                "name": f"{server}:{want['network']}"}

    def make(self, caller: Caller, want: Document, operation: Operation) -> None:
        ServerActions(caller, want["server"], operation).attach_interface({**want, "_id": want["_network"]})

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        ServerActions(caller, have["server"], operation).run(
            "detach_interface", interfaces.detach_nic, have["_port"], new_request_id=True)


class ShareAttachments(Attached):
    """The driver of the v1 API for attachments of file shares to servers. A share can be attached and detached only
    while the server is off. If an attachment has the status error, a request for this attachment detaches the share and
    attaches it again."""

    kind, other, known_by = ShareAttachment, "share", ("share", "share_name")
    making = (Step("attach", "attach the share"),)
    removing = (Step("detach", "detach the share"),)

    def of_servers(self, caller: Caller, rows: Sequence[ServerRow]) -> list[Document]:
        return [{
            "id": str(uuid5(UUID(row.id), attachment["share_id"])), "name": f"{row.id}:{attachment['share_id']}",
            "server": row.id, "share": attachment["share_id"],
            "tag": attachment["tag"], "server_name": row.name, "share_name": attachment["share"],
            "status": attachment["status"],
            "export_location": attachment["location"] if caller.context.is_admin else None}
            for row in rows for attachment in shares.shares_of_server(row)]

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        if have:
            return {**want, **{name: have[name] for name in ("server", "share", "name")}}
        server = self.server(caller, want["server"])
        share = next((id for id, configured_share in caller.cloud.shares.items()
                      if want["share"] in (id, configured_share.name)
                      and configured_share.is_for(str(caller.project))), None)
        if share is None:
            raise InvalidField("share", f"there is no share {want['share']!r} that your project may have")
        return {**want, "server": server, "share": share, "tag": want.get("tag") or share, "name": f"{server}:{share}"}

    def public(self, resource: Document) -> Document:
        return {name: value for name, value in super().public(resource).items() if name != "name"}

    def plan(self, want: Document | None, have: Document | None) -> Iterator[Step]:
        if want is not None and have is not None and have["status"] == "error":
            yield from (*self.removing, *self.making)
        else:
            yield from super().plan(want, have)

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """Check that a share can be attached to the server now; this requires that the server is off."""
        row = SERVERS.row(caller, want["server"])
        if row is not None:
            shares.attach_server_share.check_allowed(caller, find_server_target(caller, row.id))

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        self.check_make(caller, have, None)

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        row, share = SERVERS.row(caller, want["server"]), caller.cloud.shares[want["share"]]
        return {**super().predicted(caller, want, have), "status": "inactive", "share_name": share.name,
                "server_name": row.name if row is not None else want["server"]}

    def make(self, caller: Caller, want: Document, operation: Operation) -> None:
        ServerActions(caller, want["server"], operation).run(
            "attach_share", shares.attach_server_share, want["share"], want["tag"], new_request_id=True)

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """Detach the share from the server, and attach it again, to repair an attachment with the status error."""
        self.remove(caller, have, operation)
        self.make(caller, {**want, "tag": have["tag"]}, operation)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        ServerActions(caller, have["server"], operation).run("detach_share", shares.detach_server_share, have["share"],
                                                             new_request_id=True)
