# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules that attach volumes, NICs and shares to servers, and those that report the attachments."""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.flows.attach import attach_remote_volume, detach_remote_volume
from ..core.flows.migrate import Side
from ..core.http.client import Client
from ..core.kinds.interface import InterfaceAttachment
from ..core.kinds.share import ShareAttachment
from ..core.kinds.volume import VolumeAttachment
from ..core.options import Option, client_arguments, name_options
from ..core.values import Text
from . import results
from .info import InfoModule
from .module import ABSENT, checked_endpoint, looks_like_uuid
from .resource import ResourceModule

SERVER = Option(Text(1, 255), "The server, by name or uuid.", required=True)


class AttachmentModule(ResourceModule):
    """The base class of the modules that attach a volume, NIC or share to a server, or detach it."""

    rules = {}
    replaced = ("server", "volume")
    #: Options that can identify the resource, in order of preference.
    identifying = ()
    state_doc = "V(present) attaches it to the server. V(absent) detaches it."

    def key(self, params):
        """Override ``ResourceModule.key``: return ``SERVER:VOLUME``, ``SERVER:NIC`` or ``SERVER:SHARE``. Raises
        ``InvalidField`` if *params* do not name the volume, NIC or share.
        """
        for name in self.identifying:
            if params.get(name):
                return "%s:%s" % (params["server"], params[name])
        alternatives = " or ".join(self.identifying[:-1])
        raise InvalidField(self.identifying[-1], "or %s is required" % alternatives if alternatives else "is required")

    def want(self, params):
        want = super().want(dict(params, id=None, name=None))
        want.update({name: params[name] for name in self.replaced if params.get(name) is not None})
        return want


class VolumeAttachmentModule(AttachmentModule):
    kind = VolumeAttachment
    own = name_options(
        server=SERVER, volume=Option(Text(1, 255), "The volume, by name or uuid.", required=True),
        volume_endpoint=Option(Text(1, 255), "Endpoint of the agent that has the volume, when it is another than "
                               "O(endpoint), which has the server. Token and certificates are used for both. Detaching "
                               "does not need it."),
        volume_address=Option(Text(1, 255), "Name or address of the agent at O(volume_endpoint) for the agent at "
                              "O(endpoint), if it differs from O(volume_endpoint)."),
    )
    identifying = ("volume",)

    def execute(self, params, check_mode, diff_mode, client):
        if not params["volume_endpoint"]:
            return super().execute(params, check_mode, diff_mode, client)
        with Client(**dict(client_arguments(params), endpoint=checked_endpoint(params, "volume_endpoint"))) as other:
            server_host, volume_host = Side(client), Side(other, params["volume_address"])
            waiting = {"dry_run": check_mode, "wait": params["wait"], "timeout": params["timeout"]}
            if params["state"] == ABSENT:
                answer = detach_remote_volume(server_host, volume_host, params["server"], params["volume"], **waiting)
            else:
                answer = attach_remote_volume(server_host, volume_host, params["server"], params["volume"],
                                              self.want(params),
                                              on_immutable=params["on_immutable"], merge=[], **waiting)
        return results.module_result(self.kind.noun, self.key(params), answer, diff_mode)


class InterfaceAttachmentModule(AttachmentModule):
    kind = InterfaceAttachment
    own = name_options(server=SERVER)
    replaced = ("server",)
    identifying = ("mac", "network", "bridge", "physical_network", "port")


class ShareAttachmentModule(AttachmentModule):
    kind = ShareAttachment
    own = name_options(server=SERVER, share=Option(
        Text(1, 255), "The share, by its uuid or its name in the cloud's setting C(shares).", required=True))
    replaced = ("server", "share")
    identifying = ("share",)


class AttachmentInfoModule(InfoModule):
    """The base class of the modules that report the volumes, NICs or shares of servers."""

    #: The second selecting option next to ``server``, its documentation, and the field that it selects by name.
    other, other_doc, other_name = "", "", None

    def selecting(self):
        named = {"server": Option(Text(), "Only attachments of the server with this name or uuid."),
                 self.other: Option(Text(), self.other_doc)}
        return name_options(
            id=Option(Text(), "Only the one with this uuid."), **named, **self.narrowing())

    def execute(self, params, check_mode, diff_mode, client):
        query = {name: params[name] for name in ("id", "fields", "limit", "sort")}
        plain, tests = self.filters(params["filters"] or {})
        query.update(plain)
        for name, by_name in (("server", "server_name"), (self.other, self.other_name)):
            if params[name] is not None:
                query[by_name if by_name and not looks_like_uuid(params[name]) else name] = params[name]
        return {"changed": False, self.kind.plural: self.passing(client, query, tests)}


class VolumeAttachmentInfoModule(AttachmentInfoModule):
    kind = VolumeAttachment
    other, other_doc, other_name = "volume", "Only attachments of the volume with this name or uuid.", "volume_name"


class InterfaceAttachmentInfoModule(AttachmentInfoModule):
    kind = InterfaceAttachment
    other, other_doc = "network", "Only those on the network with this name."


class ShareAttachmentInfoModule(AttachmentInfoModule):
    kind = ShareAttachment
    other, other_doc, other_name = "share", "Only attachments of the share with this uuid or name.", "share_name"
