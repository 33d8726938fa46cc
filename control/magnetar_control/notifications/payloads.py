# SPDX-License-Identifier: GPL-3.0-or-later
"""Nova's versioned payloads of notifications, made from rows, without side effects.

Source: Nova's notification reference and its samples. The versions are from the release that added the last field used
here. No payload has user data, passwords, or addresses of agents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from magnetar_control.store.hosts.host_row import HostRow
from magnetar_control.store.hosts.incidents import IncidentRow
from magnetar_control.store.servers.server_groups import ServerGroupRow
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.document import Document

Row = Mapping[Any, Any]
#: Nova's words for its numbers of power states.
POWER_STATES = {0: "pending", 1: "running", 3: "paused", 4: "shutdown", 6: "crashed", 7: "suspended"}


class Initiator(NamedTuple):
    """The request and the user that caused an event. All fields are ``None`` if no user caused it, for example if a
    guest has shut itself down."""

    request_id: str | None = None
    user_id: str | None = None
    project_id: str | None = None

    @classmethod
    def of(cls, action: Any) -> Initiator:
        """Return the initiator of *action*, a row of ``actions``."""
        return cls(action.request_id, action.user_id, action.project_id)


class ActionFault(NamedTuple):
    """The failure of an action: the class of the error, its module, its message, and the step of the action that
    failed."""

    exception: str
    module: str
    message: str
    step: str

    def payload(self) -> Document:
        """Return the fault as Nova's ``ExceptionPayload``."""
        return versioned_object("ExceptionPayload", "1.1", exception=self.exception, exception_message=self.message,
                                function_name=self.step, module_name=self.module, traceback=None)


def versioned_object(object_name: str, object_version: str, /, **data: Any) -> Document:
    """Return *data* as a serialized oslo.versionedobjects object, with the keys ``nova_object.name``,
    ``nova_object.data`` and so on."""
    return {"nova_object.name": object_name, "nova_object.namespace": "nova", "nova_object.version": object_version,
            "nova_object.data": data}


def nova_time(text: str | None) -> str | None:
    """Return *text*, a time in the database's format, in the format of Nova's payloads; ``None`` for ``None``."""
    return text and f"{text[:19]}Z"


def flavor_payload(flavor: Row, projects: Sequence[str] | None = None) -> Document:
    """Return the payload of a flavor. *flavor*: the flavor of a server's row (only sizes and extra specs), or a row of
    ``flavors``. *projects*: the projects that may use a private flavor."""
    return versioned_object("FlavorPayload", "1.4", flavorid=flavor["id"], name=flavor["name"], vcpus=flavor["vcpus"],
                            memory_mb=flavor["ram"], root_gb=flavor["disk"], ephemeral_gb=flavor.get("ephemeral") or 0,
                            swap=flavor.get("swap") or 0, extra_specs=flavor.get("extra_specs") or {},
                            rxtx_factor=flavor.get("rxtx_factor", 1.0), disabled=False,
                            is_public=flavor.get("is_public"),
                            projects=projects, vcpu_weight=0, description=flavor.get("description"))


def keypair_payload(keypair: Row) -> Document:
    """Return the payload of a key pair, with its public key."""
    return versioned_object("KeypairPayload", "1.0", **{name: keypair.get(name) for name in (
        "user_id", "name", "type", "public_key", "fingerprint")})


def server_group_payload(row: ServerGroupRow, members: Sequence[str] = ()) -> Document:
    """Return the payload of a server group, with the uuids of its servers."""
    return versioned_object("ServerGroupPayload", "1.1", uuid=row.id, name=row.name, project_id=row.project_id,
                            user_id=row.user_id, policies=[row.policy], policy=row.policy,
                            rules={name: str(value) for name, value in row.rules.items()},
                            members=list(members), hosts=None)


