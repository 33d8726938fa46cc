# SPDX-License-Identifier: GPL-3.0-or-later
"""How what is to be done to a server is asked for, and how its end is waited for."""

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
from magnetar_control.store import names, servers
from magnetar_core.actions import BUILDING
from magnetar_core.errors import Failed, NotFound, TimedOut

from .asks import Asks, Document
from .operations import Operation
from .server_plan import Act

#: Seconds between two looks when nobody rings, and after which waiting for a server ends.
LOOK, LIMIT = 0.1, 3600.0


def found(asks: Asks, id: str) -> tuple[Any, Any] | None:
    """Database and row of a server of the project; ``None`` when there is none."""
    store = asks.cloud.store
    for _again in range(2):  # on its way from cell0 to its cell it may be missed once
        one = servers.find(store, id)
        if one is not None:
            return one if one[1].project_id == asks.project else None
    return None


def settled(asks: Asks, id: str, operation: Operation, done: Callable[[Any, Any], bool] | None = None) -> Any:
    """The row when nothing is done to the server any more (and *done* says so); ``None`` when it is gone. Raises
    ``Cancelled``, ``TimedOut``."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        operation.check()
        one = found(asks, id)
        if one is None:
            return None
        database, row = one
        seen = database.bell.count(servers.SERVERS_BELL)
        if row.task_state is None and row.vm_state != BUILDING and (done is None or done(database, row)):
            return row
        database.bell.wait(servers.SERVERS_BELL, seen, LOOK)
    raise TimedOut(f"Server {id} has been busy for {LIMIT:.0f} s; look at its task_state and its actions.")


def fault(row: Any) -> str:
    """What the server says of its last failure."""
    return str(orjson.loads(row.fault)["message"]) if row.fault else "it is in error, and does not say why"


class Doing:
    """One server being changed."""

    def __init__(self, asks: Asks, id: str, operation: Operation) -> None:
        self.asks, self.id, self.operation = asks, id, operation

    def do(self, act: Act, extra: Mapping[str, Any]) -> None:
        """Have it done, to its end. Raises what the API refuses, or ``Failed``."""
        self.operation.advance(act.do)
        DO[act.do](self, dict(act.args), extra)

    def request(self, key: str) -> str:
        """The request id under which *key* is asked: the caller's, unless that has asked for it before."""
        one = found(self.asks, self.id)
        if one is None:
            raise NotFound(f"Server {self.id} was removed in the meantime.", kind="server", key=self.id)
        with one[0].read() as connection:
            taken = names.asked(connection, self.id, self.asks.request_id, key)
        return f"req-{uuid.uuid4()}" if taken else self.asks.request_id

    @property
    def target(self) -> Target:
        """The server as it is now. Raises ``NotFound``."""
        return find(self.asks, self.id)

    def run(self, key: str, use: Callable[[Caller, Target], object]) -> None:
        """Ask for the action *key* with *use*, and wait for its end."""
        request_id = self.request(key)
        use(self.asks.under(request_id), self.target)
        self.ended(request_id, key)

    def ended(self, request_id: str, key: str) -> Any:
        """Wait until the action has ended; the row then. Raises ``Failed``."""
        state: list[str] = []

        def done(database: Any, _row: Any) -> bool:
            with database.read() as connection:
                action = names.asked(connection, self.id, request_id, key)
            state[:] = [action.state] if action else ["done"]
            return state[0] in ("done", "failed")

        row = settled(self.asks, self.id, self.operation, done)
        if row is None:
            raise NotFound(f"Server {self.id} was removed in the meantime.", kind="server", key=self.id)
        if state == ["failed"]:
            raise Failed(f"{key} of server {row.name!r} failed: {fault(row)}", server=self.id)
        return row


Deed = Callable[[Doing, Document, Mapping[str, Any]], None]


def _update(doing: Doing, args: Document, _extra: Mapping[str, Any]) -> None:
    compute.update(doing.asks, doing.target, {
        name: value or None if name == "description" else value for name, value in args.items()})


