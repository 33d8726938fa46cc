# SPDX-License-Identifier: GPL-3.0-or-later
"""The import of docs/howto/awx with the real collection awx.awx into a small AWX, and jobs with what it gives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ansible_runner
import pytest
import yaml

from magnetar_core.http.client import Client
from tests.support import openstack_cloud
from tests.support.awx.api import TOKEN, FakeAwx, RefusedByAwx
from tests.support.awx.nouns import render_injectors
from tests.support.control.cloud import Cloud

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
AWX = ROOT / "docs/howto/awx"
TEMPLATES = yaml.safe_load((AWX / "job_templates.yml").read_text())["job_templates"]
PASSWORD = "geheim: \"'<{"
SETTINGS = {"magnetar_awx_cloud": {"auth_url": "http://127.0.0.1:9/v3", "username": "admin", "password": PASSWORD,
                                   "project_name": "admin"},
            "magnetar_awx_machine": {"username": "root", "ssh_key_data": PASSWORD},
            "magnetar_awx_webhook_url": "https://hooks.example.org/magnetar"}
DRAIN = {"agent_drain_type": "auto", "agent_drain_bandwidth": 0, "agent_drain_time_limit": 0,
         "agent_drain_on_time_limit": "abort"}


def play(awx, folder, **settings):
    """Return ``(status, output)`` of the import."""
    try:
        collections = openstack_cloud.collections()
    except RuntimeError as error:
        pytest.skip(str(error))
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1",
                   "ANSIBLE_COLLECTIONS_PATH": str(collections), "ANSIBLE_LOCALHOST_WARNING": "0",
                   "ANSIBLE_PYTHON_INTERPRETER": sys.executable, "CONTROLLER_HOST": awx.url,
                   "CONTROLLER_OAUTH_TOKEN": TOKEN}
    words = [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,", "-e", json.dumps(settings),
             AWX / "import.yml"]
    done = subprocess.run(words, check=False, text=True, capture_output=True, cwd=folder, env=environment)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A small AWX after the import, and the import's output."""
    with FakeAwx() as awx:
        status, said = play(awx, tmp_path_factory.mktemp("import"), **SETTINGS)
        assert status == 0, said[-6000:]
        yield awx, said


@pytest.fixture
def awx(imported):
    return imported[0]


def names(awx, noun):
    return {row["name"] for row in awx.rows[noun].values()}


def test_the_import_makes_all_of_it(awx):
    assert names(awx, "execution_environments") == {"Magnetar"}
    assert names(awx, "credential_types") == {"Machine", "Magnetar cloud", "Magnetar agent", "Magnetar agent over SSH"}
    assert names(awx, "credentials") == {"Magnetar cloud", "Magnetar hosts"}
    assert names(awx, "notification_templates") == {"Magnetar webhook"}
    assert names(awx, "inventories") == {"Magnetar hosts", "Magnetar servers"}
    assert names(awx, "inventory_sources") == {"Hosts", "Servers"}
    credential = awx.named("credentials", "Magnetar cloud")["id"]
    assert awx.named("inventory_sources", "Servers")["credential"] == credential
    for source in awx.rows["inventory_sources"].values():
        assert source["source_project"] == awx.named("projects", "Magnetar")["id"]
    assert (ROOT / awx.named("inventory_sources", "Servers")["source_path"]).is_file()


def test_each_template_is_a_job_template(awx):
    """With its survey, limits for texts, both credentials, and a notification of failed jobs."""
    assert names(awx, "job_templates") == {template["name"] for template in TEMPLATES}
    for template in TEMPLATES:
        row = awx.named("job_templates", template["name"])
        assert row["playbook"] == template["playbook"] and row["survey_enabled"] == template["survey_enabled"]
        assert row["ask_job_type_on_launch"] and row["ask_credential_on_launch"]
        assert sorted(row["credentials"]) == sorted(awx.rows["credentials"])
        assert row["notification_templates_error"] == [*awx.rows["notification_templates"]]
        asked = row["survey"].get("spec", [])
        assert [one["variable"] for one in asked] == [
            one["variable"] for one in template.get("survey_spec", {}).get("spec", ())]
        for question in asked:
            if question["type"] in ("text", "textarea"):
                assert question["max"] <= 4096 and question["min"] == int(question["required"])


