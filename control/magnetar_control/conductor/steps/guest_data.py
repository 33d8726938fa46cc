# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts about a server that its guest gets: fields of the agent's document (``core.kinds.guest_data``)."""

from __future__ import annotations

from typing import Any

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.conductor.worker.work import RunningAction
from magnetar_control.documents import FlavorOfServer
from magnetar_control.store.actions.actions import ADMIN_PASS, password_argument
from magnetar_control.store.servers.server_row import ServerRow


def guest_data(conductor: Conductor, server: ServerRow, host: str,
               flavor: FlavorOfServer | None = None) -> dict[str, Any]:
    """Return the metadata of a server that its guest reads from the config drive or metadata service, such as hostname,
    public key, flavor name and availability zone. *server*: the row of a server that is on *host* or moves there.
    *flavor*: the new flavor of a resize; by default the server's flavor."""
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


def vendor_data(work: RunningAction) -> dict[str, Any]:
    """Return the vendor data for the guest, as {"static": …, "dynamic": answer by name of the target}. This sends a
    request to each target of dynamic vendordata. Raises ``VendordataFailed``."""
    server, vendordata = work.server, work.conductor.vendordata
    static = vendordata.static()
    if not vendordata.targets:
        return {"static": static, "dynamic": {}}
    server_facts = {"project-id": server.project_id, "instance-id": work.id, "image-id": server.image_id,
                    "user-data": server.user_data, "hostname": server.hostname,
                    "metadata": server.metadata, "boot-roles": ",".join(work.request.get("roles") or ())}
    return {"static": static, "dynamic": vendordata.dynamic(server_facts, lambda: work.progress(None))}


def password_field(work: RunningAction) -> dict[str, Any]:
    """Return a mapping with the administrator password from the action's arguments, to be passed to the guest once; an
    empty mapping if the action has no password."""
    return dict(password_argument(work.args.get(ADMIN_PASS)))


def guest_facts(work: RunningAction, host: str) -> dict[str, Any]:
    """Return the fields ``guest_data``, ``vendor_data`` and, if there is one, the password, for a build or rebuild of
    the server by the agent of *host*. Raises ``VendordataFailed``."""
    return {"guest_data": guest_data(work.conductor, work.server, host), "vendor_data": vendor_data(work),
            **password_field(work)}
