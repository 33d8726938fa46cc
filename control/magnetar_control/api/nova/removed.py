# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths that Nova has removed: they answer 410 at every microversion, to every caller with a token."""

from __future__ import annotations

from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_control.web import Fault

from .operation import ApiOperation

#: Path to its former methods or, for the path of an action, to the names of actions.
REMOVED = {
    "/os-agents": "GET POST",
    "/os-agents/{id}": "PUT DELETE",
    "/os-cells": "GET POST",
    "/os-cells/capacities": "GET",
    "/os-cells/detail": "GET",
    "/os-cells/info": "GET",
    "/os-cells/sync_instances": "POST",
    "/os-cells/{id}": "GET PUT DELETE",
    "/os-cells/{id}/capacities": "GET",
    "/os-certificates": "POST",
    "/os-certificates/{id}": "GET",
    "/os-cloudpipe": "GET POST",
    "/os-cloudpipe/{id}": "PUT",
    "/os-fixed-ips/{id}": "GET",
    "/os-fixed-ips/{id}/action": "reserve unreserve",
    "/os-floating-ip-dns": "GET",
    "/os-floating-ip-dns/{id}": "PUT DELETE",
    "/os-floating-ip-dns/{domain_id}/entries/{id}": "GET PUT DELETE",
    "/os-floating-ips-bulk": "GET POST",
    "/os-floating-ips-bulk/{id}": "GET PUT",
    "/os-fping": "GET",
    "/os-fping/{id}": "GET",
    "/os-networks": "POST",
    "/os-networks/add": "POST",
    "/os-networks/{id}": "DELETE",
    "/os-networks/{id}/action": "disassociate disassociate_host disassociate_project associate_host",
    "/os-security-group-default-rules": "GET POST",
    "/os-security-group-default-rules/{id}": "GET DELETE",
    "/os-tenant-networks": "POST",
    "/os-tenant-networks/{id}": "DELETE",
    "/servers/{server_id}/action": "resetNetwork",
    "/servers/{server_id}/consoles": "GET POST",
    "/servers/{server_id}/consoles/{id}": "GET DELETE",
    "/servers/{server_id}/os-virtual-interfaces": "GET",
}
#: The message of the error 410, as in Nova.
GONE = "This resource is no longer available.  No forwarding address is given."


def _gone(_caller: Caller, *_words: Any) -> None:
    """Raise ``Fault`` 410 for a request to an API that Nova has removed."""
    raise Fault(410, GONE)


def _row(path: str, method_or_action: str) -> ApiOperation:
    action = method_or_action if path.endswith("/action") else None
    return ApiOperation(method="POST" if action else method_or_action, path=path,
                        name=f"removed {method_or_action} {path}", action=action, bodiless=action is None, use=_gone)


OPERATIONS = tuple(_row(path, method_or_action) for path, methods_or_actions in REMOVED.items()
                   for method_or_action in methods_or_actions.split())
