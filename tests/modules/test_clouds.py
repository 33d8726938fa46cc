# SPDX-License-Identifier: GPL-3.0-or-later
"""Which cloud, or which agent, a task means; and what clouds.yaml and secure.yaml say."""

from __future__ import annotations

import importlib

import pytest

from .conftest import COLLECTION

clouds = importlib.import_module(f"{COLLECTION}.plugins.module_utils.clouds")
#: The classes as the collection has them: magnetar_core's are others.
InvalidField = importlib.import_module(f"{COLLECTION}.plugins.module_utils.core.errors").InvalidField


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    for name in ("OS_CLOUD", "OS_AUTH_URL", "OS_CLIENT_CONFIG_FILE", "MAGNETAR_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("params", "environment", "expected"), [
    ({}, {}, None),
    ({"endpoint": "https://kvm1", "cloud": "a"}, {}, None),
    ({"cloud": "a"}, {}, "a"),
    ({"cloud": "a"}, {"OS_CLOUD": "a", "OS_AUTH_URL": "https://x"}, "a"),
    ({"endpoint": "https://kvm1"}, {"OS_AUTH_URL": "https://x"}, None),
    ({"endpoint": "https://e", "cloud": "a"}, {"MAGNETAR_ENDPOINT": "https://e"}, "a"),
    ({"endpoint": "https://e", "cloud": "a"}, {"MAGNETAR_ENDPOINT": "https://e", "OS_CLOUD": "a"}, None),
])
def test_what_wins(monkeypatch, params, environment, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = clouds.chosen_cloud(params)
    assert (found and found[0]) == expected


def test_variables(monkeypatch):
    monkeypatch.setenv("OS_AUTH_URL", "https://x/v3")
    monkeypatch.setenv("OS_PASSWORD", "p")
    found = clouds.read_cloud_entry({"validate_certs": False})
    assert found["auth"]["auth_url"] == "https://x/v3" and found["auth"]["password"] == "p" and found["verify"] is False


def test_files(tmp_path):
    with pytest.raises(InvalidField, match="there is none at"):
        clouds.read_cloud_entry({"cloud": "a"})
    (tmp_path / "clouds.yaml").write_text("clouds: {a: {auth: {auth_url: 'https://x', username: me}, cacert: /ca}}")
    (tmp_path / "secure.yaml").write_text("clouds: {a: {auth: {password: p}}}")
    assert clouds.read_cloud_entry({"cloud": "a"}) == {
        "auth": {"auth_url": "https://x", "username": "me", "password": "p"}, "cacert": "/ca"}
    with pytest.raises(InvalidField, match="which has: a"):
        clouds.read_cloud_entry({"cloud": "b"})
    (tmp_path / "clouds.yaml").write_text("password: geheim: [")
    with pytest.raises(InvalidField, match="is no clouds.yaml") as caught:
        clouds.read_cloud_entry({"cloud": "a"})
    assert "geheim" not in str(caught.value)


def test_the_only_cloud_of_the_file_that_the_environment_names(monkeypatch, tmp_path):
    """What AWX's credential OpenStack gives a job. With several clouds in it a task fails, and names them."""
    path = tmp_path / "given.yaml"
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(path))
    path.write_text("clouds: {devstack: {auth: {auth_url: 'https://x'}}}")
    assert clouds.chosen_cloud({}) == (clouds.ONLY, None)
    assert clouds.read_cloud_entry({}) == {"auth": {"auth_url": "https://x"}} and clouds.read_only_cloud() == "devstack"
    assert clouds.chosen_cloud({"endpoint": "https://kvm1"}) is None
    path.write_text("clouds: {b: {auth: {}}, a: {auth: {}}}")
    with pytest.raises(InvalidField, match="is required: .* has 2 clouds, a, b. Name one as cloud, or in OS_CLOUD"):
        clouds.read_cloud_entry({})
    path.write_text("clouds: {}")
    with pytest.raises(InvalidField, match="has no cloud"):
        clouds.read_cloud_entry({})


def test_which_variable_decides(monkeypatch):
    assert clouds.deciding_variable({}) is None
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", "x")
    assert clouds.deciding_variable({}) == "OS_CLIENT_CONFIG_FILE"
    monkeypatch.setenv("OS_CLOUD", "x")
    assert clouds.deciding_variable({}) == "OS_CLOUD"
    assert clouds.deciding_variable({"cloud": "x"}) is clouds.deciding_variable({"endpoint": "unix:///x"}) is None
    monkeypatch.setenv("MAGNETAR_ENDPOINT", "unix:///x")
    assert clouds.deciding_variable({}) is None
