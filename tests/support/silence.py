# SPDX-License-Identifier: GPL-3.0-or-later
"""Agents that accept connections and do not answer."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.control.cloud import Cloud

from .waiting import eventually

#: The first host of a ``Cloud``.
HOST = "kvm1"


@contextmanager
def hanging(cloud: Cloud, host: str = HOST) -> Iterator[None]:
    """Stop the agent of *host* (SIGSTOP) within the context."""
    agent = cloud.agents[host]
    agent.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        agent.send_signal(signal.SIGCONT)


@contextmanager
def silent(cloud: Cloud, host: str = HOST) -> Iterator[None]:
    """Stop the agent of *host* within the context, which begins when the host is down."""
    with hanging(cloud, host):
        eventually(lambda: not cloud.parts.working.is_up(host))
        yield
