# SPDX-License-Identifier: GPL-3.0-or-later
"""One-shots that are no state: reboot. Done at most once: the request id is on disk before anything is done.

A delivery that finds its id with an answer gets that answer; one that finds it without (the agent died in between)
is told so, since doing it again might do it twice.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent import hypervisor as hv
from magnetar_agent.documents import Document, now, write_atomically
from magnetar_agent.migrations import refuse_while_it_moves
from magnetar_agent.operations import Operation
from magnetar_agent.reconcile import show
from magnetar_core.errors import Conflict, InvalidField, NotFound
from magnetar_core.fields import Field, Kind
from magnetar_core.values import Choices

if TYPE_CHECKING:
    from magnetar_agent.agent import Agent

log = logging.getLogger(__name__)

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Reboot(Kind):
    """Arguments of a reboot."""

    type = Field(Choices("soft", "hard"), "soft asks the guest and falls back to hard; hard presses reset.",
                 default="soft")


def reboot(agent: Agent, document: Document, args: Mapping[str, Any], operation: Operation) -> None:
    """Nova's reboot (ACT: SOFT from running only; HARD also starts what is off). Follows Nova: soft falls back."""
    domain = agent.hypervisor.domain(document.id)
    state = domain.state if domain else "missing"
    if args["type"] == "soft" and state == hv.RUNNING:
        agent.hypervisor.reboot(document.id)
        if _rebooted(agent, document.id, operation):
            return
        log.warning("server %s did not reboot by itself; reset", document.name)
    elif args["type"] == "soft" or state in ("missing", hv.SUSPENDED):
        raise Conflict(f"A {args['type']} reboot needs a running server, and {document.name!r} is {state}. "
                       "Start it instead.", power_state=state)
    if state == hv.RUNNING:
        agent.hypervisor.reset(document.id)
        return
    agent.hypervisor.destroy(document.id)
    document.want["power"] = hv.RUNNING
    document.state.pop("reason", None)
    document.state.pop("crashed", None)
    agent.documents.write(document)
    agent.hypervisor.start(document.id)


def _rebooted(agent: Agent, id: str, operation: Operation) -> bool:
    """Whether the guest rebooted within the time that a shutdown may take."""
    deadline = time.monotonic() + agent.settings.shutdown_timeout
    seen = agent.reboots.get(id, 0)
    while time.monotonic() < deadline:
        if agent.reboots.get(id, 0) != seen:
            return True
        operation.check()
        agent.changes.wait(id, 0.5)
    return agent.reboots.get(id, 0) != seen


EVENTS: Mapping[str, tuple[type[Kind], Callable[..., None]]] = {"reboot": (Reboot, reboot)}


def event(agent: Agent, kind: type[Kind], key: str, name: str, args: Mapping[str, Any], request_id: str,
          operation: Operation) -> dict[str, Any]:
    """Do the one-shot *name* on resource *key*, once per *request_id*. Answer: ``{"done": true, "resource": …}``."""
    if kind.noun != "server" or name not in EVENTS:
        raise InvalidField("event", f"must be one of {', '.join(EVENTS)}, on a server", name)
    if not REQUEST_ID.fullmatch(request_id):
        raise InvalidField("request_id", "must have 1 to 128 letters, digits, dots, hyphens or underscores")
    rule, verb = EVENTS[name]
    checked = {**rule.defaults(), **rule.check(dict(args))}
    document = agent.documents.find(kind.noun, key)
    if document is None:
        raise NotFound(f"There is no {kind.noun} {key!r} on this host.", kind=kind.noun, key=key)
    journal = _Journal(Path(agent.settings.state_dir) / "events", agent.settings.event_keys_kept)
    with agent.locks.hold(kind.noun, document.id):
        entry = {"event": name, "args": checked, "server": document.id, "at": now()}
        if journal.done(request_id, entry):
            return {"done": True, "resource": show(agent, kind, document.id)}
        journal.begin(request_id, entry)
        try:
            refuse_while_it_moves(agent.documents.get(kind.noun, document.id))
            verb(agent, agent.documents.get(kind.noun, document.id), checked, operation)
        except Conflict:
            journal.drop(request_id)  # refused before anything was done
            raise
        journal.end(request_id, entry)
    return {"done": True, "resource": show(agent, kind, document.id)}


class _Journal:
    """Request ids of one-shots, one small file each; the oldest go when there are more than *kept*."""

    def __init__(self, folder: Path, kept: int) -> None:
        self.folder, self.kept = folder, kept
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def done(self, request_id: str, entry: dict[str, Any]) -> bool:
        """Whether this request was done; raises ``Conflict`` when its end is unknown, or it was another request."""
        try:
            found = json.loads((self.folder / request_id).read_text())
        except OSError:
            return False
        if any(found[name] != entry[name] for name in ("event", "args", "server")):
            raise Conflict(f"The request id {request_id} was used for another event. Use a new one.")
        if not found.get("ended"):
            raise Conflict(f"The {entry['event']} of request {request_id} was begun at {found['at']}, and the agent "
                           "stopped before it ended. It is not repeated; look at the server, and use a new request id.")
        return True

    def begin(self, request_id: str, entry: dict[str, Any]) -> None:
        """Keep the id before anything is done."""
        write_atomically(self.folder / request_id, json.dumps(entry).encode())
        if not hash(request_id) % 100:
            self._trim()

    def end(self, request_id: str, entry: dict[str, Any]) -> None:
        """It is done."""
        write_atomically(self.folder / request_id, json.dumps({**entry, "ended": now()}).encode())

    def drop(self, request_id: str) -> None:
        """It was refused; the id may come again."""
        (self.folder / request_id).unlink(missing_ok=True)

    def _trim(self) -> None:
        found = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in found[: max(0, len(found) - self.kept)]:
            path.unlink(missing_ok=True)
