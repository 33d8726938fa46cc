# SPDX-License-Identifier: GPL-3.0-or-later
"""migrate: server X is on host Y. The coordinator's part; the agents do the work (``magnetar_agent.migrations``).

The steps: the source says what would go (and refuses what cannot), the target says that it may come and lets the source
in, the source sends it, the target settles, the source removes what is left. Both halves are documents of kind
``migration`` with one uuid. Whatever died, running the flow again goes on where it was.
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

#: Options of a migration that may change while it goes on.
OPTIONS = ("max_downtime", "downtime_steps", "downtime_delay", "bandwidth", "auto_converge", "post_copy", "time_limit",
           "on_time_limit")
#: What of a wish the target is told with the manifest.
COMING = ("becomes", "cards")


class Side:
    """One of the two agents: a client, and where the other agent reaches it (``host``, from the endpoint)."""

    def __init__(self, client: Client, address: Optional[str] = None) -> None:
        self.client, self.address = client, address
        self._host: Optional[dict[str, Any]] = None

    @property
    def host(self) -> dict[str, Any]:
        """The host resource."""
        if self._host is None:
            self._host = self.client.get("host")
        return self._host

    def find(self, server: str) -> Optional[dict[str, Any]]:
        """The server, by uuid or name."""
        try:
            return self.client.get("server", server)
        except NotFound:
            return None

    def link_name(self) -> str:
        """Name of the agent to other agents; ``Conflict`` without TLS."""
        name = self.host["link_name"]
        if not name:
            raise Conflict("The agent of %s has no TLS for links to other agents: set listen, tls_cert, tls_key and "
                           "tls_client_ca in its settings (the role magnetar.compute.agent does)." % self.host["name"])
        return str(name)

    def link_address(self) -> str:
        """host:port for the other agent."""
        host = self.address or self.client.host or self.host["name"]
        return "%s:%d" % ("[%s]" % host if ":" in host else host, self.host["link_port"])

    def open_migrations(self, server: Optional[str] = None) -> Sequence[dict[str, Any]]:
        """Halves that have not ended, of one server or of all."""
        query = {"server": server} if server else {}
        return [m for m in self.client.list("migration", **query) if m["status"] != "completed"]


class Migrate:
    """A server's way from *source* to *target*; ``steps`` does it. *wish*: ``type`` (auto, live, cold), OPTIONS, and
    ``becomes``: flavor and hardware that it has at the target, of a resize (cold only), and ``cards``: the card there
    of virtual functions, by MAC address.

    *id*: the uuid of both halves. Who keeps it can run the flow again while an agent still works on a first half that
    nobody sees yet; without it one is drawn."""

    def __init__(self, source: Side, target: Side, server: str, wish: Optional[dict[str, Any]] = None,
                 progress: Optional[Callable[[dict[str, Any]], None]] = None, timeout: Optional[float] = None,
                 id: Optional[str] = None) -> None:
        self.source, self.target, self.server = source, target, server
        self.wish = dict(wish or {})
        self.progress, self.timeout = progress, timeout
        self._given = id
        #: The uuid of both halves.
        self.id: Optional[str] = None
        self.resource: Optional[dict[str, Any]] = None
        #: What ``plan`` takes for granted.
        self.warnings: list[str] = []
        #: Whether the attempt before cannot be taken back.
        self._gone = False

    def plan(self) -> list[Step]:
        """What would be done: empty when the server is at the target for good. Raises what the agents refuse."""
        return [step for step, _do in self._planned(True)]

    def steps(self) -> Iterator[Step]:
        """Do it; yields each step before it is done."""
        for step, do in self._planned(False):
            yield step
            do()

    def _planned(self, dry: bool) -> Iterator[tuple[Step, Callable[[], Any]]]:
        here, there = self.source.find(self.server), self.target.find(self.server)
        found = here or there
        if found is None:
            raise NotFound("There is no server %r, neither on %s nor on %s." % (
                self.server, self.source.host["name"], self.target.host["name"]), kind="server", key=self.server)
        begun = {side: self._half(side, found["id"]) for side in (self.source, self.target)}
        if here is None and not any(begun.values()):
            return
        half = begun[self.source] or begun[self.target]
        if half and here and half["status"] in ("failed", "prepared") and self._type(here) != half["type"]:
            yield self._step("abort", "forget the attempt before"), self._forget
            if not self._gone:
                begun, half = {self.source: None, self.target: None}, None
        self.id = half["id"] if half else self._given or str(uuid.uuid4())
        if here is not None:
            yield from self._bring(here, begun, dry)
        yield self._step("settle", "settle at %s" % self.target.host["name"]), lambda: self._ensure(
            self.target, {"phase": "settled"})
        if here is not None or begun[self.source]:
            yield self._step("leave", "remove it from %s" % self.source.host["name"]), lambda: self._ensure(
                self.source, {"phase": "settled"})

    def _forget(self) -> None:
        try:
            abort(self.source, self.target, self.server)
        except Conflict:  # the guest has gone with it, so that attempt goes on
            self._gone = True

    def _half(self, side: Side, server: str) -> Optional[dict[str, Any]]:
        """The half that is not ended. One with another host is in the way."""
        other = self.target if side is self.source else self.source
        role = "source" if side is self.source else "target"
        for half in side.open_migrations(server):
            if half["side"] == role and half["peer"] == other.link_name():
                return half
            raise Conflict("Server %r is on its way %s %s (migration %s). Let that end, or abort it first." % (
                self.server, "to" if half["side"] == "source" else "from", half["peer"], half["id"]))
        return None

    def _bring(self, server: dict[str, Any], begun: dict[Side, Any], dry: bool) -> Iterator[tuple[Step, Any]]:
        half = begun[self.source]
        kind = half["type"] if half else self._type(server)
        options = {name: value if self.wish.get(name) is None else self.wish[name]
                   for name, value in Migration.defaults().items() if name in OPTIONS}
        want = {"server": server["id"], "name": server["name"], "side": "source", "type": kind,
                "peer": self.target.link_name(), "address": self.target.link_address(), **options}
        if half is None or half["status"] in ("failed", "prepared"):
            told = self.source.client.ensure("migration", str(self.id), want, dry_run=True)["resource"]["manifest"]
            come = {"server": server["id"], "name": server["name"], "side": "target", "type": kind,
                    "peer": self.source.link_name(), "address": self.source.link_address(),
                    "manifest": {**told, **{name: self.wish[name] for name in COMING if self.wish.get(name)}}}
            there = begun[self.target]
            if there is None or there["status"] == "failed":  # it has not let the source in
                if dry:
                    answer = self.target.client.ensure("migration", str(self.id), come, dry_run=True)
                    self.warnings += answer.get("warnings") or []
                yield self._step("prepare", "let it in at %s" % self.target.host["name"]), lambda: self._ensure(
                    self.target, come)
            yield self._step("claim", "keep others from it at %s" % self.source.host["name"]), lambda: self._ensure(
                self.source, want)
        yield self._step("move", "%s migration to %s" % (kind, self.target.host["name"])), lambda: self._ensure(
            self.source, dict(want, phase="moved"))

    def _type(self, server: dict[str, Any]) -> str:
        wished = self.wish.get("type") or "auto"
        if wished not in ("auto", "live", "cold"):
            raise InvalidField("type", "must be auto, live or cold", wished)
        if wished != "auto":
            return str(wished)
        return "live" if server["power_state"] in LIVE else "cold"

    def _ensure(self, side: Side, want: dict[str, Any]) -> None:
        answer = side.client.ensure("migration", str(self.id), want, timeout=self.timeout, progress=self.progress)
        self.resource = answer["resource"]

    @staticmethod
    def _step(verb: str, text: str) -> Step:
        return Step(verb, text)


def abort(source: Side, target: Side, server: str, dry_run: bool = False) -> list[Step]:
    """Take a migration between these two back: the server stays at the source. Empty when none is on its way. Raises
    ``Conflict`` when it has arrived already."""
    found = source.find(server) or target.find(server)
    if found is None:
        return []
    steps = []
    for side in (source, target):
        other = target if side is source else source
        for half in side.open_migrations(found["id"]):
            if not _is_with(half, other):
                continue
            steps.append(Step("abort", "abort at %s" % side.host["name"]))
            if not dry_run:
                _cancel(side.client, half["id"])
                side.client.delete("migration", half["id"])
    return steps


def _is_with(half: dict[str, Any], other: Side) -> bool:
    """Whether a half is of a migration with *other*, and not with a third host. One that is down is known by its
    address."""
    host = str(half["address"] or "").rpartition(":")[0].strip("[]")
    return bool(host and host == (other.address or other.client.host)) or half["peer"] == other.link_name()


def _cancel(client: Client, id: str) -> None:
    """Ask a running step to stop; its end is awaited by whoever removes the half."""
    for operation in client.list("operations", kind="migration", key=id, status="running"):
        with suppress(Conflict, NotFound):  # it has ended meanwhile
            client.cancel(operation["id"])
