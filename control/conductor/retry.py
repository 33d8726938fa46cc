# SPDX-License-Identifier: GPL-3.0-or-later
"""Retries while a host's agent does not answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from magnetar_core.client import Client
from magnetar_core.errors import MagnetarError

from .work import HostDown, Work

#: Seconds between two tries while the host's agent does not answer, and how often.
AGAIN, TRIES = 2.0, 30
#: Seconds between tries of what is never given up, after these.
SELDOM = 20.0


def retry(work: Work) -> bool:
    """Put the action back into the queue for another try; ``False`` when it has had all of its tries."""
    if work.action.attempts < TRIES:
        work.put_back(AGAIN)
        return True
    return False


def retry_or_fail(work: Work, error: HostDown, **values: Any) -> None:
    """``retry``; after the last try the action has failed, with *values* for the server."""
    if not retry(work):
        work.failed(error, **values)


def retry_forever(work: Work) -> None:
    """Try until the host answers: its guest may have a volume or NIC that nobody else must get."""
    if not retry(work):
        work.put_back(SELDOM)


def ask_host(work: Work, ask: Callable[[Client], Mapping[str, Any]], fails: Callable[[Exception], None]) -> None:
    """Call *ask* with the host's agent, as the action's event; the server gets the values that it returns. *fails* is
    called with what the agent, or a service, refused."""
    try:
        with work.event(), work.client() as client:
            values = ask(client)
    except HostDown as error:
        retry_or_fail(work, error)
    except MagnetarError as error:
        fails(error)
    else:
        work.done(**values)
