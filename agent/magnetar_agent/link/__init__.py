# SPDX-License-Identifier: GPL-3.0-or-later
"""Links: streams between two agents over the TLS port of each agent, so that a host needs no other open port.

The accepting agent makes an *offer*: a link's id, the peers (common names of their certificates) that may use it, and
named *endpoints*, each a unix socket of this host, or a function that gets a connected socket and the peer. The
connecting agent *forwards* a local unix socket to an endpoint, or *calls* one and gets a socket. Both agents show their
certificates; permission to use the agent's API is separate.

On the wire: TLS with the ALPN name ``magnetar-link/1``; the connecting side sends one line ``{"link", "door"}``, the
accepting side answers with one line, ``{}`` or ``{"error": {code, message}}``; then bytes pass unchanged in both
directions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.x509.oid import NameOID

from magnetar_agent.host.sockets import bind_unix_socket, pin_socket_path
from magnetar_core.daemon.report import REPORT
from magnetar_core.errors import Conflict, MagnetarError, NotFound, Unreachable, error_from_dict

from .relay import ALPN, TCP, AcceptedEnd, DialledEnd, LocalEnd, common_name

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from magnetar_agent.settings import AgentSettings

__all__ = ["ALPN", "TCP", "LinkAddress", "LinkEndpoint", "Links", "Offer"]

log = logging.getLogger(__name__)

#: Seconds to connect to the other agent, including TLS and its answer.
CONNECT = 10.0
LinkEndpoint = Path | Callable[[socket.socket, str], None]


@dataclass(frozen=True)
class Offer:
    """The permission to connect to this host over a link, a TLS connection between two agents. *id*: of the link.
    *peers*: the agents that may connect (common names of their certificates). *endpoints*: by name, each a unix
    socket of this host or a function that handles a connected socket."""

    id: str
    peers: frozenset[str]
    endpoints: Mapping[str, LinkEndpoint]


@dataclass(frozen=True)
class LinkAddress:
    """The address at which to connect to another agent for a link. *id*: of the link. *peer*: the common name of the
    agent's certificate."""

    id: str
    peer: str
    host: str
    port: int


@dataclass
class _Open:
    """The listening unix sockets of a link on this host, made by ``Links.forward``, and their paths."""

    servers: list[asyncio.AbstractServer] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)


