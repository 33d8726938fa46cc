# SPDX-License-Identifier: GPL-3.0-or-later
"""Server actions, requested one after the other; each is complete before the next."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from magnetar_control.compute.attachments import interfaces
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.proxies import security_groups
from magnetar_control.compute.servers import metadata, server_actions, shelve, tags
from magnetar_control.compute.servers import servers as compute
from magnetar_control.compute.servers.metadata import METADATA
from magnetar_control.compute.target import ServerTarget, find_server_target
from magnetar_control.store.actions import instance_actions
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.document import Document
from magnetar_core.errors import Failed, NotFound, TimedOut
from magnetar_core.operations import Operation
from magnetar_core.power import BUILDING, SOFT_DELETED

from .server_plan import PlannedAction

#: Seconds after which waiting for a server ends, and for a NIC.
LIMIT, NIC_LIMIT = 3600.0, 60.0


def locate_server(caller: Caller, id: str) -> tuple[Any, Any] | None:
    """Find the server *id* in the cells, and return the database of its cell and the server's row; ``None`` if the
    caller's project has no such server."""
    store = caller.cloud.store
    for _again in range(2):  # a lookup may miss a server that is moving from cell0 to its cell
        located_server = servers.find_server_row(store, id)
        if located_server is not None:
            return located_server if located_server[1].project_id == caller.project else None
    return None


def _awaited(caller: Caller, id: str, operation: Operation, late: str, done: Callable[[Any, Any], bool]) -> Any:
    """Wait until *done* returns true for the server *id*, and return the server's row; ``None`` if the server is gone.
    *done*: a function of the cell's database and the server's row. *late*: the end of the message of ``TimedOut``.
    Raises ``Cancelled`` if the operation is cancelled, ``TimedOut`` after ``LIMIT`` seconds."""
    watch, deadline = caller.cloud.watch, time.monotonic() + LIMIT
    watched_database, stamp = None, None
    with ExitStack() as stack:
        while (remaining := deadline - time.monotonic()) > 0:
            operation.raise_if_cancelled()
            located_server = locate_server(caller, id)
            if located_server is None or done(*located_server):
                return located_server and located_server[1]
            if watched_database is None:
                stack.enter_context(operation.waiting())
            # look once more, for changes before the watch began
            if stamp is None or located_server[0] is not watched_database:
                watched_database, stamp = located_server[0], watch.stamp(located_server[0], id)
            else:
                stamp = watch.changed(watched_database, id, stamp, lambda: operation.cancelling, remaining)
    raise TimedOut(f"Server {id} {late}")


def wait_until_idle(caller: Caller, id: str, operation: Operation,
                    done: Callable[[Any, Any], bool] | None = None) -> Any:
    """Wait until the server *id* has no task_state, and return the server's row; ``None`` if the server is gone.
    *done*: a further condition, a function of the cell's database and the server's row. Raises ``Cancelled``,
    ``TimedOut``."""
    late = f"has been busy for {LIMIT:.0f} s; look at its task_state and its actions."
    return _awaited(caller, id, operation, late, lambda database, row: (
        row.task_state is None and row.vm_state != BUILDING and (done is None or done(database, row))))


def why_failed(row: ServerRow) -> str:
    """Return the message of the last fault of the server *row*; a default text if it has no fault."""
    return str(row.fault["message"]) if row.fault else "it is in error, and does not say why"


class ServerActions:
    """A runner of actions on one server, such as resize, for a request of the v1 API. It waits for the end of each
    action."""

    def __init__(self, caller: Caller, id: str, operation: Operation) -> None:
        self.caller, self.id, self.operation = caller, id, operation

    def do(self, action: PlannedAction) -> None:
        """Start the planned action *action*, and wait until it is complete. Raises the errors of the function that
        starts the action, and ``Failed`` if the action fails on the host."""
        self.operation.raise_if_cancelled()
        self.operation.progress["phase"] = action.key
        if action.key in DO:
            DO[action.key](self, dict(action.args))
        else:
            self.run(action.key, server_actions.PLAIN[action.key])

    def request(self, key: str) -> str:
        """Return the request id with which the next action *key* (such as ``resize``) is stored in the server's
        instance actions: the caller's request id, or a new id if an action *key* of the server is already stored with
        the caller's id."""
        located_server = locate_server(self.caller, self.id)
        if located_server is None:
            raise NotFound(f"Server {self.id} was removed in the meantime.", kind="server", key=self.id)
        with located_server[0].read() as connection:
            taken = instance_actions.fetch_action_row(connection, self.id, [key], self.caller.request_id)
        return f"req-{uuid.uuid4()}" if taken else self.caller.request_id

    @property
    def target(self) -> ServerTarget:
        """The server in its current state. Raises ``NotFound`` if it is gone."""
        return find_server_target(self.caller, self.id)

    def run(self, key: str, use: Callable[..., object], *args: object, new_request_id: bool = False,
            **named: object) -> None:
        """Start the action *key* (such as ``shelve``) on the server by calling *use* (such as ``shelve_server``) with
        *args* and *named*, and wait until the action ends. *new_request_id*: store the action under a new request id,
        not under the caller's."""
        request_id = f"req-{uuid.uuid4()}" if new_request_id else self.request(key)
        use(self.caller.under(request_id), self.target, *args, **named)
        self.ended(request_id, key)

    def ended(self, request_id: str, key: str) -> None:
        """Wait until the action *key* (such as ``resize``) that was started with *request_id* has ended. Raises
        ``Failed`` if it has failed, ``NotFound`` if the server is gone."""
        state: list[str] = []

        def done(database: Any, _row: Any) -> bool:
            with database.read() as connection:
                action = instance_actions.fetch_action_row(connection, self.id, [key], request_id)
            state[:] = [action.state] if action else ["done"]
            return state[0] in ("done", "failed")

        row = wait_until_idle(self.caller, self.id, self.operation, done)
        if row is None:
            raise NotFound(f"Server {self.id} was removed in the meantime.", kind="server", key=self.id)
        if state == ["failed"]:
            raise Failed(f"{key} of server {row.name!r} failed: {why_failed(row)}", server=self.id)

    def attach_interface(self, wish: Document) -> None:
        """Attach the NIC *wish* to the server: with the existing port that it names, or with a new port. Wait until the
        server has the NIC."""
        port = wish.get("_port")
        with self.operation.waiting():
            interfaces.attach_nic(self.caller.under(f"req-{uuid.uuid4()}"), self.target, None if port else wish["_id"],
                                  port, wish.get("address") or None, wish.get("tag") or None, NIC_LIMIT)


