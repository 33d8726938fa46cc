# SPDX-License-Identifier: GPL-3.0-or-later
"""The removal of incidents that ended long ago, with their servers, and of old fencing requests, in small batches. Open
incidents and open requests stay. Archived rows are on disk before they are removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Select, bindparam, delete, func, select

from magnetar_control.store.engine.archive import append_rows
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import fencing_requests, incident_servers, incidents

#: Incidents, or fencing requests, in a batch.
BATCH = 50
_IDS: Any = bindparam("ids", expanding=True)
#: The queries for the rows of incidents, by the name of the file in an archive.
_INCIDENT_ROWS: dict[str, Select[Any]] = {
    "incidents": select(incidents).where(incidents.c.id.in_(_IDS)),
    "incident_servers": select(incident_servers).where(incident_servers.c.incident_id.in_(_IDS))}
_REQUEST_ROWS: dict[str, Select[Any]] = {
    "fencing_requests": select(fencing_requests).where(fencing_requests.c.host.in_(_IDS))}


def _ended_incidents(cutoff: str) -> Select[Any]:
    """Return the query for the uuids of incidents that ended before *cutoff*. The query also compares ``noticed_at``,
    the only column with an index. This comparison excludes no incident that ended before *cutoff*, because incidents
    are noticed before they end."""
    return select(incidents.c.id).where(
        incidents.c.noticed_at < cutoff, incidents.c.open_key.is_(None), incidents.c.finished_at < cutoff)


def _ended_requests(cutoff: str) -> Select[Any]:
    return select(fencing_requests.c.host).where(fencing_requests.c.ended_at < cutoff)


def count_purgeable_incidents(database: Database, cutoff: str) -> int:
    """Return how many incidents ``purge_incidents`` would remove from the database of a cell."""
    return _count(database, _ended_incidents(cutoff))


def count_purgeable_requests(database: Database, cutoff: str) -> int:
    """Return how many requests ``purge_fencing_requests`` would remove from the API database."""
    return _count(database, _ended_requests(cutoff))


def _count(database: Database, query: Select[Any]) -> int:
    with database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(query.subquery())).scalar_one())


def purge_incidents(database: Database, cutoff: str, archive: Path | None = None,
                    over: Callable[[], bool] = lambda: False) -> int:
    """Remove the incidents that ended before *cutoff*, and their servers, from the *database* of a cell; return the
    number of incidents. *archive*: a folder; the rows are first appended to files in it. *over*: returns whether to
    stop early."""
    return _purge(database, _ended_incidents(cutoff), _INCIDENT_ROWS, archive, over, lambda ids: (
        delete(incident_servers).where(incident_servers.c.incident_id.in_(ids)),
        delete(incidents).where(incidents.c.id.in_(ids))))


def purge_fencing_requests(database: Database, cutoff: str, archive: Path | None = None,
                           over: Callable[[], bool] = lambda: False) -> int:
    """Remove the fencing requests that ended before *cutoff* from the API *database*; return their number. *archive*: a
    folder; the rows are first appended to a file in it. *over*: returns whether to stop early."""
    # A request that has replaced an old one meanwhile is open, or ended later.
    return _purge(database, _ended_requests(cutoff), _REQUEST_ROWS, archive, over, lambda names: (
        delete(fencing_requests).where(fencing_requests.c.host.in_(names), fencing_requests.c.ended_at < cutoff),))


def _purge(database: Database, query: Select[Any], rows: dict[str, Select[Any]], archive: Path | None,
           over: Callable[[], bool], deletions: Callable[[Sequence[str]], Sequence[Any]]) -> int:
    removed = 0
    while not over():
        with database.read() as connection:
            keys = list(connection.execute(query.limit(BATCH)).scalars())
            if archive is not None and keys:
                append_rows(connection, keys, rows, archive)
        if not keys:
            break
        with database.write() as connection:
            for statement in deletions(keys):
                connection.execute(statement)
        removed += len(keys)
    return removed
