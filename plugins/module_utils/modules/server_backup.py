# SPDX-License-Identifier: GPL-3.0-or-later
"""The module server_backup, which creates or removes a backup of a server, identified by its name."""

from __future__ import annotations

from ..core.errors import InvalidField, NotFound
from ..core.kinds.common import NAME
from ..core.options import Option, name_options
from ..core.reconcile import assumed_warning
from ..core.values import Choices, Integer, MapOf, Text, Value
from .module import ABSENT, PRESENT, Module, get_resource, looks_like_uuid, texts_of_field


class ServerBackupModule(Module):
    """The module server_backup, which creates a backup of a server with a given name, or removes it."""

    name = "server_backup"
    cloud_only = True
    rules = {"required_if": [["state", PRESENT, ["backup_type", "rotation"]]]}
    options = name_options(
        name=Option(NAME, "Name of the backup, which is an image. An existing backup is not made again, so give each "
                    "its own name, for example with the date.", required=True,
                    aliases=("image_name",)),
        server=Option(Text(1, 255), "The server, by name or uuid. With O(state=absent), also a deleted server by its "
                      "uuid.", required=True),
        state=Option(Choices(PRESENT, ABSENT), "V(present) makes the backup unless an image with this name is a "
                     "backup of O(server) and of O(backup_type) that has not failed. V(absent) deletes all such "
                     "backups, also failed ones.",
                     default=PRESENT),
        backup_type=Option(Text(0, 255), "Type of the backup, such as V(daily); each type is counted separately. "
                           "Required with O(state=present); with O(state=absent), any type when omitted."),
        rotation=Option(Integer(1), "Number of the server's backups of that type to keep, including the new one. "
                        "Older ones are deleted when the new one has its content."),
        metadata=Option(MapOf(Text(), Value()), "Properties of the new image."),
    )

    def execute(self, params, check_mode, diff_mode, client):
        try:
            server = get_resource(client, "server", params["server"])
        except NotFound:
            server = _absent_server(params, check_mode)
        absent = params["state"] == ABSENT
        _check(params, absent)
        backups = _backups(client, server, params)
        present = [backup for backup in backups if absent or backup["status"] != "error"]
        if present and not absent:
            result = {"changed": False, "image": present[0], "actions": []}
        else:
            result = (_delete_backups(backups, params, check_mode, client) if absent else
                      _make_backup(server, params, check_mode, client))
        if diff_mode:
            names = [backup["name"] for backup in present]
            result["diff"] = {"before": {"backups": names}, "after": {"backups": [] if absent else (
                names or [params["name"]])}}
        return result


def _check(params, absent):
    """Raise ``InvalidField`` for options that the requested state does not allow (*absent*: whether this state is
    absent), and for required options with the value ``null``, which the argument spec does not refuse.
    """
    for name in () if absent else ("backup_type", "rotation"):
        if params[name] is None:
            raise InvalidField(name, "is required to make a backup")
    for name in ("rotation", "metadata") if absent else ():
        if params[name] is not None:
            raise InvalidField(name, "belongs to state=present")


def _absent_server(params, check_mode):
    """Return a substitute for the server in *params*, which does not exist. If the server's backups are removed, the
    substitute has the uuid that the user gave. If a backup is created in check mode, the substitute is empty, since an
    earlier task may create the server. Otherwise raise ``NotFound``.
    """
    if params["state"] == ABSENT and looks_like_uuid(params["server"]):
        return {"id": params["server"].lower()}
    if params["state"] == PRESENT and check_mode:
        return {}
    raise NotFound("There is no server %s. For backups of a deleted one, give its uuid and state=absent."
                   % params["server"])


def _backups(client, server, params):
    """Return the backups of *server* that have the name and, if set, the ``backup_type`` in the module parameters
    *params*; newest first.
    """
    meant = {"image_type": "backup", "instance_uuid": server.get("id")}
    if params["backup_type"] is not None:
        meant["backup_type"] = params["backup_type"]
    backups = [backup for backup in client.list("image", name=params["name"])
               if all(backup["properties"].get(name) == value for name, value in meant.items())]
    return sorted(backups, key=lambda backup: backup["created_at"], reverse=True)


def _make_backup(server, params, check_mode, client):
    result = {"changed": True, "actions": ["create_backup"]}
    if not server:
        result["warnings"] = [assumed_warning("server", params["server"])]
    if check_mode:
        return result
    args = {name: params[name] for name in ("name", "backup_type", "rotation")}
    if params["metadata"] is not None:
        args["metadata"] = texts_of_field(_METADATA, params["metadata"])
    answer = client.event("server", server["id"], "create_backup", args, timeout=params["timeout"])
    result.update((name, answer[name]) for name in ("consistency",) if name in answer)
    return dict(result, image=client.get("image", answer["image"]["id"]), request_id=answer.get("request_id"))


def _delete_backups(backups, params, check_mode, client):
    result = {"changed": bool(backups), "image": backups[0] if backups else None, "actions": []}
    for backup in backups:
        answer = client.delete("image", backup["id"], dry_run=check_mode, timeout=params["timeout"])
        result["actions"] += [step["verb"] for step in answer.get("steps") or []]
        result["request_id"] = answer.get("request_id")
    return result


_METADATA = Option(MapOf(Text(), Text()), "").with_name("metadata")
