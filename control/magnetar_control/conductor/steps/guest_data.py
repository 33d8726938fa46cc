# SPDX-License-Identifier: GPL-3.0-or-later
"""What the guest of a cloud's server is told: fields of the agent's document (``core.kinds.guest_data``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from magnetar_control.conductor.worker.environment import Environment
from magnetar_control.conductor.worker.work import Work
from magnetar_control.store.actions.action_secrets import ADMIN_PASS, argument


def guest_data(conductor: Environment, server: Any, host: str,
               flavor: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the cloud knows better than *host*, which the *server* (a row) is on or comes to. *flavor*: that it is to
    have, where it has another."""
    settings = conductor.settings
    domain, format = settings.dhcp_domain, settings.config_drive_format
    name = server.hostname or server.name
    key = orjson.loads(server.request).get("public_key") if server.key_name else None
    public = next(iter(conductor.services.network.floating([server.id]).get(server.id, {}).values()), None)
    return {
        **({"public_ipv4": public} if public else {}),
        **({} if format == "agent" else {"drive_format": format}), "name": server.name,
        "hostname": f"{name}.{domain}" if domain else name, "project_id": server.project_id,
        "launch_index": server.launch_index, "reservation_id": server.reservation_id or "",
        "flavor": (flavor or orjson.loads(server.flavor)).get("name", ""), "availability_zone": conductor.zone(host),
        "keys": [{"name": server.key_name, "type": _type(key), "data": key}] if key else [],
        "security_groups": [one["name"] for one in orjson.loads(server.security_groups)]}


def _type(key: str) -> str:
    """The type of its keypair: a certificate in PEM has several lines, a key of SSH one."""
    return "x509" if "\n" in key.strip() else "ssh"


def vendor_data(work: Work) -> dict[str, Any]:
    """What the operator has it told. The targets of dynamic vendordata are asked now. Raises ``VendordataFailed``."""
    server, found = work.server, work.conductor.vendordata
    static = found.static()
    if not found.targets:
        return {"static": static, "dynamic": {}}
    asked = {"project-id": server.project_id, "instance-id": work.id, "image-id": server.image_id,
             "user-data": server.user_data, "hostname": server.hostname, "metadata": orjson.loads(server.metadata),
             "boot-roles": ",".join(work.request.get("roles") or ())}
    return {"static": static, "dynamic": found.dynamic(asked, lambda: work.progress(None))}


def password(work: Work) -> dict[str, Any]:
    """The password of the action's arguments, which the guest is told once; nothing where there is none."""
    return dict(argument(work.args.get(ADMIN_PASS)))


def told(work: Work, host: str) -> dict[str, Any]:
    """All of it, for a server that is built or rebuilt on *host*. Raises ``VendordataFailed``."""
    return {"guest_data": guest_data(work.conductor, work.server, host), "vendor_data": vendor_data(work),
            **password(work)}
