# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done to a server: POST /servers/{id}/action. Most rows only ask: the conductor does it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection

from magnetar_control.agents import plain
from magnetar_control.api.nova.blocks import snapshots
from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.nova.server_create import find_flavor, find_image, new_password
from magnetar_control.api.nova.servers import FULL_UPDATE, delete, shown
from magnetar_control.api.nova.values import (
    CERTIFICATES,
    DESCRIPTION,
    FQDN,
    HOSTNAME,
    METADATA,
    PASSWORD,
    PERSONALITY,
    TRUTH,
    USER_DATA,
)
from magnetar_control.api.values import Address, Anything, ByVersion, Id, Null, Number, Wrapped, record, since
from magnetar_control.compute import quotas as quota
from magnetar_control.store import migrations, servers
from magnetar_control.web import Answer
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, MagnetarError
from magnetar_core.kinds.common import NAME
from magnetar_core.values import Choices, Nullable, OneOf, Text, Value

RULE = "os_compute_api:"
PATH = "/servers/{server_id}/action"
#: Gates.
REBUILDS_KEY, HOST_CHECKED_MIGRATE, BODY_OF_IMAGE, LOCK_REASON, NO_PRECHECK = 54, 56, 45, 73, 34
RESCUES_VOLUMES = 87


def ask(call: Call, key: str, args: Mapping[str, Any] | None = None,
        also: Callable[[Connection], None] | None = None, **values: Any) -> None:
    """Write the action down for the conductor, and what else *also* writes, in one transaction. Raises ``Conflict``
    when the server has changed meanwhile."""
    with call.database.write() as connection:
        done = servers.ask(connection, call.server, key, call.request.id, call.context.user_id, call.project, args,
                           **values)
        if done:
            if also:
                also(connection)
            call.database.ring(connection, servers.ACTIONS_BELL)
    if not done:
        raise Conflict(f"Cannot '{ACTIONS[key].label}' instance {call.server.id}: something else is being done to "
                       "it. Try again in a moment.")


def _asks(key: str) -> Callable[[Call], Answer]:
    """A handler that only asks."""
    def handler(call: Call) -> Answer:
        ask(call, key)
        return Answer(None, call.operation.success(call.version))

    return handler


def reboot(call: Call) -> Answer:
    """soft or hard."""
    from magnetar_control.api.nova.app import guard

    kind = call.body["type"].lower()
    key = f"reboot-{kind}"
    guard(call, key)
    ask(call, key, {"type": kind})
    return Answer(None, 202)


