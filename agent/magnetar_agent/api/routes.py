# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of the resources: list, show, ensure, ensure many, remove and one-shot events, the same for every kind."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from magnetar_agent.reconcile import events, reconcile
from magnetar_core.ensure import check_batch, check_permissions
from magnetar_core.errors import InvalidField, InvalidRequest, MagnetarError, TooLarge, TooSlow
from magnetar_core.events import EventRequest, subject_of_event
from magnetar_core.fields import SHOW, Kind
from magnetar_core.nesting import check_nesting
from magnetar_core.operations import RUNNING, Operation
from magnetar_core.query import (
    LIMIT,
    PAGE,
    PARAMETERS,
    filter_reader,
    filter_texts,
    paginate_resources,
    read_boolean,
    read_number,
    read_parameters,
    read_seconds,
    read_text,
)

from . import audit
from .batch import ensure_many

if TYPE_CHECKING:
    from magnetar_agent.agent import ManagedHost

Items = list[tuple[str, dict[str, Any] | None, Mapping[str, Any]]]


class Json(Response):
    """An HTTP response with any JSON value as its body."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Override ``Response.render``: return *content* as compact JSON in UTF-8."""
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


#: Seconds that each MiB of a body may take to arrive.
BODY_SECONDS = 120.0


# Reading requests -----------------------------------------------------------------------------------------------
def read_query(request: Request, **readers: Callable[[str, str], Any]) -> dict[str, Any]:
    """Return the query parameters of *request*. *readers*: for each permitted parameter, the function that converts its
    value. Raises ``InvalidRequest`` for an unknown or repeated parameter, and ``InvalidField`` for an invalid value."""
    return read_parameters(request.query_params.multi_items(), readers)


async def read_json_body(request: Request, limit: int) -> Any:
    """Return the body of *request*, decoded from JSON. Raises ``TooLarge`` above *limit* bytes, ``TooSlow`` for a slow
    client, or ``InvalidRequest`` with the position of a syntax error."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise TooLarge(f"The body has {length} bytes, and the agent takes {limit}. Send fewer items per request.")
    content = bytearray()
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(BODY_SECONDS) as patience:
            async for chunk in request.stream():
                content += chunk
                if len(content) > limit:
                    raise TooLarge(f"The body has more than the {limit} bytes that the agent takes. Send fewer items "
                                   "per request.")
                patience.reschedule(began + BODY_SECONDS * (1 + len(content) / 2**20))
    except TimeoutError:
        raise TooSlow(f"Only {len(content)} bytes of the body came; each MiB has {BODY_SECONDS:.0f} s. Send it "
                      "again.") from None
    except ClientDisconnect:  # no client reads it, but the metrics count it as the caller's failure
        raise InvalidRequest(f"The request broke off after {len(content)} bytes of its body.") from None
    return parse_json_body(bytes(content))


def parse_json_body(content: bytes) -> Any:
    """Return *content*, decoded from JSON. Raises ``InvalidRequest`` for a syntax error, NaN, infinities, lone
    surrogates and too deep nesting."""
    try:
        parsed = json.loads(content, parse_constant=_constant)
        if b"\\ud" in content or b"\\uD" in content:
            json.dumps(parsed, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
                             line=error.lineno, column=error.colno) from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not UTF-8 text: byte {error.start} fits nowhere.") from None
    except UnicodeEncodeError:
        raise InvalidRequest("The body has half a surrogate pair (\\ud800 to \\udfff): no character.") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except ValueError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    return check_nesting(parsed, content)


def _constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


# Answers --------------------------------------------------------------------------------------------------------
async def wait_for_operation(operation: Operation, wait: float) -> bool:
    """Wait at most *wait* seconds for *operation* (a background task), without occupying a thread; return whether it
    has ended."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    def ended(_operation: Operation) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: no caller waits any more
            loop.call_soon_threadsafe(wake)

    operation.then(ended)
    try:
        await asyncio.wait_for(future, wait)
    except TimeoutError:
        return False
    return True


def operation_response(operation: Operation, ended: bool, shape: Callable[[Any], dict[str, Any]]) -> Json:
    """Return the response for *operation*, a background task: 202 with the operation if it has not *ended* yet,
    otherwise 200 with its result, which *shape* converts to a JSON object. Raises the error of a failed operation."""
    if not ended:
        return Json({"operation": operation.as_dict(), "request_id": operation.request_id}, 202,
                    {"location": f"/v1/operations/{operation.id}"})
    if isinstance(operation.exception, MagnetarError):
        raise operation.exception
    if operation.exception is not None:
        raise MagnetarError  # its traceback is in the log already
    answer = {**shape(operation.result), "request_id": operation.request_id}
    operation.forget()
    return Json(answer)


def ensure_answer(ensured: Any) -> dict[str, Any]:
    """Return the response body for a ``PUT``: all fields of *ensured*, the ``Result`` of creating or updating a
    resource, and its warnings."""
    return {"warnings": getattr(ensured, "warnings", []), **ensured.as_dict()}