def service_payload(row: HostRow) -> Document:
    """Return the payload of a host's compute service, from a row of ``hosts``."""
    return versioned_object("ServiceStatusPayload", "1.1", host=row.name, binary="nova-compute", topic="compute",
                            uuid=row.id, disabled=row.disabled, disabled_reason=row.disabled_reason,
                            forced_down=row.forced_down, availability_zone=None, last_seen_up=None,
                            report_count=0, version=None)


def incident_payload(row: IncidentRow, cell: str) -> Document:
    """Return the payload of an incident. *cell*: the name of its cell."""
    return versioned_object(
        "IncidentPayload", "1.0", uuid=row.id, host=row.host, cell=cell, state=row.state, message=row.message,
        moved=row.moved, failed=row.failed, remaining=row.remaining,
        **{name: nova_time(getattr(row, name)) for name in ("noticed_at", "fencing_at", "fenced_at", "finished_at")})


def server_payload(row: ServerRow, who: Initiator, *, volumes: bool) -> Document:
    """Return the fields that all notifications of a server contain: the data of Nova's ``InstancePayload``. *who*: the
    user and request that caused the event. *volumes*: whether to include the server's volumes."""
    image = row.image.get("properties") or {}
    return {
        "uuid": row.id, "tenant_id": row.project_id, "user_id": row.user_id,
        "display_name": row.name, "display_description": row.description, "host_name": row.hostname,
        "host": row.host, "node": row.host, "availability_zone": row.availability_zone,
        "reservation_id": row.reservation_id, "flavor": flavor_payload(row.flavor),
        "image_uuid": row.image_id or "", "key_name": row.key_name,
        "kernel_id": image.get("kernel_id") or "", "ramdisk_id": image.get("ramdisk_id") or "",
        "architecture": image.get("hw_architecture") or image.get("architecture"), "os_type": image.get("os_type"),
        "state": row.vm_state, "task_state": row.task_state,
        "power_state": POWER_STATES.get(row.power_state, "pending"), "progress": row.progress,
        **{name: nova_time(getattr(row, name)) for name in (
            "created_at", "updated_at", "launched_at", "terminated_at", "deleted_at")},
        "ip_addresses": list(_addresses(row)), "metadata": row.metadata,
        "block_devices": [_volume(volume) for volume in row.volumes] if volumes else [],
        "locked": bool(row.locked_by), "locked_reason": row.locked_reason,
        "auto_disk_config": row.disk_config, "shares": [_share(share) for share in row.shares],
        "request_id": who.request_id, "action_initiator_user": who.user_id,
        "action_initiator_project": who.project_id}


def _addresses(row: ServerRow) -> Any:
    for nic in row.nics:
        for fixed_ip in nic.get("fixed_ips") or ():
            address = fixed_ip["ip_address"]
            yield versioned_object("IpPayload", "1.0", label=nic.get("network") or "", mac=nic.get("mac"), meta={},
                                   port_uuid=nic["port_id"], version=6 if ":" in address else 4, address=address,
                                   device_name=None)


def _volume(volume: Row) -> Document:
    return versioned_object("BlockDevicePayload", "1.0", volume_id=volume["volume_id"],
                            device_name=volume.get("device"),
                            boot_index=volume.get("boot_index"), tag=volume.get("tag"),
                            delete_on_termination=bool(volume.get("delete_on_termination")))


def _share(share: Row) -> Document:
    return versioned_object("SharePayload", "1.0", share_mapping_uuid=share["uuid"], share_id=share["share_id"],
                            status=share["status"], tag=share.get("tag"))


def _keypairs(row: ServerRow, _args: Row) -> Document:
    key = row.request.get("public_key")
    kind = "x509" if key and key.startswith("-----BEGIN CERTIFICATE") else "ssh"
    key_row = {"user_id": row.user_id, "name": row.key_name, "type": kind, "public_key": key}
    return {"keypairs": [keypair_payload(key_row)] if row.key_name and key else [],
            "tags": row.tags, "instance_name": row.instance_name,
            "trusted_image_certificates": row.trusted_certs}