class Cased(Value):
    """A word in any case."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """The word."""
        if not isinstance(value, str) or value.lower() not in self.words:
            raise InvalidField(path, f"must be one of {', '.join(self.words)}", value)
        return value


def resize(call: Call) -> Answer:
    """To another flavor, on the same host or another."""
    flavor = find_flavor(call, str(call.body["flavorRef"]))
    import orjson

    old = orjson.loads(call.server.flavor)
    if flavor["id"] == old["id"]:
        raise InvalidRequest("When resizing, instances must change flavor!")
    if flavor["disk"] < old["disk"] and not _on_volume(call.server):
        raise InvalidRequest("Resize error: the disk of the new flavor is smaller than that of the old one."
                    if flavor["disk"] else "Resize to zero disk flavor is not allowed.")
    quota.check_flavor(call, old, flavor)
    ask(call, "resize", {"flavor": flavor, "disk_config": call.body.get("OS-DCF:diskConfig")})
    return Answer(None, 202)


def _on_volume(server: servers.Found) -> bool:
    """Whether its root disk is a volume, which has its own size whatever the flavor says."""
    import orjson

    return not server.image_id or any(one["boot_index"] == 0 for one in orjson.loads(server.volumes))


def migrate(call: Call) -> Answer:
    """Cold migration; a host may be named since 2.56."""
    host = call.body.get("host") if isinstance(call.body, dict) and call.version >= HOST_CHECKED_MIGRATE else None
    if host:
        call.check(f"{RULE}os-migrate-server:migrate:host")
        _host(call, host)
    ask(call, "migrate", {"host": host})
    return Answer(None, 202)


def migrate_live(call: Call) -> Answer:
    """Live migration."""
    host = call.body.get("host")
    if host:
        call.check(f"{RULE}os-migrate-server:migrate_live:host")
        _host(call, host)
    if call.version < NO_PRECHECK and not host and len(call.cloud.hosts.all()) < 2:
        raise InvalidRequest("No valid host was found. There are not enough hosts available.")
    drawn = str(uuid.uuid4())
    ask(call, "os-migrateLive", {"host": host, "migration": drawn}, lambda connection: migrations.make(
        connection, call.server, drawn, user_id=call.context.user_id, type=migrations.LIVE, status="queued"))
    return Answer(None, 202)


def _host(call: Call, name: str) -> None:
    if call.cloud.hosts.get(name) is None:
        raise InvalidRequest(f"Compute host {name} could not be found.")
    if name == call.server.host:
        raise InvalidRequest(f"The instance is already on the host {name}; migrate it to another.")


REBUILD_BODY = record({
    "imageRef": Id(), "name": NAME, "adminPass": PASSWORD, "metadata": METADATA, "preserve_ephemeral": TRUTH,
    "OS-DCF:diskConfig": Choices("AUTO", "MANUAL"), "accessIPv4": Address(4, empty=True),
    "accessIPv6": Address(6, empty=True), "personality": since("2.1", PERSONALITY, until="2.56"),
    "description": since("2.19", DESCRIPTION), "key_name": since("2.54", Nullable(Text(1, 255))),
    "user_data": since("2.57", Nullable(USER_DATA)), "trusted_image_certificates": since("2.63", CERTIFICATES),
    "hostname": since("2.90", ByVersion(("2.90", "2.93", HOSTNAME), ("2.94", None, FQDN)))}, "imageRef")


def rebuild(call: Call) -> Answer:
    """The root disk anew, from the same or another image. Answers with the whole server."""
    import orjson

    want, server = call.body, call.server
    image = find_image(call, want["imageRef"], orjson.loads(server.flavor))
    if not server.image_id:
        raise InvalidRequest("A server that boots from a volume cannot be rebuilt here: its disk is the volume. Make a "
                             "volume of the image, and a new server of it.")
    limits = quota.limits(call)
    quota.check_metadata(limits["metadata_items"], want.get("metadata"))
    quota.check_files(limits, want.get("personality") or ())
    values: dict[str, Any] = {"image_id": want["imageRef"], "image": servers.text(
        {name: image.get(name) for name in ("properties", "min_disk", "min_ram", "disk_format", "container_format")}
        if image else {})}
    for name, column in (("name", "name"), ("description", "description"), ("hostname", "hostname"),
                         ("accessIPv4", "access_ip_v4"), ("accessIPv6", "access_ip_v6"),
                         ("OS-DCF:diskConfig", "disk_config"), ("user_data", "user_data"), ("key_name", "key_name")):
        if name in want:
            values[column] = want[name]
    if "metadata" in want:
        values["metadata"] = servers.text(want["metadata"])
    args = {"preserve_ephemeral": bool(want.get("preserve_ephemeral")), "image": want["imageRef"],
            **{name: want[name] for name in ("personality",) if name in want}}
    if "key_name" in want:
        from magnetar_control.api.nova.server_create import _keypair

        args["public_key"] = _keypair(call, want["key_name"])
    ask(call, "rebuild", args, **values)
    found = servers.find(call.cloud.store, server.id)
    answer = shown(call, found[1] if found else server, everything=call.version >= FULL_UPDATE)
    if call.settings.enable_instance_password:
        answer["server"]["adminPass"] = want.get("adminPass") or new_password()
    if call.version >= 57:
        answer["server"]["user_data"] = values.get("user_data", server.user_data)
    if call.version >= REBUILDS_KEY:
        answer["server"]["key_name"] = values.get("key_name", server.key_name)
    return Answer(answer, 202, {"Location": f"{call.base}/servers/{server.id}"})


def rescue(call: Call) -> Answer:
    """Boot from another image, or its own."""
    want = call.body or {}
    image = want.get("rescue_image_ref")
    if not call.server.image_id and call.version < RESCUES_VOLUMES:
        raise InvalidRequest("Cannot rescue a volume-backed instance (since microversion 2.87 with a "
                             "rescue_image_ref).")
    if not image and not call.server.image_id:
        raise InvalidRequest("rescue.rescue_image_ref: is required: the server boots from a volume, so there is no "
                             "image "
                             "that would be taken")
    if image:
        found = call.cloud.services.image.show(call.context, image)
        if found is None:
            raise InvalidRequest(f"Image {image} could not be found.")
    password = want.get("adminPass") or new_password()
    ask(call, "rescue", {"image": image or call.server.image_id})
    return Answer({"adminPass": password} if call.settings.enable_instance_password else None, 200)


def create_image(call: Call) -> Answer:
    """An image of the server's root disk: it is there at once, queued, and active when the copy is done."""
    import orjson

    want, id = call.body, str(uuid.uuid4())
    own = orjson.loads(call.server.image).get("properties") or {}
    properties = {**{name: value for name, value in own.items() if not name.startswith("os_hidden")},
                  **(want.get("metadata") or {}), "image_type": "snapshot", "instance_uuid": call.server.id,
                  "user_id": call.context.user_id, "base_image_ref": call.server.image_id or ""}
    mapping, taken = snapshots(call, id)
    if taken:
        call.check(f"{RULE}servers:create_image:allow_volume_backed")
        properties.update(block_device_mapping=servers.text(mapping), bdm_v2=True,
                          root_device_name=call.server.root_device_name)
    image = call.cloud.services.image.create(
        call.context, want["name"], disk_format="raw" if taken else "qcow2", container_format="bare",
        visibility="private", properties={name: str(value) for name, value in properties.items()}, id=id,
        min_disk=0 if taken else orjson.loads(call.server.flavor)["disk"])
    try:
        ask(call, "createImage", {"image": image["id"], "name": want["name"], "snapshots": taken})
    except MagnetarError:
        call.cloud.services.image.delete(call.context, image["id"])
        raise
    if call.version >= BODY_OF_IMAGE:
        return Answer({"image_id": image["id"]}, 202)
    return Answer(None, 202, {"Location": f"{call.request.root}/image/v2/images/{image['id']}"})


