# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of the cloud as its kind shows it; keys that begin with ``_`` are for the plan."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from magnetar_control.api.v1.driver import NAMESPACE
from magnetar_control.compute.servers.servers import reached
from magnetar_control.scheduler.request_spec import sizes
from magnetar_core import power
from magnetar_core.errors import InvalidField
from magnetar_core.fields import SHOW
from magnetar_core.hardware.merge import asked_of
from magnetar_core.kinds import Server
from magnetar_core.reconcile import Document

#: Fields that a server of a cloud can be given.
GIVEN = frozenset(("id", "name", "description", "flavor", "image", "networks", "block_device_mapping", "key_name",
                   "metadata", "tags", "availability_zone", "config_drive", "power", "rescue", *Server.of_clouds))
#: What a single host can be told and a cloud cannot: the others, which have their defaults.
CONSTANT: Mapping[str, Any] = {field.name: field.default for field in Server.fields
                               if field.settable and SHOW in field.on and field.name not in GIVEN}
#: What an item of the block device mapping says of how the server was made.
BLOCK = ("source_type", "destination_type", "uuid", "boot_index", "volume_size", "delete_on_termination", "tag",
         "guest_format", "disk_bus", "volume_type")
SHOWN = frozenset(field.name for field in Server.fields if SHOW in field.on)
SIZES = ("name", "vcpus", "ram", "disk", "ephemeral", "swap")


def stamp(text: str | None) -> str | None:
    """As the agents write times."""
    return text[:19] + "Z" if text else None


def shown(row: Any, image_name: Callable[[str], str], on_host: bool, password: bool,
          floating: Mapping[tuple[str, str], str] | None) -> Document:
    """The server of a *row*; ``CloudServers.public`` is what answers show. *image_name*: an image's name by its uuid.
    *floating*: see ``compute.servers.servers.reached``.
    *on_host*: whether it is told where the server is, and what it is called there; *password*:
    whether the one that its guest has left, which is there then."""
    flavor, fault = orjson.loads(row.flavor), orjson.loads(row.fault) if row.fault else None
    nics = orjson.loads(row.interfaces)
    volumes, blocks = orjson.loads(row.volumes), orjson.loads(row.request).get("blocks") or []
    of_image = (orjson.loads(row.image).get("properties") or {}).get("block_device_mapping") or ""
    addresses = {network: [{"addr": one["addr"], "version": one["version"], "mac": one["OS-EXT-IPS-MAC:mac_addr"],
                            "source": "floating" if one["OS-EXT-IPS:type"] == "floating" else "network"}
                           for one in some] for network, some in orjson.loads(reached(row.addresses, floating)).items()}
    return {
        "id": row.id, "name": row.name, "description": row.description or "",
        "flavor": {name: flavor.get(name) for name in SIZES},
        "image": {"id": row.image_id, "name": image_name(row.image_id)} if row.image_id else None,
        "networks": [_nic(nic) for nic in nics], "user_data": row.user_data,
        "block_device_mapping": [
            {key: value for key, value in one.items() if key in BLOCK and value is not None}
            for one in blocks if not one.get("uuid") or one["uuid"] not in of_image],
        "key_name": row.key_name, "metadata": orjson.loads(row.metadata), "tags": orjson.loads(row.tags),
        "availability_zone": row.pinned_availability_zone, "config_drive": bool(row.config_drive),
        "power": power.wanted(row.vm_state, row.power_state),
        "rescue": {} if row.vm_state == "rescued" else None, **CONSTANT, **_hardware(row),
        "volumes_attached": [{"id": one["volume_id"], "name": "", "device": (one["device"] or "").rpartition("/")[2],
                              "delete_on_termination": one["delete_on_termination"]} for one in volumes],
        "status": power.status(row.vm_state, row.task_state), "power_state": power.of_number(row.power_state),
        "status_reason": "", "placement": {}, "pci_devices": {}, "nic_devices": {}, "mdev": None, "pmem_namespaces": [],
        "guest_password": row.password if password else "",
        "fault": fault and {"code": fault["code"], "message": fault["message"], "created": stamp(fault["created"])},
        "host": row.host if on_host else "", "addresses": addresses,
        "instance_name": row.instance_name if on_host else "", "console_log": "",
        "created_at": stamp(row.created_at), "updated_at": stamp(row.updated_at),
        **_of_clouds(row), "_user": row.user_id, "_vm_state": row.vm_state, "_host": row.host,
        "_launched": bool(row.launched_at), "_flavor": flavor["id"], "_disks": sizes(flavor),
        "_properties": orjson.loads(row.image).get("properties") or {}}


def _of_clouds(row: Any) -> Document:
    """Return the fields that only a cloud gives a server."""
    groups = orjson.loads(row.security_groups)
    return {
        "scheduler_hints": orjson.loads(row.hints), "access_ip_v4": row.access_ip_v4, "access_ip_v6": row.access_ip_v6,
        "security_groups": sorted(group["name"] for group in groups), "hostname": row.hostname,
        "disk_config": row.disk_config, "_groups": [group_key(group) for group in groups],
        "trusted_image_certificates": orjson.loads(row.trusted_certs) if row.trusted_certs else None}


def _hardware(row: Any) -> Document:
    """The hardware that flavor and image ask for; nothing of a server whose build was refused it."""
    with contextlib.suppress(InvalidField):
        return asked_of(orjson.loads(row.flavor), orjson.loads(row.image))
    return {}


def _nic(nic: Mapping[str, Any]) -> Document:
    addresses = [ip["ip_address"] for ip in nic.get("fixed_ips") or ()]
    return {"network": nic["network"], "mac": nic["mac"], "model": "virtio",
            "address": addresses[0] if addresses else None,
            **({"tag": nic["tag"]} if nic.get("tag") else {}), "_id": nic["network_id"], "_port": nic["port_id"],
            "_made": nic.get("created", True)}


def group_key(group: Mapping[str, Any]) -> str:
    """Return what tells a security group from others: its uuid. The default group may have none yet."""
    return "default" if group["name"] == "default" else str(group.get("id") or group["name"])


def nic_id(port: str) -> str:
    """The uuid of an interface attachment, which follows from its port."""
    return str(uuid.uuid5(NAMESPACE, f"interface {port}"))
