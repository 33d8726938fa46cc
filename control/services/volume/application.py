# SPDX-License-Identifier: GPL-3.0-or-later
"""Cinder's API v3 as an application: routes, microversions, and the small answers that clients look for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from magnetar_control.services import Document
from magnetar_control.store.database import now
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Guarded, Routed
from magnetar_core.errors import Forbidden, InvalidRequest

from . import taking
from . import volumes as rules
from .actions import Actions
from .attaching import Attachments
from .handling import Metadata, Volumes
from .snapshots import Snapshots
from .tables import snapshots, volumes

if TYPE_CHECKING:
    from .embedded import Embedded

LEAST, MOST = (3, 0), (3, 70)
HEADER = "OpenStack-API-Version"
KEYS = {400: "badRequest", 401: "unauthorized", 403: "forbidden", 404: "itemNotFound", 405: "badMethod",
        406: "notAcceptable", 409: "conflictingRequest", 413: "overLimit", 415: "badMediaType", 500: "computeFault",
        503: "serviceUnavailable"}
#: Lists of what embedded volumes have none of: path to key.
NONE_OF = {"backups": "backups", "backups/detail": "backups", "groups": "groups", "groups/detail": "groups",
           "group_snapshots": "group_snapshots", "group_snapshots/detail": "group_snapshots",
           "volume-transfers": "transfers", "volume-transfers/detail": "transfers",
           "os-volume-transfer": "transfers", "os-volume-transfer/detail": "transfers", "qos-specs": "qos_specs",
           "clusters": "clusters", "extensions": "extensions", "group_types": "group_types"}
Handler = Callable[[Request], Answer]


def refused(fault: Fault) -> Answer:
    """A fault in Cinder's form."""
    key = KEYS.get(fault.status, "badRequest" if fault.status < 500 else "computeFault")
    return Answer({key: {"code": fault.status, "message": fault.message}}, fault.status)


def negotiated(header: str) -> tuple[int, int]:
    """The microversion that ``OpenStack-API-Version`` asks of this service; 3.0 where it does not. Raises
    ``InvalidRequest``
    or 406."""
    asked = next((word.split(maxsplit=1)[1].strip() for word in map(str.strip, header.split(","))
                  if len(word.split(maxsplit=1)) == 2 and word.split()[0].lower() == "volume"), None)
    if asked is None:
        return LEAST
    if asked == "latest":
        return MOST
    if not re.fullmatch(r"[1-9]\d{0,3}\.(0|[1-9]\d{0,3})", asked):
        raise InvalidRequest(f"API Version String '{asked[:40]}' is of invalid format. Must be of format "
                    "MajorNum.MinorNum.")
    major, _dot, minor = asked.partition(".")
    version = int(major), int(minor)
    if not LEAST <= version <= MOST:
        raise Fault(406, f"Version {asked} is not supported by the API. Minimum is {_text(LEAST)} and maximum is "
                    f"{_text(MOST)}.")
    return version


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


