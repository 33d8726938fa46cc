# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of libvirt's connection to the monitor of a guest's QEMU, from virDomainGetControlInfo, which asks no QEMU.

Outside of jobs libvirt reports for how long a command is unanswered ("occupied"). Within a job (start, managed save,
migration, backup) it reports only that a command is unanswered (``VIR_DOMAIN_CONTROL_JOB``, with the age of the job).
Between its commands, while libvirt waits for QEMU's events, the state is OK. So a QEMU that answers is sometimes seen
without an unanswered command, however long the job takes; a QEMU that hangs never is.

A start differs: QEMU answers nothing while it prepares the guest's memory, for minutes if that is large, but it uses
the CPU meanwhile.
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

#: The least share of a CPU that a starting QEMU uses; a QEMU that hangs uses less.
BUSY = 0.02
#: The folder of libvirt's files with the process ids of QEMUs.
_RUN = Path("/run/libvirt/qemu")


class MonitorState(NamedTuple):
    """The state of a QEMU's monitor. *seconds*: how long a command has been without a response. *in_job*: the command
    belongs to a libvirt job such as a migration, for which libvirt does not report the seconds. *cpu*: CPU seconds used
    by QEMU; ``None`` if unknown."""

    seconds: float = 0.0
    in_job: bool = False
    cpu: float | None = None


def monitor_state(conn: Any, guest: str) -> MonitorState:
    """Return the state of the QEMU monitor of *guest* (a uuid). *conn*: the ``virConnect``."""
    domain = conn.lookupByUUIDString(guest)
    state, _details, milliseconds = domain.controlInfo(0)
    if state == libvirt.VIR_DOMAIN_CONTROL_OCCUPIED:
        return MonitorState(milliseconds / 1000)
    if state == libvirt.VIR_DOMAIN_CONTROL_JOB:
        return MonitorState(in_job=True, cpu=cpu_seconds(_RUN / f"{domain.name()}.pid"))
    return MonitorState()


def cpu_seconds(pid_file: Path) -> float | None:
    """Return the CPU seconds used by all threads of the process whose pid is in *pid_file*; ``None`` if it cannot be
    read."""
    try:
        words = Path(f"/proc/{int(pid_file.read_text())}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class MonitorCalls(Protocol):
    """The libvirt calls that a ``MonitorWatch`` needs. Implemented by ``ConnectionPool``."""

    def control(self, guest: str) -> Any:
        """Start to read the monitor state of the *guest*'s QEMU (``monitor_state``), and return the call without
        waiting for its result."""

    def unplace(self, call: Any) -> None:
        """Release the slot of *call*, which hangs, so that other calls can use it."""


class MonitorWatch:
    """A watcher that detects whether the QEMU of *guest* hangs, by reading its monitor state. *calls*: object that
    makes the libvirt calls. *pause*: seconds to wait for a read. *starts*: whether QEMU is being started."""

    def __init__(self, calls: MonitorCalls, guest: str, pause: float, starts: bool = False) -> None:
        self._calls, self._guest, self._pause, self._starts = calls, guest, pause, starts
        self._call: Any = None
        #: The time of the first of the consecutive reads that saw a command of a job, and the CPU used at the last
        #: read.
        self._since: float | None = None
        self._last: tuple[float, float | None] = (0.0, None)

    def unanswered(self) -> float:
        """Return for how many seconds QEMU has not responded to libvirt, or a read of its state has not returned; 0.0
        if unknown."""
        call, self._call = self._call, None
        if call is None:
            try:
                call = self._calls.control(self._guest)
            except MagnetarError as error:
                log.debug("the monitor of the domain %s cannot be looked at: %s", self._guest, error)
                return 0.0
        if not call.wait(self._pause):
            self._call = call
            if time.monotonic() - call.began > self._pause * 2 and not call.slot.hangs:
                self._calls.unplace(call)
            return time.monotonic() - float(call.began)
        try:
            return self._seconds(call.outcome())
        except (MagnetarError, libvirt.libvirtError):  # it does not run, or libvirt is away: the call reports it
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
        """Return whether a starting QEMU has used the CPU since the last read; if it has, it does not hang. ``True`` if
        unknown. *now*: the monotonic time. *cpu*: QEMU's CPU seconds; ``None`` if unknown."""
        (then, cpu_before), self._last = self._last, (now, cpu)
        return cpu is None or cpu_before is None or cpu - cpu_before >= BUSY * (now - then)
