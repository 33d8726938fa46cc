# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan and apply of an estate: two agents and a cloud, exact plans, refusals, interrupted runs, reports."""

from __future__ import annotations

import importlib
import json
import stat
from pathlib import Path

import pytest
import yaml

from magnetar_core.errors import HypervisorError
from magnetar_core.http.client import Client
from tests.support.control.cloud import Cloud
from tests.support.modules import documents

from .conftest import COLLECTION, KEY, ROOT, Running

nouns = importlib.import_module(f"{COLLECTION}.plugins.module_utils.estate.nouns")

FLAVOR = {"name": "small", "vcpus": 1, "ram": 128}
SERVER = {"name": "web1", "flavor": "small", "image": "none", "networks": ["lan"], "tags": ["shop"]}
DECLARED = [
    {"flavor": [FLAVOR], "network": [{"name": "lan", "cidr": "192.168.99.0/24"}]},
    {"places": ["kvm1"], "defaults": {"server": {"state": "running"}}, "server": [SERVER]},
    {"places": "kvm2", "server": [dict(SERVER, name="web2", state="stopped")]},
]


@pytest.fixture
def other(tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    running = Running(folder)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def estate(agent, other, module, tmp_path):
    """``estate(state, declarations, **options)``: the result of the module, for the places kvm1 and kvm2."""
    def run(state="planned", declarations=None, **options):
        given = dict(options, declarations=declarations) if declarations is not None else options
        given.setdefault("places", {"kvm1": {"endpoint": agent.endpoint}, "kvm2": {"endpoint": other.endpoint}})
        return module("estate", state=state, plan=str(tmp_path / "plan.json"), **given)

    run.plan = tmp_path / "plan.json"
    return run


def changes(result):
    return [(item["place"], item["noun"], item["name"], item["change"]) for item in result["estate"]["items"]]


def statuses(result):
    return {f"{item['noun']} {item['name']}@{item['place']}": item["status"] for item in result["estate"]["items"]}


def test_plan_apply_and_nothing_left(estate, agent, other):
    planned = estate(declarations=DECLARED)
    assert planned["changed"], planned
    assert changes(planned) == [
        ("kvm1", "flavor", "small", "create"), ("kvm2", "flavor", "small", "create"),
        ("kvm1", "network", "lan", "create"), ("kvm2", "network", "lan", "create"),
        ("kvm1", "server", "web1", "create"), ("kvm2", "server", "web2", "create")]
    assert stat.S_IMODE(estate.plan.stat().st_mode) == 0o600
    with Client(agent.endpoint) as client:
        assert client.list("flavor") == []
        assert not estate(declarations=DECLARED)["changed"]  # the same plan
        checked = estate("applied", check=True)
        assert checked["changed"] and set(statuses(checked).values()) == {"pending"} and client.list("flavor") == []
        done = estate("applied")
        assert done["changed"] and set(statuses(done).values()) == {"applied"}, done
        assert client.get("server", "web1")["power_state"] == "running"
    with Client(other.endpoint) as client:
        assert client.get("server", "web2")["power_state"] == "off"
    again = estate("applied")
    assert not again["changed"] and set(statuses(again).values()) == {"unchanged"}, again
    left = estate(declarations=DECLARED)
    assert left["estate"]["items"] == [] and left["estate"]["counts"]["unchanged"] == 6


@pytest.fixture
def made(estate):
    """The declared estate, which exists."""
    estate(declarations=DECLARED)
    assert estate("applied")["changed"]
    return estate


def changed(**fields):
    """The declarations with other *fields* of web1."""
    return [DECLARED[0], dict(DECLARED[1], server=[dict(SERVER, **fields)]), DECLARED[2]]


def test_a_plan_of_an_older_world_is_refused_as_a_whole(made, agent, other):
    declarations = changed(tags=["new"])
    declarations[2] = dict(DECLARED[2], server=[dict(SERVER, name="web2", state="stopped", tags=["new"])])
    made(declarations=declarations)
    with Client(agent.endpoint) as client, Client(other.endpoint) as second:
        client.ensure("server", "web1", {"metadata": {"by": "hand"}})
        for check in (True, False):
            refused = made("applied", check=check)
            assert refused["failed"] and not refused["changed"]
            assert "server web1 at kvm1: has changed since the plan: metadata was nothing" in refused["msg"], refused
            assert statuses(refused) == {"server web1@kvm1": "failed", "server web2@kvm2": "pending"}
        assert (client.get("server", "web1")["tags"], second.get("server", "web2")["tags"]) == (["shop"], ["shop"])
        client.ensure("server", "web1", {"metadata": {}})
        assert made("applied")["changed"]  # it is as it was again
        client.delete("server", "web1")
    assert "no longer exists" in made("applied")["msg"] or "has changed since the plan" in made("applied")["msg"]


def test_the_agent_itself_checks_the_revision(made, agent):
    """Also a change in the moment after the check is found: the agent compares while it holds the server."""
    made(declarations=changed(tags=["new"]))
    (item,) = json.loads(made.plan.read_text())["items"]
    with Client(agent.endpoint) as client:
        client.ensure("server", "web1", {"description": "by hand"})
        request = dict(item["permissions"], key="web1", want=item["want"], revision=item["revision"])
        (answer,) = client.ensure_many("server", [request])["results"]
        assert answer["error"]["code"] == "changed-since" and client.get("server", "web1")["tags"] == ["shop"]


def test_a_run_that_was_interrupted_continues(made, agent, other):
    declarations = changed(tags=["new"], description="first", metadata={"a": "b"})
    declarations[2] = dict(DECLARED[2], server=[dict(SERVER, name="web2", state="stopped", tags=["new"])])
    made(declarations=declarations)
    with Client(agent.endpoint) as client:
        client.ensure("server", "web1", {"tags": ["new"], "description": "first"})  # a part of the plan
        done = made("applied")
        assert done["changed"] and statuses(done) == {"server web1@kvm1": "applied", "server web2@kvm2": "applied"}
        assert client.get("server", "web1")["metadata"] == {"a": "b"}


def test_what_somebody_else_has_done_already_is_unchanged(made, other):
    made(declarations=[{"server": [{"name": "web9", "flavor": "small", "image": "none"}]}])
    with Client(other.endpoint) as client:
        client.ensure("server", "web9", {"flavor": "small", "image": None})
    done = made("applied")
    assert statuses(done) == {"server web9@kvm1": "applied", "server web9@kvm2": "unchanged"}, done


@pytest.mark.parametrize("step", ["define", "start"])
def test_a_failure_at_one_place_leaves_the_rest_of_it_to_the_next_run(made, agent, step):
    bigger = [{"flavor": [dict(FLAVOR, name="big", ram=256)]}, *changed(flavor="big", allow_reboot=True, tags=["new"])]
    bigger.append({"places": ["kvm1"], "network": [{"name": "side", "state": "absent"}]})
    with Client(agent.endpoint) as client:
        client.ensure("network", "side", {"cidr": "192.168.98.0/24"})
        made(declarations=bigger)
        agent.hypervisor.fail_next(step, HypervisorError("QEMU is tired."))
        failed = made("applied")
        assert failed["failed"] and failed["changed"] and "applied in part" in failed["msg"], failed
        assert statuses(failed) == {"flavor big@kvm1": "applied", "flavor big@kvm2": "applied",
                                    "server web1@kvm1": "failed", "network side@kvm1": "not_begun"}
        done = made("applied")
        assert statuses(done) == {"flavor big@kvm1": "unchanged", "flavor big@kvm2": "unchanged",
                                  "server web1@kvm1": "applied", "network side@kvm1": "applied"}, done
        server = client.get("server", "web1")
        assert (server["flavor"]["ram"], server["power_state"], server["tags"]) == (256, "running", ["new"])
    assert not made("applied")["changed"]


def test_costs_and_permissions_of_a_reboot(made, agent):
    bigger = [{"flavor": [dict(FLAVOR, name="big", ram=256)]}, *changed(flavor="big", allow_reboot=True)]
    planned = made(declarations=bigger)
    (server,) = [item for item in planned["estate"]["items"] if item["noun"] == "server"]
    assert server["costs"] == ["reboot"] and "~ server web1 [reboots]" in planned["text"]
    assert made("applied")["changed"]
    made(declarations=changed(flavor="big", allow_reboot=True, tags=["quiet"]))
    (item,) = json.loads(made.plan.read_text())["items"]
    assert item["costs"] == [] and "allow_reboot" not in item["permissions"]
    refused = made(declarations=changed(flavor="small"))
    assert refused["failed"] and "web1 at kvm1" in refused["msg"] and refused["estate"]["errors"]


def test_recreation_and_removal_cost_data(made):
    planned = made(declarations=[{"places": ["kvm1"], "server": [dict(SERVER, config_drive=False,
                                                                      on_immutable="recreate")]},
                                 {"places": ["kvm2"], "server": [{"name": "web2", "state": "absent"}]}])
    assert changes(planned) == [("kvm1", "server", "web1", "recreate"), ("kvm2", "server", "web2", "remove")]
    assert [item["costs"] for item in planned["estate"]["items"]] == [["data_loss"], ["data_loss"]]
    assert made("applied")["changed"] and not made("applied")["changed"]


def test_unmanaged_resources(made, agent):
    with Client(agent.endpoint) as client:
        for name in ("legacy", "golden-1"):
            client.ensure("server", name, {"flavor": "small", "image": None})
        keep = {"unmanaged_keep": ["golden-*"]}
        reported = made(declarations=DECLARED, unmanaged="report", **keep)
        assert [(one["place"], one["noun"], one["name"]) for one in reported["estate"]["unmanaged"]] == [
            ("kvm1", "server", "legacy")] and reported["estate"]["items"] == []
        refused = made(declarations=DECLARED, unmanaged="absent")
        assert refused["failed"] and refused["msg"].startswith("unmanaged_nouns")
        planned = made(declarations=DECLARED, unmanaged="absent", unmanaged_nouns=["server", "network"], **keep)
        assert changes(planned) == [("kvm1", "server", "legacy", "remove")]
        assert "not declared" in planned["text"]
        assert made("applied")["changed"] and not made("applied")["changed"]
        assert sorted(one["name"] for one in client.list("server")) == ["golden-1", "web1"]


def test_removals_come_last_and_in_reverse(made):
    planned = made(declarations=[{"flavor": [dict(FLAVOR, name="new")]}], unmanaged="absent",
                   unmanaged_nouns=["flavor", "network", "server"])
    assert [noun for _place, noun, _name, _change in changes(planned)] == [
        "flavor", "flavor", "server", "server", "network", "network", "flavor", "flavor"]
    assert made("applied")["changed"] and not made("applied")["changed"]


def test_the_folder_and_the_reports(made, module, agent, tmp_path):
    folder = tmp_path / "declarations"
    (folder / "more").mkdir(parents=True)
    (folder / "base.yml").write_text(yaml.safe_dump_all([{"flavor": [FLAVOR]}, {"network": [
        {"name": "lan", "cidr": "192.168.99.0/24"}]}]))
    (folder / "more/servers.yaml").write_text(yaml.safe_dump([{"server": [dict(SERVER, description="<b>&")]}]))
    (folder / ".hidden.yml").write_text("{")
    files = {f"{kind}_report": str(tmp_path / f"drift.{kind}") for kind in ("text", "json", "html")}
    found = module("estate_info", folder=str(folder), unmanaged="report", **files)
    assert found["drift"] and not found["changed"]
    assert json.loads((tmp_path / "drift.json").read_text())["counts"] == found["estate"]["counts"]
    assert "~ server web1" in (tmp_path / "drift.text").read_text() == found["text"]
    page = (tmp_path / "drift.html").read_text()
    assert "&lt;b&gt;&amp;" in page and "<b>&" not in page and "http" not in page.replace("unix:", "")
    (folder / "more/servers.yaml").write_text("server: [")
    assert "cannot be read as YAML" in module("estate_info", folder=str(folder))["msg"]


@pytest.mark.parametrize(("declaration", "message"), [
    ({"servers": []}, "declarations[0]: servers: is no noun of an estate; did you mean server?"),
    ({"server": [{"name": "a", "flavour": "x"}]}, "server[0].flavour: is not an option of magnetar.compute.server; "
                                                  "did you mean flavor?"),
    ({"server": [{"flavor": "x"}]}, "declarations[0]: server[0].name: is required"),
    ({"server": [{"name": "a"}, {"name": "a"}]}, "declares server 'a' at kvm1, as declarations[0]: server[0] does"),
    ({"places": ["kvm3"], "server": []}, ""),
    ({"places": ["kvm3"], "server": [{"name": "a"}]}, "names an unknown place; known are kvm1, kvm2 (got 'kvm3')"),
    ({"image": [{"name": "a", "filename": "/x"}]}, "image[0].filename: needs an upload"),
    ({"server": [{"name": "a", "state": "gone"}]}, "server[0].state: must be one of"),
    ({"server": {"name": "a"}}, "declarations[0]: server: must be a list"),
    ({"server": [{"name": "a", "flavor": "small", "ram": 4}]}, "server[0].flavor: cannot be combined with ram"),
])
def test_declarations_that_are_refused(estate, declaration, message):
    result = estate(declarations=[declaration])
    assert result.get("failed", False) == bool(message) and message in result.get("msg", ""), result
    assert estate.plan.exists() == (not message)


def test_errors_leave_the_old_plan(estate):
    estate(declarations=[{"flavor": [FLAVOR]}])
    old = estate.plan.read_bytes()
    refused = estate(declarations=[{"flavor": [dict(FLAVOR, ram="much"), dict(FLAVOR, name="b")]}])
    assert refused["failed"] and refused["msg"].startswith("No plan was made: flavor small at kvm1: ram:"), refused
    assert len(refused["estate"]["errors"]) == 2 and estate.plan.read_bytes() == old


def test_plans_that_are_refused(estate, other, module):
    estate(declarations=[{"flavor": [FLAVOR]}])
    plan = json.loads(estate.plan.read_text())
    elsewhere = {"kvm1": {"endpoint": other.endpoint}, "kvm2": {"endpoint": other.endpoint}}
    assert "is not the place of the plan" in estate("applied", places=elsewhere)["msg"]
    assert "lacks the plan's place kvm1, kvm2" in estate("applied", places=None)["msg"]
    silent = {"kvm1": {"endpoint": "unix:///nowhere/a.sock"}, "kvm2": {"endpoint": other.endpoint}}
    refused = estate("applied", places=silent)
    assert refused["failed"] and "nothing was changed" in refused["msg"], refused
    with Client(other.endpoint) as client:
        assert client.list("flavor") == []
    refused = estate("applied", plan_id="5f9c1f0e")["msg"]  # another one than was approved
    assert f"plan_id: is not the plan in the file, which is {plan['id']}" in refused
    assert not estate("planned", [{"flavor": [FLAVOR]}], plan_id="5f9c1f0e").get("failed")
    plan["items"][0]["want"]["ram"] = 4096
    for text, message in ((json.dumps(plan), "was edited"), ("{", "is no plan"), ("{}", "is no plan"),
                          (json.dumps(dict(plan, format=9)), "format 9")):
        estate.plan.write_text(text)
        assert message in estate("applied")["msg"]
    estate.plan.unlink()
    assert "cannot be read" in estate("applied")["msg"]
    assert "must name an endpoint or a cloud" in estate(declarations=[], places={"a": {"token": "x"}})["msg"]
    assert not estate.plan.exists()


def test_a_place_that_is_silent_is_in_the_drift_report(module, agent):
    places = {"kvm1": {"endpoint": agent.endpoint}, "gone": {"endpoint": "unix:///nowhere/a.sock"}}
    found = module("estate_info", declarations=[{"flavor": [FLAVOR]}], places=places)
    assert [error["place"] for error in found["estate"]["errors"]] == ["gone"] and "gone: " in found["text"]
    assert [item["place"] for item in found["estate"]["items"]] == ["kvm1"]


def test_secrets_are_only_in_the_plan_file(estate):
    planned = estate(declarations=[{"places": "kvm1", "server": [dict(
        SERVER, networks=[], flavor=None, vcpus=1, ram=64, userdata="#!/bin/sh\necho geheim")]}])
    assert "geheim" not in json.dumps(planned) and "user_data" in estate.plan.read_text()
    assert estate("applied")["changed"]


@pytest.fixture
def in_cloud(module, tmp_path, monkeypatch):
    """``in_cloud(state, declarations, **options)``: as ``estate``, for a cloud; and a client of it."""
    with Cloud(hosts=1) as made:
        made.admin.image()
        text = (Path(made.parts.settings.state_dir) / "clouds.yaml").read_text()
        (tmp_path / "clouds.yaml").write_text(text.replace("127.0.0.1:8774", f"127.0.0.1:{made.port}"))
        monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))

        def run(state="planned", declarations=None, **options):
            return module("estate", state=state, plan=str(tmp_path / "plan.json"), places={"c": {"cloud": "magnetar"}},
                          **options, **({"declarations": declarations} if declarations is not None else {}))

        run.module = lambda noun, /, **options: module(noun, endpoint=None, cloud="magnetar", **options)
        yield run


