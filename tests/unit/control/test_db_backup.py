# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar db backup`` and ``db restore``: a lost cloud comes back on both engines, and nothing is overwritten."""

from __future__ import annotations

import os
import secrets
import shutil

import psycopg
import pytest
from sqlalchemy import text

from magnetar_control import cli
from magnetar_control.store.cloud_backup import CATALOGUE
from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts.processes import write_api_heartbeat
from tools import postgres

NAMES = ("api", "cell0", "cell1")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def cloud(request, tmp_path):
    """The settings file of a cloud with tables, a key and a server's quota."""
    path, folder = tmp_path / "control.yml", tmp_path / "state"
    (folder / "keys").mkdir(parents=True)
    (folder / "keys" / "a.key").write_text("secret")
    urls = {name: f"sqlite:///{folder}/{name}.db" for name in NAMES}
    if request.param == "postgresql":
        urls = {name: create_database(request.getfixturevalue("cluster")) for name in NAMES}
    path.write_text(f"state_dir: {folder}\ndatabase_url: {urls['api']}\ncell0_database_url: {urls['cell0']}\n"
                    f"cell_database_url: {urls['cell1']}\n")
    assert cli.main(["db", "upgrade", "--config", str(path)]) == 0
    execute(urls["api"], "UPDATE cells SET disabled = true WHERE name = 'cell1'")
    yield path, urls


