# SPDX-License-Identifier: GPL-3.0-or-later
"""Events: actions of servers that are not part of the desired state. Each runs at most once per request id, which is
the id of the action in the queue."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from magnetar_control.api.v1.driver import NAMESPACE, CloudDriver
from magnetar_control.api.v1.image import CONSISTENCY
from magnetar_control.api.v1.volume import IMAGES
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.servers import evacuate, server_actions, server_images, server_passwords, soft_delete
from magnetar_control.compute.servers import servers as compute
from magnetar_control.compute.servers.metadata import METADATA
from magnetar_control.store.actions import instance_actions
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, NotFound
from magnetar_core.events import CrashDumpArgs, CreateImageArgs, RebootArgs, RebuildArgs
from magnetar_core.fields import Field, Kind
from magnetar_core.operations import Operation
from magnetar_core.power import STOPPED
from magnetar_core.reconcile import is_uuid_key
from magnetar_core.values import Choices, Integer, Nullable, Text

from .server import CloudServers
from .server_actions import ServerActions, delete_and_wait, locate_server
from .server_request import image_of


class ChangePasswordArguments(Kind):
    """The arguments of the event ``change_password``, which sets a user's password in the guest."""

    user = Field(Choices("root"), "Whose: root's; a cloud sets no other.", default="root")
    password = Field(Text(1, 255), "The password.", required=True, secret=True)


class NoArguments(Kind):
    """The arguments of an event that accepts no arguments."""


class LockArguments(Kind):
    """The arguments of the event ``lock``, which locks a server."""

    locked_reason = Field(Nullable(Text(1, 255)), "Why it is locked.", default=None)


class EvacuateArguments(Kind):
    """The arguments of the event ``evacuate``, which rebuilds a server of a failed host on another host."""

    host = Field(Nullable(Text(1, 255)), "The host that gets the server; the scheduler chooses one when left out.",
                 default=None)


def _rebuild(server: ServerActions, row: ServerRow, args: Document) -> None:
    image = IMAGES.one(server.caller, args["image"])["id"] if args.get("image") else row.image_id or image_of(
        None, row.request.get("blocks") or [])
    if image is None:
        raise InvalidField("image", "is required: a server without one cannot be rebuilt")
    metadata = args.get("metadata")
    server_actions.rebuild_server(server.caller, server.target, server_actions.Rebuild(
        image_id=image, preserve_ephemeral=args["preserve_ephemeral"],
        columns={name: args[name] for name in ("key_name", "user_data") if name in args},
        metadata=None if metadata is None else METADATA.check(metadata, "metadata")))


def _create_image(server: ServerActions, row: ServerRow, args: Document) -> str:
    return server_images.create_server_image(server.caller, server.target, args["name"], _properties(row, args))


class CreateBackupArguments(CreateImageArgs):
    """The arguments of the event ``create_backup``, which creates a backup image of a server and deletes the server's
    oldest backups of the same type."""

    backup_type = Field(Text(0, 255), "Of which kind it is, such as daily: backups are counted by it.", required=True)
    rotation = Field(Integer(0), "How many of the server's backups of this kind are kept; older ones are deleted when "
                     "this one is made.", required=True)


def _create_backup(server: ServerActions, row: ServerRow, args: Document) -> str:
    return server_images.create_server_backup(server.caller, server.target, args["name"], args["backup_type"],
                                       args["rotation"], _properties(row, args))


def _properties(row: ServerRow, args: Document) -> Any:
    """Return the properties of an image that is created from the server *row*: the metadata and description in *args*
    (the arguments of the event), and the consistency of the file systems in the image."""
    described = {"description": args["description"]} if args["description"] else {}
    return {**METADATA.check({**args["metadata"], **described}, "metadata"), CONSISTENCY: _consistency(row)}


def _consistency(row: ServerRow) -> str:
    """Return the consistency of the file systems in an image that is created from the server in its current state:
    ``stopped`` or ``crash-consistent``."""
    return "stopped" if row.vm_state == STOPPED else "crash-consistent"


#: Event to the kind of its arguments, the action in the queue, and the function, which returns the uuid of an image if
#: it creates one.
EVENTS: Mapping[str, tuple[type[Kind], str, Callable[[ServerActions, Any, Document], str | None]]] = {
    "reboot": (RebootArgs, "reboot-{type}", lambda server, _row, args: server_actions.reboot_server(
        server.caller, server.target, args["type"])),
    "rebuild": (RebuildArgs, "rebuild", _rebuild), "create_image": (CreateImageArgs, "createImage", _create_image),
    "create_backup": (CreateBackupArguments, "createBackup", _create_backup),
    "evacuate": (EvacuateArguments, "evacuate", lambda server, _row, args: evacuate.evacuate_server(
        server.caller, server.target, args["host"])),
    "crash_dump": (CrashDumpArgs, "trigger_crash_dump", lambda server, _row, _args: server_actions.PLAIN[
        "trigger_crash_dump"](server.caller, server.target)),
    "restore": (NoArguments, "restore", lambda server, _row, _args: soft_delete.restore_deleted_server(server.caller,
                                                                                                       server.target)),
    "shelve_offload": (NoArguments, "shelveOffload", lambda server, _row, _args: server_actions.PLAIN[
        "shelveOffload"](server.caller, server.target)),
    "change_password": (ChangePasswordArguments, "changePassword", lambda server, _row, args: (
        server_actions.change_server_password(server.caller, server.target, args["password"])))}

