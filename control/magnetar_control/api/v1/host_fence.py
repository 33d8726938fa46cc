# SPDX-License-Identifier: GPL-3.0-or-later
"""host_fence: the fences of hosts, for administrators."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from magnetar_control.api.v1.servers.server_view import agent_timestamp
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.hosts import host_fences
from magnetar_control.compute.hosts.host_fences import HostFenceReport
from magnetar_control.store.hosts.fencings import FAILED, FENCED, UNFENCED
from magnetar_core.document import Document
from magnetar_core.errors import NotFound
from magnetar_core.kinds import HostFence
from magnetar_core.operations import Operation
from magnetar_core.plan import Result, Step

from .driver import CloudDriver, missing_host_error

#: Seconds between two looks at a request that a client waits for.
POLL = 0.2


class HostFences(CloudDriver):
    """The driver of the v1 API for host fences, which isolate a failed host, for example by power-off. Each host has
    one fence; lists show only hosts that were fenced at some time."""

    kind = HostFence

    def every(self, caller: Caller) -> list[Document]:
        return [_fence(report) for report in host_fences.list_host_fences(caller)]

    def find(self, caller: Caller, key: str) -> Document | None:
        try:
            return _fence(host_fences.show_host_fence(caller, key))
        except NotFound:
            return None

    def given(self, key: str, want: Document) -> Document:
        """Return the desired state *want* after a check. *key*: the name of the host. Raises ``InvalidField``."""
        return self.kind.check({"name": key, **want})

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with the name of the host. A host needs no unfencing if its last fencing has
        failed, and the host was not disabled and forced down. For a request to unfence such a host, the returned
        ``state`` is the current one, so that nothing changes. Raises ``NotFound`` for an unknown host."""
        if have is None:
            raise missing_host_error(want, self.kind.noun)
        usable = want["state"] == UNFENCED and have["state"] == FAILED and not have["_held"]
        return {**want, "name": have["name"], "state": have["state"] if usable else want["state"]}

    def plan(self, want: Document | None, have: Document | None) -> Iterator[Step]:
        """Yield the step that fences or unfences the host; no step if its state does not change."""
        if want is not None and have is not None and want["state"] != have["state"]:
            verb = "fence" if want["state"] == FENCED else "unfence"
            yield Step(verb, f"{verb} host {have['name']}")

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """Ask the conductors to fence or unfence the host, and wait until this is done. Cancelling the operation ends
        only the wait."""
        request = host_fences.request_host_fence(caller, have["name"], fence=want["state"] == FENCED,
                                                 confirmed=bool(want.get("confirmed")))
        with operation.waiting():
            while not host_fences.check_host_fence(caller, have["name"], request):
                operation.raise_if_cancelled()
                time.sleep(POLL)

    def removal(self, caller: Caller, have: Document | None, dry_run: bool, operation: Operation) -> Result:
        """Unfence the host, unless this is a dry run. Return the result with the steps."""
        if have is None:
            return Result([], [], None)
        want = self.complete(caller, {"state": UNFENCED}, have)
        steps = list(self.plan(want, have))
        if steps and not dry_run:
            self.change(caller, have, want, ["state"], operation)
        changes = [{"path": "state", "old": have["state"], "new": want["state"]}] if steps else []
        return Result(steps, changes, self.public(have))


def _fence(report: HostFenceReport) -> Document:
    """Return the fence of a host in the format of the v1 API."""
    row: Any = report.fencing
    columns = ("requested_at", "confirmed_at", "ended_at")
    return {"id": report.host.id, "name": report.host.name, "state": row.state if row else UNFENCED,
            "agent": row and row.agent, "message": (row and row.message) or None,
            "requested_by": row and row.requested_by, "_held": bool(row and row.holds_host),
            **{column: agent_timestamp(getattr(row, column)) if row else None for column in columns}}
