# SPDX-License-Identifier: GPL-3.0-or-later
"""Queries and bodies of Keystone's API."""

from __future__ import annotations

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
