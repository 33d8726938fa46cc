# SPDX-License-Identifier: GPL-3.0-or-later
"""Have the guest agent freeze the file systems of a guest while a copy of its disks begins (Nova's quiesce and
unquiesce): what the copy has is then complete, and not as after a power cut.

A guest that stays frozen can write no more. So which one is frozen is noted first, in a file of its uuid (``FOLDER``),
without fsync, for a guest does not outlive its host's power; what is noted is thawed when agent or libvirt is back.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from magnetar_agent.host.file_modes import make_folder
from magnetar_core.errors import Conflict, NoSpace
from magnetar_core.power import LIVE, RUNNING
from magnetar_core.server_plan import hardware

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

log = logging.getLogger(__name__)

#: The field of ``hardware`` of a server whose disks are copied frozen or not at all.
REQUIRED = "require_quiesce"
#: Folder of the state, and kind of the locks of guests that are frozen.
FOLDER = "frozen"


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
    with host.locks.hold(FOLDER, server.id):
        frozen = state == RUNNING and _freeze(host, server.id, 1 + required)
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
                _thaw(host, server.id)


def _freeze(host: LocalHost, id: str, attempts: int) -> bool:
    note = _folder(host) / id
    try:
        make_folder(note.parent, 0o700)
        note.touch(0o600)
    except OSError as error:
        raise NoSpace(f"That a guest is to be frozen cannot be noted: {error.strerror}. Free some room under "
                      f"{host.settings.state_dir}.") from error
    # One that an agent left frozen when it died is thawed by the first attempt.
    frozen = any(host.hypervisor.freeze(id) for _attempt in range(attempts))
    if not frozen:
        note.unlink(missing_ok=True)
    return frozen


def _thaw(host: LocalHost, id: str) -> None:
    host.hypervisor.thaw(id)
    (_folder(host) / id).unlink(missing_ok=True)


def left(host: LocalHost) -> list[str]:
    """Servers (uuids) that are noted as frozen."""
    found = _folder(host)
    return sorted(one.name for one in found.iterdir()) if found.is_dir() else []


def thaw_left(host: LocalHost) -> None:
    """After a start of agent or libvirt: thaw what a killed agent, or one that libvirt did not answer, left frozen."""
    for id in left(host):
        with host.locks.hold(FOLDER, id):
            if (_folder(host) / id).exists():  # else it was being copied just now
                log.warning("server %s may have been left frozen, and is thawed", id, extra={"server": id})
                _thaw(host, id)


def _folder(host: LocalHost) -> Path:
    return host.settings.state_dir / FOLDER
