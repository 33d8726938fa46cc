# SPDX-License-Identifier: GPL-3.0-or-later
"""Security groups as Nova has them: those of servers, which are those of their ports; and until 2.35 the groups and
rules of the network service. Of a rule that names another group, ``remote_group`` is that one, or ``None``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_network
from operator import itemgetter
from typing import Any

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.hosts.services import uuid_of
from magnetar_control.compute.target import Target, of_server
from magnetar_control.services import Document, Documents, Page
from magnetar_control.services.network.quotas import OVER
from magnetar_control.store.servers import servers
from magnetar_core.errors import Conflict, Forbidden, InvalidField, InvalidRequest, NotFound

RULE = "os_compute_api:os-security-groups:"
#: Ports of a rule that names none, by its protocol; addresses of one that names none.
ALL_PORTS = {"icmp": (-1, -1), "tcp": (1, 65535), "udp": (1, 65535)}
ANYWHERE = "0.0.0.0/0"


def _with_remotes(caller: Caller, groups: Sequence[Document]) -> Documents:
    """Groups whose rules have their ``remote_group``."""
    known = {one["id"]: one for one in groups}
    wanted = {rule["remote_group_id"] for one in groups for rule in one["rules"]} - {None} - known.keys()
    if wanted:
        known.update((one["id"], one) for one in _store(caller).list(caller.context, Page(
            filters={"id": sorted(wanted)})))
    return [{**one, "rules": [{**rule, "remote_group": known.get(rule["remote_group_id"])} for rule in one["rules"]]}
            for one in groups]


def _store(caller: Caller, noun: str = "security_groups") -> Any:
    return caller.cloud.services.network.resources[noun]


@of_server(rule=f"{RULE}list")
def of_one(caller: Caller, target: Target) -> Documents:
    """Those of a server's ports, by project and name."""
    found = caller.cloud.services.network.groups_of(target.row.id)
    return _with_remotes(caller, sorted(found, key=itemgetter("project_id", "name")))


@of_server(rule=f"{RULE}add")
def add(caller: Caller, target: Target, name: str) -> None:
    """Give all ports of a server a security group of its project. Raises ``InvalidRequest``, ``NotFound``,
    ``Conflict``."""
    _change(caller, target, name, add=True)


@of_server(rule=f"{RULE}remove")
def remove(caller: Caller, target: Target, name: str) -> None:
    """Take a security group off the ports of a server. Raises as ``add``."""
    _change(caller, target, name, add=False)


def _change(caller: Caller, target: Target, name: str, *, add: bool) -> None:
    network, server = caller.cloud.services.network, target.row
    try:
        network.change_groups(server.project_id, server.id, name, add=add)
    except InvalidRequest as error:
        if error.details.get("type") == "SecurityGroupNotFound":
            raise NotFound(error.message) from None
        raise
    with target.database.write() as connection:
        # Asked under the server's lock, so that who writes last knows of all changes.
        if servers.row(connection, server.id, lock=True) is None:
            raise servers.Moved
        servers.change(connection, server.id, security_groups=servers.text([
            {"name": one["name"], "id": one["id"]} for one in network.groups_of(server.id)]))


# Groups and rules -------------------------------------------------------------------------------------------------
@contextmanager
def _told() -> Iterator[None]:
    """What the network service says is a conflict, Nova says is forbidden or wrong."""
    try:
        yield
    except Conflict as error:
        kind = Forbidden if error.details.get("type") == OVER else InvalidRequest
        raise kind(error.message) from None


@use_case(f"{RULE}get")
def every(caller: Caller, *, everywhere: bool = False) -> Documents:
    """Those of the caller's project, by name; *everywhere*: for administrators of all projects."""
    mine = Page() if everywhere and caller.context.is_admin else Page(filters={"project_id": [caller.project]})
    found = _store(caller).list(caller.context, mine)
    return _with_remotes(caller, sorted(found, key=itemgetter("project_id", "name")))


@use_case(f"{RULE}show")
def show(caller: Caller, id: str) -> Document:
    """One. Raises ``InvalidRequest`` for what is no uuid, ``NotFound``."""
    return _with_remotes(caller, [_store(caller).show(caller.context, uuid_of(id))])[0]


@use_case(f"{RULE}create")
def create(caller: Caller, name: str, description: str) -> Document:
    """Raises ``InvalidRequest``, ``Forbidden``."""
    with _told():
        return _with_remotes(caller, _store(caller).create(
            caller.context, {"name": name, "description": description}))[0]


@use_case(f"{RULE}update")
def update(caller: Caller, id: str, name: str, description: str) -> Document:
    """Raises ``InvalidRequest``, ``NotFound``."""
    with _told():
        return _with_remotes(caller, [_store(caller).update(
            caller.context, uuid_of(id), {"name": name, "description": description})])[0]


@use_case(f"{RULE}delete")
def delete(caller: Caller, id: str) -> None:
    """Raises ``InvalidRequest`` while a port has it, ``NotFound``."""
    with _told():
        _store(caller).delete(caller.context, uuid_of(id))


@use_case(f"{RULE}rule:create")
def create_rule(caller: Caller, group_id: str, *, remote_group_id: str | None = None, cidr: str | None = None,
                protocol: str | None = None, ports: tuple[int | None, int | None] = (None, None)) -> Document:
    """Let in what comes from a group, or from addresses (anywhere where left out). Raises ``InvalidRequest``,
    ``NotFound``, ``Forbidden``."""
    context, remote, rule = caller.context, None, {"security_group_id": uuid_of(group_id), "direction": "ingress"}
    _store(caller).show(context, rule["security_group_id"])
    if remote_group_id is None:
        rule.update(_from_addresses(cidr or ANYWHERE))
    else:
        remote = _store(caller).show(context, uuid_of(remote_group_id))
        rule["remote_group_id"] = remote["id"]
        if ports == (None, None) and protocol in ALL_PORTS:
            ports = ALL_PORTS[protocol]
    if protocol is not None and None not in ports:
        rule.update(_of_protocol(protocol, *ports))
    elif remote_group_id is None:
        raise InvalidRequest("Not enough parameters to build a valid rule.")
    with _told():
        made = _store(caller, "security_group_rules").create(context, rule)[0]
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
    """Of ICMP ports are type and code, where -1 is any."""
    if protocol != "icmp" and not 1 <= least <= most <= 65535:
        raise InvalidRequest(f"Invalid port range {least}:{most}. Valid TCP ports should be between 1-65535")
    if protocol == "icmp" and not (-1 <= least <= 255 and -1 <= most <= 255):
        raise InvalidRequest(f"Invalid port range {least}:{most}. For ICMP, the type:code must be valid")
    return {"protocol": protocol, "port_range_min": None if least < 0 else least,
            "port_range_max": None if most < 0 else most}


@use_case(f"{RULE}rule:delete")
def delete_rule(caller: Caller, id: str) -> None:
    """Raises ``InvalidRequest`` for what is no uuid, ``NotFound``."""
    _store(caller, "security_group_rules").delete(caller.context, uuid_of(id))
