# SPDX-License-Identifier: GPL-3.0-or-later
"""The client of the agent's protocol: over its unix socket, or over HTTPS with a client certificate or a token.

Importing this module is cheap (no http, no ssl): those are imported at the first connection.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Sequence, Union
from urllib.parse import quote, urlencode

from ..errors import InvalidField, MagnetarError, TimedOut, TooManyRequests, Unreachable, from_dict
from ..outcome import follow, identified, is_operation, outcome
from .endpoint import ENDPOINT, parse

if TYPE_CHECKING:
    from http.client import HTTPConnection

    from .login import Login
    from .transport import Dial

#: A JSON object.
Document = dict[str, Any]
#: Called with the operation, or with the state of an upload, while it goes on.
Progress = Optional[Callable[[Document], None]]
_Ask = Optional[Callable[[], Document]]

#: Seconds that one request may ask the agent to wait, so that proxies and dead peers are noticed; and where the caller
#: wants to hear how far it is.
WAIT_SLICE, PROGRESS_SLICE = 20.0, 5.0
#: Seconds that a call which does not wait gives the agent, so that "unchanged" and quick changes are told as such.
BRIEFLY = 1.0
#: Seconds beyond the asked wait after which an answer is missing.
ANSWER_MARGIN = 30.0
#: Seconds from the first failure on for which an agent that restarts, or a libvirt that does, is asked again.
RETRY_FOR = 10.0


class Client:
    """Speaks to one agent (or API service); keeps one connection open. Use one client per thread.

    *endpoint* is ``unix:///path``, ``https://host[:port]``, or another that *dial* connects to; with *login* it is the
    API of the cloud that this logs in to. *timeout* is the time
    in seconds that a call may take as a whole, waiting for operations included; *connect_timeout* the time to reach the
    endpoint. Every call raises ``MagnetarError`` classes only; each error has ``request_id``.
    """

    def __init__(self, endpoint: Optional[str] = ENDPOINT, token: Optional[str] = None, ca_cert: Optional[str] = None,
                 client_cert: Optional[str] = None, client_key: Optional[str] = None, validate_certs: bool = True,
                 connect_timeout: float = 5.0, timeout: float = 180.0, agent_name: str = "magnetar-client",
                 dial: Optional[Dial] = None, login: Optional[Login] = None) -> None:
        self._login = login
        if login is None:
            self.endpoint = endpoint or ENDPOINT
            self._address, self._dial = parse(self.endpoint), dial
        else:
            self._address, self._dial = login.address, None
            self.endpoint = "%s://%s:%d" % (self._address.scheme, self._address.host, self._address.port)
        if self._address.scheme == "ssh" and dial is None:
            raise InvalidField("endpoint", "ssh:// is for Ansible's modules and inventory; here use https:// or unix://",
                               endpoint)
        self._token, self._ca_cert, self._validate = token, ca_cert, validate_certs
        self._client_cert, self._client_key = client_cert, client_key
        self.connect_timeout, self.timeout = connect_timeout, timeout
        self.patience: Optional[float] = None  # seconds within which each request is answered; ``None``: as usual
        self._agent_name = agent_name
        self._connection: Optional[HTTPConnection] = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        self._hang_up()
        if self._dial is not None:
            self._dial.close()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def host(self) -> Optional[str]:
        """The host in the endpoint; ``None`` for a unix socket."""
        return self._address.host or None

    @property
    def of_cloud(self) -> bool:
        """Whether it asks the API of a cloud, with a login."""
        return self._login is not None

    # what the agent offers

    def info(self) -> Document:
        """``{host, api, kinds, version}`` of the agent."""
        return self._call("GET", "/v1")

    def get(self, noun: str, key: Optional[str] = None) -> Document:
        """The resource; raises ``NotFound``. Without *key*: the only one of its kind, as of ``host``."""
        return _resource(self._call("GET", _route(noun, key)), noun)

    def list(self, noun: str, **query: Any) -> Sequence[Document]:
        """The resources that fit *query* (``name``, ``id``, ``limit``, ``sort``, ``fields`` as a list, any field)."""
        answer = self._call("GET", _route(noun), _query(query))
        return next((value for value in answer.values() if isinstance(value, list)), [])

    def ensure(self, noun: str, key: str, want: Document, on_immutable: Optional[str] = "fail",
               merge: Sequence[str] = (), dry_run: bool = False, wait: bool = True, timeout: Optional[float] = None,
               request_id: Optional[str] = None, progress: Progress = None, allow_reboot: bool = False,
               preserve_ephemeral: bool = False) -> Document:
        """Make the resource *key* be as *want*; returns ``{changed, steps, diff, resource, request_id, …}``.

        With ``wait=False`` a long change returns ``{"operation": {...}, "request_id": …}`` instead. *progress* is
        called with the operation while it runs. The rest are the caller's permissions (``core.ensure.Permissions``).
        """
        allowed = {"allow_reboot": allow_reboot, "preserve_ephemeral": preserve_ephemeral}
        query = dict(_permissions(on_immutable, merge), dry_run=dry_run, **{k: v for k, v in allowed.items() if v})
        return self._change("PUT", _route(noun, key), query, want, wait, timeout, request_id, progress)

    def ensure_many(self, noun: str, items: Sequence[Document], dry_run: bool = False, wait: bool = True,
                    timeout: Optional[float] = None, request_id: Optional[str] = None,
                    progress: Progress = None) -> Document:
        """Ensure a list of ``{key, want}`` (``None``: absent) with permissions; ``{"results": [...]}``."""
        return self._change("PUT", _route(noun), {"dry_run": dry_run}, items, wait, timeout, request_id, progress)

    def delete(self, noun: str, key: str, dry_run: bool = False, wait: bool = True, timeout: Optional[float] = None,
               request_id: Optional[str] = None, progress: Progress = None) -> Document:
        """Make the resource be absent; ``changed`` is false when it was."""
        return self._change("DELETE", _route(noun, key), {"dry_run": dry_run}, None, wait, timeout, request_id,
                            progress)

    def event(self, noun: str, key: str, event: str, args: Optional[Document] = None, timeout: Optional[float] = None,
              request_id: Optional[str] = None, progress: Progress = None, wait: bool = True) -> Document:
        """Do a one-shot such as ``reboot``. Asking again with the same *request_id* never does it twice. *progress* and
        *wait*: as in ``ensure``."""
        request_id = request_id or new_request_id()
        body = {"event": event, "args": args or {}, "request_id": request_id}
        return self._change("POST", _route(noun, key) + "/events", {}, body, wait, timeout, request_id, progress)

    def console(self, key: str, lines: Optional[int] = None) -> str:
        """The last *lines* of a server's console log."""
        return str(self._call("GET", _route("server", key) + "/console", {"format": "json", **_query({"lines": lines})})
                   .get("output", ""))

    def open_console(self, key: str, type: str) -> Document:
        """URLs of a console of a server of a cloud, good once: ``{type, url, page, socket, expires_at, …}``."""
        return self._call("POST", _route("server", key) + "/consoles", body={"type": type})

    def upload(self, noun: str, key: str, path: Union[str, os.PathLike[str]], timeout: Optional[float] = None,
               request_id: Optional[str] = None, progress: Progress = None) -> Document:
        """Send the file at *path* as the content of the resource; the answer is that of ``ensure``. *progress* is
        called with ``{"phase": "upload", "done": bytes, "total": bytes, "unit": "bytes"}``."""
        from . import content
        deadline = time.monotonic() + (timeout or self.timeout)
        return content.sent(path, progress, deadline, lambda pieces, total: self.send(
            noun, key, pieces, total, max(deadline - time.monotonic(), 1.0), request_id, progress))

    def send(self, noun: str, key: str, pieces: Iterator[bytes], size: int, timeout: Optional[float] = None,
             request_id: Optional[str] = None, progress: Progress = None) -> Document:
        """Send *size* bytes in *pieces* as the content of the resource; the answer is that of ``ensure``."""
        request_id = request_id or new_request_id()
        deadline = time.monotonic() + (timeout or self.timeout)
        answer = self._call("PUT", _route(noun, key) + "/data", {"wait": self._slice(deadline)}, pieces, deadline,
                            request_id, size=size)
        return self._finish(answer, deadline, request_id, progress, None)

    def receive(self, noun: str, key: str) -> tuple[Iterator[bytes], int]:
        """The content of the resource in pieces, and its size in bytes, on a connection of its own. The pieces raise
        ``Unreachable`` when they break off."""
        from . import content
        headers = self._headers(new_request_id(), "application/octet-stream")
        return content.received(self._connect, _route(noun, key) + "/data", headers, self._answer, self._unreachable)

    def operation(self, operation_id: str) -> Document:
        """``{id, status, progress, result, error}`` of a long step; status is running, succeeded, failed, cancelled."""
        return self._call("GET", _route("operations", operation_id))

    def wait_for(self, operation: Document, timeout: Optional[float] = None) -> None:
        """Wait until an *operation* has ended, well or not. Raises ``TimedOut``."""
        deadline = time.monotonic() + (timeout or self.timeout)
        self._followed({"operation": operation}, deadline, new_request_id(), None, dict)

    def cancel(self, operation_id: str) -> Document:
        """Ask that the operation stops; what it has made is taken away."""
        return self._call("DELETE", _route("operations", operation_id))

    def watch(self, interval: float = 5.0, timeout: Optional[float] = None,
              events: Sequence[str] = ()) -> Iterator[tuple[str, Document]]:
        """Yield ``(event, document)`` from a connection of its own until the agent ends it: hello, servers, then what
        happens (*events*: only these of server, domain, operation), and a heartbeat every *interval* seconds.
        ``Unreachable`` after *timeout* (3 intervals) of silence."""
        from . import watch
        return watch.follow(self._connect, self._headers(new_request_id(), "text/event-stream"), self._answer,
                            self._unreachable, interval, timeout, events)

    # waiting

    def _change(self, method: str, route: str, query: Document, body: Any, wait: bool, timeout: Optional[float],
                request_id: Optional[str], progress: Progress) -> Document:
        request_id = request_id or new_request_id()
        deadline = time.monotonic() + (timeout or self.timeout)
        wait = wait or query.get("dry_run", False)

        def ask() -> Document:
            asked = dict(query, wait=self._slice(deadline, progress) if wait else BRIEFLY)
            return self._call(method, route, asked, body, deadline, request_id)

        return self._finish(ask(), deadline, request_id, progress, ask) if wait else ask()

    def _finish(self, answer: Document, deadline: float, request_id: str, progress: Progress, again: _Ask) -> Document:
        """Follow the operation of a 202 *answer* to its end. *again* asks anew if the agent has forgotten it."""
        answer = self._followed(answer, deadline, request_id, progress, again)
        return outcome(answer["operation"], request_id) if is_operation(answer) else answer

    def _followed(self, answer: Document, deadline: float, request_id: str, progress: Progress,
                  again: _Ask) -> Document:
        return follow(answer, lambda operation_id: self._look(
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
        """One call, repeated while that is safe and may help; every call is repeatable (an event has its id).

        A stream (*size* given) is sent once only.
        """
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
                if isinstance(error, TooManyRequests):  # it says when there may be room, which may take its time
                    failed, pause = None, error.retry_after or pause
                else:
                    until = min(deadline, failed + RETRY_FOR)
                over = time.monotonic() + pause > until
                if size is not None or over or not error.again:
                    identified(error, request_id)
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    def _once(self, method: str, target: str, body: Any, size: Optional[int], deadline: float,
              request_id: str) -> Document:
        content = body if size is not None or body is None else json.dumps(body).encode()
        kept = self._connection is not None
        try:
            status, answer = self._exchange(method, target, content, size, deadline, request_id)
        except Exception as error:
            connected = self._connection is not None
            self._hang_up()
            if isinstance(error, MagnetarError):
                raise
            if kept and size is None and not isinstance(error, (socket.timeout, TimeoutError)):
                # The agent closed the kept connection (restart, idle time): that says nothing about this call.
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
        left = max(deadline - time.monotonic(), 1.0)
        connection.sock.settimeout(min(left, self._wait) + (ANSWER_MARGIN if self.patience is None else self._wait))
        try:
            connection.request(method, target, content, headers)
        except (BrokenPipeError, ConnectionResetError):
            if size is None:
                raise
            # An agent that refuses an upload answers before it has read everything; the answer says why.
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
        found = {"X-Request-Id": request_id, "Accept": accept, "User-Agent": self._agent_name}
        if self._login is not None:
            return dict(found, **{"X-Auth-Token": self._login.token})
        return dict(found, Authorization="Bearer %s" % self._token) if self._token else found

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
        error = from_dict(answer["error"])
        error.request_id = answer["error"].get("request_id")
        error.again = error.again or (status == 503 and not error.details.get("lasting"))
        raise error

    def _connect(self) -> HTTPConnection:
        from . import transport
        if self._dial is not None:
            return self._dial(self.connect_timeout)
        connection: HTTPConnection
        if self._address.scheme == "unix":
            connection = transport.unix(self._address.path, self.connect_timeout)
        elif self._login is not None:
            connection = transport.to_cloud(self._address, self._login.ca_cert, self._login.validate,
                                            self.connect_timeout)
        else:
            context = transport.tls(self._ca_cert, self._client_cert, self._client_key, self._validate)
            connection = transport.https(self._address.host, self._address.port, context, self.connect_timeout)
        connection.connect()
        return connection

    def _unreachable(self, error: Exception, connected: bool) -> MagnetarError:
        """The ``Unreachable`` (or ``TimedOut``) that says what to do about *error*."""
        if isinstance(error, (socket.timeout, TimeoutError)) and connected:
            return TimedOut("%s did not answer in time. See `journalctl -u magnetar-agent` there." % self.endpoint)
        from . import transport
        advice = transport.advice(error, self._address.scheme, bool(self._client_cert))
        what = "API" if self._login else "agent"
        found = Unreachable("Cannot reach the %s at %s: %s" % (what, self.endpoint, advice))
        found.again = isinstance(error, (ConnectionRefusedError, ConnectionResetError, BrokenPipeError))
        if connected and self._address.scheme == "https":
            found.again = False  # a closed TLS connection is a refused certificate rather than a restart
        return found


def new_request_id() -> str:
    """``req-<uuid>``: the name of one request in answers, logs and results."""
    return "req-%s" % uuid.uuid4()


def _route(noun: str, key: Optional[str] = None) -> str:
    if key == "":  # its route would be that of the list
        raise InvalidField("name", "must not be empty: it says which %s is meant" % noun)
    return "/v1/%s" % noun if key is None else "/v1/%s/%s" % (noun, quote(str(key), safe=""))


def _query(query: Document) -> Document:
    return {name: ",".join(value) if isinstance(value, (list, tuple)) else value
            for name, value in query.items() if value is not None}


def _flat(query: Document) -> Document:
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}


def _permissions(on_immutable: Optional[str], merge: Sequence[str]) -> dict[str, str]:
    found = {"merge": ",".join(merge)} if merge else {}
    if on_immutable and on_immutable != "fail":
        found["on_immutable"] = on_immutable
    return found


def _resource(answer: Document, noun: str) -> Document:
    """The resource in a ``GET`` answer, which may be wrapped under its noun."""
    inner = answer.get(noun)
    return inner if isinstance(inner, dict) and len(answer) <= 2 else answer
