# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings file: what is wrong in it is named, and the reference page says what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar_control import cli
from magnetar_control.settings import InvalidSettings, Settings, load, make
from tools import reference

ROOT = Path(__file__).resolve().parents[3]


def test_the_reference_page_is_that_of_the_settings():
    """When this fails: python tools/reference.py >docs/configuration.md"""
    assert (ROOT / "docs/configuration.md").read_text() == reference.page()


def test_a_misspelt_setting_is_named_with_the_one_that_was_meant():
    with pytest.raises(InvalidSettings, match="databse_url is not a setting; did you mean database_url"):
        make({"databse_url": "x"})


def test_a_value_of_another_type_is_refused():
    with pytest.raises(InvalidSettings, match="workers must be of type int, and is 'many'"):
        make({"workers": "many"})


def test_a_file_that_is_no_yaml_is_told(tmp_path):
    path = tmp_path / "control.yml"
    path.write_text("hosts: [")
    with pytest.raises(InvalidSettings, match="control.yml cannot be read"):
        load(path)


def test_cells_are_of_the_settings_unless_only_the_api_database_is():
    postgres = "postgresql+psycopg://magnetar@db/x"
    assert not Settings().spread
    assert make({"database_url": postgres}).spread
    assert not make({"database_url": postgres, "cell_database_url": postgres}).spread


def test_passwords_are_hidden(tmp_path, capsys):
    path = tmp_path / "control.yml"
    path.write_text("database_url: postgresql+psycopg://magnetar:secret@db/magnetar_api\n")
    assert cli.main(["config", "--config", str(path)]) == 0
    said = capsys.readouterr().out
    assert "secret" not in said and "postgresql+psycopg://magnetar:***@db/magnetar_api" in said


def test_a_database_that_is_away_is_one_sentence(tmp_path, capsys):
    path = tmp_path / "control.yml"
    path.write_text("database_url: postgresql+psycopg://magnetar:secret@127.0.0.1:1/x\n")
    assert cli.main(["cell", "list", "--config", str(path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("magnetar: the database does not answer") and "secret" not in said
