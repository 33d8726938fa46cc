# SPDX-License-Identifier: GPL-3.0-or-later
"""How libvirt gets on with the monitor of a guest's QEMU, by virDomainGetControlInfo, which asks no QEMU.

Outside of jobs libvirt tells for how long a command is without an answer ("occupied"). Within a job (start, managed
save, migration, backup) it tells only that a command is (``VIR_DOMAIN_CONTROL_JOB``, with the age of the job). Between
its commands, while it waits for QEMU's events, the state is OK. So a job whose QEMU answers is seen without a command
at some look, however long it lasts, and one whose QEMU hangs never is. A start differs: QEMU answers nothing while it
prepares memory, for minutes where that is large. It uses the CPU then.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import libvirt  # type: ignore[import-untyped]

from magnetar_core.errors import MagnetarError

log = logging.getLogger(__name__)

#: The part of a CPU that a QEMU uses which starts, as against one that hangs.
BUSY = 0.02
#: libvirt writes the process ids of QEMUs here.
_RUN = Path("/run/libvirt/qemu")


class MonitorState(NamedTuple):
    """The *seconds* for which a command is without an answer; whether it is one of a job (*in_job*), of which libvirt
    does not tell the seconds; and the seconds of CPU that QEMU has used, ``None`` where they cannot be seen."""

    seconds: float = 0.0
    in_job: bool = False
    cpu: float | None = None


def monitor_state(conn: Any, guest: str) -> MonitorState:
    """Return the state of the monitor of a *guest*'s QEMU."""
    domain = conn.lookupByUUIDString(guest)
    state, _details, milliseconds = domain.controlInfo(0)
    if state == libvirt.VIR_DOMAIN_CONTROL_OCCUPIED:
        return MonitorState(milliseconds / 1000)
    if state == libvirt.VIR_DOMAIN_CONTROL_JOB:
        return MonitorState(in_job=True, cpu=cpu_seconds(_RUN / f"{domain.name()}.pid"))
    return MonitorState()


def cpu_seconds(pid_file: Path) -> float | None:
    """Return the seconds of CPU that all threads of a process have used."""
    try:
        words = Path(f"/proc/{int(pid_file.read_text())}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class MonitorCalls(Protocol):
    """What makes the calls to libvirt that look at monitors (``ConnectionPool``)."""

    def control(self, guest: str) -> Any:
        """Begin to look at the monitor of a *guest*'s QEMU (``monitor_state``), and return the call."""

    def unplace(self, call: Any) -> None:
        """Let others have the place of a call that hangs."""


class MonitorWatch:
    """Looks at the monitor of one guest's QEMU, with one look under way at a time. *pause*: seconds that a look may
    take. *starts*: whether QEMU is being started."""

    def __init__(self, calls: MonitorCalls, guest: str, pause: float, starts: bool = False) -> None:
        self._calls, self._guest, self._pause, self._starts = calls, guest, pause, starts
        self._call: Any = None
        #: When the first of the looks was that have all seen a command of a job, and what QEMU has used until the last.
        self._since: float | None = None
        self._last: tuple[float, float | None] = (0.0, None)

    def unanswered(self) -> float:
        """Return for how many seconds QEMU, or libvirt's own lock on the guest, has not answered; 0.0 when unknown."""
        call, self._call = self._call, None
        if call is None:
            try:
                call = self._calls.control(self._guest)
            except MagnetarError as error:
                log.debug("the monitor of the domain %s cannot be looked at: %s", self._guest, error)
                return 0.0
        if not call.wait(self._pause):
            self._call = call
            if time.monotonic() - call.began > self._pause * 2 and not call.place.hangs:
                self._calls.unplace(call)
            return time.monotonic() - float(call.began)
        try:
            return self._seconds(call.outcome())
        except (MagnetarError, libvirt.libvirtError):  # it does not run, or libvirt is away: the call says so
            return 0.0

    def _seconds(self, state: MonitorState) -> float:
        now = time.monotonic()
        if not state.in_job or (self._starts and self._works(now, state.cpu)):
            self._since = None
            return state.seconds
        if self._since is None:
            self._since = now
        return now - self._since

    def _works(self, now: float, cpu: float | None) -> bool:
        """Return whether a QEMU that starts has used the CPU since the last look. One that cannot be seen has."""
        (then, before), self._last = self._last, (now, cpu)
        return cpu is None or before is None or cpu - before >= BUSY * (now - then)
