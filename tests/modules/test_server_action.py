# SPDX-License-Identifier: GPL-3.0-or-later
"""server_action and what goes with it in server: every action in check mode, done, and done again."""

from __future__ import annotations

import json
import threading

import pytest


@pytest.fixture
def web(world, agent):
    agent.hypervisor.guest_agents = True
    world("server", name="s", flavor="small", image="img", networks=["lan"])
    return world


@pytest.mark.parametrize(("action", "status"), [
    ({"action": "stop"}, "SHUTOFF"), ({"action": "pause"}, "PAUSED"), ({"action": "suspend"}, "SUSPENDED"),
    ({"action": "rescue", "image": "img"}, "RESCUE"), ({"action": "rescue"}, "RESCUE")])
def test_actions_that_are_states(action, status, web):
    for check in (True, False):
        done = web("server_action", name="s", check=check, **action)
        assert done["changed"] and done["server"]["status"] == status and done["changes"], done
        assert web("server_info", name="s")["servers"][0]["status"] == ("ACTIVE" if check else status)
    assert not web("server_action", name="s", **action)["changed"]
    back = {"stop": "start", "pause": "unpause", "suspend": "resume", "rescue": "unrescue"}[action["action"]]
    for changes in (True, False):
        done = web("server_action", name="s", action=back)
        assert (done["changed"], done["server"]["status"]) == (changes, "ACTIVE")


@pytest.mark.parametrize("check", [True, False])
def test_an_agent_alone_shelves_nothing(check, web):
    for module, options in (("server", {"state": "shelved"}), ("server_action", {"action": "shelve"})):
        refused = web(module, name="s", check=check, **options)
        assert refused["failed"] and "power" in refused["msg"] and "image service" in refused["msg"], refused
    assert not web("server_action", name="s", action="unshelve")["changed"]
    refused = web("server_action", name="s", action="shelve_offload")
    assert refused["failed"] and "event" in refused["msg"], refused


def test_an_agent_alone_keeps_nothing_that_is_deleted(web):
    assert not web("server_action", name="s", action="restore")["changed"]
    refused = web("server_action", name="s", action="force_delete")
    assert refused["failed"] and "event" in refused["msg"], refused
    assert web("server_action", name="none", action="restore")["error"]["code"] == "not-found"
    assert not web("server_action", name="none", action="force_delete")["changed"]


def test_rescued_is_rescued(web):
    web("server_action", name="s", action="rescue", image="img")
    assert not web("server_action", name="s", action="rescue")["changed"], "omitted is what is there"
    assert not web("server", name="s", state="running")["changed"], "power is not what is booted"


def test_create_image(web):
    options = {"name": "s", "action": "create_image", "image_name": "golden", "metadata": {"n": 1}}
    assert web("server_action", check=True, **options)["changed"]
    assert web("image_info", name="golden")["images"] == []
    done = web("server_action", **options)
    assert done["changed"] and done["consistency"] == "frozen" and done["image"]["name"] == "golden"
    made = web("image_info", name="golden")["images"][0]
    assert made["id"] == done["image"]["id"] and made["properties"]["n"] == "1"
    again = web("server_action", **options)
    assert not again["changed"] and again["image"] == done["image"]
    assert again["consistency"] == done["consistency"] == made["consistency"]
    assert web("image_info", name="img")["images"][0]["consistency"] is None
    refused = web("server_action", **dict(options, image_name="img"))
    assert refused["failed"] and refused["error"]["code"] == "conflict" and "image_name" in refused["msg"]
    assert web("server", name="t", flavor="small", image="golden")["server"]["image"]["name"] == "golden"


@pytest.fixture
def copied(web, agent, monkeypatch):
    """Copies of running guests' disks, each of which goes on when told."""
    go, real = threading.Event(), agent.hypervisor.finish_copy

    def finish_copy(*given):
        go.wait(60)
        return real(*given)

    monkeypatch.setattr(agent.hypervisor, "finish_copy", finish_copy)
    yield go
    go.set()


def test_create_image_while_it_is_made(web, copied):
    """What the first task began is all that the second wants."""
    options = {"name": "s", "action": "create_image", "image_name": "golden", "wait": False}
    first = web("server_action", **options)
    assert first["changed"] and first["operation"]["status"] == "running", first
    for check in (True, False):
        again = web("server_action", check=check, **options)
        assert not again["changed"] and again["actions"] == [], again
        assert again["operation"]["id"] == first["operation"]["id"] and again["request_id"] == first["request_id"]
    assert not web("server_action", check=True, **dict(options, wait=True))["changed"]
    assert web("server_action", check=True, **dict(options, image_name="another"))["changed"]
    late = web("server_action", **dict(options, wait=True, timeout=1))
    assert late["error"]["code"] == "timed-out" and first["operation"]["id"] in late["msg"], late
    copied.set()
    waited = web("server_action", **dict(options, wait=True))
    assert not waited["changed"] and waited["image"]["name"] == "golden" and waited["consistency"] == "frozen"
    assert "operation" not in waited


def test_create_image_after_one_that_was_cancelled(web, agent, copied):
    options = {"name": "s", "action": "create_image", "image_name": "golden"}
    first = web("server_action", **options, wait=False)
    agent.agent.host.operations.cancel(first["operation"]["id"])
    copied.set()
    done = web("server_action", **options)
    assert done["image"]["name"] == "golden" and len(web("image_info", name="golden")["images"]) == 1


