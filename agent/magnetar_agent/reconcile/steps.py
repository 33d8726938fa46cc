# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of a change, and the cleanup after a failure or a cancel. A resource that could not be made leaves nothing
behind; after a cancel the resource is as it was before, or the next call continues the change."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from magnetar_agent.drivers import Driver
from magnetar_core.errors import Cancelled, HypervisorDown, MagnetarError, NoSpace
from magnetar_core.kinds import Server
from magnetar_core.operations import Operation, utc_timestamp
from magnetar_core.plan import Step
from magnetar_core.power import OFF, PAUSED, RUNNING

from .documents import REPLACEMENT, Document
from .task import NotRemovable, Task

log = logging.getLogger(__name__)

#: How often a step is repeated after its connection to libvirt was lost; seconds until libvirt must be back, and
#: between two checks for it.
REPEATS, RETURN_TIMEOUT, POLL_INTERVAL = 2, 60.0, 0.2
#: Permissions of the caller that are kept in ``document.state``, so that a change that a crash interrupted is finished
#: with the same permissions.
NOTES = ("allow_reboot", "rebuild")
#: Verbs that lose no data. After a cancel the agent plans the steps from their results back to the former fields.
TWO_WAY = frozenset({"stop", "pause", "resume", "destroy", "reserve"})
#: Verbs whose effect is lost when the host loses power.
PASSING = frozenset({"start", "start_paused", "pause", "resume"})
#: Verbs that undo their own work when they are cancelled.
TIDY = frozenset({"fetch", "plug"})


def is_undone_by_power_loss(former: Document | None, steps: Sequence[Step]) -> bool:
    """Return whether a loss of power would undo *steps*, because they only start, pause or resume a guest. Then the new
    document need not be flushed to disk: after a loss of power, the old document *former* describes the server
    correctly. False for a new server (``None``), and for a restore from saved memory, which removes that memory."""
    return former is not None and former.want.get("power") in (OFF, RUNNING, PAUSED) and PASSING.issuperset(
        step.verb for step in steps)


def perform_steps(driver: Driver, task: Task, steps: list[Step], begun: list[str]) -> None:
    """Perform *steps* in order, each with the driver's verb (function) of that name. Add the verbs that may have
    changed something to *begun*."""
    for step in steps:
        task.operation.advance(0, None, phase=step.text)
        log.debug("%s %s: %s", task.document.kind, task.document.id, step.text)
        begun.append(step.verb)
        try:
            _do(driver, task, step)
        except Cancelled:
            if step.verb in TIDY:
                begun.pop()
            raise


def _do(driver: Driver, task: Task, step: Step) -> None:
    """Perform one step with the driver's verb (function) of that name. If the connection to libvirt breaks during a
    step of a server, repeat the step when libvirt answers again."""
    for last in (*[False] * REPEATS, True):
        try:
            driver.verbs[step.verb](task, **step.args)
            return
        except HypervisorDown as error:
            if last or error.remote or not error.details.get("lost") or task.document.kind != Server.noun:
                raise
            log.warning("server %s: %r is done again when libvirt is back: %s", task.document.id, step.text, error)
            if not _is_back(task):
                raise


def _is_back(task: Task) -> bool:
    """Wait at most ``RETURN_TIMEOUT`` seconds until libvirt answers again. Return whether it does."""
    deadline = time.monotonic() + RETURN_TIMEOUT
    with task.operation.waiting():
        while not (back := task.host.hypervisor.connected()) and time.monotonic() < deadline:
            task.operation.raise_if_cancelled()
            time.sleep(POLL_INTERVAL)
    return back


def note_fault(task: Task, error: Exception) -> None:
    """Store *error* in the document as the reason why the change failed; API responses show it as ``fault``."""
    code = error.code if isinstance(error, MagnetarError) else "internal"
    message = str(error) if isinstance(error, MagnetarError) else "An internal error; see the agent's log."
    task.document.state["fault"] = {"code": code, "message": message[:1024], "created": utc_timestamp()}
    try:
        task.keep()
    except MagnetarError:
        log.exception("the fault of %s %s cannot be kept", task.document.kind, task.document.id)


