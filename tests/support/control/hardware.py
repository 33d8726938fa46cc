# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of hardware."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from magnetar_core.errors import NotFound
from magnetar_core.http.client import Client
from tests.support.control.cloud import Caller, Cloud


def on_host(cloud: Cloud, id: str) -> dict[str, Any]:
    """Return the server's document at the agent of its host."""
    for name in cloud.hosts:
        with suppress(NotFound), Client(f"unix:{cloud.folder}/{name}/agent.sock") as client:
            return client.get("server", id)
    raise AssertionError(f"{id} is on no host")


def act(caller: Caller, id: str, action: str, args: Any, status: str) -> None:
    """Request an action, and wait until the server has the *status*."""
    assert caller.act(id, action, args).status in (202, 204)
    for _second in range(600):
        if (found := caller.settled(id)) and found["status"] == status:
            return
        time.sleep(0.1)
    raise AssertionError(f"{id} is not {status}")


LIVE = {"host": None, "block_migration": False, "disk_over_commit": False}