class Application(Routed):
    """Mounted at ``/volume``."""

    def __init__(self, service: Embedded, authenticate: Callable[[Request], None]) -> None:
        self.service = service

        def scoped(request: Request) -> None:
            """The project of the URL is the token's."""
            authenticate(request)
            project = request.params.get("project_id")
            if project is not None and project != request.context.project_id:
                raise InvalidRequest("Malformed request url: its project is not that of the token.")

        routes = [Guarded(method="GET", path="/", handler=self.versions, who="anyone"),
                  Guarded(method="GET", path="/v3", handler=self.version, who="anyone")]
        for method, path, handler in (*_things(service), *self._small()):
            # 3.67 and later leave the project out; taking both at each version lets one endpoint serve all clients.
            routes += [Guarded(method=method, path=f"/v3/{{project_id}}/{path}", handler=handler),
                       Guarded(method=method, path=f"/v3/{path}", handler=handler)]
        super().__init__(routes, scoped, refused)

    def handle(self, request: Request) -> Answer:
        """Answer at the microversion that is asked for, and say which that was."""
        try:
            request.extra["version"] = negotiated(request.headers.get(HEADER.lower(), ""))
        except (Fault, InvalidRequest) as error:
            return self.refused(request, error if isinstance(error, Fault) else Fault(error.status, error.message))
        answer = super().handle(request)
        answer.headers |= {HEADER: f"volume {_text(request.extra['version'])}", "Vary": HEADER}
        return answer

    def _document(self, request: Request) -> Document:
        return {"id": "v3.0", "status": "CURRENT", "version": _text(MOST), "min_version": _text(LEAST),
                "updated": "2026-11-21T00:00:00Z", "links": [{"rel": "self", "href": request.base + "/v3/"}],
                "media-types": [{"base": "application/json",
                                 "type": "application/vnd.openstack.volume+json;version=3"}]}

    def versions(self, request: Request) -> Answer:
        """All versions; the status is 300, as Cinder's."""
        return Answer({"versions": [self._document(request)]}, 300)

    def version(self, request: Request) -> Answer:
        """The one."""
        return Answer({"versions": [self._document(request)]})

    def _small(self) -> list[tuple[str, str, Handler]]:
        empty = [("GET", path, _nothing(key)) for path, key in NONE_OF.items()]
        return [("GET", "types", self.types), ("GET", "types/{id}", self.type),
                ("GET", "types/{id}/extra_specs", self.extra_specs), ("GET", "limits", self.limits),
                ("GET", "os-quota-sets/{id}", self.quota), ("GET", "os-quota-sets/{id}/defaults", self.quota_defaults),
                ("PUT", "os-quota-sets/{id}", self.set_quota), ("DELETE", "os-quota-sets/{id}", self.drop_quota),
                ("GET", "os-availability-zone", self.zones), ("GET", "os-services", self.services),
                ("GET", "messages", self.messages), *empty]

    def types(self, request: Request) -> Answer:
        """One for each pool."""
        known = self.service.types
        wanted = dict(request.query).get("name")
        return Answer({"volume_types": [known.show(name) for name in known.pools if wanted in (None, name)]})

    def type(self, request: Request) -> Answer:
        """One, also by its name; ``default`` is the first where none has that name."""
        known, id = self.service.types, request.params["id"]
        name = known.pools[0] if id == "default" and "default" not in known.pools else known.named(id)
        return Answer({"volume_type": known.show(name)})

    def extra_specs(self, request: Request) -> Answer:
        """None."""
        self.service.types.named(request.params["id"])
        return Answer({"extra_specs": {}})

    def limits(self, request: Request) -> Answer:
        """What the project may have, and has."""
        project = request.context.project_id or ""
        with self.service.database.read() as connection:
            most, have = rules.limits(connection, project), rules.usage(connection, project)
        return Answer({"limits": {"rate": [], "absolute": {
            "maxTotalVolumes": most["volumes"], "totalVolumesUsed": have["volumes"],
            "maxTotalVolumeGigabytes": most["gigabytes"], "totalGigabytesUsed": have["gigabytes"],
            "maxTotalSnapshots": most["snapshots"], "totalSnapshotsUsed": have["snapshots"],
            "maxTotalBackups": 0, "totalBackupsUsed": 0, "maxTotalBackupGigabytes": 0,
            "totalBackupGigabytesUsed": 0}}})

    def quota(self, request: Request) -> Answer:
        """Limits of a project, with ``usage=True`` what it has of them."""
        id = request.params["id"]
        if id != request.context.project_id and not request.context.is_admin:
            raise Forbidden("Policy doesn't allow this to be performed: the quota of another project needs the role "
                        "admin.")
        with self.service.database.read() as connection:
            most, have = rules.limits(connection, id), rules.usage(connection, id)
        full = dict(request.query).get("usage", "").lower() == "true"
        more = {"backups": 0, "backup_gigabytes": 0, "groups": 0, "per_volume_gigabytes": -1}
        found: dict[str, Any] = {name: {"limit": limit, "in_use": have.get(name, 0), "reserved": 0} if full else limit
                                 for name, limit in {**most, **more}.items()}
        return Answer({"quota_set": {"id": id, **found}})

    def set_quota(self, request: Request) -> Answer:
        """Limits of a project, -1 for none; for admins."""
        _admin(request)
        others = ("id", "tenant_id", "project_id", "force", "skip_validation")
        checks = dict.fromkeys(rules.LIMITS, taking.limit) | dict.fromkeys(others, taking.nothing)
        given = taking.body(request, "quota_set", checks)
        with self.service.database.write() as connection:
            rules.set_limits(connection, request.params["id"],
                             {name: given[name] for name in rules.LIMITS if name in given})
            return Answer({"quota_set": rules.limits(connection, request.params["id"])})

    def drop_quota(self, request: Request) -> Answer:
        """The project has those of all others again; for admins."""
        _admin(request)
        with self.service.database.write() as connection:
            rules.set_limits(connection, request.params["id"], dict.fromkeys(rules.LIMITS))
        return Answer(None, 200)

    def quota_defaults(self, request: Request) -> Answer:
        """Limits of a project without its own."""
        with self.service.database.read() as connection:
            return Answer({"quota_set": {"id": request.params["id"], **rules.limits(connection, "default")}})

    def zones(self, _request: Request) -> Answer:
        """The one zone."""
        return Answer({"availabilityZoneInfo": [{"zoneName": self.service.zone, "zoneState": {"available": True}}]})

    def services(self, request: Request) -> Answer:
        """The hosts that hold volumes; for admins."""
        _admin(request)
        return Answer({"services": [
            {"binary": "cinder-volume", "host": f"{host['name']}@magnetar", "zone": self.service.zone,
             "status": "enabled", "state": "up" if host["up"] else "down", "updated_at": now()}
            for host in self.service.reach.hosts()]})

    def messages(self, request: Request) -> Answer:
        """Why something failed (3.3)."""
        with self.service.database.read() as connection:
            found = [(noun, row) for table, noun in ((volumes, "VOLUME"), (snapshots, "VOLUME_SNAPSHOT"))
                     for row in connection.execute(table.select().where(
                         table.c.project_id == request.context.project_id, table.c.fault.is_not(None))).mappings()]
        return Answer({"messages": [
            {"id": row["id"], "event_id": f"{noun}_001", "resource_type": noun, "resource_uuid": row["id"],
             "user_message": row["fault"], "message_level": "ERROR", "guaranteed_until": None, "links": [],
             "created_at": row["updated_at"] or row["created_at"]} for noun, row in found]})


