# SPDX-License-Identifier: GPL-3.0-or-later
"""Security groups as in Nova: the groups of servers, which are the groups of their ports, and until 2.35 the groups and
rules of the network service. In a rule that names another group, ``remote_group`` is that group's document, otherwise
``None``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_network
from operator import itemgetter
from typing import Any

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.hosts.services import parse_uuid
from magnetar_control.compute.target import ServerTarget, server_use_case
from magnetar_control.services import Page
from magnetar_control.services.network.quotas import OVER
from magnetar_control.store.servers import servers
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, Forbidden, InvalidField, InvalidRequest, NotFound

RULE = "os_compute_api:os-security-groups:"
#: Ports of a rule without ports, by its protocol; addresses of a rule without addresses.
ALL_PORTS = {"icmp": (-1, -1), "tcp": (1, 65535), "udp": (1, 65535)}
ANYWHERE = "0.0.0.0/0"


def _with_remotes(caller: Caller, groups: Sequence[Document]) -> Documents:
    """Return the security *groups* with an added key ``remote_group`` in each rule: the document of the remote group
    that the rule refers to."""
    groups_by_id = {group["id"]: group for group in groups}
    missing_ids = {rule["remote_group_id"] for group in groups for rule in group["rules"]} - {
        None} - groups_by_id.keys()
    if missing_ids:
        groups_by_id.update((group["id"], group) for group in _resource_store(caller).list(caller.context, Page(
            filters={"id": sorted(missing_ids)})))
    return [{**group, "rules": [{**rule, "remote_group": groups_by_id.get(rule["remote_group_id"])}
                                for rule in group["rules"]]}
            for group in groups]


def _resource_store(caller: Caller, resource_type: str = "security_groups") -> Any:
    return caller.cloud.services.network.resources[resource_type]


@server_use_case(rule=f"{RULE}list")
def list_server_security_groups(caller: Caller, target: ServerTarget) -> Documents:
    """Return the security groups of a server's ports, sorted by project and name."""
    groups = caller.cloud.services.network.groups_of(target.row.id)
    return _with_remotes(caller, sorted(groups, key=itemgetter("project_id", "name")))


@server_use_case(rule=f"{RULE}add")
def add_server_security_group(caller: Caller, target: ServerTarget, name: str) -> None:
    """Add the security group *name* of the server's project to all ports of the server. Raises ``InvalidRequest``,
    ``NotFound``, ``Conflict``."""
    _change_server_groups(caller, target, name, add=True)


@server_use_case(rule=f"{RULE}remove")
def remove_server_security_group(caller: Caller, target: ServerTarget, name: str) -> None:
    """Remove the security group *name* from all ports of the server. Raises the errors of
    ``add_server_security_group``."""
    _change_server_groups(caller, target, name, add=False)


def _change_server_groups(caller: Caller, target: ServerTarget, name: str, *, add: bool) -> None:
    network, server = caller.cloud.services.network, target.row
    try:
        network.change_groups(server.project_id, server.id, name, add=add)
    except InvalidRequest as error:
        if error.details.get("type") == "SecurityGroupNotFound":
            raise NotFound(error.message) from None
        raise
    with target.database.write() as connection:
        # Read under the server's lock, so that the last writer stores all changes.
        if servers.fetch_server_row(connection, server.id, lock=True) is None:
            raise servers.Moved
        servers.update_server_row(connection, server.id, security_groups=servers.json_text([
            {"name": group["name"], "id": group["id"]} for group in network.groups_of(server.id)]))


# Groups and rules -------------------------------------------------------------------------------------------------
@contextmanager
def _as_nova_errors() -> Iterator[None]:
    """Return a context manager that converts a ``Conflict`` of the network service to the error that Nova raises:
    ``Forbidden`` when over quota, otherwise ``InvalidRequest``."""
    try:
        yield
    except Conflict as error:
        kind = Forbidden if error.details.get("type") == OVER else InvalidRequest
        raise kind(error.message) from None


@use_case(f"{RULE}get")
def list_security_groups(caller: Caller, *, everywhere: bool = False) -> Documents:
    """Return the security groups of the caller's project, sorted by project and name. *everywhere*: return the groups
    of all projects; only for administrators."""
    mine = Page() if everywhere and caller.context.is_admin else Page(filters={"project_id": [caller.project]})
    groups = _resource_store(caller).list(caller.context, mine)
    return _with_remotes(caller, sorted(groups, key=itemgetter("project_id", "name")))


