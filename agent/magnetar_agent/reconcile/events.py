# SPDX-License-Identifier: GPL-3.0-or-later
"""Events: actions, such as a reboot, that are not part of a resource's desired state.

An event is done at most once: its request id is on disk before anything is done. A repeated request whose id has an
answer gets that answer; without an answer (the agent died in between) it gets an error, since the action might be done
twice. Actions that recognise their own progress are continued instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.migrations import discard, refuse_while_it_moves, source
from magnetar_agent.servers import actions
from magnetar_agent.servers.actions import ACTIONS
from magnetar_agent.servers.adoption import adopted
from magnetar_agent.volumes import adoption
from magnetar_core.errors import Conflict, InvalidField, NotFound
from magnetar_core.fields import Kind
from magnetar_core.operations import utc_timestamp

from .documents import write_atomically
from .reconcile import show_resource

if TYPE_CHECKING:
    from magnetar_agent.drivers import Drivers
    from magnetar_agent.host.host import LocalHost
    from magnetar_core.operations import Operation

#: Pattern of a request id, which is the name of a file.
REQUEST_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,128}")


#: Events of other kinds than servers: they may be repeated and so need no request id.
REPEATABLE: Mapping[str, Mapping[str, Callable[[LocalHost, str], None]]] = {
    "migration": {source.FORCE_COMPLETE: source.force_live_migration, discard.EVENT: discard.discard_migration},
    "volume": {adoption.RELEASE: adoption.release_volume}}


def check_event_name(kind: type[Kind], name: str) -> None:
    """Raise ``InvalidField`` if resources of type *kind* have no event (action such as reboot) named *name*."""
    events_by_kind: Mapping[str, Collection[str]] = {"server": ACTIONS, **REPEATABLE}
    if name not in events_by_kind.get(kind.noun, ()):
        noun = kind.noun if kind.noun in events_by_kind else "server"
        raise InvalidField("event", f"must be one of {', '.join(events_by_kind[noun])}, on a {noun}", name)


def perform_event(drivers: Drivers, kind: type[Kind], key: str, name: str, args: Mapping[str, Any], request_id: str,
                  operation: Operation) -> dict[str, Any]:
    """Perform the event (action such as reboot) *name* with the arguments *args* on the resource *key* (uuid or name),
    only once for each *request_id*. Return ``{"done": true, "resource": …}`` and additional fields that the event
    returns."""
    check_event_name(kind, name)
    if kind.noun in REPEATABLE:
        REPEATABLE[kind.noun][name](drivers.host, key)
        remaining = drivers.host.documents.peek_by_id(kind.noun, key)
        return {"done": True, "resource": show_resource(drivers, kind, key) if remaining else None}
    if not REQUEST_ID.fullmatch(request_id):
        raise InvalidField("request_id", "must have 1 to 128 letters, digits, dots, hyphens or underscores, "
                                         "and not be . or ..")
    action, checked_args = ACTIONS[name], actions.check_event_args(name, args)
    document = drivers.host.documents.find(kind.noun, key)
    if document is None:
        raise NotFound(f"There is no {kind.noun} {key!r} on this host.", kind=kind.noun, key=key)
    journal = _Journal(Path(drivers.host.settings.state_dir) / "events", drivers.host.settings.event_keys_kept)
    with ExitStack() as locks:
        with operation.waiting() if action.lock != kind.noun else nullcontext():  # it may wait for a guest
            locks.enter_context(drivers.host.locks.hold(action.lock, document.id))
        again = drivers.host.documents.get(kind.noun, document.id)
        if again is None or again.deleting:
            raise NotFound(f"{kind.noun} {document.name!r} was removed in the meantime.", kind=kind.noun, key=key)
        # Secrets are not kept, not even as a digest: a password could be guessed from one.
        plain = {field: value for field, value in checked_args.items() if field not in action.rule.secrets()}
        entry = {"event": name, "args": plain, "server": document.id, "at": utc_timestamp()}
        answer = journal.ended(request_id, entry, action.again(checked_args))
        if answer is None:
            journal.begin(request_id, entry)
            try:
                refuse_while_it_moves(drivers.host, again)
                adopted.check_event(again, name)
                answer = action.act(actions.EventCall(drivers, again, checked_args, operation, request_id))
            except (Conflict, InvalidField):
                journal.drop(request_id)  # refused before anything was done
                raise
            journal.end(request_id, entry, answer)
    return {"done": True, **answer, "resource": show_resource(drivers, kind, document.id)}


class _Journal:
    """The records of performed events, one small file per request id, to recognise repeated requests. The oldest files
    are removed when there are more than *max_keys*."""

    def __init__(self, folder: Path, max_keys: int) -> None:
        self.folder, self.kept = folder, max_keys
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def ended(self, request_id: str, entry: dict[str, Any], again: bool) -> dict[str, Any] | None:
        """Return the recorded answer of the request *request_id* if its event is done; ``None`` if the event must be
        performed. *entry*: the request's event, arguments and server.

        *again*: whether the event may be repeated if a crash has interrupted it; if not, raise ``Conflict`` for an
        interrupted event. Also raise ``Conflict`` if the request id was used for another event.
        """
        try:
            recorded: dict[str, Any] = json.loads((self.folder / request_id).read_text())
        except OSError:
            return None
        if any(recorded[name] != entry[name] for name in ("event", "args", "server")):
            raise Conflict(f"The request id {request_id} was used for another event. Use a new one.")
        if not recorded.get("ended"):
            if again:
                return None
            raise Conflict(f"The {entry['event']} of request {request_id} was begun at {recorded['at']}, and the agent "
                           "stopped before it ended. It is not repeated; look at the server, and use a new request id.")
        return dict(recorded.get("answer") or {})

    def begin(self, request_id: str, entry: dict[str, Any]) -> None:
        """Record the request on disk before its event is performed. *entry*: event, arguments, server and time."""
        write_atomically(self.folder / request_id, json.dumps(entry).encode())
        if not hash(request_id) % 100:
            self._trim()

    def end(self, request_id: str, entry: dict[str, Any], answer: dict[str, Any]) -> None:
        """Record that the event of the request is done, with its *answer*. *entry*: as for ``begin``."""
        content = {**entry, "ended": utc_timestamp(), "answer": answer}
        write_atomically(self.folder / request_id, json.dumps(content).encode())

    def drop(self, request_id: str) -> None:
        """Remove the record of a request whose event was refused."""
        (self.folder / request_id).unlink(missing_ok=True)

    def _trim(self) -> None:
        paths = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in paths[: max(0, len(paths) - self.kept)]:
            path.unlink(missing_ok=True)