def test_the_workflow_waits_for_an_approval(awx):
    workflow = awx.named("workflow_job_templates", "Plan, approve, apply")
    assert not workflow["allow_simultaneous"] and workflow["notification_templates_approvals"]
    nodes = {row["identifier"]: row for row in awx.rows["workflow_job_template_nodes"].values()}
    assert {*nodes} == {"plan", "approve", "apply"}
    assert nodes["plan"]["success_nodes"] == [nodes["approve"]["id"]]
    assert nodes["approve"]["success_nodes"] == [nodes["apply"]["id"]] and nodes["apply"]["success_nodes"] == []
    approval = awx.rows["workflow_approval_templates"][nodes["approve"]["unified_job_template"]]
    assert approval["name"] == "Approve the plan" and approval["timeout"] == 86400
    for name, template in (("plan", "Plan an estate"), ("apply", "Apply an estate")):
        assert nodes[name]["unified_job_template"] == awx.named("job_templates", template)["id"]
    assert nodes["plan"]["extra_data"]["estate_plan"] == nodes["apply"]["extra_data"]["estate_plan"]
    nightly = awx.named("schedules", "Plan every night")["extra_data"]
    assert nightly["estate_plan"] != nodes["plan"]["extra_data"]["estate_plan"]


def test_schedules_are_of_templates_that_are_there(awx):
    planned = {"Plan every night": "Plan an estate", "Back up every night": "Back up the cloud",
               "Purge deleted rows every month": "Purge deleted rows"}
    there = names(awx, "job_templates")
    assert names(awx, "schedules") == {name for name, template in planned.items() if template in there}
    for row in awx.rows["schedules"].values():
        assert row["unified_job_template"] == awx.named("job_templates", planned[row["name"]])["id"]


def test_a_second_import_changes_nothing_and_shows_no_secret(imported, tmp_path):
    awx, said = imported
    before = json.dumps(awx.rows, sort_keys=True)
    status, again = play(awx, tmp_path, **SETTINGS)
    assert status == 0 and " changed=0 " in again, again[-6000:]
    assert json.dumps(awx.rows, sort_keys=True) == before
    assert "geheim" not in said + again


@pytest.mark.parametrize(("settings", "message"), [
    ({"magnetar_awx_cloud": {"url": "http://127.0.0.1:9/v3"}}, "unknown inputs ['url'], missing inputs ['auth_url']"),
    ({"magnetar_awx_email": {"smtp": "mail.example.org"}}, "unknown fields ['smtp']"),
    ({"magnetar_awx_project_url": ""}, "SCM URL is required"),
], ids=["a cloud without URL", "mail without server", "no project"])
def test_settings_that_awx_refuses_are_named(settings, message, tmp_path):
    with FakeAwx() as awx:
        status, said = play(awx, tmp_path, **settings)
    assert status == 2 and message in said, said[-3000:]


# Credentials ------------------------------------------------------------------------------------------------------
def injected(awx, kind, folder, **inputs):
    """Return the environment that a credential gives to a job."""
    return render_injectors(awx.named("credential_types", kind), inputs, folder=folder)


