# SPDX-License-Identifier: GPL-3.0-or-later
"""What Keystone's API reads of requests, and how it shows resources and lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from magnetar_control.api.values import Truth
from magnetar_control.services import Document
from magnetar_control.services.identity.resources import IdentityResource
from magnetar_control.web import Request
from magnetar_core.errors import InvalidRequest

#: A flag of a query: naming it is enough.
TRUTH = Truth(("true", "1", "yes", ""), ("false", "0", "no"), any_case=True)


def filters(request: Request, resource: IdentityResource) -> dict[str, Any]:
    """The filters of a list; other parameters are passed over, as Keystone does."""
    return {name: TRUTH.check(value, name) if name == "enabled" else value
            for name, value in request.query if name in resource.filters}


def is_on(request: Request, name: str) -> bool:
    """Whether a flag of the query is set."""
    query = dict(request.query)
    return name in query and TRUTH.words.get(query[name].lower(), True)


def body(request: Request, name: str) -> Document:
    """The object *name* of the body."""
    given = request.json()
    wanted = given.get(name) if isinstance(given, dict) else None
    if not isinstance(wanted, dict):
        raise InvalidRequest(f'The body must be an object {{"{name}": {{…}}}}.')
    return wanted


def resource(request: Request, path: str, found: Document) -> Document:
    """A resource with the link to itself, below *path*."""
    return {**found, "links": {"self": f"{request.base}/v3/{path}/{found['id']}"}}


def listed(request: Request, plural: str, documents: Iterable[Document], query: str = "") -> Document:
    """A list, with the link to itself; *query*: what the link says of the filters."""
    path = request.path if request.params else request.extra["route"]
    return {plural: [*documents], "links": {"next": None, "previous": None, "self": request.base + path + query}}


def resources(request: Request, plural: str, found: Iterable[Document], query: str = "") -> Document:
    """A list of resources."""
    return listed(request, plural, (resource(request, plural, one) for one in found), query)
