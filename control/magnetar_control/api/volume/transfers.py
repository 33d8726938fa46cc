# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of transfers of volumes to other projects: list, show, create, accept, delete."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from magnetar_control.api.values import Id, build_record
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.rows import VolumeListing
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.values import Text
from magnetar_core.versions import Version

from . import views
from .nouns import VolumeResourceRoutes, parse_volume_listing
from .values import NAME, TRUTH, checked_body

#: The path that 3.55 brought, with options of its own, and the older one. Cinder serves both at each microversion.
NEW_PATH = "volume-transfers"
PATHS = (NEW_PATH, "os-volume-transfer")
#: Minor microversions of the new path: the choice to leave snapshots behind, sorting, and encrypted volumes.
SNAPSHOTS, SORTING, ENCRYPTED = 55, 59, 70


class AuthKey(Text):
    """A validator of the auth_key of a transfer: text, or a number that is converted to text."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return super().check(str(value) if is_number else value, path, version)


CREATE = {"volume_id": Id(), "name": NAME}
CREATE_OLD = build_record(CREATE, "volume_id")
CREATE_NEW = build_record({**CREATE, "no_snapshots": TRUTH}, "volume_id")
ACCEPT = build_record({"auth_key": AuthKey(1, 255)}, "auth_key")


class TransferRoutes(VolumeResourceRoutes):
    """The routes of volume transfers, and their handlers. *path*: the name of transfers in URLs: ``volume-transfers``,
    or ``os-volume-transfer`` for older clients."""

    name = "transfer"
    filters = ("name", "volume_id", "id")

    def __init__(self, service: EmbeddedVolumes, path: str) -> None:
        super().__init__(service)
        self.path = path

    def routes(self) -> list[Guarded]:
        transfer_path = f"{self.path}/{{id}}"
        return [
            guarded_route(f"GET {self.path}", self.list),
            guarded_route(f"GET {self.path}/detail", partial(self.list, detailed=True)),
            guarded_route(f"POST {self.path}", self.create, 202),
            guarded_route(f"GET {transfer_path}", self.show),
            guarded_route(f"POST {transfer_path}/accept", self.accept, 202),
            guarded_route(f"DELETE {transfer_path}", self.delete, 202)]

    def view(self, request: Request, row: Any, detailed: bool = True) -> Document:
        return views.transfer_view(request, row) if detailed else views.brief_transfer_view(request, row)

    def listing(self, request: Request) -> VolumeListing:
        """Return the list request that the query describes. Before 3.59, the oldest transfer is first by default, as in
        Cinder."""
        listing = parse_volume_listing(request, self.filters)
        sorts = {"sort", "sort_key", "sort_dir"} & {name for name, _value in request.query}
        return listing if sorts or self._since(request, SORTING) else replace(listing, sort=(("created_at", False),))

    def create(self, request: Request) -> Document:
        """Create a transfer, which offers a volume to other projects. Return it with its auth_key."""
        with_snapshots = self._since(request, SNAPSHOTS)
        requested = checked_body(request, "transfer", CREATE_NEW if with_snapshots else CREATE_OLD)
        transfer = self.service.transfers.create(
            request.context, requested["volume_id"], requested.get("name"),
            no_snapshots=bool(requested.get("no_snapshots")), encrypted=self._since(request, ENCRYPTED))
        return {"transfer": views.transfer_view(request, transfer, key=True)}

    def accept(self, request: Request) -> Document:
        """Accept a transfer with its auth_key, so that the caller's project gets the volume. Return the transfer."""
        auth_key = checked_body(request, "accept", ACCEPT)["auth_key"]
        return {"transfer": self.view(request, self.service.transfers.accept(*request.service_arguments(auth_key)),
                                      detailed=False)}

    def _since(self, request: Request, minor: int) -> bool:
        """Return whether the request has the features of microversion 3.*minor*. Requests with the older path
        ``os-volume-transfer`` never have these features."""
        return self.path == NEW_PATH and request.extra["version"] >= (3, minor)
