# SPDX-License-Identifier: GPL-3.0-or-later
"""host_maintenance: drains of hosts, for administrators."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from magnetar_control.api.v1.servers.server_view import agent_timestamp
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.drains import drains
from magnetar_control.compute.drains.drains import WAITING, DrainReport, ServerOfDrain
from magnetar_control.store.hosts.drains import ENDING, MOVED, MOVING, STAYS
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, NotFound
from magnetar_core.kinds import HostMaintenance
from magnetar_core.operations import Operation
from magnetar_core.plan import Result, Step

from .driver import CloudChange, CloudDriver, missing_host_error

#: Seconds between two looks at a drain that a request waits for.
POLL = 0.5
MAINTENANCE, ENABLED = "maintenance", "enabled"


class HostMaintenances(CloudDriver):
    """The driver of the v1 API for host maintenance: it drains a host, that is, disables it and moves its servers away.
    Each host has one maintenance object; lists show only the hosts that are drained."""

    kind = HostMaintenance

    def every(self, caller: Caller) -> list[Document]:
        return [_maintenance(report) for report in drains.list_drains(caller)]

    def find(self, caller: Caller, key: str) -> Document | None:
        try:
            return _maintenance(drains.show_drain(caller, key))
        except NotFound:
            return None

    def ensure(self, caller: Caller, key: str, want: Document | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        """Override ``CloudDriver.ensure``: do not lock the key, because a request may wait for hours until the host is
        drained, and another request must be able to end the drain."""
        have = self.find(caller, key)
        if want is None:
            return self.removal(caller, have, dry_run, operation)
        return CloudChange(self, caller, self.given(key, want), permissions, dry_run, operation).run(have)

    def given(self, key: str, want: Document) -> Document:
        """Return the desired state *want* after a check. *key*: the name of the host. Raises ``InvalidField``, also for
        a ``reason`` together with the state enabled."""
        checked = self.kind.check({"name": key, **want})
        if checked["state"] == ENABLED and checked.get("reason") is not None:
            raise InvalidField("reason", "goes with state maintenance")
        return checked

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with the added key ``_planned``: the servers of the host, and how the drain
        would move each of them. Raises ``NotFound`` for an unknown host."""
        if have is None:
            raise missing_host_error(want, self.kind.noun)
        if want["state"] == ENABLED:
            return {**want, "reason": None, "_planned": []}
        return {**want, "reason": want.get("reason") or drains.REASON,
                "_planned": drains.plan_drain(caller, have["name"])}

    def plan(self, want: Document | None, have: Document | None) -> Iterator[Step]:
        """Yield the step that disables or enables the compute service, then a step for each server that the drain
        moves."""
        if want is None or have is None:
            return
        if want["state"] != have["state"]:
            yield Step("disable" if want["state"] == MAINTENANCE else "enable", f"{want['state']} host {have['name']}")
        for server in want["_planned"]:
            if server.state != STAYS:
                yield Step("move", f"move server {server.name}, {server.how}", server=server.id)

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        shown = super().predicted(caller, want, have)
        if have is None or want["state"] == ENABLED:
            return shown
        moves = [_render_drained_server(server) for server in want["_planned"] if server.state != STAYS]
        return {**shown, "moved": [*have["moved"], *moves], "moving": [], "waiting": [],
                "stays": [_render_drained_server(server) for server in want["_planned"] if server.state == STAYS]}

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """End the drain if the state in *want* is enabled; otherwise begin the drain, and wait until the drain is
        complete. Cancelling the operation ends only the wait, not the drain."""
        name = have["name"]
        if want["state"] == ENABLED:
            drains.end_drain(caller, name)
            return
        drains.start_drain(caller, name, want["reason"])
        drain = drains.show_drain(caller, name).drain
        begun = drain.round if drain is not None else 0
        with operation.waiting():
            while not drains.check_progress(report := drains.show_drain(caller, name), begun):
                left = len(report.in_state(WAITING)) + len(report.in_state(MOVING))
                operation.advance(len(report.servers) - left, len(report.servers), "servers", "moving servers")
                time.sleep(POLL)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """End the drain of the host, and enable the host for new servers."""
        drains.end_drain(caller, have["name"])


def _maintenance(report: DrainReport) -> Document:
    """Return the maintenance of a host, with the progress of its drain, in the format of the v1 API."""
    drain, host = report.drain, report.host
    drained = drain is not None and drain.state != ENDING
    servers = {field: [_render_drained_server(server) for server in report.in_state(state)] for field, state in (
        ("moved", MOVED), ("stays", STAYS), ("moving", MOVING), ("waiting", WAITING))}
    state = MAINTENANCE if drained else "disabled" if host.disabled else ENABLED
    return {"id": host.id, "name": host.name, "state": state,
            "reason": host.disabled_reason, "drain": drain and drain.state, "message": drain and drain.message,
            **servers, "volumes": report.volumes, "started_at": drain and agent_timestamp(drain.started_at),
            "finished_at": drain and agent_timestamp(drain.finished_at)}


def _render_drained_server(server: ServerOfDrain) -> Document:
    """Return *server*, a server of a drained host, in the format of the v1 API: all fields that are not empty, except
    ``state``."""
    return {name: value for name, value in server._asdict().items() if value and name != "state"}
