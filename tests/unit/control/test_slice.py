# SPDX-License-Identifier: GPL-3.0-or-later
"""A server's life over HTTP, on fake hosts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterator

import pytest

from magnetar_control.agents import Agents
from magnetar_control.conductor.flows import server_create
from magnetar_control.conductor.worker.work import HostDown, RunningAction
from magnetar_control.store.servers import servers
from magnetar_core.errors import Unreachable
from magnetar_core.http.client import Client
from tests.support.agent.iso import read
from tests.support.control.cloud import Cloud


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud() as made:
        yield made


def test_a_life(cloud: Cloud) -> None:
    admin = cloud.admin
    server = admin.boot("life")
    assert server["status"] == "ACTIVE" and server["progress"] == 0 and server["OS-EXT-SRV-ATTR:host"] in cloud.hosts
    assert server["addresses"]["default"][0]["version"] == 4
    for action, args, status in (("pause", None, "PAUSED"), ("unpause", None, "ACTIVE"), ("suspend", None, "SUSPENDED"),
                                 ("resume", None, "ACTIVE"), ("os-stop", None, "SHUTOFF"), ("os-start", None, "ACTIVE"),
                                 ("reboot", {"type": "HARD"}, "ACTIVE"), ("rescue", None, "RESCUE"),
                                 ("unrescue", None, "ACTIVE"), ("rebuild", {"imageRef": admin.image()}, "ACTIVE")):
        reply = admin.act(server["id"], action, args)
        assert reply.status in (200, 202), (action, reply)
        found = admin.settled(server["id"])
        assert found and found["status"] == status, (action, found)
    assert admin.delete(f"/v2.1/servers/{server['id']}").status == 204
    assert admin.settled(server["id"]) is None


def test_admins_are_told_which_filter_refused_how_many_hosts(cloud: Cloud) -> None:
    """Users are told only that there is none: how many hosts a cloud has is not theirs to know."""
    admin, user = cloud.admin, cloud.caller("ursula", "somewhere", "member")
    flavor = {"flavor": {"id": "vast", "name": "vast", "vcpus": 1, "ram": 1 << 30, "disk": 1}}
    assert admin.post("/v2.1/flavors", flavor).status == 200
    image = user.image("hers")
    id = user.post("/v2.1/servers", {"server": {
        "name": "nowhere", "flavorRef": "vast", "imageRef": image, "networks": "none"}}, "2.60").json["server"]["id"]
    shown = user.settled(id)
    assert shown and shown["fault"]["message"].startswith("No valid host was found.")
    hosts = f"Of {len(cloud.hosts)} hosts the filters refused: RamFilter {len(cloud.hosts)}."
    assert hosts in admin.server(id)["fault"]["details"] and "RamFilter" not in str(shown)
    path = f"/v2.1/servers/{id}/os-instance-actions"
    request = admin.get(path).json["instanceActions"][0]["request_id"]
    (event,) = admin.get(f"{path}/{request}", "2.84").json["instanceAction"]["events"]
    assert event["result"] == "Error" and hosts in event["details"]
    assert "RamFilter" not in str(user.get(f"{path}/{request}", "2.84").json)
    assert user.delete(f"/v2.1/servers/{id}").status == 204
    assert user.settled(id) is None


def small(cloud: Cloud) -> str:
    """A flavor that users may take: it has a disk."""
    cloud.admin.post("/v2.1/flavors", {"flavor": {"id": "small", "name": "small", "vcpus": 1, "ram": 64, "disk": 1}})
    return "small"


@pytest.mark.parametrize("attempts", [1, 9])
def test_users_are_not_told_of_hosts_that_do_not_answer(
        cloud: Cloud, monkeypatch: pytest.MonkeyPatch, attempts: int) -> None:
    """Neither which they are, nor where their agents listen, nor tracebacks; admins are."""
    def make(work: RunningAction, host: str, _nics: object) -> None:
        raise HostDown(f"The agent of host {host} does not answer: Cannot reach the agent at unix:/secret")

    monkeypatch.setattr(server_create, "make_server", make)
    conductor = cloud.parts.working
    monkeypatch.setattr(conductor, "settings", dataclasses.replace(conductor.settings, max_attempts=attempts))
    monkeypatch.setattr(conductor.states, "count_build", lambda *_args, **_more: None)
    user = cloud.caller("ulla", "elsewhere")
    wanted = {"name": "away", "flavorRef": small(cloud), "imageRef": user.image("ullas"), "networks": "none"}
    id = user.post("/v2.1/servers", {"server": wanted}, "2.60").json["server"]["id"]
    shown = user.settled(id)
    assert shown and "does not answer" in shown["fault"]["message"], shown
    assert "details" not in shown["fault"] and not any(
        word in str(shown["fault"]) for word in ("kvm", "unix", "secret", "Traceback"))
    told = cloud.admin.server(id)["fault"]["details"]
    assert "unix:/secret" in told and "kvm" in told
    user.delete(f"/v2.1/servers/{id}")
    assert user.settled(id) is None


def test_users_are_not_told_where_a_console_is_looked_for(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    user = cloud.caller("ulla", "elsewhere")
    id = user.boot("talks", flavorRef=small(cloud), imageRef=user.image("ullas"), networks="none")["id"]

    def client(_agents: Agents, endpoint: str, *_more: object) -> None:
        raise Unreachable(f"Cannot reach the agent at {endpoint}")

    with monkeypatch.context() as patched:
        patched.setattr(Agents, "client", client)
        for action, args in (("os-getConsoleOutput", {}), ("changePassword", {"adminPass": "x"})):
            reply = user.act(id, action, args)
            assert reply.status == 503 and "does not answer" in str(reply.json) and "unix:" not in str(reply.json)
            assert "unix:" in str(cloud.admin.act(id, action, args).json)
    user.delete(f"/v2.1/servers/{id}")
    assert user.settled(id) is None


def test_a_server_that_found_no_host_is_only_deleted(cloud: Cloud) -> None:
    """Nothing that needs a host is begun; what is asked for all the same ends at once, and leaves nothing busy."""
    admin = cloud.admin
    flavor = {"flavor": {"id": "huge", "name": "huge", "vcpus": 1, "ram": 1 << 30, "disk": 1}}
    assert admin.post("/v2.1/flavors", flavor).status == 200
    id = admin.boot("nowhere", flavorRef="huge")["id"]
    for state in ("active", "error"):
        assert admin.act(id, "os-resetState", {"state": state}).status == 202
        for action, args in (("reboot", {"type": "HARD"}), ("rebuild", {"imageRef": admin.image()}), ("rescue", None),
                             ("os-stop", None), ("pause", None), ("suspend", None), ("resize", {"flavorRef": "1"}),
                             ("migrate", None), ("createImage", {"name": "a"}), ("os-getConsoleOutput", {})):
            reply = admin.act(id, action, args)
            assert reply.status == 409, (state, action, reply)
        assert admin.server(id)["OS-EXT-STS:task_state"] is None
    (cell0,) = [database for cell, database in cloud.parts.store.databases() if cell.name == "cell0"]
    with cell0.write() as connection:  # as an API of before would have let it in
        row = servers.fetch_server_row(connection, id, lock=True)
        assert servers.request_server_action(connection, row, "reboot-hard", "req-1", "me", row.project_id,
                                             {"type": "HARD"})
        cell0.notify(connection, servers.ACTIONS_CHANGED)
    found = admin.settled(id)
    assert found and "has no host" in found["fault"]["message"], found
    assert admin.delete(f"/v2.1/servers/{id}").status == 204
    assert admin.settled(id) is None


def test_a_server_on_a_volume_is_not_rescued_without_an_image(cloud: Cloud) -> None:
    admin = cloud.admin
    id = admin.boot("volume", block_device_mapping_v2=[{
        "boot_index": 0, "uuid": admin.image(), "source_type": "image", "destination_type": "volume",
        "volume_size": 1, "delete_on_termination": True}])["id"]
    for version, args in (("2.1", None), ("2.86", {"rescue_image_ref": admin.image()}), ("2.87", None), ("2.87", {})):
        reply = admin.act(id, "rescue", args, version)
        assert reply.status == 400, (version, args, reply)
    assert admin.server(id)["status"] == "ACTIVE"
    for image, word in ((admin.image(), "Cannot rescue a volume-backed instance"),
                        (admin.image("ide", hw_rescue_bus="ide"), "of the server has no IDE")):
        reply = admin.act(id, "rescue", {"rescue_image_ref": image}, "2.87")
        assert reply.status == 400 and word in reply.json["badRequest"]["message"], reply
    rescues = admin.image("rescue", hw_rescue_device="cdrom", hw_rescue_bus="scsi")
    assert admin.act(id, "rescue", {"rescue_image_ref": rescues}, "2.87").status == 200
    found = admin.settled(id)
    assert found and found["status"] == "RESCUE", found
    assert admin.act(id, "unrescue").status == 202
    found = admin.settled(id)
    assert found and found["status"] == "ACTIVE", found
    admin.delete(f"/v2.1/servers/{id}")


def test_many_servers_do_not_share_a_port_or_an_address(cloud: Cloud) -> None:
    admin = cloud.admin
    network = admin.get("/network/v2.0/networks").json["networks"][0]["id"]
    port = admin.post("/network/v2.0/ports", {"port": {"network_id": network}}).json["port"]
    body = {"name": "many", "flavorRef": "1", "imageRef": admin.image(), "max_count": 2}
    for nic, text in (({"port": port["id"]}, "single configured port"),
                      ({"uuid": network, "fixed_ip": "10.20.1.1"}, "max_count"),
                      ({}, "needs a uuid")):
        reply = admin.post("/v2.1/servers", {"server": {**body, "networks": [nic]}}, "2.60")
        assert reply.status == 400 and text in str(reply.json), reply
    assert admin.get("/v2.1/servers?name=many").json["servers"] == []


def test_what_a_host_has_of_an_image_is_believed_only_with_the_images_checksum(cloud: Cloud) -> None:
    """Also where the host has only begun, and another said nothing of a checksum."""
    content = b"\1" * 65536
    digest = f"sha512:{hashlib.sha512(content).hexdigest()}"
    (host, endpoint), delivery = next(iter(cloud.hosts.items())), cloud.parts.delivery
    for name, there in (("foreign", b"\2" * 65536), ("begun", None), ("same", content)):
        id = cloud.admin.image(name, content)
        with cloud.parts.agents.client(endpoint) as client:
            client.ensure("image", id, {"name": id, "source": {"upload": True}})
            if there is not None:
                client.send("image", id, iter([there]), len(there))
            before = client.get("image", id)
            delivery.image(client, host, id)
            found = client.get("image", id)
            pieces, _size = client.receive("image", id)
            assert b"".join(pieces) == content, name
            assert found["status"] == "active" and (found == before if there == content else
                                                    found["checksum"] == digest), (name, found)


def test_what_is_known_of_a_new_server(cloud: Cloud) -> None:
    """Every server has a config drive, so it says so; a rebuilt one was launched anew."""
    admin = cloud.admin
    server = admin.boot("known")
    assert server["config_drive"] == "True"
    admin.act(server["id"], "rebuild", {"imageRef": admin.image()})
    again = admin.settled(server["id"])
    assert again and again["OS-SRV-USG:launched_at"] > server["OS-SRV-USG:launched_at"]
    admin.delete(f"/v2.1/servers/{server['id']}")
    assert admin.settled(server["id"]) is None
    shown = admin.get("/v2.1/servers?status=DELETED").json["servers"]
    assert server["id"] in [one["id"] for one in shown]


def test_who_found_the_host_makes_the_server(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of the cell is not asked for what its conductor has in hand already, unless the host has enough."""
    conductor, admin = cloud.parts.working, cloud.admin
    assert conductor is not None
    (cell,) = [database for one, database in cloud.parts.store.databases() if one.name == "cell1"]
    notify, signalled = cell.notify, []

    def notified(connection, name):
        signalled.append(name)
        notify(connection, name)

    monkeypatch.setattr(cell, "notify", notified)
    assert admin.boot("at-once")["status"] == "ACTIVE"
    assert servers.ACTIONS_CHANGED not in signalled
    monkeypatch.setattr(conductor, "room", lambda *_all: Counter())
    assert admin.boot("by-the-queue")["status"] == "ACTIVE"
    assert servers.ACTIONS_CHANGED in signalled