def _metadata(doing: Doing, args: Document, _extra: Mapping[str, Any]) -> None:
    metadata.replace(doing.asks, doing.target, METADATA.check(args["value"], "metadata"))


def _tags(doing: Doing, args: Document, _extra: Mapping[str, Any]) -> None:
    tags.replace(doing.asks, doing.target, args["value"])


def _plain(key: str) -> Deed:
    return lambda doing, _args, _extra: doing.run(key, server_actions.PLAIN[key])


def _resize(doing: Doing, args: Document, _extra: Mapping[str, Any]) -> None:
    """To the flavor, and it stays."""
    doing.run("resize", lambda caller, target: server_actions.resize(caller, target, args["flavor"]))
    _confirm(doing, {}, {})


def _confirm(doing: Doing, _args: Document, _extra: Mapping[str, Any]) -> None:
    one = found(doing.asks, doing.id)
    if one and one[1].vm_state == "resized":
        doing.run("confirmResize", server_actions.PLAIN["confirmResize"])


def _rebuild(doing: Doing, _args: Document, extra: Mapping[str, Any]) -> None:
    doing.run("rebuild", lambda caller, target: server_actions.rebuild(caller, target, extra["rebuild"]))


def _rescue(doing: Doing, args: Document, _extra: Mapping[str, Any]) -> None:
    doing.run("rescue", lambda caller, target: server_actions.rescue(caller, target, args["image"]))


def _reboot(doing: Doing, args: Document, _extra: Mapping[str, Any]) -> None:
    type = args["type"].lower()
    doing.run(f"reboot-{type}", lambda caller, target: server_actions.reboot(caller, target, type))


def _attach(doing: Doing, args: Document, _extra: Mapping[str, Any]) -> None:
    wish = args["wish"]
    interfaces.attach(doing.asks.under(f"req-{uuid.uuid4()}"), doing.target, wish["_id"], None,
                      wish.get("address") or None, wish.get("tag") or None)


def _detach(doing: Doing, args: Document, _extra: Mapping[str, Any]) -> None:
    request_id = f"req-{uuid.uuid4()}"
    interfaces.detach(doing.asks.under(request_id), doing.target, args["port"])
    doing.ended(request_id, "detach_interface")


def _migrate(doing: Doing, args: Document, _extra: Mapping[str, Any]) -> None:
    """Live while the guest runs, else cold; it stays there."""
    host = args["host"]
    if args["power"] in ("running", "paused"):
        doing.run("os-migrateLive", lambda caller, target: server_actions.migrate_live(caller, target, host))
    else:
        doing.run("migrate", lambda caller, target: server_actions.migrate(caller, target, host))
        _confirm(doing, {}, {})


DO: Mapping[str, Deed] = {
    "update": _update, "metadata": _metadata, "tags": _tags, "resize": _resize,
    "confirmResize": _confirm, "rebuild": _rebuild, "rescue": _rescue, "reboot": _reboot, "migrate": _migrate,
    "attach_interface": _attach, "detach_interface": _detach,
    **{key: _plain(key) for key in ("os-start", "os-stop", "pause", "unpause", "suspend", "resume", "unrescue")}}


def removed(asks: Asks, id: str, operation: Operation) -> None:
    """Delete a server, and wait until it is gone."""
    try:
        compute.delete(asks.under(f"req-{uuid.uuid4()}"), find(asks, id))
    except NotFound:
        return
    deadline = time.monotonic() + LIMIT
    while (one := found(asks, id)) is not None:
        operation.check()
        database, row = one
        seen = database.bell.count(servers.SERVERS_BELL)
        if row.task_state is None and row.fault:
            raise Failed(f"Server {row.name!r} could not be deleted: {fault(row)}", server=id)
        if time.monotonic() > deadline:
            raise TimedOut(f"Server {id} is still being deleted.")
        database.bell.wait(servers.SERVERS_BELL, seen, LOOK)
