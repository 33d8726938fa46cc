# SPDX-License-Identifier: GPL-3.0-or-later
"""``/v1``: the routes of the agents' protocol, for the resources of a project."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from magnetar_control.api.v1.identity.application_credential import ApplicationCredentials
from magnetar_control.api.v1.identity.domain import IdentityDomains
from magnetar_control.api.v1.identity.group import IdentityGroups
from magnetar_control.api.v1.identity.project import IdentityProjects
from magnetar_control.api.v1.identity.role import IdentityRoles
from magnetar_control.api.v1.identity.role_assignment import CloudRoleAssignments
from magnetar_control.api.v1.identity.user import IdentityUsers
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
from magnetar_control.compute.events.event_feed import EventFeed
from magnetar_control.web import Answer, Request
from magnetar_control.web.request import parse_json
from magnetar_control.web.routing import path_segments
from magnetar_control.web.transfers import TransferLimit
from magnetar_core import query
from magnetar_core.document import Document
from magnetar_core.ensure import check_batch, check_permissions
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest, MethodNotAllowed, NotFound, Unauthenticated
from magnetar_core.events import EventRequest, subject_of_event
from magnetar_core.operations import RUNNING, Operation
from magnetar_core.version import API, installed_version

from .adoption import CloudAdoptions
from .driver import ALL_PROJECTS, CloudDriver
from .event import CloudEvents
from .flavor_access import FlavorAccesses
from .groups import Aggregates, ServerGroups
from .image_member import ImageMembers
from .operations import QUEUED, ProjectOperation, ProjectOperations, check_may_cancel, error_of, may_see
from .operators import CLOUD_ONLY
from .quota import CloudQuotas
from .storage_pool import StoragePools
from .usage import Usages
from .volume import IMAGES, SNAPSHOTS, VOLUMES
from .volume_backup import VolumeBackups
from .volume_transfer import VolumeTransfers
from .volume_type import VolumeTypes

#: The drivers of all kinds that the cloud serves, by the word in the path.
DRIVERS: Mapping[str, CloudDriver] = {driver.kind.noun: driver for driver in (
    SERVERS, FLAVORS, IMAGES, KEYPAIRS, NETWORKS, VOLUMES, SNAPSHOTS, VolumeAttachments(), InterfaceAttachments(),
    ShareAttachments(), CloudAdoptions(), *CLOUD_ONLY, Aggregates(), ServerGroups(), CloudQuotas(), Usages(), Subnets(),
    Ports(), Routers(), FloatingIps(), SecurityGroups(), AddressGroups(), QosPolicies(), RbacPolicies(), Trunks(),
    AddressScopes(), SubnetPools(), DefaultRules(), VolumeTypes(), StoragePools(), VolumeTransfers(), VolumeBackups(),
    FlavorAccesses(), ImageMembers(), IdentityDomains(), IdentityProjects(), IdentityUsers(), IdentityGroups(),
    IdentityRoles(), CloudRoleAssignments(), ApplicationCredentials())}
REQUEST_ID = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Seconds that a request waits when it names no time.
WAIT = 20.0
OPERATIONS, EVENTS = "operations", "events"


def query_parameters(request: Request, *names: str, **readers: Callable[[str, str], Any]) -> dict[str, Any]:
    """Return the parsed parameters of the query string, by name. *names*: accepted parameters, keys of
    ``query.PARAMETERS``. *readers*: further accepted parameters, each with a function that parses its text. Raises
    ``InvalidRequest`` for an unknown or repeated parameter."""
    return query.read_parameters(request.query, {**{name: query.PARAMETERS[name] for name in names}, **readers},
                                 shown=80)


class V1Application:
    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        most = cloud.settings.operations
        self.operations = ProjectOperations(most, cloud.settings.of_project(most), QUEUED)
        #: The parts of batches. They are counted separately, because a batch waits for its parts.
        self.parts = ProjectOperations(most, cloud.settings.of_project(most))
        #: The number of requests that may wait at the same time. Some threads always stay free for other requests.
        self._waiting = threading.BoundedSemaphore(max(1, cloud.settings.threads // 2))
        streams = cloud.settings.event_streams
        self.events = CloudEvents(EventFeed(cloud.store, self._waiting), TransferLimit(
            "streams", streams, cloud.settings.of_project(streams), " of events", of_admins=True), self._caller)
        #: Returns status and body of the answers of other processes on the same port, within a number of seconds.
        self.ask_other_processes: Callable[[Request, float],
                                           Iterator[tuple[int, bytes]]] = lambda _request, _seconds: iter(())

    def streams(self, method: str, path: str) -> bool:
        """Override ``Application.streams``: return whether the handler reads the request body piece by piece. Only
        uploads of image content do."""
        return method == "PUT" and path.startswith("/v1/image/") and path.endswith("/data")

    def admit(self, request: Request) -> Answer | None:
        """Override ``Application.admit``: return ``None`` if the request has a valid token, so that its body may be
        read; otherwise the answer that refuses the request. Never raises."""
        try:
            self._caller(request)
        except Exception as error:  # noqa: BLE001 - whatever fails gets an answer
            return self.refused(request, error)
        return None

    def handle(self, request: Request) -> Answer:
        """Return the answer to *request*; never raises."""
        self._set_request_id(request)
        try:
            answer = self._answer(request)
        except Exception as error:  # noqa: BLE001 - whatever fails gets an answer
            return self.refused(request, error)
        answer.headers.setdefault("X-Request-Id", request.id)
        return answer

    def refused(self, request: Request, fault: Exception) -> Answer:
        """Override ``Application.refused``: return the answer for the error *fault*, also for a request that fails
        before ``handle`` is called."""
        self._set_request_id(request)
        error = error_of(fault, request.id)
        headers = {"www-authenticate": 'Bearer realm="magnetar"'} if error.status == 401 else {}
        return Answer({"error": {**error.as_dict(), "request_id": request.id}}, error.status,
                      {**headers, **error.details.get("headers", {}), "X-Request-Id": request.id})

    def _set_request_id(self, request: Request) -> None:
        """Replace the request's id by the client's header X-Request-Id, if the header has the format of a request id.
        """
        request_id = request.headers.get("x-request-id", "")
        if REQUEST_ID.fullmatch(request_id):
            request.id = request_id

    def _caller(self, request: Request) -> Caller:
        """Return the caller that the request's token identifies. Raises ``Unauthenticated``, or ``Forbidden`` for a
        token without a project."""
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
        parts = path_segments(request.path)[1:]
        if not any(parts):
            return self._root(request)
        if not all(parts):
            raise NotFound(f"There is no {request.path[:200]}: a name in it is empty.")
        if parts[0] == OPERATIONS:
            return self._operations(request, caller, parts[1:])
        if parts == [EVENTS]:
            return self.events.answer(request, caller)
        driver = DRIVERS.get(parts[0])
        routes = {} if driver is None else self._routes(len(parts), driver, parts[2:])
        if not routes:
            raise NotFound(f"There is no {request.path[:200]}. Resources are at /v1/KIND and /v1/KIND/KEY; KIND "
                           f"is one of {', '.join(DRIVERS)}.")
        handler = routes.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            raise MethodNotAllowed(f"{request.path[:200]} does not know {request.method}; it knows "
                                   f"{', '.join(sorted(routes))}.", allow=", ".join(sorted(routes)))
        answer: Answer = handler(request, caller, driver, *parts[1:2])
        return answer

    def _routes(self, depth: int, driver: CloudDriver, subpath: list[str]) -> dict[str, Callable[..., Answer]]:
        """Return the handlers of a URL path, by HTTP method; an empty dict for an unknown path. *depth*: the number of
        path segments below ``/v1``. *subpath*: the segments after the resource type and the key, such as
        ``["events"]``."""
        if depth == 1:
            return {"GET": self._list, "PUT": self._ensure_many}
        if depth == 2:
            return {"GET": self._show, "PUT": self._ensure, "DELETE": self._remove}
        if subpath == ["events"]:
            return {"POST": self._event}
        more: dict[str, Callable[..., Answer]] = getattr(driver, "more", {}).get(subpath[0], {}) if depth == 3 else {}
        return more

    def _root(self, request: Request) -> Answer:
        query_parameters(request)
        return Answer({"host": request.root.partition("://")[2],
                       "api": API, "kinds": list(DRIVERS), "version": installed_version(), "cloud": True,
                       "project": request.context.project_name or request.context.project_id})

    # Reading

    def _list(self, request: Request, caller: Caller, driver: CloudDriver) -> Answer:
        readers = {field.name: query.filter_reader(field.value) for field in driver.kind.fields if "list" in field.on}
        more = {ALL_PROJECTS: query.read_boolean} if driver.of_all_projects else {}
        parameters = query_parameters(request, **{name: read for name, read in sorted(readers.items()) if read},
                                      **query.PAGE, **more)
        page = {name: parameters.pop(name, None) for name in query.PAGE}
        resources = [driver.public(resource) for resource in driver.filtered(caller, parameters)]
        filters = {name: query.filter_texts(value) for name, value in parameters.items()}
        resources = [resource for resource in resources if query.fits_filters(resource, filters)]
        page["sort"] = page["sort"] or ["name"] * ("name" in readers)
        return Answer({driver.kind.plural: query.paginate_resources(driver.kind.noun, sorted(readers), resources,
                                                                    **page)})

    def _show(self, request: Request, caller: Caller, driver: CloudDriver, key: str) -> Answer:
        query_parameters(request)
        return Answer(driver.public(driver.one(caller, key)))

    # Changing

    def _ensure(self, request: Request, caller: Caller, driver: CloudDriver, key: str) -> Answer:
        parameters = query_parameters(request, **query.PARAMETERS)
        dry, wait = parameters.pop("dry_run", False), parameters.pop("wait", WAIT)
        allowed, want = check_permissions(parameters), parse_json(request.content)
        if not isinstance(want, dict):
            raise InvalidField("body", "must be an object with the fields of the resource; to remove it, use DELETE")
        return self._run_operation(caller, "ensure", driver, key, wait,
                                   lambda operation: driver.ensure(caller, key, want, allowed, dry, operation))

    def _remove(self, request: Request, caller: Caller, driver: CloudDriver, key: str) -> Answer:
        parameters = query_parameters(request, "dry_run", "wait")
        return self._run_operation(caller, "remove", driver, key, parameters.get("wait", WAIT),
                                   lambda operation: driver.ensure(
            caller, key, None, check_permissions({}), parameters.get("dry_run", False), operation))

    def _ensure_many(self, request: Request, caller: Caller, driver: CloudDriver) -> Answer:
        parameters = query_parameters(request, "dry_run", "wait")
        items = [*check_batch(parse_json(request.content))]
        return self._run_operation(caller, "ensure", driver, None, parameters.get("wait", WAIT), lambda operation: {
            "results": self._each(caller, driver, items, parameters.get("dry_run", False), operation)})

    def _each(self, caller: Caller, driver: CloudDriver, items: list[Any], dry: bool,
              parent: Operation) -> list[Document]:
        """Change several resources to their desired states, each in an operation of its own; the operations run in
        parallel. *items*: (key, desired state, permissions) for each resource. Return the result or error of each
        operation, in the order of *items*. *dry*: do dry runs. *parent*: the operation of the whole batch; cancelling
        *parent* cancels the operations of the items."""
        started = []
        for key, want, allowed in items:
            part = ProjectOperation("ensure", driver.kind.noun, key, caller)
            part.listed = False
            started.append(self.parts.begin(part, lambda operation, key=key, want=want, allowed=allowed: driver.ensure(  # type: ignore[misc]
                caller, key, want, allowed, dry, operation)))
        outcomes = []
        with parent.waiting():
            for operation in started:
                while not operation.wait(0.5):
                    if parent.cancelling:
                        self.parts.stop(operation)
                outcomes.append({"error": operation.error} if operation.error else operation.result.as_dict())
        return outcomes

    def _event(self, request: Request, caller: Caller, driver: CloudDriver, key: str) -> Answer:
        wait, sent = query_parameters(request, "wait").get("wait",
                                                           WAIT), EventRequest.check(parse_json(request.content))
        return self._run_operation(caller, str(sent["event"]), driver, key, wait,
                                   lambda operation: events.handle_server_event(caller, driver, key, sent, operation),
                                   subject_of_event(sent))

    def _run_operation(self, caller: Caller, action: str, driver: CloudDriver, key: str | None, wait: float,
                       function: Callable[[Operation], Any], subject: str | None = None) -> Answer:
        """Run *function* as an operation. Return 200 with its result, or 202 with a description of the operation if the
        operation takes longer than *wait* seconds. *action*, *driver* (the resource type), *key* and *subject* (the
        name of a resource that the action creates, such as an image) describe the operation. Raises the errors of
        *function*."""
        operation = self.operations.begin(
            ProjectOperation(action, driver.kind.noun, key, caller, subject), function)
        if not self.wait_for_end(operation, wait):
            return Answer({"operation": operation.as_dict(), "request_id": operation.request_id}, 202,
                          {"Location": f"/v1/{OPERATIONS}/{operation.id}"})
        self.operations.forget(operation)
        if operation.exception is not None:
            raise operation.exception
        return Answer({**operation.as_dict()["result"], "request_id": operation.request_id})

    def wait_for_end(self, operation: Operation, wait: float) -> bool:
        """Wait until the operation ends, at most *wait* seconds; if too many requests already wait, at most 0.02
        seconds. Return whether the operation has ended."""
        if not operation.wait(min(wait, 0.02)) and wait and self._waiting.acquire(blocking=False):
            try:
                return operation.wait(wait)
            finally:
                self._waiting.release()
        return operation.wait(0)

    # Operations

    def _operations(self, request: Request, caller: Caller, subpath: list[str]) -> Answer:
        mine = [operation for operation in reversed(self.operations.list()) if may_see(caller, operation)]
        if not subpath:
            words = dict.fromkeys(("status", "kind", "key", "name"), query.read_text)
            parameters = query_parameters(request, **words, limit=query.read_number)
            limit = parameters.pop("limit", query.LIMIT)
            matching = [operation for operation in mine if all(getattr(operation, name) == value for name,
                                                               value in parameters.items())]
            documents = [operation.as_dict(False) for operation in matching[:limit]]
            others = [document for status, body in self.ask_other_processes(request, 0.0) if status == 200
                      for document in parse_json(body)["operations"]]
            if others:
                documents = sorted([*documents, *others], key=lambda document: document["started_at"], reverse=True)
            return Answer({"operations": documents[:limit]})
        operation = next((operation for operation in mine if operation.id == subpath[0]), None)
        if operation is None:
            answer = self._ask_for_operation(request)
            if answer is not None:
                return answer
            raise NotFound(
                f"There is no operation {subpath[0][:80]!r}: it ended long ago, or another API service has it. "
                           "Send the request again to be told how it is.", kind="operation", key=subpath[0][:80])
        if request.method == "DELETE":
            check_may_cancel(caller, operation)
            self.operations.stop(operation)
            return Answer(operation.as_dict(), 202 if operation.status == RUNNING else 200)
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("An operation is looked at (GET) or cancelled (DELETE).", allow="DELETE, GET")
        self.wait_for_end(operation, query_parameters(request, "wait").get("wait", 0.0))
        return Answer(operation.as_dict())

    def _ask_for_operation(self, request: Request) -> Answer | None:
        """Ask the other API processes on the same port for the operation in the URL, and return the answer of the
        process that has this operation; ``None`` if none has it."""
        seconds = query_parameters(request, "wait").get("wait", 0.0) if request.query_string else 0.0
        waits = bool(seconds) and self._waiting.acquire(blocking=False)
        if seconds and not waits:
            request.query_string = ""  # too many requests wait
        try:
            return next((Answer(body, status) for status, body in self.ask_other_processes(request, seconds)
                         if status != 404), None)
        finally:
            if waits:
                self._waiting.release()
