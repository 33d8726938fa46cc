# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of content that lies in pools of hosts (Block Storage API v3, "Manage existing volumes"), at the path of
3.8 and at the older one."""

from __future__ import annotations

from functools import partial

from magnetar_control.api.query import check_known
from magnetar_control.api.values import build_record
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.managing import ID, NAME
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.values import MapOf, Nullable, Text

from . import values, views
from .nouns import page_of_documents, sorted_by

PATHS = ("manageable_volumes", "os-volume-manage")
UNMANAGE = "os-unmanage"
MANAGE_BODY = build_record({
    **values.NAMES, "host": values.NAME, "cluster": values.NAME, "ref": MapOf(Text(1, 255), Text(1, 255), 2),
    "volume_type": values.NAME, "availability_zone": values.NAME, "metadata": values.METADATA,
    "bootable": Nullable(values.TRUTH)}, "ref")
UNMANAGE_BODY = build_record({})


class ManageRoutes:
    """The routes that list the content of a storage pool (files, LVs, RBD images), and turn existing content into
    volumes (Cinder's manage). *path*: the resource's name in URLs: ``manageable_volumes`` or ``os-volume-manage``. Only
    for administrators."""

    def __init__(self, service: EmbeddedVolumes, path: str) -> None:
        self.service, self.path = service, path

    def routes(self) -> list[Guarded]:
        """Return the routes of manageable volumes, relative to ``/v3``."""
        return [guarded_route(f"GET {self.path}", self.list, who="admin"),
                guarded_route(f"GET {self.path}/detail", partial(self.list, detailed=True), who="admin"),
                guarded_route(f"POST {self.path}", self.create, 202, who="admin")]

    def list(self, request: Request, detailed: bool = False) -> Document:
        """Return a page of the files and images in a pool of a host. *detailed*: include, for each that cannot become a
        volume, the reason."""
        check_known(request, ("host", "cluster", "limit", "offset", "marker", "sort", "sort_key", "sort_dir"))
        query = dict(request.query)
        if not query.get("host"):
            raise InvalidRequest("Either cluster or host must be provided; there are no clusters. host is "
                                 "HOST@BACKEND#POOL.")
        content = [_manageable(found, detailed) for found in self.service.managed.list(request.context, query["host"])]
        shown = page_of_documents(request, "manageable-volumes", sorted_by(query, content, ("id", "size")))
        for document in shown["manageable-volumes"]:
            del document["id"]
        return shown

    def create(self, request: Request) -> Document:
        """Make a volume of an existing file or image in a pool, and return the volume. Its creation completes later."""
        requested = values.checked_body(request, "volume", MANAGE_BODY)
        if not requested.get("host"):
            raise InvalidField("host", "is required: HOST@BACKEND#POOL; there are no clusters")
        if len(set(requested["ref"]) & {NAME, ID}) != 1 or len(requested["ref"]) != 1:
            raise InvalidField("ref", f"must have {NAME} (or {ID}): the name of the content in the pool")
        zone = requested.get("availability_zone")
        if zone not in (None, "", self.service.zone):
            raise InvalidRequest(f"Invalid input received: Availability zone '{zone}' is invalid; there is "
                                 f"'{self.service.zone}'.")
        id = self.service.managed.manage(
            request.context, requested["host"], requested["ref"], **values.name_fields(requested),
            **{name: requested.get(name) for name in ("metadata", "volume_type", "bootable")})
        return {"volume": views.volume_view(request, self.service.volumes.show(request.context, id), False)}


def unmanage_volume(service: EmbeddedVolumes, request: Request, arguments: object) -> Answer:
    """Request that a volume is removed from the volume service while its content stays in the pool (``os-unmanage``).
    *arguments*: the action's body, which must be empty."""
    UNMANAGE_BODY.check(arguments or {}, UNMANAGE)
    service.managed.unmanage(*request.service_arguments())
    return Answer(None, 202)


def _manageable(content: Document, detailed: bool) -> Document:
    """Convert *content*, an item of ``AgentClient.pool_content``, to the format of Cinder's manageable volumes, and
    return it. *detailed*: include the fields of the detailed list. The key ``id`` is only used as the marker of pages.
    """
    more = {"cinder_id": content["volume"], "reason_not_safe": content["reason"], "extra_info": {
        "format": content["format"]}} if detailed else {}
    return {"id": content["name"], "reference": {NAME: content["name"]}, "size": content["size"] or 0,
            "safe_to_manage": content["reason"] is None, **more}
