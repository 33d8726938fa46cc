# SPDX-License-Identifier: GPL-3.0-or-later
"""A process that is too old for the others does not start, by name; ``magnetar upgrade status`` lists all processes."""

from __future__ import annotations

import json
import signal

import pytest
from sqlalchemy import insert, select, text

from magnetar_control import announcement, cli, serve
from magnetar_control.announcement import Announcement, renew_or_end
from magnetar_control.settings import Settings
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import api_processes, capability_marks, conductors
from magnetar_control.store.hosts import conductors as conductor_rows
from magnetar_control.store.hosts import hosts, processes
from magnetar_control.store.hosts.host_leases import REFUSED, renew_host_leases, take_host_leases
from magnetar_core.capabilities import capabilities_of
from magnetar_core.errors import ProcessTooOld
from tests.support.ports import free_port


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """The parts of a process of release 0.2.0, with upgraded databases."""
    monkeypatch.setattr(announcement, "installed_version", lambda: "0.2.0")
    parts = serve.Parts(Settings(state_dir=tmp_path, listen=f"127.0.0.1:{free_port()}"))
    parts.upgrade()
    yield parts
    parts.close()


def cell_of(parts):
    return parts.store.cell(parts.store.find_cell("cell1").id)


def rows(database, table):
    with database.read() as connection:
        return connection.execute(select(table)).all()


def test_api_and_conductor_announce_release_and_capabilities(parts):
    parts.join_as_api("1")
    parts.join_as_conductor()
    (api,), (conductor,) = rows(parts.api_database, api_processes), rows(cell_of(parts), conductors)
    assert api.name.endswith("/1") and conductor.version == api.version == "0.2.0"
    assert json.loads(api.capabilities) == list(capabilities_of("api"))
    assert json.loads(conductor.capabilities) == list(capabilities_of("conductor"))
    working = parts.conductor(parts.services())
    assert working.holder == conductor.holder
    parts.close()
    database = Database(f"sqlite:///{parts.settings.state_dir}/api.db")
    assert rows(database, api_processes) == []
    database.close()


@pytest.mark.parametrize("release", ["0.1.0", "0.1.7", "0.2.0", "0.3.0", None])
def test_neighbouring_releases_run_together(parts, release):
    conductor_rows.write_conductor_heartbeat(cell_of(parts), "c:1", "c", release)
    parts.join_as_api()


@pytest.mark.parametrize(("release", "message"), [
    ("0.4.0", r"The API process api1 \(0\.2\.0\) does not start beside the conductor c \(0\.4\.0\): a release works "
              r"with itself and with the release before\. Upgrade the API process api1 \(0\.2\.0\) to 0\.4\.0, or to "
              r"the release before it \(docs/howto/upgrade-the-control-plane\.md\)\.$"),
    ("0.0.9", r"does not start beside the conductor c \(0\.0\.9\).*Upgrade the conductor c \(0\.0\.9\) to 0\.2\.0, or "
              r"to the release before it \(.*\); if it has ended, try again in a minute\.$")])
def test_a_process_does_not_start_beside_a_distant_release(parts, release, message):
    conductor_rows.write_conductor_heartbeat(cell_of(parts), "c:1", "c", release)
    with pytest.raises(ProcessTooOld, match=message):
        Announcement(parts.store, "api", "api1", parts.api_database).join()
    assert rows(parts.api_database, api_processes) == []
    with pytest.raises(ProcessTooOld):
        parts.join_as_conductor()
    assert [row.name for row in rows(cell_of(parts), conductors)] == ["c"]
    with cell_of(parts).write() as connection:  # it has ended
        connection.execute(text("UPDATE conductors SET seen_at = '2026-01-01 00:00:00.000000'"))
    parts.join_as_api()


@pytest.mark.parametrize(("kinds", "used_since"), [("api,conductor", None), ("api", "2026-11-30 10:00:00.000000")])
def test_a_process_without_a_used_capability_does_not_start(parts, kinds, used_since):
    with parts.api_database.write() as connection:
        connection.execute(insert(capability_marks).values(
            name="next-form", kinds=kinds, version="0.3.0", marked_at="2026-11-30 10:00:00.000000",
            used_since=used_since))
    with pytest.raises(ProcessTooOld, match=r"The API process .* \(0\.2\.0\) does not start: the cloud uses next-form, "
                                            r"which this release does not know\. Run the release 0\.3\.0 or a newer"):
        parts.join_as_api()
    with pytest.raises(ProcessTooOld):
        parts.join_as_api(announced=False)
    if kinds == "api":
        parts.join_as_conductor()


def test_the_command_says_why_it_does_not_start(parts, capsys, tmp_path):
    conductor_rows.write_conductor_heartbeat(cell_of(parts), "c:1", "c", "0.9.0")
    path = tmp_path / "control.yml"
    path.write_text(f"state_dir: {tmp_path}\nlisten: {parts.settings.listen}\n")
    for command in ("api", "conductor", "serve"):
        assert cli.main([command, "--config", str(path)]) == 1
        assert "does not start beside the conductor c (0.9.0)" in capsys.readouterr().err
    assert cli.main(["api", "--workers", "2", "--config", str(path)]) == 1