def _share_of(row: ServerRow, args: Row) -> Document:
    share_ids = (share["share_id"] for share in row.shares if share["uuid"] == args.get("uuid"))
    return {"share_id": next(share_ids, args.get("share_id"))}


def _update(row: ServerRow, args: Row) -> Document:
    """Return the additional fields of the notification ``instance.update``. *args*: contains ``old_state``,
    ``old_task_state`` and ``old_display_name`` if the state, the task_state or the name has changed; may contain
    ``audit_period``."""
    return {
        "state_update": versioned_object(
            "InstanceStateUpdatePayload", "1.0", old_state=args.get("old_state", row.vm_state),
            state=row.vm_state, old_task_state=args.get("old_task_state", row.task_state),
            new_task_state=row.task_state),
        **_audit_period(row, args), "old_display_name": args.get("old_display_name"), "tags": row.tags}


def _audit_period(_row: ServerRow, args: Row) -> Document:
    begin, end = (nova_time(boundary.isoformat()) for boundary in args["audit_period"])
    return {"audit_period": versioned_object("AuditPeriodPayload", "1.0", audit_period_beginning=begin,
                                             audit_period_ending=end)}


class PayloadKind(NamedTuple):
    """A type of Nova's notification payloads for servers. ``name``, ``version``: name and version of the versioned
    object. ``more``: takes the server's row and the action's arguments, and returns the additional fields."""

    name: str
    version: str
    more: Callable[[ServerRow, Row], Document] = lambda _row, _args: {}


ACTION = PayloadKind("InstanceActionPayload", "1.9")
_VOLUME = PayloadKind("InstanceActionVolumePayload", "1.7", lambda _row, args: {"volume_id": args.get("volume_id")})
_SHARE = PayloadKind("InstanceActionSharePayload", "1.0", _share_of)
#: The payloads of notifications that do not use ``ACTION``.
KINDS: Mapping[str, PayloadKind] = {
    "create": PayloadKind("InstanceCreatePayload", "1.13", _keypairs),
    "rebuild": PayloadKind("InstanceActionRebuildPayload", "1.10", lambda row, _args: {
        "trusted_image_certificates": row.trusted_certs}),
    "rescue": PayloadKind("InstanceActionRescuePayload", "1.4", lambda _row, args: {
        "rescue_image_ref": args.get("image")}),
    "resize_prep": PayloadKind("InstanceActionResizePrepPayload", "1.4", lambda row, args: {
        "new_flavor": flavor_payload(args.get("flavor") or row.flavor)}),
    "snapshot": PayloadKind("InstanceActionSnapshotPayload", "1.10", lambda _row, args: {
        "snapshot_image_id": args.get("image")}),
    "update": PayloadKind("InstanceUpdatePayload", "2.1", _update),
    "exists": PayloadKind("InstanceExistsPayload", "2.1", _audit_period),
    "volume_attach": _VOLUME, "volume_detach": _VOLUME, "share_attach": _SHARE, "share_detach": _SHARE,
    "volume_swap": PayloadKind("InstanceActionVolumeSwapPayload", "1.9", lambda _row, args: {
        "old_volume_id": args.get("volume_id"), "new_volume_id": args.get("new_volume_id")})}


def action_payload(notification: str, row: ServerRow, who: Initiator, args: Row, fault: ActionFault | None = None, *,
                   volumes: bool = False) -> Document:
    """Return the payload of a server's notification. *notification*: the event without phase, such as create. *who*:
    the user and request that caused the event. *args*: the arguments of the action; the argument ``audit_period`` is
    (begin, end). *fault*: the failure, if the action failed. *volumes*: whether to include the server's volumes."""
    kind = KINDS.get(notification, ACTION)
    of_actions = {} if notification in ("update", "exists") else {"fault": fault.payload() if fault else None}
    return versioned_object(kind.name, kind.version, **server_payload(row, who, volumes=volumes),
                            **kind.more(row, args), **of_actions)