def test_rebuild(web, disk):
    web("image", name="other", filename=str(disk), disk_format="raw")
    before = web("server_info", name="s")["servers"][0]
    options = {"name": "s", "action": "rebuild", "image": "other", "metadata": {"n": 1},
               "userdata": {"packages": ["x"]}}
    assert web("server_action", check=True, **options)["actions"] == ["rebuild"]
    done = web("server_action", **options)
    assert (done["server"]["image"]["name"], done["server"]["metadata"]) == ("other", {"n": "1"})
    assert done["server"]["networks"] == before["networks"] and done["server"]["id"] == before["id"]
    assert "packages" not in json.dumps(done["invocation"])
    assert web("server_action", name="s", action="rebuild")["changed"], "each run does it again"


def test_rebuild_as_a_state(web, disk):
    web("image", name="other", filename=str(disk), disk_format="raw")
    options = {"name": "s", "image": "other", "on_immutable": "rebuild", "preserve_ephemeral": True}
    for check in (True, False):
        done = web("server", check=check, **options)
        assert done["changed"] and "wipe" in done["actions"] and set(done["changes"]) == {"image"}
    assert not web("server", **options)["changed"]
    assert web("network", name="lan", on_immutable="rebuild")["failed"], "servers only"
    found = web("server", servers=[{"name": "s", "image": "img"}], on_immutable="rebuild")
    assert found["results"][0]["server"]["image"]["name"] == "img"


def test_allow_reboot(web):
    web("flavor", name="large", vcpus=2, ram=256)
    refused = web("server", name="s", flavor="large")
    assert refused["failed"] and "allow_reboot" in refused["msg"]
    for check in (True, False):
        done = web("server", name="s", flavor="large", allow_reboot=True, check=check)
        assert done["changed"] and done["actions"] == ["record", "stop", "define", "drive", "start"]
        assert done["diff"]["after"]["flavor.vcpus"] == 2
    assert not web("server", name="s", flavor="large", allow_reboot=True)["changed"]
    found = web("server", servers=[{"name": "s", "flavor": "small"}], allow_reboot=True)
    assert found["results"][0]["server"]["flavor"]["name"] == "small"


def test_change_password(web, agent):
    options = {"name": "s", "action": "change_password", "password": "unspeakable", "user": "me"}
    assert web("server_action", check=True, **options)["changed"] and not agent.hypervisor.passwords
    done = web("server_action", **options)
    assert done["changed"] and "unspeakable" not in json.dumps(done)
    assert list(agent.hypervisor.passwords.values()) == ["unspeakable"]
    agent.hypervisor.guest_agents = False
    refused = web("server_action", **options)
    assert refused["failed"] and "qemu-guest-agent" in refused["msg"] and "unspeakable" not in json.dumps(refused)


def test_console_output(web, agent):
    server = web("server_info", name="s")["servers"][0]
    log = agent.folder / "state/servers" / server["id"] / "console.log"
    log.write_text("".join(f"line {n}\n" for n in range(100)))
    done = web("server_action", name="s", action="console_output")
    assert not done["changed"] and done["console"].splitlines() == [f"line {n}" for n in range(50, 100)]
    assert web("server_action", name="s", action="console_output", length=1, check=True)["console"] == "line 99\n"


def test_clear_password(web, agent):
    """What the guest has left is shown until it is cleared."""
    documents = agent.agent.host.documents
    document = documents.find("server", "s")
    document.state["password"] = "sealed"
    documents.write(document)
    assert web("server_info", name="s")["servers"][0]["guest_password"] == "sealed"
    assert web("server_action", name="s", action="clear_password", check=True)["changed"]
    assert documents.find("server", "s").state["password"] == "sealed"
    assert web("server_action", name="s", action="clear_password")["changed"]
    assert web("server_info", name="s")["servers"][0]["guest_password"] == ""


def test_crash_dump(web, agent):
    assert web("server_action", name="s", action="crash_dump", check=True)["changed"]
    assert agent.hypervisor.interrupted == []
    assert web("server_action", name="s", action="crash_dump")["changed"]
    assert len(agent.hypervisor.interrupted) == 1


@pytest.mark.parametrize(("options", "message"), [
    ({"action": "reboot", "image": "img"}, "image: does not belong to action reboot"),
    ({"action": "crash_dump", "length": 3}, "length: does not belong"),
    ({"action": "create_image"}, "image_name"), ({"action": "change_password"}, "password"),
    ({"action": "rebuild", "image": "nowhere"}, "none called 'nowhere'"),
    ({"action": "rescue", "image": "nowhere"}, "none called 'nowhere'")])
def test_wrong(options, message, web):
    done = web("server_action", name="s", **options)
    assert done["failed"] and message in done["msg"]


@pytest.mark.parametrize("options", [
    {"action": "reboot"}, {"action": "stop"}, {"action": "rebuild"}, {"action": "rescue"},
    {"action": "create_image", "image_name": "golden"}, {"action": "change_password", "password": "x"}],
    ids=lambda options: options["action"])
def test_check_mode_on_a_server_that_an_earlier_task_makes(options, world):
    """It is taken for made, as by the other modules, and a warning says so; a real run fails."""
    predicted = world("server_action", name="new", check=True, **options)
    assert predicted["changed"] and predicted["actions"] == [
        "reboot_soft" if options["action"] == "reboot" else options["action"]], predicted
    assert "There is no server 'new' yet" in json.dumps(predicted["warnings"])
    assert world("server_action", name="new", **options)["error"]["code"] == "not-found"


def test_the_console_of_such_a_server(world):
    predicted = world("server_action", name="new", action="console_output", check=True)
    assert not predicted["changed"] and predicted["console"] == ""
