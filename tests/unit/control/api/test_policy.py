# SPDX-License-Identifier: GPL-3.0-or-later
"""The file that overrides rules: what it allows and forbids, and what is said of one that is wrong."""

import asyncio
import dataclasses
import logging
import subprocess
import sys

import pytest

from magnetar_control.api.nova.app import ComputeApplication
from magnetar_control.api.nova.operations import OPERATIONS
from magnetar_control.api.v1 import V1Application, event
from magnetar_control.compute.access import policy
from magnetar_control.compute.access.policies import POLICIES
from magnetar_control.compute.access.policy import Policy
from magnetar_control.compute.cloud import Cloud
from magnetar_control.compute.events import events
from magnetar_control.services import Context
from magnetar_control.settings_file import make_settings
from magnetar_control.web import Request
from magnetar_core.errors import InvalidField

from .compute import WHO, Caller

SHOW, INDEX = "os_compute_api:servers:show", "os_compute_api:servers:index"
NOBODY_SHOWS = f'"{SHOW}": "!"\n'
WRONG = {
    "no-yaml": '"a: [', "no-mapping": "- a", "no-text": f'"{SHOW}": [1]', "number": f'"{SHOW}": 1',
    "not-understood": f'"{SHOW}": "role admin"', "partly": f'"{SHOW}": "role:admin or what"',
    "unclosed": f'"{SHOW}": "(role:admin"', "not-there": f'"{SHOW}": "rule:nothing"',
    "circle": '"a": "rule:b"\n"b": "rule:a"\n', "no-utf-8": b"\xff\xfe",
}


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(policy, "RECHECK_INTERVAL", 0.0)
    return tmp_path / "policy.yaml"


def write(file, content):
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


def allows(decides, rule=SHOW, who="alice"):
    return decides.allows(rule, WHO[who])


def test_defaults_are_as_without_a_file(file):
    write(file, "# nothing is overridden\n")
    with_file, without = Policy(file), Policy()
    for rule in POLICIES:
        for who in WHO.values():
            assert with_file.allows(rule, who) is without.allows(rule, who)


def test_requests_are_refused_and_allowed_by_the_file(small, file):
    write(file, f'"mine": "role:member"\n{NOBODY_SHOWS}"{INDEX}:get_all_tenants": "rule:mine"\n')
    cloud = Cloud(make_settings({"state_dir": str(file.parent), "policy_file": str(file)}), small.store,
                  small.cloud.services, small.cloud.agents)
    alice, rita = (Caller(ComputeApplication(cloud, OPERATIONS), name) for name in ("alice", "rita"))
    id = small.server()
    reply = alice.get(f"/servers/{id}")
    assert reply.status == 403 and SHOW in reply.message
    assert alice.get("/servers?all_tenants=1").status == 200
    assert rita.get("/servers?all_tenants=1").status == 403
    write(file, f'"{SHOW}": "role:reader"\n')
    assert alice.get(f"/servers/{id}").status == 200
    assert alice.get("/servers?all_tenants=1").status == 403


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_nothing_starts_with_a_wrong_file(file, content):
    write(file, content)
    with pytest.raises(InvalidField, match=r"^policy_file: must be a YAML file of oslo.policy rules, and .*yaml"):
        Policy(file)


def test_nothing_starts_without_the_file(file):
    with pytest.raises(InvalidField, match="No such file"):
        Policy(file)


