# SPDX-License-Identifier: GPL-3.0-or-later
"""One-shots that are no state, such as a reboot. Done at most once: the request id is on disk before anything is done.

A delivery that finds its id with an answer gets that answer; one that finds it without (the agent died in between)
is told so, since doing it again might do it twice. Actions that know what they have done are carried on instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.migrations import discard, force_complete, refuse_while_it_moves
from magnetar_agent.servers import actions
from magnetar_agent.servers.actions import ACTIONS
from magnetar_core.errors import Conflict, InvalidField, NotFound
from magnetar_core.fields import Kind
from magnetar_core.operations import now

from .documents import write_atomically
from .reconcile import show

if TYPE_CHECKING:
    from magnetar_agent.drivers import Drivers
    from magnetar_agent.host.host import LocalHost
    from magnetar_core.operations import Operation

#: It is the name of a file.
REQUEST_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,128}")


#: Those of migrations, which may be done twice and so need no request id.
OF_MIGRATIONS: Mapping[str, Callable[[LocalHost, str], None]] = {
    force_complete.EVENT: force_complete.force_complete, discard.EVENT: discard.discard}


def check_name(kind: type[Kind], name: str) -> None:
    """Raises ``InvalidField`` where there is no event *name* of the *kind*."""
    known: Mapping[str, Collection[str]] = {"server": ACTIONS, "migration": OF_MIGRATIONS}
    if name not in known.get(kind.noun, ()):
        noun = kind.noun if kind.noun in known else "server"
        raise InvalidField("event", f"must be one of {', '.join(known[noun])}, on a {noun}", name)


def event(drivers: Drivers, kind: type[Kind], key: str, name: str, args: Mapping[str, Any], request_id: str,
          operation: Operation) -> dict[str, Any]:
    """Do the one-shot *name* on resource *key*, once per *request_id*.

    Answer: ``{"done": true, "resource": …}`` and what the action says besides (``actions``).
    """
    check_name(kind, name)
    if kind.noun == "migration":
        OF_MIGRATIONS[name](drivers.host, key)
        left = drivers.host.documents.look("migration", key)
        return {"done": True, "resource": show(drivers, kind, key) if left else None}
    if not REQUEST_ID.fullmatch(request_id):
        raise InvalidField("request_id", "must have 1 to 128 letters, digits, dots, hyphens or underscores, "
                                         "and not be . or ..")
    action, given = ACTIONS[name], actions.checked(name, args)
    document = drivers.host.documents.find(kind.noun, key)
    if document is None:
        raise NotFound(f"There is no {kind.noun} {key!r} on this host.", kind=kind.noun, key=key)
    journal = _Journal(Path(drivers.host.settings.state_dir) / "events", drivers.host.settings.event_keys_kept)
    with ExitStack() as held:
        with operation.waiting() if action.lock != kind.noun else nullcontext():  # for a guest, maybe
            held.enter_context(drivers.host.locks.hold(action.lock, document.id))
        again = drivers.host.documents.get(kind.noun, document.id)
        if again is None or again.deleting:
            raise NotFound(f"{kind.noun} {document.name!r} was removed in the meantime.", kind=kind.noun, key=key)
        # What is secret is not kept, not even as a digest: a password could be guessed from one.
        plain = {field: value for field, value in given.items() if field not in action.rule.secrets()}
        entry = {"event": name, "args": plain, "server": document.id, "at": now()}
        found = journal.ended(request_id, entry, action.again(given))
        if found is None:
            journal.begin(request_id, entry)
            try:
                refuse_while_it_moves(drivers.host, again)
                found = action.act(actions.EventCall(drivers, again, given, operation, request_id))
            except (Conflict, InvalidField):
                journal.drop(request_id)  # refused before anything was done
                raise
            journal.end(request_id, entry, found)
    return {"done": True, **found, "resource": show(drivers, kind, document.id)}


class _Journal:
    """Request ids of one-shots, one small file each; the oldest go when there are more than *kept*."""

    def __init__(self, folder: Path, kept: int) -> None:
        self.folder, self.kept = folder, kept
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def ended(self, request_id: str, entry: dict[str, Any], again: bool) -> dict[str, Any] | None:
        """What this request answered; ``None`` when it is to be done. Raises ``Conflict`` when its end is unknown and
        it may not be done *again*, or when it was another request."""
        try:
            found: dict[str, Any] = json.loads((self.folder / request_id).read_text())
        except OSError:
            return None
        if any(found[name] != entry[name] for name in ("event", "args", "server")):
            raise Conflict(f"The request id {request_id} was used for another event. Use a new one.")
        if not found.get("ended"):
            if again:
                return None
            raise Conflict(f"The {entry['event']} of request {request_id} was begun at {found['at']}, and the agent "
                           "stopped before it ended. It is not repeated; look at the server, and use a new request id.")
        return dict(found.get("answer") or {})

    def begin(self, request_id: str, entry: dict[str, Any]) -> None:
        """Keep the id before anything is done."""
        write_atomically(self.folder / request_id, json.dumps(entry).encode())
        if not hash(request_id) % 100:
            self._trim()

    def end(self, request_id: str, entry: dict[str, Any], answer: dict[str, Any]) -> None:
        """Note that it is done, with its *answer*."""
        content = {**entry, "ended": now(), "answer": answer}
        write_atomically(self.folder / request_id, json.dumps(content).encode())

    def drop(self, request_id: str) -> None:
        """Forget the id: the event was refused."""
        (self.folder / request_id).unlink(missing_ok=True)

    def _trim(self) -> None:
        found = sorted(self.folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in found[: max(0, len(found) - self.kept)]:
            path.unlink(missing_ok=True)
