# SPDX-License-Identifier: GPL-3.0-or-later
"""Logs: JSON lines on stderr (journald keeps them), and one audit line for each change that a caller requested."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from magnetar_core.operations import SUCCEEDED, Operation

if TYPE_CHECKING:
    from collections.abc import Callable

#: The id of the request that the current thread or task works for; each of its log lines carries it.
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

audit = logging.getLogger("magnetar.audit")
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


class JsonLines(logging.Formatter):
    """A log formatter: one JSON object per line with time, level, logger, message, the fields of ``extra``, and the
    traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Override ``Formatter.format``: return *record* as a line of JSON. Values that JSON cannot represent are
        converted to strings."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage(),
        }
        if request_id.get():
            line["request_id"] = request_id.get()
        line.update((key, value) for key, value in vars(record).items() if key not in _PLAIN)
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure_agent_logging(level: str) -> None:
    """Send all logs of *level* and above to stderr as JSON lines. The audit log is written at every level."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    audit.setLevel(logging.INFO)
    for noisy in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


def write_audit_line(action: str, kind: str | None, key: str | None, caller: str | None, request: str | None,
                     result: str, changed: bool | None = None, seconds: float | None = None, **more: Any) -> None:
    """Write a line to the audit log about the *action* of a *caller* on a resource. *kind*: the resource's type. *key*:
    its name or uuid. *request*: the request id. *result*: ``succeeded``, ``failed``, ``cancelled`` or ``refused``.
    *changed*: whether the host was changed. *seconds*: duration. *more*: further fields, such as names of steps, or an
    error's code and message, but no content of resources."""
    audit.info("%s %s %s: %s", action, kind, key or "(several)", result, extra={
        "audit": True, "what": action, "kind": kind, "key": key, "caller": caller, "request_id": request,
        "result": result, "changed": changed, **({} if seconds is None else {"seconds": round(seconds, 4)}), **more})


def audit_operation(operation: Operation) -> None:
    """Register a callback that writes to the audit log at the end of *operation*, a task that runs in the background:
    one line, or for a batch (a request with many resources), one line for each changed or failed item."""
    operation.then(_ended)


def _ended(operation: Operation) -> None:
    more: dict[str, Any] = {"operation": operation.id}
    result = operation.result
    changed: bool | None = None
    if operation.error:
        more["error"] = {"code": operation.error["code"], "message": operation.error["message"]}
    elif isinstance(result, list):
        changed = any(item.get("changed") for item in result)
        more.update(items=len(result), failed=sum("error" in item for item in result))
        _items(operation, result)
    elif operation.status == SUCCEEDED:
        changed, steps = _outcome(result)
        more["steps"] = steps
    write_audit_line(operation.name, operation.kind, operation.key, operation.caller, operation.request_id,
                     operation.status, changed, operation.seconds, **more)


def _outcome(result: Any) -> tuple[bool | None, list[str]]:
    if isinstance(result, dict):
        return result.get("changed", True), [step["verb"] for step in result.get("steps", ())]
    return getattr(result, "changed", None), [step.verb for step in getattr(result, "steps", ())]


def _items(operation: Operation, results: list[dict[str, Any]]) -> None:
    for item in results:
        error = item.get("error")
        if error:
            write_audit_line(operation.name, operation.kind, item["key"], operation.caller, operation.request_id,
                             "failed", error={"code": error["code"], "message": error["message"]})
        elif item.get("changed"):
            write_audit_line(operation.name, operation.kind, item["key"], operation.caller, operation.request_id,
                             SUCCEEDED, True, steps=[step["verb"] for step in item.get("steps", ())])


def bind_request_id(request: str | None, function: Callable[[Operation], Any]) -> Callable[[Operation], Any]:
    """Return a wrapper of *function*: all log lines that the thread writes while *function* runs contain the request id
    *request*."""

    def labelled(operation: Operation) -> Any:
        token = request_id.set(request)
        try:
            return function(operation)
        finally:
            request_id.reset(token)

    return labelled