def test_nobody_comes_by_anothers_key(cloud: Cloud) -> None:
    """The guest is told the key itself: a key pair of the host that is called alike is another one."""
    admin = cloud.admin
    public, other = (admin.post("/v2.1/os-keypairs", {"keypair": {"name": name}}, "2.2").json["keypair"]["public_key"]
                     for name in ("hers", "theirs"))
    for endpoint in cloud.hosts.values():
        with Client(endpoint) as client:
            client.ensure("keypair", "hers", {"public_key": other})
    server = admin.boot("keyed", key_name="hers")
    assert server["status"] == "ACTIVE", server
    with Client(cloud.hosts[server["OS-EXT-SRV-ATTR:host"]]) as client:
        assert client.get("server", server["id"])["key_name"] is None
    (drive,) = cloud.folder.glob(f"kvm*/state/servers/{server['id']}/config.iso")
    meta = json.loads(read(drive.read_bytes(), "rr_path")["openstack/latest/meta_data.json"])
    assert meta["public_keys"]["hers"].split()[:2] == public.split()[:2]
    assert admin.delete(f"/v2.1/servers/{server['id']}").status == 204
    assert admin.settled(server["id"]) is None


def test_security_groups_are_shown_by_name(cloud: Cloud) -> None:
    """Also those that were given by their uuids, which decide when several have the name."""
    admin = cloud.admin
    one, other = (admin.post("/network/v2.0/security-groups", {"security_group": {"name": "web"}}).json[
        "security_group"]["id"] for _at in range(2))
    reply = admin.post("/v2.1/servers", {"server": {
        "name": "named", "flavorRef": "1", "imageRef": admin.image(), "networks": "auto",
        "security_groups": [{"name": other}, {"name": "default"}, {"name": other}]}}, "2.60")
    shown = [{"name": "web"}, {"name": "default"}]
    assert reply.json["server"]["security_groups"] == shown
    id = reply.json["server"]["id"]
    server = admin.settled(id)
    assert server and server["status"] == "ACTIVE" and server["security_groups"] == shown
    port, = admin.get(f"/network/v2.0/ports?device_id={id}").json["ports"]
    assert other in port["security_groups"] and one not in port["security_groups"] and len(port["security_groups"]) == 2
    admin.delete(f"/v2.1/servers/{id}")
    admin.settled(id)


