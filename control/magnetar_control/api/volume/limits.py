# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of limits, quotas, zones, services and messages: small answers that clients need."""

from __future__ import annotations

from typing import Any, NoReturn

from magnetar_control.api.query import check_known
from magnetar_control.api.values import build_record
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.quotas import RESOURCES, UNUSED
from magnetar_control.services.volume.rows import VolumeListing, check_admin
from magnetar_control.store.engine.database import utc_now
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest, NotFound

from . import views
from .nouns import PAGING, page_of_documents, sorted_by
from .values import IGNORED, LIMIT, TRUTH, checked_body, is_set

#: All limits of a project.
NAMES = (*RESOURCES, *UNUSED)
QUOTAS = dict.fromkeys(NAMES, LIMIT)
QUOTA_SET = build_record({**QUOTAS, "force": TRUTH, "skip_validation": TRUTH,
                          **dict.fromkeys(("id", "tenant_id", "project_id"), IGNORED)})
CLASS_SET = build_record({**QUOTAS, "id": IGNORED, "class_name": IGNORED})
#: The only quota class: the limits of projects without their own.
CLASS = "default"
#: Actions on services, and the reason why none is supported.
NOT_OF_SERVICES = ("The service of volumes on a host is the compute service there. openstack compute service set "
                   "--disable keeps servers, and the volumes made with them, away from a host.")
#: Filters of the list of messages.
MESSAGE_FILTERS = ("event_id", "message_level", "resource_type", "resource_uuid")


