# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``rescue`` and ``unrescue``: boot from another image, the root disk as second disk, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_core.client import Client
from magnetar_core.power import RUNNING, number

from . import delivery
from .retry import ask_host
from .work import Work


def rescue(work: Work) -> None:
    """Boot from another image, the root disk as second disk."""
    image = work.args.get("image")

    def ask(client: Client) -> dict[str, Any]:
        if image:
            delivery.image(work, client, work.server.host, image)
        return _boot(work, client, {"image": image} if image else {})

    ask_host(work, ask, work.error)


def unrescue(work: Work) -> None:
    """Boot from the root disk again."""
    ask_host(work, lambda client: _boot(work, client, None), work.error)


def _boot(work: Work, client: Client, rescue_: Mapping[str, Any] | None) -> dict[str, Any]:
    client.ensure("server", work.id, {"rescue": rescue_, "power": "running"},
                  timeout=work.conductor.settings.action_timeout)
    return {"power_state": number(RUNNING), "fault": None}
