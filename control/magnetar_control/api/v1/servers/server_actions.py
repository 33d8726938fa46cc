# SPDX-License-Identifier: GPL-3.0-or-later
"""Server actions are asked for one after the other, and each is waited for to its end."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import orjson

from magnetar_control.compute.attachments import interfaces
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.proxies import security_groups
from magnetar_control.compute.servers import metadata, server_actions, shelve, tags
from magnetar_control.compute.servers import servers as compute
from magnetar_control.compute.servers.metadata import METADATA
from magnetar_control.compute.target import Target, find
from magnetar_control.store.actions import instance_actions
from magnetar_control.store.servers import servers
from magnetar_core.errors import Failed, NotFound, TimedOut
from magnetar_core.operations import Operation
from magnetar_core.power import BUILDING, SOFT_DELETED
from magnetar_core.reconcile import Document

from .server_plan import PlannedAction

#: Seconds after which waiting for a server ends, and for a NIC.
LIMIT, NIC_LIMIT = 3600.0, 60.0


def found(caller: Caller, id: str) -> tuple[Any, Any] | None:
    """Database and row of a server of the project; ``None`` when there is none."""
    store = caller.cloud.store
    for _again in range(2):  # on its way from cell0 to its cell it may be missed once
        one = servers.find(store, id)
        if one is not None:
            return one if one[1].project_id == caller.project else None
    return None


def _awaited(caller: Caller, id: str, operation: Operation, late: str, done: Callable[[Any, Any], bool]) -> Any:
    """The row of a server as soon as *done* says so of its database and row; ``None`` when it is gone. Raises
    ``Cancelled``, or ``TimedOut`` with what is *late*."""
    watch, deadline = caller.cloud.watch, time.monotonic() + LIMIT
    before, stamp = None, None
    with ExitStack() as stack:
        while (left := deadline - time.monotonic()) > 0:
            operation.raise_if_cancelled()
            one = found(caller, id)
            if one is None or done(*one):
                return one and one[1]
            if before is None:
                stack.enter_context(operation.waiting())
            if stamp is None or one[0] is not before:  # and one more look, for what has changed before
                before, stamp = one[0], watch.stamp(one[0], id)
            else:
                stamp = watch.changed(before, id, stamp, lambda: operation.cancelling, left)
    raise TimedOut(f"Server {id} {late}")


def settled(caller: Caller, id: str, operation: Operation, done: Callable[[Any, Any], bool] | None = None) -> Any:
    """The row when nothing is done to the server any more (and *done* says so); ``None`` when it is gone. Raises
    ``Cancelled``, ``TimedOut``."""
    late = f"has been busy for {LIMIT:.0f} s; look at its task_state and its actions."
    return _awaited(caller, id, operation, late, lambda database, row: (
        row.task_state is None and row.vm_state != BUILDING and (done is None or done(database, row))))


def why_failed(row: Any) -> str:
    """What the server says of its last failure."""
    return str(orjson.loads(row.fault)["message"]) if row.fault else "it is in error, and does not say why"


class ServerActions:
    """One server being changed."""

    def __init__(self, caller: Caller, id: str, operation: Operation) -> None:
        self.caller, self.id, self.operation = caller, id, operation

    def do(self, action: PlannedAction) -> None:
        """Have it done, to its end. Raises what the API refuses, or ``Failed``."""
        self.operation.raise_if_cancelled()
        self.operation.progress["phase"] = action.key
        if action.key in DO:
            DO[action.key](self, dict(action.args))
        else:
            self.run(action.key, server_actions.PLAIN[action.key])

    def request(self, key: str) -> str:
        """The request id under which *key* is asked: the caller's, unless that has asked for it before."""
        one = found(self.caller, self.id)
        if one is None:
            raise NotFound(f"Server {self.id} was removed in the meantime.", kind="server", key=self.id)
        with one[0].read() as connection:
            taken = instance_actions.one(connection, self.id, [key], self.caller.request_id)
        return f"req-{uuid.uuid4()}" if taken else self.caller.request_id

    @property
    def target(self) -> Target:
        """The server as it is now. Raises ``NotFound``."""
        return find(self.caller, self.id)

    def run(self, key: str, use: Callable[..., object], *args: object, anew: bool = False, **named: object) -> None:
        """Ask for the action *key* with *use*, and wait for its end. *anew*: under a request id of its own."""
        request_id = f"req-{uuid.uuid4()}" if anew else self.request(key)
        use(self.caller.under(request_id), self.target, *args, **named)
        self.ended(request_id, key)

    def ended(self, request_id: str, key: str) -> None:
        """Wait until the action has ended. Raises ``Failed``."""
        state: list[str] = []

        def done(database: Any, _row: Any) -> bool:
            with database.read() as connection:
                action = instance_actions.one(connection, self.id, [key], request_id)
            state[:] = [action.state] if action else ["done"]
            return state[0] in ("done", "failed")

        row = settled(self.caller, self.id, self.operation, done)
        if row is None:
            raise NotFound(f"Server {self.id} was removed in the meantime.", kind="server", key=self.id)
        if state == ["failed"]:
            raise Failed(f"{key} of server {row.name!r} failed: {why_failed(row)}", server=self.id)

    def attach_interface(self, wish: Document) -> None:
        """Attach a NIC at the port that the *wish* names, or on a new port; returns when the server has it."""
        port = wish.get("_port")
        with self.operation.waiting():
            interfaces.attach(self.caller.under(f"req-{uuid.uuid4()}"), self.target, None if port else wish["_id"],
                              port, wish.get("address") or None, wish.get("tag") or None, NIC_LIMIT)


