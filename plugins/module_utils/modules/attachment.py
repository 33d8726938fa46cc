# SPDX-License-Identifier: GPL-3.0-or-later
"""volume_attachment, interface_attachment and share_attachment: resources of a server, without names of their own."""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.flows.attach import attach, detach
from ..core.flows.migrate import Side
from ..core.http.client import Client
from ..core.kinds.interface import InterfaceAttachment
from ..core.kinds.share import ShareAttachment
from ..core.kinds.volume import VolumeAttachment
from ..core.options import Option, client_arguments, collect
from ..core.values import Text
from . import results
from .info import InfoModule
from .module import ABSENT, endpoint_of, is_uuid
from .resource import ResourceModule

SERVER = Option(Text(1, 255), "The server, by name or uuid.", required=True)


class AttachmentModule(ResourceModule):
    """Makes a server have one volume, NIC or share, or be without it."""

    rules = {}
    replaced = ("server", "volume")
    #: Options that can name the one that is meant, in the order in which they are looked at.
    identifying = ()
    state_doc = "V(present) makes the server have it. V(absent) makes the server be without it."

    def key(self, params):
        """``SERVER:VOLUME`` or ``SERVER:NIC``."""
        for name in self.identifying:
            if params.get(name):
                return "%s:%s" % (params["server"], params[name])
        others = " or ".join(self.identifying[:-1])
        raise InvalidField(self.identifying[-1], "or %s is required" % others if others else "is required")

    def want(self, params):
        want = super().want(dict(params, id=None, name=None))
        want.update({name: params[name] for name in self.replaced if params.get(name) is not None})
        return want


class VolumeAttachmentModule(AttachmentModule):
    kind = VolumeAttachment
    own = collect(
        server=SERVER, volume=Option(Text(1, 255), "The volume, by name or uuid.", required=True),
        volume_endpoint=Option(Text(1, 255), "Endpoint of the agent that has the volume, when it is another than "
                               "O(endpoint), which has the server. Token and certificates are used for both. Detaching "
                               "does not need it."),
        volume_address=Option(Text(1, 255), "Name or address by which the agent at O(endpoint) reaches the one at "
                              "O(volume_endpoint), when that is another than in O(volume_endpoint)."),
    )
    identifying = ("volume",)

    def execute(self, params, check_mode, diff_mode, client):
        if not params["volume_endpoint"]:
            return super().execute(params, check_mode, diff_mode, client)
        with Client(**dict(client_arguments(params), endpoint=endpoint_of(params, "volume_endpoint"))) as other:
            here, there = Side(client), Side(other, params["volume_address"])
            waiting = {"dry_run": check_mode, "wait": params["wait"], "timeout": params["timeout"]}
            if params["state"] == ABSENT:
                answer = detach(here, there, params["server"], params["volume"], **waiting)
            else:
                answer = attach(here, there, params["server"], params["volume"], self.want(params),
                                on_immutable=params["on_immutable"], merge=[], **waiting)
        return results.changed(self.kind.noun, self.key(params), answer, diff_mode)


class InterfaceAttachmentModule(AttachmentModule):
    kind = InterfaceAttachment
    own = collect(server=SERVER)
    replaced = ("server",)
    identifying = ("mac", "network", "bridge", "physical_network", "port")


class ShareAttachmentModule(AttachmentModule):
    kind = ShareAttachment
    own = collect(server=SERVER, share=Option(
        Text(1, 255), "The share, by its uuid or its name in the cloud's setting C(shares).", required=True))
    replaced = ("server", "share")
    identifying = ("share",)


class AttachmentInfoModule(InfoModule):
    """Reports the volumes, NICs or shares of servers."""

    #: The option beside ``server``, its documentation, and the field that it means when it is a name.
    other, other_doc, other_name = "", "", None

    def selecting(self):
        named = {"server": Option(Text(), "Only those of the server with this name or uuid."),
                 self.other: Option(Text(), self.other_doc)}
        return collect(
            id=Option(Text(), "Only the one with this uuid."), **named, **self.narrowing())

    def execute(self, params, check_mode, diff_mode, client):
        query = {name: params[name] for name in ("id", "fields", "limit", "sort")}
        plain, tests = self.filters(params["filters"] or {})
        query.update(plain)
        for name, by_name in (("server", "server_name"), (self.other, self.other_name)):
            if params[name] is not None:
                query[by_name if by_name and not is_uuid(params[name]) else name] = params[name]
        return {"changed": False, self.kind.plural: self.passing(client, query, tests)}


class VolumeAttachmentInfoModule(AttachmentInfoModule):
    kind = VolumeAttachment
    other, other_doc, other_name = "volume", "Only those of the volume with this name or uuid.", "volume_name"


class InterfaceAttachmentInfoModule(AttachmentInfoModule):
    kind = InterfaceAttachment
    other, other_doc = "network", "Only those on the network with this name."


class ShareAttachmentInfoModule(AttachmentInfoModule):
    kind = ShareAttachment
    other, other_doc, other_name = "share", "Only those of the share with this uuid or name.", "share_name"
