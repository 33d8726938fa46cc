# SPDX-License-Identifier: GPL-3.0-or-later
"""volume_attachment, interface_attachment, and an ``_info`` of each: what belongs to a server and has no name."""

from __future__ import annotations

from ..core.client import Client
from ..core.errors import InvalidField
from ..core.flows.attach import attach, detach
from ..core.flows.migrate import Side
from ..core.kinds.interface import InterfaceAttachment
from ..core.kinds.volume import VolumeAttachment
from ..core.options import Option, client_arguments, collect
from ..core.values import Text
from . import results
from .resource import ABSENT, InfoFace, ResourceFace, is_uuid

SERVER = Option(Text(1, 255), "The server, by name or uuid.", required=True)


class AttachmentFace(ResourceFace):
    """One thing in a server, called by the server and what it is."""

    rules = {}
    replaced = ("server", "volume")
    #: Options that say which one is meant, the surest first.
    marks = ()
    state_doc = "V(present) makes the server have it. V(absent) makes the server be without it."

    def key(self, params):
        """``SERVER:WHAT``."""
        for name in self.marks:
            if params.get(name):
                return "%s:%s" % (params["server"], params[name])
        others = " or ".join(self.marks[:-1])
        raise InvalidField(self.marks[-1], "or %s is required" % others if others else "is required")

    def want(self, params):
        want = super().want(dict(params, id=None, name=None))
        want.update({name: params[name] for name in self.replaced if params.get(name) is not None})
        return want

    def execute(self, params, check_mode, diff_mode, client):
        key = self.key(params)
        waiting = {"dry_run": check_mode, "wait": params["wait"], "timeout": params["timeout"]}
        if params["state"] == ABSENT:
            answer = client.delete(self.kind.noun, key, **waiting)
        else:
            answer = client.ensure(self.kind.noun, key, self.want(params), on_immutable=params["on_immutable"],
                                   merge=[], **waiting)
        return results.changed(self.kind.noun, key, answer, diff_mode)


class VolumeAttachmentFace(AttachmentFace):
    kind = VolumeAttachment
    own = collect(
        server=SERVER, volume=Option(Text(1, 255), "The volume, by name or uuid.", required=True),
        volume_endpoint=Option(Text(1, 255), "Endpoint of the agent that has the volume, when it is another than "
                               "O(endpoint), which has the server. Token and certificates are used for both. Detaching "
                               "does not need it."),
        volume_address=Option(Text(1, 255), "Name or address by which the agent at O(endpoint) reaches the one at "
                              "O(volume_endpoint), when that is another than in O(volume_endpoint)."),
    )
    marks = ("volume",)

    def execute(self, params, check_mode, diff_mode, client):
        if not params["volume_endpoint"]:
            return super().execute(params, check_mode, diff_mode, client)
        with Client(**dict(client_arguments(params), endpoint=params["volume_endpoint"])) as other:
            here, there = Side(client), Side(other, params["volume_address"])
            waiting = {"dry_run": check_mode, "wait": params["wait"], "timeout": params["timeout"]}
            if params["state"] == ABSENT:
                answer = detach(here, there, params["server"], params["volume"], **waiting)
            else:
                answer = attach(here, there, params["server"], params["volume"], self.want(params),
                                on_immutable=params["on_immutable"], merge=[], **waiting)
        return results.changed(self.kind.noun, self.key(params), answer, diff_mode)


class InterfaceAttachmentFace(AttachmentFace):
    kind = InterfaceAttachment
    own = collect(server=SERVER)
    replaced = ("server",)
    marks = ("mac", "network", "bridge")


class AttachmentInfoFace(InfoFace):
    """Reports what servers have; *other* is the option beside O(server), and the field of its name."""

    def __init__(self, kind, other, other_doc, name_field=None):
        self.other, self.name_field, self.other_doc = other, name_field, other_doc
        super().__init__(kind)

    def _selecting(self):
        named = {"server": Option(Text(), "Only those of the server with this name or uuid."),
                 self.other: Option(Text(), self.other_doc)}
        return collect(
            id=Option(Text(), "Only the one with this uuid."), **named, **self.narrowing())

    def execute(self, params, check_mode, diff_mode, client):
        query = {name: params[name] for name in ("id", "fields", "limit", "sort")}
        plain, tests = self._filters(params["filters"] or {})
        query.update(plain)
        for name, by_name in (("server", "server_name"), (self.other, self.name_field)):
            if params[name] is not None:
                query[by_name if by_name and not is_uuid(params[name]) else name] = params[name]
        return {"changed": False, self.kind.plural: self._passing(client, query, tests)}


MODULES = {
    "volume_attachment": VolumeAttachmentFace(),
    "volume_attachment_info": AttachmentInfoFace(
        VolumeAttachment, "volume", "Only those of the volume with this name or uuid.", "volume_name"),
    "interface_attachment": InterfaceAttachmentFace(),
    "interface_attachment_info": AttachmentInfoFace(
        InterfaceAttachment, "network", "Only those on the network with this name."),
}
