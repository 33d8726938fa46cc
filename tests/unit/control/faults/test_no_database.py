# SPDX-License-Identifier: GPL-3.0-or-later
"""The API database is away, comes back, or has no room: what each service says."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from magnetar_control import serve
from magnetar_control.api.v1.operations import error_of
from magnetar_control.settings_file import make_settings
from magnetar_control.store.engine import database
from magnetar_control.store.engine.database import Database
from magnetar_core.errors import NoSpace
from tests.support.control.cloud import Cloud
from tests.support.control.faults import away


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """Without hosts."""
    with Cloud(hosts=0) as made:
        yield made


@pytest.fixture(scope="module")
def no_room() -> sqlite3.OperationalError:
    """What SQLite says of a full disk."""
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA max_page_count = 2")
    connection.execute("CREATE TABLE a (b)")
    with pytest.raises(sqlite3.OperationalError) as found:
        connection.execute("INSERT INTO a VALUES (zeroblob(65536))")
    return found.value


@contextlib.contextmanager
def full(no_room: sqlite3.OperationalError, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing can be written."""
    def refused(_database: Database) -> None:
        raise OperationalError("BEGIN", {}, no_room)

    with monkeypatch.context() as patched:
        patched.setattr(Database, "write", refused)
        yield


@pytest.mark.parametrize("path", [
    "/identity/v3/projects", "/image/v2/images", "/network/v2.0/networks", "/volume/v3/volumes", "/v2.1/flavors",
    "/v2.1/servers", "/placement/resource_providers", "/v1/server", "/v1/volume", "/metrics"])
def test_every_service_says_that_the_database_is_away(cloud: Cloud, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "RETRY_FOR", 0.2)
    with away("api", monkeypatch):
        cloud.parts.store._read_at = float("-inf")
        reply = cloud.admin.get(path)
    assert reply.status == 503 and reply.headers["retry-after"] == "2", reply
    assert "does not answer" in str(reply.json)


def test_whatever_fails_is_answered_in_the_form_of_its_service(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what fails before a handler is asked."""
    def broken(*_args: object) -> None:
        raise RuntimeError("a mistake of ours")

    with monkeypatch.context() as patched:
        patched.setattr("magnetar_control.api.nova.app.ComputeApplication.run_in", broken)
        reply = cloud.admin.get("/v2.1/flavors")
    assert reply.status == 500 and reply.json["computeFault"]["code"] == 500


@pytest.mark.parametrize(("path", "body"), [
    ("/identity/v3/projects", {"project": {"name": "p"}}), ("/image/v2/images", {"name": "i"}),
    ("/network/v2.0/networks", {"network": {"name": "n"}}), ("/volume/v3/volumes", {"volume": {"size": 1}}),
    ("/v2.1/flavors", {"flavor": {"name": "f", "ram": 64, "vcpus": 1, "disk": 1}})])
def test_a_full_disk_is_named(cloud: Cloud, path: str, body: object, no_room: sqlite3.OperationalError,
                              monkeypatch: pytest.MonkeyPatch) -> None:
    with full(no_room, monkeypatch):
        reply = cloud.admin.post(path, body)
    assert reply.status == 507 and "full" in str(reply.json), reply
    assert isinstance(error_of(OperationalError("", {}, no_room), "req-1"), NoSpace)


def test_no_room_for_the_content_of_an_image_is_named(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not even the file can be made."""
    made = cloud.admin.post("/image/v2/images", {"name": "i", "disk_format": "raw", "container_format": "bare"})
    id = made.json["id"]

    def refused(*_args: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("magnetar_control.services.image.content._locked", refused)
        reply = cloud.admin.call("PUT", f"/image/v2/images/{id}/file", b"content", headers={
            "Content-Type": "application/octet-stream"})
    assert reply.status == 507 and "full" in str(reply.json), reply


def test_a_start_on_a_full_disk_reads(tmp_path: object, no_room: sqlite3.OperationalError,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings({"state_dir": str(tmp_path), "hosts": {}})
    with serve.running_server(settings, with_api=True, with_conductor=True):
        pass
    with full(no_room, monkeypatch), serve.running_server(settings, with_api=True, with_conductor=True) as server:
        assert server is not None
        parts = dict(server.mounts)["/image"]
        assert parts
    with pytest.raises(OperationalError), full(no_room, monkeypatch), serve.running_server(
            make_settings({"state_dir": f"{tmp_path}/new", "hosts": {}}), with_api=True, with_conductor=False):
        pass


def test_the_first_statement_after_a_restart_succeeds(postgres: Database) -> None:
    """All connections of both pools were closed by the server meanwhile."""
    for way in (postgres.read, postgres.write):
        with way() as connection:
            connection.execute(text("SELECT 1"))
    url = postgres.url
    with psycopg.connect(host=str(url.query["host"]), user=url.username, dbname="postgres", autocommit=True) as other:
        mine = "FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
        other.execute(f"SELECT pg_terminate_backend(pid) {mine}", [url.database])
        deadline = time.monotonic() + 60
        while other.execute(f"SELECT 1 {mine}", [url.database]).fetchone():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    for way in (postgres.read, postgres.write):
        with way() as connection:
            assert connection.execute(text("SELECT 1")).scalar() == 1
