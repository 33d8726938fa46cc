# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar upgrade check`` finds each planted problem, ``magnetar db`` reports the tables, and nothing is changed."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from sqlalchemy import text

from magnetar_control import cli, upgrade_checks
from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts import hosts

REPORT = {"hypervisor_type": "QEMU", "hypervisor_version": "7.2.22", "libvirt_version": "9.0.0", "vcpus": 4,
          "memory_mb": 8192, "disk_gb": 50, "agent_version": "0.1.0", "connected": True}


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """The settings file of a cloud with a host and a fresh backup."""
    monkeypatch.setattr(upgrade_checks, "installed_version", lambda: "0.1.0")
    path = tmp_path / "control.yml"
    path.write_text(f"state_dir: {tmp_path}\n")
    assert cli.main(["db", "upgrade", "--config", str(path)]) == 0
    add_host(tmp_path, "kvm1", REPORT)
    (tmp_path / "backup").write_text("dump")
    return path


def add_host(folder, name, report):
    database = Database(f"sqlite:///{folder}/api.db")
    with database.write() as connection:
        cell = connection.execute(text("SELECT id FROM cells WHERE name = 'cell1'")).scalar_one()
        hosts.upsert_host_row(connection, name, cell, f"unix:///run/{name}.sock")
        hosts.save_host_inventory(connection, name, report)
    database.close()


def execute(file, *statements):
    database = Database(f"sqlite:///{file}")
    with database.write() as connection:
        for statement in statements:
            connection.execute(text(statement))
    database.close()


def check(path, capsys, *words):
    capsys.readouterr()
    if "--backup" not in words:
        words = (*words, "--backup", str(path.parent / "backup"))
    status = cli.main(["upgrade", "check", *words, "--config", str(path)])
    return status, capsys.readouterr().out


def write_certificate(path, days):
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "api")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(
        1).not_valid_before(now - timedelta(days=100)).not_valid_after(now + timedelta(days=days)).sign(
            key, hashes.SHA256())
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))


def test_a_cloud_that_is_ready_has_status_0(cloud, capsys):
    status, shown = check(cloud, capsys)
    assert status == 0 and len(shown.splitlines()) == 1 + len(upgrade_checks.CHECKS)
    assert all(line.endswith("  Success") for line in shown.splitlines())
    status, shown = check(cloud, capsys, "--json")
    assert status == 0 and json.loads(shown)[0] == {"check": "Settings", "result": "Success", "details": []}


def plant_setting(path):
    path.write_text(path.read_text() + "databse_url: x\n")


def plant_policy(path):
    (path.parent / "policy.yaml").write_text("'os_compute_api:servers:creat': '@'\n")
    path.write_text(path.read_text() + f"policy_file: {path.parent}/policy.yaml\n")


def plant_wrong_policy(path):
    (path.parent / "policy.yaml").write_text("'os_compute_api:servers:create': 'rule:nothing_such'\n")
    path.write_text(path.read_text() + f"policy_file: {path.parent}/policy.yaml\n")


def plant_silent_database(path):
    execute(path.parent / "api.db", "UPDATE cells SET database_url = "
            "'postgresql+psycopg://magnetar:secret@127.0.0.1:1/x' WHERE name = 'cell1'")


def plant_certificate(path, days=10, name="tls.pem"):
    write_certificate(path.parent / name, days)
    path.write_text(path.read_text() + f"tls_cert: {path.parent}/{name}\n")


PLANTED = {
    "setting": (plant_setting, 2, "databse_url is not a setting; did you mean database_url"),
    "held": (lambda path: path.write_text(path.read_text() + "hold_upgrade: true\n"), 1, "hold_upgrade is true: feat"),
    "rule": (plant_policy, 1, "nothing asks for the rule os_compute_api:servers:creat"),
    "policy": (plant_wrong_policy, 2, "policy_file: must be a YAML file of oslo.policy rules"),
    "api tables": (lambda path: execute(path.parent / "api.db", "DROP TABLE pool_hosts"), 2, "lacks pool_hosts"),
    "cell tables": (lambda path: execute(path.parent / "cell1.db", "ALTER TABLE actions DROP COLUMN attempts"), 2,
                    "The database cell1 says that its tables have version 0002, but lacks actions.attempts"),
    "newer": (lambda path: execute(path.parent / "cell1.db", "UPDATE alembic_version_cell SET version_num = '0999'",
                                   "DROP TABLE conductors"), 2, "of a newer release"),
    "no tables": (lambda path: (path.parent / "cell0.db").unlink(), 2, "The database cell0 has no tables"),
    "silent": (plant_silent_database, 2, "The database cell1 does not answer"),
    "no cell": (lambda path: execute(path.parent / "api.db", "DELETE FROM hosts", "DELETE FROM cells WHERE name = "
                                     "'cell1'"), 2, "The cloud has no cell but cell0"),
    "no report": (lambda path: add_host(path.parent, "kvm2", {**REPORT, "vcpus": None}), 1,
                  "The agent of kvm2 has never reported CPUs and memory"),
    "old agent": (lambda path: add_host(path.parent, "kvm2", {**REPORT, "agent_version": "0.3.1"}), 2,
                  "The agent of kvm2 has version 0.3.1; this release, 0.1.0,"),
    "old programs": (lambda path: add_host(path.parent, "kvm2", {**REPORT, "hypervisor_version": "6.2.0",
                                                                 "libvirt_version": "8.0.0"}), 2,
                     "The host kvm2 has libvirt 8.0.0 and QEMU 6.2.0; this release needs libvirt 9.0.0 and QEMU 7.2.0"),
    "certificate": (plant_certificate, 1, "expires on"),
    "expired": (lambda path: plant_certificate(path, -1), 2, "expired on"),
    "no certificate": (lambda path: path.write_text(path.read_text() + "tls_cert: /nowhere.pem\n"), 2,
                       "/nowhere.pem of the setting tls_cert cannot be read"),
    "old backup": (lambda path: os.utime(path.parent / "backup", (0, time.time() - 55 * 3600)), 1, "55 hours old"),
    "empty backup": (lambda path: (path.parent / "backup").write_text(""), 2, "is empty"),
    "lost backup": (lambda path: (path.parent / "backup").unlink(), 2, "cannot be read: No such file"),
}


