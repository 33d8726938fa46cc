# SPDX-License-Identifier: GPL-3.0-or-later
"""Domains of other programs on hosts of a cloud: they become servers, run on, and are released."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.host.networks import Lease
from magnetar_control import cli
from magnetar_control.compute.drains.server_moves import choose_move
from magnetar_control.store.servers.servers import find_server_row
from magnetar_core.power import OFF, RUNNING
from tests.support.agent import foreign
from tests.support.control.adopting import LAN, adopt, define, network, reasons, release, undefine, with_flavor
from tests.support.control.servers import ensure, verbs
from tests.unit.control.moves.clouds import claims
from tests.unit.control.moves.inside import Inside
from tests.unit.control.v1.play import play, prepared, thrice


@pytest.fixture(scope="module")
def cloud() -> Iterator[Inside]:
    with Inside(host_down_after=600.0) as found:
        with_flavor(found)
        yield found


def ports(cloud: Inside, id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cloud.admin.get(f"/network/v2.0/ports?device_id={id}").json["ports"]
    return found


def test_a_running_domain_becomes_a_server_and_is_released(cloud: Inside) -> None:
    uuid, fake = define(cloud, "mail"), cloud.kvm["kvm1"].fake
    before = fake.xml(uuid)
    assert verbs(adopt(cloud, "kvm1:mail", dry_run=True)) == ["record", "claim", "mark_domain"]
    assert fake.xml(uuid) == before and cloud.admin.get(f"/v2.1/servers/{uuid}").status == 404
    assert verbs(adopt(cloud, "kvm1:mail")) == ["record", "claim", "mark_domain"]
    server = cloud.admin.server(uuid)
    assert (server["name"], server["status"], server["OS-EXT-SRV-ATTR:host"], server["image"]) == (
        "mail", "ACTIVE", "kvm1", "")
    assert server["OS-EXT-SRV-ATTR:instance_name"] == "mail" and fake.domains()[uuid].state == RUNNING
    assert claims(cloud, uuid) == {"server": ("kvm1", (2, 64, 1, 0))}
    assert verbs(adopt(cloud, "kvm1:mail")) == []
    assert cloud.admin.act(uuid, "os-stop").status == 202
    assert cloud.admin.settled(uuid)["status"] == "SHUTOFF" and fake.domains()[uuid].state == OFF
    assert cloud.admin.act(uuid, "os-start").status == 202
    assert cloud.admin.settled(uuid)["status"] == "ACTIVE" and fake.domains()[uuid].state == RUNNING
    assert verbs(release(cloud, "kvm1:mail", dry_run="true")) == ["unmark_domain", "forget"]
    assert cloud.admin.server(uuid)["status"] == "ACTIVE"
    assert verbs(release(cloud, "kvm1:mail")) == ["unmark_domain", "forget"]
    assert cloud.admin.get(f"/v2.1/servers/{uuid}").status == 404 and not claims(cloud, uuid)
    assert fake.domains()[uuid].state == RUNNING and fake.xml(uuid) == before
    assert verbs(release(cloud, "kvm1:mail")) == []
    assert verbs(adopt(cloud, f"kvm1:{uuid}")) == ["record", "claim", "mark_domain"]
    assert verbs(release(cloud, uuid)) == ["unmark_domain", "forget"]


def test_a_stopped_domain_stays_stopped(cloud: Inside) -> None:
    uuid = define(cloud, "cold", OFF)
    assert adopt(cloud, "kvm1:cold", server_name="Cold one").status == 200
    server = cloud.admin.server(uuid)
    assert (server["name"], server["status"]) == ("Cold one", "SHUTOFF")
    reply = adopt(cloud, "kvm1:cold", server_name="other")
    assert (reply.status, reply.json["error"]["code"]) == (409, "immutable")
    shown = cloud.admin.get(f"/v1/server/{uuid}").json
    assert shown["adopted"]["domain"] == "cold" and shown["adopted"]["disks"]
    assert release(cloud, uuid).status == 200


def test_nics_become_ports_with_their_addresses(cloud: Inside) -> None:
    office = network(cloud, "office", "192.168.122.0/24")
    bridge = network(cloud, "bridged", "10.9.0.0/24", **{
        "provider:network_type": "flat", "provider:physical_network": "br7"})
    lan, by_bridge = "52:54:00:aa:00:01", "52:54:00:aa:00:02"
    uuid = define(cloud, "web", nics=foreign.network_nic(LAN, lan) + foreign.bridge_nic("br7", by_bridge))
    cloud.kvm["kvm1"].fake.lease(LAN, Lease(lan, "192.168.122.77", 4))
    reply = adopt(cloud, "kvm1:web", networks={LAN: "office"}, addresses={by_bridge.upper(): ["10.9.0.8"]})
    assert verbs(reply) == ["record", "claim", "create_port", "create_port", "mark_domain"]
    found = {port["mac_address"]: port for port in ports(cloud, uuid)}
    assert {mac: (port["network_id"], [ip["ip_address"] for ip in port["fixed_ips"]], port["status"])
            for mac, port in found.items()} == {
        lan: (office, ["192.168.122.77"], "ACTIVE"), by_bridge: (bridge, ["10.9.0.8"], "ACTIVE")}
    addresses = cloud.admin.server(uuid)["addresses"]
    assert [one["addr"] for name in ("office", "bridged") for one in addresses[name]] == [
        "192.168.122.77", "10.9.0.8"]
    assert reply.json["resource"]["server"]["ports"] == cloud.admin.get(
        f"/v1/adoption/kvm1:{uuid}").json["server"]["ports"]
    twin = define(cloud, "twin", host="kvm2", mac=lan)
    assert reasons(adopt(cloud, "kvm2:twin", networks={LAN: "office"})) == ["mac"]
    taken = define(cloud, "taken", mac="52:54:00:aa:00:03")
    wish = {"networks": {LAN: "office"}, "addresses": {"52:54:00:aa:00:03": ["192.168.122.77"]}}
    assert reasons(adopt(cloud, "kvm1:taken", **wish)) == ["network"]
    wish["addresses"] = {"52:54:00:aa:00:03": ["10.1.1.1"]}
    assert reasons(adopt(cloud, "kvm1:taken", **wish)) == ["network"]
    assert release(cloud, uuid).status == 200 and not ports(cloud, uuid)
    assert adopt(cloud, "kvm1:taken", networks={LAN: office}).status == 200
    (port,) = ports(cloud, taken)
    assert (port["mac_address"], port["fixed_ips"]) == ("52:54:00:aa:00:03", [])
    assert release(cloud, taken).status == 200
    undefine(cloud, "kvm2", twin)


def test_the_list_says_what_would_become_of_each(cloud: Inside) -> None:
    ready, odd = define(cloud, "ready", nics=""), define(cloud, "odd", host="kvm2")
    cloud.kvm["kvm2"].fake.snapshot_outside(odd, "before")
    reports = {one["name"]: one for one in cloud.admin.get("/v1/adoption").json["adoptions"]}
    assert (reports["ready"]["host"], reports["ready"]["status"], reports["ready"]["server"]["flavor"]["name"]) == (
        "kvm1", "adoptable", "equal")
    assert [one["reason"] for one in reports["odd"]["hindrances"]] == ["internal-snapshots", "network"]
    assert f"NIC {reports['odd']['server']['networks'][0]['mac']} is on the libvirt network lan" in reports["odd"][
        "hindrances"][1]["message"]
    assert "odd" not in {one["name"] for one in cloud.admin.get("/v1/adoption?host=kvm1").json["adoptions"]}
    assert cloud.admin.get("/v1/adoption?host=kvm9").status == 404
    assert reasons(adopt(cloud, "kvm2:odd")) == ["internal-snapshots"]
    assert cloud.admin.get("/v1/adoption/ready").json == reports["ready"]
    undefine(cloud, "kvm1", ready)
    undefine(cloud, "kvm2", odd)


def test_the_flavor_is_found_named_or_made(cloud: Inside) -> None:
    uuid = define(cloud, "sized")
    assert ensure(cloud.admin, "flavor/small", {"vcpus": 1, "ram": 64, "disk": 1}).status == 200
    assert ensure(cloud.admin, "flavor/large", {"vcpus": 4, "ram": 128, "disk": 9}).status == 200
    assert reasons(adopt(cloud, "kvm1:sized", flavor="small")) == ["flavor"]
    assert reasons(adopt(cloud, "kvm1:sized", flavor="none")) == ["flavor"]
    assert adopt(cloud, "kvm1:sized", flavor="large").status == 200
    assert cloud.admin.server(uuid)["flavor"]["original_name"] == "large"
    assert release(cloud, uuid).status == 200
    caller = cloud.caller("ann", "web")
    assert cloud.admin.delete("/v1/flavor/equal").status == 200
    assert reasons(adopt(cloud, "kvm1:sized", project="web")) == ["flavor"]
    wish = {"project": "web", "user": caller.user_id, "make_flavor": True}
    steps = ["create_flavor", "record", "claim", "mark_domain"]
    assert verbs(adopt(cloud, "kvm1:sized", dry_run=True, **wish)) == steps
    assert verbs(adopt(cloud, "kvm1:sized", **wish)) == steps
    server = caller.server(uuid)
    assert (server["tenant_id"], server["user_id"], server["flavor"]["original_name"]) == (
        caller.project_id, caller.user_id, "adopted-2-64-1")
    assert caller.get("/v2.1/flavors/adopted-2-64-1").status == 200
    assert release(cloud, uuid).status == 200
    assert verbs(adopt(cloud, "kvm1:sized", **wish))[0] == "record"
    assert release(cloud, uuid).status == 200
    with_flavor(cloud)


def test_who_may_and_how_much(cloud: Inside) -> None:
    uuid, member = define(cloud, "barred"), cloud.caller("bob", "web")
    assert [adopt(cloud, "kvm1:barred", caller=member).status, member.get("/v1/adoption").status,
            member.delete("/v1/adoption/kvm1:barred").status] == [403] * 3
    small = cloud.caller("eve", "small")
    assert cloud.admin.put(f"/v2.1/os-quota-sets/{small.project_id}", {"quota_set": {"cores": 1}}).status == 200
    reply = adopt(cloud, "kvm1:barred", project="small")
    assert reply.status == 403 and "cores" in reply.json["error"]["message"]
    for want, field in (({"flavor": ""}, "flavor"), ({"project": "nobody"}, "project"),
                        ({"host": "kvm2"}, "host"), ({"name": "other"}, "name"), ({"flavours": "x"}, "flavours")):
        reply = adopt(cloud, "kvm1:barred", **want)
        assert (reply.status, reply.json["error"]["details"]["field"].partition(".")[0]) == (400, field), reply
    assert [adopt(cloud, key).status for key in ("kvm1:none", "kvm9:barred", "barred", ":x")] == [404, 404, 400, 400]
    assert not cloud.kvm["kvm1"].fake.domains()[uuid].owned
    server = cloud.admin.boot(networks="none")["id"]
    assert release(cloud, server).status == 409 and cloud.admin.server(server)["status"] == "ACTIVE"


def test_what_would_change_the_domain_is_refused(cloud: Inside) -> None:
    uuid = define(cloud, "fixed")
    assert adopt(cloud, "kvm1:fixed").status == 200
    fake = cloud.kvm["kvm1"].fake
    before = fake.xml(uuid)
    for action, args in (("resize", {"flavorRef": "1"}), ("migrate", None), ("shelve", None), ("rescue", {}),
                         ("os-migrateLive", {"host": None, "block_migration": "auto"}),
                         ("createImage", {"name": "x"}), ("rebuild", {"imageRef": cloud.admin.image()})):
        reply = cloud.admin.act(uuid, action, args, "2.30")
        assert reply.status == 409 and "adopted domain" in str(reply.json), (action, reply)
    reply = cloud.admin.post(f"/v2.1/servers/{uuid}/os-interface", {"interfaceAttachment": {}})
    assert reply.status == 409, reply
    choice = choose_move(find_server_row(cloud.parts.store, uuid)[1], ())
    assert choice.action is None and "adopted domain" in choice.reason
    assert cloud.admin.act(uuid, "reboot", {"type": "HARD"}).status == 202
    assert cloud.admin.settled(uuid)["status"] == "ACTIVE" and fake.xml(uuid) == before
    assert cloud.admin.put(f"/v2.1/servers/{uuid}", {"server": {"name": "renamed"}}).status == 200
    assert release(cloud, uuid).status == 200


def test_an_adoption_that_the_agent_lost_is_repeated(cloud: Inside) -> None:
    uuid, fake = define(cloud, "lost"), cloud.kvm["kvm1"].fake
    assert adopt(cloud, "kvm1:lost").status == 200
    with cloud.parts.agents.client(cloud.hosts["kvm1"]) as client:
        client.delete("adoption", uuid)
    assert not fake.domains()[uuid].owned
    assert verbs(adopt(cloud, "kvm1:lost")) == ["mark_domain"] and fake.domains()[uuid].owned
    assert release(cloud, uuid).status == 200


def test_a_domain_that_the_agent_adopted_becomes_a_server_of_the_cloud(cloud: Inside) -> None:
    uuid = define(cloud, "local")
    with cloud.parts.agents.client(cloud.hosts["kvm1"]) as client:
        client.ensure("adoption", "local", {})
    assert verbs(adopt(cloud, "kvm1:local")) == ["record", "claim", "mark_domain"]
    assert cloud.admin.server(uuid)["status"] == "ACTIVE"
    assert release(cloud, uuid).status == 200


def test_deletion_removes_the_domain(cloud: Inside) -> None:
    uuid = define(cloud, "gone")
    assert adopt(cloud, "kvm1:gone").status == 200
    assert cloud.admin.delete(f"/v2.1/servers/{uuid}").status == 204
    assert cloud.admin.settled(uuid) is None and uuid not in cloud.kvm["kvm1"].fake.domains()
    cloud.kvm["kvm1"].fake.defined_outside(foreign.foreign_xml("gone", "", uuid))
    assert reasons(adopt(cloud, "kvm1:gone", flavor="large")) == ["name"]


def test_by_command(cloud: Inside, capsys: pytest.CaptureFixture[str]) -> None:
    uuid, caller, path = define(cloud, "byhand"), cloud.caller("ann", "web"), cloud.folder / "command.yml"
    path.write_text(json.dumps({**cloud.settings, "hosts": cloud.hosts, "state_dir": str(cloud.folder / "control")}))

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return cli.main(["host", "adopt", *words, "--config", str(path)]), *capsys.readouterr()

    who = ("--project", "web", "--user", caller.user_id)
    status, output, _errors = run("kvm1")
    assert status == 0 and ["byhand", "hindered", "running", "network"] in [
        line.split() for line in output.splitlines()]
    status, _output, errors = run("kvm1", "byhand", *who)
    assert status == 1 and "is on the libvirt network lan" in errors
    status, output, _errors = run("kvm1", "byhand", *who, "--without-ports")
    assert status == 0 and output.startswith("kvm1:byhand: would record server byhand")
    assert not cloud.kvm["kvm1"].fake.domains()[uuid].owned
    assert run("kvm1", "byhand", *who, "--without-ports", "--yes")[0] == 0
    assert caller.server(uuid)["status"] == "ACTIVE"
    assert run("kvm1", "byhand", *who, "--yes")[1] == "kvm1:byhand: no change\n"
    assert run("kvm1", "byhand", "--release", "--yes")[0] == 0
    assert caller.get(f"/v2.1/servers/{uuid}").status == 404 and cloud.kvm["kvm1"].fake.domains()[uuid].state == RUNNING
    for words in (("kvm1", "byhand"), ("kvm1", "--yes"), ("kvm1", "byhand", *who, "--network", "x"), ("kvm9",)):
        assert run(*words)[0] != 0


@pytest.mark.slow
def test_by_module(cloud: Inside, tmp_path: Path) -> None:
    uuid, folder = define(cloud, "played"), prepared(tmp_path, cloud, "mycloud")
    one = {"host": "kvm1", "name": "played", "without_ports": True}
    thrice(folder, [{"adopt": one}, {"adopt": {"host": "kvm1", "name": "played", "state": "released"}}],
           {"cloud": "mycloud"})
    done, told, gone = play(folder, [{"adopt": {**one, "id": uuid}}, {"adopt_info": {"filters": {"host": "kvm1"}}},
                                     {"adopt": {"id": uuid, "state": "released"}}], {"cloud": "mycloud"})
    assert done["changed"] and done["adoption"]["status"] == "adopted" and gone["changed"]
    assert {found["name"]: found["status"] for found in told["adoptions"]}["played"] == "adopted"
