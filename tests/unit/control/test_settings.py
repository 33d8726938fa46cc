# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings file: what is wrong in it is named, and the reference page says what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar_control import cli
from magnetar_control.scheduler.rules import scheduler_rules
from magnetar_control.settings import Settings
from magnetar_control.settings_file import load_settings, make_settings
from magnetar_core.errors import InvalidSettings
from tools import reference

ROOT = Path(__file__).resolve().parents[3]


def test_the_reference_page_is_that_of_the_settings():
    """When this fails: python -m tools.reference >docs/reference/configuration.md"""
    assert (ROOT / "docs/reference/configuration.md").read_text() == reference.settings_page()


def test_a_misspelt_setting_is_named_with_the_one_that_was_meant():
    with pytest.raises(InvalidSettings, match="databse_url is not a setting; did you mean database_url"):
        make_settings({"databse_url": "x"})


def test_a_value_of_another_type_is_refused():
    with pytest.raises(InvalidSettings, match="workers must be of type int, and is 'many'"):
        make_settings({"workers": "many"})


@pytest.mark.parametrize(("wrong", "said"), [
    ({"host_share": 1.5}, "host_share must be from 0 to 1, and is 1.5"),
    ({"host_share": float("nan")}, "host_share must be from 0 to 1, and is nan"),
    ({"token_hours": 25.0}, "token_hours must be from 1 to 24, and is 25.0")])
def test_a_number_out_of_its_range_is_refused(wrong, said):
    with pytest.raises(InvalidSettings, match=said):
        make_settings(wrong)


def test_a_share_is_one_at_least():
    assert Settings().workers_of_host() == 10 and make_settings({"workers": 3, "host_share": 0}).workers_of_host() == 1


@pytest.mark.parametrize(("wrong", "said"), [
    ({"enabled_filters": ["JasonFilter"]}, "enabled_filters: there is no filter 'JasonFilter'; did you"),
    ({"enabled_filters": "JsonFilter"}, "enabled_filters must be of type list"),
    ({"enabled_filters": [{"a": 1}]}, "enabled_filters: there is no filter"),
    ({"ram_weight_multiplier": float("nan")}, "ram_weight_multiplier must be a number, and is nan"),
    ({"soft_affinity_weight_multiplier": -1.0}, "soft_affinity_weight_multiplier must be a number from 0, and is -1.0"),
    ({"host_subset_size": 0}, "host_subset_size must be 1 or more, and is 0")])
def test_hosts_cannot_be_chosen_so(wrong, said):
    with pytest.raises(InvalidSettings, match=said):
        scheduler_rules(make_settings(wrong))


def test_a_filter_that_is_none_lets_nothing_start(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli, "configure_logging", lambda _level: None)
    monkeypatch.setattr(cli.signal, "signal", lambda *_given: None)
    path = tmp_path / "control.yml"
    path.write_text("enabled_filters: [NumaTopologyFilter]")
    for command in ("config", "conductor", "api", "serve"):
        assert cli.main([command, "--config", str(path)]) == 1
        assert "enabled_filters: there is no filter 'NumaTopologyFilter'" in capsys.readouterr().err


def test_a_file_that_is_no_yaml_is_told(tmp_path):
    path = tmp_path / "control.yml"
    path.write_text("hosts: [")
    with pytest.raises(InvalidSettings, match="control.yml cannot be read"):
        load_settings(path)


def test_cells_are_of_the_settings_unless_only_the_api_database_is():
    postgres = "postgresql+psycopg://magnetar@db/x"
    assert not Settings().spread
    assert make_settings({"database_url": postgres}).spread
    assert not make_settings({"database_url": postgres, "cell_database_url": postgres}).spread


def test_passwords_are_hidden(tmp_path, capsys):
    path = tmp_path / "control.yml"
    path.write_text("database_url: postgresql+psycopg://magnetar:secret@db/magnetar_api\n")
    assert cli.main(["config", "--config", str(path)]) == 0
    said = capsys.readouterr().out
    assert "secret" not in said and "postgresql+psycopg://magnetar:***@db/magnetar_api" in said


