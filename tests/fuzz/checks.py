# SPDX-License-Identifier: GPL-3.0-or-later
"""What every answer must be, whatever was asked."""

from __future__ import annotations

import json
import re
from typing import Any

from .sending import Got, Sent

#: What answers may be of 5xx: what is not there (501), and a host or a database that does not answer (503).
DECLARED = (501, 503)
#: Part of the answer to a client of ``/v1`` that has waited as long as it could (504).
LATE = b'"code":"timed-out"'
#: Part of the answer to a caller whose host took too long (503): the request has left a cancelled action.
TRIED = b"the request was cancelled, and"
#: Traces of Python, statements and words of databases, and paths of our own files.
INSIDE = re.compile(
    rb"Traceback \(most recent|File \"[^\"]+\", line \d|sqlalchemy|psycopg\.|sqlite3?\.|IntegrityError|"
    rb"\b(SELECT|DELETE) .{1,300}\bFROM\b|INSERT INTO|\bUPDATE \w+ SET\b|site-packages|magnetar_(control|agent|core)\.|"
    rb"<[\w.]+ object at 0x|Error\(\)|NoneType"
)
#: Seconds of the processor that one request may take.
LONG = 2.0


def wrong(sent: Sent, got: Got) -> str | None:
    """What is wrong with an answer; ``None`` when nothing is."""
    if got.status >= 500 and got.status not in DECLARED and LATE not in got.content:
        return f"is {got.status}: {got.content[:300]!r}"
    if any("\n" in value or "\r" in value for value in got.headers.values()):
        return f"has a header with a line break: {got.headers}"
    if got.status >= 400 and sent.method != "HEAD":
        if not (_message(got.content) or _text(got.content)):
            return f"is {got.status} without a fault that says why: {got.content[:300]!r}"
        if found := INSIDE.search(got.content):
            return f"is {got.status} and tells of the inside ({found[0][:60]!r}): {got.content[:500]!r}"
    return None


def _text(content: bytes) -> str:
    """Return the words of a page or a text of the image service, which begins with the status."""
    found = re.match(rb"\d{3} [\w ]+\n\n(.+)", content) or re.search(rb"</h1>\s*([^<\s].*?)<br />", content, re.DOTALL)
    return found[1].decode(errors="replace") if found else ""


def _message(content: bytes) -> str:
    """The words of a fault, in the form of any of the services."""
    try:
        document: Any = json.loads(content)
    except ValueError:
        return ""
    if not isinstance(document, dict):
        return ""
    inner = [document, *(one for one in document.values() if isinstance(one, dict)),
             *({"message": one.get("detail")} for one in document.get("errors") or () if isinstance(one, dict))]
    return next((str(one["message"]) for one in inner if one.get("message")), "")
