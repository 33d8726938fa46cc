# SPDX-License-Identifier: GPL-3.0-or-later
"""The check, for the metrics, whether a cell has room for the servers of any one host that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.scheduler.room_report import CLOUD, RoomReport, report_room

log = logging.getLogger(__name__)
#: Seconds between two checks.
POLL_INTERVAL = 600.0


def check_cell_room(conductor: Conductor, pause: Callable[[float], object] = lambda _seconds: None) -> list[RoomReport]:
    """Check for each host of the conductor's cell whether the other hosts would have room for its servers after a
    failure of this host. Pass the reports to the metrics, log a warning if the servers of some host would not fit, and
    return the reports. *pause*: a function that is called after each batch of hosts with the seconds that the check
    took; it may sleep, so that API requests are not slowed down."""
    reports = report_room(conductor.store, conductor.services.volume, conductor.settings, cell_id=conductor.cell.id,
                          pause=pause)
    conductor.room_checked(conductor.cell.name, reports)
    for report in reports:
        if report.scope.kind == CLOUD and not report.holds:
            log.warning("cell %s has no room for the servers of a failed host: %s", conductor.cell.name, report.reason,
                        extra={"cell": conductor.cell.name})
    return reports