def change_password(call: Call) -> Answer:
    """In the guest, by its agent. The password goes to the host at once and is kept nowhere, so this waits for it."""
    host = call.cloud.hosts.get(call.server.host)
    if host is None or not host.up:
        raise Conflict(f"The host of instance {call.server.id} does not answer.")
    try:
        with call.cloud.agents.client(host.endpoint) as client:
            client.event("server", call.server.id, "change_password", {"password": call.body["adminPass"]},
                         timeout=30, request_id=call.request.id)
    except MagnetarError as error:
        raise Conflict(f"Failed to set admin password on {call.server.id}: {_told(call, error)}") from None
    with call.database.write() as connection:
        done(call, connection, "changePassword")
    return Answer(None, 202)


def _told(call: Call, error: MagnetarError) -> str:
    """What a failure at the server's host says to the caller: admins read which host, and why."""
    return error.message if call.context.is_admin else plain(error)


def done(call: Call, connection: Connection, key: str) -> None:
    """Note an action that is done already."""
    servers.enqueue(connection, call.server.id, key, call.request.id, call.context.user_id, call.project,
                    host=call.server.host, state="done")


def console_output(call: Call) -> Answer:
    """The end of the console log."""
    length = (call.body or {}).get("length")
    host = call.cloud.hosts.get(call.server.host)
    if host is None:
        raise Conflict(f"Instance {call.server.id} is not ready")
    lines = None if length in (None, -1) else int(length)
    try:
        with call.cloud.agents.client(host.endpoint) as client:
            text = "" if lines == 0 else client.console(call.server.id, lines)
    except MagnetarError as error:
        raise Conflict(f"Unable to get console log of {call.server.id}: {_told(call, error)}") from None
    return Answer({"output": text}, 200)


def lock(call: Call) -> Answer:
    """Keep others than admins from changing it."""
    reason = (call.body or {}).get("locked_reason") if isinstance(call.body, dict) else None
    by = "owner" if call.server.project_id == call.project and not call.context.is_admin else "admin"
    with call.database.write() as connection:
        servers.change(connection, call.server.id, locked_by=call.server.locked_by or by, locked_reason=reason)
        done(call, connection, "lock")
    return Answer(None, 202)


def unlock(call: Call) -> Answer:
    """Take the lock away; that of an admin by an admin only."""
    if call.server.locked_by == "admin":
        call.check(f"{RULE}os-lock-server:unlock:unlock_override")
    with call.database.write() as connection:
        servers.change(connection, call.server.id, locked_by=None, locked_reason=None)
        done(call, connection, "unlock")
    return Answer(None, 202)


def reset_state(call: Call) -> Answer:
    """Say that a server is active, or in error, and that nothing is done to it, unless it is being deleted."""
    from magnetar_control.store import actions

    with call.database.write() as connection:
        going = actions.reset(connection, call.server.id)
        servers.change(connection, call.server.id, vm_state=call.body["state"].lower(),
                       task_state=servers.DELETING if going else None)
    return Answer(None, 202)