def test_the_command_says_why_it_does_not_start(tmp_path):
    settings = tmp_path / "control.yml"
    settings.write_text(f"state_dir: {tmp_path}/state\npolicy_file: {tmp_path}/missing.yaml\n")
    done = subprocess.run([sys.executable, "-c", "import sys; from magnetar_control.cli import main; sys.exit(main())",
                           "api", "--config", str(settings)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1 and "magnetar: policy_file: must be" in done.stderr


@pytest.mark.parametrize("content", [*WRONG.values(), None], ids=[*WRONG, "gone"])
def test_what_becomes_wrong_changes_nothing_and_is_told_once(file, content, caplog):
    write(file, NOBODY_SHOWS)
    decides = Policy(file)
    assert not allows(decides, who="admin")
    if content is None:
        file.unlink()
    else:
        write(file, content)
    with caplog.at_level(logging.ERROR):
        for _again in range(3):
            assert not allows(decides, who="admin") and allows(decides, INDEX)
    assert [one.name for one in caplog.records] == [policy.__name__]
    assert "policy_file" in caplog.text and "stay as they were" in caplog.text
    write(file, "# all is well again\n")
    assert allows(decides, who="admin")


def test_a_misspelt_rule_is_told(file, caplog):
    write(file, '"os_compute_api:server:show": "!"\n"mine": "role:member"\n"os_compute_api:os-stop": "rule:mine"\n')
    with caplog.at_level(logging.WARNING):
        Policy(file)
    told = [one.getMessage() for one in caplog.records]
    assert len(told) == 2 and f"os_compute_api:server:show; is {SHOW} meant?" in told[1], told
    assert "os_compute_api:os-stop" in told[0] and "mine" not in told[0].split(";")[0].rpartition("rule ")[2]


def test_former_names_of_rules_hold_and_are_told(file, caplog):
    write(file, '"os_compute_api:os-services": "role:member"\n"os_compute_api:os-services:delete": "!"\n'
                '"os_compute_api:os-rescue": "!"\n"os_compute_api:os-volumes": "rule:admin_or_owner"\n')
    with caplog.at_level(logging.WARNING):
        decides = Policy(file)
    services = [allows(decides, f"os_compute_api:os-services:{what}") for what in ("list", "update", "delete")]
    assert services == [True, True, False]
    assert not allows(decides, "os_compute_api:os-rescue") and not allows(decides, "os_compute_api:os-unrescue")
    assert not allows(decides, "os_compute_api:os-volumes:delete", "rita"), "what was the default then is that of today"
    told = [one.getMessage() for one in caplog.records]
    assert len(told) == 2 and all("is deprecated" in one for one in told)
    assert "os_compute_api:os-services:list" in told[0]


def test_files_in_folders_are_read_in_order(file):
    folder = file.parent / "policy.d"
    folder.mkdir()
    write(file, f'"{SHOW}": "!"\n"{INDEX}": "!"\n')
    write(folder / "10-one.yaml", f'"{SHOW}": "role:reader"\n')
    write(folder / "20-two.yaml", f'"{SHOW}": "role:member"\n')
    write(folder / ".hidden", f'"{SHOW}": "!"\n')
    decides = Policy(file, [folder])
    assert allows(decides) and not allows(decides, who="rita") and not allows(decides, INDEX)
    write(folder / "30-three.yaml", f'"{SHOW}": "!"\n')
    assert not allows(decides, who="admin")
    (folder / "30-three.yaml").unlink()
    assert allows(decides, who="admin")


def test_nothing_starts_without_a_folder(file):
    with pytest.raises(InvalidField, match="policy_dirs: must be folders"):
        Policy(folders=[file.parent / "missing"])


def test_a_policy_file_of_nova_loads(file, caplog):
    write(file, """
"context_is_admin": "role:admin or role:cloud_admin"
"rule:admin_api": "rule:context_is_admin"
"default": "rule:admin_or_owner"
"owner": "project_id:%(project_id)s"
"os_compute_api:servers:create": "rule:owner"
"os_compute_api:servers:start": "rule:no_such_rule"
"os_compute_api:servers:stop": ""
"compute:servers:create:requested_destination": "rule:project_manager_or_admin"
"compute:servers:resize:cross_cell": "rule:admin_api"
"os_compute_api:os-agents:list": "rule:system_reader_api"
"network:attach_external_network": "rule:project_member_or_admin"
""")
    with caplog.at_level(logging.WARNING):
        decides = Policy(file)
    assert allows(decides, "os_compute_api:servers:create", "rita") and allows(decides, "os_compute_api:servers:start")
    assert not allows(decides, "compute:servers:create:requested_destination")
    assert allows(decides, "network:attach_external_network", "alice")
    told = " ".join(one.getMessage() for one in caplog.records)
    for name in ("rule:admin_api", "os_compute_api:os-agents:list"):
        assert f"nothing asks for the rule {name}" in told
    assert "owner" not in told.replace("os_compute_api:", "") and "default" not in told


def test_who_is_an_administrator_is_a_rule(small, file):
    write(file, '"context_is_admin": "role:admin or user_id:rita"\n')
    cloud = Cloud(make_settings({"state_dir": str(file.parent), "policy_file": str(file)}), small.store,
                  small.cloud.services, small.cloud.agents)
    id = small.server(project="blue", user="bob")
    for name, status in (("rita", 200), ("alice", 404)):
        caller = Caller(ComputeApplication(cloud, OPERATIONS), name)
        assert caller.get(f"/servers/{id}").status == status
        assert caller.get("/servers?deleted=1&status=DELETED").status == (200 if name == "rita" else 403)


def test_a_rule_that_asks_another_server_is_refused(file):
    write(file, f'"{SHOW}": "http://policy.example/%(project_id)s"\n')
    with pytest.raises(InvalidField, match=f"{SHOW} asks another server"):
        Policy(file)


MANAGED = {"os_compute_api:os-migrate-server:migrate", "os_compute_api:os-migrate-server:migrate_live",
           "os_compute_api:os-migrations:index", "os_compute_api:servers:migrations:index",
           "os_compute_api:servers:migrations:force_complete", "os_compute_api:servers:migrations:delete"}


def test_what_managers_and_services_may():
    decides = Policy()

    def passed(*roles):
        who = Context("somebody", "red", frozenset(roles))
        return {rule for rule in POLICIES if decides.allows(rule, who)}

    assert passed("manager", "member", "reader") - passed("member", "reader") == MANAGED
    assert passed("service") - passed() == {
        "os_compute_api:os-server-external-events:create", "os_compute_api:os-volumes-attachments:swap",
        "os_compute_api:os-assisted-volume-snapshots:create", "os_compute_api:os-assisted-volume-snapshots:delete"}


@pytest.mark.parametrize("query", ["all_projects=true", "kind=server&server=web1"])
def test_a_stream_of_events_ends_when_an_administrator_is_none_any_more(small, monkeypatch, query):
    """The token stays valid, because another role remains."""
    monkeypatch.setattr(event, "CHECKED", 0.0)
    monkeypatch.setattr(events, "TICK", 0.05)
    small.cloud.settings = dataclasses.replace(small.cloud.settings, event_stream=True)
    v1 = V1Application(small.cloud)

    def ask():
        return v1.handle(Request("GET", "/v1/events", query, {"x-auth-token": "admin", "accept": event.EVENT_STREAM}))

    def set_roles(*roles):
        monkeypatch.setitem(WHO, "admin", dataclasses.replace(WHO["admin"], roles=frozenset(roles)))

    async def follow(pieces):
        async with asyncio.timeout(60):
            set_roles("admin", "reader")  # the same rights to events
            seen = [await anext(pieces) for _piece in range(5)]
            set_roles("reader")
            return seen + [piece async for piece in pieces]

    answer = ask()
    assert answer.status == 200, answer.content
    assert len(asyncio.run(follow(answer.body().pieces()))) < 10
    answer.body().close()
    again = ask()
    assert again.status == (403 if query.startswith("all_projects") else 200)
