# SPDX-License-Identifier: GPL-3.0-or-later
"""Data of earlier releases is migrated in batches, by ``magnetar db migrate-data`` and by conductors, when all
processes read the new form."""

from __future__ import annotations

import dataclasses
import json
import threading
import time

import pytest
from sqlalchemy import delete, func, insert, select, update

from magnetar_control import cli, data_migrations, serve
from magnetar_control.conductor.periodic.periodic import Periodic
from magnetar_control.data_migrations import DATA_MIGRATIONS, DataMigrator
from magnetar_control.reloading import SettingsReloader
from magnetar_control.services.volume.actions import reimage_volume
from magnetar_control.services.volume.reimage_data import REIMAGE_MIGRATION, reimage_metadata
from magnetar_control.services.volume.tables import volumes
from magnetar_control.settings import Settings
from magnetar_control.store.data_migrations import DataMigration, migrate_batch
from magnetar_control.store.engine.tables import conductors, servers
from magnetar_control.store.hosts import conductors as conductor_rows
from magnetar_core.capabilities import CAPABILITIES
from tests.support.ports import free_port

METADATA = {"image_id": "i", "image_name": 'a "quoted" name'}


@pytest.fixture
def parts(tmp_path):
    """The parts of a process of the release with the migration."""
    parts = serve.Parts(Settings(state_dir=tmp_path, listen=f"127.0.0.1:{free_port()}"))
    parts.upgrade()
    (tmp_path / "control.yml").write_text(f"state_dir: {tmp_path}\n")
    yield parts
    parts.close()


def add_volumes(database, count, first=0, **values):
    """Add volumes that release 0.1.0 has reimaged, or with other *values*."""
    rows = [{"id": f"v{first + number:04d}", "project_id": "p", "user_id": "u", "status": "available", "size": 1,
             "volume_type": "default", "availability_zone": "nova", "created_at": "2026-11-30T10:00:00.000000",
             "reimage": {"request": f"r{number}", "image_id": "i", "image_metadata": json.dumps(METADATA)}, **values}
            for number in range(count)]
    with database.write() as connection:
        connection.execute(insert(volumes), rows)


def tasks(database):
    with database.read() as connection:
        return connection.execute(select(volumes.c.reimage).order_by(volumes.c.id)).scalars().all()


def add_old_conductor(parts):
    conductor_rows.write_conductor_heartbeat(parts.store.cell(parts.store.find_cell("cell1").id), "old:1", "old")


@pytest.fixture
def migrate(parts, tmp_path, capsys):
    def run(*words):
        capsys.readouterr()
        return cli.main(["db", "migrate-data", *words, "--config", str(tmp_path / "control.yml")]), capsys.readouterr()
    return run


def test_batches_until_nothing_is_left(parts, migrate):
    add_volumes(parts.api_database, 120)
    status, shown = migrate()
    assert status == 0 and shown.out.splitlines() == [
        "Running batches of 50 until complete",
        *("50 rows of api matched query volume_reimage_objects, 50 migrated",) * 2,
        "20 rows of api matched query volume_reimage_objects, 20 migrated",
        "Migration               Total Needed  Completed",
        "volume_reimage_objects  120           120"]
    assert all(task["image_metadata"] == METADATA for task in tasks(parts.api_database))
    assert migrate()[0] == 0


def test_max_count_has_status_1_until_a_call_migrates_nothing(parts, migrate):
    add_volumes(parts.api_database, 5)
    for left, status in ((3, 1), (1, 1), (0, 1), (0, 0)):
        assert migrate("--max-count", "2")[0] == status
        assert sum(isinstance(task["image_metadata"], str) for task in tasks(parts.api_database)) == left


@pytest.mark.parametrize("count", ["0", "-5"])
def test_a_wrong_count_has_status_127_and_changes_nothing(parts, migrate, count):
    add_volumes(parts.api_database, 1)
    status, shown = migrate("--max-count", count)
    assert status == 127 and f"--max-count: must be 1 or more (got {count})" in shown.err
    assert isinstance(tasks(parts.api_database)[0]["image_metadata"], str)


