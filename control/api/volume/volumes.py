# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of volumes."""

from __future__ import annotations

from magnetar_control.api.values import record
from magnetar_control.services.volume import Embedded
from magnetar_control.services.volume.rows import check_writer
from magnetar_control.web import Answer, Request
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.values import Nullable

from . import views
from .query import listing, page
from .values import ID, IGNORED, METADATA, NAME, NAMES, SIZE, TRUTH, body, is_set, named

#: What volumes can be made from elsewhere, and not here.
NOT_HERE = ("consistencygroup_id", "group_id", "backup_id", "source_replica")
CREATE = record({
    **NAMES, "size": Nullable(SIZE), "availability_zone": NAME, "volume_type": NAME, "snapshot_id": ID,
    "source_volid": ID, "imageRef": ID, "image_id": ID, "metadata": METADATA, "multiattach": TRUTH,
    **dict.fromkeys((*NOT_HERE, "user_id", "project_id", "status", "attach_status"), IGNORED)})
UPDATE = record({**NAMES, "metadata": METADATA})
HINTS = frozenset({"OS-SCH-HNT:scheduler_hints", "scheduler_hints"})
FILTERS = ("name", "status", "bootable", "multiattach", "availability_zone", "size", "user_id", "id", "snapshot_id",
           "source_volid")


class VolumeRoutes:
    """What the routes do."""

    def __init__(self, service: Embedded) -> None:
        self.service, self.volumes = service, service.volumes

    def list(self, request: Request, detailed: bool = False) -> Answer:
        """A page of volumes."""
        asked = listing(request, FILTERS)
        found, count = self.volumes.list(request.context, asked, attached=detailed)
        shown = [views.volume(request, one, self.service.types) if detailed else views.brief(request, one)
                 for one in found]
        return Answer(page(request, "volumes", shown, asked.limit, count))

    def detail(self, request: Request) -> Answer:
        """The same in full."""
        return self.list(request, detailed=True)

    def summary(self, request: Request) -> Answer:
        """How many, and how large together (3.12); their metadata (3.36)."""
        count, size, values = self.volumes.summary(request.context, listing(request, ()))
        more = {"metadata": {key: sorted(each) for key, each in values.items()}}
        return Answer({"volume-summary": {"total_count": count, "total_size": size,
                                          **(more if request.extra["version"] >= (3, 36) else {})}})

    def show(self, request: Request, status: int = 200) -> Answer:
        """One."""
        found = self.volumes.show(request.context, request.params["id"])
        return Answer({"volume": views.volume(request, found, self.service.types)}, status)

    def create(self, request: Request) -> Answer:
        """Note what is to be made; the worker makes it."""
        check_writer(request.context)
        outer = request.json()
        if isinstance(outer, dict) and (unknown := sorted(set(outer) - {"volume"} - HINTS)):
            raise InvalidRequest(f"Additional properties are not allowed ({unknown}).")
        given = body(request, "volume", CREATE)
        if wrong := next((name for name in NOT_HERE if given.get(name)), None):
            raise InvalidField(wrong, "must be left out: volumes are not made from it here, and belong to no groups")
        zone = given.get("availability_zone")
        if zone not in (None, "", self.service.zone):
            raise InvalidRequest(f"Invalid input received: Availability zone '{zone}' is invalid; there is "
                                 f"'{self.service.zone}'.")
        wanted = {**named(given), **{name: given[name] for name in (
            "volume_type", "snapshot_id", "metadata", "multiattach") if given.get(name)}}
        made = self.service.create(
            request.context, given.get("size") or 0, image_id=given.get("imageRef") or given.get("image_id"),
            source_volume_id=given.get("source_volid"), **wanted)
        request.params["id"] = made["id"]
        return self.show(request, 202)

    def update(self, request: Request) -> Answer:
        """Name, description, metadata."""
        given = body(request, "volume", UPDATE)
        values = {**named(given), **{name: given[name] for name in ("metadata",) if name in given}}
        self.volumes.update(request.context, request.params["id"], **values)
        return self.show(request)

    def delete(self, request: Request) -> Answer:
        """Note that it is to go."""
        self.volumes.delete(request.context, request.params["id"], is_set(request, "cascade"), is_set(request, "force"))
        return Answer(None, 202)
