# SPDX-License-Identifier: GPL-3.0-or-later
"""How an operation goes on and ends, as the client's answer or error."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from .errors import Cancelled, MagnetarError, TimedOut, from_dict

#: A JSON object.
Document = dict[str, Any]


def is_operation(answer: Document) -> bool:
    """Whether an *answer* is a 202's: an operation, in place of what was asked for."""
    return bool(answer) and set(answer) <= {"operation", "request_id"}


def follow(answer: Document, look: Callable[[str], Document], deadline: float, request_id: str,
           progress: Optional[Callable[[Document], None]] = None) -> Document:
    """Return the last answer of the operation of a 202 *answer*: it has ended, or something else stands for it. *look*:
    asks for the operation of an id, and waits. *progress*: is called with each. Raises ``TimedOut``."""
    pause, asked = 0.0, 0.0
    while is_operation(answer):
        operation = answer["operation"]
        if progress:
            progress(operation)
        if operation.get("status") != "running":
            break
        if time.monotonic() >= deadline:
            raise identified(too_late(operation), request_id)
        time.sleep(pause)
        pause = 0.5 if time.monotonic() - asked < 0.5 else 0.0  # an agent that does not wait is not flooded
        asked = time.monotonic()
        answer = look(operation["id"])
    return answer


def outcome(operation: Document, request_id: str) -> Document:
    """The answer that a finished operation stands for."""
    status = operation.get("status")
    if status == "succeeded":
        found = operation.get("result") or {}
        return dict({"results": found} if isinstance(found, list) else found, request_id=request_id)
    if operation.get("error"):
        raise identified(from_dict(operation["error"]), request_id)
    kind = Cancelled if status == "cancelled" else MagnetarError
    raise identified(kind("Operation %s ended as %s." % (operation.get("id"), status)), request_id)


def too_late(operation: Document) -> TimedOut:
    """The error of whoever cannot wait any longer."""
    progress = operation.get("progress") or {}
    at = ""
    if progress.get("total"):
        at = " at %s of %s %s" % (progress.get("done"), progress["total"], progress.get("unit", ""))
    return TimedOut(
        "Operation %s is still running%s%s; it goes on. Run the task again to wait for it (with a larger timeout), "
        "look with GET /v1/operations/%s, or stop it with DELETE."
        % (operation["id"], " (%s)" % progress["phase"] if progress.get("phase") else "", at.rstrip(),
           operation["id"]), operation=operation["id"])


def identified(error: MagnetarError, request_id: str) -> MagnetarError:
    """*error* with the id of its request."""
    error.request_id = error.request_id or request_id
    return error