@use_case(f"{RULE}show")
def show_security_group(caller: Caller, id: str) -> Document:
    """Return the security group *id*. Raises ``InvalidRequest`` for a malformed uuid, ``NotFound``."""
    return _with_remotes(caller, [_resource_store(caller).show(caller.context, parse_uuid(id))])[0]


@use_case(f"{RULE}create")
def create_security_group(caller: Caller, name: str, description: str) -> Document:
    """Create and return a security group. Raises ``InvalidRequest``, ``Forbidden``."""
    with _as_nova_errors():
        return _with_remotes(caller, _resource_store(caller).create(
            caller.context, {"name": name, "description": description}))[0]


@use_case(f"{RULE}update")
def update_security_group(caller: Caller, id: str, name: str, description: str) -> Document:
    """Set name and description of a security group, and return the group. Raises ``InvalidRequest``, ``NotFound``."""
    with _as_nova_errors():
        return _with_remotes(caller, [_resource_store(caller).update(
            caller.context, parse_uuid(id), {"name": name, "description": description})])[0]


@use_case(f"{RULE}delete")
def delete_security_group(caller: Caller, id: str) -> None:
    """Delete the security group *id*. Raises ``InvalidRequest`` while a port uses it, ``NotFound``."""
    with _as_nova_errors():
        _resource_store(caller).delete(caller.context, parse_uuid(id))


@use_case(f"{RULE}rule:create")
def create_security_group_rule(caller: Caller, group_id: str, *, remote_group_id: str | None = None,
                               cidr: str | None = None,
                               protocol: str | None = None, ports: tuple[int | None, int | None] = (None,
                                                                                                    None)) -> Document:
    """Create a rule of the security group *group_id* that allows incoming traffic, and return it. The traffic has
    *protocol* and comes from the group *remote_group_id* or from the addresses *cidr*; from anywhere when both are
    ``None``. *ports*: first and last port of the range, or type and code for ICMP. Raises ``InvalidRequest``,
    ``NotFound``, ``Forbidden``."""
    context, remote, rule = caller.context, None, {"security_group_id": parse_uuid(group_id), "direction": "ingress"}
    _resource_store(caller).show(context, rule["security_group_id"])
    if remote_group_id is None:
        rule.update(_from_addresses(cidr or ANYWHERE))
    else:
        remote = _resource_store(caller).show(context, parse_uuid(remote_group_id))
        rule["remote_group_id"] = remote["id"]
        if ports == (None, None) and protocol in ALL_PORTS:
            ports = ALL_PORTS[protocol]
    if protocol is not None and None not in ports:
        rule.update(_of_protocol(protocol, *ports))
    elif remote_group_id is None:
        raise InvalidRequest("Not enough parameters to build a valid rule.")
    with _as_nova_errors():
        made = _resource_store(caller, "security_group_rules").create(context, rule)[0]
    return {**made, "remote_group": remote}


def _from_addresses(cidr: str) -> dict[str, Any]:
    try:
        net = ip_network(cidr, strict=False)
    except ValueError:
        raise InvalidField("security_group_rule.cidr", "must be a range of addresses such as 10.0.0.0/8",
                           cidr) from None
    if not net.prefixlen and cidr.partition("/")[0] not in ("0.0.0.0", "::"):  # noqa: S104 - no socket
        raise InvalidRequest(f"Bad prefix for network in cidr {cidr}")
    return {"remote_ip_prefix": str(net), "ethertype": f"IPv{net.version}"}


def _of_protocol(protocol: str, least: Any, most: Any) -> dict[str, Any]:
    """Return the fields of a security group rule for *protocol* and its ports. *least*, *most*: the range of ports, or
    type and code for ICMP; -1 stands for any. Raises ``InvalidRequest``."""
    if protocol != "icmp" and not 1 <= least <= most <= 65535:
        raise InvalidRequest(f"Invalid port range {least}:{most}. Valid TCP ports should be between 1-65535")
    if protocol == "icmp" and not (-1 <= least <= 255 and -1 <= most <= 255):
        raise InvalidRequest(f"Invalid port range {least}:{most}. For ICMP, the type:code must be valid")
    return {"protocol": protocol, "port_range_min": None if least < 0 else least,
            "port_range_max": None if most < 0 else most}


@use_case(f"{RULE}rule:delete")
def delete_security_group_rule(caller: Caller, id: str) -> None:
    """Delete the security group rule *id*. Raises ``InvalidRequest`` for a malformed uuid, ``NotFound``."""
    _resource_store(caller, "security_group_rules").delete(caller.context, parse_uuid(id))
