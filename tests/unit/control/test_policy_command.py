# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar policy``: what it lists, writes and checks."""

import json

import pytest
import yaml

from magnetar_control.cli import main
from magnetar_control.compute.access.policies import CHECKS, POLICIES
from magnetar_control.compute.access.policy import Policy

CREATE = "os_compute_api:servers:create"


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    settings = tmp_path / "control.yml"
    settings.write_text(f"state_dir: {tmp_path}/state\n")
    for name in ("OS_ROLES", "OS_PROJECT_ID", "OS_USER_ID"):
        monkeypatch.delenv(name, raising=False)

    def ran(*words, status=0):
        assert main(["policy", *words, "--config", str(settings)]) == status
        return capsys.readouterr().out

    ran.settings, ran.error = settings, lambda *words: (main(["policy", *words]), capsys.readouterr().err)[1]
    return ran


def test_list_says_what_asks_for_each_rule(run, tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(f'"{CREATE}": "role:builder"\n')
    shown = run("list", "servers:create", "--file", str(file))
    assert f"{CREATE}\n    * role:builder\n    POST /servers\n" in shown
    assert "servers:create:forced_host\n    rule:context_is_admin\n    Put a server" in shown
    rules = {one["name"]: one for one in json.loads(run("list", "--json"))}
    assert rules["os_compute_api:os-rescue"]["operations"] == ["POST /servers/{server_id}/action (rescue)"]
    assert all(one["check"] == one["default"] and one["operations"] for one in rules.values())
    run("list", "nothing-has-this-name", status=1)


def test_generate_prints_a_file_that_changes_nothing(run, tmp_path, caplog):
    file = tmp_path / "policy.yaml"
    file.write_text("".join(f"{line.removeprefix('#')}\n" if line.startswith('#"') else f"{line}\n"
                            for line in run("generate").splitlines()))
    found = yaml.safe_load(file.read_text())
    assert {name: check for name, check in found.items() if name in POLICIES} == {
        name: CHECKS[POLICIES[name]] for name in found if name in POLICIES}
    assert CREATE in found and "context_is_admin" in found
    Policy(file)
    assert not caplog.records


def test_check_says_who_passes(run, tmp_path):
    assert run("check", CREATE, "--as", "member") == f"passed: {CREATE}\n"
    assert run("check", CREATE, "--as", "reader", status=1) == f"failed: {CREATE}\n"
    run("check", CREATE, "--as", "member", "--target", "project_id=another", status=1)
    run("check", CREATE, "--as", "admin", "--target", "project_id=another")
    every = json.loads(run("check", "--as", "reader", "--json"))
    assert every["os_compute_api:servers:show"] and not every[CREATE]
    token = tmp_path / "token.json"
    token.write_text(json.dumps({"token": {
        "roles": [{"name": "member", "id": "1"}], "user": {"id": "u", "domain": {"id": "default"}},
        "project": {"id": "p", "domain": {"id": "default"}}}}))
    run("check", CREATE, "--credentials", str(token), "--target", "project_id=p")
    run("check", CREATE, "--credentials", str(token), "--target", "project_id=q", status=1)


def test_check_reads_the_files_of_the_settings(run, tmp_path):
    folder = tmp_path / "policy.d"
    folder.mkdir()
    (folder / "one.yaml").write_text(f'"{CREATE}": "role:builder"\n')
    run.settings.write_text(f"state_dir: {tmp_path}/state\npolicy_dirs: [{folder}]\n")
    run("check", CREATE, "--as", "builder")
    run("check", CREATE, "--as", "admin", status=1)


@pytest.mark.parametrize(("words", "said"), [
    (("check", "no-rule", "--as", "member"), "RULE: must be the name of a rule"),
    (("check",), "--as: is needed"),
    (("check", "--as", "member", "--target", "host=x"), "--target: must be project_id=ID or user_id=ID"),
    (("check", "--credentials", "/missing.json"), "--credentials: must be a JSON file"),
    (("list", "--file", "/missing.yaml"), "policy_file: must be a YAML file")])
def test_what_is_wrong_is_said(run, words, said):
    assert said in run.error(*words)
