# SPDX-License-Identifier: GPL-3.0-or-later
"""What notifications say, pure: Nova's versioned payloads, made of rows.

Source: Nova's notification reference and its samples (C5 of the specification). Versions are those of the release in
which a payload got the last field that is here. User data, passwords, and addresses of agents are in none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

Row = Mapping[Any, Any]
Document = dict[str, Any]
#: Nova's words for its numbers of power states.
POWER_STATES = {0: "pending", 1: "running", 3: "paused", 4: "shutdown", 6: "crashed", 7: "suspended"}


class Initiator(NamedTuple):
    """Who asked for it, with which request; nobody where a guest or the cloud did it by itself."""

    request_id: str | None = None
    user_id: str | None = None
    project_id: str | None = None

    @classmethod
    def of(cls, action: Any) -> Initiator:
        """Who asked for an action."""
        return cls(action.request_id, action.user_id, action.project_id)


class ActionFault(NamedTuple):
    """Why it failed: class of the error, its module, its words, and the step of the action."""

    exception: str
    module: str
    message: str
    step: str

    def payload(self) -> Document:
        """Nova's."""
        return wrapped("ExceptionPayload", "1.1", exception=self.exception, exception_message=self.message,
                       function_name=self.step, module_name=self.module, traceback=None)


def wrapped(object_name: str, object_version: str, /, **data: Any) -> Document:
    """An object as oslo.versionedobjects writes it."""
    return {"nova_object.name": object_name, "nova_object.namespace": "nova", "nova_object.version": object_version,
            "nova_object.data": data}


def moment(text: str | None) -> str | None:
    """A moment of the database in the form of Nova's payloads."""
    return text and f"{text[:19]}Z"


def flavor(given: Row, projects: Sequence[str] | None = None) -> Document:
    """A flavor: that of a server, which knows its sizes and extra specs only, or a row of the table. *projects*: those
    that may use it, where it is not for all."""
    return wrapped("FlavorPayload", "1.4", flavorid=given["id"], name=given["name"], vcpus=given["vcpus"],
                   memory_mb=given["ram"], root_gb=given["disk"], ephemeral_gb=given.get("ephemeral") or 0,
                   swap=given.get("swap") or 0, extra_specs=_document(given.get("extra_specs")),
                   rxtx_factor=given.get("rxtx_factor", 1.0), disabled=False, is_public=given.get("is_public"),
                   projects=projects, vcpu_weight=0, description=given.get("description"))


def _document(found: Any) -> Any:
    return orjson.loads(found) if isinstance(found, str) else found or {}


def keypair(given: Row) -> Document:
    """A key pair: its public half."""
    return wrapped("KeypairPayload", "1.0", **{name: given.get(name) for name in (
        "user_id", "name", "type", "public_key", "fingerprint")})


def server_group(row: Row, members: Sequence[str] = ()) -> Document:
    """A server group, with the uuids of its servers."""
    return wrapped("ServerGroupPayload", "1.1", uuid=row["id"], name=row["name"], project_id=row["project_id"],
                   user_id=row["user_id"], policies=[row["policy"]], policy=row["policy"],
                   rules={name: str(value) for name, value in orjson.loads(row["rules"]).items()},
                   members=list(members), hosts=None)


def service(row: Row) -> Document:
    """The compute service of a host: a row of ``hosts``."""
    return wrapped("ServiceStatusPayload", "1.1", host=row["name"], binary="nova-compute", topic="compute",
                   uuid=row["id"], disabled=bool(row["disabled"]), disabled_reason=row["disabled_reason"],
                   forced_down=bool(row["forced_down"]), availability_zone=None, last_seen_up=None, report_count=0,
                   version=None)


def server(row: Row, who: Initiator, *, volumes: bool) -> Document:
    """What all notifications of a server have in common: the data of ``InstancePayload``. *volumes*: whether its
    volumes are told."""
    image = orjson.loads(row["image"]).get("properties") or {}
    return {
        "uuid": row["id"], "tenant_id": row["project_id"], "user_id": row["user_id"],
        "display_name": row["name"], "display_description": row["description"], "host_name": row["hostname"],
        "host": row["host"], "node": row["host"], "availability_zone": row["availability_zone"],
        "reservation_id": row["reservation_id"], "flavor": flavor(orjson.loads(row["flavor"])),
        "image_uuid": row["image_id"] or "", "key_name": row["key_name"],
        "kernel_id": image.get("kernel_id") or "", "ramdisk_id": image.get("ramdisk_id") or "",
        "architecture": image.get("hw_architecture") or image.get("architecture"), "os_type": image.get("os_type"),
        "state": row["vm_state"], "task_state": row["task_state"],
        "power_state": POWER_STATES.get(row["power_state"], "pending"), "progress": row["progress"],
        **{name: moment(row[name]) for name in (
            "created_at", "updated_at", "launched_at", "terminated_at", "deleted_at")},
        "ip_addresses": list(_addresses(row)), "metadata": orjson.loads(row["metadata"]),
        "block_devices": [_volume(one) for one in orjson.loads(row["volumes"])] if volumes else [],
        "locked": bool(row["locked_by"]), "locked_reason": row["locked_reason"],
        "auto_disk_config": row["disk_config"], "shares": [_share(one) for one in orjson.loads(row["shares"])],
        "request_id": who.request_id, "action_initiator_user": who.user_id,
        "action_initiator_project": who.project_id}


