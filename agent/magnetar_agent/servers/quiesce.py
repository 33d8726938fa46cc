# SPDX-License-Identifier: GPL-3.0-or-later
"""Quiesce and unquiesce as in Nova: the guest agent freezes the file systems of a guest while a copy of its disks
begins. The copy is then consistent, not as after a power cut.

A guest that stays frozen cannot write. So each frozen guest is noted first, in a file named by its uuid (``FOLDER``);
without fsync, since a guest does not survive a power loss of its host. Noted guests are thawed when agent or libvirt is
back.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from magnetar_agent.host.file_modes import make_state_folder
from magnetar_core.errors import Conflict, NoSpace
from magnetar_core.power import LIVE, RUNNING
from magnetar_core.server_plan import server_hardware

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

log = logging.getLogger(__name__)

#: The field of ``hardware`` of a server whose disks must not be copied unless they are frozen.
REQUIRED = "require_quiesce"
#: Folder of the state, and kind of the locks of guests that are frozen.
FOLDER = "frozen"


@contextmanager
def quiesced_guest(host: LocalHost, server: Document | None) -> Iterator[bool]:
    """Freeze the file systems of the *server* during the ``with`` block, and yield whether they are frozen. A guest
    that is paused or has no guest agent cannot be frozen; in this case ``Conflict`` is raised if the server's hardware
    has ``require_quiesce``. *server*: ``None`` to freeze nothing."""
    if server is None:
        yield False
        return
    domain = host.hypervisor.domain(server.id)
    state = domain.state if domain else ""
    required = bool(server_hardware(server.want).get(REQUIRED))
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
        make_state_folder(note.parent, 0o700)
        note.touch(0o600)
    except OSError as error:
        raise NoSpace(f"That a guest is to be frozen cannot be noted: {error.strerror}. Free some room under "
                      f"{host.settings.state_dir}.") from error
    # The first attempt thaws a guest that an agent left frozen when it died.
    frozen = any(host.hypervisor.freeze(id) for _attempt in range(attempts))
    if not frozen:
        note.unlink(missing_ok=True)
    return frozen


def _thaw(host: LocalHost, id: str) -> None:
    host.hypervisor.thaw(id)
    (_folder(host) / id).unlink(missing_ok=True)


def frozen_servers(host: LocalHost) -> list[str]:
    """Return the uuids of the servers whose guests are frozen, or may still be after a crash."""
    folder = _folder(host)
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def thaw_left(host: LocalHost) -> None:
    """Thaw guests that are still frozen because the agent was killed or libvirt did not answer. Called after the agent
    or libvirt starts."""
    for id in frozen_servers(host):
        with host.locks.hold(FOLDER, id):
            if (_folder(host) / id).exists():  # otherwise it was being copied just now
                log.warning("server %s may have been left frozen, and is thawed", id, extra={"server": id})
                _thaw(host, id)


def _folder(host: LocalHost) -> Path:
    return host.settings.state_dir / FOLDER
