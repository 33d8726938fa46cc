# SPDX-License-Identifier: GPL-3.0-or-later
"""One-shots of servers that are no state, at most once for each request id: that of the action in the queue."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from magnetar_control.compute import server_actions
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.metadata import METADATA
from magnetar_control.store import instance_actions
from magnetar_core.errors import InvalidField, NotFound
from magnetar_core.fields import Field, Kind
from magnetar_core.kinds import Image, Server
from magnetar_core.kinds.common import NAME, REFERENCE
from magnetar_core.power import STOPPED
from magnetar_core.reconcile import Document
from magnetar_core.values import Boolean, Choices, MapOf, Nullable, Text, Value

from .driver import NAMESPACE, Driver
from .operations import Operation
from .server import Servers
from .server_actions import ServerActions, found
from .server_request import IMAGES


class Event(Kind):
    """The body."""

    noun, plural = "event", "events"

    event = Field(Text(1, 64), "What to do: reboot, rebuild, create_image, crash_dump or change_password.",
                  required=True)
    args = Field(MapOf(Text(1, 64), Value()), "Its arguments.", default={})
    request_id = Field(Text(1, 128, r"[\w.-]+", "may have letters, digits and . _ - only"), "Key of the event.")


class RebootArguments(Kind):
    """Of a reboot."""

    type = Field(Choices("soft", "hard"), "Kind of reboot.", default="soft")


class RebuildArguments(Kind):
    """Of a rebuild; what is left out stays as it is."""

    image = Field(REFERENCE, "The image.")
    key_name = Field(Nullable(REFERENCE), "The key pair.")
    user_data = Field(Server.field("user_data").value, "Base64 user data.", secret=True)
    metadata = Field(Server.field("metadata").value, "Metadata.")
    preserve_ephemeral = Field(Boolean(), "Whether the ephemeral disk is kept.", default=False)


class CreateImageArguments(Kind):
    """Of an image."""

    name = Field(NAME, "Its name.", required=True)
    description = Field(Text(0, 255), "Free text.", default="")
    metadata = Field(Image.field("properties").value, "Properties.", default={})


class CrashDumpArguments(Kind):
    """Of a crash dump: nothing."""


class ChangePasswordArguments(Kind):
    """Of a new password."""

    user = Field(Choices("root"), "Whose: root's; a cloud sets no other.", default="root")
    password = Field(Text(1, 255), "The password.", required=True, secret=True)


def _reboot(server: ServerActions, _row: Any, args: Document) -> Document:
    server_actions.reboot(server.caller, server.target, args["type"])
    server.ended(server.caller.request_id, f"reboot-{args['type']}")
    return {}


def _rebuild(server: ServerActions, row: Any, args: Document) -> Document:
    image = IMAGES.one(server.caller, args["image"])["id"] if args.get("image") else row.image_id
    if image is None:
        raise InvalidField("image", "is required: a server without one cannot be rebuilt")
    metadata = args.get("metadata")
    server_actions.rebuild(server.caller, server.target, server_actions.Rebuild(
        image_id=image, preserve_ephemeral=args["preserve_ephemeral"],
        columns={name: args[name] for name in ("key_name", "user_data") if name in args},
        metadata=None if metadata is None else METADATA.check(metadata, "metadata")))
    server.ended(server.caller.request_id, "rebuild")
    return {}


def _create_image(server: ServerActions, row: Any, args: Document) -> Document:
    properties = {**args["metadata"], **({"description": args["description"]} if args["description"] else {})}
    id = server_actions.create_image(server.caller, server.target, args["name"],
                                     METADATA.check(properties, "metadata"))
    server.ended(server.caller.request_id, "createImage")
    return {"image": {"id": id, "name": args["name"]}, "consistency": _consistency(row)}


def _consistency(row: Any) -> str:
    """Of the file systems in an image of the server, in the agent's words."""
    return "stopped" if row.vm_state == STOPPED else "crash-consistent"


def _crash_dump(server: ServerActions, _row: Any, _args: Document) -> Document:
    server_actions.PLAIN["trigger_crash_dump"](server.caller, server.target)
    server.ended(server.caller.request_id, "trigger_crash_dump")
    return {}


def _change_password(server: ServerActions, _row: Any, args: Document) -> Document:
    server_actions.change_password(server.caller, server.target, args["password"])
    return {}


#: Event: rule of its arguments, the action in the queue, how.
EVENTS: Mapping[str, tuple[type[Kind], str, Callable[[ServerActions, Any, Document], Document]]] = {
    "reboot": (RebootArguments, "reboot-{type}", _reboot), "rebuild": (RebuildArguments, "rebuild", _rebuild),
    "create_image": (CreateImageArguments, "createImage", _create_image),
    "crash_dump": (CrashDumpArguments, "trigger_crash_dump", _crash_dump),
    "change_password": (ChangePasswordArguments, "changePassword", _change_password)}


def event(caller: Caller, driver: Driver, key: str, sent: Mapping[str, Any], operation: Operation) -> Document:
    """Do it, unless this request id has done it before."""
    name = str(sent["event"])
    if not isinstance(driver, Servers) or name not in EVENTS:
        raise InvalidField("event", f"must be one of {', '.join(EVENTS)}, on a server", name)
    rule, action, function = EVENTS[name]
    args = {**rule.defaults(), **rule.check(dict(sent.get("args") or {}))}
    given = sent.get("request_id")
    if given:
        caller = caller.under(given if str(given).startswith("req-") and len(given) == 40 else (
            f"req-{uuid.uuid5(NAMESPACE, f'{caller.project} {given}')}"))
    row = driver.existing(caller, key)
    server = ServerActions(caller, row.id, operation)
    one = found(caller, row.id)
    if one is None:
        raise NotFound(f"Server {key!r} was removed in the meantime.", kind="server", key=key)
    with one[0].read() as connection:
        before = instance_actions.of_request(connection, row.id, caller.request_id, action.format(**args))
    if before is None:
        answer = function(server, row, args)
    else:
        server.ended(caller.request_id, action.format(**args))
        image = orjson.loads(before.args).get("image") if name == "create_image" else None
        answer = {"image": {"id": image, "name": args["name"]}, "consistency": _consistency(row)} if image else {}
    return {"done": True, **answer, "resource": driver.public(driver.one(caller, row.id))}
