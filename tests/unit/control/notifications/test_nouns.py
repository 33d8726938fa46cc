# SPDX-License-Identifier: GPL-3.0-or-later
"""What is told of flavors, key pairs, aggregates, server groups and services, on both engines
(``tests/cases/notifications/nouns.yml``)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from sqlalchemy import delete, select

from magnetar_control.store.actions import outbox
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.schema import create_tables
from magnetar_control.store.engine.tables import CELL
from tests.unit.control.api.compute import Compute

CASES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[4] / "tests/cases/notifications/nouns.yml").read_text())
BOX = outbox.API.waiting


@contextlib.contextmanager
def compute(database: Database, folder: Path, **settings: Any) -> Iterator[Any]:
    """An API whose API database is *database*."""
    cells = {name: Database(f"sqlite:///{folder}/{name}.db", name) for name in ("cell0", "cell1")}
    for cell in cells.values():
        with cell.write() as connection:
            create_tables(connection, CELL)
    try:
        yield Compute({"api": database, **cells}, folder, **settings)
    finally:
        for cell in cells.values():
            cell.close()


def told(database: Database) -> list[dict[str, Any]]:
    """What was told since the last call."""
    with database.write() as connection:
        found = connection.execute(select(BOX).order_by(BOX.c.id)).all()
        connection.execute(delete(BOX))
    assert {row.receiver for row in found} <= {"log"}
    return [orjson.loads(row.message) for row in found]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_what_is_done_is_told(case: dict[str, Any], database: Database, tmp_path: Path) -> None:
    with compute(database, tmp_path, notification_log="-") as cloud:
        ids = {"HOST": cloud.host("kvm1"), "ID": ""}
        for step in case["steps"]:
            do(cloud, step, ids)
            check(told(database), step)


def do(cloud: Any, step: dict[str, Any], ids: dict[str, Any]) -> None:
    """Ask for it; *ids* are what stands in the path."""
    method, path = step["ask"].split()
    for word, value in ids.items():
        path = path.replace(word, str(value))
    reply = cloud.admin.call(method, path, step.get("body"), step.get("version"))
    assert reply.status == step.get("status", reply.status) and (reply.status < 300 or "status" in step), reply
    if not ids["ID"] and reply.json:
        ids["ID"] = next(iter(reply.json.values())).get("id", "")


def check(found: list[dict[str, Any]], step: dict[str, Any]) -> None:
    """That was told, and nothing else."""
    wanted = step.get("told", {})
    assert [one["event_type"] for one in found] == list(wanted), step
    for one in found:
        name, data = wanted[one["event_type"]]
        assert one["payload"]["nova_object.name"] == name
        assert one["payload"]["nova_object.data"] | data == one["payload"]["nova_object.data"]
        assert one["publisher_id"].startswith("nova-api:") and one["priority"] == "INFO"
        assert "PRIVATE KEY" not in orjson.dumps(one).decode()


def test_nothing_is_asked_or_written_where_nobody_is_told(sqlite: Database, tmp_path: Path) -> None:
    with compute(sqlite, tmp_path) as cloud:
        with cloud.counted() as silent:
            cloud.admin.post("/os-keypairs", {"keypair": {"name": "mine"}})
            cloud.admin.delete("/os-keypairs/mine")
        assert silent and not [one for one in silent if "notification" in one[1]]
        assert told(sqlite) == []


def test_what_cannot_be_told_is_done_all_the_same(
        database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that lacks what a payload has, of a server and of anything else."""
    with compute(database, tmp_path, notification_log="-") as cloud:
        id = cloud.server(shares="[{}]", volumes="[]")
        assert cloud.alice.put(f"/servers/{id}", {"server": {"name": "web2"}}).json["server"]["name"] == "web2"
        assert "notification instance.update is lost" in caplog.text
        monkeypatch.setattr("magnetar_control.notifications.payloads.keypair_payload", lambda row: row["nothing"])
        for ask in (cloud.alice.post("/os-keypairs", {"keypair": {"name": "mine"}}), cloud.alice.delete(
                "/os-keypairs/mine")):
            assert ask.status < 300
        assert "notification keypair.delete.end is lost" in caplog.text and told(database) == []
