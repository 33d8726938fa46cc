# SPDX-License-Identifier: GPL-3.0-or-later
"""The proxy of consoles between browsers and the agents of the servers' hosts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import struct
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs

from sqlalchemy.exc import DBAPIError

from magnetar_control.agents import user_message
from magnetar_control.api.failures import fault_of_failure
from magnetar_control.compute.cloud import Cloud, HostView
from magnetar_control.compute.servers import consoles
from magnetar_control.compute.servers.consoles import SERIAL, SPICE, ConsoleGrant
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.web import Answer
from magnetar_control.web.websocket import ClientGone, WebSocket
from magnetar_core.errors import Forbidden, MagnetarError, TooManyRequests, Unavailable, Unreachable, error_from_dict
from magnetar_core.http.connections import counted_address
from magnetar_core.http.endpoint import CLOUD, CONSOLE_ERROR, parse_endpoint
from magnetar_core.http.first_of import run_until_first

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

log = logging.getLogger(__name__)
access = logging.getLogger("magnetar.access")
T = TypeVar("T")
#: Threads that look up tokens, and limits of tokens in look-up or connection: of all, and of one address.
THREADS, MOST_TOKENS, OF_ADDRESS = 4, 64, 16
#: Seconds to connect to an agent, seconds for a server to arrive after a live migration, and seconds between checks.
CONNECT, ARRIVES, POLL_INTERVAL = 10.0, 120.0, 0.5
#: Limit of the bytes of one message.
LONGEST = 1 << 20
#: WebSocket close codes: normal, policy violation, try again.
NORMAL, REFUSED, AGAIN = 1000, 1008, 1013
#: The first bytes of each channel of a SPICE client (SpiceLinkHeader, and the needed part of SpiceLinkMess): magic, two
#: numbers of the version, the size of the rest; the session, which is 0 for a new one, and the type of the channel.
LINK = struct.Struct("<4s12xIB")
MAGIC, MAIN = b"REDQ", 1
#: Seconds in which a client must send these bytes.
LINKS = 10.0
ENDED = "the console has ended"
MOVED = b"\r\n[magnetar: the server has moved, and goes on here]\r\n"
#: Seconds after which a refused client may try again.
LATER = {"Retry-After": "10"}


class ConsoleProxy:
    """A proxy that relays console connections between WebSocket clients and the agents of the servers' hosts. It counts
    the open consoles of this process."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="console")
        #: Number of consoles that are being opened, by address.
        self._asked: Counter[str] = Counter()
        #: Number of open consoles, by project.
        self._open: Counter[str] = Counter()

    def count(self) -> int:
        """Return the number of open consoles."""
        return self._open.total()

    def refusal(self, error: MagnetarError) -> Answer:
        """Return the HTTP answer that refuses a console. Its header ``CONSOLE_ERROR`` contains the message of *error*.
        The answer has no body, like that of Nova's console proxies, because console clients would read a body as a
        WebSocket frame."""
        one_line = " ".join(error.message.split())
        return Answer(None, error.status, {**error.details.get("headers", {}), CONSOLE_ERROR: one_line})

    async def serve(self, socket: WebSocket) -> None:
        """Serve the WebSocket of one console client: check its token, connect to the agent, and relay data until the
        client or the agent closes the connection."""
        request_id = f"req-{uuid.uuid4()}"
        try:
            async with self._begun(socket, request_id) as (grant, agent):
                await socket.accept("binary" if "binary" in socket.subprotocols else None)
                log_fields = {"request_id": request_id, "server": grant.server.id, "project": grant.token.project_id,
                              "user": grant.token.user_id, "address": socket.address}
                access.info("console %s opened", grant.kind, extra=log_fields)
                try:
                    await self._carry(socket, grant, agent)
                finally:
                    access.info("console %s closed", grant.kind, extra=log_fields)
        except MagnetarError as error:
            await socket.refuse(self.refusal(error))
        except DBAPIError as error:
            failure = fault_of_failure(error, request_id)
            await socket.refuse(self.refusal(Unavailable(
                failure.message if failure else "The database does not answer.", headers=LATER)))
        except ClientGone:
            pass

    @contextlib.asynccontextmanager
    async def _begun(self, socket: WebSocket, request_id: str) -> AsyncIterator[tuple[ConsoleGrant, ClientConnection]]:
        """Check the client's console token, and connect to the agent of the server's host. Then mark the token as used.
        Yield the grant (the console that the token allows) and the connection to the agent. Close this connection when
        the context ends. Raises ``MagnetarError`` before the WebSocket is accepted."""
        token = (parse_qs(socket.query).get("token") or [""])[-1]
        with contextlib.ExitStack() as stack:
            with self._asking(counted_address(socket.address)):
                grant = await self._ask(consoles.resolve_console_token, self.cloud, token)
                stack.enter_context(self._place(grant.token.project_id))
                agent = await self._connect(grant, grant.host, request_id)
                try:
                    await self._ask(consoles.use_console_token, grant)
                except BaseException:
                    await agent.close()
                    raise
            try:
                yield grant, agent
            finally:
                await agent.close()

    @contextlib.contextmanager
    def _asking(self, address: str) -> Iterator[None]:
        if self._asked[address] >= OF_ADDRESS:
            raise TooManyRequests(f"{OF_ADDRESS} consoles are being opened from {address}. Try again in a moment.",
                                  headers=LATER)
        if self._asked.total() >= MOST_TOKENS:
            raise Unavailable("Too many consoles are being opened. Try again in a moment.", headers=LATER)
        self._asked[address] += 1
        try:
            yield
        finally:
            self._asked[address] -= 1
            if self._asked[address] <= 0:
                del self._asked[address]

    @contextlib.contextmanager
    def _place(self, project: str) -> Iterator[None]:
        most = self.cloud.settings.console_connections
        share = self.cloud.settings.of_project(most)
        if self._open[project] >= share:
            raise TooManyRequests(f"A project may have {share} consoles open at once here, and this one has them. "
                                  "Close one.", headers=LATER)
        if self._open.total() >= most:
            raise Unavailable(f"All {most} consoles that may be open at once are. Try again later.", headers=LATER)
        self._open[project] += 1
        try:
            yield
        finally:
            self._open[project] -= 1
            if not self._open[project]:
                del self._open[project]

    async def _ask(self, function: Callable[..., T], *args: Any) -> T:
        """Run *function*, which queries the databases, in a thread, and return its result."""
        def asked() -> T:
            with statement_timeout(self.cloud.settings.cell_timeout):
                return function(*args)

        return await asyncio.get_running_loop().run_in_executor(self.threads, asked)

    # The agent

    async def _connect(self, grant: ConsoleGrant, host: HostView, request_id: str, query: str = "") -> ClientConnection:
        """Return an open WebSocket connection to the agent of *host*, for the console in *grant* (the server, its host
        and the console that the client's token allows). *query*: the query string of the URL. Raises ``MagnetarError``
        with a message for users."""
        from websockets.asyncio.client import connect, unix_connect
        from websockets.exceptions import InvalidStatus, WebSocketException

        endpoint, path = parse_endpoint(host.endpoint), f"/v1/server/{grant.server.id}/consoles/{grant.kind}{query}"
        how: dict[str, Any] = {
            "subprotocols": ["binary"], "compression": None, "max_size": LONGEST, "open_timeout": CONNECT,
            "close_timeout": 2.0, "user_agent_header": CLOUD, "additional_headers": {"X-Request-Id": request_id}}
        try:
            if endpoint.scheme == "unix":
                return await unix_connect(endpoint.path, f"ws://agent{path}", **how)
            context = await asyncio.get_running_loop().run_in_executor(self.threads, self.cloud.agents.shared_context)
            name = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
            return await connect(f"wss://{name}:{endpoint.port}{path}", ssl=context, proxy=None, **how)
        except InvalidStatus as error:
            raise _user_error(bytes(error.response.body)) from None
        except (OSError, TimeoutError, WebSocketException) as error:
            log.warning("console: %s does not answer: %s", host.endpoint, error, extra={"host": host.name})
            raise Unavailable(user_message(Unreachable())) from None

    async def _carry(self, socket: WebSocket, grant: ConsoleGrant, agent: ClientConnection) -> None:
        """Relay data between the client and the console until the client disconnects or the guest stops. After a live
        migration, a serial console is reconnected to the new host; the client of a VNC or SPICE console must load its
        page again, because the new QEMU process does not know the client's session."""
        if grant.token.type == SPICE:
            await self._carry_channel(socket, grant, agent)
            if grant.further:
                return
            reason = agent.close_reason or ENDED
        else:
            reason = await _relayed(socket, agent)
        code = NORMAL
        while (host := await self._followed(grant)) is not None:
            if grant.token.type != SERIAL:
                await self._ask(consoles.renew_console_token, self.cloud, grant, host)
                code, reason = AGAIN, "the server has moved: load the page again"
                break
            try:
                again = await self._connect(grant, host, f"req-{uuid.uuid4()}", "?scrollback=0")
            except MagnetarError as error:
                code, reason = AGAIN, error.message
                break
            async with again:
                await socket.send(MOVED)
                grant = grant._replace(host=host)
                reason = await _relayed(socket, again)
        await socket.close(code, reason)

    async def _carry_channel(self, socket: WebSocket, grant: ConsoleGrant, agent: ClientConnection) -> None:
        """Relay one channel of a SPICE session until it is closed. When the main channel ends, revoke the console
        token."""
        try:
            first = await _link(socket, main=not grant.further)
            if first is None:
                await socket.close(REFUSED, "this is not how SPICE begins the channel that the URL is good for")
                raise ClientGone
            reason = await _relayed(socket, agent, first)
            if grant.further:
                await socket.close(NORMAL, reason)
        finally:
            if not grant.further:
                await self._ask(consoles.revoke_console_token, grant)

    async def _followed(self, grant: ConsoleGrant) -> HostView | None:
        """Wait until the server's live migration ends, and return its new host. Return ``None`` if the server is still
        on the host in *grant* (the server, its host and the console that the client's token allows), if the migration
        takes longer than ``ARRIVES`` seconds, or if a database fails."""
        with contextlib.suppress(TimeoutError, DBAPIError):
            async with asyncio.timeout(ARRIVES):
                while True:
                    whereabouts = await self._ask(consoles.console_whereabouts, self.cloud, grant)
                    if not whereabouts.moving:
                        return whereabouts.host
                    await asyncio.sleep(POLL_INTERVAL)
        return None


