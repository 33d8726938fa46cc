# SPDX-License-Identifier: GPL-3.0-or-later
"""What is told of servers: of each action of the table its notifications, as ``tests/cases/notifications/actions.yml``
has them, of failures their errors; and nothing, with not one statement, where nobody receives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from magnetar_control.conductor.flows.flows import CELL
from magnetar_control.conductor.hosts.host_watch import HostWatch
from magnetar_control.conductor.worker.work import HostDown
from magnetar_control.store.engine import tables
from magnetar_core.actions import ACTIONS
from tests.support.control.cloud import Cloud
from tests.support.control.counting import counted
from tests.support.waiting import eventually
from tests.unit.control.attachments.asking import Owner
from tests.unit.control.evacuate.evacuating import Evacuating
from tests.unit.control.moves.clouds import flavors
from tests.unit.control.moves.dying import LONG, Fate, ask, take, through
from tests.unit.control.moves.inside import Inside

from .receiving import Receiving, receiving

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]
CASES: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests/cases/notifications/actions.yml").read_text())
SHARE = "e8debdc0-447a-4376-a10a-4cd9122d7986"
SECRET = "hunter2-hunter2"
#: Rows whose actions need somebody who asks for them while another one runs.
MEANWHILE = {"live_migration_cancel", "live_migration_force_complete"}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiving]:
    with receiving() as found:
        yield found


@pytest.fixture(scope="module")
def cloud(receiver: Receiving) -> Iterator[Inside]:
    """Three hosts that reach each other."""
    with Inside(hosts=3, host_down_after=20.0, shelved_offload_time=-1, bdms_in_notifications=True,
                notification_urls={"eda": receiver.url}) as found:
        flavors(found)
        found.parts.working.settling = lambda: False  # type: ignore[method-assign]
        yield found


@pytest.fixture(scope="module")
def sharing(receiver: Receiving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """A host with a share, where deleted servers can be restored."""
    with Cloud(hosts=1, folders={"files": str(tmp_path_factory.mktemp("files"))}, shares={SHARE: "files"},
               reclaim_instance_interval=3600, notification_urls={"eda": receiver.url}) as found:
        yield found


class Doing:
    """Does the steps of a case to a server of *cloud*."""

    def __init__(self, cloud: Any) -> None:
        self.cloud = cloud
        self.owner = Evacuating(cloud) if isinstance(cloud, Inside) else Owner(cloud)
        self.admin, self.id = cloud.admin, ""
        self.volumes: list[str] = []

    def do(self, act: str, args: Any = None) -> None:
        """Ask for it, and wait until it is done."""
        way = getattr(self, f"do_{act}", None)
        reply = way() if way else self.admin.act(self.id, act, self._filled(args), "2.95")
        assert reply is None or reply.status < 300, (act, reply)
        self.admin.settled(self.id)

    def _filled(self, args: Any) -> Any:
        return args and {name: self.admin.image() if value == "IMAGE" else value for name, value in args.items()}

    def do_boot(self) -> None:
        flavor = {"flavorRef": "small"} if isinstance(self.cloud, Inside) else {}
        self.id = self.admin.boot("told", user_data="aHVudGVyMi1odW50ZXIy", metadata={"of": "tests"}, **flavor)["id"]

    def do_delete(self) -> Any:
        return self.admin.delete(f"/v2.1/servers/{self.id}")

    def do_rename(self) -> Any:
        return self.admin.put(f"/v2.1/servers/{self.id}", {"server": {"name": "told"}})

    def do_set_metadata(self) -> Any:
        return self.admin.put(f"/v2.1/servers/{self.id}/metadata", {"metadata": {"of": "tests"}})

    def do_set_tags(self) -> Any:
        return self.admin.put(f"/v2.1/servers/{self.id}/tags", {"tags": ["a", "b"]}, "2.60")

    def do_attach_volume(self) -> Any:
        self.volumes = [self.owner.volume(), self.owner.volume()]
        return self._volume(self.owner.attach(self.id, self.volumes[0]), "in-use", 0)

    def do_swap_volume(self) -> Any:
        return self._volume(self.owner.swap(self.id, *self.volumes), "in-use", 1)

    def do_detach_volume(self) -> Any:
        return self._volume(self.owner.detach(self.id, self.volumes[1]), "available", 1)

    def _volume(self, reply: Any, state: str, which: int) -> Any:
        eventually(lambda: self.owner.state(self.volumes[which]) == state)
        return reply

    def do_attach_interface(self) -> Any:
        return self.admin.post(f"/v2.1/servers/{self.id}/os-interface", {"interfaceAttachment": {}})

    def do_detach_interface(self) -> Any:
        ports = self.admin.get(f"/v2.1/servers/{self.id}/os-interface").json["interfaceAttachments"]
        reply = self.admin.delete(f"/v2.1/servers/{self.id}/os-interface/{ports[-1]['port_id']}")
        eventually(lambda: len(self.admin.get(
            f"/v2.1/servers/{self.id}/os-interface").json["interfaceAttachments"]) < len(ports))
        return reply

    def do_attach_share(self) -> Any:
        return self.admin.post(f"/v2.1/servers/{self.id}/shares", {"share": {"share_id": SHARE}}, "2.97")

    def do_detach_share(self) -> Any:
        shares = f"/v2.1/servers/{self.id}/shares"
        eventually(lambda: self.admin.get(shares, "2.97").json["shares"][0]["status"] == "inactive")
        return self.admin.delete(f"{shares}/{SHARE}", "2.97")

    def do_evacuate(self) -> Any:
        host = self.admin.server(self.id)["OS-EXT-SRV-ATTR:host"]
        self.owner.down(host)  # type: ignore[attr-defined]
        reply = self.admin.act(self.id, "evacuate", {}, "2.95")
        self.admin.settled(self.id)
        self.owner.up(host)  # type: ignore[attr-defined]
        return reply


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_actions_tell_what_the_table_says(case: dict[str, Any], receiver: Receiving,
                                          request: pytest.FixtureRequest) -> None:
    doing = Doing(request.getfixturevalue("sharing" if case.get("needs") == "folders" else "cloud"))
    told: list[str] = []
    for step in case["steps"]:
        doing.do(step["act"], step.get("args"))
        told += [f"instance.{one}" for one in step["told"]]
        receiver.wait_for(len(told), doing.id)
        assert receiver.types(doing.id) == told, step
    mine = [one for one in receiver.taken if one["payload"]["nova_object.data"].get("uuid") == doing.id]
    for one in mine:
        text = orjson.dumps(one).decode()
        assert "aHVudGVyMi1odW50ZXIy" not in text and "user_data" not in text and "admin_pass" not in text.lower()
        data = one["payload"]["nova_object.data"]
        assert (data["display_name"], data["metadata"], one["priority"]) == ("told", {"of": "tests"}, "INFO")
        assert data["request_id"].startswith("req-") and data["action_initiator_user"] == doing.admin.user_id
        binary, _colon, place = one["publisher_id"].partition(":")
        assert place in doing.cloud.hosts if binary == "nova-compute" else binary == "nova-api", one["publisher_id"]


def test_all_rows_of_the_table_are_shown() -> None:
    """A new action with a notification needs a line in the cases."""
    shown = {key for case in CASES for step in case["steps"] for key in step.get("keys", ())}
    assert shown | MEANWHILE == {key for key, action in ACTIONS.items() if action.notification}


def payload(receiver: Receiving, id: str, event_type: str) -> Any:
    found = receiver.wait(lambda: [one for one in receiver.taken if one["event_type"] == event_type
                                   and one["payload"]["nova_object.data"]["uuid"] == id])
    return found[-1]


def test_the_payload_of_a_server(cloud: Inside, receiver: Receiving) -> None:
    doing = Doing(cloud)
    doing.do("boot")
    made = payload(receiver, doing.id, "instance.create.end")
    assert {"message_id", "publisher_id", "event_type", "priority", "payload", "timestamp"} == made.keys()
    assert (made["payload"]["nova_object.name"], made["payload"]["nova_object.namespace"]) == (
        "InstanceCreatePayload", "nova")
    data, shown = made["payload"]["nova_object.data"], cloud.admin.server(doing.id)
    assert (data["host"], data["state"], data["power_state"], data["task_state"]) == (
        shown["OS-EXT-SRV-ATTR:host"], "active", "running", None)
    assert data["flavor"]["nova_object.data"] | {"flavorid": "small", "memory_mb": 128, "root_gb": 1} == (
        data["flavor"]["nova_object.data"])
    addresses = [one["nova_object.data"]["address"] for one in data["ip_addresses"]]
    assert addresses == [one["addr"] for one in shown["addresses"]["default"]]
    doing.do("attach_volume")
    attached = payload(receiver, doing.id, "instance.volume_attach.end")["payload"]["nova_object.data"]
    assert attached["volume_id"] == doing.volumes[0]
    assert [one["nova_object.data"]["volume_id"] for one in attached["block_devices"]] == [doing.volumes[0]]
    doing.do("delete")
    deleted = payload(receiver, doing.id, "instance.delete.end")["payload"]["nova_object.data"]
    assert (deleted["state"], [one["nova_object.data"]["address"] for one in deleted["ip_addresses"]]) == (
        "deleted", addresses)
    assert deleted["deleted_at"] and deleted["terminated_at"]


def test_a_guest_that_dies_is_told_with_nobody_who_asked(cloud: Inside, receiver: Receiving) -> None:
    doing = Doing(cloud)
    doing.do("boot")
    host = cloud.admin.server(doing.id)["OS-EXT-SRV-ATTR:host"]
    HostWatch(cloud.parts.working).follow(host, [{"id": doing.id, "power_state": "crashed"}])
    told = payload(receiver, doing.id, "instance.power_off.end")
    data = told["payload"]["nova_object.data"]
    assert (data["power_state"], data["state"], told["publisher_id"]) == ("crashed", "stopped", f"nova-compute:{host}")
    assert data["request_id"] is data["action_initiator_user"] is data["action_initiator_project"] is None
    doing.do("delete")


def test_a_guest_that_runs_again_is_told_by_what_it_was(cloud: Inside, receiver: Receiving) -> None:
    doing = Doing(cloud)
    doing.do("boot")
    doing.do("pause")
    receiver.wait_for(4, doing.id)
    host = cloud.admin.server(doing.id)["OS-EXT-SRV-ATTR:host"]
    HostWatch(cloud.parts.working).follow(host, [{"id": doing.id, "power_state": "running"}])
    receiver.wait_for(5, doing.id)
    assert receiver.types(doing.id)[4] == "instance.unpause.end"
    doing.do("delete")


def test_a_conductor_that_dies_anywhere_tells_each_action_once(cloud: Inside, receiver: Receiving) -> None:
    """What is told again has the same id."""
    doing, died = Doing(cloud), True
    doing.do("boot")
    wanted, number = ["instance.create.start", "instance.create.end"], 0
    while died:
        number += 1
        died = False
        for key in ("pause", "unpause"):
            fate = Fate(number)
            through(cloud, doing.id, key, fate)
            died = died or fate.died
            wanted += [f"instance.{key}.start", f"instance.{key}.end"]
    assert number > 3
    receiver.wait_for(len(wanted), doing.id)
    assert receiver.types(doing.id) == wanted
    doing.do("delete")


def test_a_failure_is_an_error_with_its_fault(cloud: Inside, receiver: Receiving) -> None:
    admin = cloud.admin
    admin.post("/v2.1/flavors", {"flavor": {"id": "vast", "name": "vast", "vcpus": 1, "ram": 1 << 30, "disk": 1}})
    id = admin.post("/v2.1/servers", {"server": {"name": "nowhere", "flavorRef": "vast", "imageRef": admin.image(),
                                                 "networks": "none"}}, "2.60").json["server"]["id"]
    admin.settled(id)
    failed = payload(receiver, id, "instance.create.error")
    fault = failed["payload"]["nova_object.data"]["fault"]["nova_object.data"]
    assert failed["priority"] == "ERROR" and failed["publisher_id"].startswith("nova-conductor:")
    assert fault["exception"] == "NoValidHost" and "No valid host" in fault["exception_message"]
    assert receiver.types(id) == ["instance.create.error"]
    assert [one["event_type"] for one in of_scheduler(receiver, id)] == [
        "scheduler.select_destinations.start", "compute_task.build_instances.error"]
    admin.delete(f"/v2.1/servers/{id}")


def of_scheduler(receiver: Receiving, id: str) -> list[dict[str, Any]]:
    """What is told of choices for a server and of tasks that failed for want of a host, each once, in order."""
    return list({one["message_id"]: one for one in receiver.taken
                 if one["payload"]["nova_object.data"].get("instance_uuid") == id}.values())


def test_what_the_scheduler_chooses_is_told(cloud: Inside, receiver: Receiving) -> None:
    doing = Doing(cloud)
    doing.do("boot")
    doing.do("resize", {"flavorRef": "large"})
    receiver.wait(lambda: len(of_scheduler(receiver, doing.id)) == 4)
    found = of_scheduler(receiver, doing.id)
    assert [one["event_type"] for one in found] == [
        "scheduler.select_destinations.start", "scheduler.select_destinations.end"] * 2
    assert all(one["publisher_id"].startswith("nova-scheduler:") and one["priority"] == "INFO" for one in found)
    first, last = found[0]["payload"], found[-1]["payload"]
    assert (first["nova_object.name"], first["nova_object.version"]) == ("RequestSpecPayload", "1.1")
    assert [one["nova_object.data"]["flavor"]["nova_object.data"]["flavorid"] for one in (first, last)] == [
        "small", "large"]
    data, shown = first["nova_object.data"], cloud.admin.server(doing.id)
    assert data["image"]["nova_object.data"]["id"] == shown["image"]["id"]
    assert (data["project_id"], data["num_instances"], data["retry"], data["force_hosts"]) == (
        shown["tenant_id"], 1, None, None)
    doing.do("delete")


def test_a_silent_host_has_no_choice_told_again(
        cloud: Inside, receiver: Receiving, monkeypatch: pytest.MonkeyPatch) -> None:
    doing = Doing(cloud)
    doing.do("boot")
    number = ask(cloud, doing.id, "rebuild", image=cloud.admin.image(), preserve_ephemeral=False, before={})
    for attempts in range(1, 4):
        work = take(cloud, number, attempts=attempts)
        with monkeypatch.context() as patch:
            if attempts < 3:
                patch.setattr(work, "client", silent)
            CELL["rebuild"](work)
    payload(receiver, doing.id, "instance.rebuild.end")
    told = [one["event_type"] for one in receiver.taken
            if one["payload"]["nova_object.data"].get("instance_uuid") == doing.id]
    assert told == ["scheduler.select_destinations.start", "scheduler.select_destinations.end"] * 2  # and of the create
    doing.do("delete")


def silent(*_given: Any) -> Any:
    """The agent of a host does not answer."""
    raise HostDown("It does not answer.")


def test_an_evacuation_that_finds_no_host_is_told_twice(cloud: Inside, receiver: Receiving) -> None:
    """By Nova's conductor as a task, and as an action that has failed."""
    doing = Doing(cloud)
    doing.do("boot")
    host = cloud.admin.server(doing.id)["OS-EXT-SRV-ATTR:host"]
    services = [one for one in cloud.admin.get("/v2.1/os-services?binary=nova-compute", "2.53").json["services"]
                if one["host"] != host]
    doing.owner.down(host)
    try:
        for one in services:
            cloud.admin.put(f"/v2.1/os-services/{one['id']}", {"status": "disabled"}, "2.53")
        assert cloud.admin.act(doing.id, "evacuate", {}, "2.95").status == 200
        failed = receiver.wait(lambda: [one for one in of_scheduler(receiver, doing.id)
                                        if one["event_type"] == "compute_task.rebuild_server.error"])[0]
    finally:
        for one in services:
            cloud.admin.put(f"/v2.1/os-services/{one['id']}", {"status": "enabled"}, "2.53")
        doing.owner.up(host)
    data = failed["payload"]["nova_object.data"]
    assert (failed["priority"], failed["publisher_id"].partition(":")[0]) == ("ERROR", "nova-conductor")
    assert data["request_spec"]["nova_object.data"]["instance_uuid"] == doing.id and data["state"] == "error"
    assert data["reason"]["nova_object.data"]["exception"] == "NoValidHost"
    payload(receiver, doing.id, "instance.rebuild.error")
    doing.do("delete")