class Resources:
    """The HTTP handlers for the resources of one type (*kind*), such as servers."""

    def __init__(self, agent: ManagedHost, kind: type[Kind]) -> None:
        self.agent, self.kind = agent, kind
        self.shown = {field.name: field for field in kind.fields if SHOW in field.on}
        self.filters = {name: read for name, field in self.shown.items() if (read := filter_reader(field.value))}

    async def list(self, request: Request) -> Json:
        """Return all resources of this type, or those that match the filters in the query; in pages if requested."""
        query_parameters = read_query(request, **{**self.filters, **PAGE})
        page = {name: query_parameters.pop(name, None) for name in PAGE}
        filters = {name: filter_texts(value) for name, value in query_parameters.items()}
        resources = await run_in_threadpool(reconcile.list_resources, self.agent.drivers, self.kind, filters)
        return Json({self.kind.plural: paginate_resources(self.kind.noun, self.shown, resources, **page)})

    async def show(self, request: Request) -> Json:
        """Return one resource, found by its uuid or name."""
        read_query(request)
        return Json(await run_in_threadpool(reconcile.show_resource, self.agent.drivers, self.kind, path_key(request)))

    async def ensure(self, request: Request) -> Json:
        """Create or update a resource from the fields in the body; fields that are not in the body do not change."""
        query_parameters = read_query(request, **PARAMETERS)
        dry, wait = query_parameters.pop("dry_run", False), query_parameters.pop("wait", self.agent.host.settings.wait)
        allowed = check_permissions(query_parameters)
        want = await read_json_body(request, self.agent.host.settings.body_max_bytes)
        if not isinstance(want, dict):
            raise InvalidField("body", "must be an object with the fields of the resource; to remove it, use DELETE")
        name = path_key(request)
        return await self._work(request, "ensure", name, wait, dry, lambda operation: reconcile.ensure_resource(
            self.agent.drivers, self.kind, name, want, allowed, dry, operation))

    async def ensure_many(self, request: Request) -> Json:
        """Create, update or remove each resource in a list, independently; return the results in the same order."""
        query_parameters = read_query(request, dry_run=read_boolean, wait=read_seconds)
        dry, wait = query_parameters.get("dry_run", False), query_parameters.get("wait", self.agent.host.settings.wait)
        items: Items = [*check_batch(await read_json_body(request, self.agent.host.settings.body_max_bytes))]
        return await self._work(request, "ensure", None, wait, dry, lambda operation: ensure_many(
            self.agent.drivers, self.kind, items, dry, operation), lambda results: {"results": results})

    async def remove(self, request: Request) -> Json:
        """Remove a resource and everything that belongs to it."""
        query_parameters = read_query(request, dry_run=read_boolean, wait=read_seconds)
        dry, wait, name = query_parameters.get("dry_run", False), query_parameters.get(
            "wait", self.agent.host.settings.wait), path_key(request)
        return await self._work(request, "remove", name, wait, dry, lambda operation: reconcile.ensure_resource(
            self.agent.drivers, self.kind, name, None, check_permissions({}), dry, operation))

    async def event(self, request: Request) -> Json:
        """Perform a one-time event of a resource, such as a reboot, at most once for each request id."""
        query_parameters = read_query(request, wait=read_seconds)
        given_body = await read_json_body(request, self.agent.host.settings.body_max_bytes)
        sent = {**EventRequest.defaults(), **EventRequest.check(given_body)}
        events.check_event_name(self.kind, sent["event"])  # before it becomes the name of an operation and a metric
        once, name = sent.get("request_id", request.state.request_id), path_key(request)
        return await self._work(
            request, str(sent["event"]), name, query_parameters.get("wait", self.agent.host.settings.wait), False,
            lambda operation: events.perform_event(
                self.agent.drivers, self.kind, name, sent["event"], sent["args"], once, operation), dict,
            subject=subject_of_event(sent))

    async def _work(self, request: Request, action: str, name: str | None, wait: float, dry: bool,
                    function: Callable[[Operation], Any], shape: Callable[[Any], dict[str, Any]] = ensure_answer,
                    subject: str | None = None) -> Json:
        operation = self.agent.host.operations.start(
            action, audit.bind_request_id(request.state.request_id, function), kind=self.kind.noun, key=name,
            request_id=request.state.request_id, caller=request.state.caller, cloud=request.state.cloud,
            subject=subject)
        if not dry:
            audit.audit_operation(operation)
        return operation_response(operation, await wait_for_operation(operation, wait), shape)


class Tasks:
    """The HTTP handlers for operations, the tasks that the agent runs in the background."""

    def __init__(self, agent: ManagedHost) -> None:
        self.agent = agent

    async def list(self, request: Request) -> Json:
        """Return the running operations and the last ended ones, newest first, without their results."""
        filters = read_query(request, status=read_text, kind=read_text, key=read_text, name=read_text,
                             limit=read_number)
        limit = filters.pop("limit", LIMIT)
        operations = [operation for operation in reversed(self.agent.host.operations.list())
                      if all(getattr(operation, name) == value for name, value in filters.items())]
        return Json({"operations": [operation.as_dict(False) for operation in operations[:limit]]})

    async def show(self, request: Request) -> Json:
        """Return one operation with its progress, and with its result or error after it has ended."""
        wait = read_query(request, wait=read_seconds).get("wait", 0.0)
        operation = self.agent.host.operations.get(path_key(request))
        if wait:
            await wait_for_operation(operation, wait)
        return Json(operation.as_dict())

    async def cancel(self, request: Request) -> Json:
        """Request that an operation stops as soon as it safely can."""
        read_query(request)
        operation = self.agent.host.operations.cancel(path_key(request))
        audit.write_audit_line("cancel", "operation", operation.id, request.state.caller, request.state.request_id,
                               "succeeded")
        return Json(operation.as_dict(), 202 if operation.status == RUNNING else 200)


def path_key(request: Request) -> str:
    """Return the resource's key (name or uuid) from the request's path. NUL is converted back to the slash that
    ``app.decode_path`` has replaced."""
    return str(request.path_params["key"]).replace("\x00", "/")
