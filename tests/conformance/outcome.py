# SPDX-License-Identifier: GPL-3.0-or-later
"""What became of a case, and what every answer of the compute API has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .classes import UUID
from .compare import Difference, short
from .plan import Case
from .transport import Cloud, Exchange

#: A server that there is not.
NOBODY = "00000000-0000-4000-8000-000000000000"
PASS, FAIL, ABSENT, BLOCKED, NOT_APPLICABLE = "pass", "fail", "absent", "blocked", "not applicable"
OUTCOMES = (PASS, FAIL, ABSENT, BLOCKED, NOT_APPLICABLE)
#: Names of faults by status; others are computeFault.
FAULTS = {400: "badRequest", 401: "unauthorized", 403: "forbidden", 404: "itemNotFound", 405: "badMethod",
          409: "conflictingRequest", 413: "overLimit", 415: "badMediaType", 429: "overLimit", 501: "notImplemented",
          503: "serviceUnavailable"}


@dataclass
class Result:
    """One case's end."""

    case: Case
    outcome: str
    reason: str = ""
    differences: list[Difference] = field(default_factory=list)
    exchange: Exchange | None = None
    #: What the case asked of the operation that it is about.
    story: list[Exchange] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """One line of the report."""
        line: dict[str, Any] = {
            "case": self.case.id, "kind": self.case.kind, "area": self.case.area, "class": self.case.group,
            "operation": self.case.operation, "direction": self.case.direction, "version": f"2.{self.case.version}",
            "outcome": self.outcome}
        if self.reason:
            line["reason"] = self.reason
        if self.differences:
            line["differences"] = [one.document() for one in self.differences]
        if self.exchange is not None and self.outcome in (FAIL, ABSENT):
            line["asked"] = f"{self.exchange.method} {self.exchange.path}"
            line["sent"] = (self.exchange.sent or b"").decode("utf-8", "replace")[:2000]
            line["status"] = self.exchange.status
            line["answer"] = self.exchange.raw[:2000].decode("utf-8", "replace")
        return line


class Absence:
    """Tells an operation that is not served from a thing that is not there: by what the API says to nonsense."""

    def __init__(self, cloud: Cloud) -> None:
        nonsense = cloud.compute("GET", "/magnetar-nonsense")
        self.path = _without(nonsense.message, nonsense)
        action = cloud.compute("POST", f"/servers/{NOBODY}/action", {"magnetarNonsense": None})
        self.action = action.message.replace("magnetarNonsense", "*") if action.status == 400 else None

    def __call__(self, answer: Exchange, action: str | None) -> bool:
        """Whether *answer* says that there is no such operation."""
        if answer.status == 405:  # 501 is what Nova says, too, where a service or a hypervisor lacks something
            return True
        if answer.status == 404:
            return _without(answer.message, answer) == self.path
        return bool(action and self.action and answer.status == 400
                    and answer.message.replace(action, "*") == self.action)


def _without(message: str, answer: Exchange) -> str:
    for part in (answer.path, answer.path.partition("?")[0], answer.path.partition("/v2.1")[2].partition("?")[0]):
        if part:
            message = message.replace(part, "*")
    return message


def headers(answer: Exchange, versioned: bool = True) -> Iterator[Difference]:
    """What is wrong with the headers of an answer."""
    got = answer.headers
    if versioned and answer.version:
        for name, wanted in (("openstack-api-version", f"compute {answer.version}"),
                             ("x-openstack-nova-api-version", answer.version)):
            if got.get(name) != wanted:
                yield Difference(f"#header/{name}", "header", wanted, short(got.get(name)))
            if name not in got.get("vary", "").lower():
                yield Difference("#header/vary", "header", name, short(got.get("vary")))
    for name in ("x-openstack-request-id", "x-compute-request-id"):
        if (versioned or name in got) and not re.fullmatch("req-" + UUID.pattern, got.get(name, "")):
            yield Difference(f"#header/{name}", "header", "req-uuid", short(got.get(name)))
    if answer.raw and not got.get("content-type", "").startswith("application/json"):
        yield Difference("#header/content-type", "header", "application/json", short(got.get("content-type")))


def fault(answer: Exchange, statuses: tuple[int, ...], versioned: bool = True) -> list[Difference]:
    """What is wrong with a refusal that shall have one of *statuses*."""
    if answer.status not in statuses:
        return [Difference("#status", "status", " or ".join(map(str, statuses)),
                           f"{answer.status} {short(answer.message)}")]
    found = list(headers(answer, versioned))
    named = answer.fault
    if named is None:
        return [*found, Difference("", "fault", "{name: {code, message}}", short(answer.raw[:80]))]
    name, inner = named
    wanted = FAULTS.get(answer.status, "computeFault")
    if name != wanted:
        found.append(Difference("", "fault", wanted, name))
    if inner.get("code") != answer.status:
        found.append(Difference(f"/{name}/code", "fault", str(answer.status), short(inner.get("code"))))
    if not isinstance(inner.get("message"), str) or not inner["message"]:
        found.append(Difference(f"/{name}/message", "fault", "a text", short(inner.get("message"))))
    return found
