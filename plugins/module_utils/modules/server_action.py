# SPDX-License-Identifier: GPL-3.0-or-later
"""The module server_action: runs one-time actions on a server, and actions that only change its state (start, stop)."""

from __future__ import annotations

from ..core.errors import Ambiguous, Conflict, InvalidField, NotFound
from ..core.kinds.common import NAME
from ..core.options import WAITING, Option, name_options
from ..core.power import SOFT_DELETED as SOFT_DELETED_STATE
from ..core.power import status_word
from ..core.reconcile import assumed_warning
from ..core.values import Boolean, Choices, Integer, MapOf, Text, Value
from ..foreign import FOREIGN
from . import results
from .module import Module, get_resource, key_from_params, texts_of_field
from .server import encode_user_data

#: Actions that set a state of the server, with its fields: ``ensure`` requests them, so a repetition changes nothing.
STATES = {
    "start": {"power": "running"}, "stop": {"power": "off"}, "pause": {"power": "paused"},
    "unpause": {"power": "running"}, "suspend": {"power": "suspended"}, "resume": {"power": "running"},
    "rescue": {"power": "running"}, "unrescue": {"power": "running", "rescue": None},
    "shelve": {"power": "shelved"}, "unshelve": {"power": "running"},
}
#: Actions that are events, and the options of each.
EVENTS = {
    "reboot": ("reboot_type",), "reboot_soft": (), "reboot_hard": (),
    "rebuild": ("image", "key_name", "userdata", "metadata", "preserve_ephemeral"),
    "create_image": ("image_name", "metadata"), "crash_dump": (), "shelve_offload": (),
    "restore": (), "force_delete": (), "evacuate": ("host",),
    "create_backup": ("image_name", "backup_type", "rotation", "metadata"),
    "change_password": ("user", "password"), "clear_password": (),
    "lock": ("locked_reason",), "unlock": (),
}
#: Options of the remaining actions.
OTHERS = {"rescue": ("image",), "console_output": ("length",)}
#: Required options of actions.
NEEDED = {"create_image": ("image_name",), "change_password": ("password",),
          "create_backup": ("image_name", "backup_type", "rotation")}
OPTIONS = dict(dict.fromkeys(STATES, ()), **dict(EVENTS, **OTHERS))
LINES = 50
SOFT_DELETED = status_word(SOFT_DELETED_STATE)


