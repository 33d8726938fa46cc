# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow that moves a server from one host to another. It coordinates the two agents, which do the work
(``magnetar_agent.migrations``).

The steps: the source reports the contents of the server (and refuses a server that cannot move), the target agrees and
accepts connections of the source, the source sends the server, the target completes it, the source removes its
remains. Each side has a document of kind ``migration``; both have the same uuid. After any crash, running the flow
again continues where it stopped.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Sequence

from ..errors import Conflict, InvalidField, NotFound
from ..kinds import Migration
from ..plan import Step
from ..power import LIVE

if TYPE_CHECKING:
    from ..http.client import Client

#: Options of a migration that may change while it runs.
OPTIONS = ("max_downtime", "downtime_steps", "downtime_delay", "bandwidth", "auto_converge", "post_copy", "time_limit",
           "on_time_limit")
#: Fields of ``Migrate.request`` that the target gets in addition to the source's description of the server.
COMING = ("becomes", "cards")


class Side:
    """A host that takes part in a migration, or in the attachment of a volume to a server on another host. *client*: a
    client of its agent. *address*: where the other host's agent reaches this agent; by default the host name in the
    client's endpoint.
    """

    def __init__(self, client: Client, address: Optional[str] = None) -> None:
        self.client, self.address = client, address
        self._host: Optional[dict[str, Any]] = None

    @property
    def host(self) -> dict[str, Any]:
        """The resource ``host`` of the agent, as a mapping of its fields. It is fetched only once."""
        if self._host is None:
            self._host = self.client.get("host")
        return self._host

    def find(self, server: str) -> Optional[dict[str, Any]]:
        """Return the fields of *server* (uuid or name) as this agent reports them; ``None`` if it has no such server.
        """
        try:
            return self.client.get("server", server)
        except NotFound:
            return None

    def link_name(self) -> str:
        """Return the name of this agent that other agents know: the common name in its certificate. Raises ``Conflict``
        if TLS between agents is not configured.
        """
        name = self.host["link_name"]
        if not name:
            raise Conflict("The agent of %s has no TLS for links to other agents: set listen, tls_cert, tls_key and "
                           "tls_client_ca in its settings (the role magnetar.compute.agent does)." % self.host["name"])
        return str(name)

    def link_address(self) -> str:
        """Return the address, ``host:port``, at which the agent of the other host reaches this agent."""
        host = self.address or self.client.host or self.host["name"]
        return "%s:%d" % ("[%s]" % host if ":" in host else host, self.host["link_port"])

    def open_migrations(self, server: Optional[str] = None) -> Sequence[dict[str, Any]]:
        """Return the fields of each uncompleted migration that this agent has. *server*: only migrations of this
        server.
        """
        query = {"server": server} if server else {}
        return [m for m in self.client.list("migration", **query) if m["status"] != "completed"]


