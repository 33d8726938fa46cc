# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits, quotas, zones, services and messages: the small answers that clients look for."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.values import record
from magnetar_control.services import Document
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.quotas import RESOURCES
from magnetar_control.services.volume.rows import check_admin
from magnetar_control.store.database import now
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import Forbidden

from . import views
from .values import IGNORED, LIMIT, body

#: Quotas of what there is none of.
NO_QUOTA = {"backups": 0, "backup_gigabytes": 0, "groups": 0}
QUOTA_SET = record({**dict.fromkeys(RESOURCES, LIMIT), **dict.fromkeys(
    ("id", "tenant_id", "project_id", "force", "skip_validation"), IGNORED)})


class LimitRoutes:
    def __init__(self, service: EmbeddedVolumes) -> None:
        self.service = service

    def routes(self) -> list[Guarded]:
        """Where they are, below ``/v3``."""
        quotas, service = "os-quota-sets/{id}", self.service
        return [route("GET limits", self.limits),
                route(f"GET {quotas}", self.quota), route(f"PUT {quotas}", self.set_quota),
                route(f"DELETE {quotas}", self.drop_quota),
                route(f"GET {quotas}/defaults", lambda request: {"quota_set": {
                    "id": request.params["id"], **service.quotas("default")[0]}}),
                route("GET os-availability-zone", lambda _request: {"availabilityZoneInfo": [
                    {"zoneName": service.zone, "zoneState": {"available": True}}]}),
                route("GET os-services", self.services), route("GET messages", self.messages)]

    def limits(self, request: Request) -> Document:
        """What the project may have, and has."""
        most, have = self.service.quotas(request.context.project_id or "")
        return {"limits": {"rate": [], "absolute": {
            "maxTotalVolumes": most["volumes"], "totalVolumesUsed": have["volumes"],
            "maxTotalVolumeGigabytes": most["gigabytes"], "totalGigabytesUsed": have["gigabytes"],
            "maxTotalSnapshots": most["snapshots"], "totalSnapshotsUsed": have["snapshots"],
            "maxTotalBackups": 0, "totalBackupsUsed": 0, "maxTotalBackupGigabytes": 0,
            "totalBackupGigabytesUsed": 0}}}

    def quota(self, request: Request) -> Document:
        """Limits of a project, with ``usage=True`` what it has of them."""
        id = request.params["id"]
        if id != request.context.project_id and not request.context.is_admin:
            raise Forbidden("Policy doesn't allow this to be performed: the quota of another project needs the role "
                            "admin.")
        most, have = self.service.quotas(id)
        full = dict(request.query).get("usage", "").lower() == "true"
        found: dict[str, Any] = {name: {"limit": limit, "in_use": have.get(name, 0), "reserved": 0} if full else limit
                                 for name, limit in {**most, **NO_QUOTA}.items()}
        return {"quota_set": {"id": id, **found}}

    def set_quota(self, request: Request) -> Document:
        """Limits of a project, -1 for none; for admins."""
        check_admin(request.context)
        given = body(request, "quota_set", QUOTA_SET)
        return {"quota_set": self.service.set_quotas(
            request.params["id"], {name: given[name] for name in RESOURCES if name in given})}

    def drop_quota(self, request: Request) -> None:
        """The project has those of all others again; for admins."""
        check_admin(request.context)
        self.service.set_quotas(request.params["id"], dict.fromkeys(RESOURCES))

    def services(self, request: Request) -> Document:
        """The hosts that hold volumes; for admins. None can be disabled or frozen, or is copied elsewhere."""
        check_admin(request.context)
        never = {"status": "enabled", "disabled_reason": None, "frozen": False, "replication_status": "disabled",
                 "active_backend_id": None, **views.since(request, (7, True, "cluster", None))}
        return {"services": [
            {"binary": "cinder-volume", "host": f"{host['name']}@magnetar", "zone": self.service.zone, **never,
             "state": state, "updated_at": now(), **views.since(request, (49, True, "backend_state", state))}
            for host in self.service.reach.hosts() for state in ("up" if host["up"] else "down",)]}

    def messages(self, request: Request) -> Document:
        """Why something failed (3.3)."""
        return {"messages": [
            {"id": row["id"], "event_id": f"{noun}_001", "resource_type": noun, "resource_uuid": row["id"],
             "user_message": row["fault"], "message_level": "ERROR", "guaranteed_until": None, "links": [],
             "created_at": row["updated_at"] or row["created_at"]}
            for noun, row in self.service.messages(request.context)]}
