# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of the resources: list, show, ensure, ensure many, remove and one-shot events, alike for every kind."""

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
from magnetar_core.ensure import batch, permissions
from magnetar_core.errors import InvalidField, InvalidRequest, MagnetarError, TooLarge, TooSlow
from magnetar_core.events import EventRequest, subject_of
from magnetar_core.fields import SHOW, Kind
from magnetar_core.nesting import check_nesting
from magnetar_core.operations import RUNNING, Operation
from magnetar_core.query import (
    LIMIT,
    PAGE,
    PARAMETERS,
    boolean,
    number,
    paged,
    parameters,
    plain,
    reader,
    seconds,
    texts,
)

from . import audit
from .batch import ensure_many

if TYPE_CHECKING:
    from magnetar_agent.agent import Agent

Items = list[tuple[str, dict[str, Any] | None, Mapping[str, Any]]]


class Json(Response):
    """An answer of any JSON value."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Compact UTF-8."""
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


#: Seconds that each MiB of a body may take to come.
BODY_SECONDS = 120.0


# Reading requests -----------------------------------------------------------------------------------------------
def query(request: Request, **known: Callable[[str, str], Any]) -> dict[str, Any]:
    """The parameters of the query string, each read by its function. Others, and repeated ones, are refused."""
    return parameters(request.query_params.multi_items(), known)


async def body(request: Request, limit: int) -> Any:
    """The JSON body. Raises ``TooLarge``, or ``InvalidRequest`` saying where it is wrong."""
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
    except ClientDisconnect:  # nobody reads it, but it is in the metrics as the caller's failure
        raise InvalidRequest(f"The request broke off after {len(content)} bytes of its body.") from None
    return parse(bytes(content))


def parse(content: bytes) -> Any:
    """*content* as JSON; numbers that are none, half surrogates and endless nesting are refused."""
    try:
        found = json.loads(content, parse_constant=_constant)
        if b"\\ud" in content or b"\\uD" in content:
            json.dumps(found, ensure_ascii=False).encode()
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
    return check_nesting(found, content)


def _constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


