# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that ask a cloud: their examples, how they log in, and what they say when that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar_control.conductor.flows import server_create_image
from magnetar_core.errors import Conflict, InvalidField, Unauthenticated
from magnetar_core.fields import Kind
from magnetar_core.http import login
from magnetar_core.http.client import Client
from magnetar_core.kinds import ComputeService, Flavor, Hypervisor, Image, Network, Server, Volume
from magnetar_core.query import filter_reader
from tests.support.control.cloud import Cloud
from tests.support.control.modules import examples

from .play import play, prepared, thrice

pytestmark = pytest.mark.slow

EXAMPLES = ("aggregate", "aggregate_info", "availability_zone_info", "balance_info", "capacity_info", "cell_info",
            "compute_service", "compute_service_info", "console_info", "host_fence_info", "host_maintenance_info",
            "hypervisor_info", "incident_info", "instance_action_info", "limits_info", "quota", "quota_info",
            "resource_provider", "resource_provider_info", "storage_pool_info", "trait_info", "server_backup",
            "server_group", "server_group_info", "server_topology_info", "share_attachment", "share_attachment_info",
            "usage_info",
            "volume_type", "volume_type_info")
#: A share that the examples name files.
SHARE = "e8debdc0-447a-4376-a10a-4cd9122d7986"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    folder = tmp_path_factory.mktemp("novnc")
    (folder / "vnc.html").touch()
    with Cloud(hosts=1, novnc_dir=str(folder), folders={"files": str(folder)}, shares={SHARE: "files"}) as made:
        made.admin.boot("web1")
        yield made


@pytest.fixture(scope="module")
def folder(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("play"), cloud, "mycloud")


def auth(cloud: Cloud, **more: Any) -> dict[str, Any]:
    return {"auth": {"auth_url": f"http://127.0.0.1:{cloud.port}/identity", "username": "admin", "password":
                     cloud.password, "project_name": "admin", **more}}


def test_examples(cloud: Cloud, folder: Path) -> None:
    tasks = [task for module in EXAMPLES for task in examples(module) if "ansible.builtin.assert" not in task]
    results = play(folder, tasks, {}, "--diff")
    assert len(results) == len(tasks)
    back = [{"compute_service": {"name": "kvm1", "forced_down": False}}]
    (checked,) = play(folder, back, {"cloud": "mycloud"}, "--check", "--diff")
    assert checked["changed"] and checked["diff"]["after"] == {"forced_down": False}
    once, twice = play(folder, back + back, {"cloud": "mycloud"})
    assert once["changed"] and not twice["changed"]


def test_cells_by_module(cloud: Cloud, folder: Path) -> None:
    url = f"sqlite:///{cloud.folder}/modules.db"
    cell = {"cell": {"name": "cell9", "database_url": url}}
    made, again, gone = play(folder, [cell, cell, {"cell": {"name": "cell9", "state": "absent"}}], {"cloud": "mycloud"})
    assert made["changed"] and not again["changed"] and gone["changed"]
    assert url not in str(made)


def test_groups_and_quotas_by_module(cloud: Cloud, folder: Path) -> None:
    """Each twice: once it changes something, then nothing; in check mode before, what it would."""
    cloud.caller("ann", "demo")
    tasks: list[dict[str, Any]] = [
        {"aggregate": {"name": "fast2", "hosts": ["kvm1"], "metadata": {"a": 1, "b": "x"}}},
        {"aggregate": {"name": "fast2", "metadata": {"c": "y"}, "purge_metadata": False}},
        {"aggregate": {"name": "fast2", "hosts": []}}, {"aggregate": {"name": "fast2", "availability_zone": "rack9"}},
        {"aggregate": {"name": "fast2", "state": "absent"}},
        {"server_group": {"name": "apart2", "policy": "anti-affinity", "rules": {"max_server_per_host": 2}}},
        {"server_group": {"name": "apart2", "state": "absent"}},
        {"volume_type": {"name": "fast2", "extra_specs": {"multiattach": "<is> True"}, "description": "x"}},
        {"volume_type": {"name": "fast2", "is_public": False, "projects": ["demo", "admin"], "extra_specs": {}}},
        {"volume_type": {"name": "fast2", "encryption": {"provider": "luks", "key_size": 512}, "projects": ["demo"]}},
        {"volume_type": {"name": "fast2", "encryption": {}, "is_public": True, "projects": []}},
        {"volume_type": {"name": "fast2", "state": "absent"}},
        {"quota": {"name": "admin", "cores": 77, "ram": -1}}, {"quota": {"name": "admin", "state": "absent"}}]
    thrice(folder, tasks, {"cloud": "mycloud"})
    wrong, fixed = play(folder, [
        {"aggregate": {"name": "fast3", "hosts": ["kvm9"]}, "ignore_errors": True},
        {"server_group": {"name": "apart3", "policy": "affinity", "rules": {"max_server_per_host": 2}},
         "ignore_errors": True}], {"cloud": "mycloud"})
    assert "hosts[0]" in wrong["msg"] and "Only anti-affinity policy supports rules" in fixed["msg"]


