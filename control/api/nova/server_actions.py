# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done to a server: POST /servers/{id}/action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from magnetar_control.api.nova.history import Gate
from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.api.nova.server_create import flavor_id, new_password
from magnetar_control.api.nova.server_fields import FIELDS
from magnetar_control.api.nova.servers import changed
from magnetar_control.api.nova.values import METADATA, PASSWORD, TRUTH, record, since
from magnetar_control.api.values import Anything, ByVersion, Id, Null, Number, Wrapped
from magnetar_control.compute import server_actions, servers
from magnetar_control.web import Answer
from magnetar_core.errors import InvalidField
from magnetar_core.kinds.common import NAME
from magnetar_core.values import Choices, Nullable, OneOf, Text, Value

PATH = "/servers/{server_id}/action"


def _plain(key: str) -> Callable[[Call], Answer]:
    """The handler of an action without arguments."""
    use = server_actions.PLAIN[key]

    def handler(call: Call) -> Answer:
        use(call, call.target)
        return Answer(None, call.operation.success(call.version))

    return handler


def reboot(call: Call) -> Answer:
    """soft or hard."""
    server_actions.reboot(call, call.target, call.body["type"].lower())
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
    """To another flavor."""
    server_actions.resize(call, call.target, flavor_id(call.body["flavorRef"]), call.body.get("OS-DCF:diskConfig"))
    return Answer(None, 202)


def migrate(call: Call) -> Answer:
    """Cold migration; a host may be named since 2.56."""
    server_actions.migrate(call, call.target, (call.body or {}).get("host"))
    return Answer(None, 202)


def migrate_live(call: Call) -> Answer:
    """Live migration; before 2.34 it is refused at once when there is no other host."""
    server_actions.migrate_live(call, call.target, call.body.get("host"),
                                ask_for_hosts=not call.at(Gate.LIVE_MIGRATION_UNCHECKED))
    return Answer(None, 202)


def rebuild(call: Call) -> Answer:
    """The root disk anew, from the same or another image. Answers with the whole server."""
    given = FIELDS.arguments(call.body, "rebuild")
    row = server_actions.rebuild(call, call.target, server_actions.Rebuild(
        image_id=given.pop("image_id"), preserve_ephemeral=given.pop("preserve_ephemeral", False),
        metadata=given.pop("metadata", None), files=given.pop("files", None), columns=given))
    answer = changed(call, row, "rebuild")
    if call.settings.enable_instance_password:
        answer["server"]["adminPass"] = call.body.get("adminPass") or new_password()
    return Answer(answer, 202, {"Location": f"{call.base}/servers/{row.id}"})


def rescue(call: Call) -> Answer:
    """Boot from another image, or its own."""
    want = call.body or {}
    server_actions.rescue(call, call.target, want.get("rescue_image_ref"),
                          volume_backed=call.at(Gate.RESCUE_OF_VOLUMES))
    password = want.get("adminPass") or new_password()
    return Answer({"adminPass": password} if call.settings.enable_instance_password else None, 200)


def create_image(call: Call) -> Answer:
    """An image of the server's root disk: it is there at once, queued, and active when the copy is done."""
    id = server_actions.create_image(call, call.target, call.body["name"], call.body.get("metadata"))
    if call.at(Gate.IMAGE_IN_BODY):
        return Answer({"image_id": id}, 202)
    return Answer(None, 202, {"Location": f"{call.request.root}/image/v2/images/{id}"})


def change_password(call: Call) -> Answer:
    """In the guest, by its agent."""
    server_actions.change_password(call, call.target, call.body["adminPass"])
    return Answer(None, 202)


def console_output(call: Call) -> Answer:
    """The end of the console log."""
    length = (call.body or {}).get("length")
    lines = None if length in (None, -1) else int(length)
    return Answer({"output": server_actions.console_output(call, call.target, lines)}, 200)


def lock(call: Call) -> Answer:
    """Keep others than admins from changing it; a reason may be given since 2.73."""
    server_actions.lock(call, call.target, (call.body or {}).get("locked_reason"))
    return Answer(None, 202)


def unlock(call: Call) -> Answer:
    """Take the lock away."""
    server_actions.unlock(call, call.target)
    return Answer(None, 202)