class Migrate:
    """The migration of *server* (name or uuid) from *source* to *target*; ``steps`` performs it.

    *request*: a mapping with ``type`` (auto, live or cold), options (``OPTIONS``), ``becomes`` (flavor and hardware
    after a resize; cold only) and ``cards`` (``{MAC: network card on the target}``, for NICs that are virtual
    functions). All keys are optional. *progress*, *timeout*: arguments of ``Client.ensure``. *id*: the uuid of the
    migration on both hosts, new by default. A caller that stores the uuid can repeat ``steps`` even if no agent has
    recorded the migration yet.
    """

    def __init__(self, source: Side, target: Side, server: str, request: Optional[dict[str, Any]] = None,
                 progress: Optional[Callable[[dict[str, Any]], None]] = None, timeout: Optional[float] = None,
                 id: Optional[str] = None) -> None:
        self.source, self.target, self.server = source, target, server
        self.request = dict(request or {})
        self.progress, self.timeout = progress, timeout
        self._given = id
        #: The uuid of the migration on both sides.
        self.id: Optional[str] = None
        self.resource: Optional[dict[str, Any]] = None
        #: Assumptions of ``plan``.
        self.warnings: list[str] = []
        #: Whether the previous attempt can no longer be aborted.
        self._gone = False

    def plan(self) -> list[Step]:
        """Return the steps that ``steps`` would perform; an empty list if the migration is complete. Raises the error
        of an agent that refuses the migration.
        """
        return [step for step, _do in self._planned(True)]

    def steps(self) -> Iterator[Step]:
        """Perform the migration. Yield each step before it is performed."""
        for step, do in self._planned(False):
            yield step
            do()

    def _planned(self, dry: bool) -> Iterator[tuple[Step, Callable[[], Any]]]:
        source_server, target_server = self.source.find(self.server), self.target.find(self.server)
        server = source_server or target_server
        if server is None:
            raise NotFound("There is no server %r, neither on %s nor on %s." % (
                self.server, self.source.host["name"], self.target.host["name"]), kind="server", key=self.server)
        begun = {side: self._find_migration(side, server["id"]) for side in (self.source, self.target)}
        if source_server is None and not any(begun.values()):
            return
        migration = begun[self.source] or begun[self.target]
        if migration and source_server and migration["status"] in ("failed", "prepared") and self._type(
                source_server) != migration["type"]:
            yield self._step("abort", "forget the attempt before"), self._forget
            if not self._gone:
                begun, migration = {self.source: None, self.target: None}, None
        self.id = migration["id"] if migration else self._given or str(uuid.uuid4())
        if source_server is not None:
            yield from self._bring(source_server, begun, dry)
        yield self._step("settle", "settle at %s" % self.target.host["name"]), lambda: self._ensure(
            self.target, {"phase": "settled"})
        if source_server is not None or begun[self.source]:
            yield self._step("leave", "remove it from %s" % self.source.host["name"]), lambda: self._ensure(
                self.source, {"phase": "settled"})

    def _forget(self) -> None:
        try:
            abort_host_migration(self.source, self.target, self.server)
        except Conflict:  # the guest has moved already, so that attempt continues
            self._gone = True

    def _find_migration(self, side: Side, server: str) -> Optional[dict[str, Any]]:
        """Return the fields of the unfinished migration of *server* between the two hosts, as the agent of *side*
        reports it; ``None`` if there is none. Raises ``Conflict`` if the server is migrating to or from a third host.
        """
        other = self.target if side is self.source else self.source
        role = "source" if side is self.source else "target"
        for migration in side.open_migrations(server):
            if migration["side"] == role and migration["peer"] == other.link_name():
                return migration
            raise Conflict("Server %r is on its way %s %s (migration %s). Let that end, or abort it first." % (
                self.server, "to" if migration["side"] == "source" else "from", migration["peer"], migration["id"]))
        return None

    def _bring(self, server: dict[str, Any], begun: dict[Side, Any], dry: bool) -> Iterator[tuple[Step, Any]]:
        source_migration = begun[self.source]
        kind = source_migration["type"] if source_migration else self._type(server)
        options = {name: value if self.request.get(name) is None else self.request[name]
                   for name, value in Migration.defaults().items() if name in OPTIONS}
        want = {"server": server["id"], "name": server["name"], "side": "source", "type": kind,
                "peer": self.target.link_name(), "address": self.target.link_address(), **options}
        if source_migration is None or source_migration["status"] in ("failed", "prepared"):
            manifest = self.source.client.ensure("migration", str(self.id), want, dry_run=True)["resource"]["manifest"]
            target_request = {"server": server["id"], "name": server["name"], "side": "target", "type": kind,
                              "peer": self.source.link_name(), "address": self.source.link_address(),
                              "manifest": {**manifest, **{name: self.request[name] for name in COMING
                                                          if self.request.get(name)}}}
            target_migration = begun[self.target]
            if target_migration is None or target_migration["status"] == "failed":  # it has not admitted the source
                if dry:
                    answer = self.target.client.ensure("migration", str(self.id), target_request, dry_run=True)
                    self.warnings += answer.get("warnings") or []
                yield self._step("prepare", "let it in at %s" % self.target.host["name"]), lambda: self._ensure(
                    self.target, target_request)
            yield self._step("claim", "keep others from it at %s" % self.source.host["name"]), lambda: self._ensure(
                self.source, want)
        yield self._step("move", "%s migration to %s" % (kind, self.target.host["name"])), lambda: self._ensure(
            self.source, dict(want, phase="moved"))

    def _type(self, server: dict[str, Any]) -> str:
        requested_type = self.request.get("type") or "auto"
        if requested_type not in ("auto", "live", "cold"):
            raise InvalidField("type", "must be auto, live or cold", requested_type)
        if requested_type != "auto":
            return str(requested_type)
        return "live" if server["power_state"] in LIVE else "cold"

    def _ensure(self, side: Side, want: dict[str, Any]) -> None:
        answer = side.client.ensure("migration", str(self.id), want, timeout=self.timeout, progress=self.progress)
        self.resource = answer["resource"]

    @staticmethod
    def _step(verb: str, text: str) -> Step:
        return Step(verb, text)


def abort_host_migration(source: Side, target: Side, server: str, dry_run: bool = False) -> list[Step]:
    """Abort the migration of *server* from *source* to *target*, so that the server stays at *source*. Return the
    performed steps (in a *dry_run*, the planned ones); empty if there is no migration. Raises ``Conflict`` if the
    server already runs at *target*.
    """
    server_document = source.find(server) or target.find(server)
    if server_document is None:
        return []
    steps = []
    for side in (source, target):
        other = target if side is source else source
        for migration in side.open_migrations(server_document["id"]):
            if not _is_with(migration, other):
                continue
            steps.append(Step("abort", "abort at %s" % side.host["name"]))
            if not dry_run:
                _cancel(side.client, migration["id"])
                side.client.delete("migration", migration["id"])
    return steps


def _is_with(migration: dict[str, Any], other: Side) -> bool:
    """Return whether *migration*, the fields of a migration as one of its two hosts reports them, names *other* as the
    second host. The address is compared first, because the certificate's name cannot be fetched from a host that is
    down.
    """
    host = str(migration["address"] or "").rpartition(":")[0].strip("[]")
    return bool(host and host == (other.address or other.client.host)) or migration["peer"] == other.link_name()


def _cancel(client: Client, id: str) -> None:
    """Cancel the running operation of the migration *id*, because a deletion of the migration waits for the end of the
    operation.
    """
    for operation in client.list("operations", kind="migration", key=id, status="running"):
        with suppress(Conflict, NotFound):  # it has ended meanwhile
            client.cancel(operation["id"])
