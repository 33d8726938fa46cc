# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests at the same moment, on PostgreSQL: with SQLite one waits for the other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from magnetar_control.api.failures import fault_of_failure
from magnetar_control.services.image import members
from magnetar_control.services.image.tables import images
from magnetar_control.services.image.tables import members as rows
from magnetar_control.store.engine.database import Database, utc_now

from .glance import Glance


def test_no_more_projects_share_an_image_than_may(postgres: Database, tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    glance: Any = Glance(postgres, tmp_path)
    path = f"/v2/images/{glance.make('ann')}/members"
    for number in range(members.MOST - 1):
        glance.ann("POST", path, {"member": f"project{number}"}, 200)
    both, added = threading.Barrier(2, timeout=1.0), members.insert_if_absent

    def meet(*words: Any, **row: Any) -> bool:
        done = added(*words, **row)
        with suppress(threading.BrokenBarrierError):  # the other waits for us, and cannot come
            both.wait()
        return done

    monkeypatch.setattr(members, "insert_if_absent", meet)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda name: glance.ann("POST", path, {"member": name}), ("red", "blue")))
    assert sorted(answer.status for answer in answers) == [200, 413]
    assert len(glance.ann("GET", path, None, 200)["members"]) == members.MOST


def test_what_collides_is_no_internal_error(postgres: Database) -> None:
    """A row went to which one refers, or there is the same already; what is wrong with a row is."""
    image = {"id": "0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10", "status": "queued", "visibility": "shared",
             "properties": {}, "created_at": utc_now()}
    for table, row, status in ((rows, {"image_id": image["id"], "member": "red", "status": "pending"}, 409),
                               (images, image, None), (images, image, 409), (images, {**image, "status": None}, 500)):
        try:
            with postgres.write() as connection:
                connection.execute(insert(table).values(created_at=utc_now(), **{
                    name: value for name, value in row.items() if name != "created_at"}))
        except IntegrityError as error:
            fault = fault_of_failure(error, "req-1")
            assert (fault.status if fault else 500) == status
            assert fault is None or "Repeat it; the request id is req-1" in fault.message
        else:
            assert status is None
