# SPDX-License-Identifier: GPL-3.0-or-later
"""An application of routes. It finds the route, authenticates the client, calls the handler and renders faults."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from magnetar_core.errors import MagnetarError

from .answer import Answer, Fault, fault_of
from .quick import RunIn
from .request import Request
from .routing import Route, Router
from .secret_paths import without_secrets
from .websocket import WebSocket

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Roles that may use a route in addition to ``admin``, by its ``who``.
ROLES: Mapping[str, frozenset[str]] = {"admin": frozenset(), "service": frozenset({"service"})}


@dataclass(frozen=True, kw_only=True)
class Guarded(Route):
    """A route that only some callers may use.

    *who*: these callers: ``anyone``, ``token`` (any valid token), ``service`` (the role ``service`` or ``admin``) or
    ``admin``. *status*: the HTTP status if the handler returns a document or ``None`` instead of an ``Answer``.
    *run_in*: whether the handler runs in a thread (and in which pool) or in the event loop.
    """

    who: str = "token"
    status: int = 200
    run_in: RunIn = RunIn.THREAD


def guarded_route(where: str, handler: Callable[[Request], Any], status: int = 200, who: str = "token",
                  stream: bool = False, run_in: RunIn = RunIn.THREAD) -> Guarded:
    """Return a route for the application class ``Routed``. *where*: method and path, such as ``GET /images/{id}``.
    *stream*: whether the handler reads the request body itself, in chunks. *status*, *who*, *run_in*: see
    ``Guarded``."""
    method, _space, path = where.partition(" ")
    return Guarded(method=method, path=path, handler=handler, status=status, who=who, stream=stream, run_in=run_in)


class Application:
    """The base class of web applications; each is mounted at a path prefix of the server."""

    def handle(self, request: Request) -> Answer:
        """Return the response to *request*; never raises."""
        raise NotImplementedError

    def admit(self, request: Request) -> Answer | None:
        """Check the request before its body is read. Return the error response if it is rejected, or ``None`` to read
        the body. Never raises."""
        return None

    def streams(self, method: str, path: str) -> bool:
        """Return whether the handler of this method and path reads the request body itself, in chunks."""
        return False

    def run_in(self, request: Request) -> RunIn:
        """Return where the request is handled: in a thread (and in which pool), or in the event loop."""
        return RunIn.THREAD

    async def websocket(self, socket: WebSocket) -> None:
        """Serve a WebSocket until it is closed. The base class rejects it with 404."""
        message = f"There is no WebSocket at {socket.path[:200]}."
        await socket.refuse(Answer({"error": {"code": 404, "message": message}}, 404))

    def refused(self, request: Request, fault: Fault) -> Answer:
        """Return the response for *fault*, in the error format of this application. The server also calls this for
        faults that occur before it calls ``handle``."""
        return Answer({"error": {"code": fault.status, "message": fault.message}}, fault.status, fault.headers)


class Routed(Application):
    """An application that finds a route for each request, and checks the caller's token. *authenticate* sets
    ``request.context`` or raises ``Fault`` 401. *render* returns the response for a fault. *slash*: paths with at most
    this number of segments may end with a slash."""

    def __init__(self, routes: Iterable[Guarded], authenticate: Callable[[Request], None],
                 render: Callable[[Fault], Answer], slash: int = 1) -> None:
        self.router = Router(routes, slash)
        self.authenticate, self.render = authenticate, render

    def handle(self, request: Request) -> Answer:
        return self._safely(request, self._answer)

    def admit(self, request: Request) -> Answer | None:
        return self._safely(request, self._may_send)

    def _may_send(self, request: Request) -> None:
        self._admitted(request)

    def _safely(self, request: Request, do: Callable[[Request], T]) -> T | Answer:
        try:
            return do(request)
        except Fault as fault:
            return self.refused(request, fault)
        except Exception as error:
            foreseen_fault = self.fault(error, request)
            if foreseen_fault is not None:
                return self.refused(request, foreseen_fault)
            log.exception("%s %s failed", request.method, without_secrets(request.path),
                          extra={"request_id": request.id})
            return self.refused(request, Fault(500, "The service failed to answer, not by the request's fault: try "
                                                    f"again, or give {request.id} to the operator, whose log says "
                                                    "why."))

    def fault(self, error: Exception, request: Request) -> Fault | None:
        """Return the HTTP fault for an error that a handler raised; ``None`` for an unexpected error."""
        return fault_of(error) if isinstance(error, MagnetarError) else None

    def run_in(self, request: Request) -> RunIn:
        routes = self.router.find(request.path).get(request.method)
        return routes[0][0].run_in if routes else RunIn.THREAD

    def streams(self, method: str, path: str) -> bool:
        return any(route.stream for route, _params in self.router.find(path).get(method, ()))

    def _answer(self, request: Request) -> Answer:
        route = self._admitted(request)
        answer = route.handler(request)
        return answer if isinstance(answer, Answer) else Answer(answer, route.status)

    def _admitted(self, request: Request) -> Guarded:
        """Find the route of a request, and authenticate and authorize the caller. Return the route. Raises ``Fault``:
        400, 401, 403, 404, 405."""
        if "%00" in request.path or "%00" in request.query_string:
            raise Fault(400, "The URL holds a NUL byte; no name or id has one.")
        methods = self.router.find(request.path)
        if not methods:
            raise Fault(404, f"There is nothing at {request.path}.")
        routes = methods.get(request.method) or (methods.get("GET") if request.method == "HEAD" else None)
        if not routes:
            raise Fault(405, f"{request.method} is not possible at {request.path}.",
                        {"Allow": ", ".join(sorted(methods))})
        route, request.params = routes[0]
        request.extra["route"] = route.path
        if route.who != "anyone":
            self.authenticate(request)
        if route.who in ROLES and not request.context.is_admin and not ROLES[route.who] & request.context.roles:
            raise Fault(403, "You are not authorized to perform the requested action: it needs the role "
                        f"{' or '.join(['admin', *ROLES[route.who]])}.")
        return route

    def refused(self, request: Request, fault: Fault) -> Answer:
        answer = self.render(fault)
        answer.headers.update(fault.headers)
        return answer


def unauthenticated_fault(where: str) -> Fault:
    """Return the fault 401 for a client without a valid token. *where*: the URL at which clients get tokens."""
    return Fault(401, "The request you have made requires authentication: X-Auth-Token is missing, expired or not good "
                      "any more.", {"WWW-Authenticate": f'Keystone uri="{where}"'})


def by_token(validate: Callable[[str], Any], catalogue: str = "/identity",
             scopes: Collection[str] = ("project", "")) -> Callable[[Request], None]:
    """Return a function *authenticate* for ``Routed``, which checks X-Auth-Token and sets ``request.context``.
    *validate*: returns the context of a token, or ``None``. If X-Service-Token belongs to a service, the context says
    that the service acts for the user (``for_user``).

    *catalogue*: path on this server, or URL, at which clients get tokens; named in the error 401. *scopes*: accepted
    values of ``Context.scope``; tokens with another scope get 403.
    """

    def authenticate(request: Request) -> None:
        token, beside = request.headers.get("x-auth-token"), request.headers.get("x-service-token")
        context = validate(token) if token else None
        if context is None:
            raise unauthenticated_fault(request.root + catalogue if catalogue.startswith("/") else catalogue)
        if context.scope not in scopes:
            raise Fault(403, "You are not authorized to perform the requested action: it needs a token for a project, "
                             f"and yours is for the {context.scope}. Log in with a project (OS_PROJECT_NAME).")
        service = validate(beside) if beside else None
        request.context = replace(context, for_user=True) if service is not None and service.is_service else context

    return authenticate
