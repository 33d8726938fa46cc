# SPDX-License-Identifier: GPL-3.0-or-later
"""Server actions are asked for one after the other, and each is waited for to its end."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from magnetar_control.compute import interfaces, metadata, server_actions, tags
from magnetar_control.compute import servers as compute
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.metadata import METADATA
from magnetar_control.compute.target import Target, find
from magnetar_control.store import instance_actions, servers
from magnetar_core.errors import Failed, NotFound, TimedOut
from magnetar_core.power import BUILDING
from magnetar_core.reconcile import Document

from .operations import Operation
from .server_plan import PlannedAction

#: Seconds between two looks when nobody rings, and after which waiting for a server ends.
LOOK, LIMIT = 0.1, 3600.0


def found(caller: Caller, id: str) -> tuple[Any, Any] | None:
    """Database and row of a server of the project; ``None`` when there is none."""
    store = caller.cloud.store
    for _again in range(2):  # on its way from cell0 to its cell it may be missed once
        one = servers.find(store, id)
        if one is not None:
            return one if one[1].project_id == caller.project else None
    return None


def settled(caller: Caller, id: str, operation: Operation, done: Callable[[Any, Any], bool] | None = None) -> Any:
    """The row when nothing is done to the server any more (and *done* says so); ``None`` when it is gone. Raises
    ``Cancelled``, ``TimedOut``."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        operation.check()
        one = found(caller, id)
        if one is None:
            return None
        database, row = one
        seen = database.bell.count(servers.SERVERS_BELL)
        if row.task_state is None and row.vm_state != BUILDING and (done is None or done(database, row)):
            return row
        database.bell.wait(servers.SERVERS_BELL, seen, LOOK)
    raise TimedOut(f"Server {id} has been busy for {LIMIT:.0f} s; look at its task_state and its actions.")


def why_failed(row: Any) -> str:
    """What the server says of its last failure."""
    return str(orjson.loads(row.fault)["message"]) if row.fault else "it is in error, and does not say why"


class ServerActions:
    """One server being changed."""

    def __init__(self, caller: Caller, id: str, operation: Operation) -> None:
        self.caller, self.id, self.operation = caller, id, operation

    def do(self, action: PlannedAction) -> None:
        """Have it done, to its end. Raises what the API refuses, or ``Failed``."""
        self.operation.advance(action.key)
        DO[action.key](self, dict(action.args))

    def request(self, key: str) -> str:
        """The request id under which *key* is asked: the caller's, unless that has asked for it before."""
        one = found(self.caller, self.id)
        if one is None:
            raise NotFound(f"Server {self.id} was removed in the meantime.", kind="server", key=self.id)
        with one[0].read() as connection:
            taken = instance_actions.of_request(connection, self.id, self.caller.request_id, key)
        return f"req-{uuid.uuid4()}" if taken else self.caller.request_id

    @property
    def target(self) -> Target:
        """The server as it is now. Raises ``NotFound``."""
        return find(self.caller, self.id)

    def run(self, key: str, use: Callable[[Caller, Target], object]) -> None:
        """Ask for the action *key* with *use*, and wait for its end."""
        request_id = self.request(key)
        use(self.caller.under(request_id), self.target)
        self.ended(request_id, key)

    def ended(self, request_id: str, key: str) -> Any:
        """Wait until the action has ended; the row then. Raises ``Failed``."""
        state: list[str] = []

        def done(database: Any, _row: Any) -> bool:
            with database.read() as connection:
                action = instance_actions.of_request(connection, self.id, request_id, key)
            state[:] = [action.state] if action else ["done"]
            return state[0] in ("done", "failed")

        row = settled(self.caller, self.id, self.operation, done)
        if row is None:
            raise NotFound(f"Server {self.id} was removed in the meantime.", kind="server", key=self.id)
        if state == ["failed"]:
            raise Failed(f"{key} of server {row.name!r} failed: {why_failed(row)}", server=self.id)
        return row

    def attach_interface(self, network_id: str, address: str | None, tag: str | None) -> None:
        """A NIC on a new port; returns when the server has it."""
        interfaces.attach(self.caller.under(f"req-{uuid.uuid4()}"), self.target, network_id, None, address or None,
                          tag or None)

    def detach_interface(self, port_id: str) -> None:
        """Have the guest let go of a port."""
        request_id = f"req-{uuid.uuid4()}"
        interfaces.detach(self.caller.under(request_id), self.target, port_id)
        self.ended(request_id, "detach_interface")


