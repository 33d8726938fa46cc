# SPDX-License-Identifier: GPL-3.0-or-later
"""migration: a server is on another host, or stays where it is."""

from __future__ import annotations

from ..core.errors import Conflict, InvalidField
from ..core.flows.migrate import OPTIONS, Migrate, Side, abort
from ..core.http.client import Client
from ..core.kinds import Migration
from ..core.options import Option, client_arguments, collect, given
from ..core.values import Choices, Text
from . import results
from .module import ABSENT, PRESENT, Module, endpoint_of, find


class MigrationModule(Module):
    """Coordinates a migration between two agents, or asks a cloud for one."""

    name = "migration"
    tuning = tuple(f for f in Migration.settable() if f.name in OPTIONS)
    options = collect(
        server=Option(Text(1, 255), "The server, by name or uuid.", required=True, aliases=("name", "id")),
        destination=Option(Text(1, 255), "Endpoint of the agent that is to have the server, as O(endpoint) names the "
                           "one that has it. Token and certificates are used for both. In a cloud (O(cloud)), the name "
                           "of a host.", required=True),
        destination_address=Option(Text(1, 255), "Name or address by which the agent at O(endpoint) reaches the one at "
                                   "O(destination), when that is another than in O(destination)."),
        type=Option(Choices("auto", "live", "cold"), "V(live) moves a running guest, V(cold) shuts it down, moves its "
                    "disks and starts it again there, V(auto) is live for what runs and cold for what is off.",
                    default="auto"),
        state=Option(Choices(PRESENT, ABSENT), "V(present): the server is at the destination. V(absent): no migration "
                     "to it is on its way; one that is gets aborted, and the server stays where it is.",
                     default=PRESENT),
    ) + tuning

    def execute(self, params, check_mode, diff_mode, client):
        if client.of_cloud:
            return self._in_cloud(params, check_mode, diff_mode, client)
        with Client(**dict(client_arguments(params), endpoint=endpoint_of(params, "destination"))) as other:
            source, target = Side(client), Side(other, params["destination_address"])
            if params["state"] == ABSENT:
                steps = abort(source, target, params["server"], check_mode)
                return {"changed": bool(steps), "actions": [step.verb for step in steps], "migration": None,
                        "server": source.find(params["server"])}
            return self._move(params, check_mode, diff_mode, source, target)

    def _in_cloud(self, params, check_mode, diff_mode, client):
        """A cloud moves the server itself; the destination is the name of a host."""
        for name in ("destination_address",) + tuple(f.option for f in self.tuning):
            if params.get(name) not in (None, False):
                raise InvalidField(name, "is for two agents; a cloud decides that itself")
        if params["state"] == ABSENT:
            raise InvalidField("state", "absent is for two agents; a migration of a cloud is aborted by its API")
        running = find(client, "server", params["server"])["power"] in ("running", "paused")
        if params["type"] not in ("auto", "live" if running else "cold"):
            raise InvalidField("type", "is %s for a server that %s" % (
                ("live", "runs") if running else ("cold", "is off")), params["type"])
        answer = client.ensure("server", params["server"], {"host": params["destination"]}, dry_run=check_mode,
                               timeout=params["timeout"])
        found = results.changed("server", params["server"], answer, diff_mode)
        return dict(found, migration=None)

    def _move(self, params, check_mode, diff_mode, source, target):
        wanted = dict(given(self.tuning, params), type=params["type"])
        flow = Migrate(source, target, params["server"], wanted, timeout=params["timeout"])
        before = source.find(params["server"])
        steps = flow.plan() if check_mode else list(flow.steps())
        server = before if check_mode and steps else target.find(params["server"])
        if server is None:
            raise Conflict("Server %r has been migrated and cannot be found at the destination: somebody removed it "
                           "meanwhile." % params["server"])
        found = {"changed": bool(steps), "actions": [step.verb for step in steps], "migration": flow.resource,
                 "server": dict(server, host=target.host["name"])}
        if flow.warnings:
            found["warnings"] = flow.warnings
        if diff_mode:
            where = {"before": source.host["name"] if steps else target.host["name"], "after": target.host["name"]}
            found["diff"] = {side: {"host": name} for side, name in where.items()}
            found["diff"].update({side + "_header": "server %s" % params["server"] for side in where})
        return found
