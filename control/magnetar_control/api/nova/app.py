# SPDX-License-Identifier: GPL-3.0-or-later
"""The Compute API as a web application: version, caller, operation, body, target, policy, state, handler."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy.exc import DBAPIError

from magnetar_control.compute import target
from magnetar_control.compute.cloud import Cloud
from magnetar_control.store.engine.database import away
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.store.servers import servers
from magnetar_control.web import Answer, Fault, Request, Router
from magnetar_control.web.application import Application, by_token
from magnetar_control.web.quick import Way
from magnetar_core.errors import InvalidRequest, MagnetarError, NotFound

from . import faults, removed, versions
from .operation import ApiOperation, Call

_PROJECT = re.compile(r"[0-9a-f-]{1,64}|(?=.*[0-9])[A-Za-z0-9_-]{1,255}")
#: The name of a server action at the begin of its body.
_NAME = re.compile(rb'\s{0,99}\{\s{0,99}"([^"]{0,99})"')
ROOTS = {"v2": "v2.0", "v2.1": "v2.1"}


class ComputeApplication(Application):
    """Mounted at the root: ``/``, ``/v2.1`` and ``/v2``."""

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
        """Only the agents' protocol has streams."""
        return bool(self.v1 and path.startswith("/v1/") and self.v1.streams(method, path))

    def way(self, request: Request) -> Way:
        """What asks databases only, and little of them, is quick; on SQLite, where readers wait for nobody, it takes
        next to no time."""
        if request.method != "GET" or self.cloud.settings.keystone_url is not None or not (
                self._quick.fullmatch(request.path)):
            return Way.WAIT if self._may_wait(request) else Way.THREAD
        if self.cloud.store.kinds != {"sqlite"}:
            return Way.TURN
        return Way.ALONE if request.query_string else Way.HERE  # what a query asks for may take the loop too long

    def _may_wait(self, request: Request) -> bool:
        """Whether it may wait for a host: of actions the body says so, if it can be told without reading it all."""
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
            if head not in ROOTS:  # what is there takes no body
                return self._handled(request)
            try:
                self.authenticate(request)
            except Exception as error:  # noqa: BLE001 - whatever fails gets an answer
                return self.refused(request, faults.of(error, request.id))
        return None

    def handle(self, request: Request) -> Answer:
        """Answer; never raises. No database is waited for longer than the settings say."""
        with statement_timeout(self.cloud.settings.cell_timeout):
            return self._handled(request)

    def _handled(self, request: Request) -> Answer:
        head, _slash, rest = request.path[1:].partition("/")
        if head == "v1" and self.v1:
            answer: Answer = self.v1.handle(request)
            return answer
        if head not in ROOTS:
            return Answer(versions.listed(request.root)) if not head else Answer(
                versions.choices(request.root, request.path), 300)
        stamp: dict[str, str] = {}
        try:
            answer = self._versioned(request, head, rest, stamp)
        except Exception as error:  # noqa: BLE001 - whatever fails gets an answer
            answer = faults.answer(faults.of(error, request.id))
        return self._stamped(request, answer, stamp)

    def refused(self, request: Request, fault: Fault) -> Answer:
        head = request.path[1:].partition("/")[0]
        if head == "v1" and self.v1:
            answer: Answer = self.v1.refused(request, fault)
            return answer
        if head != "v2.1":
            return self._stamped(request, faults.answer(fault), {})
        version = versions.FIRST
        with contextlib.suppress(Fault, MagnetarError):
            version = versions.negotiate(request.headers)
        return self._stamped(request, faults.answer(fault), versions.stamp(version))

    def _stamped(self, request: Request, answer: Answer, stamp: Mapping[str, str]) -> Answer:
        answer.headers.update(stamp)
        answer.headers.setdefault("x-compute-request-id", request.id)
        answer.headers.setdefault("content-type", answer.media_type)  # Nova says so of empty answers too
        return answer

    def _versioned(self, request: Request, head: str, rest: str, stamp: dict[str, str]) -> Answer:
        version = versions.FIRST
        if head == "v2.1":
            stamp.update(versions.stamp(version))
            version = versions.negotiate(request.headers)
            stamp.update(versions.stamp(version))
        if not rest and request.method in ("GET", "HEAD"):
            return Answer(versions.one(ROOTS[head], request.root))
        self.authenticate(request)
        path = self._below(request, head, rest)
        call = self._found(request, path, version)
        return self._run(call)

    def _below(self, request: Request, head: str, rest: str) -> str:
        """The path below version and project. Raises ``InvalidRequest`` when that is another project than the
        token's."""
        word, _slash, more = rest.partition("/")
        base = f"{request.root}/{head}"
        mine = word == request.context.project_id
        if word not in self.collections and (mine or _PROJECT.fullmatch(word)):
            if not mine:
                raise InvalidRequest(f"Malformed request URL: URL's project_id '{word}' doesn't match Context's "
                                     f"project_id '{request.context.project_id}'")
            base, rest = f"{base}/{word}", more
            request.extra["project"] = word
        request.extra["base"] = base
        return "/" + rest

    def _found(self, request: Request, path: str, version: int) -> Call:
        """The operation at method, path, version, and (for actions) body. Raises ``NotFound``, 405 or 400."""
        methods = self.router.find(path)
        if not methods:
            raise NotFound("The resource could not be found.")
        request.extra["route"] = next(iter(methods.values()))[0][0].path
        routes = methods.get("GET" if request.method == "HEAD" else request.method)
        if not routes:
            raise Fault(405, "The method specified is not allowed for this resource.",
                        {"Allow": ", ".join(sorted(methods))})
        there = [one for one in routes if one[0].since <= version <= one[0].until]
        if not there:
            raise NotFound("The resource could not be found.")
        body, word = None, None
        if request.method in ("POST", "PUT", "PATCH") and not routes[0][0].bodiless:
            body = request.json()
            if routes[0][0].action:
                word = _action(body)
        for operation, params in there:
            if operation.action == word or not operation.action:
                call = Call(self.cloud, request, operation, params, version)
                call.body = body
                return call
        if any(one[0].action == word for one in routes):  # in another version
            raise NotFound("The resource could not be found.")
        raise InvalidRequest(f"There is no such action: {str(word)[:60]}")

    def _run(self, call: Call) -> Answer:
        operation = call.operation
        if "\x00" in call.request.path or "%00" in call.request.path:
            raise InvalidRequest("The path must not contain a NUL character.")
        call.read()
        if operation.target == "server":
            try:
                columns = None if operation.columns is None else operation.columns(call)
                call.target = target.find(call, call.params["server_id"], columns=columns)
            except DBAPIError as error:
                return self._away(call, error)
        answer = operation.handler(call)
        return answer if isinstance(answer, Answer) else Answer(answer, operation.success(call.version))

    def _away(self, call: Call, error: DBAPIError) -> Answer:
        """The server's cell does not answer: what is known without it. Raises *error* where that is not enough, or
        where it says something else."""
        if not away(error):
            raise error
        mapping = servers.mapping(self.cloud.store, call.params["server_id"])
        known = call.operation.away
        if mapping is None or known is None or call.version < known[0]:
            raise error
        if not target.visible(call, mapping):
            raise target.not_found(call.params["server_id"])
        return Answer(known[1](call, mapping))


def _paths(operations: Iterable[ApiOperation], project: str) -> re.Pattern[str]:
    """Matches the paths of *operations*, below version and, where the client gives it, *project*."""
    some = "|".join(sorted({re.sub(r"\{\w+\}", "[^/]+", operation.path) for operation in operations}))
    return re.compile(rf"/(?:{'|'.join(map(re.escape, ROOTS))})(?:/{project})?(?:{some})")


def _action(body: Any) -> str:
    if not isinstance(body, dict) or len(body) != 1:
        raise InvalidRequest("There is no such action: the body must be an object with one key, the action's name.")
    return str(next(iter(body)))