def _update(server: ServerActions, args: Document) -> None:
    compute.update_server(server.caller, server.target, {
        name: value or None if name == "description" else value for name, value in args.items()})


def _resize(server: ServerActions, args: Document) -> None:
    """Resize the server to the flavor id ``flavor`` in *args*, and confirm the resize."""
    server.run("resize", server_actions.resize_server, args["flavor"])
    _confirm(server, {})


def _confirm(server: ServerActions, _args: Document) -> None:
    located_server = locate_server(server.caller, server.id)
    if located_server and located_server[1].vm_state == "resized":
        server.run("confirmResize", server_actions.PLAIN["confirmResize"])


def _migrate(server: ServerActions, args: Document) -> None:
    """Migrate the server to the host in *args*: live if the guest runs and the host is in the same cell; otherwise
    cold, followed by a confirmation."""
    place = server.caller.cloud.hosts.get(args["host"])
    leaves = place is not None and server_actions.is_other_cell(server.caller, server.target, place)
    if args["power"] in ("running", "paused") and not leaves:
        server.run("os-migrateLive", server_actions.live_migrate_server, args["host"])
    else:
        server.run("migrate", server_actions.migrate_server, args["host"])
        _confirm(server, {})


def _security_groups(server: ServerActions, args: Document) -> None:
    """Change the security groups of the server's ports from the groups in ``have`` to those in ``want``, both keys of
    *args*: first add groups, then remove others."""
    for key in args["want"]:
        if key not in args["have"]:
            security_groups.add_server_security_group(server.caller, server.target, key)
    for key in args["have"]:
        if key not in args["want"]:
            security_groups.remove_server_security_group(server.caller, server.target, key)


#: The actions that need more than a call of their use case.
DO: Mapping[str, Callable[[ServerActions, Document], object]] = {
    "update": _update,
    "metadata": lambda server, args: metadata.replace_server_metadata(server.caller, server.target,
                                                                      METADATA.check(args["value"], "metadata")),
    "tags": lambda server, args: tags.replace_server_tags(server.caller, server.target, args["value"]),
    "resize": _resize, "confirmResize": _confirm, "migrate": _migrate,
    "rebuild": lambda server, args: server.run("rebuild", server_actions.rebuild_server, args["rebuild"]),
    "rescue": lambda server, args: server.run("rescue", server_actions.rescue_server, args["image"]),
    "shelve": lambda server, _args: server.run("shelve", shelve.shelve_server),
    "unshelve": lambda server, args: server.run("unshelve", shelve.unshelve_server, None, args.get("host")),
    "reboot": lambda server, args: server.run(f"reboot-{args['type']}", server_actions.reboot_server, args["type"]),
    "security_groups": _security_groups,
    "attach_interface": lambda server, args: server.attach_interface(args["wish"]),
    "detach_interface": lambda server, args: server.run("detach_interface", interfaces.detach_nic, args["port"],
                                                        new_request_id=True)}


def delete_and_wait(caller: Caller, id: str, operation: Operation,
                    use: Callable[..., object] = compute.delete_server) -> None:
    """Delete the server *id* by calling *use*, and wait until it is gone. A soft-deleted server counts as gone, unless
    *use* is ``force_delete_server``. Do nothing if there is no such server. Raises ``Failed``."""
    for_good = use is compute.force_delete_server
    try:
        use(caller.under(f"req-{uuid.uuid4()}"), find_server_target(caller, id))
    except NotFound:
        return
    row = _awaited(caller, id, operation, "is still being deleted.", lambda _database, row: bool(
        row.task_state is None and (row.fault or (row.vm_state == SOFT_DELETED and not for_good))))
    if row is not None and (for_good or row.vm_state != SOFT_DELETED):
        raise Failed(f"Server {row.name!r} could not be deleted: {why_failed(row)}", server=id)
