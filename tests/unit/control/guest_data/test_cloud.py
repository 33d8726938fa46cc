# SPDX-License-Identifier: GPL-3.0-or-later
"""What guests of a cloud are told, from the request to the config drive on the host."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from sqlalchemy import select

from magnetar_control import delivery
from magnetar_control.conductor.flows import server_create
from magnetar_control.store.engine import tables
from tests.support.agent.iso import read
from tests.support.agent.metadata_cloud_init import SCHEMA
from tests.support.control.cloud import Caller, Cloud
from tests.support.waiting import eventually

from .targets import Targets, serving

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBJ3Bg0Yb4cUXrcQb6G8cT1AyTqPzIyCGZ0fPyyBOAVK me"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH9nOHZ8L6oSeHO4jlI3NxmX5X7iEnWk4yJ1qkvR2k3v me"
SECRET = "Sesame-42-Open"
#: What the targets of this cloud answer.
ANSWERS = {"join": {"join": "now"}, "bad": {}}


@pytest.fixture(scope="module")
def targets() -> Iterator[Targets]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def cloud(targets: Targets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    file = tmp_path_factory.mktemp("vendor") / "vendor.json"
    file.write_text('{"site": "lab"}')
    with Cloud(hosts=2, links=True, allow_resize_to_same_host=True, vendordata_jsonfile_path=str(file),
               vendordata_dynamic_targets=[f"join@{targets.url('good')}", f"bad@{targets.url('lies')}"]) as made:
        yield made


def drive(cloud: Cloud, id: str, name: str = "config.iso") -> dict[str, bytes]:
    """The files of the config drive that a server's guest has."""
    (found,) = cloud.folder.glob(f"kvm*/state/servers/{id}/{name}")
    return read(found.read_bytes(), "rr_path")


def document(cloud: Cloud, id: str, path: str = "openstack/latest/meta_data.json", name: str = "config.iso") -> Any:
    return json.loads(drive(cloud, id, name)[path])


def kept(cloud: Cloud) -> str:
    """What the databases and the agents' documents have of passwords."""
    found = []
    for database in (cloud.parts.working.database, cloud.parts.store.cell0):
        with database.read() as connection:
            found += [str(row) for table in (tables.actions, tables.servers, tables.action_events)
                      for row in connection.execute(select(table))]
    found += [path.read_text() for path in cloud.folder.glob("kvm*/state/documents/server/*.json")]
    return "".join(found)


def done(caller: Caller, id: str, action: str, args: Any, version: str = "2.60") -> Any:
    """Have an action done, to its end; returns its answer."""
    reply = caller.act(id, action, args, version)
    assert reply.status in (200, 202), reply
    caller.settled(id)
    return reply.json


def last_event(cloud: Cloud, id: str) -> str:
    """Why the last event of a server's last action failed."""
    path = f"/v2.1/servers/{id}/os-instance-actions"
    request = cloud.admin.get(path).json["instanceActions"][0]["request_id"]
    return str(cloud.admin.get(f"{path}/{request}", "2.84").json["instanceAction"]["events"][0]["details"])


def test_all_that_a_guest_is_told(cloud: Cloud, targets: Targets) -> None:
    admin = cloud.admin
    network = admin.post("/network/v2.0/networks", {"network": {"name": "lan"}}).json["network"]["id"]
    subnet = admin.post("/network/v2.0/subnets", {"subnet": {
        "network_id": network, "cidr": "10.99.0.0/24", "ip_version": 4, "dns_nameservers": ["192.0.2.53"]}})
    assert subnet.status == 201, subnet
    group = admin.post("/network/v2.0/security-groups", {"security_group": {"name": "web"}})
    assert group.status == 201, group
    assert admin.post("/v2.1/os-keypairs", {"keypair": {"name": "my key", "public_key": KEY}}).status == 200
    before = len(targets.asked)
    reply = admin.post("/v2.1/servers", {"server": {
        "name": "Web", "flavorRef": "1", "imageRef": admin.image(), "min_count": 2, "max_count": 2,
        "key_name": "my key",
        "networks": [{"uuid": network, "tag": "front"}], "adminPass": SECRET, "metadata": {"role": "web"},
        "security_groups": [{"name": "web"}], "user_data": base64.b64encode(b"#!/bin/sh").decode()}}, "2.60")
    assert reply.status == 202 and reply.json["server"]["adminPass"] == SECRET
    listed = admin.get("/v2.1/servers/detail?name=^Web-", "2.60").json["servers"]
    servers = {one["name"]: admin.settled(one["id"]) for one in listed}
    assert set(servers) == {"Web-1", "Web-2"}
    for index, (name, server) in enumerate(sorted(servers.items())):
        assert server and server["status"] == "ACTIVE", server
        meta = document(cloud, server["id"])
        assert (meta["name"], meta["hostname"], meta["launch_index"]) == (name, f"{name.lower()}.novalocal", index)
        assert (meta["project_id"], meta["availability_zone"]) == (admin.project_id, "nova")
        assert meta["public_keys"] == {"my key": KEY} and meta["admin_pass"] == SECRET
        assert meta["devices"][0]["tags"] == ["front"]
        ec2 = document(cloud, server["id"], "ec2/latest/meta-data.json")
        (address,) = server["addresses"]["lan"]
        assert (ec2["instance-type"], ec2["local-ipv4"], ec2["security-groups"], ec2["ami-launch-index"]) == (
            "tiny", address["addr"], ["web"], index)
        assert ec2["reservation-id"] == server["OS-EXT-SRV-ATTR:reservation_id"]
        told = document(cloud, server["id"], "openstack/latest/network_data.json")
        jsonschema.validate(told, SCHEMA)
        assert told["networks"][0]["network_id"] == network
        assert told["services"] == [{"type": "dns", "address": "192.0.2.53"}]
        assert document(cloud, server["id"], "openstack/latest/vendor_data.json") == {"site": "lab"}
        assert document(cloud, server["id"], "openstack/latest/vendor_data2.json") == ANSWERS
    assert SECRET not in kept(cloud)
    asked = {body["instance-id"]: body for _path, _headers, body in targets.asked[before:]}
    body = asked[servers["Web-1"]["id"]]  # type: ignore[index]
    assert (body["project-id"], body["image-id"], body["hostname"]) == (admin.project_id, admin.image(), "web-1")
    assert body["metadata"] == {"role": "web"} and "admin" in body["boot-roles"].split(",")
    assert base64.b64decode(body["user-data"]) == b"#!/bin/sh"


