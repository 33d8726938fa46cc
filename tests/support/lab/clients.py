# SPDX-License-Identifier: GPL-3.0-or-later
"""The stories that OpenStack's own clients play with real guests."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.clients import Clients, play, story
from tests.support.lab.sdk import Story

__all__ = ["Clients", "both", "steps"]
#: Minimum number of commands, and of kinds of calls, in a story.
ASKED = 50
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ7oqVvb3n1vCw1s6p1mYQ0m2Hk1mQm1QyW0c0bX0a1b me@lab\n"


def steps(where: str) -> list[dict[str, Any]]:
    """Return the steps of tests/cases/clients/openstack.yml that apply in a cloud of this kind, ``embedded`` or
    ``spread``."""
    return [step for step in story("openstack") if step.get("where", where) == where]


def both(clients: Clients, disk: Path, commands: dict[str, str], calls: dict[str, str | None]) -> None:
    """Play the story of commands and the story of the SDK in parallel. *commands*: hosts by placeholder; *calls*: hosts
    as arguments of ``sdk.Story``. Without ``other`` in *calls* the cloud is embedded."""
    key = clients.folder / "me.pub"
    key.write_text(PUBLIC_KEY)
    told = steps("spread" if calls.get("other") else "embedded")
    calling = Story(clients.sdk, disk, **calls)
    with ThreadPoolExecutor(2) as threads:
        began = time.monotonic()
        playing = threads.submit(play, clients, told, disk=disk, key=key, **commands)
        calling.play()
        print(f"{len(calling.calls)} calls of the SDK in {time.monotonic() - began:.0f} s")
        wrong = playing.result()
        print(f"{len(told)} commands in {time.monotonic() - began:.0f} s")
    assert not wrong, "\n\n".join(wrong)
    assert len(told) >= ASKED
    assert len(set(calling.calls)) >= ASKED