class ServerActionModule(Module):
    """The module server_action, which performs one action, such as a reboot, on a server."""

    name = "server_action"
    foreign = FOREIGN["server_action"]
    rules = {
        "required_one_of": [["name", "id"]],
        "required_if": [["action", action, list(options)] for action, options in NEEDED.items()],
    }
    masked = ("userdata",)
    options = name_options(
        name=Option(Text(1, 255), "Name or uuid of the server.", aliases=("server",)),
        id=Option(Text(1, 255), "Uuid of the server, in place of O(name)."),
        action=Option(
            Choices(*OPTIONS), "The action. V(reboot_soft) asks the guest to restart; V(reboot_hard) restarts its "
                               "machine; V(reboot) follows O(reboot_type). V(rebuild) makes the root disk again from "
                               "its image or O(image), and keeps uuid, name, NICs and volumes. V(create_image) makes "
                               "an image O(image_name) of the root disk; V(create_backup) makes a new one each time, "
                               "and deletes the oldest beyond O(rotation), in a cloud. V(rescue) boots from another "
                               "image with the root disk as second disk, V(unrescue) from the root disk again. "
                               "V(crash_dump) sends a non-maskable interrupt. V(change_password) sets the password of "
                               "O(user) through the guest agent. V(clear_password) deletes the encrypted password "
                               "that the guest has posted to the metadata service, so that it can post another. "
                               "V(console_output) returns the end of the console log. V(start), V(stop), V(pause), "
                               "V(unpause), V(suspend), V(resume), V(shelve) and V(unshelve) set the power state, as "
                               "O(magnetar.compute.server#module:state) does. V(shelve_offload) removes a shelved "
                               "server from its host, for administrators of a cloud. V(evacuate) builds a server of a "
                               "dead host on another host, for administrators of a cloud; they can name servers of all "
                               "projects by uuid. V(restore) restores a deleted server completely while its "
                               "cloud keeps it (C(reclaim_instance_interval)); its name finds it unless another "
                               "server has that name now. V(force_delete) deletes a server of a cloud for good, also "
                               "a deleted server that the cloud keeps. V(lock) keeps users of a cloud from changing "
                               "the server until V(unlock); administrators can still change it, and only they "
                               "remove a lock of an administrator.",
            required=True),
        reboot_type=Option(Choices("soft", "hard"), "Kind of O(action=reboot).", default="soft"),
        image=Option(Text(), "Image by name or uuid. For O(action=rebuild) the one to make the root disk from, the "
                     "same again when omitted; for O(action=rescue) the one to boot from, the server's own when "
                     "omitted.", aliases=("rescue_image",)),
        image_name=Option(NAME, "Name of the image of O(action=create_image) or O(action=create_backup). "
                          "O(action=create_image) does nothing if an image of this server has the name, and fails if "
                          "another image has it; O(action=create_backup) does not check names."),
        backup_type=Option(Text(0, 255), "Type of the backup of O(action=create_backup), such as V(daily); each type "
                           "is counted separately."),
        rotation=Option(Integer(0), "Number of the server's backups of that type that O(action=create_backup) keeps, "
                        "including the new one. With V(0) it keeps none."),
        metadata=Option(MapOf(Text(), Value()), "Properties of the image of O(action=create_image) or "
                        "O(action=create_backup), or the metadata that the server has after O(action=rebuild)."),
        key_name=Option(Text(), "Keypair that the guest is given by O(action=rebuild), in place of the present one."),
        userdata=Option(Value(), "User data of the guest after O(action=rebuild), in place of the present ones: text, "
                        "or a mapping, which is sent as C(#cloud-config).", secret=True, aliases=("user_data",)),
        preserve_ephemeral=Option(Boolean(), "Whether O(action=rebuild) keeps the ephemeral disk. It does not when "
                                  "omitted."),
        host=Option(Text(1, 255), "Host that gets the server by O(action=evacuate); the scheduler chooses one when "
                    "omitted."),
        user=Option(Text(), "The user whose password O(action=change_password) sets; when omitted, C(admin_user) of "
                    "the server's hardware (of an image C(os_admin_user)), or V(root)."),
        password=Option(Text(), "The new password.", secret=True, aliases=("admin_password",)),
        locked_reason=Option(Text(1, 255), "Why O(action=lock) locks the server; who sees the server sees it."),
        length=Option(Integer(1), "How many lines O(action=console_output) returns; %d when omitted." % LINES),
    ) + WAITING + foreign

    def execute(self, params, check_mode, diff_mode, client):
        action = params["action"]
        _check(action, params)
        try:
            server = get_resource(client, "server", key_from_params(params))
        except NotFound:
            server = _find_outside_project(client, key_from_params(params), action)
            if server is None:
                if action == "force_delete":
                    return {"changed": False, "actions": []}
                if not check_mode:
                    raise
                return _assumed(params)
        if action in STATES:
            return self._ensure(server, params, check_mode, diff_mode, client)
        if action == "console_output":
            text = client.console(server["id"], params["length"] or LINES)
            return {"changed": False, "server": server, "actions": [], "console": text}
        return self._unchanged(server, params, check_mode, client) or self._event(server, params, check_mode, client)

    def _unchanged(self, server, params, check_mode, client):
        """Return the module result if the action would change nothing, because its effect exists already; otherwise
        ``None``.
        """
        action, result = params["action"], None
        if action == "create_image":
            result = _made_before(server, params, check_mode, client)
        elif action in ("lock", "unlock"):
            result = {} if _is_locked_as_requested(server, params) else None
        elif (action == "restore" and server["status"] != SOFT_DELETED) or (
                action == "shelve_offload" and server["status"] == "SHELVED_OFFLOADED"):
            result = {}
        return None if result is None else dict(result, changed=False, server=server, actions=[])

    def _ensure(self, server, params, check_mode, diff_mode, client):
        want = dict(STATES[params["action"]])
        if params["action"] == "rescue":
            want["rescue"] = server.get("rescue") if params["image"] is None else {"image": params["image"]}
            want["rescue"] = want["rescue"] or {}
        answer = client.ensure("server", server["id"], want, dry_run=check_mode, wait=params["wait"],
                               timeout=params["timeout"])
        return results.module_result("server", server["name"], answer, diff_mode)

    def _event(self, server, params, check_mode, client):
        event, args = _event(params)
        result = {"changed": True, "server": server, "actions": [_action_name(params)]}
        if check_mode:
            return result
        answer = client.event("server", server["id"], event, args, timeout=params["timeout"], wait=params["wait"])
        result.update((name, answer[name]) for name in ("image", "consistency", "operation") if name in answer)
        return dict(result, server=answer.get("resource") or server, request_id=answer.get("request_id"))


def _is_locked_as_requested(server, params):
    """Return whether the action lock or unlock would change nothing. For lock: the server is locked, with the requested
    reason if one is set. For unlock: the server is not locked. Return ``False`` if an API of an earlier release does
    not report locks."""
    if params["action"] == "unlock":
        return server.get("locked") is False
    return bool(server.get("locked")) and params["locked_reason"] in (None, server.get("locked_reason"))


