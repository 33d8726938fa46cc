# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of power actions: start, stop, pause, suspend, reboot, crash dump."""

from __future__ import annotations

from typing import Any

from magnetar_core.client import Client
from magnetar_core.power import ERROR, STOPPED, number

from .retry import ask_host
from .work import Work


def converge(work: Work) -> None:
    """Actions whose row in ``ACTIONS`` says what the agent's server shall be (``want``)."""
    def ask(client: Client) -> dict[str, Any]:
        answer = client.ensure("server", work.id, dict(work.rule.want or {}),
                               timeout=work.conductor.settings.action_timeout)
        return {"power_state": number(answer["resource"]["power_state"]), "fault": None}

    ask_host(work, ask, work.failed)


def reboot(work: Work) -> None:
    """soft or hard. A server in error is active again when it comes up."""
    def ask(client: Client) -> dict[str, Any]:
        if work.server.vm_state in (STOPPED, "suspended", "paused", ERROR):
            client.ensure("server", work.id, {"power": "running"})
        else:
            client.event("server", work.id, "reboot", {"type": work.args["type"]},
                         timeout=work.conductor.settings.action_timeout, request_id=work.idempotency_key)
        return {"power_state": number(client.get("server", work.id)["power_state"]), "fault": None}

    ask_host(work, ask, work.failed)


def crash_dump(work: Work) -> None:
    """Inject an NMI into the guest."""
    def ask(client: Client) -> dict[str, Any]:
        client.event("server", work.id, "crash_dump", {}, request_id=work.idempotency_key)
        return {}

    ask_host(work, ask, work.failed)
