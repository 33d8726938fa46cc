# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated host that the current request or operation is for, and objects that stand for it.

One application serves all hosts. It gets ``CurrentHost`` in place of an agent, and each request sets its host first.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import Request
from fastapi.responses import StreamingResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from magnetar_agent.api.watch import Feed
    from magnetar_agent.host.host import LocalHost


class ServedHost(Protocol):
    """The attributes of a simulated host that requests and operations use."""

    @property
    def host(self) -> LocalHost:
        """The ``LocalHost`` object of the simulated host."""

    @property
    def feed(self) -> Feed:
        """The stream of server-sent events of the simulated host."""


_CURRENT: ContextVar[ServedHost] = ContextVar("simulated_host")


@contextmanager
def use_host(host: ServedHost) -> Iterator[None]:
    """Make *host* the current host during the ``with`` block: proxies such as ``CurrentHost``, which all simulated
    hosts share, refer to it in this asyncio task or thread."""
    token = _CURRENT.set(host)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class _CurrentLocalHost:
    """A proxy for ``LocalHost``: reads each attribute from the ``LocalHost`` of the simulated host that the current
    request or operation is for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_CURRENT.get().host, name)


class CurrentHost:
    """A proxy for ``ManagedHost`` (the object that handles an agent's API requests): reads each attribute from the
    simulated host that the current request or operation is for."""

    def __init__(self) -> None:
        self.host = _CurrentLocalHost()

    def __getattr__(self, name: str) -> Any:
        return getattr(_CURRENT.get(), name)


class CurrentFeed:
    """A proxy for ``Feed`` that forwards ``watch`` to the feed (event stream) of the simulated host that the current
    request is for."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close

    async def watch(self, request: Request) -> StreamingResponse:
        """Return the server-sent events of the simulated host that *request* is for, as an HTTP response that ends when
        the client disconnects or the agent stops; see ``Feed.watch``."""
        return await _CURRENT.get().feed.watch(request)