def test_it_waits_for_processes_that_cannot_read_the_new_form(parts, migrate):
    add_volumes(parts.api_database, 3)
    add_old_conductor(parts)
    status, shown = migrate()
    assert status == 2 and "3 rows wait until all processes know reimage-objects (magnetar upgrade status)" in shown.err
    assert all(isinstance(task["image_metadata"], str) for task in tasks(parts.api_database))
    with parts.store.cell(parts.store.find_cell("cell1").id).write() as connection:
        connection.execute(delete(conductors))
    assert migrate()[0] == 0


def test_it_waits_for_a_held_upgrade(parts, migrate, tmp_path):
    add_volumes(parts.api_database, 3)
    (tmp_path / "control.yml").write_text(f"state_dir: {tmp_path}\nhold_upgrade: true\n")
    status, shown = migrate()
    assert status == 2 and "know reimage-objects (magnetar upgrade status) and hold_upgrade is false" in shown.err
    assert all(isinstance(task["image_metadata"], str) for task in tasks(parts.api_database))
    (tmp_path / "control.yml").write_text(f"state_dir: {tmp_path}\n")
    assert migrate()[0] == 0


def test_a_running_process_is_released_when_its_settings_are_read_again(parts, monkeypatch):
    """Without a restart: SIGHUP makes a service read its settings again."""
    monkeypatch.setattr("magnetar_control.store.hosts.capability_marks.FRESH", 0.0)
    before = dataclasses.replace(parts.settings, hold_upgrade=True)
    reloader = SettingsReloader(parts.settings, lambda: before)
    reloader.apply(before)
    assert not parts.known.all_processes_know("reimage-objects")
    reloader.apply(dataclasses.replace(before, hold_upgrade=False))
    assert parts.known.all_processes_know("reimage-objects")


def broken(_connection, _most):
    raise RuntimeError("never")


def add_migration(monkeypatch, **fields):
    """A migration of cells that gives servers a description."""
    old = servers.c.description.is_(None)

    def change(connection, most):
        ids = connection.execute(select(servers.c.id).where(old).limit(most)).scalars().all()
        return len(ids), connection.execute(update(servers).where(servers.c.id.in_(ids)).values(
            description="none")).rowcount

    migration = DataMigration("describe_servers", "Servers have a description.", "cell", "", lambda connection:
                              connection.execute(select(func.count()).select_from(servers).where(old)).scalar_one(),
                              change)._replace(**fields)
    monkeypatch.setattr(data_migrations, "DATA_MIGRATIONS", (*DATA_MIGRATIONS, migration))
    return migration


def add_servers(database, count):
    with database.write() as connection:
        connection.execute(insert(servers), [{
            "id": f"s{number}", "project_id": "p", "user_id": "u", "name": "n", "vm_state": "active", "flavor_id": "1",
            "flavor": '{"id": "1", "name": "small", "vcpus": 1, "ram": 512, "disk": 1}',
            "created_at": "2026-11-30T10:00:00.000000"} for number in range(count)])


def test_the_count_is_that_of_all_databases(parts, migrate, monkeypatch):
    add_migration(monkeypatch)
    add_volumes(parts.api_database, 3)
    add_servers(parts.store.cell0, 3)
    add_servers(parts.store.cell(parts.store.find_cell("cell1").id), 3)
    status, shown = migrate("--max-count", "7")
    assert status == 1 and [line.split(" matched")[0] for line in shown.out.splitlines()[:3]] == [
        "3 rows of api", "3 rows of cell0", "1 rows of cell1"]
    assert migrate()[0] == 0


def test_a_migration_that_fails_has_status_2_when_nothing_else_is_left(parts, migrate, monkeypatch):
    def fails(connection, _most):
        connection.exec_driver_sql("SELECT 1 FROM nowhere")

    add_migration(monkeypatch, migrate=fails)
    add_servers(parts.store.cell0, 1)
    add_volumes(parts.api_database, 60)
    status, shown = migrate()
    assert status == 2 and "describe_servers: the database cell0 refuses it: no such table: nowhere" in shown.err
    assert "volume_reimage_objects  60            60" in shown.out