class Links:
    """The links of an agent: TLS connections to other agents that forward byte streams, such as of libvirt and QEMU.
    All methods may be called from any thread."""

    def __init__(self, settings: AgentSettings) -> None:
        self.settings = settings
        self._offers: dict[str, Offer] = {}
        self._forwards: dict[str, _Open] = {}
        self._pipes: dict[str, set[LocalEnd]] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    # Our identity ------------------------------------------------------------------------------------------------
    def name(self) -> str | None:
        """Return the common name of this agent's certificate, by which other agents identify it; ``None`` if links are
        impossible because the settings lack TLS, or the certificate has no name."""
        if not (self.settings.listen and self.settings.tls_cert and self.settings.tls_client_ca):
            return None
        try:
            shown = x509.load_pem_x509_certificate(self.settings.tls_cert.read_bytes())
        except (OSError, ValueError) as error:
            log.warning("the certificate %s cannot be read: %s", self.settings.tls_cert, error)
            return None
        names = shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(names[-1].value) if names else None

    def required(self) -> str:
        """Return the common name of this agent's certificate, as ``name`` does. Raises ``Conflict``, with the settings
        to change, if links are impossible."""
        name = self.name()
        if name is None:
            raise Conflict("This agent has no TLS for links to other agents: set listen, tls_cert, tls_key and "
                           "tls_client_ca in /etc/magnetar/agent.yml (the role magnetar.compute.agent does), then "
                           "repeat the call.")
        return name

    # The accepting side ------------------------------------------------------------------------------------------
    def offer(self, offer: Offer, kept_endpoint: str = "") -> None:
        """Let the peers of *offer* connect from now on. *offer* replaces an earlier offer with the same id: connections
        of peers that *offer* does not name are closed, except connections to *kept_endpoint*."""
        with self._lock:
            self._offers[offer.id] = offer
        self._cut(offer.id, lambda end: end.accepted and end.peer not in offer.peers and end.endpoint != kept_endpoint)

    def offered(self, id: str) -> Offer | None:
        """Return the offer of the link *id*; ``None`` if there is none."""
        return self._offers.get(id)

    def withdraw(self, id: str, kept_endpoint: str = "") -> None:
        """Remove the offer of the link *id*, and close the link's connections, except connections to the endpoint
        *kept_endpoint*."""
        with self._lock:
            self._offers.pop(id, None)
        self._cut(id, lambda end: not kept_endpoint or end.endpoint != kept_endpoint)

    def accept(self, transport: asyncio.BaseTransport, admitted: Callable[[], None]) -> None:
        """Handle the TLS connection of a client that asked for a link in the ALPN extension. Must be called in the
        server's event loop. *admitted*: called when the client is connected to an endpoint."""
        end = AcceptedEnd(common_name(transport.get_extra_info("ssl_object")), self._admit, admitted)
        transport.set_protocol(end)
        end.connection_made(transport)

    def _admit(self, peer: str, id: str, endpoint: str) -> Coroutine[Any, Any, LocalEnd]:
        """Return a coroutine that connects to the *endpoint* of link *id*, and returns the local end. Raises
        ``NotFound`` unless the endpoint is offered to *peer* (common name of the certificate)."""
        with self._lock:
            offer = self._offers.get(id)
        if offer is None or not peer or peer not in offer.peers or endpoint not in offer.endpoints:
            if id:
                log.warning("refused the link %s, endpoint %s, to %s", id, endpoint, peer or "nobody")
            raise NotFound(f"There is no link {id} with the endpoint {endpoint} for {peer or 'nobody'} here.")
        return self._enter(offer, peer, endpoint)

    async def _enter(self, offer: Offer, peer: str, name: str) -> LocalEnd:
        loop, id, endpoint = asyncio.get_running_loop(), offer.id, offer.endpoints[name]
        end = self._local(id, loop, peer, name, accepted=True)
        try:
            if isinstance(endpoint, Path):
                with pin_socket_path(endpoint) as name_of_it:
                    await loop.create_unix_connection(lambda: end, name_of_it)
            else:
                ours, theirs = socket.socketpair()
                await loop.create_unix_connection(lambda: end, sock=ours)
                threading.Thread(target=_behind, args=(endpoint, theirs, peer), name=f"link {id[:8]}",
                                 daemon=True).start()
        except OSError as error:
            end.close()
            raise Unreachable(f"Nobody answers behind the endpoint {name}: {error.strerror or error}.") from None
        return end

    # The connecting side -----------------------------------------------------------------------------------------
    def forward(self, remote: LinkAddress, endpoint: str, path: Path, gid: int = -1) -> None:
        """Listen on the unix socket *path* (mode 0660, group *gid*), and forward each connection to the *endpoint*
        of the link *remote* on the other agent."""
        path.unlink(missing_ok=True)
        self._run(self._serve(remote, endpoint, path, bind_unix_socket(path, gid)))

    def call(self, remote: LinkAddress, endpoint: str) -> socket.socket:
        """Return a socket that is connected to the *endpoint* of the link *remote* on the other agent. Raises
        ``Unreachable``, or the error that the other agent answers."""
        ours, theirs = socket.socketpair()
        try:
            self._run(self._join(remote, endpoint, theirs))
        except BaseException:
            ours.close()
            raise
        return ours

    def connected(self, id: str, endpoint: str) -> bool:
        """Return whether there is a connection to the *endpoint* of the link *id*, opened by either agent."""
        with self._lock:
            return any(end.endpoint == endpoint for end in self._pipes.get(id, ()))

    def forwards(self, id: str) -> bool:
        """Return whether this host listens on a unix socket for the link *id* (``forward``)."""
        with self._lock:
            return id in self._forwards

    def greet(self, remote: LinkAddress) -> None:
        """Check that the agent of the link *remote* can be reached, and that both agents accept each other's
        certificate. Raises ``Conflict`` if a certificate is rejected, ``Unreachable`` if the agent does not answer."""
        try:
            self.call(replace(remote, id=""), "").close()
        except NotFound:  # it has answered: there is no link with an empty id
            return
        except Unreachable as error:
            if isinstance(error.__cause__, (ssl.SSLError, ConnectionResetError)):
                raise Conflict(str(error)) from error
            raise

    def close_forwards(self, id: str) -> None:
        """Close the listening sockets that ``forward`` made for the link *id*. Open connections stay."""
        with self._lock:
            opened = self._forwards.pop(id, None)
        if opened and self._loop:
            for server in opened.servers:
                self._loop.call_soon_threadsafe(server.close)
            for path in opened.paths:
                path.unlink(missing_ok=True)

    def cut(self, id: str) -> None:
        """Close all listening sockets and all connections of the link *id*."""
        self.close_forwards(id)
        self._cut(id)

    def close(self) -> None:
        """Close all links and stop the event loop."""
        for id in [*self._forwards, *self._pipes]:
            self.cut(id)
        loop, self._loop = self._loop, None
        if loop:
            loop.call_soon_threadsafe(loop.stop)

    async def _serve(self, remote: LinkAddress, endpoint: str, path: Path, sock: socket.socket) -> None:
        def arrived() -> LocalEnd:
            end = self._local(remote.id, asyncio.get_running_loop(), remote.peer, endpoint)
            task = asyncio.ensure_future(self._through(remote, endpoint, end))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            return end

        tasks: set[asyncio.Task[None]] = set()

        server = await asyncio.get_running_loop().create_unix_server(arrived, sock=sock)
        with self._lock:
            opened = self._forwards.setdefault(remote.id, _Open())
            opened.servers.append(server)
            opened.paths.append(path)

    async def _through(self, remote: LinkAddress, endpoint: str, end: LocalEnd) -> None:
        try:
            await self._dial(remote, endpoint, end)
        except MagnetarError as error:
            log.warning("the link %s to %s (%s) cannot be used: %s", remote.id, remote.peer, endpoint, error)
            end.close()

    async def _join(self, remote: LinkAddress, endpoint: str, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        end = self._local(remote.id, loop, remote.peer, endpoint)
        await loop.create_unix_connection(lambda: end, sock=sock)
        try:
            await self._dial(remote, endpoint, end)
        except BaseException:
            end.close()
            raise

    async def _dial(self, remote: LinkAddress, endpoint: str, end: LocalEnd) -> None:
        loop = asyncio.get_running_loop()
        far = DialledEnd(remote.peer, json.dumps({"link": remote.id, "door": endpoint}).encode() + b"\n", end)
        try:
            async with asyncio.timeout(CONNECT):
                await loop.create_connection(lambda: far, remote.host, remote.port, ssl=self._context())
                error = await far.answered
        except (OSError, ssl.SSLError, TimeoutError) as failure:
            far.close()
            why = getattr(failure, "strerror", None) or str(failure) or "no answer in time"
            # A TLS connection that is closed before an answer means a refused certificate rather than a restart.
            lasting = isinstance(failure, (ssl.SSLError, ConnectionResetError))
            raise Unreachable(f"The agent {remote.peer} at {remote.host}:{remote.port} cannot be reached over TLS: "
                              f"{why}. Check that it runs, that its port is open to this host, and that both have "
                              "certificates of one CA.", lasting=lasting) from failure
        if error:
            far.close()
            raise error_from_dict(error)

    def _context(self) -> ssl.SSLContext:
        self.required()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False  # the common name must be the peer's instead; see DialledEnd
        context.load_verify_locations(self.settings.tls_client_ca)
        context.load_cert_chain(self.settings.tls_cert, self.settings.tls_key)  # type: ignore[arg-type]
        context.set_alpn_protocols([ALPN])
        return context

    # Both sides --------------------------------------------------------------------------------------------------
    def _local(self, id: str, loop: asyncio.AbstractEventLoop, peer: str, endpoint: str,
               accepted: bool = False) -> LocalEnd:
        """Return the new local end of a relay; the relay's other end is a TLS connection to the agent *peer*. Register
        it under the link *id*, so that closing the link closes it. *endpoint*: the endpoint that the relay leads to.
        *accepted*: whether *peer* opened the TLS connection; the endpoint is then on this host, otherwise at *peer*.
        *loop*: the event loop of the connection."""
        end = LocalEnd(loop, lambda closed_end: self._gone(id, closed_end), peer, endpoint, accepted)
        with self._lock:
            self._pipes.setdefault(id, set()).add(end)
        return end

    def _gone(self, id: str, end: LocalEnd) -> None:
        with self._lock:
            pipes = self._pipes.get(id, set())
            pipes.discard(end)
            if not pipes:
                self._pipes.pop(id, None)

    def _cut(self, id: str, which: Callable[[LocalEnd], bool] = lambda _end: True) -> None:
        with self._lock:
            pipes = [end for end in self._pipes.get(id, ()) if which(end)]
        for end in pipes:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                end.loop.call_soon_threadsafe(end.abort)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                REPORT.add_loop(self._loop)
                threading.Thread(target=_forever, args=(self._loop,), name="links", daemon=True).start()
            loop = self._loop
        waiting = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            waiting.result(2 * CONNECT)
        except TimeoutError:  # the loop ends, or the machine is very busy
            waiting.cancel()
            raise Unreachable("The link could not be made in time. Repeat the call.") from None


def _forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.close()


def _behind(endpoint: Callable[[socket.socket, str], None], sock: socket.socket, peer: str) -> None:
    """Call the function *endpoint* with the connected socket *sock* and the name of the
    peer. Errors are logged. Close the socket afterwards."""
    with sock:
        try:
            endpoint(sock, peer)
        except (OSError, MagnetarError) as error:
            log.warning("a link ended early: %s", error)
        except Exception:
            log.exception("what is behind a link failed")
