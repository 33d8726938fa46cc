# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of the cloud as its kind shows it; keys that begin with ``_`` are for the plan."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from magnetar_core.power import of_number, status, wanted

from .asks import FURTHER, Document

#: What a single host can be told and a cloud cannot.
CONSTANT: Mapping[str, Any] = {"restart_on_crash": False, "resume_on_host_boot": True, "root_format": "qcow2",
                               "virt_type": "auto", "machine": "q35"}
SIZES = ("name", "vcpus", "ram", "disk", "ephemeral", "swap")


def stamp(text: str | None) -> str | None:
    """As the agents write times."""
    return text[:19] + "Z" if text else None


def shown(row: Any, image_name: Callable[[str], str]) -> Document:
    """The server of a *row*. *image_name* tells an image's name by its uuid."""
    flavor, fault = orjson.loads(row.flavor), orjson.loads(row.fault) if row.fault else None
    nics = orjson.loads(row.interfaces)
    volumes = orjson.loads(row.volumes)
    found = {
        "id": row.id, "name": row.name, "description": row.description or "",
        "flavor": {name: flavor.get(name) for name in SIZES},
        "image": {"id": row.image_id, "name": image_name(row.image_id)} if row.image_id else None,
        "networks": [_nic(nic) for nic in nics], "block_device_mapping": [],
        "key_name": row.key_name, "metadata": orjson.loads(row.metadata), "tags": orjson.loads(row.tags),
        "availability_zone": row.pinned_availability_zone, "config_drive": bool(row.config_drive),
        "power": wanted(row.vm_state, row.power_state), "rescue": {} if row.vm_state == "rescued" else None, **CONSTANT,
        "volumes_attached": [{"id": one["volume_id"], "name": "", "device": (one["device"] or "").rpartition("/")[2],
                              "delete_on_termination": one["delete_on_termination"]} for one in volumes],
        "status": status(row.vm_state, row.task_state), "power_state": of_number(row.power_state),
        "status_reason": "", "fault": fault and {"code": fault["code"], "message": fault["message"],
                                                 "created": stamp(fault["created"])},
        "host": row.host, "addresses": _addresses(row), "instance_name": row.instance_name, "console_log": "",
        "created_at": stamp(row.created_at), "updated_at": stamp(row.updated_at)}
    return {**found, "_vm_state": row.vm_state, "_task_state": row.task_state, "_host": row.host,
            "_flavor": flavor["id"], "_user_data": row.user_data, "_power_wanted": False,
            "_blocks": orjson.loads(row.request).get("blocks") or [],
            "_of_image": (orjson.loads(row.image).get("properties") or {}).get("block_device_mapping") or ""}


def _nic(nic: Mapping[str, Any]) -> Document:
    addresses = [ip["ip_address"] for ip in nic.get("fixed_ips") or ()]
    return {"network": nic["network"], "mac": nic["mac"], "model": "virtio",
            "address": addresses[0] if addresses else None,
            **({"tag": nic["tag"]} if nic.get("tag") else {}), "_id": nic["network_id"], "_port": nic["port_id"],
            "_attachment": nic_id(nic["port_id"])}


def nic_id(port: str) -> str:
    """The uuid of an interface attachment, which follows from its port."""
    return str(uuid.uuid5(FURTHER, f"interface {port}"))


def _addresses(row: Any) -> Document:
    return {network: [{"addr": one["addr"], "version": one["version"], "mac": one["OS-EXT-IPS-MAC:mac_addr"],
                       "source": "network"} for one in found]
            for network, found in orjson.loads(row.addresses).items()}


def plain(found: Document) -> Document:
    """Without what is for the plan, inside of NICs too."""
    return {name: [{k: v for k, v in nic.items() if not k.startswith("_")} for nic in value]
            if name == "networks" and isinstance(value, list) else value
            for name, value in found.items() if not name.startswith("_")}