def test_rename_and_rebuild(cloud: Cloud) -> None:
    admin = cloud.admin
    id = admin.boot("old", networks="none")["id"]
    drawn = document(cloud, id)["admin_pass"]
    assert len(drawn) == 12 and drawn not in kept(cloud)
    assert admin.put(f"/v2.1/servers/{id}", {"server": {"name": "New Name"}}).status == 200
    assert document(cloud, id)["name"] == "old"  # written when the guest was built, as at Nova
    assert admin.post("/v2.1/os-keypairs", {"keypair": {"name": "other", "public_key": OTHER}}).status == 200
    answer = done(admin, id, "rebuild", {"imageRef": admin.image(), "adminPass": "Rebuilt-1", "key_name": "other"})
    assert answer["server"]["adminPass"] == "Rebuilt-1"
    meta = document(cloud, id)
    assert (meta["name"], meta["admin_pass"], meta["public_keys"]) == ("New Name", "Rebuilt-1", {"other": OTHER})
    made = admin.post("/v2.1/os-keypairs", {"keypair": {"name": "win", "type": "x509"}}, "2.60").json["keypair"]
    done(admin, id, "rebuild", {"imageRef": admin.image(), "key_name": "win"})
    assert document(cloud, id)["keys"] == [{"name": "win", "type": "x509", "data": made["public_key"]}]
    answer = done(admin, id, "rebuild", {"imageRef": admin.image(), "key_name": None})
    assert document(cloud, id)["admin_pass"] == answer["server"]["adminPass"] and "keys" not in document(cloud, id)
    assert "Rebuilt-1" not in kept(cloud)


def test_rescue(cloud: Cloud) -> None:
    admin = cloud.admin
    id = admin.boot(networks="none", adminPass=SECRET)["id"]
    assert done(admin, id, "rescue", {"adminPass": "Rescue-1"}) == {"adminPass": "Rescue-1"}
    assert document(cloud, id, name="rescue.config.iso")["admin_pass"] == "Rescue-1"
    done(admin, id, "unrescue", None)
    drawn = done(admin, id, "rescue", None)["adminPass"]
    assert document(cloud, id, name="rescue.config.iso")["admin_pass"] == drawn
    assert document(cloud, id)["admin_pass"] == SECRET
    assert not [one for one in (SECRET, "Rescue-1", drawn) if one in kept(cloud)]


def test_the_guest_agent_sets_it(cloud: Cloud) -> None:
    """Where the image says that it runs in the guest; agents of these clouds have guests in which it does."""
    admin = cloud.admin
    image = admin.image("talks", hw_qemu_guest_agent="yes", os_admin_user="cloud")
    for server in (admin.boot(networks="none", adminPass=SECRET, imageRef=image),
                   admin.boot(networks="none", adminPass=SECRET)):
        log = cloud.folder / server["OS-EXT-SRV-ATTR:host"] / "log"
        if server["image"]["id"] == image:
            eventually(lambda log=log, id=server["id"]: f'"server": "{id}"' in "".join(
                line for line in log.read_text().splitlines() if "has set the password of cloud" in line))
        assert SECRET not in log.read_text()
    eventually(lambda: SECRET not in kept(cloud))
    assert SECRET in str(document(cloud, server["id"]))