def create_database(cluster):
    name = f"b{secrets.token_hex(6)}"
    with psycopg.connect(host=str(cluster), user=postgres.USER, dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres.postgres_url(cluster, name)


def execute(url, *statements):
    database = Database(url)
    with database.write() as connection:
        rows = [connection.execute(text(statement)) for statement in statements]
        shown = [tuple(row) for row in rows[-1]] if rows[-1].returns_rows else None
    database.close()
    return shown


def run(path, capsys, *words):
    capsys.readouterr()
    status = cli.main(["db", *words, "--config", str(path)])
    return status, *capsys.readouterr()


def disabled(url):
    return bool(execute(url, "SELECT disabled FROM cells WHERE name = 'cell1'")[0][0])


def test_a_lost_cloud_comes_back(cloud, tmp_path, capsys):
    path, urls = cloud
    status, shown, _errors = run(path, capsys, "backup", str(tmp_path / "b"))
    assert status == 0 and [line.split(":")[0] for line in shown.splitlines()[:3]] == ["cell0", "cell1", "api"]
    assert {file.stat().st_mode & 0o077 for file in (tmp_path / "b").iterdir() if file.is_file()} == {0}
    assert (tmp_path / "b").stat().st_mode & 0o077 == 0
    assert "has tables already" in run(path, capsys, "restore", str(tmp_path / "b"), "--check")[2]
    assert run(path, capsys, "restore", str(tmp_path / "b"), "--check", "--replace")[0] == 0
    lose(urls, tmp_path)
    assert run(path, capsys, "restore", str(tmp_path / "b"), "--check")[0] == 0
    status, shown, errors = run(path, capsys, "restore", str(tmp_path / "b"))
    assert status == 0 and len(shown.splitlines()) == 4, errors
    assert disabled(urls["api"]) and (tmp_path / "state/keys/a.key").read_text() == "secret"
    assert run(path, capsys, "upgrade", "--check")[0] == 0
    execute(urls["cell1"], "SELECT * FROM quota_usage")


def lose(urls, folder):
    shutil.rmtree(folder / "state" / "keys")
    for url in urls.values():
        if url.startswith("sqlite"):
            for file in (folder / "state").glob(f"{url.rpartition('/')[2]}*"):
                file.unlink()
        else:
            database = Database(url)
            with database.write() as connection:
                connection.execute(text("DROP SCHEMA public CASCADE"))
                connection.execute(text("CREATE SCHEMA public"))
            database.close()


def test_databases_with_tables_are_overwritten_on_request_only(cloud, tmp_path, capsys):
    path, urls = cloud
    assert run(path, capsys, "backup", str(tmp_path / "b"))[0] == 0
    execute(urls["api"], "UPDATE cells SET disabled = false WHERE name = 'cell1'")
    execute(urls["cell1"], "CREATE TABLE of_a_newer_release (id INTEGER)")
    status, shown, errors = run(path, capsys, "restore", str(tmp_path / "b"))
    assert (status, shown) == (1, "") and "has tables already" in errors and not disabled(urls["api"])
    for _twice in range(2):
        assert run(path, capsys, "restore", str(tmp_path / "b"), "--replace")[0] == 0
        assert disabled(urls["api"]) and run(path, capsys, "upgrade", "--check")[0] == 0
    with pytest.raises(Exception, match="of_a_newer_release"):
        execute(urls["cell1"], "SELECT * FROM of_a_newer_release")


def test_a_running_process_keeps_its_databases(cloud, tmp_path, capsys):
    path, urls = cloud
    assert run(path, capsys, "backup", str(tmp_path / "b"))[0] == 0
    database = Database(urls["api"])
    write_api_heartbeat(database, "h", "api1", "0.2.0", ())
    database.close()
    status, _shown, errors = run(path, capsys, "restore", str(tmp_path / "b"), "--replace")
    assert status == 1 and "api1" in errors


def test_a_cell_is_restored_elsewhere(cloud, tmp_path, capsys, request):
    path, urls = cloud
    assert run(path, capsys, "backup", str(tmp_path / "b"))[0] == 0
    other = f"sqlite:///{tmp_path}/state/other.db" if urls["api"].startswith("sqlite") else create_database(
        request.getfixturevalue("cluster"))
    lose(urls, tmp_path)
    assert run(path, capsys, "restore", str(tmp_path / "b"), "--database", f"cell1={other}")[0] == 0
    assert execute(urls["api"], "SELECT database_url FROM cells WHERE name = 'cell1'") == [(other,)]
    assert execute(other, "SELECT count(*) FROM servers") == [(0,)]


def test_a_backup_that_changed_is_refused(cloud, tmp_path, capsys):
    path, urls = cloud
    assert run(path, capsys, "backup", str(tmp_path / "b"))[0] == 0
    (dump,) = (tmp_path / "b").glob("*-api.*")
    dump.write_bytes(dump.read_bytes()[:-1])
    lose(urls, tmp_path)
    status, _shown, errors = run(path, capsys, "restore", str(tmp_path / "b"))
    assert status == 1 and f"{dump} has changed" in errors
    (tmp_path / "b" / CATALOGUE).unlink()
    assert "it is no backup" in run(path, capsys, "restore", str(tmp_path / "b"), "--check")[2]


@pytest.mark.parametrize(("words", "part"), [
    (["restore", "BACKUP", "--database", "cell9=sqlite:///other.db"], "--database names no database of the backup"),
    (["restore", "BACKUP", "--database", "cell1"], "--database must be NAME=URL"),
    (["backup", "BACKUP"], "FOLDER must be new or empty")])
def test_wrong_words(cloud, tmp_path, capsys, words, part):
    path, _urls = cloud
    assert run(path, capsys, "backup", str(tmp_path / "b"))[0] == 0
    status, _shown, errors = run(path, capsys, *(str(tmp_path / "b") if one == "BACKUP" else one for one in words))
    assert status == 1 and part in " ".join(errors.replace(":", "").split())


def test_without_the_programs_of_postgresql(cloud, tmp_path, capsys, monkeypatch):
    path, urls = cloud
    if urls["api"].startswith("sqlite"):
        return
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "pg_dump is not installed" in run(path, capsys, "backup", str(tmp_path / "b"))[2]
    assert not list((tmp_path / "b").iterdir()), "an incomplete backup has secrets, and takes room"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("command", ["upgrade", "restore"])
def test_what_root_creates_belongs_to_the_service(tmp_path, capsys, command):
    """An operator runs commands as root. The service, another user, must be able to use all files and folders."""
    path, folder, backup = tmp_path / "control.yml", tmp_path / "state", tmp_path / "b"
    folder.mkdir()
    path.write_text(f"state_dir: {folder}/inner\nkeys_dir: {folder}/vault/keys\n")
    (folder / "vault/keys").mkdir(parents=True)
    (folder / "vault/keys/a.key").write_text("secret")
    assert run(path, capsys, "upgrade")[0] == run(path, capsys, "backup", str(backup))[0] == 0
    shutil.rmtree(folder)
    folder.mkdir()
    os.chown(folder, 12345, 12346)
    assert run(path, capsys, command, *([str(backup)] if command == "restore" else []))[0] == 0
    created = [item for item in folder.rglob("*") if not item.name.endswith(("-wal", "-shm"))]
    assert {"inner", "api.db", "cell1.db"} <= {item.name for item in created}
    assert command == "upgrade" or (folder / "vault/keys/a.key").read_text() == "secret"
    assert {(item.stat().st_uid, item.stat().st_gid) for item in created} == {(12345, 12346)}
    assert {item.stat().st_mode & 0o077 for item in (folder / "inner", *(folder / "inner").iterdir())} == {0}
