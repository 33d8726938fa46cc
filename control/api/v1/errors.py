# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever fails is one of the core's errors in an answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from sqlalchemy.exc import DataError

from magnetar_control.store.database import away
from magnetar_control.web import Fault
from magnetar_core.errors import Conflict, InvalidRequest, MagnetarError, NotFound, TooLarge, Unreachable

log = logging.getLogger(__name__)
#: What the web server itself refuses, by its status.
FAULTS: Mapping[int, type[MagnetarError]] = {404: NotFound, 409: Conflict, 413: TooLarge, 503: Unreachable}


class MethodNotAllowed(MagnetarError):
    """This route exists, and does not know that method."""

    code, status = "method-not-allowed", 405


def error_of(error: Exception, request_id: str) -> MagnetarError:
    """The core's error for whatever was raised. What is not expected is logged under the request's id, and says so."""
    if isinstance(error, MagnetarError):
        return error
    if isinstance(error, Fault):
        return FAULTS.get(error.status, InvalidRequest if error.status < 500 else MagnetarError)(error.message)
    if isinstance(error, DataError):  # a number too large, a sign that the database has not
        log.warning("the database refused a value: %s", error.orig, extra={"request_id": request_id})
        return InvalidRequest("The database does not take a value of the request: "
                              f"{str(error.orig).splitlines()[0]}.")
    if away(error):
        log.warning("the database failed: %s", getattr(error, "orig", error), extra={"request_id": request_id})
        return Unreachable("A database of the cloud does not answer. Try again in seconds; what was asked of the cloud "
                           "by then goes on.")
    log.error("unexpected failure", exc_info=error, extra={"request_id": request_id})
    return MagnetarError(f"The API failed; its log says why under {request_id}.")
