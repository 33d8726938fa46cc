# SPDX-License-Identifier: GPL-3.0-or-later
"""What takes longer than a caller waits: work in threads of this process, that can be asked for, waited for, cancelled.

What is asked of a server is in the queue of its cell and goes on whatever becomes of this process; an operation only
follows it, and asks for the next step when one is done. A client whose operation is gone asks for the same again, and
is told how that ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy.exc import DataError

from magnetar_control.compute.caller import Caller
from magnetar_control.store.database import away, full
from magnetar_control.store.timeouts import statement_timeout
from magnetar_control.web import Fault
from magnetar_core.errors import (
    Cancelled,
    Conflict,
    InvalidRequest,
    MagnetarError,
    NoSpace,
    NotFound,
    TooLarge,
    Unreachable,
)
from magnetar_core.operations import Operation

log = logging.getLogger(__name__)
#: What the web server itself refuses, by its status.
FAULTS: Mapping[int, type[MagnetarError]] = {404: NotFound, 409: Conflict, 413: TooLarge, 503: Unreachable}


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
    if full(error):
        log.error("no room is left: %s", getattr(error, "orig", error), extra={"request_id": request_id})
        return NoSpace("A disk of the cloud is full: what is there can be read, and nothing written. An operator must "
                       "make room.")
    if away(error):
        log.warning("the database failed: %s", getattr(error, "orig", error), extra={"request_id": request_id})
        return Unreachable("A database of the cloud does not answer. Try again in seconds; what was asked of the cloud "
                           "by then goes on.")
    log.error("unexpected failure", exc_info=error, extra={"request_id": request_id})
    return MagnetarError(f"The API failed; its log says why under {request_id}.")


class ProjectOperation(Operation):
    """One piece of work of a project."""

    def __init__(self, name: str, kind: str, key: str | None, caller: Caller) -> None:
        context, self._timeout = caller.context, caller.settings.cell_timeout
        who = f"{context.user_name or context.user_id}@{context.project_name or caller.project}"
        super().__init__(name, kind, key, caller.request_id, who, caller.project)

    def raise_if_cancelled(self) -> None:
        if self.cancelling:
            raise Cancelled("The operation was cancelled. What was asked of the cloud by then is done to its end.")

    def run(self, function: Callable[[Operation], Any]) -> None:
        def within(operation: Operation) -> Any:
            try:
                with statement_timeout(self._timeout):
                    return function(operation)
            except Exception as error:  # noqa: BLE001 - whatever fails is its outcome
                raise error_of(error, str(self.request_id)) from None

        super().run(within)