def test_a_resize_and_a_move_write_it_again(cloud: Cloud, targets: Targets) -> None:
    """With what the operator says then; a revert keeps that."""
    admin = cloud.admin
    for one in admin.get("/v2.1/servers").json["servers"]:  # a host with servers does not change its zone
        admin.delete(f"/v2.1/servers/{one['id']}")
        admin.settled(one["id"])
    flavor = admin.post("/v2.1/flavors", {"flavor": {"name": "m1.big", "vcpus": 2, "ram": 128, "disk": 0, "id": "big"}})
    assert flavor.status == 200, flavor
    id = admin.boot(networks="none", adminPass=SECRET)["id"]
    targets.answers["good"] = b'{"join": "later"}'
    done(admin, id, "resize", {"flavorRef": "big"})
    assert document(cloud, id, "ec2/latest/meta-data.json")["instance-type"] == "m1.big"
    assert "admin_pass" not in document(cloud, id)  # it was told once
    later = {**ANSWERS, "join": {"join": "later"}}
    assert document(cloud, id, "openstack/latest/vendor_data2.json") == later
    del targets.answers["good"]
    done(admin, id, "revertResize", None)
    assert document(cloud, id, "openstack/latest/vendor_data2.json") == later
    assert document(cloud, id, "ec2/latest/meta-data.json")["instance-type"] == "tiny"
    aggregate = admin.post("/v2.1/os-aggregates", {"aggregate": {"name": "a", "availability_zone": "az2"}}).json
    host = next(one for one in ("kvm1", "kvm2") if one != admin.server(id)["OS-EXT-SRV-ATTR:host"])
    number = aggregate["aggregate"]["id"]
    assert admin.post(f"/v2.1/os-aggregates/{number}/action", {"add_host": {"host": host}}).status == 200
    eventually(lambda: cloud.parts.working.zone(host) == "az2")  # the conductor reads zones now and then
    done(admin, id, "migrate", {"host": host}, "2.60")
    assert admin.server(id)["OS-EXT-SRV-ATTR:host"] == host
    assert document(cloud, id)["availability_zone"] == "az2"
    assert document(cloud, id, "openstack/latest/vendor_data2.json") == ANSWERS


def test_a_deleted_server_leaves_no_password(cloud: Cloud) -> None:
    reply = cloud.admin.post("/v2.1/servers", {"server": {
        "name": "gone", "flavorRef": "1", "imageRef": cloud.admin.image(), "networks": "none", "adminPass": SECRET}},
        "2.60")
    id = reply.json["server"]["id"]
    assert cloud.admin.delete(f"/v2.1/servers/{id}").status == 204
    cloud.admin.settled(id)
    assert SECRET not in kept(cloud)


def test_a_fatal_target_fails_the_build_by_name() -> None:
    with serving() as targets, Cloud(hosts=2, vendordata_dynamic_failure_fatal=True, dhcp_domain="",
                                     enable_instance_password=False,
                                     vendordata_dynamic_targets=[f"domain-join@{targets.url('broken')}"]) as cloud:
        server = cloud.admin.boot(networks="none", adminPass=SECRET)
        assert server["status"] == "ERROR" and "domain-join" in server["fault"]["message"]
        assert len(targets.asked) == 1  # it would be the same on the other host
        assert SECRET not in kept(cloud)
        target = cloud.parts.working.vendordata.targets.pop()
        reply = cloud.admin.post("/v2.1/servers", {"server": {
            "name": "web2", "flavorRef": "1", "imageRef": cloud.admin.image(), "networks": "none"}}, "2.60")
        assert "adminPass" not in reply.json["server"]
        found = cloud.admin.settled(reply.json["server"]["id"])
        assert found and document(cloud, found["id"])["hostname"] == "web2"
        assert "admin_pass" not in document(cloud, found["id"])  # nobody is told one, so none is drawn
        cloud.parts.working.vendordata.targets.append(target)
        reply = cloud.admin.act(found["id"], "migrate", None)
        assert reply.status == 202, reply
        left = cloud.admin.settled(found["id"])
        assert left and left["status"] == "ACTIVE" and "domain-join" in last_event(cloud, found["id"])
        assert left["OS-EXT-SRV-ATTR:host"] == found["OS-EXT-SRV-ATTR:host"]


def test_what_a_host_could_not_write_is_in_the_actions_message(cloud: Cloud) -> None:
    """Such as a key into the root disk: the server is made all the same."""
    id = cloud.admin.boot("warned", networks="none")["id"]
    database = cloud.parts.working.database
    with database.read() as connection:
        number = connection.execute(select(tables.actions.c.id).where(tables.actions.c.server_id == id)).scalar_one()
    work: Any = SimpleNamespace(action=SimpleNamespace(id=number), end_writes=[])
    server_create.note_agent_warnings(work, {"warnings": []})
    assert work.end_writes == []
    server_create.note_agent_warnings(work, {"warnings": ["No key.", "No password."]})
    for _time in range(2):
        with database.write() as connection:
            for write in work.end_writes:
                write(connection)
    path = f"/v2.1/servers/{id}/os-instance-actions"
    assert cloud.admin.get(path).json["instanceActions"][0]["message"] == " ".join(["No key. No password."] * 2)


def test_a_host_knows_of_which_server_an_image_is() -> None:
    """What an unshelved server has of itself is not written into its disk again."""
    found = delivery._agent_document("i", {"properties": {"instance_uuid": "s", "mine": "x"}})
    assert found["properties"] == {"instance_uuid": "s"}
    assert delivery._agent_document("i", {})["properties"] == {}
