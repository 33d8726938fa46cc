# SPDX-License-Identifier: GPL-3.0-or-later
"""The JSON form of errors in the Compute API."""

from __future__ import annotations

import logging

from magnetar_control.api.failures import fault_of_failure
from magnetar_control.api.fault_forms import named_answer
from magnetar_control.web import Answer, Fault, fault_of
from magnetar_core.errors import MagnetarError

log = logging.getLogger(__name__)
NAMES = {400: "badRequest", 401: "unauthorized", 403: "forbidden", 404: "itemNotFound", 405: "badMethod",
         409: "conflictingRequest", 413: "overLimit", 415: "badMediaType", 429: "overLimit", 501: "notImplemented",
         503: "serviceUnavailable"}


def render_compute_fault(fault: Fault) -> Answer:
    """Return the HTTP answer for *fault*: ``{"<name>": {"code", "message"}}``. Status 401 has Keystone's format, as
    keystonemiddleware answers."""
    return named_answer(NAMES, fault)


def compute_fault_of(error: Exception, request_id: str) -> Fault:
    """Return the HTTP error for *error*. An unexpected error is logged with *request_id*, and the message for the
    client contains this id."""
    if isinstance(error, Fault):
        return error
    fault = fault_of(error) if isinstance(error, MagnetarError) else None
    if fault is not None:
        return fault
    failure = fault_of_failure(error, request_id)
    if failure is not None:
        return failure
    log.error("unexpected failure", exc_info=error, extra={"request_id": request_id})
    return Fault(500, "Unexpected API Error. The operator finds the cause in the log of the API under the request id "
                      f"{request_id} ({type(error).__name__}).")
