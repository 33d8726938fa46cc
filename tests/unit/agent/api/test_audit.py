# SPDX-License-Identifier: GPL-3.0-or-later
"""Logs are JSON lines; a batch has one audit line per changed or failed item."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from magnetar_agent.api import audit
from magnetar_core.operations import Operation

if TYPE_CHECKING:
    import pytest


def test_lines_are_json() -> None:
    token = audit.request_id.set("req-1")
    cause = ValueError("why")
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "it %s", ("broke",), (ValueError, cause, None))
    record.__dict__["path"] = object
    line = json.loads(audit.JsonLines().format(record))
    audit.request_id.reset(token)
    assert (line["level"], line["message"], line["request_id"]) == ("error", "it broke", "req-1")
    assert "ValueError: why" in line["trace"] and "path" in line


def test_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "magnetar.audit")
    operation = Operation("ensure", "server", None, "req-1", "root")
    audit.audit_operation(operation)
    step = {"verb": "start", "text": "start"}
    results: list[dict[str, Any]] = [
        {"key": "a", "changed": True, "steps": [step], "resource": {"user_data": "hidden"}},
        {"key": "b", "changed": False},
        {"key": "c", "error": {"code": "in-use", "message": "used", "details": {}}}]
    operation.run(lambda _: results)
    lines: list[Any] = caplog.records
    assert [(line.key, line.result, line.changed) for line in lines] == [
        ("a", "succeeded", True), ("c", "failed", None), (None, "succeeded", True)]
    assert lines[0].steps == ["start"] and (lines[2].items, lines[2].failed) == (3, 1)
    assert all(line.caller == "root" and line.request_id == "req-1" for line in lines)
    assert "hidden" not in str([vars(line) for line in lines])