def test_a_cloud_is_devstack_in_a_file_of_its_own(awx, tmp_path):
    """As with AWX's type OpenStack; whatever the password has in it."""
    inputs = {"auth_url": "https://cloud.example.org:5000/v3", "username": "me", "password": PASSWORD,
              "project_name": "shop"}
    (name, path), = injected(awx, "Magnetar cloud", tmp_path, **inputs, ca_cert="a CA").items()
    assert name == "OS_CLIENT_CONFIG_FILE"
    (cloud,) = yaml.safe_load(Path(path).read_text())["clouds"].items()
    assert cloud == ("devstack", {"auth_type": "v3password", "cacert": str(tmp_path / "template.ca"), "auth": {
        **inputs, "user_domain_name": "Default", "project_domain_name": "Default"}})
    assert (tmp_path / "template.ca").read_text() == "a CA"
    given = {"auth_url": inputs["auth_url"], "application_credential_id": "1",
             "application_credential_secret": PASSWORD}
    (path,) = injected(awx, "Magnetar cloud", tmp_path, **given, region_name="RegionTwo").values()
    assert yaml.safe_load(Path(path).read_text())["clouds"]["devstack"] == {
        "auth_type": "v3applicationcredential", "auth": given, "region_name": "RegionTwo"}


def test_an_agent_gets_files_for_what_is_given(awx, tmp_path):
    said = injected(awx, "Magnetar agent", tmp_path, endpoint="https://kvm1", token="secret", ca_cert="a CA")
    assert said == {"MAGNETAR_ENDPOINT": "https://kvm1", "MAGNETAR_TOKEN": "secret", "MAGNETAR_CLIENT_CERT": "",
                    "MAGNETAR_CLIENT_KEY": "", "MAGNETAR_CA_CERT": str(tmp_path / "template.ca_cert")}
    said = injected(awx, "Magnetar agent over SSH", tmp_path, key="a key", known_hosts="kvm1 ssh-ed25519 AAAA")
    assert (tmp_path / "template.key").read_text() == "a key" and said["MAGNETAR_ENDPOINT"] == ""


# Jobs -------------------------------------------------------------------------------------------------------------
def environment(folder):
    """Return the environment of a job's container: the collection, and nothing of this machine's Ansible."""
    links = folder / "ansible_collections" / "magnetar"
    links.mkdir(parents=True, exist_ok=True)
    if not (links / "compute").exists():
        (links / "compute").symlink_to(ROOT)
    return {"ANSIBLE_COLLECTIONS_PATH": str(folder), "ANSIBLE_LOCALHOST_WARNING": "0", "PATH": os.environ["PATH"],
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0", "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1"}


def run(folder, playbook, answers, more=None, hosts="localhost ansible_connection=local", options=""):
    """Run a job as AWX does. Return its status, its output and its artifacts, which later jobs of a workflow get."""
    (folder / "hosts").write_text(f"{hosts}\n")
    done = ansible_runner.run(
        private_data_dir=tempfile.mkdtemp(dir=folder), playbook=str(ROOT / playbook),
        inventory=str(folder / "hosts"), cmdline=options,
        extravars=answers, envvars={**environment(folder), **(more or {})}, quiet=True)
    found = [event["event_data"].get("artifact_data", {}) for event in done.events]
    return done.status, done.stdout.read(), {name: value for one in found for name, value in one.items()}


@pytest.fixture
def job(awx, tmp_path):
    """``job(template, answers, credential, ...)``: launch the template with one credential, and run its job."""
    def launched(name, answers, credential, **more):
        awx.named("job_templates", name)["credentials"] = [credential["id"]]
        playbook, variables, given = awx.launch(name, answers, tmp_path)
        return run(tmp_path, playbook, variables, given, **more)

    return launched


def credential(awx, kind, **inputs):
    """Return a new credential of this type."""
    return awx.create("credentials", {"name": f"of {len(awx.rows['credentials'])}", "inputs": inputs,
                                      "credential_type": awx.named("credential_types", kind)["id"]})


def test_servers_of_an_agent(awx, job, agent, tmp_path):
    """First in check mode, which changes nothing; then they are in the inventory."""
    login = credential(awx, "Magnetar agent", endpoint=agent.endpoint)
    answers = {"server_names": "one\n two\n", "server_state": "running", "server_flavor": "small",
               "server_image": "none"}
    with Client(agent.endpoint) as client:
        client.ensure("flavor", "small", {"vcpus": 1, "ram": 64})
        for options, there in (("--check", []), ("", ["one", "two"])):
            status, said, _artifacts = job("Servers", answers, login, options=options)
            assert status == "successful" and sorted(one["name"] for one in client.list("server")) == there, said
    given = render_injectors(awx.named("credential_types", "Magnetar agent"), login["inputs"], folder=tmp_path)
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-inventory"), "-i",
         ROOT / awx.named("inventory_sources", "Servers")["source_path"], "--list"],
        check=True, text=True, capture_output=True, cwd=tmp_path, env={**environment(tmp_path), **given})
    assert json.loads(done.stdout)["status_ACTIVE"]["hosts"] == ["one", "two"]