async def _link(socket: WebSocket, *, main: bool) -> bytes | None:
    """Receive the first message of a SPICE client (SpiceLinkMess), and return the message if it opens the expected
    channel. Return ``None`` if it opens another channel or is invalid, or if no message arrives in ``LINKS`` seconds.
    *main*: whether the main channel of a new session is expected, or another channel of an existing session."""
    try:
        async with asyncio.timeout(LINKS):
            message = await socket.receive()
    except TimeoutError:
        return None
    if not isinstance(message, bytes) or len(message) < LINK.size:
        return None
    magic, session, channel = LINK.unpack_from(message)
    return message if magic == MAGIC and (session == 0) is (channel == MAIN) is main else None


async def _relayed(socket: WebSocket, agent: ClientConnection, first: bytes | None = None) -> str:
    """Relay messages in both directions until the agent closes its connection, and return the reason from the agent's
    WebSocket close frame. *first*: a message that was already received from the client, and is sent to the agent first.
    Raises ``ClientGone`` if the client disconnects."""
    from websockets.exceptions import ConnectionClosed

    async def shown() -> None:
        async for message in agent:
            if isinstance(message, bytes):
                await socket.send(message)

    async def typed() -> None:
        if first is not None:
            await agent.send(first)
        while True:
            message = await socket.receive()
            if message == "break" or isinstance(message, bytes):
                await agent.send(message)

    with contextlib.suppress(ConnectionClosed):
        await run_until_first(shown(), typed())
    return agent.close_reason or ENDED


def _user_error(body: bytes) -> MagnetarError:
    """Return the error for users that corresponds to *body*, the body of an agent's error answer. Its message reveals
    neither the name nor the problems of the host."""
    try:
        error = error_from_dict(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        error = Unreachable()
    log.warning("console: the agent refused it: %s", error.message)
    if error.status >= 500 or isinstance(error, Forbidden):
        return Unavailable(user_message(Unreachable()))
    user_error: MagnetarError = type(error)(user_message(error))
    return user_error
