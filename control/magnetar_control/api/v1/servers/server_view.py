# SPDX-License-Identifier: GPL-3.0-or-later
"""The conversion of a server's row to a document of the kind server; keys that begin with ``_`` are for the plan."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from magnetar_control.api.v1.driver import NAMESPACE
from magnetar_control.compute.servers.servers import add_floating_ips
from magnetar_control.documents import ServerNic
from magnetar_control.scheduler.request_spec import flavor_disk_sizes
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core import power
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.fields import SHOW
from magnetar_core.hardware.merge import requested_hardware
from magnetar_core.kinds import Server

#: Fields that a request for a server of a cloud may set.
GIVEN = frozenset(("id", "name", "description", "flavor", "image", "networks", "block_device_mapping", "key_name",
                   "metadata", "tags", "availability_zone", "config_drive", "power", "rescue", *Server.of_clouds))
#: Fields that only a single host can set, with their defaults.
CONSTANT: Mapping[str, Any] = {field.name: field.default for field in Server.fields
                               if field.settable and SHOW in field.on and field.name not in GIVEN}
#: Fields of an item of the block device mapping that describe how the server was created.
BLOCK = ("source_type", "destination_type", "uuid", "boot_index", "volume_size", "delete_on_termination", "tag",
         "guest_format", "disk_bus", "volume_type")
SHOWN = frozenset(field.name for field in Server.fields if SHOW in field.on)
SIZES = ("name", "vcpus", "ram", "disk", "ephemeral", "swap")


def agent_timestamp(text: str | None) -> str | None:
    """Return the time *text* of a database row in the format of the v1 API, without fractions of a second; ``None`` for
    ``None``."""
    return text[:19] + "Z" if text else None


def _addresses(row: ServerRow, floating: Mapping[tuple[str, str], str] | None) -> Document:
    """Return the addresses of the server *row*, by network name. *floating*: maps (MAC, fixed address) to a floating
    IP, which follows the fixed address in the result."""
    addresses_by_network = add_floating_ips(row.addresses, floating)
    return {network: [{"addr": address["addr"], "version": address["version"],
                       "mac": address["OS-EXT-IPS-MAC:mac_addr"],
                       "source": "floating" if address["OS-EXT-IPS:type"] == "floating" else "network"}
                      for address in addresses] for network, addresses in addresses_by_network.items()}


def render_server(row: ServerRow, image_name: Callable[[str], str], on_host: bool, password: bool,
                  floating: Mapping[tuple[str, str], str] | None) -> Document:
    """Return the server *row* in the format of the v1 API. Keys that begin with ``_`` are for planning changes;
    ``CloudServers.public`` removes them. *image_name*: a function that returns an image's name by its uuid. *floating*:
    maps (MAC, fixed address) to a floating IP. *on_host*: include ``host``, and ``instance_name``: the name of the
    server on this host. *password*: include the encrypted password of the guest."""
    row = row.undecoded()
    flavor, fault, block_devices = row.flavor, row.fault, row.request.get("blocks") or []
    of_image = (row.image.get("properties") or {}).get("block_device_mapping") or ""
    return {
        "id": row.id, "name": row.name, "description": row.description or "",
        "flavor": {name: flavor.get(name) for name in SIZES},
        "image": {"id": row.image_id, "name": image_name(row.image_id)} if row.image_id else None,
        "networks": [_nic(nic) for nic in row.nics], "user_data": row.user_data,
        "block_device_mapping": [
            {key: value for key, value in block_device.items() if key in BLOCK and value is not None}
            for block_device in block_devices if not block_device.get("uuid") or block_device["uuid"] not in of_image],
        "key_name": row.key_name, "metadata": row.metadata, "tags": row.tags,
        "availability_zone": row.pinned_availability_zone, "config_drive": bool(row.config_drive),
        "power": power.desired_power(row.vm_state, row.power_state),
        "rescue": {} if row.vm_state == "rescued" else None, **CONSTANT, **_hardware(row),
        "volumes_attached": [{"id": attachment["volume_id"], "name": "",
                              "device": (attachment["device"] or "").rpartition("/")[2],
                              "delete_on_termination": attachment["delete_on_termination"]}
                             for attachment in row.volumes],
        "status": power.status_word(row.vm_state, row.task_state),
        "power_state": power.power_of_number(row.power_state),
        "status_reason": "", "placement": {}, "pci_devices": {}, "nic_devices": {}, "mdev": None, "pmem_namespaces": [],
        "adopted": row.request.get("adopted"),
        "guest_password": row.password if password else "",
        "locked": bool(row.locked_by), "locked_reason": row.locked_reason,
        "fault": fault and {"code": fault["code"], "message": fault["message"],
                            "created": agent_timestamp(fault["created"])},
        "host": row.host if on_host else "", "addresses": _addresses(row, floating),
        "instance_name": row.instance_name if on_host else "", "console_log": "",
        "created_at": agent_timestamp(row.created_at), "updated_at": agent_timestamp(row.updated_at),
        **_of_clouds(row), "_user": row.user_id, "_vm_state": row.vm_state, "_host": row.host,
        "_launched": bool(row.launched_at), "_flavor": flavor["id"], "_disks": flavor_disk_sizes(flavor),
        "_properties": row.image.get("properties") or {}}


def _of_clouds(row: ServerRow) -> Document:
    """Return the fields of the server *row* that only the API of a cloud has; the API of a single host, without a
    control plane, lacks them."""
    groups = row.security_groups
    return {
        "scheduler_hints": row.hints, "access_ip_v4": row.access_ip_v4, "access_ip_v6": row.access_ip_v6,
        "security_groups": sorted(group["name"] for group in groups), "hostname": row.hostname,
        "disk_config": row.disk_config, "_groups": [group_key(group) for group in groups],
        "trusted_image_certificates": row.trusted_certs}


def _hardware(row: ServerRow) -> Document:
    """Return the virtual hardware that the server's flavor and image request; an empty dict if flavor or image is
    invalid, because the build of such a server fails."""
    with contextlib.suppress(InvalidField):
        return requested_hardware(row.flavor, row.image)
    return {}


def _nic(nic: ServerNic) -> Document:
    addresses = [ip["ip_address"] for ip in nic.get("fixed_ips") or ()]
    return {"network": nic["network"], "mac": nic["mac"], "model": "virtio",
            "address": addresses[0] if addresses else None,
            **({"tag": nic["tag"]} if nic.get("tag") else {}), "_id": nic["network_id"], "_port": nic["port_id"],
            "_made": nic.get("created", True)}


def group_key(group: Mapping[str, Any]) -> str:
    """Return a key for comparing security groups: ``default`` for the default group, which may not exist yet, otherwise
    the uuid."""
    return "default" if group["name"] == "default" else str(group.get("id") or group["name"])


def nic_id(port: str) -> str:
    """Return a uuid for the attachment of a NIC to a server; it is derived from *port*, the port's uuid."""
    return str(uuid.uuid5(NAMESPACE, f"interface {port}"))