def test_only_the_approved_plan_is_applied(awx, job, agent, tmp_path):
    """A plan that another job writes to the file meanwhile is refused."""
    login = credential(awx, "Magnetar agent", endpoint=agent.endpoint)
    estate, plan = tmp_path / "estate", {"estate_plan": str(tmp_path / "plan.json")}
    estate.mkdir()
    answers = {**plan, "estate_folder": str(estate), "estate_unmanaged": "report", "estate_fail_on": "never"}

    def planned(*flavors):
        declared = [{"name": one, "vcpus": 1, "ram": 64} for one in flavors]
        (estate / "all.yml").write_text(json.dumps({"flavor": declared}))
        status, said, artifacts = job("Plan an estate", answers, login)
        assert status == "successful" and [*artifacts] == ["estate_plan_id"], said
        return artifacts

    def applied(artifacts):
        awx.named("job_templates", "Apply an estate")["credentials"] = [login["id"]]
        playbook, variables, given = awx.launch("Apply an estate", plan, tmp_path)
        return run(tmp_path, playbook, {**variables, **artifacts}, given)[:2]

    approved = planned("small")
    later = planned("small", "big")
    status, said = applied(approved)
    assert status == "failed" and "is not the plan in the file" in said and later["estate_plan_id"] in said, said
    with Client(agent.endpoint) as client:
        assert client.list("flavor") == []
        assert applied(later)[0] == "successful"
        assert sorted(one["name"] for one in client.list("flavor")) == ["big", "small"]


@pytest.fixture(scope="module")
def cloud():
    with Cloud(hosts=2) as made:
        made.admin.image()
        yield made


@pytest.mark.parametrize(("template", "answers", "words"), [
    ("Evacuate a host", {"evacuate_host": "{host}", "evacuate_fenced": "true"}, "0 servers were evacuated from {host}"),
    ("Drain a host", {**DRAIN, "drain_cloud": "devstack"}, "No server of the cloud stays"),
], ids=["evacuate", "drain"])
def test_jobs_of_a_cloud_in_check_mode(awx, job, cloud, template, answers, words, tmp_path):
    """With the only cloud of the credential, which nobody has to name."""
    text = (Path(cloud.parts.settings.state_dir) / "clouds.yaml").read_text()
    (tmp_path / "clouds.yaml").write_text(text)
    auth = yaml.safe_load(text)["clouds"]["magnetar"]["auth"]
    login = credential(
        awx, "Magnetar cloud", auth_url=auth["auth_url"].replace("127.0.0.1:8774", f"127.0.0.1:{cloud.port}"),
        **{name: auth[name] for name in ("username", "password", "project_name")})
    host = min(cloud.agents)
    given = {name: value.format(host=host) if isinstance(value, str) else value for name, value in answers.items()}
    status, said, _artifacts = job(template, given, login, options="--check",
                                   hosts=f"[magnetar]\n{host} ansible_connection=local")
    assert status == "successful" and words.format(host=host) in said, said
    services = cloud.admin.get("/v2.1/os-services?binary=nova-compute", "2.53").json["services"]
    assert {(one["status"], one["forced_down"]) for one in services} == {("enabled", False)}


