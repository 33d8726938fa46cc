# SPDX-License-Identifier: GPL-3.0-or-later
"""An operation of the Compute API: its route, versions, policy rule, body and query, and the states of the server that
allow it. It declares its first and last version (``since``, ``until``); handlers compare no version numbers, but ask
for named gates."""

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

#: A version after all versions.
NEVER = NEWEST + 1


@dataclass(frozen=True, kw_only=True)
class Query:
    """A query parameter; *since*: its first version. *many*: whether it may be repeated."""

    value: Value
    since: int = 1
    many: bool = False


def by_use_case(call: Call) -> Any:
    """Call the operation's use case with the server, the other parameters of the path, and the arguments from
    ``ApiOperation.given``. Return the answer that ``ApiOperation.shown`` makes of the result; ``None`` without
    ``shown``. This is the default handler."""
    operation = call.operation
    words = [call.target if name == "server_id" else param for name, param in call.params.items()]
    use_case_result = operation.use(call, *words, **operation.given(call))
    return operation.shown(call, use_case_result) if operation.shown else None


@dataclass(frozen=True, kw_only=True)
class ApiOperation(Route):
    """One operation of the Compute API.

    * *name*: the operation's id in the conformance table.
    * *use*: the use case that its handler calls, which checks policy and states.
    * *given*: a function of the call that returns the keyword arguments of the use case, for the default handler.
    * *shown*: a function of call and result that makes the answer from the use case's result.
    * *target*: ``server`` looks up the server of ``{server_id}`` first; the answer may need only its *columns*.
    * *strict*: the first version that refuses unknown query parameters.
    * *quick*: whether it only reads a little from databases.
    * *waits*: whether the request waits for the server's host.
    * *away*: (since, function): the function makes the answer while the server's cell does not respond, from the call
      and the server's mapping in the API database.
    * *status*: of success, or (since, status) rows, newest last.
    """

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
        """Return the name of the operation's policy rule; ``None`` if no rule applies."""
        return self.use.rule if isinstance(self.use, UseCase | ServerUseCase) else None

    @property
    def key(self) -> str | None:
        """Return the key in ``ACTIONS``, whose row has the states of the server that allow the operation; ``None`` for
        an operation without such states."""
        return self.use.key if isinstance(self.use, ServerUseCase) else None

    def success(self, version: int) -> int:
        """Return the HTTP status of a successful request at *version*."""
        if isinstance(self.status, int):
            return self.status
        return next(status for since, status in reversed(self.status) if since <= version)


def operation_factory(name: str, path: str, **common: Any) -> Callable[..., ApiOperation]:
    """Return a function that makes the operations of a resource type, such as servers. All operations have the values
    in *common*, names that begin with *name*, and paths that begin with *path*."""

    def row(method: str, below: str, name_suffix: str, use: Callable[..., Any], **more: Any) -> ApiOperation:
        return ApiOperation(method=method, path=path + below, name=f"{name}.{name_suffix}", use=use,
                            **{**common, **more})

    return row


def body_as(name: str) -> Callable[[Call], dict[str, Any]]:
    """Return a function for ``ApiOperation.given`` that passes the whole body to the use case as the argument
    *name*."""
    return lambda call: {name: call.body}


def shown_as(key: str) -> Callable[[Call, Any], dict[str, Any]]:
    """Return a function for ``ApiOperation.shown`` that returns the use case's result under *key*."""
    return lambda _call, use_case_result: {key: use_case_result}


class Call(Caller):
    """One request and its caller, as handlers get them."""

    __slots__ = ("body", "operation", "params", "query", "request", "shapes", "target", "version")

    def __init__(self, cloud: Cloud, request: Request, operation: ApiOperation, params: dict[str, str],
                 version: int) -> None:
        super().__init__(cloud, request.context, request.id)
        self.request, self.operation, self.params, self.version = request, operation, params, version
        self.query: dict[str, Any] = {}
        self.body: Any = None
        #: The forms of the answer (``fields.Shape``), by noun and word; kept, because an answer needs its form twice.
        self.shapes: dict[Any, Any] = {}
        #: The server of the path.
        self.target: Target = None  # type: ignore[assignment]

    @property
    def base(self) -> str:
        """Return the beginning of links to resources: the URL with the version and, if the client's URL has it, the
        project."""
        return str(self.request.extra["base"])

    @property
    def legacy(self) -> bool:
        """Return whether the request is below ``/v2``: at the first version, and leniently checked."""
        return self.request.path.startswith("/v2/")

    @property
    def images(self) -> str:
        """Return the URL of the image service, for links to its resources."""
        return (self.settings.image_url or f"{self.request.root}/image").rstrip("/").removesuffix("/v2")

    def at(self, gate: Gate) -> bool:
        """Return whether the requested version is the first version of *gate*, or a later one."""
        return self.version >= gate.version

    def read(self) -> None:
        """Check the query and the body, and store both in normal form. Raises ``InvalidField`` or
        ``InvalidRequest``."""
        version = LEGACY if self.legacy else VERSIONS[self.version]
        self.query = _query(self.request.query, self.operation, self.version)
        if self.operation.body is not None:
            self.body = self.operation.body.check(self.body, "", version)


def _query(query_pairs: Sequence[tuple[str, str]], operation: ApiOperation, version: int) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for name, text in query_pairs:
        parameter = operation.query.get(name)
        if parameter is None or parameter.since > version:
            if version >= operation.strict:
                raise InvalidField(name[:80], "is not a query parameter of this operation")
            continue
        if "\x00" in text:
            raise InvalidField(name, "must not contain a NUL character")
        value = parameter.value.check(text, name, VERSIONS[version])
        if parameter.many:
            checked.setdefault(name, []).append(value)
        else:
            checked[name] = value
    return checked
