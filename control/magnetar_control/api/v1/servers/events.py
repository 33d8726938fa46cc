# SPDX-License-Identifier: GPL-3.0-or-later
"""One-shots of servers that are no state, at most once for each request id: that of the action in the queue."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from magnetar_control.api.v1.driver import NAMESPACE, CloudDriver
from magnetar_control.api.v1.image import CONSISTENCY
from magnetar_control.api.v1.volume import IMAGES
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.servers import (
    backup,
    evacuate,
    server_actions,
    server_images,
    server_passwords,
    soft_delete,
)
from magnetar_control.compute.servers import servers as compute
from magnetar_control.compute.servers.metadata import METADATA
from magnetar_control.store.actions import instance_actions
from magnetar_control.store.servers import servers
from magnetar_core.errors import InvalidField, NotFound
from magnetar_core.events import CrashDumpArgs, CreateImageArgs, RebootArgs, RebuildArgs
from magnetar_core.fields import Field, Kind
from magnetar_core.operations import Operation
from magnetar_core.power import STOPPED
from magnetar_core.reconcile import Document, is_uuid
from magnetar_core.values import Choices, Integer, Nullable, Text

from .server import CloudServers
from .server_actions import ServerActions, found, removed
from .server_request import image_of


class ChangePasswordArguments(Kind):
    """Of a new password."""

    user = Field(Choices("root"), "Whose: root's; a cloud sets no other.", default="root")
    password = Field(Text(1, 255), "The password.", required=True, secret=True)


class NoArguments(Kind):
    """Of what takes none."""


class EvacuateArguments(Kind):
    """Of an evacuation."""

    host = Field(Nullable(Text(1, 255)), "The host that gets the server; the scheduler chooses one when left out.",
                 default=None)


def _rebuild(server: ServerActions, row: Any, args: Document) -> None:
    image = IMAGES.one(server.caller, args["image"])["id"] if args.get("image") else row.image_id or image_of(
        None, orjson.loads(row.request).get("blocks") or [])
    if image is None:
        raise InvalidField("image", "is required: a server without one cannot be rebuilt")
    metadata = args.get("metadata")
    server_actions.rebuild(server.caller, server.target, server_actions.Rebuild(
        image_id=image, preserve_ephemeral=args["preserve_ephemeral"],
        columns={name: args[name] for name in ("key_name", "user_data") if name in args},
        metadata=None if metadata is None else METADATA.check(metadata, "metadata")))


def _create_image(server: ServerActions, row: Any, args: Document) -> str:
    return server_images.create_image(server.caller, server.target, args["name"], _properties(row, args))


class CreateBackupArguments(CreateImageArgs):
    """Of a backup."""

    backup_type = Field(Text(0, 255), "Of which kind it is, such as daily: backups are counted by it.", required=True)
    rotation = Field(Integer(0), "How many of the server's backups of this kind are kept; older ones are deleted when "
                     "this one is made.", required=True)


def _create_backup(server: ServerActions, row: Any, args: Document) -> str:
    return backup.create_backup(server.caller, server.target, args["name"], args["backup_type"], args["rotation"],
                                _properties(row, args))


def _properties(row: Any, args: Document) -> Any:
    """The properties of an image that is made of the server of *row*."""
    described = {"description": args["description"]} if args["description"] else {}
    return {**METADATA.check({**args["metadata"], **described}, "metadata"), CONSISTENCY: _consistency(row)}


def _consistency(row: Any) -> str:
    """Return the state of the file systems in an image that is made of the server of *row* now."""
    return "stopped" if row.vm_state == STOPPED else "crash-consistent"


#: Event: rule of its arguments, the action in the queue, how; that returns the uuid of an image that it makes.
EVENTS: Mapping[str, tuple[type[Kind], str, Callable[[ServerActions, Any, Document], str | None]]] = {
    "reboot": (RebootArgs, "reboot-{type}", lambda server, _row, args: server_actions.reboot(
        server.caller, server.target, args["type"])),
    "rebuild": (RebuildArgs, "rebuild", _rebuild), "create_image": (CreateImageArgs, "createImage", _create_image),
    "create_backup": (CreateBackupArguments, "createBackup", _create_backup),
    "evacuate": (EvacuateArguments, "evacuate", lambda server, _row, args: evacuate.evacuate(
        server.caller, server.target, args["host"])),
    "crash_dump": (CrashDumpArgs, "trigger_crash_dump", lambda server, _row, _args: server_actions.PLAIN[
        "trigger_crash_dump"](server.caller, server.target)),
    "restore": (NoArguments, "restore", lambda server, _row, _args: soft_delete.restore(server.caller, server.target)),
    "shelve_offload": (NoArguments, "shelveOffload", lambda server, _row, _args: server_actions.PLAIN[
        "shelveOffload"](server.caller, server.target)),
    "change_password": (ChangePasswordArguments, "changePassword", lambda server, _row, args: (
        server_actions.change_password(server.caller, server.target, args["password"])))}

#: The event after which there is no server.
FORCE_DELETE = "force_delete"
#: The event that is no action of the server's: the API does it at once.
CLEAR_PASSWORD = "clear_password"  # noqa: S105 (a word)
#: What events take that make an image.
IMAGES_OF = (CreateImageArgs, CreateBackupArguments)


def event(caller: Caller, driver: CloudDriver, key: str, sent: Mapping[str, Any], operation: Operation) -> Document:
    """Do it, unless this request id has done it before."""
    name = str(sent["event"])
    if isinstance(driver, CloudServers) and name == FORCE_DELETE:
        return _force_delete(caller, driver, key, dict(sent.get("args") or {}), operation)
    if isinstance(driver, CloudServers) and name == CLEAR_PASSWORD:
        return _clear_password(caller, driver, key, dict(sent.get("args") or {}), operation)
    if not isinstance(driver, CloudServers) or name not in EVENTS:
        known = ", ".join((*EVENTS, FORCE_DELETE, CLEAR_PASSWORD))
        raise InvalidField("event", f"must be one of {known}, on a server", name)
    rule, action, function = EVENTS[name]
    args = {**rule.defaults(), **rule.check(dict(sent.get("args") or {}))}
    action = action.format(**args)
    if name == "evacuate":
        caller = _within(caller, key)
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
        before = instance_actions.one(connection, row.id, [action], caller.request_id)
    if before is None:
        with operation.waiting():  # for the host, to change a password
            image = function(server, row, args)
    else:
        image = orjson.loads(before.args).get("image") if rule in IMAGES_OF else None
    if before is not None or name != "change_password":  # which waits by itself
        server.ended(caller.request_id, action)
    answer = {"image": {"id": image, "name": args["name"]},
              "consistency": _consistency(row)} if image else {}
    return {"done": True, **answer, "resource": driver.public(driver.one(caller, row.id))}


def _within(caller: Caller, key: str) -> Caller:
    """The caller, in the project of the server: administrators name servers of all projects by their uuids."""
    one = servers.find(caller.cloud.store, key.lower()) if caller.context.is_admin and is_uuid(key) else None
    if one is None or one[1].project_id == caller.project:
        return caller
    return Caller(caller.cloud, replace(caller.context, project_id=one[1].project_id), caller.request_id)


def _force_delete(caller: Caller, driver: CloudServers, key: str, args: Document, operation: Operation) -> Document:
    """Delete a server for good, also one that is soft-deleted. It may be asked for again: there is nothing left to do
    then."""
    NoArguments.check(args)
    row = driver.row(caller, key)
    if row is None:
        return {"done": False, "resource": None}
    shown = driver.public(driver.one(caller, row.id))
    removed(caller, row.id, operation, compute.force_delete)
    return {"done": True, "resource": shown}


def _clear_password(caller: Caller, driver: CloudServers, key: str, args: Document, operation: Operation) -> Document:
    """Forget what the guest has left for its user."""
    NoArguments.check(args)
    row = driver.existing(caller, key)
    server = ServerActions(caller, row.id, operation)
    with operation.waiting():  # for the host
        server_passwords.clear(server.caller, server.target)
    return {"done": True, "resource": driver.public(driver.one(caller, row.id))}
