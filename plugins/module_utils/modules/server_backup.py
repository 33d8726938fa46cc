# SPDX-License-Identifier: GPL-3.0-or-later
"""server_backup: a backup of a server, by its name, as something that is there or is not."""

from __future__ import annotations

from ..core.errors import InvalidField, NotFound
from ..core.kinds.common import NAME
from ..core.options import Option, collect
from ..core.reconcile import assumed
from ..core.values import Choices, Integer, MapOf, Text, Value
from .module import ABSENT, PRESENT, Module, as_texts, find, is_uuid


class ServerBackupModule(Module):
    """Makes a server have a backup, or none, of a name."""

    name = "server_backup"
    cloud_only = True
    rules = {"required_if": [["state", PRESENT, ["backup_type", "rotation"]]]}
    options = collect(
        name=Option(NAME, "Name of the backup, which is an image. A backup that is there is not made anew, so the name "
                    "of each holds what tells it from the others, such as its day.", required=True,
                    aliases=("image_name",)),
        server=Option(Text(1, 255), "The server, by name or uuid. By its uuid also one that is deleted, for "
                      "O(state=absent).", required=True),
        state=Option(Choices(PRESENT, ABSENT), "V(present) makes the backup where it is not there: there is no image "
                     "of this name that is a backup of O(server) and of O(backup_type), or it has failed. V(absent) "
                     "deletes each that is, also one that has failed.", default=PRESENT),
        backup_type=Option(Text(0, 255), "Kind of the backup, such as V(daily): those of each kind are counted by "
                           "themselves. Needed with O(state=present); with O(state=absent), of any kind when omitted."),
        rotation=Option(Integer(1), "How many of the server's backups of that kind are kept, the new one among them. "
                        "The oldest beyond that are deleted when the new one has its content."),
        metadata=Option(MapOf(Text(), Value()), "Properties of the image, when it is made."),
    )

    def execute(self, params, check_mode, diff_mode, client):
        try:
            server = find(client, "server", params["server"])
        except NotFound:
            server = _gone(params, check_mode)
        absent = params["state"] == ABSENT
        _check(params, absent)
        found = _backups(client, server, params)
        there = [one for one in found if absent or one["status"] != "error"]
        if there and not absent:
            result = {"changed": False, "image": there[0], "actions": []}
        else:
            result = (_delete(found, params, check_mode, client) if absent else
                      _make(server, params, check_mode, client))
        if diff_mode:
            names = [one["name"] for one in there]
            result["diff"] = {"before": {"backups": names}, "after": {"backups": [] if absent else (
                names or [params["name"]])}}
        return result


def _check(params, absent):
    """Refuse options that do not belong to the state, and ``null``, which satisfies the rules of an argument spec."""
    for name in () if absent else ("backup_type", "rotation"):
        if params[name] is None:
            raise InvalidField(name, "is required to make a backup")
    for name in ("rotation", "metadata") if absent else ():
        if params[name] is not None:
            raise InvalidField(name, "belongs to state=present")


def _gone(params, check_mode):
    """What is known of a server that is not there: its uuid, or in check mode that an earlier task makes it. Raises
    ``NotFound``."""
    if params["state"] == ABSENT and is_uuid(params["server"]):
        return {"id": params["server"].lower()}
    if params["state"] == PRESENT and check_mode:
        return {}
    raise NotFound("There is no server %s. For backups of a deleted one, give its uuid and state=absent."
                   % params["server"])


def _backups(client, server, params):
    """The backups that are meant, newest first."""
    meant = {"image_type": "backup", "instance_uuid": server.get("id")}
    if params["backup_type"] is not None:
        meant["backup_type"] = params["backup_type"]
    found = [one for one in client.list("image", name=params["name"])
             if all(one["properties"].get(name) == value for name, value in meant.items())]
    return sorted(found, key=lambda one: one["created_at"], reverse=True)


def _make(server, params, check_mode, client):
    result = {"changed": True, "actions": ["create_backup"]}
    if not server:
        result["warnings"] = [assumed("server", params["server"])]
    if check_mode:
        return result
    args = {name: params[name] for name in ("name", "backup_type", "rotation")}
    if params["metadata"] is not None:
        args["metadata"] = as_texts(_METADATA, params["metadata"])
    answer = client.event("server", server["id"], "create_backup", args, timeout=params["timeout"])
    result.update((name, answer[name]) for name in ("consistency",) if name in answer)
    return dict(result, image=client.get("image", answer["image"]["id"]), request_id=answer.get("request_id"))


def _delete(found, params, check_mode, client):
    result = {"changed": bool(found), "image": found[0] if found else None, "actions": []}
    for one in found:
        answer = client.delete("image", one["id"], dry_run=check_mode, timeout=params["timeout"])
        result["actions"] += [step["verb"] for step in answer.get("steps") or []]
        result["request_id"] = answer.get("request_id")
    return result


_METADATA = Option(MapOf(Text(), Text()), "").named("metadata")