def test_a_process_that_was_silent_checks_itself_and_ends(parts, monkeypatch):
    ended = []
    monkeypatch.setattr(announcement.os, "kill", lambda _process, number: ended.append(number))
    now = [1000.0]
    monkeypatch.setattr(announcement.time, "monotonic", lambda: now[0])
    mine = Announcement(parts.store, "api", "api1", parts.api_database)
    mine.join()
    with parts.api_database.write() as connection:
        connection.execute(insert(capability_marks).values(
            name="next-form", kinds="api", version="0.3.0", marked_at="2026-11-30 10:00:00.000000"))
    now[0] += announcement.HEARTBEAT
    renew_or_end(mine)
    assert not ended
    now[0] += 100
    renew_or_end(mine)
    assert ended == [signal.SIGTERM] and rows(parts.api_database, api_processes) == []


def test_a_database_that_is_away_ends_nothing(parts, caplog, tmp_path):
    (tmp_path / "broken.db").write_text("this is not a database" * 100)
    mine = Announcement(parts.store, "api", "api1", Database(f"sqlite:///{tmp_path}/broken.db"))
    renew_or_end(mine)
    assert "this process is not announced" in caplog.text


def test_status_lists_processes_and_what_waits(parts, capsys, tmp_path):
    path = tmp_path / "control.yml"
    path.write_text(f"state_dir: {tmp_path}\n")
    parts.join_as_conductor()
    conductor_rows.write_conductor_heartbeat(cell_of(parts), "old:1", "old")
    with parts.api_database.write() as connection:
        hosts.upsert_host_row(connection, "kvm1", parts.store.find_cell("cell1").id, "unix:///run/kvm1.sock")
        hosts.save_host_inventory(connection, "kvm1", {"vcpus": 1, "memory_mb": 1, "disk_gb": 1,
                                                       "agent_version": "0.1.0"})
    assert cli.main(["upgrade", "status", "--config", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "conductor  old" in shown and "reimage-objects waits for: conductor old (0.1.0)" in shown
    assert "announcement waits for: conductor old (0.1.0), agent of host kvm1 (0.1.0)" in shown
    assert cli.main(["upgrade", "status", "--json", "--config", str(path)]) == 1
    status = json.loads(capsys.readouterr().out)
    assert status["newest"] == "0.2.0" and not status["complete"]
    old, new = (next(one for one in status["processes"] if one["release"] == release and one["kind"] == "conductor")
                for release in ("0.1.0", "0.2.0"))
    assert old["lacks"] == list(capabilities_of("conductor")) and new["lacks"] == [] and new["up"]
    assert old["announced"] is False and old["cell"] == "cell1" and old["last_seen"]
    assert status["processes"][-1]["kind"] == "agent" and status["processes"][-1]["up"] is False
    waiting = {one["name"]: one["waits_for"] for one in status["capabilities"]}
    assert waiting["data-migrations"] == [{"kind": "conductor", "name": "old"}]


def test_status_0_when_nothing_waits(parts, capsys, tmp_path):
    path = tmp_path / "control.yml"
    path.write_text(f"state_dir: {tmp_path}\n")
    processes.write_api_heartbeat(parts.api_database, "a:1", "a", "0.2.0", capabilities_of("api"))
    assert cli.main(["upgrade", "status", "--config", str(path)]) == 0
    assert "Nothing waits" in capsys.readouterr().out


def test_status_says_why_a_host_is_refused(parts, capsys, tmp_path):
    path, cell = tmp_path / "control.yml", cell_of(parts)
    path.write_text(f"state_dir: {tmp_path}\n")
    with parts.api_database.write() as connection:
        hosts.upsert_host_row(connection, "kvm1", parts.store.find_cell("cell1").id, "unix:///run/kvm1.sock")
        hosts.save_host_inventory(connection, "kvm1", {
            "vcpus": 1, "memory_mb": 1, "disk_gb": 1, "agent_version": "0.2.0",
            "capabilities": capabilities_of("agent")})
    take_host_leases(cell, "one", ["kvm1"])
    renew_host_leases(cell, "one", {}, problems={"kvm1": f"{REFUSED}its agent runs release 0.0.9"})
    assert cli.main(["upgrade", "status", "--config", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "host kvm1 is refused: its agent runs release 0.0.9" in shown and "Nothing waits" not in shown
    assert cli.main(["upgrade", "status", "--json", "--config", str(path)]) == 1
    status = json.loads(capsys.readouterr().out)
    assert status["processes"][-1]["refusal"] == "its agent runs release 0.0.9" and status["complete"] is False


def test_status_needs_upgraded_tables(tmp_path, capsys):
    path = tmp_path / "control.yml"
    path.write_text(f"state_dir: {tmp_path}\n")
    for words in (["upgrade", "status"], ["db", "migrate-data"]):
        assert cli.main([*words, "--config", str(path)]) == 1
        assert "Run `magnetar db upgrade` first" in capsys.readouterr().err
