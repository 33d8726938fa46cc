# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits, quotas, zones, services and messages: the small answers that clients look for."""

from __future__ import annotations

from typing import Any, NoReturn

from magnetar_control.api.query import check_known
from magnetar_control.api.values import record
from magnetar_control.services import Document, Documents
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.quotas import RESOURCES, UNUSED
from magnetar_control.services.volume.rows import VolumeListing, check_admin
from magnetar_control.store.engine.database import now
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest, NotFound

from . import views
from .nouns import PAGING, page, sorted_by
from .values import IGNORED, LIMIT, TRUTH, body, is_set

#: All limits of a project.
NAMES = (*RESOURCES, *UNUSED)
QUOTAS = dict.fromkeys(NAMES, LIMIT)
QUOTA_SET = record({**QUOTAS, "force": TRUTH, "skip_validation": TRUTH,
                    **dict.fromkeys(("id", "tenant_id", "project_id"), IGNORED)})
CLASS_SET = record({**QUOTAS, "id": IGNORED, "class_name": IGNORED})
#: The only quota class: the limits of projects without their own.
CLASS = "default"
#: What is asked of services, and why none does it.
NOT_OF_SERVICES = ("The service of volumes on a host is the compute service there. openstack compute service set "
                   "--disable keeps servers, and the volumes made with them, away from a host.")