class LimitRoutes:
    def __init__(self, service: EmbeddedVolumes) -> None:
        self.service = service

    def routes(self) -> list[Guarded]:
        """Return the routes of limits, quotas, availability zones, services and messages, relative to ``/v3``."""
        quotas, service = "os-quota-sets/{id}", self.service
        return [guarded_route("GET limits", self.limits),
                guarded_route(f"GET {quotas}", self.quota), guarded_route(f"PUT {quotas}", self.set_quota),
                guarded_route(f"DELETE {quotas}", self.drop_quota),
                guarded_route(f"GET {quotas}/defaults", lambda request: {"quota_set": {
                    "id": request.params["id"], **service.quotas("default")[0]}}),
                guarded_route("GET os-availability-zone", lambda _request: {"availabilityZoneInfo": [
                    {"zoneName": service.zone, "zoneState": {"available": True}}]}),
                guarded_route("GET os-quota-class-sets/{id}", self.quota_class, who="admin"),
                guarded_route("PUT os-quota-class-sets/{id}", self.set_quota_class, who="admin"),
                guarded_route("GET os-services", self.services),
                guarded_route("PUT os-services/{action}", self.no_action, who="admin"),
                guarded_route("GET messages", self.messages), guarded_route("GET messages/{id}", self.message),
                guarded_route("DELETE messages/{id}", lambda request: service.forget(*request.service_arguments()),
                              204)]

    def limits(self, request: Request) -> Document:
        """Return the limits and the usage of the caller's project. Administrators may name another project, in the
        query parameter ``project_id`` (3.39) or in ``tenant_id``, as python-cinderclient (and therefore Horizon) does.
        """
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
            "maxTotalBackups": most["backups"], "totalBackupsUsed": have["backups"],
            "maxTotalBackupGigabytes": most["backup_gigabytes"],
            "totalBackupGigabytesUsed": have["backup_gigabytes"]}}}

    def quota(self, request: Request) -> Document:
        """Return the limits of the project in the URL. With ``usage=True`` in the query, also return the project's
        usage."""
        id = request.params["id"]
        self._check_seen(request, id)
        most, have = self.service.quotas(id)
        full = dict(request.query).get("usage", "").lower() == "true"
        limits: dict[str, Any] = {name: {"limit": limit, "in_use": have.get(name, 0), "reserved": 0} if full else limit
                                  for name, limit in most.items()}
        return {"quota_set": {"id": id, **limits}}

    @staticmethod
    def _check_seen(request: Request, id: str) -> None:
        if id != request.context.project_id and not request.context.is_admin:
            raise Forbidden("Policy doesn't allow this to be performed: the quota of another project needs the role "
                            "admin.")

    def set_quota(self, request: Request) -> Document:
        """Set limits of a project (-1: unlimited), and return its limits. Only for administrators. A limit below the
        usage is refused if ``skip_validation`` is false, if ``force`` is false, or both; a missing parameter counts as
        true. ``skip_validation`` may be in the body or, as python-cinderclient sends it, in the query."""
        check_admin(request.context)
        requested = {**checked_body(request, "quota_set", QUOTA_SET), **{
            name: TRUTH.check(value, name) for name, value in request.query if name == "skip_validation"}}
        if not (requested.get("skip_validation", True) and requested.get("force", True)):
            have = self.service.quotas(request.params["id"])[1]
            for name in NAMES:
                if 0 <= requested.get(name, -1) < have[name]:
                    raise InvalidField(f"quota_set.{name}", f"is less than the {have[name]} that the project has; "
                                       "leave skip_validation out to set it all the same", requested[name])
        return {"quota_set": self.service.set_quotas(
            request.params["id"], {name: requested[name] for name in NAMES if name in requested})}

    def drop_quota(self, request: Request) -> None:
        """Reset the limits of a project to the defaults. Only for administrators."""
        check_admin(request.context)
        self.service.set_quotas(request.params["id"], dict.fromkeys(NAMES))

    def quota_class(self, request: Request) -> Document:
        """Return the default limits, which apply to projects without specific limits. Raises ``NotFound`` for a quota
        class other than ``default``."""
        if request.params["id"] != CLASS:
            raise NotFound(f"There is one quota class, {CLASS}.")
        return {"quota_class_set": {"id": CLASS, **self.service.quotas(CLASS)[0]}}

    def set_quota_class(self, request: Request) -> Document:
        self.quota_class(request)
        requested = checked_body(request, "quota_class_set", CLASS_SET)
        return {"quota_class_set": self.service.set_quotas(
            CLASS, {name: requested[name] for name in NAMES if name in requested})}

    def no_action(self, _request: Request) -> NoReturn:
        raise InvalidRequest(NOT_OF_SERVICES)

    def services(self, request: Request) -> Document:
        """Return each host with volumes as a service ``cinder-volume``. Only for administrators. These services cannot
        be disabled, frozen or replicated."""
        check_admin(request.context)
        check_known(request, ("binary", "host"))
        query = dict(request.query)
        never = {"status": "enabled", "disabled_reason": None, "frozen": False, "replication_status": "disabled",
                 "active_backend_id": None, **views.versioned_fields(request, (7, True, "cluster", None))}
        services = [
            {"binary": "cinder-volume", "host": f"{host['name']}@magnetar", "zone": self.service.zone, **never,
             "state": state, "updated_at": utc_now(), **views.versioned_fields(request,
                                                                               (49, True, "backend_state", state))}
            for host in self.service.reach.hosts() for state in ("up" if host["up"] else "down",)]
        return {"services": [service for service in services if query.get("binary") in (None, service["binary"])
                             and query.get("host") in (None, service["host"], service["host"].partition("@")[0])]}

    def messages(self, request: Request) -> Document:
        """Return Cinder's user messages, which report failures in the caller's project (3.3). Administrators may list
        the messages of all projects or of another project."""
        check_known(request, (*MESSAGE_FILTERS, *PAGING, "all_tenants", "project_id"))
        query = dict(request.query)
        project_id = query.get("project_id")
        messages = [message for message in self._messages(request, VolumeListing(
            everywhere=is_set(request, "all_tenants") or project_id is not None, project_id=project_id))
                    if all(query.get(name) in (None, message[name]) for name in MESSAGE_FILTERS)]
        return page_of_documents(request, "messages", sorted_by(query, messages, (
            "id", "event_id", "resource_type", "created_at", "resource_uuid")))

    def message(self, request: Request) -> Document:
        id = request.params["id"]
        messages = self._messages(request, VolumeListing(everywhere=True, filters={"id": id}))
        if not messages:
            raise NotFound(f"Message {id} could not be found.")
        return {"message": messages[0]}

    def _messages(self, request: Request, listing: VolumeListing) -> Documents:
        return [
            {"id": row["id"], "event_id": f"{noun}_001", "resource_type": noun, "resource_uuid": row["id"],
             "user_message": row["fault"], "message_level": "ERROR", "guaranteed_until": None, "links": [],
             "created_at": row["updated_at"] or row["created_at"]}
            for noun, row in self.service.messages(request.context, listing)]
