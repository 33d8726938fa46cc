# SPDX-License-Identifier: GPL-3.0-or-later
"""The client of the agent's API: over its unix socket, or over HTTPS with a client certificate or a token. Importing
this module is cheap: ``http`` and ``ssl`` are imported at the first connection.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Sequence, Union
from urllib.parse import quote, urlencode

from ..document import Document
from ..errors import InvalidField, MagnetarError, TimedOut, TooManyRequests, Unreachable, error_from_dict
from ..outcome import attach_request_id, follow_operation, is_operation, operation_answer
from .endpoint import ENDPOINT, parse_endpoint

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPConnection

    from .login import Login
    from .transport import Dial

#: Called with the operation, or with the state of an upload, while it runs.
Progress = Optional[Callable[[Document], None]]
_Ask = Optional[Callable[[], Document]]

#: Maximum seconds that one request asks the agent to wait, so that proxies and dead peers are noticed; shorter where
#: the caller wants progress.
WAIT_SLICE, PROGRESS_SLICE = 20.0, 5.0
#: Seconds that a call without waiting gives the agent, so that it can report "unchanged" and quick changes directly.
BRIEFLY = 1.0
#: Seconds beyond the requested wait after which the answer counts as missing.
ANSWER_MARGIN = 30.0
#: Seconds after the first failure during which the client retries, while the agent or libvirt restarts.
RETRY_FOR = 10.0


class Client:
    """A client of an agent or of a cloud's Compute API. It keeps one connection open; use one client per thread.

    *endpoint*: ``unix:///path``, ``https://host[:port]``, or another URL that *dial* connects to. *login*: the login at
    a cloud, which replaces *endpoint*. *timeout*: the maximum seconds of a call, including the wait for an operation.
    *connect_timeout*: the maximum seconds to connect. All methods raise only subclasses of ``MagnetarError``, with
    ``request_id`` set.
    """

    def __init__(self, endpoint: Optional[str] = ENDPOINT, token: Optional[str] = None, ca_cert: Optional[str] = None,
                 client_cert: Optional[str] = None, client_key: Optional[str] = None, validate_certs: bool = True,
                 connect_timeout: float = 5.0, timeout: float = 180.0, agent_name: str = "magnetar-client",
                 dial: Optional[Dial] = None, login: Optional[Login] = None) -> None:
        self._login = login
        if login is None:
            self.endpoint = endpoint or ENDPOINT
            self._address, self._dial = parse_endpoint(self.endpoint), dial
        else:
            self._address, self._dial = login.address, None
            self.endpoint = "%s://%s:%d" % (self._address.scheme, self._address.host, self._address.port)
        if self._address.scheme == "ssh" and dial is None:
            raise InvalidField("endpoint",
                               "ssh:// is for Ansible's modules and inventory; here use https:// or unix://", endpoint)
        self._token, self._ca_cert, self._validate = token, ca_cert, validate_certs
        self._client_cert, self._client_key = client_cert, client_key
        self.connect_timeout, self.timeout = connect_timeout, timeout
        self.patience: Optional[float] = None  # seconds for the answer of each request; ``None``: the default
        self._agent_name = agent_name
        self._connection: Optional[HTTPConnection] = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The next call opens a new one."""
        self._hang_up()
        if self._dial is not None:
            self._dial.close()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def host(self) -> Optional[str]:
        """Return the host name in the endpoint; ``None`` for a unix socket."""
        return self._address.host or None

    @property
    def of_cloud(self) -> bool:
        """Return whether the client uses the API of a cloud, with a login, and not an agent."""
        return self._login is not None

    @property
    def login(self) -> Optional[Login]:
        """Return the login at a cloud; ``None`` if the client uses an agent."""
        return self._login

    # The agent's offers.

    def info(self) -> Document:
        """Return ``{host, api, kinds, version}`` of the agent, from ``GET /v1``."""
        return self._call("GET", "/v1")

    def get(self, resource_type: str, key: Optional[str] = None) -> Document:
        """Return the resource *key* (name or uuid) of the type *resource_type*, such as server. *key* is omitted for
        types with a single resource, such as ``host``. Raises ``NotFound``.
        """
        return resource_of_answer(self._call("GET", _route(resource_type, key)), resource_type)

    def list(self, resource_type: str, **query: Any) -> Sequence[Document]:
        """Return the resources of the type *resource_type*, such as server, that match *query*: ``name``, ``id``, or
        any other field. *query* may also contain ``limit``, ``sort`` and ``fields`` (a list).
        """
        answer = self._call("GET", _route(resource_type), _query(query))
        return next((value for value in answer.values() if isinstance(value, list)), [])

    def ensure(self, resource_type: str, key: str, want: Document, on_immutable: Optional[str] = "fail",
               merge: Sequence[str] = (), dry_run: bool = False, wait: bool = True, timeout: Optional[float] = None,
               request_id: Optional[str] = None, progress: Progress = None, allow_reboot: bool = False,
               preserve_ephemeral: bool = False) -> Document:
        """Create the resource *key* of the type *resource_type*, or change it, so that it has the fields *want*. Return
        a mapping with ``changed``, ``steps``, ``diff``, ``resource`` and ``request_id``.

        *dry_run*: only return the planned change. *wait*: if false, a long change returns ``{"operation": {...},
        "request_id": …}`` immediately. *progress*: called with the operation (a mapping) while it runs. *on_immutable*,
        *merge*, *allow_reboot*, *preserve_ephemeral*: see ``core.ensure.Permissions``. For an agent of the previous
        release, fields that this agent does not know are omitted if they have their default.
        """
        allowed = {"allow_reboot": allow_reboot, "preserve_ephemeral": preserve_ephemeral}
        query = dict(_permissions(on_immutable, merge), dry_run=dry_run, **{k: v for k, v in allowed.items() if v})

        def send(document: Document) -> Document:
            return self._change("PUT", _route(resource_type, key), query, document, wait, timeout, request_id, progress)

        try:
            return send(want)
        except InvalidField as error:
            from . import older_agents
            return older_agents.send_without_unknown_fields(resource_type, want, error, send, self.endpoint)

    def ensure_many(self, resource_type: str, items: Sequence[Document], dry_run: bool = False, wait: bool = True,
                    timeout: Optional[float] = None, request_id: Optional[str] = None,
                    progress: Progress = None) -> Document:
        """Do the same as ``ensure`` for several resources of the type *resource_type*, and return ``{"results":
        [...]}``. *items*: mappings with ``key``, ``want`` (the desired fields; ``None``: remove the resource), and
        options of ``core.ensure.Permissions``. Other parameters: as in ``ensure``.
        """
        def send(some: Sequence[Document]) -> Document:
            return self._change("PUT", _route(resource_type), {"dry_run": dry_run}, some, wait, timeout, request_id,
                                progress)

        answer = send(items)
        if any(item.get("error", {}).get("code") == InvalidField.code for item in answer.get("results", ())):
            from . import older_agents
            return older_agents.send_items_without_unknown_fields(resource_type, items, answer, send, self.endpoint)
        return answer

    def delete(self, resource_type: str, key: str, dry_run: bool = False, wait: bool = True,
               timeout: Optional[float] = None,
               request_id: Optional[str] = None, progress: Progress = None) -> Document:
        """Remove the resource *key* of the type *resource_type*. In the returned mapping, ``changed`` is false if the
        resource did not exist. Other parameters: as in ``ensure``.
        """
        return self._change("DELETE", _route(resource_type, key), {"dry_run": dry_run}, None, wait, timeout, request_id,
                            progress)

    def event(self, resource_type: str, key: str, event: str, args: Optional[Document] = None,
              timeout: Optional[float] = None,
              request_id: Optional[str] = None, progress: Progress = None, wait: bool = True) -> Document:
        """Perform the one-time action *event*, such as ``reboot``, on the resource *key* of the type *resource_type*,
        and return the answer. A repeated call with the same *request_id* does not perform the action again. *progress*,
        *wait*: as in ``ensure``.
        """
        request_id = request_id or new_request_id()
        body = {"event": event, "args": args or {}, "request_id": request_id}
        return self._change("POST", _route(resource_type, key) + "/events", {}, body, wait, timeout, request_id,
                            progress)

    def console(self, key: str, lines: Optional[int] = None) -> str:
        """Return the last *lines* of the console log of the server *key*; ``None``: all that the agent has."""
        return str(self._call("GET", _route("server", key) + "/console", {"format": "json", **_query({"lines": lines})})
                   .get("output", ""))

    def open_console(self, key: str, type: str) -> Document:
        """Open a console of the *type*, such as novnc, for the server *key* of a cloud. Return a mapping with the
        console's URLs, which are valid once: ``{type, url, page, socket, expires_at, …}``.
        """
        return self._call("POST", _route("server", key) + "/consoles", body={"type": type})

    def ask_guest(self, key: str, command: str, args: Optional[Document] = None, timeout: Optional[float] = None,
                  request_id: Optional[str] = None) -> Document:
        """Run a *command* of ``http.guest_commands`` in the guest agent of the running server *key*, and return its
        answer. *args*: arguments of the command. The call may be repeated safely.
        """
        deadline = time.monotonic() + (timeout or self.timeout)
        return self._call("POST", _route("server", key) + "/guest", None, {"command": command, "args": args or {}},
                          deadline, request_id)

    def upload(self, resource_type: str, key: str, path: Union[str, os.PathLike[str]], timeout: Optional[float] = None,
               request_id: Optional[str] = None, progress: Progress = None) -> Document:
        """Send the file at *path* as the content of the resource *key* (such as an image), and return the same answer
        as ``ensure``. *progress*: called with ``{"phase": "upload", "done": bytes, "total": bytes, "unit": "bytes"}``.
        """
        from . import content
        deadline = time.monotonic() + (timeout or self.timeout)
        return content.upload_file(path, progress, deadline, lambda pieces, total: self.send(
            resource_type, key, pieces, total, max(deadline - time.monotonic(), 1.0), request_id, progress))

    def send(self, resource_type: str, key: str, pieces: Iterator[bytes], size: int, timeout: Optional[float] = None,
             request_id: Optional[str] = None, progress: Progress = None) -> Document:
        """Send *size* bytes as the content of the resource *key* (such as an image), and return the same answer as
        ``ensure``. *pieces*: yields the bytes.
        """
        request_id = request_id or new_request_id()
        deadline = time.monotonic() + (timeout or self.timeout)
        answer = self._call("PUT", _route(resource_type, key) + "/data", {"wait": self._slice(deadline)}, pieces,
                            deadline,
                            request_id, size=size)
        return self._finish(answer, deadline, request_id, progress, None)

    def receive(self, resource_type: str, key: str) -> tuple[Iterator[bytes], int]:
        """Fetch the content of the resource *key* (such as an image) over a separate connection. Return an iterator
        over the content in pieces, and its size in bytes. The iterator raises ``Unreachable`` if the connection breaks.
        """
        from . import content
        headers = self._headers(new_request_id(), "application/octet-stream")
        return content.receive_content(self._connect, _route(resource_type, key) + "/data", headers, self._answer,
                                       self._unreachable)

    def operation(self, operation_id: str) -> Document:
        """Return the operation as a mapping: ``{id, status, progress, result, error}``. ``status`` is running,
        succeeded, failed or cancelled.
        """
        return self._call("GET", _route("operations", operation_id))

    def wait_for(self, operation: Document, timeout: Optional[float] = None) -> None:
        """Wait until the *operation* (a mapping with ``id``) has ended, successfully or not. Raises ``TimedOut``."""
        deadline = time.monotonic() + (timeout or self.timeout)
        self._followed({"operation": operation}, deadline, new_request_id(), None, dict)

    def cancel(self, operation_id: str) -> Document:
        """Cancel a running operation. The agent removes its partial results."""
        return self._call("DELETE", _route("operations", operation_id))

    def watch(self, interval: float = 5.0, timeout: Optional[float] = None,
              events: Sequence[str] = ()) -> Iterator[tuple[str, Document]]:
        """Yield ``(event, document)`` from a separate connection until the agent closes it. The first events are
        ``hello`` and ``servers``; then changes follow, and a heartbeat every *interval* seconds. *events*: only these
        types of changes: server, domain, operation. Raises ``Unreachable`` if nothing arrives for *timeout* seconds
        (default: 3 intervals).
        """
        from . import watch
        return watch.follow_events(self._connect, self._headers(new_request_id(), "text/event-stream"), self._answer,
                                   self._unreachable, interval, timeout, events)

    def follow(self, cursor: Optional[str] = None, interval: float = 5.0, timeout: Optional[float] = None,
               **query: Any) -> Iterator[tuple[str, Document]]:
        """Yield ``(event, document)`` of a cloud from a separate connection until the API closes it. The first event is
        ``hello``; then events follow, named by their kind, and a heartbeat every *interval* seconds. Each document has
        a ``cursor``; with this *cursor*, a later call continues after the event (default: from now on). *query*:
        ``kind``, ``server`` (lists), ``all_projects``. *timeout*: as in ``watch``. Raises ``CursorExpired``.
        """
        from . import watch
        parameters = dict(query, cursor=cursor, interval=interval)
        target = "/v1/events?" + urlencode(_flat(_query(parameters)))
        for attempt in (1, 2):
            try:
                yield from watch.follow_stream(
                    self._connect, target, self._headers(new_request_id(), "text/event-stream"), self._answer,
                    self._unreachable, timeout or watch.HEARTBEATS * interval)
                return
            except MagnetarError as error:
                if attempt == 2 or self._login is None or error.code != "unauthenticated":
                    raise
                self._login.renew()

    # Waiting.

    def _change(self, method: str, route: str, query: Document, body: Any, wait: bool, timeout: Optional[float],
                request_id: Optional[str], progress: Progress) -> Document:
        request_id = request_id or new_request_id()
        deadline = time.monotonic() + (timeout or self.timeout)
        wait = wait or query.get("dry_run", False)

        def ask() -> Document:
            parameters = dict(query, wait=self._slice(deadline, progress) if wait else BRIEFLY)
            return self._call(method, route, parameters, body, deadline, request_id)

        return self._finish(ask(), deadline, request_id, progress, ask) if wait else ask()

    def _finish(self, answer: Document, deadline: float, request_id: str, progress: Progress, again: _Ask) -> Document:
        """Return the result of a request. If *answer* contains a running operation, wait for its end and return the
        operation's result. *again*: a function that repeats the request if the agent no longer knows the operation.
        Raises the error of the operation, or ``TimedOut``.
        """
        answer = self._followed(answer, deadline, request_id, progress, again)
        return operation_answer(answer["operation"], request_id) if is_operation(answer) else answer

    def _followed(self, answer: Document, deadline: float, request_id: str, progress: Progress,
                  again: _Ask) -> Document:
        return follow_operation(answer, lambda operation_id: self._look(
            operation_id, self._slice(deadline, progress), deadline, request_id, again), deadline, request_id, progress)

    def _look(self, operation_id: str, wait: float, deadline: float, request_id: str, again: _Ask) -> Document:
        try:
            route = _route("operations", operation_id)
            return {"operation": self._call("GET", route, {"wait": wait}, None, deadline, request_id)}
        except MagnetarError as error:
            if error.code != "not-found" or again is None:
                raise
            return again()

    def _call(self, method: str, route: str, query: Optional[Document] = None, body: Any = None,
              deadline: Optional[float] = None, request_id: Optional[str] = None,
              size: Optional[int] = None) -> Document:
        """Send a request and return the answer. After a temporary failure, repeat the request, for at most
        ``RETRY_FOR`` seconds and until *deadline* (on the monotonic clock; default: the client's timeout). After
        ``TooManyRequests``, only *deadline* applies. *size*: the bytes of an upload, which is sent only once. All other
        requests may be repeated safely."""
        request_id = request_id or new_request_id()
        failed: Optional[float] = None
        deadline = deadline or time.monotonic() + self.timeout
        target = route + ("?" + urlencode(_flat(query)) if query else "")
        pause, renewed = 0.1, False
        while True:
            try:
                return self._once(method, target, body, size, deadline, request_id)
            except MagnetarError as error:
                if self._login is not None and error.code == "unauthenticated" and size is None and not renewed:
                    renewed = True
                    self._login.renew()
                    continue
                failed, until = failed or time.monotonic(), deadline
                if isinstance(error, TooManyRequests):  # it says when there may be room, which may take longer
                    failed, pause = None, error.retry_after or pause
                else:
                    until = min(deadline, failed + RETRY_FOR)
                over = time.monotonic() + pause > until
                if size is not None or over or not error.again:
                    attach_request_id(error, request_id)
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    def _once(self, method: str, target: str, body: Any, size: Optional[int], deadline: float,
              request_id: str) -> Document:
        content = body if size is not None or body is None else json.dumps(body).encode()
        reused = self._connection is not None
        try:
            status, answer = self._exchange(method, target, content, size, deadline, request_id)
        except Exception as error:
            connected = self._connection is not None
            self._hang_up()
            if isinstance(error, MagnetarError):
                raise
            if reused and size is None and not isinstance(error, (socket.timeout, TimeoutError)):
                # The agent closed the kept connection (restart, idle time), which says nothing about this call.
                return self._once(method, target, body, size, deadline, request_id)
            raise self._unreachable(error, connected) from None
        return self._answer(status, answer)

    def _exchange(self, method: str, target: str, content: Any, size: Optional[int], deadline: float,
                  request_id: str) -> tuple[int, bytes]:
        connection = self._connection or self._connect()
        self._connection = connection
        headers = self._headers(request_id)
        if content is not None:
            headers["Content-Type"] = "application/json" if size is None else "application/octet-stream"
            headers["Content-Length"] = str(len(content) if size is None else size)
        remaining = max(deadline - time.monotonic(), 1.0)
        connection.sock.settimeout(min(remaining, self._wait) + (ANSWER_MARGIN if self.patience is None
                                                                 else self._wait))
        try:
            connection.request(method, target, content, headers)
        except (BrokenPipeError, ConnectionResetError):
            if size is None:
                raise
            # An agent that refuses an upload answers before it has read everything; the answer has the reason.
        response = connection.getresponse()
        answer = response.read()
        if response.will_close:
            self._hang_up()
        return response.status, answer

    @property
    def _wait(self) -> float:  # half of the patience is for the answer
        return WAIT_SLICE if self.patience is None else self.patience / 2

    def _slice(self, deadline: float, progress: Progress = None) -> float:
        return round(max(0.0, min(deadline - time.monotonic(), self._wait, PROGRESS_SLICE if progress else 60.0)), 1)

    def _headers(self, request_id: str, accept: str = "application/json") -> dict[str, str]:
        headers = {"X-Request-Id": request_id, "Accept": accept, "User-Agent": self._agent_name}
        if self._login is not None:
            return dict(headers, **{"X-Auth-Token": self._login.token})
        return dict(headers, Authorization="Bearer %s" % self._token) if self._token else headers

    def _answer(self, status: int, content: bytes) -> Document:
        try:
            answer = json.loads(content) if content else {}
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or (status >= 300 and not isinstance(answer.get("error"), dict)):
            raise MagnetarError(
                "%s answered HTTP %d with something that is not Magnetar's; check that the endpoint is a Magnetar "
                "agent, and a proxy in between." % (self.endpoint, status))
        if status < 300:
            return answer
        error = error_from_dict(answer["error"])
        error.request_id = answer["error"].get("request_id")
        error.again = error.again or (status == 503 and not error.details.get("lasting"))
        raise error

    def _connect(self) -> HTTPConnection:
        from . import transport
        if self._dial is not None:
            return self._dial(self.connect_timeout)
        connection: HTTPConnection
        if self._address.scheme == "unix":
            connection = transport.unix_connection(self._address.path, self.connect_timeout)
        elif self._login is not None:
            connection = transport.cloud_connection(self._address, self._login.ca_cert, self._login.validate,
                                                    self.connect_timeout)
        else:
            connection = transport.https_connection(self._address.host, self._address.port, self._tls_context(),
                                                    self.connect_timeout)
        connection.connect()
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        from . import transport
        return transport.tls_context(self._ca_cert, self._client_cert, self._client_key, self._validate)

    def _unreachable(self, error: Exception, connected: bool) -> MagnetarError:
        """Return the error for *error*, a failed connection: ``TimedOut`` if the agent did not answer in time on an
        open connection (*connected*), otherwise ``Unreachable``.
        """
        if isinstance(error, (socket.timeout, TimeoutError)) and connected:
            return TimedOut("%s did not answer in time. See `journalctl -u magnetar-agent` there." % self.endpoint)
        from . import transport
        advice = transport.connection_advice(error, self._address.scheme, bool(self._client_cert))
        endpoint_kind = "API" if self._login else "agent"
        unreachable = Unreachable("Cannot reach the %s at %s: %s" % (endpoint_kind, self.endpoint, advice))
        unreachable.again = isinstance(error, (ConnectionRefusedError, ConnectionResetError, BrokenPipeError))
        if connected and self._address.scheme == "https":
            unreachable.again = False  # a closed TLS connection is a refused certificate rather than a restart
        return unreachable


