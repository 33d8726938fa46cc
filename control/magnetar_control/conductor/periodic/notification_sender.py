# SPDX-License-Identifier: GPL-3.0-or-later
"""The sending of notifications. Each receiver has its own thread in each conductor, so that a slow or silent one delays
no other.

One conductor at a time sends a database's notifications to a receiver, in the order of their writing, and stops at the
first failure. After a crash some are sent again."""

from __future__ import annotations

import contextlib
import logging
import time

from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.notifications.receivers import NotSent, Receiver, Refused
from magnetar_control.store.actions import event_rows, outbox
from magnetar_control.store.actions.outbox import Outbox
from magnetar_control.store.engine.database import Database, utc_now

log = logging.getLogger(__name__)
#: Seconds between two checks for notifications; seconds after which a batch ends.
POLL_INTERVAL, BATCH_TIME = 1.0, 15.0
#: Most notifications in a batch.
BATCH = 100


class NotificationSender:
    """The thread function that sends the notifications waiting in a conductor's databases to *receiver*, a URL or the
    log file that the settings name."""

    def __init__(self, conductor: Conductor, receiver: Receiver) -> None:
        self.conductor, self.receiver = conductor, receiver
        self.places = conductor_outboxes(conductor)
        self._failing = False
        self.__name__ = f"notify {receiver.name}"  # of the thread

    def __call__(self) -> None:
        """Send notifications until the conductor ends."""
        while not self.conductor.over.wait(POLL_INTERVAL):
            for database, box in self.places:
                try:
                    while self.send(database, box) and not self.conductor.over.is_set():
                        pass
                except DBAPIError as error:
                    log.warning("database %s: %s", database.name, error.orig)
                except Exception:
                    log.exception("notifications for %s: they are sent later", self.receiver.name)

    def send(self, database: Database, box: Outbox) -> bool:
        """Send a batch of the notifications that wait in the tables *box* of *database*. Return whether more
        notifications may be waiting."""
        name, holder = self.receiver.name, self.conductor.holder
        with database.read() as connection:
            if not outbox.has_due_notifications(database, connection, box, name, holder):
                return False
        if not outbox.lease_receiver(database, box, name, holder):
            return False
        with database.read() as connection:
            notifications = outbox.fetch_notification_rows(connection, box, name, BATCH)
        sent: list[int] = []
        problem: str | None = None
        until = time.monotonic() + BATCH_TIME
        try:
            for row in notifications:
                if time.monotonic() > until or self.conductor.over.is_set():
                    break
                with contextlib.suppress(Refused):
                    self._give(row)
                sent.append(row.id)
        except NotSent as error:
            problem = str(error)
        finally:
            outbox.complete_notification_batch(database, box, name, holder, sent, problem)
        self._tell(problem)
        return problem is None and len(notifications) == BATCH

    def _give(self, row: outbox.Found) -> None:
        try:
            self.receiver.send(row.message)
        except Refused as error:
            log.error("notification %s is dropped: %s, %s", row.event_type, self.receiver.name, error)  # noqa: TRY400
            raise

    def _tell(self, problem: str | None) -> None:
        """Log when the receiver begins to fail and when it works again. *problem*: why the last batch failed; ``None``
        if it succeeded."""
        if problem and not self._failing:
            log.warning("notifications for %s wait: %s", self.receiver.name, problem)
        if not problem and self._failing:
            log.info("notifications for %s are taken again", self.receiver.name)
        self._failing = problem is not None


def conductor_outboxes(conductor: Conductor) -> list[tuple[Database, Outbox]]:
    """Return (database, its tables of notifications to send) for each database whose notifications a conductor sends:
    the database of its cell and, if the conductor schedules new servers, also cell0 and the API database."""
    shared = [(conductor.store.cell0, outbox.CELL), (conductor.store.api, outbox.API)]
    return [(conductor.database, outbox.CELL), *(shared if conductor.schedules else ())]


def drop_old(conductor: Conductor) -> None:
    """Delete notifications that have waited too long, exceed the largest number of waiting notifications, or are for
    receivers that are no longer in the settings. Delete events that were kept long enough."""
    settings = conductor.settings
    for database, box in conductor_outboxes(conductor):
        if settings.event_stream:
            event_rows.drop_old_event_rows(database, box, utc_now(-3600 * settings.event_keep_hours),
                                           settings.event_keep_count)
        dropped = outbox.drop_stale_notifications(database, box, conductor.notifications.receivers,
                                                  utc_now(-3600 * settings.notification_keep_hours),
                                                  settings.notification_keep_count,
                                                  (event_rows.STREAM,) if settings.event_stream else ())
        dropped.pop(event_rows.STREAM, None)  # events of a stream that is off now
        for name, count in dropped.items():
            log.error("%d notifications for %s are lost: it has not taken them within %g hours, more than %d waited, "
                      "or the settings do not name it any more", count, name, settings.notification_keep_hours,
                      settings.notification_keep_count)