#: The event that removes the server.
FORCE_DELETE = "force_delete"
#: Events that are no actions in the queue: the API does them immediately, also while an action runs.
IMMEDIATE: Mapping[str, tuple[type[Kind], Callable[[ServerActions, Document], object]]] = {
    "clear_password": (NoArguments, lambda server, _args: server_passwords.delete_server_password(
        server.caller, server.target)),
    "lock": (LockArguments, lambda server, args: server_actions.lock_server(server.caller, server.target,
                                                                            args["locked_reason"])),
    "unlock": (NoArguments, lambda server, _args: server_actions.unlock_server(server.caller, server.target))}
#: Arguments of the events that create an image.
IMAGES_OF = (CreateImageArgs, CreateBackupArguments)


def handle_server_event(caller: Caller, driver: CloudDriver, key: str, sent: Mapping[str, Any],
                        operation: Operation) -> Document:
    """Run an event on the server *key*, and wait until it ends. An event is a one-time action, such as a reboot, which
    is not part of the server's desired state. *sent*: the request, with ``event``, ``args`` and ``request_id``. Return
    the result, with the server as ``resource``. If an earlier request with the same id has already started the event,
    only wait for its end. Raises ``InvalidField``, ``NotFound``, ``Failed``."""
    name = str(sent["event"])
    if isinstance(driver, CloudServers) and name == FORCE_DELETE:
        return _force_delete(caller, driver, key, dict(sent.get("args") or {}), operation)
    if isinstance(driver, CloudServers) and name in IMMEDIATE:
        return _do_immediately(caller, driver, key, sent, operation)
    if not isinstance(driver, CloudServers) or name not in EVENTS:
        names = ", ".join((*EVENTS, FORCE_DELETE, *IMMEDIATE))
        raise InvalidField("event", f"must be one of {names}, on a server", name)
    rule, action, function = EVENTS[name]
    args = {**rule.defaults(), **rule.check(dict(sent.get("args") or {}))}
    action = action.format(**args)
    if name == "evacuate":
        caller = _within(caller, key)
    request_id = sent.get("request_id")
    if request_id:
        caller = caller.under(request_id if str(request_id).startswith("req-") and len(request_id) == 40 else (
            f"req-{uuid.uuid5(NAMESPACE, f'{caller.project} {request_id}')}"))
    row = driver.existing(caller, key)
    server = ServerActions(caller, row.id, operation)
    located_server = locate_server(caller, row.id)
    if located_server is None:
        raise NotFound(f"Server {key!r} was removed in the meantime.", kind="server", key=key)
    with located_server[0].read() as connection:
        earlier_action = instance_actions.fetch_action_row(connection, row.id, [action], caller.request_id)
    if earlier_action is None:
        with operation.waiting():  # for the host, to change a password
            image = function(server, row, args)
    else:
        image = earlier_action.args.get("image") if rule in IMAGES_OF else None
    if earlier_action is not None or name != "change_password":  # which waits on its own
        server.ended(caller.request_id, action)
    answer = {"image": {"id": image, "name": args["name"]},
              "consistency": _consistency(row)} if image else {}
    return {"done": True, **answer, "resource": driver.public(driver.one(caller, row.id))}


def _within(caller: Caller, key: str) -> Caller:
    """Return *caller*. But if an administrator names a server of another project by uuid, return a copy of *caller* in
    the project of that server. *key*: the uuid or name of the server."""
    located_server = servers.find_server_row(caller.cloud.store,
                                             key.lower()) if caller.context.is_admin and is_uuid_key(key) else None
    if located_server is None or located_server[1].project_id == caller.project:
        return caller
    return Caller(caller.cloud, replace(caller.context, project_id=located_server[1].project_id), caller.request_id)


def _force_delete(caller: Caller, driver: CloudServers, key: str, args: Document, operation: Operation) -> Document:
    """Handle the v1 event that deletes the server *key* permanently, even if it was soft-deleted. Return the API's
    answer, which contains the server as it was. If there is no such server, answer that nothing was done: an earlier
    execution of the same request may have deleted the server."""
    NoArguments.check(args)
    row = driver.row(caller, key)
    if row is None:
        return {"done": False, "resource": None}
    shown = driver.public(driver.one(caller, row.id))
    delete_and_wait(caller, row.id, operation, compute.force_delete_server)
    return {"done": True, "resource": shown}


def _do_immediately(caller: Caller, driver: CloudServers, key: str, sent: Mapping[str, Any],
                    operation: Operation) -> Document:
    """Handle one of the v1 events ``lock``, ``unlock`` and ``clear_password`` (``IMMEDIATE``) on the server *key*. The
    API executes these events immediately, even while an action runs on the server. *sent*: the request. Return the
    API's answer, which contains the server."""
    rule, function = IMMEDIATE[str(sent["event"])]
    args = {**rule.defaults(), **rule.check(dict(sent.get("args") or {}))}
    row = driver.existing(caller, key)
    server = ServerActions(caller, row.id, operation)
    with operation.waiting():  # for the host
        function(server, args)
    return {"done": True, "resource": driver.public(driver.one(caller, row.id))}
