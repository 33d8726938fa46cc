# SPDX-License-Identifier: GPL-3.0-or-later
"""The identity service, requests without a network, and a server on loopback."""

from __future__ import annotations

import contextlib
import socket

import orjson
import uvicorn

from magnetar_control.api.identity.app import identity_application
from magnetar_control.services import identity
from magnetar_control.web import Request
from magnetar_control.web.application import Application
from magnetar_control.web.asgi import AsgiServer
from tests.support.http_server import started

URL = "http://cloud:8774"


class Client:
    """Asks an application as clients do; ``token`` goes along."""

    def __init__(self, application, prefix="/identity", token=None):
        self.application, self.prefix, self.token = application, prefix, token

    def __call__(self, method, path, body=None, status=None, **headers):
        path, _mark, query = path.partition("?")
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token:
            given["x-auth-token"] = self.token
        content = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        request = Request(method, path, query, given, content, root=URL)
        request.base = URL + self.prefix
        answer = self.application.handle(request)
        sent = answer.body()
        content = sent if isinstance(sent, bytes) else b"".join(sent)
        if status is not None:
            assert answer.status == status, (answer.status, content)
        json = answer.media_type == "application/json" and content
        return Got(answer, orjson.loads(content) if json else content)

    def as_(self, token):
        return Client(self.application, self.prefix, token)

    def login(self, name, password, project="admin", scope=None):
        scope = scope or {"project": {"name": project, "domain": {"id": "default"}}}
        body = {"auth": {"identity": {"methods": ["password"], "password": {
            "user": {"name": name, "domain": {"id": "default"}, "password": password}}}, "scope": scope}}
        return self("POST", "/v3/auth/tokens", body)


class Got:
    def __init__(self, answer, body):
        self.status, self.headers, self.body = answer.status, answer.headers, body

    @property
    def token(self):
        return self.headers["X-Subject-Token"]

    def __getitem__(self, key):
        return self.body[key]


class Cloud:
    """The identity service after bootstrap, its application, and an administrator's client."""

    def __init__(self, database, **settings):
        self.database = database
        self.identity = identity.EmbeddedIdentity(self.database, **settings)
        self.password = self.identity.bootstrap(URL)
        self.ask = Client(identity_application(self.identity))
        self.admin = self.ask.as_(self.ask.login("admin", self.password).token)

    def project(self, name="demo", **fields):
        return self.admin("POST", "/v3/projects", {"project": {"name": name, **fields}}, 201)["project"]["id"]

    def user(self, name="ann", password="secret", project=None, role="member"):
        user = self.admin("POST", "/v3/users", {"user": {"name": name, "password": password}}, 201)["user"]["id"]
        if project:
            self.admin("PUT", f"/v3/projects/{project}/users/{user}/roles/{self.role(role)}", None, 204)
        return user

    def role(self, name):
        return self.admin("GET", f"/v3/roles?name={name}")["roles"][0]["id"]


class Nothing(Application):
    def handle(self, request):
        raise AssertionError("nothing is mounted here")


@contextlib.contextmanager
def served(threads=8, transfers=None, **mounts):
    """Serve applications on loopback, by prefix without slash; gives the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = AsgiServer({"": Nothing(), **{f"/{name}": found for name, found in mounts.items()}}, threads=threads,
                         transfers=transfers)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", http="httptools"))
        try:
            with started(server, listener):
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            app.threads.shutdown()
            app.uploads.shutdown()
            app.downloads.shutdown()
