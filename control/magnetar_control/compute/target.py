# SPDX-License-Identifier: GPL-3.0-or-later
"""The server of a use case, and the first steps of every such use case: policy, lock and state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from sqlalchemy import Connection

from magnetar_control.compute.flavors.hardware import host_bound_hardware
from magnetar_control.notifications import END, START, ActionFault, Initiator, ServerEvent, action_key, failure_events
from magnetar_control.store.actions.action_row import StoppedAction
from magnetar_control.store.engine.database import Database
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_control.store.servers.servers import server_tpm_security
from magnetar_core.actions import ACTIONS, ANY, ANY_TPM, policy_rule_of_action
from magnetar_core.adoption import REFUSED_ACTIONS, refused_for_adopted
from magnetar_core.errors import Cancelled, Conflict, NotFound
from magnetar_core.hardware.merge import encrypts_disks

from . import tpm_secrets
from .caller import Caller

#: Actions of the API with a single notification instead of start and end.
ATOMIC = ("lock", "unlock")
#: The notification of a server after the API has set a column that is no state of its guest.
UPDATE = "update"
P = ParamSpec("P")
R = TypeVar("R")


class ServerTarget(NamedTuple):
    """A server to which a request applies: its row, and the database that stores the row."""

    database: Database
    row: ServerRow


def find_server_target(caller: Caller, id: str, *, deleted: bool = False,
                       columns: frozenset[str] | None = None) -> ServerTarget:
    """Return the server *id*. *deleted*: also find a deleted server. *columns*: the columns to read; ``None``: all.
    Raises ``NotFound``, also for the server of another project unless the caller is an admin."""
    located_server = servers.find_server_row(caller.cloud.store, id, deleted=deleted,
                                             columns=columns) if len(id) == 36 else None
    if located_server is None or not is_visible_to(caller, located_server[1]):
        raise server_not_found(id)
    return ServerTarget(*located_server)


def is_visible_to(caller: Caller, row: Any) -> bool:
    """Return whether the caller may see the server: it belongs to the caller's project, or the caller is an admin."""
    return bool(row.project_id == caller.project or caller.is_admin)


def server_not_found(id: str) -> NotFound:
    """Return the error that the server *id* does not exist, with Nova's message."""
    return NotFound(f"Instance {id[:80]} could not be found.")


def check_action_allowed(caller: Caller, target: ServerTarget, key: str) -> None:
    """Raise ``Conflict`` when the action *key* is impossible because of the server's lock, states, hardware or missing
    host. Raise ``Forbidden`` when the action needs a TPM secret of another user."""
    action, server = ACTIONS[key], target.row
    if action.locked:
        check_unlocked(caller, server)
    if action.starts:
        tpm_secrets.check_tpm_start(caller, server, key)
    check_server_carries(server, key)
    if servers.action_is_allowed(server, key):
        return
    label = action.label or key
    if action.states != ANY and server.vm_state not in action.states:
        raise Conflict(f"Cannot '{label}' instance {server.id} while it is in vm_state {server.vm_state}")
    if not action.during(server.task_state):
        raise Conflict(f"Cannot '{label}' instance {server.id} while it is in task_state {server.task_state}")
    raise Conflict(f"Instance {server.id} is not ready: it has no host, so '{label}' is not possible. Delete it; its "
                   "fault says why it got none.")


def check_server_carries(server: ServerRow, key: str) -> None:
    """Raise ``Conflict`` when the action *key* cannot save or move something that the server has: shares, a TPM,
    encrypted disks, or hardware of its host. Raise it also for an adopted server (an existing libvirt domain, which
    Magnetar does not change) if *key* is in ``REFUSED_ACTIONS``."""
    action = ACTIONS[key]
    label = action.label or key
    if key in REFUSED_ACTIONS and servers.is_adopted_server(server):
        raise refused_for_adopted(server.name, REFUSED_ACTIONS[key])
    if action.bare and server.stored.shares != servers.NO_SHARES:
        raise Conflict(f"Cannot '{label}' instance {server.id}: it has shares, which bind it to its host. Detach them "
                       "first.")
    if action.tpm != ANY_TPM and (security := server_tpm_security(server)) and security not in action.tpm:
        why = (f"its secret is the {security}'s (hw:tpm_secret_security), and no other host could open it now. Migrate "
               "it cold (migrate)." if action.tpm else "what is in its TPM would not come along.")
        raise Conflict(f"Operation '{label}' not supported for vTPM-enabled instance ({server.id}): {why}")
    if action.copies and encrypts_disks(server.flavor,
                                        server.image) and not boots_from_volume(server):
        raise Conflict(f"Operation '{label}' not supported for instance {server.id}, whose local disks are encrypted: "
                       "the image would hold what they hold in clear text.")
    if action.carries and (why := host_bound_hardware(server, live=action.kind == "live")):
        raise Conflict(f"Operation '{label}' not supported for instance {server.id}, which has {why}")


def boots_from_volume(server: ServerRow) -> bool:
    """Return whether the server's root disk is a volume. If so, the flavor does not determine the size of the root
    disk."""
    return not server.image_id or any(attachment["boot_index"] == 0 for attachment in server.volumes)


def check_unlocked(caller: Caller, server: ServerRow) -> None:
    """Raise ``Conflict`` when the server is locked and the caller is not an admin."""
    if server.locked_by and not caller.is_admin:
        raise Conflict(f"Instance {server.id} is locked")