@pytest.mark.parametrize(("plant", "status", "message"), PLANTED.values(), ids=PLANTED)
def test_each_planted_problem_is_found(cloud, capsys, plant, status, message):
    plant(cloud)
    found, shown = check(cloud, capsys)
    assert message in shown and found == status and "secret" not in shown
    found, shown = check(cloud, capsys, "--json")
    problems = [one for one in json.loads(shown) if one["details"]]
    assert found == status and any(message in detail for one in problems for detail in one["details"])
    assert {one["result"] for one in problems} <= {"Warning", "Failure"}


def test_little_room_is_a_finding(cloud, capsys, monkeypatch):
    usage = upgrade_checks.shutil.disk_usage(cloud.parent)
    for free, status in ((500 << 20, 1), (100 << 20, 2)):
        monkeypatch.setattr(upgrade_checks.shutil, "disk_usage", lambda _folder, free=free: usage._replace(free=free))
        found, shown = check(cloud, capsys)
        assert found == status and f"has {free >> 20} MiB left" in shown


def test_without_a_backup_there_is_a_warning(cloud, capsys):
    capsys.readouterr()
    assert cli.main(["upgrade", "check", "--config", str(cloud)]) == 1
    assert "No backup was named" in capsys.readouterr().out


def test_before_the_first_start_the_tables_are_reported(tmp_path, capsys):
    path = tmp_path / "control.yml"
    path.write_text(f"state_dir: {tmp_path}\n")
    status, shown = check(path, capsys)
    assert status == 2 and "The database api has no tables. Run `magnetar db upgrade`." in shown


def test_an_unexpected_error_has_status_255(cloud, capsys, monkeypatch):
    def fail(_cloud):
        raise RuntimeError("broken")

    monkeypatch.setitem(upgrade_checks.CHECKS, "Cells", fail)
    assert check(cloud, capsys)[0] == 255


def test_db_reports_versions_and_what_an_upgrade_would_do(tmp_path, capsys):
    path = tmp_path / "control.yml"
    path.write_text(f"state_dir: {tmp_path}\n")

    def run(*words):
        capsys.readouterr()
        return cli.main(["db", *words, "--config", str(path)]), capsys.readouterr()

    status, shown = run("upgrade", "--check")
    assert status == 2 and shown.out == "api: no tables yet\n"
    assert run("upgrade")[0] == 0
    status, shown = run("upgrade", "--check")
    assert status == 0 and shown.out.splitlines() == [f"{name}: as this version wants it"
                                                      for name in ("api", "cell0", "cell1")]
    status, shown = run("version")
    assert status == 0 and shown.out.splitlines()[0] == "api\t0002\tas this version wants it"
    execute(tmp_path / "cell1.db", "DROP TABLE conductors")
    status, shown = run("upgrade", "--check")
    assert status == 1 and "lacks conductors" in shown.err
    status, shown = run("version")
    assert status == 1 and "cell1\t0002\tThe database cell1 says" in shown.out
    status, shown = run("upgrade")
    assert status == 1 and shown.err.startswith("magnetar: The database cell1 says") and "Traceback" not in shown.err


def test_an_older_version_is_to_be_upgraded(cloud, capsys, monkeypatch):
    read = upgrade_checks.schema.read_schema_state
    monkeypatch.setattr(upgrade_checks.schema, "read_schema_state", lambda *given: dataclasses.replace(
        read(*given), newest="0003"))
    status, shown = check(cloud, capsys)
    assert status == 1 and "The tables of cell1 have version 0002, and this release needs 0003" in shown
