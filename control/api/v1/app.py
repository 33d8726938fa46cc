# SPDX-License-Identifier: GPL-3.0-or-later
"""``/v1``: the routes of the agents' protocol, for the resources of a project."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import orjson

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.cloud import Cloud
from magnetar_control.web import Answer, Fault, Request
from magnetar_core.ensure import batch, permissions
from magnetar_core.errors import (
    Forbidden,
    InvalidField,
    InvalidRequest,
    MagnetarError,
    NotFound,
    Unauthenticated,
)
from magnetar_core.plan import Result
from magnetar_core.query import boolean, fits, number, parameters, plain, reader, seconds, texts, words
from magnetar_core.reconcile import Document

from . import events
from .driver import Driver
from .drivers import DRIVERS
from .errors import MethodNotAllowed, error_of
from .operations import RUNNING, Operation, Operations

REQUEST_ID = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Number of the protocol; seconds that a request waits which does not say; most items of a list.
API, WAIT, LIMIT = 1, 20.0, 10000
OPERATIONS = "operations"


# Reading requests -----------------------------------------------------------------------------------------------
def query(request: Request, known: Mapping[str, Callable[[str, str], Any]]) -> dict[str, Any]:
    """The parameters, each read by its function; others, and repeated ones, are refused."""
    return parameters(request.query, known, shown=80)


def body(request: Request) -> Any:
    """The JSON body."""
    try:
        return orjson.loads(request.content)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None


# Answers --------------------------------------------------------------------------------------------------------
def failure(error: MagnetarError, request_id: str) -> Answer:
    """The answer for *error*."""
    headers = {"www-authenticate": 'Bearer realm="magnetar"'} if error.status == 401 else {}
    return Answer({"error": {**error.as_dict(), "request_id": request_id}}, error.status, headers)


def shaped(found: Any) -> Any:
    """A result as answers show it."""
    return found.as_dict() if isinstance(found, Result) else found


class V1Application:
    """The application."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.operations = Operations()
        #: How many requests may wait at once: some threads are always left for others.
        self._waiting = threading.BoundedSemaphore(max(1, cloud.settings.threads // 2))

    def streams(self, method: str, path: str) -> bool:
        """The content of images is read piece by piece."""
        return method == "PUT" and path.startswith("/v1/image/") and path.endswith("/data")

    def handle(self, request: Request) -> Answer:
        """Answer; never raises."""
        self._named(request)
        try:
            answer = self._answer(request)
        except Exception as error:  # noqa: BLE001 - whatever fails gets an answer
            answer = failure(error_of(error, request.id), request.id)
        answer.headers.setdefault("X-Request-Id", request.id)
        return answer

    def refused(self, request: Request, fault: Fault) -> Answer:
        """The answer to what is refused before ``handle`` is asked."""
        self._named(request)
        answer = failure(error_of(fault, request.id), request.id)
        answer.headers["X-Request-Id"] = request.id
        return answer

    def _named(self, request: Request) -> None:
        """The client may say what the request is called."""
        given = request.headers.get("x-request-id", "")
        if REQUEST_ID.fullmatch(given):
            request.id = given

    def _caller(self, request: Request) -> Caller:
        """Who asks. Raises ``Unauthenticated``, ``Forbidden``."""
        header = request.headers.get("authorization", "")
        bearer = header[7:].strip() if header[:7].lower() == "bearer " else ""
        token = request.headers.get("x-auth-token") or bearer
        if not token:
            raise Unauthenticated("This is the API of a cloud, and it does not know who asks. Send a token of its "
                                  "identity service (X-Auth-Token or Authorization: Bearer), or `cloud` in modules.")
        context = self.cloud.services.identity.validate(token)
        if context is None:
            raise Unauthenticated("This is the API of a cloud, and the token is none of its identity service, or has "
                                  "expired. A token of an agent is good at that agent only; log in at "
                                  f"{self.cloud.settings.keystone_url or request.root + '/identity'}.")
        if not context.project_id:
            raise Forbidden("The token is for no project. Log in with a project (OS_PROJECT_NAME).")
        request.context = context
        return Caller(self.cloud, context, request.id)

    def _answer(self, request: Request) -> Answer:
        if "%00" in request.path or "%00" in request.query_string:
            raise InvalidRequest("The URL has a NUL character, which no name may have.")
        caller = self._caller(request)
        parts = [unquote(word) for word in request.path.split("/")[2:] if word]
        if not parts:
            return self._root(request)
        if parts[0] == OPERATIONS:
            return self._operations(request, caller, parts[1:])
        driver = DRIVERS.get(parts[0])
        routes = {} if driver is None else self._routes(len(parts), driver, parts[2:])
        if not routes:
            raise NotFound(f"There is no {request.path[:200]}. Resources are at /v1/KIND and /v1/KIND/KEY; KIND "
                           f"is one of {', '.join(DRIVERS)}.")
        handler = routes.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            raise MethodNotAllowed(f"{request.path[:200]} does not know {request.method}; it knows "
                                   f"{', '.join(sorted(routes))}.", allow=", ".join(sorted(routes)))
        found: Answer = handler(request, caller, driver, *parts[1:2])
        return found

    def _routes(self, depth: int, driver: Driver, rest: list[str]) -> dict[str, Callable[..., Answer]]:
        """Method to handler."""
        if depth == 1:
            return {"GET": self._list, "PUT": self._ensure_many}
        if depth == 2:
            return {"GET": self._show, "PUT": self._ensure, "DELETE": self._remove}
        if rest == ["events"]:
            return {"POST": self._event}
        more: dict[str, Callable[..., Answer]] = getattr(driver, "more", {}).get(rest[0], {}) if depth == 3 else {}
        return more

    def _root(self, request: Request) -> Answer:
        query(request, {})
        return Answer({"host": request.root.partition("://")[2],
                       "api": API, "kinds": list(DRIVERS), "version": _version(), "cloud": True,
                       "project": request.context.project_name or request.context.project_id})

    # Reading

    def _list(self, request: Request, caller: Caller, driver: Driver) -> Answer:
        shown = {field.name for field in driver.kind.fields if "list" in field.on}
        page = {"fields": words, "limit": number, "marker": plain, "sort": words}
        readers = {field.name: reader(field.value) for field in driver.kind.fields if "list" in field.on}
        given = query(request, {**{name: read for name, read in sorted(readers.items()) if read}, **page})
        asked = {name: given.pop(name, None) for name in page}
        found = [driver.public(one) for one in driver.filtered(caller, given)]
        filters = {name: texts(value) for name, value in given.items()}
        found = [one for one in found if fits(one, filters)]
        for key in reversed(asked["sort"] or ["name"] * ("name" in shown)):
            name = key.lstrip("-")
            _known(driver, "sort", name, shown)
            have = [one for one in found if one.get(name) is not None]
            have.sort(key=lambda one, name=name: _rank(one[name]), reverse=key.startswith("-"))  # type: ignore[misc]
            found = have + [one for one in found if one.get(name) is None]
        if asked["marker"]:
            at = next((at for at, one in enumerate(found) if asked["marker"] in (one.get("id"), one.get("name"))), None)
            if at is None:
                raise InvalidField("marker", "is no resource of this list", asked["marker"])
            found = found[at + 1:]
        found = found[:min(LIMIT, LIMIT if asked["limit"] is None else asked["limit"])]
        if asked["fields"] is not None:
            for name in asked["fields"]:
                _known(driver, "fields", name, shown)
            found = [{name: one.get(name) for name in asked["fields"]} for one in found]
        return Answer({driver.kind.plural: found})

    def _show(self, request: Request, caller: Caller, driver: Driver, key: str) -> Answer:
        query(request, {})
        return Answer(driver.public(driver.one(caller, key)))

    # Changing

    def _ensure(self, request: Request, caller: Caller, driver: Driver, key: str) -> Answer:
        given = query(request, {"dry_run": boolean, "wait": seconds, "on_immutable": plain, "merge": words,
                                "allow_reboot": boolean, "preserve_ephemeral": boolean})
        dry, wait = given.pop("dry_run", False), given.pop("wait", WAIT)
        allowed, want = permissions(given), body(request)
        if not isinstance(want, dict):
            raise InvalidField("body", "must be an object with the fields of the resource; to remove it, use DELETE")
        return self._work(caller, "ensure", driver, key, wait,
                          lambda operation: driver.ensure(caller, key, want, allowed, dry, operation))

    def _remove(self, request: Request, caller: Caller, driver: Driver, key: str) -> Answer:
        given = query(request, {"dry_run": boolean, "wait": seconds})
        return self._work(caller, "remove", driver, key, given.get("wait", WAIT), lambda operation: driver.ensure(
            caller, key, None, permissions({}), given.get("dry_run", False), operation))

    def _ensure_many(self, request: Request, caller: Caller, driver: Driver) -> Answer:
        given = query(request, {"dry_run": boolean, "wait": seconds})
        items = [*batch(body(request))]

        def each(operation: Operation) -> Document:
            return {"results": self._each(caller, driver, items, given.get("dry_run", False), operation)}

        return self._work(caller, "ensure", driver, None, given.get("wait", WAIT), each)

    def _each(self, caller: Caller, driver: Driver, items: list[Any], dry: bool, parent: Operation) -> list[Document]:
        """Each for itself, side by side; the answers come in the order of the items."""
        own = Operations(16)
        started = []
        for key, want, allowed in items:
            operation = Operation("ensure", driver.kind.noun, key, caller)
            started.append(own.start(operation, lambda operation, key=key, want=want, allowed=allowed: driver.ensure(  # type: ignore[misc]
                caller, key, want, allowed, dry, operation)))
        found = []
        for operation in started:
            while not operation.wait(0.5):
                if parent.cancelled:
                    operation.cancel()
            found.append({"error": operation.error.as_dict()} if operation.error else operation.result.as_dict())
        own.close()
        return found

    def _event(self, request: Request, caller: Caller, driver: Driver, key: str) -> Answer:
        wait, sent = query(request, {"wait": seconds}).get("wait", WAIT), events.Event.check(body(request))
        return self._work(caller, str(sent["event"]), driver, key, wait,
                          lambda operation: events.event(caller, driver, key, sent, operation))

    def _work(self, caller: Caller, what: str, driver: Driver, key: str | None, wait: float,
              function: Callable[[Operation], Any]) -> Answer:
        operation = self.operations.start(Operation(what, driver.kind.noun, key, caller), function)
        return self.outcome(operation, self.until(operation, wait))

    def until(self, operation: Operation, wait: float) -> bool:
        """Wait for it, unless too many others wait already."""
        if not operation.wait(min(wait, 0.02)) and wait and self._waiting.acquire(blocking=False):
            try:
                return operation.wait(wait)
            finally:
                self._waiting.release()
        return operation.wait(0)

    def outcome(self, operation: Operation, ended: bool) -> Answer:
        """200 with the result, 202 with the operation while it runs; raises what it raised."""
        if not ended:
            return Answer({"operation": _operation(operation), "request_id": operation.request_id}, 202,
                          {"Location": f"/v1/{OPERATIONS}/{operation.id}"})
        self.operations.forget(operation)
        if operation.error is not None:
            raise operation.error
        return Answer({**shaped(operation.result), "request_id": operation.request_id})

    # Operations

    def _operations(self, request: Request, caller: Caller, rest: list[str]) -> Answer:
        if not rest:
            given = query(request, dict.fromkeys(("status", "kind", "key", "name"), plain) | {"limit": number})
            limit = given.pop("limit", LIMIT)
            found = [one for one in self.operations.mine(caller) if all(getattr(one, n) == v for n, v in given.items())]
            return Answer({"operations": [one.as_dict(False) for one in found[:limit]]})
        operation = self.operations.get(caller, rest[0])
        if request.method == "DELETE":
            operation.cancel()
            return Answer(_operation(operation), 202 if operation.status == RUNNING else 200)
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("An operation is looked at (GET) or cancelled (DELETE).", allow="DELETE, GET")
        self.until(operation, query(request, {"wait": seconds}).get("wait", 0.0))
        return Answer(_operation(operation))


def _operation(operation: Operation) -> Document:
    shown = operation.as_dict()
    return {**shown, "result": shaped(shown["result"])}


def _known(driver: Driver, parameter: str, name: str, shown: set[str]) -> None:
    if name not in shown:
        raise InvalidField(parameter, f"{driver.kind.noun} has no field {name[:80]}; it has {', '.join(sorted(shown))}")


def _rank(value: Any) -> Any:
    return value if isinstance(value, (int, float, str)) else json.dumps(value, sort_keys=True)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("magnetar")
    except metadata.PackageNotFoundError:
        return "0+checkout"
