# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries a console between a browser and the agent of the server's host."""

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

from magnetar_control.agents import plain
from magnetar_control.api.failures import fault_of_failure
from magnetar_control.compute.cloud import Cloud, HostView
from magnetar_control.compute.servers import consoles
from magnetar_control.compute.servers.consoles import SERIAL, SPICE, ConsoleGrant
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.web import Answer
from magnetar_control.web.websocket import ClientGone, WebSocket
from magnetar_core.errors import Forbidden, MagnetarError, TooManyRequests, Unavailable, Unreachable, from_dict
from magnetar_core.http.connections import whole
from magnetar_core.http.endpoint import CLOUD, CONSOLE_ERROR, parse
from magnetar_core.http.first_of import first_of

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

log = logging.getLogger(__name__)
access = logging.getLogger("magnetar.access")
T = TypeVar("T")
#: Threads that look tokens up, and how many may be looked up and connected at once: of all, and of one address.
THREADS, ASKED, OF_ADDRESS = 4, 64, 16
#: Seconds to connect to an agent, and in which a server arrives whose live migration has taken the guest away.
CONNECT, ARRIVES, LOOK = 10.0, 120.0, 0.5
#: Most bytes of one message.
LONGEST = 1 << 20
#: Codes of closing: as planned, not as agreed, try again.
NORMAL, REFUSED, AGAIN = 1000, 1008, 1013
#: How a SPICE client begins each channel (SpiceLinkHeader, and SpiceLinkMess as far as it is looked at): magic, two
#: numbers of the version, the size of what follows; the session, which is 0 for a new one, and the type of the channel.
LINK = struct.Struct("<4s12xIB")
MAGIC, MAIN = b"REDQ", 1
#: Seconds in which it does.
LINKS = 10.0
ENDED = "the console has ended"
MOVED = b"\r\n[magnetar: the server has moved, and goes on here]\r\n"
#: Who is refused may ask again after so many seconds.
LATER = {"Retry-After": "10"}


class ConsoleProxy:
    """The consoles that are open through this process."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="console")
        #: How many are being opened, by address.
        self._asked: Counter[str] = Counter()
        #: How many are open, by project.
        self._open: Counter[str] = Counter()

    def count(self) -> int:
        """How many consoles are open."""
        return self._open.total()

    def refusal(self, error: MagnetarError) -> Answer:
        """The answer to who gets no console. It has no body: clients of Nova's proxies, which end the connection, would
        read it as a frame."""
        one_line = " ".join(error.message.split())
        return Answer(None, error.status, {**error.details.get("headers", {}), CONSOLE_ERROR: one_line})

    async def serve(self, socket: WebSocket) -> None:
        """One console, to its end."""
        request_id = f"req-{uuid.uuid4()}"
        try:
            async with self._begun(socket, request_id) as (grant, agent):
                await socket.accept("binary" if "binary" in socket.subprotocols else None)
                told = {"request_id": request_id, "server": grant.server.id, "project": grant.token.project_id,
                        "user": grant.token.user_id, "address": socket.address}
                access.info("console %s opened", grant.kind, extra=told)
                try:
                    await self._carry(socket, grant, agent)
                finally:
                    access.info("console %s closed", grant.kind, extra=told)
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
        """What the token of the client is good for, and a connection to the agent. Only when there is one, the token is
        used up. Raises ``MagnetarError`` before the client is accepted."""
        token = (parse_qs(socket.query).get("token") or [""])[-1]
        with contextlib.ExitStack() as held:
            with self._asking(whole(socket.address)):
                grant = await self._ask(consoles.granted, self.cloud, token)
                held.enter_context(self._place(grant.token.project_id))
                agent = await self._connect(grant, grant.host, request_id)
                try:
                    await self._ask(consoles.use, grant)
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
        if self._asked.total() >= ASKED:
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
        """Call what asks the databases, in a thread."""
        def asked() -> T:
            with statement_timeout(self.cloud.settings.cell_timeout):
                return function(*args)

        return await asyncio.get_running_loop().run_in_executor(self.threads, asked)

    # The agent

    async def _connect(self, grant: ConsoleGrant, host: HostView, request_id: str, query: str = "") -> ClientConnection:
        """The console at the agent of *host*. Raises ``MagnetarError`` with words for users."""
        from websockets.asyncio.client import connect, unix_connect
        from websockets.exceptions import InvalidStatus, WebSocketException

        endpoint, path = parse(host.endpoint), f"/v1/server/{grant.server.id}/consoles/{grant.kind}{query}"
        how: dict[str, Any] = {
            "subprotocols": ["binary"], "compression": None, "max_size": LONGEST, "open_timeout": CONNECT,
            "close_timeout": 2.0, "user_agent_header": CLOUD, "additional_headers": {"X-Request-Id": request_id}}
        try:
            if endpoint.scheme == "unix":
                return await unix_connect(endpoint.path, f"ws://agent{path}", **how)
            context = await asyncio.get_running_loop().run_in_executor(self.threads, self.cloud.agents.context)
            name = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
            return await connect(f"wss://{name}:{endpoint.port}{path}", ssl=context, proxy=None, **how)
        except InvalidStatus as error:
            raise _said(bytes(error.response.body)) from None
        except (OSError, TimeoutError, WebSocketException) as error:
            log.warning("console: %s does not answer: %s", host.endpoint, error, extra={"host": host.name})
            raise Unavailable(plain(Unreachable())) from None

    async def _carry(self, socket: WebSocket, grant: ConsoleGrant, agent: ClientConnection) -> None:
        """Until the client goes, or the guest stops. A serial console follows a guest that moves while it runs; of VNC
        and SPICE the page can be loaded again, as the new QEMU knows nothing of the connection."""
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
                await self._ask(consoles.renew, self.cloud, grant, host)
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
        """One channel of SPICE, to its end, with which the token of a main channel ends."""
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
                await self._ask(consoles.finish, grant)

    async def _followed(self, grant: ConsoleGrant) -> HostView | None:
        """The host to which the guest has moved; ``None`` when it has not."""
        with contextlib.suppress(TimeoutError, DBAPIError):
            async with asyncio.timeout(ARRIVES):
                while True:
                    found = await self._ask(consoles.whereabouts, self.cloud, grant)
                    if not found.moving:
                        return found.host
                    await asyncio.sleep(LOOK)
        return None


async def _link(socket: WebSocket, *, main: bool) -> bytes | None:
    """The first message of a SPICE client; ``None`` when it does not begin the main channel of a new session, or, where
    the token is not for *main*, another channel of a session."""
    try:
        async with asyncio.timeout(LINKS):
            said = await socket.receive()
    except TimeoutError:
        return None
    if not isinstance(said, bytes) or len(said) < LINK.size:
        return None
    magic, session, channel = LINK.unpack_from(said)
    return said if magic == MAGIC and (session == 0) is (channel == MAIN) is main else None


async def _relayed(socket: WebSocket, agent: ClientConnection, first: bytes | None = None) -> str:
    """Carry messages both ways until the agent ends; returns why it did. Either side waits when the other is behind.
    *first*: what the client has said already. Raises ``ClientGone``."""
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
        await first_of(shown(), typed())
    return agent.close_reason or ENDED


def _said(body: bytes) -> MagnetarError:
    """What an agent answers, for users: they are not told which host it is, nor what is amiss there."""
    try:
        error = from_dict(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        error = Unreachable()
    log.warning("console: the agent refused it: %s", error.message)
    if error.status >= 500 or isinstance(error, Forbidden):
        return Unavailable(plain(Unreachable()))
    found: MagnetarError = type(error)(plain(error))
    return found
