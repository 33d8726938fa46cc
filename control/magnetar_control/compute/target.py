# SPDX-License-Identifier: GPL-3.0-or-later
"""The server that a use case is about, and what every such use case does first: policy, lock and state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

import orjson
from sqlalchemy import Connection

from magnetar_control.compute.flavors.hardware import tied_by
from magnetar_control.notifications import END, START, ActionFault, Initiator, ServerEvent, failed, key_of
from magnetar_control.store.engine.database import Database
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_hardware import tpm_security
from magnetar_core.actions import ACTIONS, ANY, ANY_TPM, rule_of
from magnetar_core.errors import Cancelled, Conflict, NotFound
from magnetar_core.hardware.merge import encrypts

from . import tpm_secrets
from .caller import Caller

#: Actions of the API whose notification is one, and has neither start nor end.
ATOMIC = ("lock", "unlock")
#: That of a server of which the API has set something that is no state of its guest.
UPDATE = "update"
P = ParamSpec("P")
R = TypeVar("R")


class Target(NamedTuple):
    """A server's row, and the database that has it."""

    database: Database
    row: servers.Found


def find(caller: Caller, id: str, *, deleted: bool = False, columns: frozenset[str] | None = None) -> Target:
    """The server, with *deleted* also when it is gone; *columns*: those of its row that are needed. Raises
    ``NotFound``, also for the server of another project unless the caller is an admin."""
    found = servers.find(caller.cloud.store, id, deleted=deleted, columns=columns) if len(id) == 36 else None
    if found is None or not visible(caller, found[1]):
        raise not_found(id)
    return Target(*found)


def visible(caller: Caller, row: Any) -> bool:
    """Whether the caller may know that a server exists: it is one of its project, or the caller is an admin."""
    return bool(row.project_id == caller.project or caller.is_admin)


def not_found(id: str) -> NotFound:
    """There is no such server, in Nova's words."""
    return NotFound(f"Instance {id[:80]} could not be found.")


def guard(caller: Caller, target: Target, key: str) -> None:
    """Raises ``Conflict`` when the server's lock, states or missing host do not let the action *key* be done, and
    ``Forbidden`` where it takes a secret of another user."""
    action, server = ACTIONS[key], target.row
    if action.locked:
        check_unlocked(caller, server)
    word = action.label or key
    if action.bare and server.shares != servers.NO_SHARES:
        raise Conflict(f"Cannot '{word}' instance {server.id}: it has shares, which bind it to its host. Detach them "
                       "first.")
    if action.starts:
        tpm_secrets.check_starts(caller, server, key)
    if action.tpm != ANY_TPM and (security := tpm_security(server)) and security not in action.tpm:
        why = (f"its secret is the {security}'s (hw:tpm_secret_security), and no other host could open it now. Migrate "
               "it cold (migrate)." if action.tpm else "what is in its TPM would not come along.")
        raise Conflict(f"Operation '{word}' not supported for vTPM-enabled instance ({server.id}): {why}")
    if action.copies and encrypts(orjson.loads(server.flavor), orjson.loads(server.image)) and not on_volume(server):
        raise Conflict(f"Operation '{word}' not supported for instance {server.id}, whose local disks are encrypted: "
                       "the image would hold what they hold in clear text.")
    if action.carries and (why := tied_by(server, live=action.kind == "live")):
        raise Conflict(f"Operation '{word}' not supported for instance {server.id}, which has {why}")
    if servers.allowed(server, key):
        return
    if action.states != ANY and server.vm_state not in action.states:
        raise Conflict(f"Cannot '{word}' instance {server.id} while it is in vm_state {server.vm_state}")
    if not action.during(server.task_state):
        raise Conflict(f"Cannot '{word}' instance {server.id} while it is in task_state {server.task_state}")
    raise Conflict(f"Instance {server.id} is not ready: it has no host, so '{word}' is not possible. Delete it; its "
                   "fault says why it got none.")


def on_volume(server: servers.Found) -> bool:
    """Whether its root disk is a volume, which has its own size whatever the flavor says."""
    return not server.image_id or any(one["boot_index"] == 0 for one in orjson.loads(server.volumes))


def check_unlocked(caller: Caller, server: servers.Found) -> None:
    """Raises ``Conflict`` when the server is locked and the caller is no admin."""
    if server.locked_by and not caller.is_admin:
        raise Conflict(f"Instance {server.id} is locked")


