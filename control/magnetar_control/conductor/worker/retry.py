# SPDX-License-Identifier: GPL-3.0-or-later
"""Attempts of flows: the outcome of a refusal, and retries while a host's agent does not answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

from magnetar_control.store.actions import actions, stopped_actions
from magnetar_core.errors import Conflict, MagnetarError, NotFound
from magnetar_core.http.client import Client

from .work import HostDown, RunningAction, full_is_down

log = logging.getLogger(__name__)
#: A function that asks a host's agent, and returns values for the server.
Ask = Callable[[RunningAction, Client], Mapping[str, Any]]
#: Seconds between two attempts while the host's agent does not answer, and the number of attempts.
AGAIN, TRIES = 2.0, 30
#: Seconds between later attempts of actions that are never given up.
SELDOM = 20.0


def last_try(work: RunningAction) -> bool:
    """Return whether this is the action's last attempt."""
    return bool(work.action.attempts >= TRIES)


def _overtaken(work: RunningAction) -> bool:
    """Return whether an evacuation of the server is queued, because the server's host is down. The action must then
    end."""
    with work.database.read() as connection:
        return actions.evacuation_is_queued(connection, work.id)


def retry_later(work: RunningAction) -> bool:
    """Put the action back into the queue for another attempt. Return ``False`` without a change after the last attempt,
    or if an evacuation or deletion of the server is queued."""
    if last_try(work) or _overtaken(work) or _deleted(work):
        return False
    work.put_back(AGAIN)
    return True


def _deleted(work: RunningAction) -> bool:
    """Return whether a deletion of the server waits for this action to end; if so, the action need not be repeated,
    because the deletion releases all resources of the server, even if the host does not answer. Return ``False`` if
    this action is itself a deletion."""
    if work.action.action in stopped_actions.GOING:
        return False
    with work.database.read() as connection:
        return stopped_actions.deletion_is_pending(connection, work.id)


def retry_forever(work: RunningAction, _error: HostDown | None = None,
                  free: Callable[[RunningAction], None] | None = None) -> None:
    """Put the action back into the queue, without a limit of attempts. Use this when the action must not end halfway:
    the guest may still use a volume or NIC that no other server may get, or a step cannot be undone. If a deletion or
    evacuation of the server is queued, end the action as failed instead, after calling *free* with *work*, for example
    to release a volume."""
    if retry_later(work):
        return
    if (deleted := _deleted(work)) or _overtaken(work):
        if free is not None:
            free(work)
        work.failed(Conflict(f"The server is {'deleted' if deleted else 'evacuated from its host'}, and its host did "
                             "not answer before this was done."))
    else:
        work.put_back(SELDOM)


def attempt_action(work: RunningAction, do: Callable[[], Mapping[str, Any] | None],
                   fails: Callable[[MagnetarError], None],
                   down: Callable[[HostDown], None] | None = None, event: str | None = None) -> None:
    """Run the function *do* as an event of the action, and then end the action. *do* returns the columns to set in the
    server's row. *event*: the name of the event; by default the event that ``ACTIONS`` names for the action.

    When the event begins, the server gets the first task_state in the action's ``steps`` (see ``ACTIONS``), if there is
    one. If *do* raises ``HostDown``, put the action back into the queue; call *down* with the error (default:
    ``RunningAction.failed``) after the last attempt, or if a deletion or evacuation is queued. Call *fails* with any
    other ``MagnetarError``.
    """
    try:
        with work.event(event, noted={"task_state": work.rule.steps[0]} if work.rule.steps else None):
            values = do() or {}
    except HostDown as error:
        if not retry_later(work):
            (down or work.failed)(error)
    except MagnetarError as error:
        fails(error)
    else:
        work.done(**values)


def flow_on_host(fails: Callable[[RunningAction, MagnetarError], None],
                 down: Callable[[RunningAction, HostDown],
                                None] = RunningAction.failed) -> Callable[[Ask], Callable[[RunningAction], None]]:
    """Return a decorator for a function ``ask(work, client)`` that makes one request to the agent of the server's host.
    The decorated function executes a whole action: it calls ``ask`` and ends the action, or puts the action back into
    the queue for another attempt if the host is down. *fails*: called if the agent refuses the request, for example
    ``RunningAction.failed`` or ``RunningAction.error``. *down*: called with the ``HostDown`` error if the last attempt
    fails too, or if a deletion or evacuation is queued."""
    def made(ask: Ask) -> Callable[[RunningAction], None]:
        @wraps(ask)
        def flow(work: RunningAction) -> None:
            def do() -> Mapping[str, Any]:
                with work.client() as client:
                    return ask(work, client)

            attempt_action(work, do, partial(fails, work), partial(down, work))
        return flow
    return made


def detachment_failed(work: RunningAction, description: str, has_device: Callable[[Mapping[str, Any]], bool],
                      error: MagnetarError,
                      keep: Callable[[RunningAction], None] = lambda _work: None) -> None:
    """Handle the *error* of a refused detachment of a volume or NIC. If the guest still has the device, call *keep*,
    which saves that the device stays attached, and end the action as failed. If the guest no longer has the device, or
    the host does not answer, repeat the action until the detachment is done.

    *description*: the name of the device for the log. *has_device*: takes the server as its agent reports it, and
    returns whether the server has the device.
    """
    try:
        with work.client() as client:
            still_attached = has_device(client.get("server", work.id))
    except HostDown:
        still_attached = False
    except MagnetarError:
        still_attached = True
    if still_attached:
        keep(work)
        work.failed(error)
    else:
        log.warning("server %s is without %s, whose detachment has failed; it is tried again: %s", work.id, description,
                    error.message)
        retry_forever(work, free=keep)


def take_back_attachment(work: RunningAction, description: str, error: Exception, off: Callable[[], None],
                         free: Callable[[], None]) -> None:
    """Undo a failed attachment of a volume or NIC, and end the action as failed with *error*. First call *off*, which
    detaches the device from the guest, then *free*, which releases the volume or port. *description*: the name of the
    device for the log.

    If the guest does not release the device, the server keeps it, and users can detach it later. If the host is down or
    its disk is full, put the action back into the queue, so that the detachment is repeated.
    """
    try:
        with full_is_down():
            off()
    except HostDown:
        retry_forever(work)
        return
    except NotFound:
        pass
    except MagnetarError as refused:
        log.warning("server %s may have %s, which it was not to get: %s", work.id, description, refused.message)
        work.failed(error)
        return
    free()
    work.failed(error)