def test_a_rebuild_since_2_75_shows_what_nova_shows(cloud: Cloud) -> None:
    """All that show does, and user_data under its own name only; addresses have their usual form."""
    admin = cloud.admin
    id = admin.boot(version="2.75", accessIPv6="FE80:0:0:0:0:0:0:0001", user_data="YQ==")["id"]
    assert admin.server(id)["accessIPv6"] == "fe80::1"
    body = {"imageRef": admin.image(), "accessIPv6": "80FE::0"}
    rebuilt = admin.act(id, "rebuild", body, "2.75").json["server"]
    shown = admin.server(id, "2.75")
    assert set(rebuilt) - set(shown) == {"user_data", "adminPass"} | ({"progress"} - set(shown))
    assert set(shown) - set(rebuilt) <= {"OS-EXT-SRV-ATTR:user_data", "progress"}
    assert (rebuilt["user_data"], rebuilt["accessIPv6"]) == ("YQ==", "80fe::")
    admin.settled(id)
    updated = admin.put(f"/v2.1/servers/{id}", {"server": {"name": "renamed"}}, "2.75").json["server"]
    assert updated["OS-EXT-SRV-ATTR:user_data"] == "YQ=="
    admin.delete(f"/v2.1/servers/{id}")
    admin.settled(id)