def reset_state(call: Call) -> Answer:
    """Say that a server is active, or in error."""
    server_actions.reset_state(call, call.target, call.body["state"].lower())
    return Answer(None, 202)


def force_delete(call: Call) -> Answer:
    """As DELETE, whatever is going on."""
    servers.force_delete(call, call.target)
    return Answer(None, 202)


class _LockBody(Value):
    """Anything before 2.73; null or a reason since."""

    REASON = record({"locked_reason": Text(1, 255)})

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """The reason's object."""
        if version is None or version.minor < Gate.LOCK_REASONS.version:
            return None
        return None if value is None else self.REASON.check(value, path, version)


class _MigrateBody(Value):
    """Anything before 2.56; null or a host since."""

    HOST = record({"host": Nullable(Text(1, 255))})

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """The host's object."""
        if version is None or version.minor < Gate.COLD_MIGRATION_HOST.version:
            return None
        return None if value is None else self.HOST.check(value, path, version)


BLOCK = ByVersion(("2.1", "2.24", TRUTH), ("2.25", None, OneOf(Choices("auto"), TRUTH)))
LIVE_BODY = record({"host": Nullable(Text(1, 255)), "block_migration": BLOCK,
                    "disk_over_commit": since("2.1", TRUTH, until="2.24"),
                    "force": since("2.30", TRUTH, until="2.67")}, "host", "block_migration")


class _LiveBody(Value):
    def check(self, value: Any, path: str, version: Any = None) -> Any:
        asked = version is not None and version.minor < Gate.DISK_OVER_COMMIT_GONE.version
        if asked and isinstance(value, dict) and "disk_over_commit" not in value:
            raise InvalidField(f"{path}.disk_over_commit", "is required")
        return LIVE_BODY.check(value, path, version)


RESIZE_BODY = record({"flavorRef": OneOf(Text(1, 255), Number()), "OS-DCF:diskConfig": Choices("AUTO", "MANUAL")},
                     "flavorRef")
RESCUE_BODY = Nullable(record({"adminPass": PASSWORD, "rescue_image_ref": Id()}))
IMAGE_BODY = record({"name": NAME, "metadata": METADATA}, "name")
CONSOLE_BODY = record({"length": Nullable(Number(-1))})


def _row(action: str, handler: Callable[[Call], Any], use: Any, body: Value | None = None, status: int = 202,
         first: int = 1) -> Operation:
    return Operation(method="POST", path=PATH, handler=handler, name=f"servers.action.{action}", use=use,
                     action=action, target="server", body=Wrapped(action, body or Anything()), status=status,
                     since=first)


#: What differs in actions without arguments: since when, with which body and status.
PLAIN: Mapping[str, Mapping[str, Any]] = {"confirmResize": {"status": 204},
                                          "trigger_crash_dump": {"first": 17, "body": Null()}}
_REBOOT = record({"type": Cased("soft", "hard")}, "type")
_STATE = record({"state": Cased("active", "error")}, "state")
_PASSWORD = record({"adminPass": PASSWORD}, "adminPass")
OPERATIONS = (
    *(_row(key, _plain(key), use, **PLAIN.get(key, {})) for key, use in server_actions.PLAIN.items()),
    _row("reboot", reboot, server_actions.reboot, _REBOOT),
    _row("resize", resize, server_actions.resize, RESIZE_BODY),
    _row("migrate", migrate, server_actions.migrate, _MigrateBody()),
    _row("os-migrateLive", migrate_live, server_actions.migrate_live, _LiveBody()),
    _row("rebuild", rebuild, server_actions.rebuild, FIELDS.body("rebuild")),
    _row("rescue", rescue, server_actions.rescue, RESCUE_BODY, 200),
    _row("createImage", create_image, server_actions.create_image, IMAGE_BODY),
    _row("changePassword", change_password, server_actions.change_password, _PASSWORD),
    _row("os-getConsoleOutput", console_output, server_actions.console_output, CONSOLE_BODY, 200),
    _row("lock", lock, server_actions.lock, _LockBody()),
    _row("unlock", unlock, server_actions.unlock),
    _row("os-resetState", reset_state, server_actions.reset_state, _STATE),
    _row("forceDelete", force_delete, servers.force_delete),
)
