# SPDX-License-Identifier: GPL-3.0-or-later
"""An operation of the Compute API: a route with its version range, rule, body, query and state guard.

``since`` and ``until`` stand where the thing is declared; a version number stands in no handler, but as a named gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from magnetar_control.compute.caller import Caller, UseCase
from magnetar_control.compute.target import ServerUseCase, Target
from magnetar_control.web import Request, Route
from magnetar_core.errors import InvalidField
from magnetar_core.values import Value

from .history import Gate
from .versions import LEGACY, NEWEST, VERSIONS

if TYPE_CHECKING:
    from magnetar_control.compute.cloud import Cloud

#: After all versions.
NEVER = NEWEST + 1


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query parameter; *since*: its first version. *many*: it may come several times."""

    value: Value
    since: int = 1
    many: bool = False


def by_use_case(call: Call) -> Any:
    """The handler of operations that have no other: the use case is called with the server, the other words of the path
    and what is ``given``; what is ``shown`` of its result is the answer, or nothing."""
    operation = call.operation
    words = [call.target if name == "server_id" else word for name, word in call.params.items()]
    found = operation.use(call, *words, **operation.given(call))
    return operation.shown(call, found) if operation.shown else None


@dataclass(frozen=True, kw_only=True)
class ApiOperation(Route):
    """*name*: the operation's id in the conformance table. *use*: the use case that its handler calls, which checks
    policy and states. *given*: what a use case without another handler is called with, by name. *shown* makes the
    answer of its result. *target*: ``server`` has the server of ``{server_id}`` looked up first, of which an
    answer may need no more than *columns*. *strict*: the version from which unknown query parameters are refused.
    *quick*: asks only databases, and little of them. *waits*: for the server's host, and the caller with it. *away*:
    since when, and what answers (of the call and the server's mapping) while the server's cell does not. *status*: of
    success, or (since, status) rows, newest last."""

    name: str
    use: Callable[..., Any]
    handler: Callable[[Call], Any] = by_use_case
    given: Callable[[Call], Mapping[str, Any]] = lambda _call: {}
    shown: Callable[[Call, Any], Any] | None = None
    since: int = 1
    until: int = NEWEST
    action: str | None = None
    target: str | None = None
    columns: Callable[[Call], frozenset[str]] | None = None
    body: Value | None = None
    bodiless: bool = False
    query: Mapping[str, Query] = field(default_factory=dict)
    strict: int = NEVER
    quick: bool = False
    waits: bool = False
    away: tuple[int, Callable[[Call, Any], Any]] | None = None
    status: int | Sequence[tuple[int, int]] = 200

    @property
    def policy(self) -> str | None:
        """The policy rule that decides who may."""
        return self.use.rule if isinstance(self.use, UseCase | ServerUseCase) else None

    @property
    def key(self) -> str | None:
        """The row of ``ACTIONS`` that says in which states of the server it is possible."""
        return self.use.key if isinstance(self.use, ServerUseCase) else None

    def success(self, version: int) -> int:
        """The status of success at a version."""
        if isinstance(self.status, int):
            return self.status
        return next(status for since, status in reversed(self.status) if since <= version)


def noun(name: str, path: str, **common: Any) -> Callable[..., ApiOperation]:
    """What makes the operations of a noun, all with what is *common*: their names begin with *name*, paths with
    *path*."""

    def row(method: str, below: str, word: str, use: Callable[..., Any], **more: Any) -> ApiOperation:
        return ApiOperation(method=method, path=path + below, name=f"{name}.{word}", use=use, **{**common, **more})

    return row


def body_as(name: str) -> Callable[[Call], dict[str, Any]]:
    """The use case is given the body as *name*."""
    return lambda call: {name: call.body}


def shown_as(key: str) -> Callable[[Call, Any], dict[str, Any]]:
    """The answer is the use case's result under *key*."""
    return lambda _call, found: {key: found}


class Call(Caller):
    """What a handler works with: a caller, and what it asks for."""

    __slots__ = ("body", "operation", "params", "query", "request", "shapes", "target", "version")

    def __init__(self, cloud: Cloud, request: Request, operation: ApiOperation, params: dict[str, str],
                 version: int) -> None:
        super().__init__(cloud, request.context, request.id)
        self.request, self.operation, self.params, self.version = request, operation, params, version
        self.query: dict[str, Any] = {}
        self.body: Any = None
        #: What its answers show (``fields.Shape``), by their noun and word: an answer asks for it twice.
        self.shapes: dict[Any, Any] = {}
        #: The server of the path.
        self.target: Target = None  # type: ignore[assignment]

    @property
    def base(self) -> str:
        """What links to resources begin with: with version and, where the client gave it, project."""
        return str(self.request.extra["base"])

    @property
    def legacy(self) -> bool:
        """Whether it is asked below ``/v2``: as at the first version, and leniently."""
        return self.request.path.startswith("/v2/")

    @property
    def images(self) -> str:
        """Where the image service is, for links to what it has."""
        return (self.settings.image_url or f"{self.request.root}/image").rstrip("/").removesuffix("/v2")

    def at(self, gate: Gate) -> bool:
        """Whether the version asked for is that of *gate*, or a later one."""
        return self.version >= gate.version

    def read(self) -> None:
        """Check the query and the body. Raises ``InvalidField`` or ``InvalidRequest``."""
        version = LEGACY if self.legacy else VERSIONS[self.version]
        self.query = _query(self.request.query, self.operation, self.version)
        if self.operation.body is not None:
            self.body = self.operation.body.check(self.body, "", version)


def _query(given: Sequence[tuple[str, str]], operation: ApiOperation, version: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in given:
        known = operation.query.get(name)
        if known is None or known.since > version:
            if version >= operation.strict:
                raise InvalidField(name[:80], "is not a query parameter of this operation")
            continue
        if "\x00" in text:
            raise InvalidField(name, "must not contain a NUL character")
        value = known.value.check(text, name, VERSIONS[version])
        if known.many:
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    return found