@pytest.mark.parametrize(("act", "then"), [
    ("forceDelete", ["delete.start", "delete.end"]), ("os-resetState", ["update"]),
    ("reboot", ["reboot.start", "reboot.end"])])
def test_what_had_begun_and_is_dropped_is_told_to_have_failed(cloud: Inside, receiver: Receiving, act: str,
                                                              then: list[str]) -> None:
    doing = Doing(cloud)
    doing.do("boot")
    work = take(cloud, ask(cloud, doing.id, "pause"))
    with work.event():
        pass
    work.put_back(LONG)
    args = {"os-resetState": {"state": "active"}, "reboot": {"type": "HARD"}}.get(act)
    assert cloud.admin.act(doing.id, act, args).status == 202
    wanted = [f"instance.{one}" for one in ("create.start", "create.end", "pause.start", "pause.error", *then)]
    receiver.wait_for(len(wanted), doing.id)
    assert receiver.types(doing.id) == wanted
    told = payload(receiver, doing.id, "instance.pause.error")
    fault = told["payload"]["nova_object.data"]["fault"]["nova_object.data"]
    assert (fault["exception"], told["priority"]) == ("Cancelled", "ERROR")
    assert told["payload"]["nova_object.data"]["request_id"] == work.action.request_id
    assert told["publisher_id"] == f"nova-compute:{work.server.host}"
    if act != "forceDelete":
        doing.do("delete")


def test_nothing_is_asked_or_written_where_nobody_receives_it() -> None:
    with Cloud(hosts=1) as cloud, counted(api=cloud.parts.api_database, cell=cloud.parts.working.database,
                                          cell0=cloud.parts.store.cell0) as seen:
        doing = Doing(cloud)
        for act in ("boot", "os-stop", "lock", "unlock", "delete"):
            doing.do(act)
        assert seen and not [one for one in seen if "notification" in one[1]]
        for database in (cloud.parts.working.database, cloud.parts.store.cell0):
            with database.read() as connection:
                assert connection.execute(tables.notifications.select()).all() == []
