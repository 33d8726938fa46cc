# SPDX-License-Identifier: GPL-3.0-or-later
"""Cinder's API v3 as an application: routes, microversions, and small answers that clients need."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from magnetar_control.api.failures import RoutedService
from magnetar_control.api.fault_forms import named_answer
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import InvalidRequest

from . import filters, managing, metadata, none, transfers
from .attachments import AttachmentRoutes
from .backups import BackupRoutes
from .encryption import EncryptionRoutes
from .limits import LimitRoutes
from .pools import PoolRoutes
from .snapshots import SnapshotRoutes
from .types import TypeRoutes
from .volumes import VolumeRoutes

LEAST, MOST = (3, 0), (3, 71)
HEADER = "OpenStack-API-Version"
KEYS = {400: "badRequest", 401: "unauthorized", 403: "forbidden", 404: "itemNotFound", 405: "badMethod",
        409: "conflictingRequest", 413: "overLimit", 415: "badMediaType", 501: "notImplemented",
        503: "serviceUnavailable"}


def render_cinder_fault(fault: Fault) -> Answer:
    """Return the HTTP answer for *fault*, in the format of Cinder's errors."""
    return named_answer(KEYS, fault)


def negotiate_volume_version(header: str) -> tuple[int, int]:
    """Return the requested microversion of the Block Storage API as (major, minor); 3.0 by default. *header*: the value
    of ``OpenStack-API-Version``. Raises ``InvalidRequest`` or ``Fault`` 406."""
    requested = next((part.split(maxsplit=1)[1].strip() for part in map(str.strip, header.split(","))
                      if len(part.split(maxsplit=1)) == 2 and part.split()[0].lower() == "volume"), None)
    if requested is None:
        return LEAST
    if requested == "latest":
        return MOST
    if not re.fullmatch(r"[1-9]\d{0,3}\.(0|[1-9]\d{0,3})", requested):
        raise InvalidRequest(f"API Version String '{requested[:40]}' is of invalid format. Must be of format "
                    "MajorNum.MinorNum.")
    major, _dot, minor = requested.partition(".")
    version = int(major), int(minor)
    if not LEAST <= version <= MOST:
        raise Fault(406, f"Version {requested} is not supported by the API. Minimum is {_text(LEAST)} and maximum is "
                    f"{_text(MOST)}.")
    return version


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


class VolumeApplication(RoutedService):
    """The web application of the Block Storage API, mounted at ``/volume``. *authenticate*: a function that sets
    ``request.context``, or raises ``Fault`` 401."""

    def __init__(self, service: EmbeddedVolumes, authenticate: Callable[[Request], None]) -> None:
        def scoped(request: Request) -> None:
            """Authenticate the request. Also check that a project id in the URL is the project id of the token. Raises
            ``Fault``, ``InvalidRequest``."""
            authenticate(request)
            project = request.extra["project"] = request.params.pop("project_id", None)
            if project not in (None, request.context.project_id):
                raise InvalidRequest("Malformed request url: its project is not that of the token.")

        routes = [
            *(route for routes in (VolumeRoutes, SnapshotRoutes, BackupRoutes, AttachmentRoutes, LimitRoutes,
                                   PoolRoutes, TypeRoutes, EncryptionRoutes)
              for route in routes(service).routes()),
            *(route for path in transfers.PATHS for route in transfers.TransferRoutes(service, path).routes()),
            *(route for path in managing.PATHS for route in managing.ManageRoutes(service, path).routes()),
            *metadata.metadata_routes("volumes/{id}", service.volumes),
            *metadata.metadata_routes("snapshots/{id}", service.snapshots),
            *none.absent_volume_routes(), *filters.filter_routes()]
        super().__init__([
            guarded_route("GET /", _versions, 300, who="anyone"),
            guarded_route("GET /v3", _versions, who="anyone"),
            # Since 3.67 URLs have no project. Each version accepts both forms, so one endpoint serves all clients.
            *(replace(route, path=f"/v3/{project}{route.path}") for route in routes
              for project in ("{project_id}/", "")),
        ], scoped, render_cinder_fault)

    def handle(self, request: Request) -> Answer:
        """Return the answer to *request* at the requested microversion. The headers of the answer contain this version.
        """
        try:
            request.extra["version"] = negotiate_volume_version(request.headers.get(HEADER.lower(), ""))
        except (Fault, InvalidRequest) as error:
            return self.refused(request, error if isinstance(error, Fault) else Fault(error.status, error.message))
        answer = super().handle(request)
        answer.headers |= {HEADER: f"volume {_text(request.extra['version'])}", "Vary": HEADER}
        return answer


def _versions(request: Request) -> Document:
    """Return the list of API versions, which contains only v3. The status of ``GET /`` is 300, as in Cinder."""
    return {"versions": [{
        "id": "v3.0", "status": "CURRENT", "version": _text(MOST), "min_version": _text(LEAST),
        "updated": "2026-11-21T00:00:00Z", "links": [{"rel": "self", "href": request.base + "/v3/"}],
        "media-types": [{"base": "application/json", "type": "application/vnd.openstack.volume+json;version=3"}]}]}
