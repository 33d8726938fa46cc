# SPDX-License-Identifier: GPL-3.0-or-later
"""``/v1``: the routes of the agents' protocol, for the resources of a project."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from magnetar_control.api.v1.network.address_group import AddressGroups
from magnetar_control.api.v1.network.default_security_group_rule import DefaultRules
from magnetar_control.api.v1.network.floating_ip import FloatingIps
from magnetar_control.api.v1.network.port import Ports
from magnetar_control.api.v1.network.qos_policy import QosPolicies
from magnetar_control.api.v1.network.rbac_policy import RbacPolicies
from magnetar_control.api.v1.network.router import Routers
from magnetar_control.api.v1.network.security_group import SecurityGroups
from magnetar_control.api.v1.network.subnet import Subnets
from magnetar_control.api.v1.network.subnet_pool import AddressScopes, SubnetPools
from magnetar_control.api.v1.network.trunk import Trunks
from magnetar_control.api.v1.servers import events
from magnetar_control.api.v1.servers.attachment import InterfaceAttachments, ShareAttachments, VolumeAttachments
from magnetar_control.api.v1.servers.server import SERVERS
from magnetar_control.api.v1.servers.server_request import FLAVORS, KEYPAIRS, NETWORKS
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.cloud import Cloud
from magnetar_control.web import Answer, Request
from magnetar_control.web.request import parsed
from magnetar_control.web.routing import words
from magnetar_core import query
from magnetar_core.ensure import batch, permissions
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest, MethodNotAllowed, NotFound, Unauthenticated
from magnetar_core.events import EventRequest, subject_of
from magnetar_core.operations import RUNNING, Operation
from magnetar_core.reconcile import Document
from magnetar_core.version import API, version

from .driver import ALL_PROJECTS, CloudDriver
from .groups import Aggregates, ServerGroups
from .operations import QUEUED, ProjectOperation, ProjectOperations, check_may_cancel, error_of
from .operators import CLOUD_ONLY
from .quota import CloudQuotas
from .usage import Usages
from .volume import IMAGES, SNAPSHOTS, VOLUMES
from .volume_type import VolumeTypes

#: The drivers of all kinds that the cloud serves, by the word in the path.
DRIVERS: Mapping[str, CloudDriver] = {driver.kind.noun: driver for driver in (
    SERVERS, FLAVORS, IMAGES, KEYPAIRS, NETWORKS, VOLUMES, SNAPSHOTS, VolumeAttachments(), InterfaceAttachments(),
    ShareAttachments(), *CLOUD_ONLY, Aggregates(), ServerGroups(), CloudQuotas(), Usages(), Subnets(), Ports(),
    Routers(), FloatingIps(), SecurityGroups(), AddressGroups(), QosPolicies(), RbacPolicies(), Trunks(),
    AddressScopes(), SubnetPools(), DefaultRules(), VolumeTypes())}
REQUEST_ID = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Seconds that a request waits which does not say.
WAIT = 20.0
OPERATIONS = "operations"


def parameters(request: Request, *names: str, **known: Callable[[str, str], Any]) -> dict[str, Any]:
    """The parameters of the query string: those *names* of an ensure, and *known* ones, each read by its function.
    Others, and repeated ones, are refused."""
    return query.parameters(request.query, {**{name: query.PARAMETERS[name] for name in names}, **known}, shown=80)


class V1Application:
    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        most = cloud.settings.operations
        self.operations = ProjectOperations(most, cloud.settings.of_project(most), QUEUED)
        #: The parts of batches, which are not counted twice: a batch waits for its parts.
        self.parts = ProjectOperations(most, cloud.settings.of_project(most))
        #: How many requests may wait at once: some threads are always left for others.
        self._waiting = threading.BoundedSemaphore(max(1, cloud.settings.threads // 2))

    def streams(self, method: str, path: str) -> bool:
        """The content of images is read piece by piece."""
        return method == "PUT" and path.startswith("/v1/image/") and path.endswith("/data")

    def admit(self, request: Request) -> Answer | None:
        """Return the refusal of a request whose sender is not known; never raises."""
        try:
            self._caller(request)
        except Exception as error:  # noqa: BLE001 - whatever fails gets an answer
            return self.refused(request, error)
        return None

    def handle(self, request: Request) -> Answer:
        """Answer; never raises."""
        self._named(request)
        try:
            answer = self._answer(request)
        except Exception as error:  # noqa: BLE001 - whatever fails gets an answer
            return self.refused(request, error)
        answer.headers.setdefault("X-Request-Id", request.id)
        return answer

    def refused(self, request: Request, fault: Exception) -> Answer:
        """The answer to what fails, also before ``handle`` is asked."""
        self._named(request)
        error = error_of(fault, request.id)
        headers = {"www-authenticate": 'Bearer realm="magnetar"'} if error.status == 401 else {}
        return Answer({"error": {**error.as_dict(), "request_id": request.id}}, error.status,
                      {**headers, **error.details.get("headers", {}), "X-Request-Id": request.id})

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
        parts = words(request.path)[1:]
        if not any(parts):
            return self._root(request)
        if not all(parts):
            raise NotFound(f"There is no {request.path[:200]}: a name in it is empty.")
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

    def _routes(self, depth: int, driver: CloudDriver, rest: list[str]) -> dict[str, Callable[..., Answer]]:
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
        parameters(request)
        return Answer({"host": request.root.partition("://")[2],
                       "api": API, "kinds": list(DRIVERS), "version": version(), "cloud": True,
                       "project": request.context.project_name or request.context.project_id})

    # Reading

    def _list(self, request: Request, caller: Caller, driver: CloudDriver) -> Answer:
        readers = {field.name: query.reader(field.value) for field in driver.kind.fields if "list" in field.on}
        more = {ALL_PROJECTS: query.boolean} if driver.of_all_projects else {}
        given = parameters(request, **{name: read for name, read in sorted(readers.items()) if read}, **query.PAGE,
                           **more)
        page = {name: given.pop(name, None) for name in query.PAGE}
        found = [driver.public(one) for one in driver.filtered(caller, given)]
        filters = {name: query.texts(value) for name, value in given.items()}
        found = [one for one in found if query.fits(one, filters)]
        page["sort"] = page["sort"] or ["name"] * ("name" in readers)
        return Answer({driver.kind.plural: query.paged(driver.kind.noun, sorted(readers), found, **page)})

    def _show(self, request: Request, caller: Caller, driver: CloudDriver, key: str) -> Answer:
        parameters(request)
        return Answer(driver.public(driver.one(caller, key)))

    # Changing

    def _ensure(self, request: Request, caller: Caller, driver: CloudDriver, key: str) -> Answer:
        given = parameters(request, **query.PARAMETERS)
        dry, wait = given.pop("dry_run", False), given.pop("wait", WAIT)
        allowed, want = permissions(given), parsed(request.content)
        if not isinstance(want, dict):
            raise InvalidField("body", "must be an object with the fields of the resource; to remove it, use DELETE")
        return self._work(caller, "ensure", driver, key, wait,
                          lambda operation: driver.ensure(caller, key, want, allowed, dry, operation))

    def _remove(self, request: Request, caller: Caller, driver: CloudDriver, key: str) -> Answer:
        given = parameters(request, "dry_run", "wait")
        return self._work(caller, "remove", driver, key, given.get("wait", WAIT), lambda operation: driver.ensure(
            caller, key, None, permissions({}), given.get("dry_run", False), operation))

    def _ensure_many(self, request: Request, caller: Caller, driver: CloudDriver) -> Answer:
        given = parameters(request, "dry_run", "wait")
        items = [*batch(parsed(request.content))]
        return self._work(caller, "ensure", driver, None, given.get("wait", WAIT), lambda operation: {
            "results": self._each(caller, driver, items, given.get("dry_run", False), operation)})

    def _each(self, caller: Caller, driver: CloudDriver, items: list[Any], dry: bool,
              parent: Operation) -> list[Document]:
        """Each for itself, side by side; the answers come in the order of the items."""
        started = []
        for key, want, allowed in items:
            one = ProjectOperation("ensure", driver.kind.noun, key, caller)
            one.kept = False
            started.append(self.parts.begin(one, lambda operation, key=key, want=want, allowed=allowed: driver.ensure(  # type: ignore[misc]
                caller, key, want, allowed, dry, operation)))
        found = []
        with parent.waiting():
            for operation in started:
                while not operation.wait(0.5):
                    if parent.cancelling:
                        self.parts.stop(operation)
                found.append({"error": operation.error} if operation.error else operation.result.as_dict())
        return found

    def _event(self, request: Request, caller: Caller, driver: CloudDriver, key: str) -> Answer:
        wait, sent = parameters(request, "wait").get("wait", WAIT), EventRequest.check(parsed(request.content))
        return self._work(caller, str(sent["event"]), driver, key, wait,
                          lambda operation: events.event(caller, driver, key, sent, operation), subject_of(sent))

    def _work(self, caller: Caller, what: str, driver: CloudDriver, key: str | None, wait: float,
              function: Callable[[Operation], Any], subject: str | None = None) -> Answer:
        """200 with the result, 202 with the operation while it runs; raises what it raised."""
        operation = self.operations.begin(
            ProjectOperation(what, driver.kind.noun, key, caller, subject), function)
        if not self.until(operation, wait):
            return Answer({"operation": operation.as_dict(), "request_id": operation.request_id}, 202,
                          {"Location": f"/v1/{OPERATIONS}/{operation.id}"})
        self.operations.forget(operation)
        if operation.exception is not None:
            raise operation.exception
        return Answer({**operation.as_dict()["result"], "request_id": operation.request_id})

    def until(self, operation: Operation, wait: float) -> bool:
        """Wait for it, unless too many others wait already."""
        if not operation.wait(min(wait, 0.02)) and wait and self._waiting.acquire(blocking=False):
            try:
                return operation.wait(wait)
            finally:
                self._waiting.release()
        return operation.wait(0)

    # Operations

    def _operations(self, request: Request, caller: Caller, rest: list[str]) -> Answer:
        mine = [one for one in reversed(self.operations.list()) if one.project == caller.project]
        if not rest:
            words = dict.fromkeys(("status", "kind", "key", "name"), query.plain)
            given = parameters(request, **words, limit=query.number)
            limit = given.pop("limit", query.LIMIT)
            found = [one for one in mine if all(getattr(one, name) == value for name, value in given.items())]
            return Answer({"operations": [one.as_dict(False) for one in found[:limit]]})
        operation = next((one for one in mine if one.id == rest[0]), None)
        if operation is None:
            raise NotFound(f"There is no operation {rest[0][:80]!r}: it ended long ago, or another API service has it. "
                           "Send the request again to be told how it is.", kind="operation", key=rest[0][:80])
        if request.method == "DELETE":
            check_may_cancel(caller, operation)
            self.operations.stop(operation)
            return Answer(operation.as_dict(), 202 if operation.status == RUNNING else 200)
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("An operation is looked at (GET) or cancelled (DELETE).", allow="DELETE, GET")
        self.until(operation, parameters(request, "wait").get("wait", 0.0))
        return Answer(operation.as_dict())
