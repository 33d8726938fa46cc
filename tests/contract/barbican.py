# SPDX-License-Identifier: GPL-3.0-or-later
"""A Barbican in memory that does of its API v1 what ``services.barbican`` asks for, and refuses what the real one does.

Source: Barbican's API reference, "Secrets".
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

ONE = re.compile(r"/v1/secrets/([0-9a-f-]{36})(/payload)?")


class FakeBarbican:
    """A context manager that serves on loopback. *tokens*: the project of each token that is good; without them every
    token is good, for the project ``service``. ``secrets``: all that there are, by their uuids; ``asked``: method and
    path of each request; while ``away`` is true, it answers 503."""

    def __init__(self, tokens: Mapping[str, str] | None = None) -> None:
        self.tokens, self.secrets, self.asked = tokens, dict[str, dict[str, Any]](), list[str]()
        self.away = False
        barbican = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                barbican.asked.append(f"{self.command} {self.path}")
                status, type, content = barbican.answer(self.command, self.path, self.headers, body)
                self.send_response(status)
                self.send_header("Content-Type", type)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = _answer

            def log_message(self, *_args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def store(self, project: str, **secret: Any) -> str:
        """Keep a secret; its uuid. *payload*: bytes, or a text."""
        id = str(uuid.uuid4())
        self.secrets[id] = {"name": None, "secret_type": "opaque", "payload_content_type": "application/octet-stream",
                            "project": project, "created": datetime.now(UTC).isoformat(), "readers": (), **secret}
        return id

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str, bytes]:
        """Status, content type and content of an answer."""
        if self.away:
            return 503, "text/plain", b"Service Unavailable"
        token = headers.get("X-Auth-Token") or ""
        project = "service" if self.tokens is None else self.tokens.get(token)
        if project is None:
            return 401, "text/plain", b"Authentication required"
        parts = urlsplit(path)
        if parts.path == "/v1/secrets":
            if method == "POST":
                return self._made(project, json.loads(body))
            name = parse_qs(parts.query).get("name", [""])[0]
            found = [self._told(id) for id, one in self.secrets.items()
                     if one["project"] == project and name in (one["name"] or "")]  # similar is enough
            return _json(200, {"secrets": found[:int(parse_qs(parts.query).get("limit", ["10"])[0])],
                               "total": len(found)})
        known = ONE.fullmatch(parts.path)
        one = self.secrets.get(known[1]) if known else None
        if known is None or one is None:
            return _json(404, {"code": 404, "title": "Not Found", "description": "Secret not found."})
        if one["project"] != project and token not in one["readers"]:
            return _json(403, {"code": 403, "title": "Forbidden", "description":
                               "Secret retrieval attempt not allowed - please review your user/project privileges"})
        if method == "DELETE":
            del self.secrets[known[1]]
            return 204, "application/json", b""
        if not known[2]:
            return _json(200, self._told(known[1]))
        if headers.get("Accept") != one["payload_content_type"]:
            return _json(406, {"code": 406, "title": "Not Acceptable", "description":
                               "Secret payload retrieval issue seen - not acceptable"})
        payload = one["payload"]
        return 200, one["payload_content_type"], payload if isinstance(payload, bytes) else payload.encode()

    def _made(self, project: str, body: Mapping[str, Any]) -> tuple[int, str, bytes]:
        if body.get("payload") and not body.get("payload_content_type"):
            return _json(400, {"code": 400, "title": "Bad Request", "description":
                               "Provided object does not match schema 'Secret': payload_content_type is required."})
        return _json(201, {"secret_ref": f"{self.url}/v1/secrets/{self.store(project, **body)}"})

    def _told(self, id: str) -> dict[str, Any]:
        one = self.secrets[id]
        types = {"default": one["payload_content_type"]} if one.get("payload") else None
        return {"name": one["name"], "secret_type": one["secret_type"], "status": "ACTIVE", "created": one["created"],
                "content_types": types, "secret_ref": f"{self.url}/v1/secrets/{id}"}


def _json(status: int, document: Any) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(document).encode()