def _find_outside_project(client, key, action):
    """Return the server *key*, which a normal lookup does not find, if *action* can be used on it; otherwise ``None``.
    For restore and force_delete, find a soft-deleted server by name. For evacuate, find a server of any project by
    uuid. Only clouds have such servers."""
    if action in ("restore", "force_delete"):
        return _soft_deleted(client, key)
    if action == "evacuate" and client.of_cloud:
        return next(iter(client.list("server", id=key, all_projects="true")), None)
    return None


def _soft_deleted(client, name):
    """Return the soft-deleted server *name*; ``None`` if there is none. Raises ``Ambiguous`` if there are several."""
    named = list(client.list("server", name=name, status=SOFT_DELETED)) if client.of_cloud else []
    if len(named) > 1:
        raise Ambiguous("%d soft-deleted servers have the name %r; use a uuid." % (len(named), name),
                        uuids=[server["id"] for server in named])
    return named[0] if named else None


def _check(action, params):
    """Raise ``InvalidField`` if *params* set an option that *action* does not have, or have ``null`` for an option that
    it requires.
    """
    option_names = {name for names in OPTIONS.values() for name in names} - {"reboot_type"}
    for name in sorted(option_names - set(OPTIONS[action])):
        if params.get(name) is not None:
            raise InvalidField(name, "does not belong to action %s" % action)
    for needed in NEEDED.get(action, ()):
        if params.get(needed) is None:
            raise InvalidField(needed, "is required for action %s" % action)


def _assumed(params):
    """Return the result in check mode if the server does not exist. It is assumed that an earlier task creates the
    server.
    """
    action, name = params["action"], key_from_params(params)
    result = {"changed": True, "server": {"name": name}, "actions": [_action_name(params)],
              "warnings": [assumed_warning("server", name)]}
    return dict(result, changed=False, actions=[], console="") if action == "console_output" else result


def _action_name(params):
    """Return the name of the action for the list ``actions`` of the result. For a reboot, it includes the type:
    reboot_soft or reboot_hard.
    """
    action = params["action"]
    return "reboot_" + params["reboot_type"] if action == "reboot" else action


def _event(params):
    """Return (event, arguments) for ``Client.event``, which performs the action in the module parameters *params*."""
    action = params["action"]
    if action.startswith("reboot"):
        return "reboot", {"type": params["reboot_type"] if action == "reboot" else action[len("reboot_"):]}
    arguments = {name: params[name] for name in OPTIONS[action] if params.get(name) is not None}
    if "userdata" in arguments:
        arguments["user_data"] = encode_user_data(arguments.pop("userdata"))
    if "image_name" in arguments:
        arguments["name"] = arguments.pop("image_name")
    if "metadata" in arguments:
        arguments["metadata"] = texts_of_field(_METADATA, arguments["metadata"])
    return action, arguments


def _made_before(server, params, check_mode, client):
    """Return the image ``image_name`` of *server* as a part of the module result, if an earlier run has created it or
    is still creating it; otherwise ``None``. With the option ``wait``, except in check mode, first wait until it is
    complete.

    An agent lists an image only when it is complete; before that, only a running operation shows that it is being
    created.
    """
    operation = _under_way(server, params, client)
    if operation and params["wait"] and not check_mode:
        client.wait_for(operation, params["timeout"])
        operation = None
    image = _image(server, params, client)
    result = {"image": _brief(image), "consistency": image.get("consistency")} if image else {}
    if operation:
        result.update(operation=operation, request_id=operation.get("request_id"))
    return result or None


def _under_way(server, params, client):
    """Return the running operation that creates the image ``image_name`` from *server*; ``None`` if there is none."""
    running = client.list("operations", status="running", kind="server", name="create_image")
    return next((operation for operation in running if operation.get("subject") == params["image_name"]
                 and operation["key"] in (server["id"], server["name"])), None)


def _image(server, params, client):
    """Return the image ``image_name`` if it was created from *server*; ``None`` if it does not exist or its creation
    failed. Raises ``Conflict`` if another image has this name.
    """
    for image in client.list("image", name=params["image_name"]):
        if image.get("status") == "error":
            continue
        if (image.get("properties") or {}).get("instance_uuid") == server["id"]:
            return image
        raise Conflict("There is an image %s already, and it was not made of server %s. Choose another image_name, or "
                       "remove that image first." % (params["image_name"], server["name"]), uuids=[image.get("id")])
    return None


def _brief(image):
    return {"id": image["id"], "name": image["name"]}


_METADATA = Option(MapOf(Text(), Text()), "").with_name("metadata")