# Answers --------------------------------------------------------------------------------------------------------
async def until(operation: Operation, wait: float) -> bool:
    """Wait at most *wait* seconds for *operation* without holding a thread; True when it has ended."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    def ended(_operation: Operation) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(wake)

    operation.then(ended)
    try:
        await asyncio.wait_for(future, wait)
    except TimeoutError:
        return False
    return True


def outcome(operation: Operation, ended: bool, shape: Callable[[Any], dict[str, Any]]) -> Json:
    """200 with the result in *shape*, 202 with the operation when it still runs; raises what the operation raised."""
    if not ended:
        return Json({"operation": operation.as_dict(), "request_id": operation.request_id}, 202,
                    {"location": f"/v1/operations/{operation.id}"})
    if isinstance(operation.exception, MagnetarError):
        raise operation.exception
    if operation.exception is not None:
        raise MagnetarError  # its trace is in the log already
    answer = {**shape(operation.result), "request_id": operation.request_id}
    operation.forget()
    return Json(answer)


def result(found: Any) -> dict[str, Any]:
    """Shape of the answer to an ensure."""
    return {"warnings": getattr(found, "warnings", []), **found.as_dict()}


class Resources:
    """The routes of one kind."""

    def __init__(self, agent: Agent, kind: type[Kind]) -> None:
        self.agent, self.kind = agent, kind
        self.shown = {field.name: field for field in kind.fields if SHOW in field.on}
        self.filters = {name: read for name, field in self.shown.items() if (read := reader(field.value))}

    async def list(self, request: Request) -> Json:
        """All resources of the kind, or those whose fields fit the filters, page by page if asked."""
        given = query(request, **{**self.filters, **PAGE})
        page = {name: given.pop(name, None) for name in PAGE}
        filters = {name: texts(value) for name, value in given.items()}
        found = await run_in_threadpool(reconcile.collection, self.agent.drivers, self.kind, filters)
        return Json({self.kind.plural: paged(self.kind.noun, self.shown, found, **page)})

    async def show(self, request: Request) -> Json:
        """One resource, by uuid or name."""
        query(request)
        return Json(await run_in_threadpool(reconcile.show, self.agent.drivers, self.kind, key(request)))

    async def ensure(self, request: Request) -> Json:
        """Make the resource be as the body says; fields that are left out stay as they are."""
        given = query(request, **PARAMETERS)
        dry, wait = given.pop("dry_run", False), given.pop("wait", self.agent.host.settings.wait)
        allowed = permissions(given)
        want = await body(request, self.agent.host.settings.body_max_bytes)
        if not isinstance(want, dict):
            raise InvalidField("body", "must be an object with the fields of the resource; to remove it, use DELETE")
        name = key(request)
        return await self._work(request, "ensure", name, wait, dry, lambda operation: reconcile.ensure(
            self.agent.drivers, self.kind, name, want, allowed, dry, operation))

    async def ensure_many(self, request: Request) -> Json:
        """Ensure a list of resources, each for itself; the results come in the order of the list."""
        given = query(request, dry_run=boolean, wait=seconds)
        dry, wait = given.get("dry_run", False), given.get("wait", self.agent.host.settings.wait)
        items: Items = [*batch(await body(request, self.agent.host.settings.body_max_bytes))]
        return await self._work(request, "ensure", None, wait, dry, lambda operation: ensure_many(
            self.agent.drivers, self.kind, items, dry, operation), lambda found: {"results": found})

    async def remove(self, request: Request) -> Json:
        """Make the resource be absent, with all that belongs to it."""
        given = query(request, dry_run=boolean, wait=seconds)
        dry, wait, name = given.get("dry_run", False), given.get("wait", self.agent.host.settings.wait), key(request)
        return await self._work(request, "remove", name, wait, dry, lambda operation: reconcile.ensure(
            self.agent.drivers, self.kind, name, None, permissions({}), dry, operation))

    async def event(self, request: Request) -> Json:
        """Do something once, keyed by request id."""
        given = query(request, wait=seconds)
        given_body = await body(request, self.agent.host.settings.body_max_bytes)
        sent = {**EventRequest.defaults(), **EventRequest.check(given_body)}
        events.check_name(self.kind, sent["event"])  # before it names an operation, and so a metric
        once, name = sent.get("request_id", request.state.request_id), key(request)
        return await self._work(
            request, str(sent["event"]), name, given.get("wait", self.agent.host.settings.wait), False,
            lambda operation: events.event(
                self.agent.drivers, self.kind, name, sent["event"], sent["args"], once, operation), dict,
            subject=subject_of(sent))

    async def _work(self, request: Request, what: str, name: str | None, wait: float, dry: bool,
                    function: Callable[[Operation], Any], shape: Callable[[Any], dict[str, Any]] = result,
                    subject: str | None = None) -> Json:
        operation = self.agent.host.operations.start(
            what, audit.within(request.state.request_id, function), kind=self.kind.noun, key=name,
            request_id=request.state.request_id, caller=request.state.caller, cloud=request.state.cloud,
            subject=subject)
        if not dry:
            audit.follow(operation)
        return outcome(operation, await until(operation, wait), shape)


class Tasks:
    """The routes of operations."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def list(self, request: Request) -> Json:
        """The operations that run and the last ones that ended, newest first, without their results."""
        given = query(request, status=plain, kind=plain, key=plain, name=plain, limit=number)
        limit = given.pop("limit", LIMIT)
        found = [operation for operation in reversed(self.agent.host.operations.list())
                 if all(getattr(operation, name) == value for name, value in given.items())]
        return Json({"operations": [operation.as_dict(False) for operation in found[:limit]]})

    async def show(self, request: Request) -> Json:
        """One operation with its progress, and its result or error when it has ended."""
        wait = query(request, wait=seconds).get("wait", 0.0)
        operation = self.agent.host.operations.get(key(request))
        if wait:
            await until(operation, wait)
        return Json(operation.as_dict())

    async def cancel(self, request: Request) -> Json:
        """Ask an operation to stop at its next safe point."""
        query(request)
        operation = self.agent.host.operations.cancel(key(request))
        audit.record("cancel", "operation", operation.id, request.state.caller, request.state.request_id, "succeeded")
        return Json(operation.as_dict(), 202 if operation.status == RUNNING else 200)


def key(request: Request) -> str:
    """The key in the path. ``app.path`` has turned slashes inside it into NUL, which no name has."""
    return str(request.path_params["key"]).replace("\x00", "/")