#: By what messages are listed.
MESSAGE_FILTERS = ("event_id", "message_level", "resource_type", "resource_uuid")


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
                route("GET os-quota-class-sets/{id}", self.quota_class, who="admin"),
                route("PUT os-quota-class-sets/{id}", self.set_quota_class, who="admin"),
                route("GET os-services", self.services),
                route("PUT os-services/{action}", self.no_action, who="admin"),
                route("GET messages", self.messages), route("GET messages/{id}", self.message),
                route("DELETE messages/{id}", lambda request: service.forget(*request.named()), 204)]

    def limits(self, request: Request) -> Document:
        """What the project may have, and has; administrators name another one: ``project_id`` (3.39), which
        python-cinderclient, and so Horizon, calls ``tenant_id``."""
        check_known(request, ("project_id", "tenant_id"))
        query = dict(request.query)
        id = query.get("project_id", query.get("tenant_id"))
        if id is not None:
            self._check_seen(request, id)
        most, have = self.service.quotas(id or request.context.project_id or "")
        return {"limits": {"rate": [], "absolute": {
            "maxTotalVolumes": most["volumes"], "totalVolumesUsed": have["volumes"],
            "maxTotalVolumeGigabytes": most["gigabytes"], "totalGigabytesUsed": have["gigabytes"],
            "maxTotalSnapshots": most["snapshots"], "totalSnapshotsUsed": have["snapshots"],
            "maxTotalBackups": most["backups"], "totalBackupsUsed": 0,
            "maxTotalBackupGigabytes": most["backup_gigabytes"], "totalBackupGigabytesUsed": 0}}}

    def quota(self, request: Request) -> Document:
        """Limits of a project, with ``usage=True`` what it has of them."""
        id = request.params["id"]
        self._check_seen(request, id)
        most, have = self.service.quotas(id)
        full = dict(request.query).get("usage", "").lower() == "true"
        found: dict[str, Any] = {name: {"limit": limit, "in_use": have.get(name, 0), "reserved": 0} if full else limit
                                 for name, limit in most.items()}
        return {"quota_set": {"id": id, **found}}

    @staticmethod
    def _check_seen(request: Request, id: str) -> None:
        if id != request.context.project_id and not request.context.is_admin:
            raise Forbidden("Policy doesn't allow this to be performed: the quota of another project needs the role "
                            "admin.")

    def set_quota(self, request: Request) -> Document:
        """Limits of a project, -1 for none; for admins. With ``skip_validation`` (in the body, or in the query, where
        python-cinderclient has it) or ``force`` false none is below what the project has."""
        check_admin(request.context)
        given = {**body(request, "quota_set", QUOTA_SET), **{
            name: TRUTH.check(value, name) for name, value in request.query if name == "skip_validation"}}
        if not (given.get("skip_validation", True) and given.get("force", True)):
            have = self.service.quotas(request.params["id"])[1]
            for name in NAMES:
                if 0 <= given.get(name, -1) < have[name]:
                    raise InvalidField(f"quota_set.{name}", f"is less than the {have[name]} that the project has; "
                                       "leave skip_validation out to set it all the same", given[name])
        return {"quota_set": self.service.set_quotas(
            request.params["id"], {name: given[name] for name in NAMES if name in given})}

    def drop_quota(self, request: Request) -> None:
        """The project has those of all others again; for admins."""
        check_admin(request.context)
        self.service.set_quotas(request.params["id"], dict.fromkeys(NAMES))

    def quota_class(self, request: Request) -> Document:
        """The limits of projects without their own. Raises ``NotFound`` for another class."""
        if request.params["id"] != CLASS:
            raise NotFound(f"There is one quota class, {CLASS}.")
        return {"quota_class_set": {"id": CLASS, **self.service.quotas(CLASS)[0]}}

    def set_quota_class(self, request: Request) -> Document:
        self.quota_class(request)
        given = body(request, "quota_class_set", CLASS_SET)
        return {"quota_class_set": self.service.set_quotas(
            CLASS, {name: given[name] for name in NAMES if name in given})}

    def no_action(self, _request: Request) -> NoReturn:
        raise InvalidRequest(NOT_OF_SERVICES)

    def services(self, request: Request) -> Document:
        """The hosts that hold volumes; for admins. None can be disabled or frozen, or is copied elsewhere."""
        check_admin(request.context)
        check_known(request, ("binary", "host"))
        query = dict(request.query)
        never = {"status": "enabled", "disabled_reason": None, "frozen": False, "replication_status": "disabled",
                 "active_backend_id": None, **views.since(request, (7, True, "cluster", None))}
        found = [
            {"binary": "cinder-volume", "host": f"{host['name']}@magnetar", "zone": self.service.zone, **never,
             "state": state, "updated_at": now(), **views.since(request, (49, True, "backend_state", state))}
            for host in self.service.reach.hosts() for state in ("up" if host["up"] else "down",)]
        return {"services": [one for one in found if query.get("binary") in (None, one["binary"])
                             and query.get("host") in (None, one["host"], one["host"].partition("@")[0])]}

    def messages(self, request: Request) -> Document:
        """Why something failed (3.3). Administrators ask for all projects, or for another one, too."""
        check_known(request, (*MESSAGE_FILTERS, *PAGING, "all_tenants", "project_id"))
        query = dict(request.query)
        project_id = query.get("project_id")
        found = [one for one in self._messages(request, VolumeListing(
            everywhere=is_set(request, "all_tenants") or project_id is not None, project_id=project_id))
                 if all(query.get(name) in (None, one[name]) for name in MESSAGE_FILTERS)]
        return page(request, "messages", sorted_by(query, found, (
            "id", "event_id", "resource_type", "created_at", "resource_uuid")))

    def message(self, request: Request) -> Document:
        id = request.params["id"]
        found = self._messages(request, VolumeListing(everywhere=True, filters={"id": id}))
        if not found:
            raise NotFound(f"Message {id} could not be found.")
        return {"message": found[0]}

    def _messages(self, request: Request, listing: VolumeListing) -> Documents:
        return [
            {"id": row["id"], "event_id": f"{noun}_001", "resource_type": noun, "resource_uuid": row["id"],
             "user_message": row["fault"], "message_level": "ERROR", "guaranteed_until": None, "links": [],
             "created_at": row["updated_at"] or row["created_at"]}
            for noun, row in self.service.messages(request.context, listing)]
