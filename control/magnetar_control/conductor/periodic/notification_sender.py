# SPDX-License-Identifier: GPL-3.0-or-later
"""Notifications on their way: each receiver has a thread of its own in each conductor, so that one that is slow or
silent keeps nobody waiting.

One conductor at a time sends what a database has for a receiver, in the order in which it was written, and goes no
further than the first that is not taken. After a crash some are sent again.
"""

from __future__ import annotations

import contextlib
import logging
import time

from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.notifications.receivers import NotSent, Receiver, Refused
from magnetar_control.store.actions import outbox
from magnetar_control.store.actions.outbox import Outbox
from magnetar_control.store.engine.database import Database, now

log = logging.getLogger(__name__)
#: Seconds between two looks for what is to be sent, and after which a batch ends.
LOOK, BATCH_TIME = 1.0, 15.0
#: How many are sent in a batch.
BATCH = 100


class NotificationSender:
    """Sends what waits for one *receiver* in the databases of a conductor."""

    def __init__(self, conductor: Conductor, receiver: Receiver) -> None:
        self.conductor, self.receiver = conductor, receiver
        self.places = boxes(conductor)
        self._failing = False
        self.__name__ = f"notify {receiver.name}"  # of the thread

    def __call__(self) -> None:
        """Until the conductor ends."""
        while not self.conductor.over.wait(LOOK):
            for database, box in self.places:
                try:
                    while self.send(database, box) and not self.conductor.over.is_set():
                        pass
                except DBAPIError as error:
                    log.warning("database %s: %s", database.name, error.orig)
                except Exception:
                    log.exception("notifications for %s: they are sent later", self.receiver.name)

    def send(self, database: Database, box: Outbox) -> bool:
        """Send a batch of what waits in a database; returns whether there may be more now."""
        name, holder = self.receiver.name, self.conductor.holder
        with database.read() as connection:
            if not outbox.due(database, connection, box, name, holder):
                return False
        if not outbox.hold(database, box, name, holder):
            return False
        with database.read() as connection:
            found = outbox.batch(connection, box, name, BATCH)
        sent: list[int] = []
        problem: str | None = None
        until = time.monotonic() + BATCH_TIME
        try:
            for row in found:
                if time.monotonic() > until or self.conductor.over.is_set():
                    break
                with contextlib.suppress(Refused):
                    self._give(row)
                sent.append(row.id)
        except NotSent as error:
            problem = str(error)
        finally:
            outbox.settle(database, box, name, holder, sent, problem)
        self._tell(problem)
        return problem is None and len(found) == BATCH

    def _give(self, row: outbox.Found) -> None:
        try:
            self.receiver.send(row.message)
        except Refused as error:
            log.error("notification %s is dropped: %s, %s", row.event_type, self.receiver.name, error)  # noqa: TRY400
            raise

    def _tell(self, problem: str | None) -> None:
        """A receiver that fails is in the log once, and when it takes something again."""
        if problem and not self._failing:
            log.warning("notifications for %s wait: %s", self.receiver.name, problem)
        if not problem and self._failing:
            log.info("notifications for %s are taken again", self.receiver.name)
        self._failing = problem is not None


def boxes(conductor: Conductor) -> list[tuple[Database, Outbox]]:
    """The databases whose notifications a conductor sends: that of its cell, and, where it schedules, cell0 and the API
    database."""
    shared = [(conductor.store.cell0, outbox.CELL), (conductor.store.api, outbox.API)]
    return [(conductor.database, outbox.CELL), *(shared if conductor.schedules else ())]


def drop_old(conductor: Conductor) -> None:
    """Drop notifications that have waited for too long, are too many, or are for receivers that the settings do not
    name any more."""
    settings = conductor.settings
    for database, box in boxes(conductor):
        dropped = outbox.drop(database, box, conductor.notifications.receivers,
                              now(-3600 * settings.notification_keep_hours), settings.notification_keep_count)
        for name, count in dropped.items():
            log.error("%d notifications for %s are lost: it has not taken them within %g hours, more than %d waited, "
                      "or the settings do not name it any more", count, name, settings.notification_keep_hours,
                      settings.notification_keep_count)
