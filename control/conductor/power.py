# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done to a server where it is: power, reboot, rescue, rebuild, crash dump. Most are a state to be had."""

from __future__ import annotations

from typing import Any

from magnetar_core.client import Client
from magnetar_core.power import ERROR, STOPPED, number

from .retry import ask_host
from .work import Work


def converge(work: Work) -> None:
    """The rows of ``ACTIONS`` that say what the agent's server is to be."""
    def ask(client: Client) -> dict[str, Any]:
        answer = client.ensure("server", work.id, dict(work.rule.want or {}),
                               timeout=work.conductor.settings.action_timeout)
        return {"power_state": number(answer["resource"]["power_state"]), "fault": None}

    ask_host(work, ask, work.failed)


def reboot(work: Work) -> None:
    """soft or hard; a server in error that comes up again is active."""
    def ask(client: Client) -> dict[str, Any]:
        if work.server.vm_state in (STOPPED, "suspended", "paused", ERROR):
            client.ensure("server", work.id, {"power": "running"})
        else:
            client.event("server", work.id, "reboot", {"type": work.args["type"]},
                         timeout=work.conductor.settings.action_timeout, request_id=work.once)
        return {"power_state": number(client.get("server", work.id)["power_state"]), "fault": None}

    ask_host(work, ask, work.failed)


def crash_dump(work: Work) -> None:
    """An NMI into the guest."""
    def ask(client: Client) -> dict[str, Any]:
        client.event("server", work.id, "crash_dump", {}, request_id=work.once)
        return {}

    ask_host(work, ask, work.failed)