def enqueue_action(caller: Caller, target: ServerTarget, key: str, args: Mapping[str, Any] | None = None,
                   also: Callable[[Connection], None] | None = None, message: str | None = None, **values: Any) -> None:
    """Queue the action *key* and update the server's columns with *values* in the same transaction. *also*: a function
    that makes further changes in the transaction. *args*: the arguments of the action. *message*: a warning that is
    stored with the action. Raises ``Conflict`` when the server has changed since it was read."""
    with target.database.write() as connection:
        done = servers.request_server_action(connection, target.row, key, caller.request_id, caller.context.user_id,
                                             caller.project,
                                             args, message, partial(notify_stopped_actions, caller, target.row.id),
                                             **values)
        if not done:
            raise changed_meanwhile(target, key)
        if also:
            also(connection)
        target.database.notify(connection, servers.ACTIONS_CHANGED)


def changed_meanwhile(target: ServerTarget, key: str) -> Conflict:
    """Return the error that the action *key* is impossible because the server has changed since it was read."""
    return Conflict(f"Cannot '{ACTIONS[key].label}' instance {target.row.id}: something else is being done to it. Try "
                    "again in a moment.")


def note_done_action(caller: Caller, target: ServerTarget, connection: Connection, key: str) -> None:
    """Record the instance action *key* as done, because the API has already carried it out, and send its notifications.
    """
    servers.insert_action_row(connection, target.row.id, key, caller.request_id, caller.context.user_id, caller.project,
                              host=target.row.host, state="done")
    notify_server(caller, target, connection, ACTIONS[key].notification, *("",) if key in ATOMIC else (START, END))


def notify_server(caller: Caller, target: ServerTarget, connection: Connection, name: str = UPDATE, *phases: str,
                  **args: Any) -> None:
    """Send notifications that the API has changed a server, in the transaction *connection*. *name*, *phases*: the name
    and the phases (such as start and end) of the event, as in ``ServerEvent``; one notification is sent for each phase.
    *args*: values for the payload, such as old_state (see ``payloads``)."""
    notifications, phases = caller.cloud.notifications, phases or ("",)
    if notifications and name and (row := servers.fetch_server_row(connection, target.row.id)) is not None:
        who = Initiator(caller.request_id, caller.context.user_id, caller.project or None)
        notifications.add_server(connection, row,
                                 *(ServerEvent(name, phase, who, args) for phase in phases))


def notify_stopped_actions(caller: Caller, server_id: str, connection: Connection,
                           begun: Sequence[StoppedAction]) -> None:
    """Send notifications that the actions *begun* of a server have failed. *connection*: the transaction that has
    removed the actions from the queue. The ``message`` of each action is the reason."""
    notifications = caller.cloud.notifications
    if not (notifications and begun) or (row := servers.fetch_server_row(connection, server_id, lock=True)) is None:
        return
    events = []
    for stopped_action in begun:
        action = ACTIONS[stopped_action.action]
        if action.notification:
            fault = ActionFault(Cancelled.__name__, Cancelled.__module__, stopped_action.message, action.event)
            events += failure_events(ServerEvent(
                action.notification, who=Initiator.of(stopped_action),
                args=stopped_action.args, fault=fault, host=stopped_action.host,
                key=action_key(stopped_action)))
    notifications.add_server(connection, row, *events)


class ServerUseCase(Generic[P, R]):
    """An API operation on one server: a function of caller, target and further arguments. Each call first checks the
    policy *rule*. If *key* is set, it also checks whether the server's lock and states allow the action
    ``ACTIONS[key]``. If the server moves to another cell during the call, the call is repeated with the server's row in
    the new cell."""

    def __init__(self, function: Callable[Concatenate[Caller, ServerTarget, P], R], rule: str, key: str | None) -> None:
        self.function, self.rule, self.key = function, rule, key
        self.__doc__ = function.__doc__

    def __call__(self, caller: Caller, target: ServerTarget, *args: P.args, **named: P.kwargs) -> R:
        """Check that the caller may act on the server, then call the function and return its result. Raises
        ``Forbidden``, ``Conflict``, and the errors of the function."""
        try:
            return self._checked(caller, target, *args, **named)
        except servers.Moved:
            pass
        try:
            return self._checked(caller, find_server_target(caller, target.row.id), *args, **named)
        except servers.Moved:
            raise Conflict(f"Instance {target.row.id} goes to another cell just now. Try again in a moment.") from None

    def check_allowed(self, caller: Caller, target: ServerTarget) -> None:
        """Raise ``Forbidden`` when the policy does not allow the operation to the caller, ``Conflict`` when the
        server's lock or states do not allow it now."""
        caller.check_policy(self.rule, target.row)
        if self.key:
            check_action_allowed(caller, target, self.key)

    def _checked(self, caller: Caller, target: ServerTarget, *args: P.args, **named: P.kwargs) -> R:
        self.check_allowed(caller, target)
        return self.function(caller, target, *args, **named)


def server_use_case(key: str | None = None, rule: str | None = None) -> Callable[
        [Callable[Concatenate[Caller, ServerTarget, P], R]], ServerUseCase[P, R]]:
    """Return a decorator that turns a function into a ``ServerUseCase``. *key*: the key of the function's action in
    ``ACTIONS``. *rule*: the policy rule to check; by default the rule of the action."""
    named = rule or policy_rule_of_action(str(key))
    return lambda function: ServerUseCase(function, named, key)
