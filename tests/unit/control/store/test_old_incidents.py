# SPDX-License-Identifier: GPL-3.0-or-later
"""Incidents and fencing requests that ended long ago are removed; open ones stay."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import insert, select

from magnetar_control.store.engine.tables import fencing_requests, incident_servers, incidents
from magnetar_control.store.hosts import old_incidents

LONG_AGO, LATELY = "2026-01-01T00:00:00.000000", "2026-11-01T00:00:00.000000"
BEFORE = "2026-06-01T00:00:00.000000"


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(old_incidents, "BATCH", 2)


def incident(database: Any, id: str, finished_at: str | None, noticed_at: str = LONG_AGO) -> None:
    with database.write() as connection:
        connection.execute(insert(incidents).values(
            id=id, host=f"host-{id}", open_key=None if finished_at else f"host-{id}",
            state="done" if finished_at else "blocked", noticed_at=noticed_at, finished_at=finished_at))
        connection.execute(insert(incident_servers), [
            {"incident_id": id, "server_id": f"{id}-{number}", "name": "s", "policy": "always", "priority": 5,
             "state": "moved", "updated_at": noticed_at} for number in range(2)])


def request(database: Any, host: str, ended_at: str | None) -> None:
    with database.write() as connection:
        connection.execute(insert(fencing_requests).values(
            host=host, id=f"r-{host}", fence=True, confirmed=False, requested_by="admin", requested_at=LONG_AGO,
            ended_at=ended_at))


def ids(database: Any, column: Any) -> list[str]:
    with database.read() as connection:
        return sorted(connection.execute(select(column)).scalars())


def test_only_what_ended_long_ago_goes(database, tmp_path):
    for number in range(3):
        incident(database, f"old{number}", LONG_AGO)
    incident(database, "late", LATELY)
    incident(database, "open", None)
    assert old_incidents.count_purgeable_incidents(database, BEFORE) == 3
    assert old_incidents.purge_incidents(database, BEFORE, tmp_path) == 3
    assert old_incidents.purge_incidents(database, BEFORE) == 0
    assert ids(database, incidents.c.id) == ["late", "open"]
    assert ids(database, incident_servers.c.server_id) == ["late-0", "late-1", "open-0", "open-1"]
    for name, count in (("incidents", 3), ("incident_servers", 6)):
        file = tmp_path / f"{name}.jsonl"
        assert file.stat().st_mode & 0o777 == 0o600
        assert len([json.loads(line) for line in file.read_text().splitlines()]) == count


def test_requests_that_are_open_stay(database, tmp_path):
    for host, ended_at in (("a", LONG_AGO), ("b", LATELY), ("c", None)):
        request(database, host, ended_at)
    assert old_incidents.count_purgeable_requests(database, BEFORE) == 1
    assert old_incidents.purge_fencing_requests(database, BEFORE, tmp_path) == 1
    assert ids(database, fencing_requests.c.host) == ["b", "c"]
    assert json.loads((tmp_path / "fencing_requests.jsonl").read_text())["host"] == "a"


def test_it_ends_early(database):
    for number in range(3):
        incident(database, f"old{number}", LONG_AGO)
    asked: list[int] = []
    assert old_incidents.purge_incidents(database, BEFORE, over=lambda: asked.append(1) or len(asked) > 1) == 2
