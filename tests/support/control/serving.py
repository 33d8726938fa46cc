# SPDX-License-Identifier: GPL-3.0-or-later
"""A service's application for tests: called directly, or over loopback by OpenStack's clients."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import uvicorn

from magnetar_control.services import Context
from magnetar_control.web import Request
from magnetar_control.web.asgi import AsgiServer
from magnetar_core.errors import Unauthenticated
from tests.support.http_server import started

ADMIN = Context("root", "operators", frozenset({"admin"}), token="admin")
ALICE = Context("alice", "red", frozenset({"member"}), token="alice")
BOB = Context("bob", "blue", frozenset({"member"}), token="bob")
READER = Context("rita", "red", frozenset({"reader"}), token="rita")
NOVA = Context("nova", "red", frozenset({"service"}), token="nova")
WHO = {one.token: one for one in (ADMIN, ALICE, BOB, READER, NOVA)}


def authenticate(request: Request) -> None:
    """Return the caller whose name is the token of *request*."""
    request.context = WHO.get(request.headers.get("x-auth-token", ""))
    if request.context is None:
        raise Unauthenticated("The request you have made requires authentication.")


class Asker:
    """A client that calls *application* directly, as the caller *context*."""

    def __init__(self, application: Any, context: Context = ALICE, headers: Mapping[str, str] | None = None) -> None:
        self.application, self.context, self.headers = application, context, dict(headers or {})

    def as_(self, context: Context) -> Asker:
        """Return a client of the same application for another caller."""
        return Asker(self.application, context, self.headers)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and document of the answer to a request."""
        path, _mark, query = path.partition("?")
        request = Request(method, path, query, {"x-auth-token": self.context.token, **self.headers},
                          b"" if body is None else orjson.dumps(body), root="http://cloud")
        answer = self.application.handle(request)
        content = answer.body()
        assert isinstance(content, bytes)
        return answer.status, orjson.loads(content) if content else None

    def __call__(self, method: str, path: str, body: Any = None, status: int | None = None) -> Any:
        """Return the document of a successful answer, or of one with the expected *status*."""
        got, document = self.ask(method, path, body)
        assert got == status if status else got < 300, document
        return document


def connected(url: str, token: str, **endpoints: str) -> Any:
    """Return a connection of openstacksdk with the given *endpoints* (``network_endpoint_override`` and the like)."""
    import openstack  # which takes a while, and most who import this module need no client

    return openstack.connect(auth_type="admin_token", auth={"endpoint": url, "token": token}, region_name="one",
                             load_yaml_config=False, load_envvars=False, **endpoints)


@contextlib.contextmanager
def served(**mounts: Any) -> Iterator[str]:
    """Yield the URL of a server on loopback with applications by path prefix (without the slash)."""
    applications = {f"/{name}": application for name, application in mounts.items()}
    applications[""] = [*mounts.values()][0]  # noqa: RUF015 - a generator must not end by next
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(AsgiServer(applications), log_level="warning", lifespan="off"))
        with started(server, listening):
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
