# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of power actions: start, stop, pause, suspend, reboot, crash dump."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from magnetar_control.conductor.steps import nics, tpm_secrets
from magnetar_control.conductor.worker.retry import of_host
from magnetar_control.conductor.worker.work import Work
from magnetar_core.errors import Conflict, NotFound
from magnetar_core.http.client import Client
from magnetar_core.power import LIVE, SUSPENDED, number


def stop_guest(work: Work, host: str) -> None:
    """Stop the guest, if the server is on that host. While it moves it is off already."""
    work.confirm_lease()
    with work.client(host) as client:
        try:
            found = client.get("server", work.id)
        except NotFound:
            return
        if found["power_state"] in (*LIVE, SUSPENDED):
            work.confirm_lease()
            with work.guest(client) as watch:
                client.ensure("server", work.id, {"power": "off"}, progress=watch)


def _secret(work: Work) -> dict[str, str]:
    """What the guest's TPM is opened with, where the action starts the guest."""
    return tpm_secrets.given(work) if work.rule.starts else {}


@of_host(Work.failed)
def converge(work: Work, client: Client) -> dict[str, Any]:
    """Actions whose row in ``ACTIONS`` says what the agent's server shall be (``want``)."""
    work.begin()
    with work.guest(client) as watch:
        answer = client.ensure("server", work.id, {**(work.rule.want or {}), **_secret(work)}, progress=watch)
    nics.follow(work, answer["resource"])
    return {"power_state": number(answer["resource"]["power_state"]), "fault": None}


@of_host(Work.failed)
def reboot(work: Work, client: Client) -> dict[str, Any]:
    """soft or hard. A server in error is active again when it comes up. A guest that is asked softly is not waited for
    any longer when something else comes over it."""
    work.begin()
    work.note(task_state=work.rule.steps[-1])

    def watch(operation: Mapping[str, Any]) -> None:
        if work.cancelled.is_set():
            with contextlib.suppress(Conflict, NotFound):  # it has ended meanwhile
                client.cancel(operation["id"])

    client.event("server", work.id, "reboot", {"type": work.args["type"], **_secret(work)},
                 request_id=work.idempotency_key, progress=watch if work.args["type"] == "soft" else None)
    seen = client.get("server", work.id)
    nics.follow(work, seen)
    return {"power_state": number(seen["power_state"]), "fault": None}


@of_host(Work.failed)
def crash_dump(work: Work, client: Client) -> dict[str, Any]:
    """Inject an NMI into the guest."""
    client.event("server", work.id, "crash_dump", {}, request_id=work.idempotency_key)
    return {}