def test_actions(cloud: Cloud, folder: Path) -> None:
    image = {"action": "create_image", "image_name": "of web1", "metadata": {"a": 1}}
    tasks = [{"server_action": {"name": "web1", **one}} for one in (
        {"action": "reboot_hard"}, image, image, {"action": "rebuild", "metadata": {"n": 2}}, {"action": "rescue"},
        {"action": "rescue"}, {"action": "unrescue"}, {"action": "console_output", "length": 5}, {"action": "stop"},
        {"action": "start"})]
    found = play(folder, tasks, {"cloud": "mycloud"})
    assert [one["changed"] for one in found] == [True, True, False, True, True, False, True, False, True, True]
    assert found[1]["consistency"] == found[2]["consistency"] == "crash-consistent"
    assert found[3]["server"]["metadata"] == {"n": "2"} and found[-1]["server"]["status"] == "ACTIVE"
    checked = play(folder, tasks[:1], {"cloud": "mycloud"}, "--check")
    assert checked[0]["changed"]


def test_an_image_that_an_earlier_task_is_making(cloud: Cloud, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, real = threading.Event(), server_create_image._make
    monkeypatch.setattr(server_create_image, "_make", lambda work: (go.wait(60), real(work)))
    task = {"name": "web1", "action": "create_image", "image_name": "under way", "wait": False}
    tasks: list[dict[str, Any]] = [
        {"server_action": task}, {"server_action": task}, {"server_action": task, "check_mode": True}]
    first, *others = play(folder, tasks, {"cloud": "mycloud"})
    assert first["changed"] and first["operation"]["status"] == "running", first
    for again in others:
        assert not again["changed"] and again["actions"] == [], again
        assert again["operation"]["id"] == first["operation"]["id"] and again["image"]["name"] == "under way"
    go.set()
    (waited,) = play(folder, [{"server_action": {**task, "wait": True}}], {"cloud": "mycloud"})
    assert not waited["changed"] and waited["image"] == others[0]["image"] and "operation" not in waited
    made = cloud.admin.get("/image/v2/images?name=under%20way").json["images"]
    assert [one["status"] for one in made] == ["active"]


def test_an_image_whose_making_failed(cloud: Cloud, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is an image of that name, which has no content and never will."""
    task = {"server_action": {"name": "web1", "action": "create_image", "image_name": "failed"}}
    with monkeypatch.context() as patch:
        patch.setattr(server_create_image, "_make", lambda _work: (_ for _ in ()).throw(Conflict("The disk is bad.")))
        (failed,) = play(folder, [{**task, "ignore_errors": True}], {"cloud": "mycloud"})
    assert "The disk is bad." in failed["msg"], failed
    assert [one["changed"] for one in play(folder, [task, task], {"cloud": "mycloud"})] == [True, False]


def test_backups_by_module(cloud: Cloud, folder: Path) -> None:
    """A backup of a name is made once; of its kind the oldest go; absent, it is deleted, whatever its kind."""
    def backup(name: str, **more: Any) -> dict[str, Any]:
        return {"server_backup": {"server": "web1", "name": name, "backup_type": "nightly", "rotation": 2, **more}}

    gone = {"server_backup": {"server": "web1", "name": "n3", "state": "absent"}}
    (checked,) = play(folder, [backup("n1")], {"cloud": "mycloud"}, "--check", "--diff")
    assert checked["changed"] and checked["diff"] == {"before": {"backups": []}, "after": {"backups": ["n1"]}}
    found = play(folder, [
        backup("n1", metadata={"a": 1}), backup("n1"), backup("other", backup_type="weekly"), backup("n2"),
        backup("n3"), {"image_info": {}}, gone, gone, {**backup("n4", backup_type=None), "ignore_errors": True},
        {"server_backup": {**gone["server_backup"], "rotation": 1}, "ignore_errors": True}], {"cloud": "mycloud"})
    assert [one["changed"] for one in found[:5]] == [True, False, True, True, True]
    made, again = found[0]["image"], found[1]["image"]
    assert made["id"] == again["id"] and made["status"] == "active" and made["properties"]["a"] == "1"
    assert {one["name"] for one in found[5]["images"]} >= {"other", "n2", "n3"}
    assert "n1" not in {one["name"] for one in found[5]["images"]}
    assert [one["changed"] for one in found[6:8]] == [True, False] and found[7]["image"] is None
    assert "backup_type" in found[8]["msg"] and "rotation" in found[9]["msg"]


def test_by_variables_and_as_modules(cloud: Cloud, folder: Path) -> None:
    variables = {"OS_AUTH_URL": f"http://127.0.0.1:{cloud.port}/identity/v3", "OS_USERNAME": "admin",
                 "OS_PASSWORD": cloud.password, "OS_PROJECT_NAME": "admin", "OS_USER_DOMAIN_NAME": "Default",
                 "OS_PROJECT_DOMAIN_ID": "default"}
    (found,) = play(folder, [{"server_info": {"fields": ["name"]}}], {}, direct="never", **variables)
    assert found["servers"] == [{"name": "web1"}]
    (found,) = play(folder, [{"host_info": {}}], {}, OS_CLOUD="mycloud")
    assert found["hosts"][0]["name"] == "kvm1"
    wrong, unknown = play(folder, [{"server_info": {}, "ignore_errors": True}, {"server_info": {"cloud": "none"},
                                                                                "ignore_errors": True}],
                          {}, **{**variables, "OS_PASSWORD": "wrong"})
    assert "does not let you in" in wrong["msg"] and "is not in" in unknown["msg"]


def test_an_inventory_of_the_cloud(cloud: Cloud, folder: Path) -> None:
    """By its name, as an item of endpoints, and by the variables; a socket in the environment does not win."""
    secrets = {name: str(text) for name, text in auth(cloud)["auth"].items()}
    variables = {login.VARIABLES[name]: text for name, text in secrets.items()}
    nowhere = {"MAGNETAR_ENDPOINT": "unix:///nowhere"}
    for config, more in (({"cloud": "mycloud"}, nowhere), ({}, {"OS_CLOUD": "mycloud"}),
                         ({"endpoints": [{"cloud": "mycloud"}]}, nowhere), ({}, variables)):
        kept = {"cache": True, "cache_plugin": "ansible.builtin.jsonfile", "cache_connection": str(folder / "cache"),
                "cache_prefix": f"{len(more)}{len(config)}"}
        for _from_cache in (False, True):
            answer = listed(folder, {**config, **kept}, **more)
            variables_of = answer["_meta"]["hostvars"]["web1"]
            assert variables_of["magnetar"]["status"] == "ACTIVE" and "cloud" not in variables_of["magnetar"]
            assert variables_of["magnetar_endpoint"] == f"http://127.0.0.1:{cloud.port}"
            assert variables_of.get("magnetar_cloud") == (None if "OS_AUTH_URL" in more else "mycloud")
    assert not [path for path in (folder / "cache").iterdir() if cloud.password in path.read_text()]


def listed(folder: Path, config: dict[str, Any], **environment: str) -> dict[str, Any]:
    """What ansible-inventory makes of *config*."""
    file = folder / "cloud.magnetar.yml"
    file.write_text(yaml.safe_dump({"plugin": "magnetar.compute.servers", **config}))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OS_", "MAGNETAR_"))}
    env = {**kept, "OS_CLIENT_CONFIG_FILE": str(folder / "clouds.yaml"), "ANSIBLE_COLLECTIONS_PATH": str(folder),
           "ANSIBLE_LOCAL_TEMP": str(folder), "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true", **environment}
    done = subprocess.run([Path(sys.executable).parent / "ansible-inventory", "-i", file, "--list"], env=env,
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", [Server, Flavor, Image, Network, Volume, ComputeService, Hypervisor])
def test_what_modules_filter_by_is_known_here(cloud: Cloud, kind: type[Kind]) -> None:
    with Client(login=login.Login(auth(cloud))) as client:
        for field in kind.fields:
            if "list" in field.on and filter_reader(field.value):
                with suppress(InvalidField):  # it knows the field, and that this is no value of it
                    client.list(kind.noun, **{field.name: "1"})


def test_a_token_is_renewed(cloud: Cloud) -> None:
    entry = login.Login(auth(cloud))
    with Client(login=entry) as client:
        assert client.info()["cloud"] is True
        login._sessions[entry._key] = ("not a token any more", login._sessions[entry._key][1])
        assert [server["name"] for server in client.list("server")] == ["web1"]
    with pytest.raises(Unauthenticated, match="does not let you in"):
        login.Login(auth(cloud, password="wrong")).token  # noqa: B018


def test_other_logins(cloud: Cloud) -> None:
    by_token = login.Login({"auth": {**auth(cloud)["auth"], "password": None, "username": None,
                                     "token": cloud.admin.token}})
    with Client(login=by_token) as client:
        assert client.info()["api"] == 1
    with pytest.raises(InvalidField, match="must be an https URL"):
        login.Login({"auth": {**auth(cloud)["auth"], "auth_url": "http://cloud.example.org/identity"}}).token  # noqa: B018
    with pytest.raises(InvalidField, match="OS_PASSWORD"):
        login.Login(auth(cloud, password=None)).token  # noqa: B018
    found = login.login_request({"application_credential_id": "i", "application_credential_secret": "s"})
    assert found == {"identity": {"methods": ["application_credential"], "application_credential": {
        "id": "i", "secret": "s"}}}