def force_delete(call: Call) -> Answer:
    """As DELETE, whatever is going on."""
    delete(call)
    return Answer(None, 202)


class _LockBody(Value):
    """Anything before 2.73; null or a reason since."""

    REASON = record({"locked_reason": Text(1, 255)})

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """The reason's object."""
        if version is None or version.minor < LOCK_REASON:
            return None
        return None if value is None else self.REASON.check(value, path, version)


class _MigrateBody(Value):
    """Anything before 2.56; null or a host since."""

    HOST = record({"host": Nullable(Text(1, 255))})

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """The host's object."""
        if version is None or version.minor < HOST_CHECKED_MIGRATE:
            return None
        return None if value is None else self.HOST.check(value, path, version)


BLOCK = ByVersion(("2.1", "2.24", TRUTH), ("2.25", None, OneOf(Choices("auto"), TRUTH)))
LIVE_BODY = record({"host": Nullable(Text(1, 255)), "block_migration": BLOCK,
                    "disk_over_commit": since("2.1", TRUTH, until="2.24"),
                    "force": since("2.30", TRUTH, until="2.67")}, "host", "block_migration")


class _LiveBody(Value):
    def check(self, value: Any, path: str, version: Any = None) -> Any:
        if version is not None and version.minor < 25 and isinstance(value, dict) and "disk_over_commit" not in value:
            raise InvalidField(f"{path}.disk_over_commit", "is required")
        return LIVE_BODY.check(value, path, version)


RESIZE_BODY = record({"flavorRef": OneOf(Text(1, 255), Number()), "OS-DCF:diskConfig": Choices("AUTO", "MANUAL")},
                     "flavorRef")
RESCUE_BODY = Nullable(record({"adminPass": PASSWORD, "rescue_image_ref": Id()}))
IMAGE_BODY = record({"name": NAME, "metadata": METADATA}, "name")
CONSOLE_BODY = record({"length": Nullable(Number(-1))})


def _row(action: str, handler: Callable[[Call], Any], rule: str, body: Value, act: str | None = None, status: int = 202,
         first: int = 1) -> Operation:
    return Operation(method="POST", path=PATH, handler=handler, name=f"servers.action.{action}", rule=RULE + rule,
                     action=action, act=act, target="server", body=Wrapped(action, body), status=status, since=first)


def _plain(action: str, rule: str, status: int = 202, first: int = 1, body: Value | None = None) -> Operation:
    return _row(action, _asks(action), rule, body or Anything(), action, status, first)


OPERATIONS = (
    _plain("os-start", "servers:start"), _plain("os-stop", "servers:stop"),
    _plain("pause", "os-pause-server:pause"), _plain("unpause", "os-pause-server:unpause"),
    _plain("suspend", "os-suspend-server:suspend"), _plain("resume", "os-suspend-server:resume"),
    _plain("unrescue", "os-unrescue"), _plain("revertResize", "servers:revert_resize"),
    _plain("confirmResize", "servers:confirm_resize", 204),
    _plain("trigger_crash_dump", "servers:trigger_crash_dump", first=17, body=Null()),
    _row("reboot", reboot, "servers:reboot", record({"type": Cased("soft", "hard")}, "type")),
    _row("resize", resize, "servers:resize", RESIZE_BODY, "resize"),
    _row("migrate", migrate, "os-migrate-server:migrate", _MigrateBody(), "migrate"),
    _row("os-migrateLive", migrate_live, "os-migrate-server:migrate_live", _LiveBody(), "os-migrateLive"),
    _row("rebuild", rebuild, "servers:rebuild", REBUILD_BODY, "rebuild"),
    _row("rescue", rescue, "os-rescue", RESCUE_BODY, "rescue", 200),
    _row("createImage", create_image, "servers:create_image", IMAGE_BODY, "createImage"),
    _row("changePassword", change_password, "os-admin-password", record({"adminPass": PASSWORD}, "adminPass"),
         "changePassword"),
    _row("os-getConsoleOutput", console_output, "os-console-output", CONSOLE_BODY, "console", 200),
    _row("lock", lock, "os-lock-server:lock", _LockBody()), _row("unlock", unlock, "os-lock-server:unlock", Anything()),
    _row("os-resetState", reset_state, "os-admin-actions:reset_state",
         record({"state": Cased("active", "error")}, "state")),
    _row("forceDelete", force_delete, "os-deferred-delete:force", Anything(), "forceDelete"),
)
