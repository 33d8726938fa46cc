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
from .nouns import NounRoutes, parse_volume_listing
from .values import NAME, TRUTH, checked_body

#: The path that 3.55 brought, with options of its own, and the older one. Cinder serves both at each microversion.
NEW_PATH = "volume-transfers"
PATHS = (NEW_PATH, "os-volume-transfer")
#: Minor microversions of the new path: the choice to leave snapshots behind, sorting, and encrypted volumes.
SNAPSHOTS, SORTING, ENCRYPTED = 55, 59, 70


class AuthKey(Text):
    """A value type: the key of a transfer; a key of digits may come as a number."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return super().check(str(value) if is_number else value, path, version)


CREATE = {"volume_id": Id(), "name": NAME}
CREATE_OLD = build_record(CREATE, "volume_id")
CREATE_NEW = build_record({**CREATE, "no_snapshots": TRUTH}, "volume_id")
ACCEPT = build_record({"auth_key": AuthKey(1, 255)}, "auth_key")


class TransferRoutes(NounRoutes):
    """The routes of transfers of volumes at *path*, one of ``PATHS``."""

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
        """Return the list request. Before 3.59 the default order is the oldest transfer first, as in Cinder."""
        listing = parse_volume_listing(request, self.filters)
        sorts = {"sort", "sort_key", "sort_dir"} & {name for name, _value in request.query}
        return listing if sorts or self._since(request, SORTING) else replace(listing, sort=(("created_at", False),))

    def create(self, request: Request) -> Document:
        """Offer a volume to other projects, and return the transfer with its key."""
        with_snapshots = self._since(request, SNAPSHOTS)
        requested = checked_body(request, "transfer", CREATE_NEW if with_snapshots else CREATE_OLD)
        transfer = self.service.transfers.create(
            request.context, requested["volume_id"], requested.get("name"),
            no_snapshots=bool(requested.get("no_snapshots")), encrypted=self._since(request, ENCRYPTED))
        return {"transfer": views.transfer_view(request, transfer, key=True)}

    def accept(self, request: Request) -> Document:
        """Accept a transfer: its volume then belongs to the caller's project."""
        auth_key = checked_body(request, "accept", ACCEPT)["auth_key"]
        return {"transfer": self.view(request, self.service.transfers.accept(*request.named(auth_key)), detailed=False)}

    def _since(self, request: Request, minor: int) -> bool:
        """Return whether the request gets the features of microversion 3.*minor*, which only the new path has."""
        return self.path == NEW_PATH and request.extra["version"] >= (3, minor)
