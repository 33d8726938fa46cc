# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations of a simulated host, in threads that all hosts share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_core.operations import Operation, Operations

from .current import ServedHost, use_host

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

#: Ended operations that a host remembers.
MOST_ENDED = 50


class HostOperations(Operations):
    """The running operations of one simulated host. In their threads, proxies such as ``CurrentHost``, which all
    simulated hosts share, refer to this host."""

    host: ServedHost

    def __init__(self, parallel: int, threads: ThreadPoolExecutor) -> None:
        super().__init__(parallel, MOST_ENDED, threads)

    def begin(self, operation: Operation, function: Callable[[Operation], Any], stream: bool = False) -> Operation:
        """Start *operation* in a thread: call *function* with it while proxies such as ``CurrentHost`` refer to this
        host. Return the operation. *stream*: see ``Operations.begin``."""

        def run_for_host(running: Operation) -> Any:
            with use_host(self.host):
                return function(running)

        return super().begin(operation, run_for_host, stream)
