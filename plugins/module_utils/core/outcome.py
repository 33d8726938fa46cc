# SPDX-License-Identifier: GPL-3.0-or-later
"""Conversion of an operation's progress and end to the client's answer or error."""

from __future__ import annotations

import time
from typing import Callable, Optional

from .document import Document
from .errors import Cancelled, MagnetarError, TimedOut, error_from_dict


def is_operation(answer: Document) -> bool:
    """Return whether *answer* contains only an operation, and perhaps a request id, instead of the requested resource
    (HTTP status 202)."""
    return bool(answer) and set(answer) <= {"operation", "request_id"}


def follow_operation(answer: Document, look: Callable[[str], Document], deadline: float, request_id: str,
                     progress: Optional[Callable[[Document], None]] = None) -> Document:
    """Wait until the operation in *answer* (see ``is_operation``) has ended, and return the last answer: the ended
    operation, or the resource. Raises ``TimedOut`` at *deadline* (on the monotonic clock).

    *look*: a function that fetches the operation by its id, and may wait for the operation's end before it returns.
    *progress*: called with each state of the operation.
    """
    pause, asked_at = 0.0, 0.0
    while is_operation(answer):
        operation = answer["operation"]
        if progress:
            progress(operation)
        if operation.get("status") != "running":
            break
        if time.monotonic() >= deadline:
            raise attach_request_id(timed_out_error(operation), request_id)
        time.sleep(pause)
        pause = 0.5 if time.monotonic() - asked_at < 0.5 else 0.0  # do not flood an agent that does not wait
        asked_at = time.monotonic()
        answer = look(operation["id"])
    return answer


def operation_answer(operation: Document, request_id: str) -> Document:
    """Return the result of *operation*, which has ended, in the form of an answer to the original request. If it has
    failed or was cancelled, raise its error.
    """
    status = operation.get("status")
    if status == "succeeded":
        result = operation.get("result") or {}
        return dict({"results": result} if isinstance(result, list) else result, request_id=request_id)
    if operation.get("error"):
        raise attach_request_id(error_from_dict(operation["error"]), request_id)
    kind = Cancelled if status == "cancelled" else MagnetarError
    raise attach_request_id(kind("Operation %s ended as %s." % (operation.get("id"), status)), request_id)


def timed_out_error(operation: Document) -> TimedOut:
    """Return the error that the caller's timeout has passed while *operation* is still running."""
    progress = operation.get("progress") or {}
    at = ""
    if progress.get("total"):
        at = " at %s of %s %s" % (progress.get("done"), progress["total"], progress.get("unit", ""))
    return TimedOut(
        "Operation %s is still running%s%s; it goes on. Run the task again to wait for it (with a larger timeout), "
        "look with GET /v1/operations/%s, or stop it with DELETE."
        % (operation["id"], " (%s)" % progress["phase"] if progress.get("phase") else "", at.rstrip(),
           operation["id"]), operation=operation["id"])


def attach_request_id(error: MagnetarError, request_id: str) -> MagnetarError:
    """Set the ``request_id`` of *error*, unless it already has one, and return *error*."""
    error.request_id = error.request_id or request_id
    return error
