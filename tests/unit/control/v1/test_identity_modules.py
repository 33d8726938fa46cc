# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules of domains, projects, users, groups, roles, role assignments and application credentials in playbooks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.control.cloud import Cloud
from tests.support.control.modules import examples

from .play import ROOT, Tasks, play, prepared, thrice

pytestmark = pytest.mark.slow
OPTIONS = {"cloud": "mycloud"}
SECRETS = {"password_of_ann": "bread-and-milk", "new_password_of_ann": "butter-and-tea",
           "password_of_bob": "cheese-and-wine"}
#: From nothing to a user who may work: all of it has to succeed in check mode in one play.
PEOPLE: Tasks = [
    {"domain": {"name": "farm"}}, {"project": {"name": "field", "domain": "farm", "extra_specs": {"crop": "rye"}}},
    {"project": {"name": "corner", "domain_id": "farm", "parent": "field", "tags": ["small"]}},
    {"user": {"name": "joe", "domain": "farm", "password": "hay-and-straw", "default_project": "field"}},
    {"group": {"name": "hands", "domain": "farm", "users": ["joe"]}}, {"role": {"name": "ploughman"}},
    {"role_assignment": {"role": "member", "user": "joe", "user_domain": "farm", "project": "field",
                         "project_domain": "farm"}},
    {"role_assignment": {"role": "ploughman", "group": "hands", "project": "field", "domain": "farm"}},
    {"role_assignment": {"role": "reader", "group": "hands", "group_domain": "farm", "domain": "farm"}}]


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=0) as made:
        yield made


@pytest.fixture
def folder(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("play"), cloud, "mycloud")


def with_passwords(text: str) -> Tasks:
    """The tasks in *text*, with passwords in place of their variables."""
    tasks: Tasks = yaml.safe_load(re.sub(r"\{\{ (\w*password\w*) \}\}", lambda found: SECRETS[found[1]], text))
    return tasks


def filled(module: str) -> Tasks:
    """The examples of a module."""
    return with_passwords(yaml.safe_dump(examples(module)))


def test_the_page(cloud: Cloud, folder: Path) -> None:
    """The tasks of the page do what it says, and nothing when they run again, except for those of one who leaves."""
    text = (ROOT / "docs/howto/give-people-projects-with-ansible.md").read_text()
    blocks = [with_passwords(block) for block in re.findall(r"^```yaml\n(- .*?)^```$", text, re.DOTALL | re.MULTILINE)]
    assert len(blocks) == 6
    tasks = [task for block in blocks[:4] for task in block]
    first, again = play(folder, tasks, {}), play(folder, tasks, {})
    assert all(one["changed"] for one in first) and not any(one["changed"] for one in again)
    assert all(one["changed"] for one in play(folder, blocks[4], {}))
    given, disabled = play(folder, blocks[5], {})
    assert {one["user"] or one["group"] for one in given["role_assignments"]} == {"ann", "operators"}
    assert disabled["users"] == []


def test_examples(cloud: Cloud, folder: Path) -> None:
    """Each of the changing ones in check mode, in truth and again."""
    for name in ("bob", "carl"):
        cloud.caller(name, "admin")
    domain, project, user, group, role, given = map(filled, ("domain", "project", "user", "group", "role",
                                                             "role_assignment"))
    thrice(folder, [domain[0], domain[1], *project[:2], *user[:2], *group[:2], role[0], *given], OPTIONS)
    infos = [task for name in ("domain", "project", "user", "group", "role", "role_assignment")
             for task in filled(f"{name}_info")]
    results = play(folder, infos, OPTIONS)
    assert [one["name"] for one in results[1]["domains"]] == ["shop"]
    assert [{*one} for one in results[3]["projects"]] == [{"id", "name"}] * 2
    assert [one["name"] for one in results[4]["projects"]] == ["shop-test"]
    assert [one["name"] for one in results[6]["users"]] == ["ann"]
    assert results[8]["groups"] == [{"users": ["ann", "bob", "carl"]}]
    assert [one["name"] for one in results[10]["roles"]] == ["member"]
    thrice(folder, [user[2], user[3], group[2], role[1], project[2], domain[2]], OPTIONS)


