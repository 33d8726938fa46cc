# SPDX-License-Identifier: GPL-3.0-or-later
"""Placement's API as an application: routes, microversions, faults. Source: Placement's API reference (2026) and its
microversion history."""

from __future__ import annotations

import re
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from magnetar_control.api.failures import RoutedService
from magnetar_control.compute.cloud import Cloud
from magnetar_control.compute.placement.placement import Placement
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import guarded_route
from magnetar_core.document import Document

from .reading import PlacementRoutes

LEAST, MOST = (1, 0), (1, 39)
HEADER = "OpenStack-API-Version"
#: Detail of a fault to Placement's error code.
CODES = {"generation": "placement.concurrent_update", "in_use": "placement.inventory.inuse"}


def negotiate_placement_version(header: str) -> tuple[int, int]:
    """Return the requested microversion of the Placement API as (major, minor); 1.0 by default. *header*: the value of
    ``OpenStack-API-Version``. Raises ``Fault`` 400 or 406."""
    for words in (part.split() for part in header.split(",")):
        if len(words) != 2 or words[0].lower() != "placement":
            continue
        if words[1] == "latest":
            return MOST
        match = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})", words[1])
        if match is None:
            raise Fault(400, f"invalid version string: {words[1][:40]}; it must be such as 1.39, or latest.")
        version = int(match[1]), int(match[2])
        if not LEAST <= version <= MOST:
            raise Fault(406, f"Unacceptable version header: {words[1]}. Versions are {_text(LEAST)} to {_text(MOST)}.")
        return version
    return LEAST


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


class PlacementApplication(RoutedService):
    """The web application of the Placement API, mounted at ``/placement``. *authenticate*: a function that sets
    ``request.context``, or raises ``Fault`` 401."""

    def __init__(self, cloud: Cloud, authenticate: Callable[[Request], None]) -> None:
        super().__init__([guarded_route("GET /", _versions, who="anyone"), *PlacementRoutes(Placement(cloud)).routes()],
                         authenticate, lambda fault: Answer({}, fault.status), slash=0)

    def refused(self, request: Request, fault: Fault) -> Answer:
        """Override ``Routed.refused``: return the HTTP answer for *fault* in the format of Placement's errors; since
        1.23 with an error code."""
        error: dict[str, Any] = {"status": fault.status, "request_id": request.id, "detail": fault.message,
                                 "title": HTTPStatus(fault.status).phrase}
        if request.extra.get("version", LEAST) >= (1, 23):
            error["code"] = next((code for detail, code in CODES.items() if detail in fault.details),
                                 "placement.undefined_code")
        if fault.status == 406:
            error |= {"max_version": _text(MOST), "min_version": _text(LEAST)}
        return Answer({"errors": [error]}, fault.status, fault.headers)

    def handle(self, request: Request) -> Answer:
        """Return the answer to *request* at the requested microversion. The headers of the answer contain this version.
        """
        try:
            request.extra["version"] = version = negotiate_placement_version(request.headers.get(HEADER.lower(), ""))
        except Fault as fault:
            return self.refused(request, fault)
        answer = super().handle(request)
        answer.headers |= {HEADER: f"placement {_text(version)}", "Vary": HEADER}
        if version >= (1, 15) and answer.status < 300:
            answer.headers |= {"Cache-Control": "no-cache", "Last-Modified": formatdate(usegmt=True)}
        return answer


def _versions(request: Request) -> Document:
    return {"versions": [{"id": "v1.0", "max_version": _text(MOST), "min_version": _text(LEAST), "status": "CURRENT",
                          "links": [{"rel": "self", "href": request.base or "/"}]}]}
