# SPDX-License-Identifier: GPL-3.0-or-later
"""POST /servers/{id}/action: the actions on servers, with their bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from magnetar_control.api.nova.history import ApiChange
from magnetar_control.api.nova.operation import ApiOperation, Call, shown_as
from magnetar_control.api.nova.values import METADATA, PASSWORD, TRUTH, body_object, field_since
from magnetar_control.api.values import Address, Anything, ByVersion, Id, Null, Number, Wrapped
from magnetar_control.compute.proxies import networks, security_groups
from magnetar_control.compute.servers import evacuate, server_actions, server_images, servers, shelve, soft_delete
from magnetar_control.web import Answer
from magnetar_core.errors import InvalidField
from magnetar_core.kinds.common import NAME
from magnetar_core.values import Choices, Nullable, OneOf, Text, Value

from .server_create import ensure_admin_password, flavor_id
from .server_fields import ATTRIBUTE, FIELDS, FQDN, WORD
from .servers import render_changed_server


class Cased(Value):
    """A validator that accepts any of *words*, in upper or lower case, and converts it to lower case."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """Return *value* in lower case. Raises ``InvalidField`` if it is not one of the words."""
        if not isinstance(value, str) or value.lower() not in self.words:
            raise InvalidField(path, f"must be one of {', '.join(self.words)}", value)
        return value.lower()


def _rebuild(call: Call) -> dict[str, Any]:
    arguments = FIELDS.arguments(call.body, "rebuild")
    return {"wanted": server_actions.Rebuild(
        admin_pass=ensure_admin_password(call.body, call.settings.enable_instance_password),
        image_id=arguments.pop("image_id"),
        preserve_ephemeral=arguments.pop("preserve_ephemeral", False), metadata=arguments.pop("metadata", None),
        files=arguments.pop("files", None), reimage=call.at(ApiChange.REIMAGED_VOLUMES), columns=arguments)}


def _rebuilt(call: Call, row: Any) -> Answer:
    answer = render_changed_server(call, row, "rebuild")
    answer["server"].pop(f"{ATTRIBUTE}user_data", None)  # the answer has it as user_data, for all who may rebuild
    if call.settings.enable_instance_password:
        answer["server"]["adminPass"] = call.body["adminPass"]
    return Answer(answer, 202, {"Location": f"{call.base}/servers/{row.id}"})


def _rescue(call: Call) -> dict[str, Any]:
    call.body = call.body or {}
    return {"admin_pass": ensure_admin_password(call.body, call.settings.enable_instance_password),
            "image_id": call.body.get("rescue_image_ref"),
            "volume_backed": call.at(ApiChange.RESCUE_OF_VOLUMES)}


def _rescued(call: Call, _none: None) -> Any:
    return {"adminPass": call.body["adminPass"]} if call.settings.enable_instance_password else None


def _evacuation(call: Call) -> dict[str, Any]:
    host, new_password = call.body.get("host"), "adminPass" in call.body
    on_shared_storage = call.body.get("onSharedStorage")
    return {"admin_pass": None if on_shared_storage else ensure_admin_password(call.body, _tells(call)), "host": host,
            "force": call.body.get("force", host is not None and not call.at(ApiChange.EVACUATION_SCHEDULED)),
            "stopped": call.at(ApiChange.EVACUATED_STOPPED), "on_shared_storage": on_shared_storage,
            "new_password": new_password}


def _tells(call: Call) -> bool:
    """Return whether the answer to an evacuation contains the new admin password: the setting
    ``enable_instance_password`` is true, and the version is older than 2.14."""
    return call.settings.enable_instance_password and not call.at(ApiChange.EVACUATION_ANSWERS_NOTHING)


def _evacuated(call: Call, _none: None) -> Any:
    if not _tells(call):
        return None
    return {"adminPass": None if call.body.get("onSharedStorage") else call.body["adminPass"]}


def _image(call: Call, id: str) -> Answer:
    if call.at(ApiChange.IMAGE_IN_BODY):
        return Answer({"image_id": id}, 202)
    return Answer(None, 202, {"Location": f"{call.images}/v2/images/{id}"})


def _backup(call: Call, id: str) -> Answer:
    if call.body["rotation"] or call.at(ApiChange.IMAGE_IN_BODY):
        return _image(call, id)
    return Answer(None, 202)  # no backup of that type is kept, so there is no image to link to


def _unshelved(call: Call) -> dict[str, Any]:
    body = call.body if call.at(ApiChange.UNSHELVE_TO_ZONE) and call.body else {}
    zone = body.get("availability_zone")
    return {"zone": zone, "unpin": zone is None and "availability_zone" in body, "host": body.get("host")}


def _lines(call: Call) -> dict[str, int | None]:
    length = (call.body or {}).get("length")
    return {"lines": None if length in (None, -1) else int(length)}


class AnythingBefore(Value):
    """A validator with two behaviours. Before the version of *change* (an ``ApiChange``, a change of behaviour of the
    API), it accepts any value. From this version on, it accepts only null and the values that the wrapped validator
    *value* accepts."""

    def __init__(self, change: ApiChange, value: Value) -> None:
        self.change, self.value = change, value

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """Return the checked *value*; ``None`` for null, and for any value in the API versions before the version of
        ``change``. Raises ``InvalidField``."""
        if version is None or version.minor < self.change.version or value is None:
            return None
        return self.value.check(value, path, version)


BLOCK = ByVersion(("2.1", "2.24", TRUTH), ("2.25", None, OneOf(Choices("auto"), TRUTH)))
LIVE_BODY = body_object({"host": Nullable(Text(1, 255)), "block_migration": BLOCK,
                         "disk_over_commit": field_since("2.1", TRUTH, until="2.24", required=True),
                         "force": field_since("2.30", TRUTH, until="2.67")}, "host", "block_migration")
RESIZE_BODY = body_object({"flavorRef": OneOf(Text(1, 255), Number()), "OS-DCF:diskConfig": Choices("AUTO", "MANUAL")},
                          "flavorRef")
UNSHELVE_BODY = ByVersion(
    ("2.1", "2.76", Anything()), ("2.77", "2.90", Nullable(body_object({"availability_zone": WORD},
                                                                       "availability_zone"))),
    ("2.91", None, Nullable(body_object({"availability_zone": Nullable(WORD), "host": FQDN}))))
BACKUP_BODY = body_object({"name": NAME, "backup_type": Text(0, 255), "rotation": Number(), "metadata": METADATA},
                          "name", "backup_type", "rotation")
EVACUATE_BODY = body_object({"host": FQDN, "adminPass": PASSWORD,
                             "onSharedStorage": field_since("2.1", TRUTH, until="2.13", required=True),
                             "force": field_since("2.29", TRUTH, until="2.67")})
RESCUE_BODY = Nullable(body_object({"adminPass": PASSWORD, "rescue_image_ref": Id()}))


def _row(action: str, use: Callable[..., Any], body: Value | None = None, status: int = 202, first: int = 1,
         **more: Any) -> ApiOperation:
    return ApiOperation(method="POST", path="/servers/{server_id}/action", name=f"servers.action.{action}", use=use,
                        action=action, target="server", body=Wrapped(action, body or Anything()), status=status,
                        since=first, **more)


def _forced(call: Call) -> bool:
    """Return whether a live migration uses the requested host without asking the scheduler. This is so if the body has
    ``force``; before 2.30, whenever the body names a host."""
    if call.at(ApiChange.LIVE_MIGRATION_HOST_CHECKED):
        return bool(call.body.get("force"))
    return bool(call.body.get("host"))


def _body_argument(name: str, key: str) -> dict[str, Any]:
    """Return ``{"given": function}`` for the declaration of an ``ApiOperation``. The function passes the body's value
    of *key*, or ``None``, as the argument *name* to the use case, the function that does the work of the operation."""
    return {"given": lambda call: {name: (call.body or {}).get(key)}}


def _address(call: Call) -> dict[str, str]:
    return {"address": call.body["address"]}


#: Actions without arguments that differ from the others in their first version, body or status.
PLAIN: Mapping[str, Mapping[str, Any]] = {"confirmResize": {"status": 204},
                                          "trigger_crash_dump": {"first": 17, "body": Null()}}
OPERATIONS = (
    *(_row(key, use, **PLAIN.get(key, {})) for key, use in server_actions.PLAIN.items()),
    _row("reboot", server_actions.reboot_server, body_object({"type": Cased("soft", "hard")}, "type"),
         given=attrgetter("body")),
    _row("resize", server_actions.resize_server, RESIZE_BODY, given=lambda call: {
        "flavor_id": flavor_id(call.body["flavorRef"]), "disk_config": call.body.get("OS-DCF:diskConfig")}),
    _row("migrate", server_actions.migrate_server,
         AnythingBefore(ApiChange.COLD_MIGRATION_HOST, body_object({"host": Nullable(Text(1, 255))})),
         **_body_argument("host", "host")),
    _row("os-migrateLive", server_actions.live_migrate_server, LIVE_BODY, given=lambda call: {
        "host": call.body.get("host"), "ask_for_hosts": not call.at(ApiChange.LIVE_MIGRATION_UNCHECKED),
        "forced": _forced(call)}),
    _row("rebuild", server_actions.rebuild_server, FIELDS.body("rebuild"), given=_rebuild, shown=_rebuilt),
    _row("rescue", server_actions.rescue_server, RESCUE_BODY, 200, shown=_rescued, given=_rescue),
    _row("evacuate", evacuate.evacuate_server, EVACUATE_BODY, 200, given=_evacuation, shown=_evacuated),
    _row("createImage", server_images.create_server_image, body_object({"name": NAME, "metadata": METADATA}, "name"),
         shown=_image, given=lambda call: {"name": call.body["name"], "properties": call.body.get("metadata")}),
    _row("createBackup", server_images.create_server_backup, BACKUP_BODY, shown=_backup, given=lambda call: {
        "name": call.body["name"], "backup_type": call.body["backup_type"], "rotation": call.body["rotation"],
        "properties": call.body.get("metadata")}),
    _row("shelve", shelve.shelve_server),
    _row("unshelve", shelve.unshelve_server, UNSHELVE_BODY, given=_unshelved),
    _row("restore", soft_delete.restore_deleted_server),
    _row("changePassword", server_actions.change_server_password, body_object({"adminPass": PASSWORD}, "adminPass"),
         waits=True, **_body_argument("password", "adminPass")),
    _row("os-getConsoleOutput", server_actions.show_console_output, body_object({"length": Nullable(Number(-1))}), 200,
         given=_lines, shown=shown_as("output"), waits=True),
    _row("lock", server_actions.lock_server, AnythingBefore(ApiChange.LOCK_REASONS,
                                                            body_object({"locked_reason": Text(1, 255)})),
         **_body_argument("reason", "locked_reason")),
    _row("unlock", server_actions.unlock_server),
    _row("os-resetState", server_actions.reset_server_state, body_object({"state": Cased("active", "error")}, "state"),
         given=attrgetter("body")),
    _row("injectNetworkInfo", server_actions.inject_network_info),
    _row("forceDelete", servers.force_delete_server),
    *(_row(action, use, body_object({"name": Text(1, 255)}, "name"), given=attrgetter("body")) for action, use in (
        ("addSecurityGroup", security_groups.add_server_security_group),
        ("removeSecurityGroup", security_groups.remove_server_security_group))),
    *(_row(action, use, body, until=43, given=arguments) for action, use, body, arguments in (
        ("addFloatingIp", networks.associate_floating_ip, body_object({"address": Address(),
                                                                       "fixed_address": Address()}, "address"),
         attrgetter("body")),
        ("removeFloatingIp", networks.disassociate_floating_ip, body_object({"address": Address()}, "address"),
         _address),
        ("addFixedIp", networks.add_fixed_ip, body_object({"networkId": OneOf(Text(1, 255), Number())}, "networkId"),
         lambda call: {"network_id": str(call.body["networkId"])}),
        ("removeFixedIp", networks.remove_fixed_ip, body_object({"address": Address()}, "address"), _address))),
)
