# SPDX-License-Identifier: GPL-3.0-or-later
"""A server with the routes of AWX's API v2 that awx.awx calls. It keeps what it is given, refuses what AWX refuses, and
says what a job gets.
"""

from __future__ import annotations

import http.server
import itertools
import json
import threading
import urllib.parse
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .nouns import AWX_NOUNS, HIDDEN, NOTIFICATIONS, UNIFIED, Row, render_injectors
from .survey import answer_errors, survey_error

if TYPE_CHECKING:
    from types import TracebackType

PREFIX = "/api/v2/"
TOKEN = "fake-token"
#: Credential types of AWX itself, without what jobs get from them.
MACHINE = {"name": "Machine", "kind": "ssh", "managed": True, "injectors": {}, "inputs": {"fields": [
    {"id": name, "label": name, "secret": name != "username"} for name in ("username", "password", "ssh_key_data")]}}


class RefusedByAwx(Exception):
    """A request that AWX refuses. *status*: of the answer."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class FakeAwx:
    """An AWX with the organization Default, which ``awx.awx`` and ``url`` reach. ``rows``: its resources by noun and
    id. ``writes``: each request that changed something. `launch` returns what a job gets.
    """

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, Row]] = {noun: {} for noun in AWX_NOUNS}
        self.writes: list[str] = []
        self._ids = itertools.count(1)
        self.create("organizations", {"name": "Default"})
        self.create("credential_types", MACHINE)

    def __enter__(self) -> Self:
        handler = type("AwxHandler", (_AwxHandler,), {"awx": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def named(self, noun: str, name: str) -> Row:
        """Return the resource of this name."""
        (row,) = (row for row in self.rows[noun].values() if row["name"] == name)
        return row

    def create(self, noun: str, given: Row) -> Row:
        """Add a resource, and return it. Raises `RefusedByAwx`."""
        kind = AWX_NOUNS[noun]
        row = {**deepcopy(dict(kind.fields)), **{name: [] for name in kind.associations}, "survey": {}}
        row["id"] = next(self._ids)
        self._change(noun, row, given)
        self.rows[noun][row["id"]] = row
        return row

    def _change(self, noun: str, row: Row, given: Row) -> None:
        """Set fields of *row*, if AWX takes them."""
        kind = AWX_NOUNS[noun]
        after = {**row, **{name: value for name, value in given.items() if name in kind.fields and value is not None}}
        after = self._with_secrets(row, after)
        for name in kind.required:
            if after[name] in (None, ""):
                raise RefusedByAwx(f"{name}: This field is required.")
        for name, other in kind.references.items():
            nouns = UNIFIED if other == "unified_job_templates" else (other,)
            if after[name] is not None and not any(after[name] in self.rows[one] for one in nouns):
                raise RefusedByAwx(f"{name}: there is no {other} {after[name]}")
        same = [one for one in self.rows[noun].values() if one["id"] != row["id"]
                and all(one[name] == after[name] for name in kind.identity)]
        if same:
            raise RefusedByAwx(f"{noun} with this {' and '.join(kind.identity)} already exists")
        if error := kind.error(after, self.rows):
            raise RefusedByAwx(error)
        row.update(after)

    @staticmethod
    def _with_secrets(row: Row, after: Row) -> Row:
        """Return *after* with the secrets of *row* where it says that they stay."""
        for name in ("inputs", "notification_configuration"):
            if isinstance(after.get(name), dict):
                after[name] = {key: row[name][key] if value == HIDDEN else value for key, value in after[name].items()}
        return after

    def shown(self, noun: str, row: Row) -> Row:
        """Return a resource as the API shows it: with links, and without secrets."""
        url = f"{PREFIX}{noun}/{row['id']}/"
        hidden = deepcopy({name: value for name, value in row.items() if name != "survey"
                           and name not in AWX_NOUNS[noun].associations})
        for name in self._secrets(noun, row):
            part = hidden["inputs" if noun == "credentials" else "notification_configuration"]
            if part.get(name):
                part[name] = HIDDEN
        related = {"survey_spec": f"{url}survey_spec/"}
        if noun == "workflow_job_template_nodes" and row["unified_job_template"]:
            other = next(one for one in UNIFIED if row["unified_job_template"] in self.rows[one])
            related["unified_job_template"] = f"{PREFIX}{other}/{row['unified_job_template']}/"
        extra = {"scm_revision": "abc"} if noun == "projects" else {}
        return {**hidden, **extra, "type": noun.removesuffix("s"), "url": url, "related": related,
                "summary_fields": {}}

    def _secrets(self, noun: str, row: Row) -> list[str]:
        """Return the keys of a resource that the API hides."""
        if noun == "credentials":
            fields = self.rows["credential_types"][row["credential_type"]]["inputs"]["fields"]
            return [one["id"] for one in fields if one.get("secret")]
        if noun == "notification_templates":
            return [name for name, secret in NOTIFICATIONS[row["notification_type"]].items() if secret]
        return []

    def found(self, noun: str, query: dict[str, str]) -> list[Row]:
        """Return the resources that a list with this *query* has."""
        nouns = UNIFIED if noun == "unified_job_templates" else (noun,)
        rows = [(one, row) for one in nouns for row in self.rows[one].values()]
        fields = {name: value for name, value in query.items() if not name.startswith("or__")}
        either = {name.removeprefix("or__"): value for name, value in query.items() if name.startswith("or__")}
        return [self.shown(one, row) for one, row in rows
                if all(str(row.get(name, "")) == value or value == "None" for name, value in fields.items())
                and (not either or any(str(row.get(name)) == value for name, value in either.items()))]

    def handle(self, method: str, path: str, query: dict[str, str], body: Row) -> tuple[int, Row]:
        """Return status and answer of a request."""
        noun, *rest = path.removeprefix(PREFIX).strip("/").split("/")
        if not path.startswith(PREFIX) or noun not in {*AWX_NOUNS, "unified_job_templates"}:
            raise RefusedByAwx(f"there is no {path}", 404)
        if method != "GET":
            self.writes.append(f"{method} {path}")
        if not rest:
            if method == "POST":
                return 201, self.shown(noun, self.create(noun, body))
            return 200, _page(self.found(noun, query))
        row = self.rows[noun].get(int(rest[0]))
        if row is None:
            raise RefusedByAwx(f"there is no {path}", 404)
        if len(rest) > 1:
            return self._handle_part(method, noun, row, rest[1], body)
        if method == "PATCH":
            self._change(noun, row, body)
        return 200, self.shown(noun, row)

    def _handle_part(self, method: str, noun: str, row: Row, part: str, body: Row) -> tuple[int, Row]:
        """Return status and answer of a request for a part of a resource: its survey, its approval, or a list."""
        if part == "survey_spec" and noun in ("job_templates", "workflow_job_templates"):
            if method == "GET":
                return 200, row["survey"]
            if error := survey_error(body):
                raise RefusedByAwx(error)
            row["survey"] = body
            return 200, {}
        if part == "create_approval_template" and noun == "workflow_job_template_nodes":
            approval = self.create("workflow_approval_templates", body)
            row["unified_job_template"] = approval["id"]
            return 201, self.shown("workflow_approval_templates", approval)
        if part not in AWX_NOUNS[noun].associations:
            raise RefusedByAwx(f"{noun} have no {part}", 404)
        if method == "GET":
            return 200, _page([{"id": one} for one in row[part]])
        row[part] = [one for one in row[part] if one != body["id"]] + [body["id"]] * (not body.get("disassociate"))
        return 204, {}

    def launch(self, name: str, answers: Row, folder: Path) -> tuple[str, Row, dict[str, str]]:
        """Return the playbook of a template's job, its extra variables and its environment, with the files of
        credentials in *folder*. Raises `RefusedByAwx` for answers that AWX refuses.
        """
        template = self.named("job_templates", name)
        if errors := answer_errors(template["survey"], answers):
            raise RefusedByAwx("; ".join(errors))
        defaults = {one["variable"]: one["default"] for one in template["survey"].get("spec", ()) if "default" in one}
        environment: dict[str, str] = {}
        for number in template["credentials"]:
            credential = self.rows["credentials"][number]
            kind = self.rows["credential_types"][credential["credential_type"]]
            inputs = {key: value for key, value in credential["inputs"].items() if value}
            environment |= render_injectors(kind, inputs, folder=folder)
        return template["playbook"], {**defaults, **answers}, environment


def _page(rows: list[Row]) -> Row:
    """Return the only page of a list."""
    return {"count": len(rows), "next": None, "previous": None, "results": rows}


class _AwxHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    awx: FakeAwx

    def _answer(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        try:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise RefusedByAwx("Authentication credentials were not provided.", 401)
            status, answer = self.awx.handle(self.command, url.path, dict(urllib.parse.parse_qsl(url.query)), body)
        except RefusedByAwx as error:
            status, answer = error.status, {"__all__": [str(error)], "error": str(error), "detail": str(error)}
        data = b"" if status == 204 else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("X-API-Product-Name", "AWX")
        self.send_header("X-API-Product-Version", "24.6.1")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_DELETE = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