def enqueue(caller: Caller, target: Target, key: str, args: Mapping[str, Any] | None = None,
            also: Callable[[Connection], None] | None = None, message: str | None = None, **values: Any) -> None:
    """Put the action *key* into the queue of the conductors; set the server's columns *values*, and write what *also*
    writes, in the same transaction. *message*: of the action, a warning. Raises ``Conflict`` when the server has
    changed since it was read."""
    with target.database.write() as connection:
        done = servers.ask(connection, target.row, key, caller.request_id, caller.context.user_id, caller.project,
                           args, message, partial(tell_stopped, caller, target.row.id), **values)
        if not done:
            raise changed_meanwhile(target, key)
        if also:
            also(connection)
        target.database.ring(connection, servers.ACTIONS_BELL)


def changed_meanwhile(target: Target, key: str) -> Conflict:
    """The server has changed since it was read."""
    return Conflict(f"Cannot '{ACTIONS[key].label}' instance {target.row.id}: something else is being done to it. Try "
                    "again in a moment.")


def note_done(caller: Caller, target: Target, connection: Connection, key: str) -> None:
    """Note an action that is done already among the server's actions, and tell it."""
    servers.enqueue(connection, target.row.id, key, caller.request_id, caller.context.user_id, caller.project,
                    host=target.row.host, state="done")
    notify(caller, target, connection, ACTIONS[key].notification, *("",) if key in ATOMIC else (START, END))


def notify(caller: Caller, target: Target, connection: Connection, name: str = UPDATE, *phases: str,
           **args: Any) -> None:
    """Tell what the API has done to a server, in the transaction that did it. *args*: see ``payloads``."""
    notifications, phases = caller.cloud.notifications, phases or ("",)
    if notifications and name and (row := servers.row(connection, target.row.id)) is not None:
        who = Initiator(caller.request_id, caller.context.user_id, caller.project or None)
        notifications.add_server(connection, row._mapping,  # noqa: SLF001 - SQLAlchemy's name
                                 *(ServerEvent(name, phase, who, args) for phase in phases))


def tell_stopped(caller: Caller, server_id: str, connection: Connection, begun: Sequence[Any]) -> None:
    """Tell that actions of a server which had *begun* have ended: they waited in the queue, and were dropped in the
    transaction of *connection* for what their ``message`` says."""
    notifications = caller.cloud.notifications
    if not (notifications and begun) or (row := servers.row(connection, server_id, lock=True)) is None:
        return
    events = []
    for one in begun:
        action = ACTIONS[one.action]
        if action.notification:
            fault = ActionFault(Cancelled.__name__, Cancelled.__module__, one.message, action.event)
            events += failed(ServerEvent(
                action.notification, who=Initiator.of(one),
                args=orjson.loads(one.args), fault=fault, host=one.host, key=key_of(one)))
    notifications.add_server(connection, row._mapping, *events)  # noqa: SLF001 - SQLAlchemy's name


class ServerUseCase(Generic[P, R]):
    """A function of caller, target and more. A call checks the policy *rule* and, with *key*, that row of ``ACTIONS``
    first. A server that goes into another cell meanwhile is looked up again."""

    def __init__(self, function: Callable[Concatenate[Caller, Target, P], R], rule: str, key: str | None) -> None:
        self.function, self.rule, self.key = function, rule, key
        self.__doc__ = function.__doc__

    def __call__(self, caller: Caller, target: Target, *args: P.args, **named: P.kwargs) -> R:
        """Raises ``Forbidden``, ``Conflict``, and what the function raises."""
        try:
            return self._checked(caller, target, *args, **named)
        except servers.Moved:
            pass
        try:
            return self._checked(caller, find(caller, target.row.id), *args, **named)
        except servers.Moved:
            raise Conflict(f"Instance {target.row.id} goes to another cell just now. Try again in a moment.") from None

    def check_allowed(self, caller: Caller, target: Target) -> None:
        """Raises ``Forbidden``, ``Conflict``."""
        caller.check_policy(self.rule, target.row)
        if self.key:
            guard(caller, target, self.key)

    def _checked(self, caller: Caller, target: Target, *args: P.args, **named: P.kwargs) -> R:
        self.check_allowed(caller, target)
        return self.function(caller, target, *args, **named)


def of_server(key: str | None = None, rule: str | None = None) -> Callable[
        [Callable[Concatenate[Caller, Target, P], R]], ServerUseCase[P, R]]:
    """Make a function a use case of one server. *key*: its row of ``ACTIONS``. *rule*: its policy rule, when that is
    not the row's."""
    named = rule or rule_of(str(key))
    return lambda function: ServerUseCase(function, named, key)
