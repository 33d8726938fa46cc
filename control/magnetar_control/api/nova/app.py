# SPDX-License-Identifier: GPL-3.0-or-later
"""The Compute API as a web application. The steps of a request: version, caller, operation, body, target, policy,
state, handler."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy.exc import DBAPIError

from magnetar_control.compute import target
from magnetar_control.compute.cloud import Cloud
from magnetar_control.store.engine.database import is_database_unreachable
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.store.servers import servers
from magnetar_control.web import Answer, Fault, Request, Router
from magnetar_control.web.application import Application, by_token
from magnetar_control.web.quick import RunIn
from magnetar_core.errors import InvalidRequest, MagnetarError, NotFound

from . import faults, removed, versions
from .operation import ApiOperation, Call

_PROJECT = re.compile(r"[0-9a-f-]{1,64}|(?=.*[0-9])[A-Za-z0-9_-]{1,255}")
#: The name of a server action at the beginning of its body.
_NAME = re.compile(rb'\s{0,99}\{\s{0,99}"([^"]{0,99})"')
ROOTS = {"v2": "v2.0", "v2.1": "v2.1"}


class ComputeApplication(Application):
    """The web application of the Compute API, mounted at the root of the server: ``/``, ``/v2.1`` and ``/v2``."""

    def __init__(self, cloud: Cloud, operations: Sequence[ApiOperation], v1: Any = None) -> None:
        self.cloud, self.v1 = cloud, v1
        self.authenticate = by_token(cloud.services.identity.validate, cloud.settings.keystone_url or "/identity")
        operations = (*operations, *removed.OPERATIONS)
        self.router = Router(operations)
        self.collections = {operation.path.split("/")[1] for operation in operations}
        self._quick = _paths((operation for operation in operations if operation.quick), "[0-9a-f]{32}")
        waits = [operation for operation in operations if operation.waits]
        self._waits = _paths(waits, "[^/]+")
        self._waiting_actions = {operation.action for operation in waits if operation.action}

    def streams(self, method: str, path: str) -> bool:
        """Override ``Application.streams``: return whether the handler reads the request body piece by piece. Only some
        handlers of the v1 API do this."""
        return bool(self.v1 and path.startswith("/v1/") and self.v1.streams(method, path))

    def run_in(self, request: Request) -> RunIn:
        """Override ``Application.run_in``: return the ``RunIn`` value of a request, which decides whether the request
        runs in the event loop or in a thread.

        Quick requests are GET requests that read little from the databases, in a cloud with the embedded identity
        service. Quick requests get ``FEW_THREADS`` (a few threads), unless all databases are SQLite. If all databases
        are SQLite, quick requests get ``ONE_THREAD`` (one thread) for a URL with a query string, otherwise
        ``EVENT_LOOP`` (the event loop). Other requests get ``WAIT`` (a separate thread pool) if they may wait for a
        host, otherwise ``THREAD``.
        """
        if request.method != "GET" or self.cloud.settings.keystone_url is not None or not (
                self._quick.fullmatch(request.path)):
            return RunIn.WAIT if self._may_wait(request) else RunIn.THREAD
        if self.cloud.store.kinds != {"sqlite"}:
            return RunIn.FEW_THREADS
        return RunIn.ONE_THREAD if request.query_string else RunIn.EVENT_LOOP  # a query may block the loop for too long

    def _may_wait(self, request: Request) -> bool:
        """Return whether the request may wait for a host. For a server action (POST …/action), the name of the action
        decides; the function looks for this name at the beginning of the body."""
        if not self._waits.fullmatch(request.path):
            return False
        if not request.path.endswith("/action"):
            return True
        name = _NAME.match(request.content)
        return name is None or b"\\" in name[1] or name[1].decode(errors="replace") in self._waiting_actions

    def admit(self, request: Request) -> Answer | None:
        head = request.path[1:].partition("/")[0]
        with statement_timeout(self.cloud.settings.cell_timeout):
            if head == "v1" and self.v1:
                refusal: Answer | None = self.v1.admit(request)
                return refusal
            if head not in ROOTS:  # routes at the root take no body
                return self._handled(request)
            try:
                self.authenticate(request)
            except Exception as error:  # noqa: BLE001 - whatever fails gets an answer
                return self.refused(request, faults.compute_fault_of(error, request.id))
        return None

    def handle(self, request: Request) -> Answer:
        """Return the answer to *request*; never raises. Waits for a database at most as long as the settings allow."""
        with statement_timeout(self.cloud.settings.cell_timeout):
            return self._handled(request)

    def _handled(self, request: Request) -> Answer:
        head, _slash, subpath = request.path[1:].partition("/")
        if head == "v1" and self.v1:
            answer: Answer = self.v1.handle(request)
            return answer
        if head not in ROOTS:
            return Answer(versions.version_list_document(request.root)) if not head else Answer(
                versions.version_choices_document(request.root, request.path), 300)
        stamp: dict[str, str] = {}
        try:
            answer = self._versioned(request, head, subpath, stamp)
        except Exception as error:  # noqa: BLE001 - whatever fails gets an answer
            answer = faults.render_compute_fault(faults.compute_fault_of(error, request.id))
        return self._stamped(request, answer, stamp)

    def refused(self, request: Request, fault: Fault) -> Answer:
        head = request.path[1:].partition("/")[0]
        if head == "v1" and self.v1:
            answer: Answer = self.v1.refused(request, fault)
            return answer
        if head != "v2.1":
            return self._stamped(request, faults.render_compute_fault(fault), {})
        version = versions.FIRST
        with contextlib.suppress(Fault, MagnetarError):
            version = versions.negotiate_microversion(request.headers)
        return self._stamped(request, faults.render_compute_fault(fault), versions.microversion_headers(version))

    def _stamped(self, request: Request, answer: Answer, stamp: Mapping[str, str]) -> Answer:
        answer.headers.update(stamp)
        answer.headers.setdefault("x-compute-request-id", request.id)
        answer.headers.setdefault("content-type", answer.media_type)  # Nova sends it with empty answers too
        return answer

    def _versioned(self, request: Request, head: str, subpath: str, stamp: dict[str, str]) -> Answer:
        version = versions.FIRST
        if head == "v2.1":
            stamp.update(versions.microversion_headers(version))
            version = versions.negotiate_microversion(request.headers)
            stamp.update(versions.microversion_headers(version))
        if not subpath and request.method in ("GET", "HEAD"):
            return Answer(versions.version_document(ROOTS[head], request.root))
        self.authenticate(request)
        path = self._below(request, head, subpath)
        call = self._find_call(request, path, version)
        return self._run(call)

    def _below(self, request: Request, head: str, subpath: str) -> str:
        """Return the path of the operation, such as ``/servers``: *subpath* (the path after the version), but without a
        project id at its beginning. *head*: the version in the URL, such as v2.1. Raises ``InvalidRequest`` for a
        project id other than the token's."""
        segment, _slash, more = subpath.partition("/")
        base = f"{request.root}/{head}"
        mine = segment == request.context.project_id
        if segment not in self.collections and (mine or _PROJECT.fullmatch(segment)):
            if not mine:
                raise InvalidRequest(f"Malformed request URL: URL's project_id '{segment}' doesn't match Context's "
                                     f"project_id '{request.context.project_id}'")
            base, subpath = f"{base}/{segment}", more
            request.extra["project"] = segment
        request.extra["base"] = base
        return "/" + subpath

    def _find_call(self, request: Request, path: str, version: int) -> Call:
        """Find the API operation for the request's method, *path* and microversion, and return it as a ``Call``. For a
        server action, the action's name in the body selects the operation. *version*: the minor version. Raises
        ``NotFound``, ``InvalidRequest``, or ``Fault`` 405."""
        methods = self.router.find(path)
        if not methods:
            raise NotFound("The resource could not be found.")
        request.extra["route"] = next(iter(methods.values()))[0][0].path
        routes = methods.get("GET" if request.method == "HEAD" else request.method)
        if not routes:
            raise Fault(405, "The method specified is not allowed for this resource.",
                        {"Allow": ", ".join(sorted(methods))})
        candidates = [route for route in routes if route[0].since <= version <= route[0].until]
        if not candidates:
            raise NotFound("The resource could not be found.")
        body, action = None, None
        if request.method in ("POST", "PUT", "PATCH") and not routes[0][0].bodiless:
            body = request.json()
            if routes[0][0].action:
                action = _action(body)
        for operation, params in candidates:
            if operation.action == action or not operation.action:
                call = Call(self.cloud, request, operation, params, version)
                call.body = body
                return call
        if any(route[0].action == action for route in routes):  # the action exists in another version
            raise NotFound("The resource could not be found.")
        raise InvalidRequest(f"There is no such action: {str(action)[:60]}")

    def _run(self, call: Call) -> Answer:
        operation = call.operation
        if "\x00" in call.request.path or "%00" in call.request.path:
            raise InvalidRequest("The path must not contain a NUL character.")
        call.read()
        if operation.target == "server":
            try:
                columns = None if operation.columns is None else operation.columns(call)
                call.target = target.find_server_target(call, call.params["server_id"], columns=columns)
            except DBAPIError as error:
                return self._away(call, error)
        answer = operation.handler(call)
        return answer if isinstance(answer, Answer) else Answer(answer, operation.success(call.version))

    def _away(self, call: Call, error: DBAPIError) -> Answer:
        """Return the answer about a server whose cell does not respond; it contains only data from the API database.
        *error*: the error of the cell's database. Raises *error* if it has another cause than an unreachable database,
        if the operation cannot be answered without the cell, or if the API database does not know the server."""
        if not is_database_unreachable(error):
            raise error
        mapping = servers.fetch_server_mapping(self.cloud.store, call.params["server_id"])
        fallback = call.operation.away
        if mapping is None or fallback is None or call.version < fallback[0]:
            raise error
        if not target.is_visible_to(call, mapping):
            raise target.server_not_found(call.params["server_id"])
        return Answer(fallback[1](call, mapping))


def _paths(operations: Iterable[ApiOperation], project: str) -> re.Pattern[str]:
    """Return a regular expression that matches the URL paths of *operations*, below ``/v2.1`` and ``/v2``. *project*:
    the regular expression of a project id, which may follow the version."""
    some = "|".join(sorted({re.sub(r"\{\w+\}", "[^/]+", operation.path) for operation in operations}))
    return re.compile(rf"/(?:{'|'.join(map(re.escape, ROOTS))})(?:/{project})?(?:{some})")


def _action(body: Any) -> str:
    if not isinstance(body, dict) or len(body) != 1:
        raise InvalidRequest("There is no such action: the body must be an object with one key, the action's name.")
    return str(next(iter(body)))