def undo_creation(driver: Driver, task: Task) -> None:
    """Remove all parts of a resource whose creation failed, and its document.

    The document is first marked as deleting, so that after a crash the agent's next start removes remaining parts. With
    a full disk the mark cannot be written, but the removal is still possible.
    """
    host, document = task.host, task.document
    try:
        document.deleting = True
        with suppress(NoSpace):
            host.documents.write(document)
        have = driver.observe(host, document)
        # Its own operation: the caller's may be cancelled.
        undoing = Operation("undo", document.kind, document.id, task.operation.request_id, "agent")
        for step in driver.plan(None, have):
            driver.verbs[step.verb](Task(host, document, undoing), **step.args)
        host.documents.remove(document)
        driver.sweep(host)
    except NotRemovable as error:  # the next call, or the next start of the agent, finishes it
        log.warning("%s %s is not undone: %s", document.kind, document.id, error)
        document.deleting = False
        note_fault(task, error)
    except Exception:
        log.exception("%s %s could not be undone now; it will be at the next start", document.kind, document.id)


def cancelled_change(driver: Driver, former: Document, task: Task, begun: list[str]) -> Cancelled:
    """Return the ``Cancelled`` error for a cancelled change. *begun*: the names of the steps that may have changed
    something. If no data is lost yet, first restore the resource to its old document *former*; otherwise the next
    request for this resource continues the change. The error's message says which of these happens."""
    label = f"{former.kind} {former.name!r}"
    if set(begun) <= TWO_WAY:
        return _back(driver, former, task, begun, label)
    error = Cancelled(f"The operation was cancelled when there was no way back any more (begun: "
                      f"{', '.join(begun)}). It is carried on with the next call that changes {label}, or when the "
                      "agent starts again.")
    note_fault(task, error)
    return error


def _back(driver: Driver, former: Document, task: Task, begun: list[str], label: str) -> Cancelled:
    """Restore the resource to its old document *former* after a cancelled change. Return the ``Cancelled`` error, whose
    message says whether that succeeded. *begun*: the names of the steps that may have changed something. *label*: names
    the resource in the message. The old document is written before anything is restored, so that after a crash the
    agent does not continue the cancelled change."""
    back = former.copy()
    if begun:  # the verbs' notes so far are true
        note_names = (REPLACEMENT, "unfinished", "fault", *NOTES)
        former_notes = {name: former.state[name] for name in note_names if name in former.state}
        noted = {name: value for name, value in task.document.state.items() if name not in note_names}
        back.state = {**noted, **former_notes}
    # Notes that are not flushed yet are kept; the operation is a new one, as the caller's is cancelled.
    going = replace(task, document=back, operation=Operation("go back", back.kind, back.id, caller="agent"))
    try:
        if begun and not former.state.get("unfinished"):
            back.state["unfinished"] = True
            going.keep()
            perform_steps(driver, going, list(driver.plan(back.want, driver.observe(task.host, back))), [])
            del back.state["unfinished"]
        going.keep()
    except Exception as error:
        log.warning("%s is not as it was before a cancelled change", label, exc_info=True)
        note_fault(going, error)
        return Cancelled(f"The operation was cancelled, and {label} is not yet as it was before: {error} This is "
                         "tried again with the next call that changes it, or when the agent starts again.")
    if former.state.get("unfinished"):
        return Cancelled(f"The operation was cancelled. What was left to do of {label} before it still is: it is "
                         "carried on with the next call that changes it, or when the agent starts again.")
    if "stop" in begun:
        return Cancelled(f"The operation was cancelled; {label} is as it was before. Its guest was asked to shut "
                         "down, and may still do so.")
    return Cancelled()
