# SPDX-License-Identifier: GPL-3.0-or-later
"""The beginning of a cloud: users, roles, catalogue, and the clouds.yaml of its first administrator."""

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from magnetar_control.api.identity.app import identity_application
from magnetar_control.services.identity import EmbeddedIdentity, clouds_yaml
from magnetar_control.web import Request

from .cloud import URL


def test_it_is_done_once(cloud):
    assert cloud.identity.bootstrap(URL) is None
    assert cloud.identity.bootstrap(URL, "another") is None
    assert cloud.ask.login("admin", cloud.password).status == 201
    nouns = ("users", "projects", "roles", "endpoints")
    counts = {noun: len(cloud.admin("GET", f"/v3/{noun}")[noun]) for noun in nouns}
    assert counts == {"users": 1, "projects": 2, "roles": 5, "endpoints": 21}


@pytest.mark.parametrize("scope", [
    {"domain": {"id": "default"}}, {"system": {"all": True}},
    {"project": {"name": "admin", "domain": {"id": "default"}}}])
def test_the_first_admin_comes_in_everywhere(cloud, scope):
    got = cloud.ask.login("admin", cloud.password, scope=scope)
    assert got.status == 201 and "admin" in {role["name"] for role in got["token"]["roles"]}


def test_a_password_may_be_given(sqlite):
    identity = EmbeddedIdentity(sqlite)
    assert identity.bootstrap(URL, "given") == "given"


def test_a_crash_does_not_lose_the_password(database):
    """It is kept before it counts: when it cannot be kept, there is no admin yet, and the next try makes one."""
    def full(_password):
        raise OSError("the disk is full")

    identity, kept = EmbeddedIdentity(database), []
    with pytest.raises(OSError, match="full"):
        identity.bootstrap(URL, keep=full)
    password = identity.bootstrap(URL, keep=kept.append)
    assert kept == [password]
    assert identity.bootstrap(URL, keep=kept.append) is None
    assert len(kept) == 1


def test_many_at_once_make_one_cloud(database):
    def begin(_number):
        return EmbeddedIdentity(database).bootstrap(URL)

    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(begin, range(4)))
    assert len([password for password in made if password]) == 1


def test_another_url_moves_the_endpoints_that_nobody_changed(small):
    endpoints = small.admin("GET", "/v3/endpoints?interface=public")["endpoints"]
    image = next(found for found in endpoints if found["url"].endswith("/image"))
    small.admin("PATCH", f"/v3/endpoints/{image['id']}", {"endpoint": {"url": "http://glance"}}, 200)
    small.identity.bootstrap("https://other:1/")
    urls = {found["url"] for found in small.admin("GET", "/v3/endpoints?interface=public")["endpoints"]}
    assert {"http://glance", "https://other:1/v2.1"} < urls
    assert not any(url.startswith(URL) for url in urls)


@pytest.mark.parametrize("follow, host", [(True, "https://tunnel:1"), (False, URL)])
def test_the_catalogue_follows_the_name_by_which_the_client_asked(small, follow, host):
    found = identity_application(EmbeddedIdentity(small.database, follow=follow))
    request = Request("GET", "/v3/auth/catalog", "", {"x-auth-token": small.admin.token}, root="https://tunnel:1")
    urls = [end["url"] for entry in found.handle(request).content["catalog"] for end in entry["endpoints"]]
    assert all(url.startswith(f"{host}/") for url in urls)


def test_clouds_yaml_is_for_its_owner_and_keeps_other_clouds(tmp_path):
    path = tmp_path / "etc" / "clouds.yaml"
    path.parent.mkdir()
    path.write_text("clouds: {mine: {auth: {}}, magnetar: {old: 1}}\ncache: {}\n")
    path.chmod(0o644)
    clouds_yaml(path, "https://cloud:1/", "hush", tmp_path / "ca.pem")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = yaml.safe_load(path.read_text())
    assert found["cache"] == {}
    assert found["clouds"]["mine"] == {"auth": {}}
    cloud = found["clouds"]["magnetar"]
    assert "old" not in cloud
    assert cloud["auth"]["auth_url"] == "https://cloud:1/identity/v3"
    assert cloud["auth"]["password"] == "hush"
    assert cloud["cacert"] == str(tmp_path / "ca.pem")
    assert [left.name for left in path.parent.iterdir()] == ["clouds.yaml"]


@pytest.mark.parametrize("text", ["- a", "clouds: []", "a: [", "text"])
def test_a_file_that_is_no_clouds_yaml_is_left_alone(tmp_path, text):
    path = tmp_path / "clouds.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match="no clouds.yaml"):
        clouds_yaml(path, URL, "hush")
    assert path.read_text() == text
