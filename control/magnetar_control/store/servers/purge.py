# SPDX-License-Identifier: GPL-3.0-or-later
"""Deleted servers are removed for good, with their actions, events, migrations and mappings, in small batches.

A mapping goes before the rows of the cell, which are found again where a process dies in between. What is archived is
on disk before it is removed: after a crash it may be there twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import BindParameter, Connection, Select, bindparam, delete, func, select

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import action_events, actions, migrations, server_mappings, servers
from magnetar_control.store.store import Store

#: Servers of a batch: each is a transaction, which must not keep others waiting.
BATCH = 200
#: What is archived, by the name of the file.
_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
_ROWS: dict[str, Select[Any]] = {
    "servers": select(servers).where(servers.c.id.in_(_IDS)),
    "actions": select(actions).where(actions.c.server_id.in_(_IDS)),
    "action_events": select(action_events).join(actions).where(actions.c.server_id.in_(_IDS)),
    "migrations": select(migrations).where(migrations.c.server_id.in_(_IDS))}


def _deleted(before: str) -> Select[Any]:
    return select(servers.c.id).where(servers.c.deleted_at < before, servers.c.task_state.is_(None))


def count(database: Database, before: str) -> int:
    """How many ``purge`` would remove."""
    with database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(_deleted(before).subquery())).scalar_one())


def purge(store: Store, database: Database, before: str, archive: Path | None = None,
          over: Callable[[], bool] = lambda: False) -> int:
    """Remove the servers of *database* (a cell's) that were deleted before the moment *before*; returns how many.
    *archive*: the folder of files with a JSON object a line, to which they are added. *over*: whether to end early."""
    removed = 0
    while not over():
        with database.read() as connection:
            ids = list(connection.execute(_deleted(before).limit(BATCH)).scalars())
            if archive is not None and ids:
                _keep(connection, ids, archive)
        if not ids:
            break
        with store.api.write() as connection:
            connection.execute(delete(server_mappings).where(server_mappings.c.server_id.in_(ids)))
        with database.write() as connection:
            for table in (actions, migrations):  # events go with their actions
                connection.execute(delete(table).where(table.c.server_id.in_(ids)))
            connection.execute(delete(servers).where(servers.c.id.in_(ids)))
        removed += len(ids)
    return removed


def _keep(connection: Connection, ids: list[str], folder: Path) -> None:
    """Add the rows to the files of the archive, for their owner's eyes only."""
    for name, rows in _ROWS.items():
        file = os.open(folder / f"{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(dict(row), default=str) + "\n"
                             for row in connection.execute(rows, {"ids": ids}).mappings())
            lines.flush()
            os.fsync(lines.fileno())