def test_an_estate_of_a_cloud(in_cloud):
    server = {"name": "web1", "flavor": "small", "image": "cirros", "metadata": {"a": "1"}}
    flavors = [dict(FLAVOR, disk=1), dict(FLAVOR, name="big", ram=256, disk=1)]
    planned = in_cloud(declarations=[{"flavor": flavors, "keypair": [{"name": "me", "public_key": KEY}],
                                      "server": [dict(server, key_name="me")]}])
    assert planned["changed"], planned
    done = in_cloud("applied")
    assert done["changed"] and set(statuses(done).values()) == {"applied"}, done
    assert not in_cloud("applied")["changed"]
    assert in_cloud(declarations=[{"flavor": flavors, "server": [server]}])["estate"]["items"] == []

    planned = in_cloud(declarations=[{"server": [dict(server, flavor="big", allow_reboot=True)]}])
    assert planned["estate"]["costs"] == ["move", "reboot"] and "[reboots, may move]" in planned["text"], planned
    in_cloud.module("server", name="web1", metadata={"a": "2"})
    refused = in_cloud("applied")
    assert refused["failed"] and "metadata.a was '1' and is '2'" in refused["msg"], refused
    in_cloud.module("server", name="web1", metadata={"a": "1"})
    assert in_cloud("applied")["changed"] and not in_cloud("applied")["changed"]

    (found,) = in_cloud.module("server_info", name="web1")["servers"]
    assert found["flavor"]["name"] == "big" and found["power_state"] == "running"
    planned = in_cloud(declarations=[{"keypair": [{"name": "me", "state": "absent"}]}], unmanaged="absent",
                       unmanaged_nouns=["server", "flavor"], unmanaged_keep=["small"])
    assert changes(planned)[0] == ("c", "server", "web1", "remove"), planned
    in_cloud.module("server", name="web1", description="mine")
    assert "server web1 at c: has changed since the plan: description" in in_cloud("applied")["msg"]
    in_cloud.module("server", name="web1", description="")
    assert in_cloud("applied")["changed"] and not in_cloud("applied")["changed"]
    assert in_cloud.module("server_info")["servers"] == []


