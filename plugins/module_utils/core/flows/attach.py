# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow that attaches a volume of one host to a server on another host, or detaches it. It coordinates the two
agents; the data goes from agent to agent.

First the volume's host grants access (``volume_export``), then the server's host attaches (``volume_attachment``); a
detachment goes in reverse order. Each step may be repeated. The function *confirm* is called before each step; it
raises an error when the caller may no longer change the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from ..errors import InvalidField, NotFound
from ..reconcile import assumed_warning
from . import always_allowed

if TYPE_CHECKING:
    from . import Confirm
    from .migrate import Side


def attach_remote_volume(server_host: Side, volume_host: Side, server: str, volume: str, want: dict[str, Any],
                         confirm: Confirm = always_allowed, **waiting: Any) -> dict[str, Any]:
    """Attach *volume* (name or uuid) of *volume_host* to *server* of *server_host*, through an export (a permission to
    use the volume from the other host). *want*: further fields of the resource ``volume_attachment``. *confirm*: called
    before each change; raises an error if the change is no longer allowed. *waiting*: further arguments of
    ``Client.ensure``, such as timeout. Return the answer of ``Client.ensure`` for the attachment, including the steps
    of the export. A dry run assumes that an earlier task of the playbook creates a missing server or volume.
    """
    try:
        server_document, volume_document = _get_named(server_host, "server", server), _get_named(volume_host, "volume",
                                                                                                 volume)
    except InvalidField as error:
        if not waiting.get("dry_run"):
            raise
        return _dry_run_answer(str(error.details["field"]), server, volume, want)
    if _is_same_host(server_host, volume_host):
        confirm()
        return server_host.client.ensure("volume_attachment", "%s:%s" % (server_document["id"], volume_document["id"]),
                                         dict(want, server=server_document["id"], volume=volume_document["id"]),
                                         **waiting)
    key = "%s:%s" % (server_document["id"], volume_document["id"])
    export_request = {"server": server_document["id"], "server_name": server_document["name"],
                      "volume": volume_document["id"], "peers": [server_host.link_name()],
                      "readonly": bool(want.get("readonly"))}
    dry = {"dry_run": waiting.get("dry_run", False)}
    confirm()
    export = volume_host.client.ensure("volume_export", key, export_request, timeout=waiting.get("timeout"), **dry)
    origin = dict(export["resource"]["origin"], address=volume_host.link_address())
    confirm()
    answer = server_host.client.ensure("volume_attachment", key,
                                       dict(want, server=server_document["id"], volume=volume_document["id"],
                                            origin=origin), **waiting)
    if "steps" in answer:
        answer["steps"] = list(export["steps"]) + list(answer["steps"])
        answer["changed"] = bool(answer["changed"] or export["changed"])
    return answer


def detach_remote_volume(server_host: Side, volume_host: Optional[Side], server: str, volume: str,
                         confirm: Confirm = always_allowed, **waiting: Any) -> dict[str, Any]:
    """Detach *volume* (name or uuid) from *server* of *server_host*, and return the answer of ``Client.delete``. The
    agent of *server_host* also removes the export on the volume's host. *volume_host*: the volume's host; if given, an
    export that an unfinished attachment has left on *volume_host* is removed too. *confirm*: called before each change;
    raises an error if the change is no longer allowed. *waiting*: further arguments of ``Client.delete``.
    """
    key = "%s:%s" % (server, volume)
    if volume_host is not None:
        server_id, volume_id = _uuid_or_key(server_host, "server", server), _uuid_or_key(volume_host, "volume", volume)
        key = "%s:%s" % (server_id, volume_id)
    confirm()
    answer = server_host.client.delete("volume_attachment", key, **waiting)
    if volume_host is not None and not _is_same_host(server_host, volume_host):
        confirm()
        closed = volume_host.client.delete("volume_export", key, dry_run=waiting.get("dry_run", False))
        if closed["changed"] and "steps" in answer:
            answer["steps"] = list(answer["steps"]) + list(closed["steps"])
            answer["changed"] = True
    return answer


def _dry_run_answer(resource_type: str, server: str, volume: str, want: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a dry run that attaches *volume* to *server*, if server or volume does not exist yet.
    *resource_type*: which of the two is missing, server or volume. *want*: the fields of the attachment.
    """
    return {"changed": True, "steps": [{"verb": "open"}, {"verb": "attach"}], "diff": [],
            "resource": dict(want, server=server, volume=volume),
            "warnings": [assumed_warning(resource_type, server if resource_type == "server" else volume)]}


def _is_same_host(server_host: Side, volume_host: Side) -> bool:
    """Return whether *server_host* and *volume_host* are the same host. A volume then needs no export."""
    return all(server_host.host[name] == volume_host.host[name] for name in ("id", "name", "link_name"))


def _get_named(side: Side, resource_type: str, key: str) -> dict[str, Any]:
    try:
        return side.client.get(resource_type, key)
    except NotFound:
        raise InvalidField(resource_type, "must name a %s of %s" % (resource_type, side.host["name"]), key) from None


def _uuid_or_key(side: Side, resource_type: str, key: str) -> str:
    """Return the uuid of the *resource_type* (server or volume) with the name or uuid *key*; *key* itself if there is
    no such resource, since the removal of a missing resource is no error.
    """
    try:
        return str(side.client.get(resource_type, key)["id"])
    except NotFound:
        return key