def _update(server: ServerActions, args: Document) -> None:
    compute.update(server.caller, server.target, {
        name: value or None if name == "description" else value for name, value in args.items()})


def _resize(server: ServerActions, args: Document) -> None:
    """To the flavor, and it stays."""
    server.run("resize", server_actions.resize, args["flavor"])
    _confirm(server, {})


def _confirm(server: ServerActions, _args: Document) -> None:
    one = found(server.caller, server.id)
    if one and one[1].vm_state == "resized":
        server.run("confirmResize", server_actions.PLAIN["confirmResize"])


def _migrate(server: ServerActions, args: Document) -> None:
    """Live while the guest runs, else cold, and so into another cell; it stays there."""
    place = server.caller.cloud.hosts.get(args["host"])
    leaves = place is not None and server_actions.abroad(server.caller, server.target, place)
    if args["power"] in ("running", "paused") and not leaves:
        server.run("os-migrateLive", server_actions.migrate_live, args["host"])
    else:
        server.run("migrate", server_actions.migrate, args["host"])
        _confirm(server, {})


def _security_groups(server: ServerActions, args: Document) -> None:
    """Give the server's ports the security groups that they lack, then take the others off them."""
    for key in args["want"]:
        if key not in args["have"]:
            security_groups.add(server.caller, server.target, key)
    for key in args["have"]:
        if key not in args["want"]:
            security_groups.remove(server.caller, server.target, key)


#: How the actions are done that are no bare call of their use case.
DO: Mapping[str, Callable[[ServerActions, Document], object]] = {
    "update": _update,
    "metadata": lambda server, args: metadata.replace(server.caller, server.target,
                                                      METADATA.check(args["value"], "metadata")),
    "tags": lambda server, args: tags.replace(server.caller, server.target, args["value"]),
    "resize": _resize, "confirmResize": _confirm, "migrate": _migrate,
    "rebuild": lambda server, args: server.run("rebuild", server_actions.rebuild, args["rebuild"]),
    "rescue": lambda server, args: server.run("rescue", server_actions.rescue, args["image"]),
    "shelve": lambda server, _args: server.run("shelve", shelve.shelve),
    "unshelve": lambda server, args: server.run("unshelve", shelve.unshelve, None, args.get("host")),
    "reboot": lambda server, args: server.run(f"reboot-{args['type']}", server_actions.reboot, args["type"]),
    "security_groups": _security_groups,
    "attach_interface": lambda server, args: server.attach_interface(args["wish"]),
    "detach_interface": lambda server, args: server.run("detach_interface", interfaces.detach, args["port"], anew=True)}


def removed(caller: Caller, id: str, operation: Operation, use: Callable[..., object] = compute.delete) -> None:
    """Delete a server with *use*, and wait until it is gone, or soft-deleted where *use* may do that."""
    for_good = use is compute.force_delete
    try:
        use(caller.under(f"req-{uuid.uuid4()}"), find(caller, id))
    except NotFound:
        return
    row = _awaited(caller, id, operation, "is still being deleted.", lambda _database, row: bool(
        row.task_state is None and (row.fault or (row.vm_state == SOFT_DELETED and not for_good))))
    if row is not None and (for_good or row.vm_state != SOFT_DELETED):
        raise Failed(f"Server {row.name!r} could not be deleted: {why_failed(row)}", server=id)