def test_the_playbooks(agent, tmp_path):
    """Plan, fail on changes, apply, apply again; and what is printed."""
    folder = tmp_path / "estate"
    folder.mkdir()
    (folder / "flavors.yml").write_text(yaml.safe_dump({"flavor": [FLAVOR]}))
    words = ["-e", f"estate_folder={folder}", "-e", f"estate_reports={tmp_path}",
             "-e", f"estate_plan={tmp_path}/plan.json"]

    def book(name, *more):
        return documents.run((tmp_path, agent), "[]", *words, *more, arguments=[str(ROOT / f"playbooks/{name}.yml")])

    assert "+ flavor small" in book("plan", "-e", "estate_unmanaged=report")
    with pytest.raises(AssertionError, match="estate_fail_on is changes"):
        book("plan", "-e", "estate_fail_on=changes")
    assert "+ flavor small [to do]" in book("apply", "--check")
    assert "+ flavor small [applied]" in book("apply")
    assert "changed=0" in book("apply")
    assert "nothing" in book("plan", "-e", "estate_fail_on=changes") or (tmp_path / "estate.html").exists()
    with Client(agent.endpoint) as client:
        client.ensure("flavor", "small", {"description": "by hand"})
        (folder / "flavors.yml").write_text(yaml.safe_dump({"flavor": [dict(FLAVOR, description="new")]}))
        book("plan")
        client.ensure("flavor", "small", {"description": "by another hand"})
    with pytest.raises(AssertionError, match="description was 'by hand'"):
        book("apply")


def test_the_page_shows_what_is_taken(estate):
    """The keys of the page's example are those that a declaration may have."""
    page = (ROOT / "docs/howto/plan-and-apply-an-estate.md").read_text()
    names = nouns.NOUNS
    assert all(f"`{noun}`" in page for noun in names)
    (hosts,) = [yaml.safe_load(text) for text in documents.fences("docs/howto/plan-and-apply-an-estate.md", "yaml")
                if text.startswith("# /srv/estate/hosts.yml")]
    planned = estate(declarations=[hosts])
    assert not planned.get("failed"), planned
