# SPDX-License-Identifier: GPL-3.0-or-later
"""Have the guest agent freeze the file systems of a guest while a copy of its disks begins (Nova's quiesce and
unquiesce): what the copy has is then complete, and not as after a power cut."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from magnetar_core.errors import Conflict
from magnetar_core.power import LIVE, RUNNING
from magnetar_core.server_plan import hardware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from magnetar_agent.documents import Document
    from magnetar_agent.host import LocalHost

#: The field of ``hardware`` of a server whose disks are copied frozen or not at all.
REQUIRED = "require_quiesce"


@contextmanager
def quiesced(host: LocalHost, server: Document | None) -> Iterator[bool]:
    """Freeze the file systems of the *server* for the block, which is told whether they are; who has no guest agent, or
    is paused, is not. Raises ``Conflict`` for a server that requires it, and whose guest lives."""
    if server is None:
        yield False
        return
    domain = host.hypervisor.domain(server.id)
    state = domain.state if domain else ""
    required = bool(hardware(server.want).get(REQUIRED))
    # One that an agent left frozen when it died is thawed by the first attempt.
    frozen = state == RUNNING and any(host.hypervisor.freeze(server.id) for _attempt in range(1 + required))
    if required and not frozen and state in LIVE:
        why = "its guest agent does not freeze them: install and start qemu-guest-agent in the guest" if (
            state == RUNNING) else f"it is {state}: let it run"
        raise Conflict(f"The file systems of server {server.name!r} must be frozen for a copy of its disks "
                       f"(hardware.{REQUIRED}, os_require_quiesce), and {why}; or stop the server. Then repeat the "
                       "call.", field=f"hardware.{REQUIRED}")
    try:
        yield frozen
    finally:
        if frozen:
            host.hypervisor.thaw(server.id)
