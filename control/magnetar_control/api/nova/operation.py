# SPDX-License-Identifier: GPL-3.0-or-later
"""An operation of the Compute API: its route, versions, policy rule, body and query, and the states of the server that
allow it. It declares its first and last version (``since``, ``until``); handlers compare no version numbers, but ask
for named changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from magnetar_control.compute.caller import Caller, UseCase
from magnetar_control.compute.target import ServerTarget, ServerUseCase
from magnetar_control.web import Request, Route
from magnetar_core.errors import InvalidField
from magnetar_core.values import Value

from .history import ApiChange
from .versions import LEGACY, NEWEST, VERSIONS

if TYPE_CHECKING:
    from magnetar_control.compute.cloud import Cloud

#: A version after all versions.
NEVER = NEWEST + 1


@dataclass(frozen=True, kw_only=True)
class Query:
    """The declaration of a query parameter. *value*: its validator. *since*: the first minor version that has it.
    *many*: whether it may be repeated."""

    value: Value
    since: int = 1
    many: bool = False


def by_use_case(call: Call) -> Any:
    """Handle a request by calling the operation's use case, a function that checks the policy and does the work. The
    use case gets the server, the other parameters in the URL, and the keyword arguments that ``ApiOperation.given``
    returns. Return its result after conversion by ``ApiOperation.shown``; ``None`` if the operation has no ``shown``.
    """
    operation = call.operation
    words = [call.target if name == "server_id" else param for name, param in call.params.items()]
    use_case_result = operation.use(call, *words, **operation.given(call))
    return operation.shown(call, use_case_result) if operation.shown else None


@dataclass(frozen=True, kw_only=True)
class ApiOperation(Route):
    """The declaration of one operation of the Compute API, such as ``POST /servers``.

    * *name*: the operation's id in the table of Nova's operations that ``tests/conformance`` uses.
    * *use*: the use case: the function that checks policy and states, and does the work.
    * *handler*: a function of the ``Call`` that returns the answer; by default it calls the use case.
    * *given*: for the default handler, a function of the ``Call`` that returns keyword arguments of the use case.
    * *shown*: for the default handler, a function of the ``Call`` and the use case's result that returns the answer.
    * *target*: ``server`` if the server with the id ``{server_id}`` in the URL is fetched before *handler* is called.
      *columns*: a function of the ``Call`` that returns the columns to fetch; ``None``: all.
    * *strict*: the first version that refuses unknown query parameters.
    * *quick*: whether the operation only reads a little from databases, so that it may run in the event loop or in one
      of a few threads.
    * *waits*: whether the request may wait for a host, so that it runs in a separate thread pool.
    * *away*: (first version, function): while the server's cell does not respond, this function makes the answer from
      the ``Call`` and the server's mapping in the API database.
    * *status*: the HTTP status of success, or (first version, status) pairs, the newest last.
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
        """The name of the policy rule that the operation checks; ``None`` if it checks none."""
        return self.use.rule if isinstance(self.use, UseCase | ServerUseCase) else None

    @property
    def key(self) -> str | None:
        """The operation's key in ``ACTIONS``, the table of server states that allow each action; ``None`` if the
        operation does not depend on the state of a server."""
        return self.use.key if isinstance(self.use, ServerUseCase) else None

    def success(self, version: int) -> int:
        """Return the HTTP status of a successful request at *version*."""
        if isinstance(self.status, int):
            return self.status
        return next(status for since, status in reversed(self.status) if since <= version)


def operation_factory(name: str, path: str, **common: Any) -> Callable[..., ApiOperation]:
    """Return a function that declares an ``ApiOperation`` of one resource type, such as servers. *name* and *path*: the
    beginning of the operation's name and URL path. *common*: values that all operations of the resource type have."""

    def row(method: str, below: str, name_suffix: str, use: Callable[..., Any], **more: Any) -> ApiOperation:
        return ApiOperation(method=method, path=path + below, name=f"{name}.{name_suffix}", use=use,
                            **{**common, **more})

    return row


def body_as(name: str) -> Callable[[Call], dict[str, Any]]:
    """Return a function for ``ApiOperation.given`` that passes the whole request body as the argument *name* to the use
    case, the function that does the work of the operation."""
    return lambda call: {name: call.body}


def shown_as(key: str) -> Callable[[Call, Any], dict[str, Any]]:
    """Return a function for ``ApiOperation.shown`` that makes the answer ``{key: result}`` from the result of the use
    case, the function that does the work of the operation."""
    return lambda _call, use_case_result: {key: use_case_result}


class Call(Caller):
    """One request to the Compute API: the caller, the operation, the URL parameters, the query, the body and the
    microversion. Each handler gets a ``Call`` as its argument."""

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
        self.target: ServerTarget = None  # type: ignore[assignment]

    @property
    def base(self) -> str:
        """The beginning of links to resources: the root URL with the version and, if the client's URL contains it, the
        project id."""
        return str(self.request.extra["base"])

    @property
    def legacy(self) -> bool:
        """Whether the request is below ``/v2``. Such a request has the first microversion, and unknown fields in its
        body are ignored."""
        return self.request.path.startswith("/v2/")

    @property
    def images(self) -> str:
        """The URL of the image service, for links to images."""
        return (self.settings.image_url or f"{self.request.root}/image").rstrip("/").removesuffix("/v2")

    def at(self, change: ApiChange) -> bool:
        """Return whether the behaviour of *change* applies: the requested microversion is the first version of *change*
        or a later one."""
        return self.version >= change.version

    def read(self) -> None:
        """Check the query and the body with the operation's validators, and replace both by their normal form. Raises
        ``InvalidField`` or ``InvalidRequest``."""
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