Do = Callable[[ServerActions, Document], None]


def _update(server: ServerActions, args: Document) -> None:
    compute.update(server.caller, server.target, {
        name: value or None if name == "description" else value for name, value in args.items()})


def _metadata(server: ServerActions, args: Document) -> None:
    metadata.replace(server.caller, server.target, METADATA.check(args["value"], "metadata"))


def _tags(server: ServerActions, args: Document) -> None:
    tags.replace(server.caller, server.target, args["value"])


def _plain(key: str) -> Do:
    return lambda server, _args: server.run(key, server_actions.PLAIN[key])


def _resize(server: ServerActions, args: Document) -> None:
    """To the flavor, and it stays."""
    server.run("resize", lambda caller, target: server_actions.resize(caller, target, args["flavor"]))
    _confirm(server, {})


def _confirm(server: ServerActions, _args: Document) -> None:
    one = found(server.caller, server.id)
    if one and one[1].vm_state == "resized":
        server.run("confirmResize", server_actions.PLAIN["confirmResize"])


def _rebuild(server: ServerActions, args: Document) -> None:
    server.run("rebuild", lambda caller, target: server_actions.rebuild(caller, target, args["rebuild"]))


def _rescue(server: ServerActions, args: Document) -> None:
    server.run("rescue", lambda caller, target: server_actions.rescue(caller, target, args["image"]))


def _reboot(server: ServerActions, args: Document) -> None:
    type = args["type"].lower()
    server.run(f"reboot-{type}", lambda caller, target: server_actions.reboot(caller, target, type))


def _attach(server: ServerActions, args: Document) -> None:
    wish = args["wish"]
    server.attach_interface(wish["_id"], wish.get("address"), wish.get("tag"))


def _detach(server: ServerActions, args: Document) -> None:
    server.detach_interface(args["port"])


def _migrate(server: ServerActions, args: Document) -> None:
    """Live while the guest runs, else cold; it stays there."""
    host = args["host"]
    if args["power"] in ("running", "paused"):
        server.run("os-migrateLive", lambda caller, target: server_actions.migrate_live(caller, target, host))
    else:
        server.run("migrate", lambda caller, target: server_actions.migrate(caller, target, host))
        _confirm(server, {})


DO: Mapping[str, Do] = {
    "update": _update, "metadata": _metadata, "tags": _tags, "resize": _resize,
    "confirmResize": _confirm, "rebuild": _rebuild, "rescue": _rescue, "reboot": _reboot, "migrate": _migrate,
    "attach_interface": _attach, "detach_interface": _detach,
    **{key: _plain(key) for key in ("os-start", "os-stop", "pause", "unpause", "suspend", "resume", "unrescue")}}


def removed(caller: Caller, id: str, operation: Operation) -> None:
    """Delete a server, and wait until it is gone."""
    try:
        compute.delete(caller.under(f"req-{uuid.uuid4()}"), find(caller, id))
    except NotFound:
        return
    deadline = time.monotonic() + LIMIT
    while (one := found(caller, id)) is not None:
        operation.check()
        database, row = one
        seen = database.bell.count(servers.SERVERS_BELL)
        if row.task_state is None and row.fault:
            raise Failed(f"Server {row.name!r} could not be deleted: {why_failed(row)}", server=id)
        if time.monotonic() > deadline:
            raise TimedOut(f"Server {id} is still being deleted.")
        database.bell.wait(servers.SERVERS_BELL, seen, LOOK)
