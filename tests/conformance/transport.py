# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP to the cloud under test: personas, exchanges, and the description of the target."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .samples import UNLIMITED, minor

PERSONAS = ("admin", "member", "other", "reader")


@dataclass
class Target:
    """Where the cloud is and what it can; what is empty is found out."""

    url: str
    auth_url: str = ""
    username: str = "admin"
    password: str = ""
    project: str = "admin"
    domain: str = "Default"
    #: Ready tokens instead: {persona: {token, project_id, user_id}}.
    personas: dict[str, dict[str, str]] = field(default_factory=dict)
    max_microversion: str = ""
    capabilities: dict[str, Any] = field(default_factory=dict)
    #: Other services by name (identity, image, network, volume): base URLs without version.
    services: dict[str, str] = field(default_factory=dict)
    image: str = ""
    #: Properties that sign an image of a MiB of zeros, with a certificate linked to those that the samples trust.
    signature: dict[str, str] = field(default_factory=dict)
    #: A small flavor, for clouds on which none can be made.
    flavor: str = ""
    network: str = ""
    zone: str = ""
    hosts: list[str] = field(default_factory=list)
    timeout: float = 60.0

    @property
    def maximum(self) -> int:
        """The newest microversion to ask for."""
        return minor(self.max_microversion, UNLIMITED)

    def service(self, name: str) -> str:
        """The base URL of another service: below the compute API's own, unless said otherwise."""
        return self.services.get(name) or f"{self.url.rstrip('/')}/{name}"


def read_target(path: Path) -> Target:
    """The target of a description file: YAML with the fields of ``Target``."""
    return Target(**yaml.safe_load(path.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Exchange:
    """What was asked and what came."""

    method: str
    path: str
    version: str | None
    sent: bytes | None
    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        """The answer as JSON; ``None`` when it is empty or something else."""
        try:
            return json.loads(self.raw) if self.raw else None
        except ValueError:
            return None

    @property
    def fault(self) -> tuple[str, dict[str, Any]] | None:
        """Name and content of a fault."""
        body = self.body
        if isinstance(body, dict) and len(body) == 1:
            name, inner = next(iter(body.items()))
            if isinstance(inner, dict) and "code" in inner:
                return name, inner
        return None

    @property
    def message(self) -> str:
        """What a fault says."""
        fault = self.fault
        return str(fault[1].get("message", "")) if fault else self.raw[:200].decode("utf-8", "replace")


class Wire:
    """Connections, one to each server, kept."""

    def __init__(self, timeout: float = 30.0) -> None:
        self.timeout = timeout
        self._open: dict[tuple[str, str], http.client.HTTPConnection] = {}
        self.sent = 0

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None,
             version: str | None) -> Exchange:
        """One exchange; a kept connection that was closed meanwhile is made again."""
        parts = urllib.parse.urlsplit(url)
        target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        key = (parts.scheme, parts.netloc)
        for attempt in (1, 2):
            connection = self._open.get(key) or self._connect(*key)
            self._open[key] = connection
            try:
                connection.request(method, target, body=body, headers=dict(headers))
                answer = connection.getresponse()
                raw = answer.read()
                break
            except (http.client.HTTPException, OSError):
                connection.close()
                self._open.pop(key, None)
                if attempt == 2:
                    raise
        self.sent += 1
        got = {name.lower(): value for name, value in answer.getheaders()}
        return Exchange(method, target, version, body, answer.status, got, raw)

    def _connect(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        return kind(netloc, timeout=self.timeout)

    def close(self) -> None:
        """Close what is open."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()


@dataclass
class Persona:
    """Somebody who asks."""

    name: str
    token: str
    project_id: str
    user_id: str = ""


@dataclass
class Cloud:
    """The target with its personas: what fixtures and cases speak to."""

    target: Target
    wire: Wire
    personas: dict[str, Persona]
    #: The exchanges of the case that runs which are about its operation.
    story: list[Exchange] = field(default_factory=list)

    def noted(self, answer: Exchange) -> Exchange:
        """*answer*, which belongs to the case and not to what it needs."""
        self.story.append(answer)
        return answer

    @property
    def admin(self) -> Persona:
        """Who may do everything."""
        return self.personas["admin"]

    def compute(self, method: str, path: str, body: Any = None, *, version: int | str | None = 1,
                persona: str = "admin", headers: Mapping[str, str] | None = None) -> Exchange:
        """Ask the compute API. *path* is below /v2.1, or begins with "(root)". *version*: the number behind "2.", a
        text that goes into the header as it is, or ``None`` for no header."""
        asked = f"2.{version}" if isinstance(version, int) else version
        head = {"Accept": "application/json", **(headers or {})}
        if asked is not None:
            head["OpenStack-API-Version"] = f"compute {asked}"
            head["X-OpenStack-Nova-API-Version"] = asked
        if persona in self.personas:
            head.setdefault("X-Auth-Token", self.personas[persona].token)
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            head.setdefault("Content-Type", "application/json")
        base = self.target.url.rstrip("/")
        url = base + path[len("(root)"):] if path.startswith("(root)") else f"{base}/v2.1{path}"
        return self.wire.send(method, url, head, data, asked)

    def service(self, name: str, method: str, path: str, body: Any = None, *, persona: str = "admin",
                content: bytes | None = None, headers: Mapping[str, str] | None = None) -> Exchange:
        """Ask another service (identity, image, network, volume)."""
        head = {"Accept": "application/json", "X-Auth-Token": self.personas[persona].token, **(headers or {})}
        if body is not None:
            head["Content-Type"] = "application/json"
            content = json.dumps(body).encode()
        return self.wire.send(method, self.target.service(name) + path, head, content, None)
