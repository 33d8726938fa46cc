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
    """A simulated host with its events."""

    @property
    def host(self) -> LocalHost:
        """The ``LocalHost`` of the simulated host."""

    @property
    def feed(self) -> Feed:
        """The events of the simulated host."""


_CURRENT: ContextVar[ServedHost] = ContextVar("simulated_host")


@contextmanager
def use_host(host: ServedHost) -> Iterator[None]:
    """Make *host* the current host of this task or thread for the block."""
    token = _CURRENT.set(host)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class _CurrentLocalHost:
    """A stand-in for ``LocalHost``: its attributes are those of the current host's ``LocalHost``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_CURRENT.get().host, name)


class CurrentHost:
    """A stand-in for ``ManagedHost``: its attributes are those of the current host."""

    def __init__(self) -> None:
        self.host = _CurrentLocalHost()

    def __getattr__(self, name: str) -> Any:
        return getattr(_CURRENT.get(), name)


class CurrentFeed:
    """A stand-in for ``Feed``: it watches the current host."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close

    async def watch(self, request: Request) -> StreamingResponse:
        """Send server-sent events until the client disconnects or the agent stops; see ``Feed.watch``."""
        return await _CURRENT.get().feed.watch(request)
