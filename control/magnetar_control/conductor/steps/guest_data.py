# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts about a server that its guest gets: fields of the agent's document (``core.kinds.guest_data``)."""

from __future__ import annotations

from typing import Any

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.conductor.worker.work import Work
from magnetar_control.documents import FlavorOfServer
from magnetar_control.store.actions.actions import ADMIN_PASS, password_argument
from magnetar_control.store.servers.server_row import ServerRow


def guest_data(conductor: Conductor, server: ServerRow, host: str,
               flavor: FlavorOfServer | None = None) -> dict[str, Any]:
    """Return the facts about a server that its guest can only get from the cloud. *server*: the row of a server that is
    on *host* or moves there. *flavor*: its new flavor, if that differs."""
    settings = conductor.settings
    domain, format = settings.dhcp_domain, settings.config_drive_format
    name = server.hostname or server.name
    key = server.request.get("public_key") if server.key_name else None
    public = next(iter(conductor.services.network.floating([server.id]).get(server.id, {}).values()), None)
    return {
        **({"public_ipv4": public} if public else {}),
        **({} if format == "agent" else {"drive_format": format}), "name": server.name,
        "hostname": f"{name}.{domain}" if domain else name, "project_id": server.project_id,
        "launch_index": server.launch_index, "reservation_id": server.reservation_id or "",
        "flavor": (flavor or server.flavor).get("name", ""), "availability_zone": conductor.zone(host),
        "keys": [{"name": server.key_name, "type": _type(key), "data": key}] if key else [],
        "security_groups": [group["name"] for group in server.security_groups]}


def _type(key: str) -> str:
    """Return the type of a public key: x509 for a PEM certificate, which has several lines; otherwise ssh."""
    return "x509" if "\n" in key.strip() else "ssh"


def vendor_data(work: Work) -> dict[str, Any]:
    """Return the operator's data for the guest. This calls the targets of dynamic vendordata. Raises
    ``VendordataFailed``."""
    server, vendordata = work.server, work.conductor.vendordata
    static = vendordata.static()
    if not vendordata.targets:
        return {"static": static, "dynamic": {}}
    server_facts = {"project-id": server.project_id, "instance-id": work.id, "image-id": server.image_id,
                    "user-data": server.user_data, "hostname": server.hostname,
                    "metadata": server.metadata, "boot-roles": ",".join(work.request.get("roles") or ())}
    return {"static": static, "dynamic": vendordata.dynamic(server_facts, lambda: work.progress(None))}


def password_field(work: Work) -> dict[str, Any]:
    """Return the field with the password in the action's arguments, which the guest gets once; an empty document if
    there is none."""
    return dict(password_argument(work.args.get(ADMIN_PASS)))


def guest_facts(work: Work, host: str) -> dict[str, Any]:
    """Return guest data, vendor data and password for a server that is built or rebuilt on *host*. Raises
    ``VendordataFailed``."""
    return {"guest_data": guest_data(work.conductor, work.server, host), "vendor_data": vendor_data(work),
            **password_field(work)}