def test_a_batch_that_is_cut_off_leaves_whole_rows(parts):
    """All rows of a batch are one transaction: the next one begins where it did."""
    add_volumes(parts.api_database, 3)
    cut = REIMAGE_MIGRATION._replace(migrate=lambda connection, most: (
        REIMAGE_MIGRATION.migrate(connection, most), broken(connection, most)))
    with pytest.raises(RuntimeError):
        migrate_batch(parts.api_database, cut, 2)
    assert all(isinstance(task["image_metadata"], str) for task in tasks(parts.api_database))
    assert migrate_batch(parts.api_database, REIMAGE_MIGRATION, 2) == (2, 2)
    assert migrate_batch(parts.api_database, REIMAGE_MIGRATION, 2) == (1, 1)
    assert migrate_batch(parts.api_database, REIMAGE_MIGRATION, 2) == (0, 0)


def test_two_at_once_migrate_each_row_once(parts):
    add_volumes(parts.api_database, 60)
    migrated = []
    threads = [threading.Thread(target=lambda: migrated.extend(
        [migrate_batch(parts.api_database, REIMAGE_MIGRATION, 10)[1] for _time in range(6)])) for _number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(migrated) == 60 and all(task["image_metadata"] == METADATA for task in tasks(parts.api_database))


def test_volumes_without_a_reimage_are_no_old_rows(parts):
    add_volumes(parts.api_database, 1, reimage=None)
    add_volumes(parts.api_database, 1, 1, reimage={"request": "r", "image_id": "i", "image_metadata": {
        "image_metadata": "an odd name", "x": '"image_metadata":"'}})
    assert migrate_batch(parts.api_database, REIMAGE_MIGRATION, 50)[1] <= 1  # the same object again
    assert reimage_metadata(tasks(parts.api_database)[1])["image_metadata"] == "an odd name"


def test_a_conductor_migrates_slowly(parts, monkeypatch):
    add_migration(monkeypatch)
    parts.services()
    conductor = parts.conductor(parts.services())
    add_volumes(parts.api_database, 120)
    add_servers(conductor.database, 2)
    periodic = Periodic(conductor)
    pauses = []
    monkeypatch.setattr(periodic, "rest_after", pauses.append)
    periodic.migrate_data()
    assert all(task["image_metadata"] == METADATA for task in tasks(parts.api_database)) and len(pauses) == 3
    with conductor.database.read() as connection:
        assert connection.execute(select(func.count(servers.c.description))).scalar_one() == 2


def test_the_check_of_an_upgrade_says_that_rows_remain(parts, tmp_path, capsys):
    (tmp_path / "backup").write_text("dump")
    words = ["upgrade", "check", "--backup", str(tmp_path / "backup"), "--config", str(tmp_path / "control.yml")]
    cli.main(words)
    assert "Data migrations" in capsys.readouterr().out
    add_volumes(parts.api_database, 3)
    assert cli.main(words) == 1
    assert "Data migration volume_reimage_objects in api: 3 rows remain. `magnetar db migrate-data`" in \
        capsys.readouterr().out
    assert cli.main(["upgrade", "status", "--config", str(tmp_path / "control.yml")]) == 1
    assert "data migration volume_reimage_objects in api: 3 rows remain" in capsys.readouterr().out


@pytest.mark.parametrize("as_object", [False, True])
def test_a_reimage_is_written_as_all_processes_read_it(parts, as_object):
    add_volumes(parts.api_database, 1, reimage=None)
    with parts.api_database.write() as connection:
        row = connection.execute(select(volumes)).mappings().one()
        reimage_volume(connection, None, row, image_id="i", image_metadata=METADATA, as_object=as_object)
    (task,) = tasks(parts.api_database)
    assert isinstance(task["image_metadata"], dict if as_object else str) and reimage_metadata(task) == METADATA


def test_each_migration_needs_a_capability_that_exists():
    names = [migration.name for migration in DATA_MIGRATIONS]
    assert len(set(names)) == len(names)
    assert {migration.needs for migration in DATA_MIGRATIONS} - {""} <= {one.name for one in CAPABILITIES}
    assert {migration.kind for migration in DATA_MIGRATIONS} <= {"api", "cell"}


def test_nothing_is_written_where_nothing_is_old(parts, monkeypatch):
    monkeypatch.setattr(parts.api_database, "write", lambda: pytest.fail("a write"))
    started = time.monotonic()
    assert list(DataMigrator(parts.store, parts.known).run_batch(50)) == [] and time.monotonic() - started < 60
