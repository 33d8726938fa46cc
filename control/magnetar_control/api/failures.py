# SPDX-License-Identifier: GPL-3.0-or-later
"""Failures that are no fault of a request, as all APIs say them: a database that is away, a disk that is full, and what
another request changed at the same moment."""

from __future__ import annotations

import logging

from sqlalchemy.exc import DataError, DBAPIError

from magnetar_control.store.engine.database import away, collided, full
from magnetar_control.web import Fault, Request
from magnetar_control.web.application import Routed

log = logging.getLogger(__name__)


def fault_of_failure(error: Exception, request_id: str) -> Fault | None:
    """The fault that *error* is; it is logged under the request's id. ``None`` for what is not foreseen."""
    told = {"extra": {"request_id": request_id}}
    if isinstance(error, DataError):  # a number too large, a sign that the database has not: the operation let it pass
        log.warning("the database refused a value: %s", error.orig, **told)  # type: ignore[arg-type]
        return Fault(400, f"The database does not take a value of the request: {str(error.orig).splitlines()[0]}.")
    if full(error):
        log.error("no room is left: %s", getattr(error, "orig", error), **told)  # type: ignore[arg-type]
        return Fault(507, "A disk of the cloud is full: what is there can be read, and nothing written. An operator "
                          f"must make room; the request id is {request_id}.")
    if isinstance(error, DBAPIError) and collided(error):
        log.warning("requests collided in the database: %s", error.orig, **told)  # type: ignore[arg-type]
        return Fault(409, "Another request changed the same at the same moment, and nothing of this one was done. "
                          f"Repeat it; the request id is {request_id}.")
    if away(error):
        log.error("the database failed: %s", getattr(error, "orig", error), **told)  # type: ignore[arg-type]
        return Fault(503, "A database of the cloud does not answer. Try again in a few seconds; the request id is "
                          f"{request_id}.", {"Retry-After": "2"})
    return None


class RoutedService(Routed):
    """The routes of one service."""

    def fault(self, error: Exception, request: Request) -> Fault | None:
        return super().fault(error, request) or fault_of_failure(error, request.id)