# Answers that mean nothing ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("template", "answers", "message"), [
    ("Servers", {"server_names": "", "server_state": "running"}, "'server_names' value  is too small"),
    ("Servers", {"server_names": "x" * 5000, "server_state": "running"}, "'server_names' value is too large"),
    ("Servers", {"server_names": "web1", "server_state": "flying"}, "Value flying for 'server_state' expected to be"),
    ("Servers", {"server_state": "running"}, "'server_names' value missing"),
    ("Servers", {"server_names": "web1", "server_state": "running", "ansible_user": "root"}, "are not allowed"),
    ("Drain a host", {**DRAIN, "agent_drain_bandwidth": -1}, "is too small (must be at least 0)"),
    ("Drain a host", {**DRAIN, "agent_drain_bandwidth": "fast"}, "Value fast for 'agent_drain_bandwidth' expected"),
    ("Evacuate a host", {"evacuate_host": "", "evacuate_fenced": "true"}, "'evacuate_host' value  is too small"),
    ("Agents", {"magnetar_hosts": ""}, "'magnetar_hosts' value  is too small"),
    ("Plan an estate", {"estate_folder": "", "estate_plan": "", "estate_unmanaged": "all", "estate_fail_on": "x"},
     "Value all for 'estate_unmanaged' expected to be one of"),
])
def test_awx_refuses_nonsense(awx, template, answers, message, tmp_path):
    with pytest.raises(RefusedByAwx) as refused:
        awx.launch(template, answers, tmp_path)
    assert message in str(refused.value)


@pytest.mark.parametrize(("playbook", "answers", "message"), [
    ("servers", {"server_names": " \n\n"}, "server_names must have a name"),
    ("servers", {"server_names": "web1", "server_state": "flying"}, "server_state must be running, stopped or absent"),
    ("agents", {"magnetar_hosts": "kvm77"}, "magnetar_hosts is no host and no group of the inventory: kvm77"),
    ("upgrade", {"magnetar_hosts": "kvm77"}, "magnetar_hosts is no host and no group of the inventory: kvm77"),
    ("reboot", {"reboot_cloud": ""}, "Name the cloud in clouds.yaml"),
    ("reboot", {"reboot_cloud": "devstack", "reboot_always": "perhaps"}, "reboot_always must be true or false"),
    ("evacuate", {"evacuate_host": ""}, "Say which host is dead"),
    ("evacuate", {"evacuate_host": "kvm1", "evacuate_fenced": "perhaps"}, "evacuate_fenced must be true or false"),
    ("drain", {"agent_drain_type": "quick"}, "agent_drain_type"),
    ("plan", {"estate_folder": "/nowhere", "estate_plan": "{folder}/plan.json"}, "folder: "),
    ("plan", {"estate_folder": "/nowhere", "estate_fail_on": "x"}, "estate_fail_on must be never, changes or costs"),
    ("plan", {"estate_folder": "{folder}", "estate_plan": "{folder}/plan.json", "estate_unmanaged": "absent",
              "estate_unmanaged_nouns": "cat"}, "cat"),
    ("apply", {"estate_plan": "{folder}/none.json"}, "cannot be read"),
    ("backup", {"backup_keep": "all"}, "backup_keep must be a number of backups"),
    ("restore", {"restore_folder": ""}, "Name the folder of the backup"),
])
def test_playbooks_refuse_nonsense(agent, playbook, answers, message, tmp_path):
    """Also when it comes by another way than a survey."""
    given = {name: value.format(folder=tmp_path) for name, value in answers.items()}
    status, said, _artifacts = run(
        tmp_path, f"playbooks/{playbook}.yml", {"ansible_become": False, **given},
        {"MAGNETAR_ENDPOINT": agent.endpoint},
        hosts=f"[magnetar{'_api' * (playbook in ('backup', 'restore'))}]\nkvm1 ansible_connection=local")
    assert status == "failed" and message in " ".join(said.split()), said
    assert "changed=0" in said or "PLAY RECAP" not in said
    with Client(agent.endpoint) as client:
        assert client.list("server") == [] and not (tmp_path / "plan.json").exists()