def _admin(request: Request) -> None:
    if not request.context.is_admin:
        raise Forbidden("Policy doesn't allow this to be performed: it needs the role admin.")


def _nothing(key: str) -> Handler:
    return lambda _request: Answer({key: []})


def _things(service: Embedded) -> list[tuple[str, str, Handler]]:
    """Volumes, snapshots and attachments, with their metadata and actions."""
    v, s, a = Volumes(service), Snapshots(service), Attachments(service)
    routes: list[tuple[str, str, Handler]] = [
        ("GET", "volumes/summary", v.summary), ("POST", "volumes/{id}/action", Actions(service).act),
        ("POST", "snapshots/{id}/action", s.act), ("POST", "attachments/{id}/action", a.act)]
    for path, noun in (("volumes", v), ("snapshots", s), ("attachments", a)):
        routes += [("GET", path, noun.list), ("GET", f"{path}/detail", noun.detail), ("POST", path, noun.create),
                   ("GET", f"{path}/{{id}}", noun.show), ("PUT", f"{path}/{{id}}", noun.update),
                   ("DELETE", f"{path}/{{id}}", noun.delete)]
    for path, table in (("volumes", volumes), ("snapshots", snapshots)):
        data, url = Metadata(service, table), f"{path}/{{id}}/metadata"
        routes += [("GET", url, data.show), ("POST", url, data.add), ("PUT", url, data.replace),
                   ("GET", url + "/{key}", data.one), ("PUT", url + "/{key}", data.put),
                   ("DELETE", url + "/{key}", data.delete)]
    return routes