def _addresses(row: Row) -> Any:
    for nic in orjson.loads(row["interfaces"]):
        for one in nic.get("fixed_ips") or ():
            address = one["ip_address"]
            yield wrapped("IpPayload", "1.0", label=nic.get("network") or "", mac=nic.get("mac"), meta={},
                          port_uuid=nic["port_id"], version=6 if ":" in address else 4, address=address,
                          device_name=None)


def _volume(one: Row) -> Document:
    return wrapped("BlockDevicePayload", "1.0", volume_id=one["volume_id"], device_name=one.get("device"),
                   boot_index=one.get("boot_index"), tag=one.get("tag"),
                   delete_on_termination=bool(one.get("delete_on_termination")))


def _share(one: Row) -> Document:
    return wrapped("SharePayload", "1.0", share_mapping_uuid=one["uuid"], share_id=one["share_id"],
                   status=one["status"], tag=one.get("tag"))


def _keypairs(row: Row, _args: Row) -> Document:
    key, trusted = orjson.loads(row["request"]).get("public_key"), row["trusted_certs"]
    kind = "x509" if key and key.startswith("-----BEGIN CERTIFICATE") else "ssh"
    kept = {"user_id": row["user_id"], "name": row["key_name"], "type": kind, "public_key": key}
    return {"keypairs": [keypair(kept)] if row["key_name"] and key else [],
            "tags": orjson.loads(row["tags"]), "instance_name": row["instance_name"],
            "trusted_image_certificates": trusted and orjson.loads(trusted)}


def _share_of(row: Row, args: Row) -> Document:
    found = (one["share_id"] for one in orjson.loads(row["shares"]) if one["uuid"] == args.get("uuid"))
    return {"share_id": next(found, args.get("share_id"))}


def _update(row: Row, args: Row) -> Document:
    """What ``instance.update`` has: the states before (``old_state``, ``old_task_state`` of *args*, where they were
    others) and the name before."""
    return {
        "state_update": wrapped(
            "InstanceStateUpdatePayload", "1.0", old_state=args.get("old_state", row["vm_state"]),
            state=row["vm_state"], old_task_state=args.get("old_task_state", row["task_state"]),
            new_task_state=row["task_state"]),
        **_audit_period(row, args), "old_display_name": args.get("old_display_name"), "tags": orjson.loads(row["tags"])}


def _audit_period(_row: Row, args: Row) -> Document:
    begin, end = (moment(one.isoformat()) for one in args["audit_period"])
    return {"audit_period": wrapped("AuditPeriodPayload", "1.0", audit_period_beginning=begin, audit_period_ending=end)}


class PayloadKind(NamedTuple):
    """A payload: its name and version, and what it has besides, of the server's row and the action's arguments."""

    name: str
    version: str
    more: Callable[[Row, Row], Document] = lambda _row, _args: {}


ACTION = PayloadKind("InstanceActionPayload", "1.9")
_VOLUME = PayloadKind("InstanceActionVolumePayload", "1.7", lambda _row, args: {"volume_id": args.get("volume_id")})
_SHARE = PayloadKind("InstanceActionSharePayload", "1.0", _share_of)
#: The payloads of notifications whose payload is not that of all others, ``ACTION``.
KINDS: Mapping[str, PayloadKind] = {
    "create": PayloadKind("InstanceCreatePayload", "1.13", _keypairs),
    "rebuild": PayloadKind("InstanceActionRebuildPayload", "1.10", lambda row, _args: {
        "trusted_image_certificates": row["trusted_certs"] and orjson.loads(row["trusted_certs"])}),
    "rescue": PayloadKind("InstanceActionRescuePayload", "1.4", lambda _row, args: {
        "rescue_image_ref": args.get("image")}),
    "resize_prep": PayloadKind("InstanceActionResizePrepPayload", "1.4", lambda row, args: {
        "new_flavor": flavor(args.get("flavor") or orjson.loads(row["flavor"]))}),
    "snapshot": PayloadKind("InstanceActionSnapshotPayload", "1.10", lambda _row, args: {
        "snapshot_image_id": args.get("image")}),
    "update": PayloadKind("InstanceUpdatePayload", "2.1", _update),
    "exists": PayloadKind("InstanceExistsPayload", "2.1", _audit_period),
    "volume_attach": _VOLUME, "volume_detach": _VOLUME, "share_attach": _SHARE, "share_detach": _SHARE,
    "volume_swap": PayloadKind("InstanceActionVolumeSwapPayload", "1.9", lambda _row, args: {
        "old_volume_id": args.get("volume_id"), "new_volume_id": args.get("new_volume_id")})}


def of_action(notification: str, row: Row, who: Initiator, args: Row, fault: ActionFault | None = None, *,
              volumes: bool = False) -> Document:
    """The payload of a server's notification, of its row and the arguments of the action, with the two moments of the
    ``audit_period``."""
    kind = KINDS.get(notification, ACTION)
    of_actions = {} if notification in ("update", "exists") else {"fault": fault.payload() if fault else None}
    return wrapped(kind.name, kind.version, **server(row, who, volumes=volumes), **kind.more(row, args), **of_actions)