def test_a_whole_play_from_nothing(cloud: Cloud, folder: Path) -> None:
    """In check mode each task assumes what the tasks before it create; then they create it, once."""
    planned = play(folder, PEOPLE, OPTIONS, "--check", "--diff")
    assert all(one["changed"] for one in planned)
    made, again = play(folder, PEOPLE, OPTIONS, "--diff"), play(folder, PEOPLE, OPTIONS)
    assert all(one["changed"] for one in made) and not any(one["changed"] for one in again)
    assert [one["changes"] for one in planned] == [one["changes"] for one in made]
    assert "hay-and-straw" not in str(planned) + str(made)
    assert made[1]["project"]["properties"] == {"crop": "rye"} and made[7]["role_assignment"]["group_domain"] == "farm"
    removal: Tasks = [{name: {**{key: value for key, value in options.items() if "domain" in key or key in (
        "name", "role", "user", "group", "project")}, "state": "absent"}} for task in reversed(PEOPLE)
        for name, options in task.items()]
    planned = play(folder, removal, OPTIONS, "--check")
    assert all(one["changed"] for one in planned)
    gone, again = play(folder, removal, OPTIONS), play(folder, removal, OPTIONS)
    assert all(one["changed"] for one in gone) and not any(one["changed"] for one in again)


def test_names_of_openstack_cloud(cloud: Cloud, folder: Path) -> None:
    """Playbooks for openstack.cloud find the modules by their names there, and the results under theirs."""
    tasks: Tasks = [
        {"identity_domain": {"name": "mill", "description": "x", "enabled": True}},
        {"identity_user": {"name": "jane", "domain": "mill", "password": "flour-and-salt",
                           "update_password": "on_create"}},
        {"identity_group": {"name": "millers", "domain_id": "mill"}}, {"identity_role": {"name": "miller"}},
        {"identity_user_info": {"name": "jane", "domain": "mill"}}, {"identity_domain_info": {"name": "mill"}}]
    results = play(folder, tasks, OPTIONS)
    assert results[0]["domain"]["is_enabled"] and results[1]["user"]["name"] == "jane"
    assert results[2]["group"]["domain_id"] == results[0]["domain"]["id"] and results[3]["role"]["name"] == "miller"
    assert results[4]["users"][0]["domain"] == "mill" and len(results[5]["domains"]) == 1


def test_application_credentials(cloud: Cloud, folder: Path) -> None:
    create, write, remove = filled("application_credential")
    planned, made, _written, again, _written, _named, listed = play(
        folder, [{**create, "check_mode": True}, create, write, create, write, *filled("application_credential_info")],
        OPTIONS, "--diff")
    assert planned["changed"] and made["changed"] and not again["changed"]
    assert planned["changes"] == made["changes"] and "cloud" not in planned and "cloud" not in again
    secret = made["application_credential"]["secret"]
    assert made["cloud"]["auth"]["application_credential_secret"] == secret
    assert secret not in str(again) + str(listed)
    kept = folder / "clouds-backup.yaml"
    assert kept.stat().st_mode & 0o777 == 0o600
    (seen,) = play(folder, [{"project_info": {}}], OPTIONS, OS_CLIENT_CONFIG_FILE=str(kept))
    assert "admin" in {one["name"] for one in seen["projects"]}
    mine = {"application_credential": {"name": "own", "secret": "my-own-secret", "roles": [{"name": "reader"}]}}
    first, second, other, renewed = play(folder, [
        mine, mine, {"application_credential": {"name": "own", "roles": ["member"]}, "ignore_errors": True},
        {"application_credential": {"name": "own", "roles": ["member"], "on_immutable": "recreate"}}], OPTIONS)
    assert first["changed"] and not second["changed"] and renewed["changed"]
    assert "roles cannot change from ['reader'] to ['member']" in other["msg"]
    assert "my-own-secret" not in str((first, second, other, renewed))
    once, twice = play(folder, [remove, remove], OPTIONS)
    assert once["changed"] and not twice["changed"]


@pytest.mark.parametrize("direct", ["always", "never"])
def test_refusals(cloud: Cloud, folder: Path, direct: str) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"user": {"name": "admin", "state": "absent"}}, "You are logged in with this user"),
        ({"project": {"name": ""}}, "name: must have"), ({"project": {}}, "one of the following is required: name, id"),
        ({"project": {"name": "p", "domain": "nowhere"}}, "there is no domain 'nowhere'"),
        ({"role_assignment": {"role": "member", "user": "ann"}},
         "one of the following is required: project, domain, system"),
        ({"role_assignment": {"role": "member", "user": "a", "group": "b", "project": "c"}},
         "mutually exclusive: user|group"),
        ({"role_assignment": {"role": "boss", "user": "admin", "project": "admin"}}, "there is no role 'boss'"),
        ({"user_info": {"filters": {"password": "x"}}}, "filters.password")]
    results = play(folder, [{**task, "ignore_errors": True} for task, _words in cases], OPTIONS, direct=direct)
    for (task, words), result in zip(cases, results, strict=True):
        assert words in result["msg"], (task, result)