def test_secrets_in_urls_are_hidden(tmp_path, capsys):
    path = tmp_path / "control.yml"
    path.write_text("""
database_url: postgresql+psycopg://db/magnetar_api?user=magnetar&password=secret1&sslmode=require
notification_urls:
  chat: https://hooks.example:8443/services/secret2?token=secret3
  eda: https://eda.example/
vendordata_dynamic_targets: ["join@https://vendor.example/join?key=secret4"]
""")
    assert cli.main(["config", "--config", str(path)]) == 0
    said = capsys.readouterr().out
    assert "secret" not in said
    assert "password=..." in said and "sslmode=require" in said and "user=magnetar" in said
    assert "{'chat': 'https://hooks.example:8443/...', 'eda': 'https://eda.example/'}" in said
    assert "['join@https://vendor.example/...']" in said


@pytest.mark.parametrize("wrong", [
    "notification_urls: {eda: 'https://me:secret@eda.example/'}",
    "vendordata_dynamic_targets: ['join@https://me:secret@vendor.example/']",
])
def test_a_url_with_a_password_is_refused_without_printing_it(tmp_path, capsys, wrong):
    path = tmp_path / "control.yml"
    path.write_text(wrong)
    assert cli.main(["config", "--config", str(path)]) == 1
    said = capsys.readouterr()
    assert "must be without user and password" in said.err and "secret" not in said.out + said.err


@pytest.mark.parametrize(("wrong", "shown"), [
    ("database_url: 'postgresql+psycopg://magnetar:secret@db:port/y'", "database_url: ...@db:port/y"),
    ("database_url: 'postgresql:magnetar:secret@db'", "database_url: ...@db"),
    ("database_url: 'postgresql+psycopg://magnetar:a@secret@db/y'", "database_url: ...@db/y"),
    ("vendordata_dynamic_targets: ['https://vendor.example/join?key=secret']", "one of them must be NAME@URL"),
    ("vendordata_dynamic_targets: ['https://me:secret@vendor.example/']", "one of them must be NAME@URL"),
])
def test_what_is_no_url_is_not_printed_either(tmp_path, capsys, wrong, shown):
    path = tmp_path / "control.yml"
    path.write_text(wrong)
    cli.main(["config", "--config", str(path)])
    said = capsys.readouterr()
    assert shown in said.out + said.err and "secret" not in said.out + said.err


def test_a_database_that_is_away_is_one_sentence(tmp_path, capsys):
    path = tmp_path / "control.yml"
    path.write_text("database_url: postgresql+psycopg://magnetar:secret@127.0.0.1:1/x\n")
    assert cli.main(["cell", "list", "--config", str(path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("magnetar: the database does not answer") and "secret" not in said


def test_another_database_of_a_cell_is_warned_of(tmp_path, capsys):
    path = tmp_path / "control.yml"
    path.write_text(f"state_dir: {tmp_path}\n")
    assert cli.main(["db", "upgrade", "--config", str(path)]) == 0

    def create(name):
        assert cli.main(["cell", "create", "cell2", "--database-url", f"sqlite:///{tmp_path}/{name}.db",
                         "--config", str(path)]) == 0
        return capsys.readouterr()

    assert create("one").err == create("one").err == ""
    said = create("two")
    assert "changed" in said.out and "cell2 has another database" in said.err and "restart every API" in said.err


def test_purging_says_what_it_did(tmp_path, capsys):
    path = tmp_path / "control.yml"
    path.write_text(f"state_dir: {tmp_path}\n")
    assert cli.main(["db", "upgrade", "--config", str(path)]) == 0

    def purge(*words):
        capsys.readouterr()
        return cli.main(["db", "purge", *words, "--config", str(path)]), capsys.readouterr()

    status, said = purge("--before", "2026-08-01", "--archive", str(tmp_path / "old"))
    assert status == 0 and (tmp_path / "old").is_dir()
    assert said.out == "".join(f"{cell}: 0 {what} before 2026-08-01T00:00:00 removed\n" for cell in ("cell0", "cell1")
                               for what in ("servers deleted", "incidents ended")) + (
        "0 fencing requests ended before 2026-08-01T00:00:00 removed\n")
    status, said = purge("--dry-run")
    assert status == 0 and "are there" in said.out
    status, said = purge("--before", "soon")
    assert status == 1 and said.err.startswith("magnetar: ") and "--before: must be a day or time" in said.err
    path.write_text(f"state_dir: {tmp_path}\npurge_deleted_after: 0\n")
    status, said = purge()
    assert status == 1 and "purge_deleted_after is 0" in said.err
