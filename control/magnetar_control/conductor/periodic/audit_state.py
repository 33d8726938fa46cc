# SPDX-License-Identifier: GPL-3.0-or-later
"""The data of one page of the audit, and its findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from magnetar_control.store.accounts.quota_usage import UsageComparison
from magnetar_control.store.claims import host_counters
from magnetar_control.store.claims.allocations import ClaimRow
from magnetar_control.store.servers.server_row import ServerRow


class AuditedServer(ServerRow):
    """The columns of a server that the audit reads. ``busy``: whether the server has an action."""

    busy: bool


class AuditedClaim(ClaimRow):
    """A claim of resources on a host, with the name of the host."""

    host: str


class AuditedHost(NamedTuple):
    """The columns of a host that the audit reads. ``servers``: the number of claims on the host."""

    id: str
    name: str
    endpoint: str
    cell_id: str
    servers: int


@dataclass(frozen=True)
class AuditSubjects:
    """The objects that one page of the audit checks. *ids*: server uuids. *hosts*: names of hosts that are checked with
    all of their servers. *engine*, *usage*: whether OVN and the quota usage are checked."""

    ids: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    engine: bool = False
    usage: bool = False

    def __or__(self, other: AuditSubjects) -> AuditSubjects:
        """Return the union of these subjects and *other*."""
        return AuditSubjects(self.ids | other.ids, self.hosts | other.hosts, self.engine or other.engine,
                             self.usage or other.usage)

    def __bool__(self) -> bool:
        """Return whether there is anything to check."""
        return bool(self.ids or self.hosts or self.engine or self.usage)


@dataclass(frozen=True)
class Finding:
    """One finding of the audit: an inconsistency between databases, services and hosts. *kind*: the name of the check.
    *id*: the id of the object (server, claim, port …). *place*: the cell or host of the object. *text*: a description
    for operators. *server*: the id of the server concerned, if the object is not a server."""

    kind: str
    id: str
    place: str
    text: str
    server: str = field(default="", compare=False)

    def as_document(self) -> dict[str, str]:
        """Return the finding as a JSON object, as ``magnetar audit --json`` prints it."""
        return {"kind": self.kind, "id": self.id, "place": self.place, "text": self.text}


@dataclass
class AuditState:
    """The data of one page (batch of servers and hosts) of the audit: the servers' database rows, and the guests on the
    hosts.

    ``servers``: the rows of servers that are not deleted, by id. ``guests``: the guests on each host that answers, by
    host name and then server id. The field has all guests on the page's own hosts, and on other hosts only the guests
    of the page's servers.
    """

    hosts: Mapping[str, AuditedHost] = field(default_factory=dict)  # all of the cloud, by name
    subjects: AuditSubjects = AuditSubjects()
    ids: set[str] = field(default_factory=set)  # of the page's servers, existing or not
    claims: dict[str, list[AuditedClaim]] = field(default_factory=dict)  # by server
    counters: list[host_counters.Difference] = field(default_factory=list)
    ports: Mapping[str, str] = field(default_factory=dict)
    attachments: Mapping[str, str] = field(default_factory=dict)
    networks: set[str] = field(default_factory=set)  # empty unless a host of the page has one
    engine: Sequence[tuple[str, str]] = ()
    usage: list[tuple[str, UsageComparison]] = field(default_factory=list)  # wrong usage of quotas, with its cell
    servers: dict[str, AuditedServer] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)  # of servers, by their id
    #: ``copies``: cells of leftover rows, by server: the server has left that cell, or was scheduled from cell0.
    #: ``twins``: cells of rows that nothing explains, by server. Both servers have another row in their own cell.
    copies: dict[str, str] = field(default_factory=dict)
    twins: dict[str, str] = field(default_factory=dict)
    moves: dict[str, list[Any]] = field(default_factory=dict)
    guests: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: By host of the page, its networks.
    nets: dict[str, list[Any]] = field(default_factory=dict)
    #: By host of the page, its parts of open migrations, by server.
    open_migrations: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)  # ids of deleted servers; see ``deleted_servers``
    unknown: set[str] = field(default_factory=set)  # ids whose cell does not answer, or has no row for them
    lost: dict[str, str] = field(default_factory=dict)  # the unknown ids whose cell answers, with the cell
    silent: set[str] = field(default_factory=set)  # cells that do not answer

    def guest_hosts(self, id: str) -> set[str]:
        """Return the hosts that may have the guest of the server *id*: the host in its row, and the hosts of its
        claims."""
        names = {claim.host for claim in self.claims.get(id, ())}
        if (row := self.servers.get(id)) and row.host:
            names.add(row.host)
        return names

    def has_all_of_guests(self, row: AuditedServer, kind: str) -> bool | None:
        """Return whether the server's *row* lists all volumes or NICs (*kind*: ``volumes`` or ``nics``) that its guests
        have. Return ``None`` if a host that may have a guest of the server does not answer."""
        if not self.guest_hosts(row.id) <= self.guests.keys():
            return None
        volumes_or_nics = [volumes_and_nics(row, guests[row.id])[kind] for guests in self.guests.values()
                           if row.id in guests]
        return all(present <= noted for noted, present in volumes_or_nics)

    def subjects_of(self, finding: Finding) -> AuditSubjects:
        """Return the servers or hosts that must be read again to check whether *finding* still applies."""
        if finding.kind in ("engine", "usage"):
            return AuditSubjects(engine=finding.kind == "engine", usage=finding.kind == "usage")
        server = finding.server or finding.id
        names = {name for name in self.subjects.hosts if name == finding.place or server in self.guests.get(name, ())}
        return AuditSubjects(hosts=frozenset(names)) if names else AuditSubjects(frozenset((server,)))


def volumes_and_nics(row: ServerRow, resource: Any) -> dict[str, tuple[set[str], set[str]]]:
    """Return ``{"volumes": (ids in the row, ids in the guest), "nics": (MACs in the row, MACs in the guest)}``.
    *resource*: the server as its agent reports it. An adopted domain may have NICs for which it has no ports."""
    row = row.undecoded()
    noted_macs, macs = {nic["mac"] for nic in row.nics}, {nic["mac"] for nic in resource["networks"]}
    return {"volumes": ({volume["volume_id"] for volume in row.volumes},
                        {volume["id"] for volume in resource["volumes_attached"]}),
            "nics": (noted_macs, macs & noted_macs if resource.get("adopted") else macs)}
