# SPDX-License-Identifier: GPL-3.0-or-later
"""The module migration, which moves a server to another host, or aborts the move."""

from __future__ import annotations

from ..core.errors import Conflict, InvalidField
from ..core.flows.migrate import OPTIONS, Migrate, Side, abort_host_migration
from ..core.http.client import Client
from ..core.kinds import Migration
from ..core.options import Option, client_arguments, name_options, requested_fields
from ..core.values import Choices, Text
from . import results
from .module import ABSENT, PRESENT, Module, checked_endpoint, get_resource


class MigrationModule(Module):
    """The module migration. It performs a migration between two agents, or requests a migration from a cloud."""

    name = "migration"
    tuning = tuple(f for f in Migration.settable() if f.name in OPTIONS)
    options = name_options(
        server=Option(Text(1, 255), "The server, by name or uuid.", required=True, aliases=("name", "id")),
        destination=Option(Text(1, 255), "Endpoint of the target agent; O(endpoint) is the source agent. Token and "
                           "certificates are used for both. In a cloud (O(cloud)), the name of a host.",
                           required=True),
        destination_address=Option(Text(1, 255), "Name or address of the agent at O(destination) for the agent at "
                                   "O(endpoint), if it differs from O(destination)."),
        type=Option(Choices("auto", "live", "cold"), "V(live) moves a running guest, V(cold) shuts it down, moves its "
                    "disks and starts it again there, V(auto) is live for running servers and cold for others.",
                    default="auto"),
        state=Option(Choices(PRESENT, ABSENT), "V(present): the server is at the destination. V(absent): a running "
                     "migration to it is aborted, and the server stays where it is.",
                     default=PRESENT),
    ) + tuning

    def execute(self, params, check_mode, diff_mode, client):
        if client.of_cloud:
            return self._in_cloud(params, check_mode, diff_mode, client)
        with Client(**dict(client_arguments(params), endpoint=checked_endpoint(params, "destination"))) as other:
            source, target = Side(client), Side(other, params["destination_address"])
            if params["state"] == ABSENT:
                steps = abort_host_migration(source, target, params["server"], check_mode)
                return {"changed": bool(steps), "actions": [step.verb for step in steps], "migration": None,
                        "server": source.find(params["server"])}
            return self._move(params, check_mode, diff_mode, source, target)

    def _in_cloud(self, params, check_mode, diff_mode, client):
        """Request from a cloud that a server moves to the host ``destination``, and return the module result. Raises
        ``InvalidField`` for options and states that are only possible with two agents.
        """
        for name in ("destination_address",) + tuple(f.option for f in self.tuning):
            if params.get(name) not in (None, False):
                raise InvalidField(name, "is for two agents; a cloud decides that itself")
        if params["state"] == ABSENT:
            raise InvalidField("state", "absent is for two agents; a migration of a cloud is aborted by its API")
        running = get_resource(client, "server", params["server"])["power"] in ("running", "paused")
        if params["type"] not in ("auto", "live" if running else "cold"):
            raise InvalidField("type", "is %s for a server that %s" % (
                ("live", "runs") if running else ("cold", "is off")), params["type"])
        answer = client.ensure("server", params["server"], {"host": params["destination"]}, dry_run=check_mode,
                               timeout=params["timeout"])
        result = results.module_result("server", params["server"], answer, diff_mode)
        return dict(result, migration=None)

    def _move(self, params, check_mode, diff_mode, source, target):
        wish = dict(requested_fields(self.tuning, params), type=params["type"])
        flow = Migrate(source, target, params["server"], wish, timeout=params["timeout"])
        server_before = source.find(params["server"])
        steps = flow.plan() if check_mode else list(flow.steps())
        server = server_before if check_mode and steps else target.find(params["server"])
        if server is None:
            raise Conflict("Server %r has been migrated and cannot be found at the destination: somebody removed it "
                           "meanwhile." % params["server"])
        result = {"changed": bool(steps), "actions": [step.verb for step in steps], "migration": flow.resource,
                  "server": dict(server, host=target.host["name"])}
        if flow.warnings:
            result["warnings"] = flow.warnings
        if diff_mode:
            where = {"before": source.host["name"] if steps else target.host["name"], "after": target.host["name"]}
            result["diff"] = {side: {"host": name} for side, name in where.items()}
            result["diff"].update({side + "_header": "server %s" % params["server"] for side in where})
        return result
