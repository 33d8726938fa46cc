# SPDX-License-Identifier: GPL-3.0-or-later
"""Failures that a request did not cause, as all APIs report them: an unreachable database, a full disk, and a conflict
with a concurrent request."""

from __future__ import annotations

import logging

from sqlalchemy.exc import DataError, DBAPIError

from magnetar_control.store.engine.database import is_database_unreachable, is_disk_full, is_transaction_conflict
from magnetar_control.web import Fault, Request
from magnetar_control.web.application import Routed

log = logging.getLogger(__name__)


def fault_of_failure(error: Exception, request_id: str) -> Fault | None:
    """Log a failure of the database or of a disk, and return the HTTP error for it. For any other *error*, return
    ``None`` and log nothing."""
    log_extra = {"extra": {"request_id": request_id}}
    if isinstance(error, DataError):  # a number too large, or a character that the database lacks
        log.warning("the database refused a value: %s", error.orig, **log_extra)  # type: ignore[arg-type]
        return Fault(400, f"The database does not take a value of the request: {str(error.orig).splitlines()[0]}.")
    if is_disk_full(error):
        log.error("no room is left: %s", getattr(error, "orig", error), **log_extra)  # type: ignore[arg-type]
        return Fault(507, "A disk of the cloud is full: what is there can be read, and nothing written. An operator "
                          f"must make room; the request id is {request_id}.")
    if isinstance(error, DBAPIError) and is_transaction_conflict(error):
        log.warning("requests collided in the database: %s", error.orig, **log_extra)  # type: ignore[arg-type]
        return Fault(409, "Another request changed the same at the same moment, and nothing of this one was done. "
                          f"Repeat it; the request id is {request_id}.")
    if is_database_unreachable(error):
        log.error("the database failed: %s", getattr(error, "orig", error), **log_extra)  # type: ignore[arg-type]
        return Fault(503, "A database of the cloud does not answer. Try again in a few seconds; the request id is "
                          f"{request_id}.", {"Retry-After": "2"})
    return None


class RoutedService(Routed):
    """A web application with routes. If a database fails or a disk is full, the application answers with the HTTP error
    of ``fault_of_failure``."""

    def fault(self, error: Exception, request: Request) -> Fault | None:
        return super().fault(error, request) or fault_of_failure(error, request.id)
