# SPDX-License-Identifier: GPL-3.0-or-later
"""How flows try: what becomes of a refusal, and retries while a host's agent does not answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

from magnetar_control.store.actions import evacuations, stopped_actions
from magnetar_core.errors import Conflict, MagnetarError, NotFound
from magnetar_core.http.client import Client

from .work import HostDown, Work, full_is_down

log = logging.getLogger(__name__)
#: Asks a host's agent; returns values for the server.
Ask = Callable[[Work, Client], Mapping[str, Any]]
#: Seconds between two tries while the host's agent does not answer, and how often.
AGAIN, TRIES = 2.0, 30
#: Seconds between tries of what is never given up, after these.
SELDOM = 20.0


def last_try(work: Work) -> bool:
    """Whether the action has had all of its tries but this one."""
    return bool(work.action.attempts >= TRIES)


def _overtaken(work: Work) -> bool:
    """Whether the server is to be evacuated from the host that does not answer: then this action ends."""
    with work.database.read() as connection:
        return evacuations.waits(connection, work.id)


def retry(work: Work) -> bool:
    """Put the action back into the queue for another try; ``False`` when it has had all of its tries, or an evacuation
    or deletion of the server waits."""
    if last_try(work) or _overtaken(work) or _deleted(work):
        return False
    work.put_back(AGAIN)
    return True


def _deleted(work: Work) -> bool:
    """Whether a deletion of the server waits for this action, which may have been in hand when that was asked for: it
    frees what the server has, whether its host answers or not. A deletion itself is tried as others are."""
    if work.action.action in stopped_actions.GOING:
        return False
    with work.database.read() as connection:
        return stopped_actions.going(connection, work.id)


def retry_forever(work: Work, _error: HostDown | None = None, free: Callable[[Work], None] | None = None) -> None:
    """Try until the host answers: its guest may have a volume or NIC that nobody else must get, or it has begun what
    cannot be taken back. *free*: what is left to do when the server is evacuated or deleted, and nothing is tried any
    more."""
    if retry(work):
        return
    if (deleted := _deleted(work)) or _overtaken(work):
        if free is not None:
            free(work)
        work.failed(Conflict(f"The server is {'deleted' if deleted else 'evacuated from its host'}, and its host did "
                             "not answer before this was done."))
    else:
        work.put_back(SELDOM)


def attempt(work: Work, do: Callable[[], Mapping[str, Any] | None], fails: Callable[[MagnetarError], None],
            down: Callable[[HostDown], None] | None = None, event: str | None = None) -> None:
    """Call *do* as the action's event, or as the one named, which begins with the first of the action's further
    task_states where it has some; the server gets the values that it returns. *fails* is
    called with a refusal, *down* when a host has not answered at the last try, or a deletion waits; by default the
    action has failed then.
    """
    try:
        with work.event(event, noted={"task_state": work.rule.steps[0]} if work.rule.steps else None):
            values = do() or {}
    except HostDown as error:
        if not retry(work):
            (down or work.failed)(error)
    except MagnetarError as error:
        fails(error)
    else:
        work.done(**values)


def of_host(fails: Callable[[Work, MagnetarError], None],
            down: Callable[[Work, HostDown], None] = Work.failed) -> Callable[[Ask], Callable[[Work], None]]:
    """Makes a flow of a function that asks the host's agent. *fails*: ``Work.failed``, or ``Work.error``. *down*: as
    ``attempt`` has it."""
    def made(ask: Ask) -> Callable[[Work], None]:
        @wraps(ask)
        def flow(work: Work) -> None:
            def do() -> Mapping[str, Any]:
                with work.client() as client:
                    return ask(work, client)

            attempt(work, do, partial(fails, work), partial(down, work))
        return flow
    return made


def detachment_failed(work: Work, what: str, has: Callable[[Mapping[str, Any]], bool], error: MagnetarError,
                      keep: Callable[[Work], None] = lambda _work: None) -> None:
    """A detachment was refused. The server keeps its volume or NIC (*keep* notes it), and the action has failed; but
    where the host shows that the guest has it no longer (*has*, of the host's server), it has begun, and is tried until
    it is done."""
    try:
        with work.client() as client:
            kept = has(client.get("server", work.id))
    except HostDown:
        kept = False
    except MagnetarError:
        kept = True
    if kept:
        keep(work)
        work.failed(error)
    else:
        log.warning("server %s is without %s, whose detachment has failed; it is tried again: %s", work.id, what,
                    error.message)
        retry_forever(work, free=keep)


def take_back(work: Work, what: str, error: Exception, off: Callable[[], None], free: Callable[[], None]) -> None:
    """An attachment has failed: take the volume or NIC *off* the guest, and *free* it once the guest is without it.
    Where the guest does not release it, it stays the server's: it can be detached, and the audit frees a port when the
    host shows that the guest has no such NIC. A host that is down or full is waited for."""
    try:
        with full_is_down():
            off()
    except HostDown:
        retry_forever(work)
        return
    except NotFound:
        pass
    except MagnetarError as kept:
        log.warning("server %s may have %s, which it was not to get: %s", work.id, what, kept.message)
        work.failed(error)
        return
    free()
    work.failed(error)