def new_request_id() -> str:
    """Return a new request id, ``req-<uuid>``, which identifies a request in answers and logs."""
    return "req-%s" % uuid.uuid4()


def _route(resource_type: str, key: Optional[str] = None) -> str:
    if key == "":  # an empty key would address the list
        raise InvalidField("name", "must not be empty: it says which %s is meant" % resource_type)
    return "/v1/%s" % resource_type if key is None else "/v1/%s/%s" % (resource_type, quote(str(key), safe=""))


def _query(query: Document) -> Document:
    return {name: ",".join(value) if isinstance(value, (list, tuple)) else value
            for name, value in query.items() if value is not None}


def _flat(query: Document) -> Document:
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}


def _permissions(on_immutable: Optional[str], merge: Sequence[str]) -> dict[str, str]:
    parameters = {"merge": ",".join(merge)} if merge else {}
    if on_immutable and on_immutable != "fail":
        parameters["on_immutable"] = on_immutable
    return parameters


def resource_of_answer(answer: Document, resource_type: str) -> Document:
    """Return the resource in *answer*, the answer of a ``GET`` request. The answer is the resource itself, or an object
    that has the resource under the key *resource_type*, such as ``{"server": {...}}``.
    """
    inner = answer.get(resource_type)
    return inner if isinstance(inner, dict) and len(answer) <= 2 else answer
