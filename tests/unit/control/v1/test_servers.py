# SPDX-License-Identifier: GPL-3.0-or-later
"""The agents' protocol for a cloud, over HTTP: what a server's ensure answers, and does."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.control.cloud import Caller, Cloud
from tests.support.control.servers import MADE, WEB, ensure, verbs


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud() as made:
        made.admin.image()
        yield made


def test_what_it_is(cloud: Cloud) -> None:
    found = cloud.admin.get("/v1").json
    assert found["cloud"] is True and found["api"] == 1 and "server" in found["kinds"]


def test_a_new_server_that_is_to_be_off_is_never_started(cloud: Cloud) -> None:
    want = {**WEB, "power": "off"}
    planned, made = ensure(cloud.admin, "server/cold", want, dry_run=True), ensure(cloud.admin, "server/cold", want)
    assert verbs(planned) == MADE[:-1] == verbs(made)
    server = made.json["resource"]
    assert (server["status"], server["power"]) == ("SHUTOFF", "off")
    done = cloud.admin.get(f"/v2.1/servers/{server['id']}/os-instance-actions").json["instanceActions"]
    assert [one["action"] for one in done] == ["create"]
    assert verbs(ensure(cloud.admin, "server/cold", {"power": "running"})) == ["record", "start"]
    cloud.admin.delete("/v1/server/cold")


def test_no_room_is_said_as_in_check_mode(cloud: Cloud) -> None:
    flavor = {"flavor": {"name": "huge", "vcpus": 1, "ram": 1 << 28, "disk": 1}}
    assert cloud.admin.post("/v2.1/flavors", flavor).status == 200
    want = {**WEB, "flavor": "huge"}
    planned, made = ensure(cloud.admin, "server/large", want, dry_run=True), ensure(cloud.admin, "server/large", want)
    assert planned.status == made.status == 507
    why = planned.json["error"]["message"]
    assert made.json["error"]["code"] == "no-space" and why in made.json["error"]["message"], (why, made.json)
    assert cloud.admin.get("/v1/server/large").status == 404


def test_migrations_are_reported(cloud: Cloud) -> None:
    from magnetar_control.store.servers import migrations
    from magnetar_control.store.servers import servers as rows

    assert cloud.admin.get("/v1/migration").json == {"migrations": []}
    id = ensure(cloud.admin, "server/moving", WEB).json["resource"]["id"]
    found = rows.find_server_row(cloud.parts.store, id)
    assert found
    with found[0].write() as connection:
        migrations.insert_migration_row(connection, found[1], str(uuid.uuid4()), user_id="me", type=migrations.LIVE,
                                        status="completed")
    [one] = cloud.admin.get("/v1/migration?name=moving").json["migrations"]
    assert (one["server"], one["type"], one["status"]) == (id, "live", "completed") and one["host"] in cloud.hosts
    assert cloud.caller("peter", "elsewhere").get("/v1/migration").status == 403
    cloud.admin.delete("/v1/server/moving")


def test_a_life(cloud: Cloud) -> None:
    admin = cloud.admin
    planned = ensure(admin, "server/web1", WEB, dry_run=True)
    assert verbs(planned) == MADE and planned.json["changed"] and planned.json["resource"]["host"] in cloud.hosts
    assert admin.get("/v1/server/web1").status == 404
    made = ensure(admin, "server/web1", WEB)
    assert verbs(made) == MADE and made.json["diff"] == planned.json["diff"]
    server = made.json["resource"]
    assert server["status"] == "ACTIVE" and server["networks"][0]["network"] == "default"
    assert verbs(ensure(admin, "server/web1", WEB)) == []
    for power, status, steps in (("off", "SHUTOFF", ["stop"]), ("paused", "PAUSED", ["start", "pause"]),
                                 ("suspended", "SUSPENDED", ["resume", "save"]), ("running", "ACTIVE", ["start"])):
        planned = ensure(admin, "server/web1", {"power": power}, dry_run=True)
        found = ensure(admin, "server/web1", {"power": power})
        assert verbs(found) == ["record", *steps] == verbs(planned)
        for name in ("power", "power_state", "status"):
            assert planned.json["resource"][name] == found.json["resource"][name], (power, name)
        assert found.json["resource"]["status"] == status and found.json["resource"]["power"] == power
        assert not ensure(admin, "server/web1", {"power": power}).json["changed"]
    found = ensure(admin, "server/web1", {"metadata": {"tier": "1"}, "tags": ["shop"], "description": "for the shop"},
                   merge="metadata")
    assert verbs(found) == ["record", "define"]
    assert found.json["resource"]["metadata"] == {"role": "web", "tier": "1"}
    assert found.json["resource"]["tags"] == ["shop"]
    renamed = ensure(admin, f"server/{server['id']}", {"name": "web2"})
    assert renamed.json["resource"]["name"] == "web2" and admin.get("/v1/server/web1").status == 404
    planned = admin.delete("/v1/server/web2?dry_run=true")
    gone = admin.delete("/v1/server/web2")
    assert verbs(gone) == ["destroy", "undefine", "erase", "forget"] == verbs(planned)
    assert not admin.delete("/v1/server/web2").json["changed"]
    assert admin.get("/v2.1/servers").json["servers"] == []


def test_another_flavor_needs_leave(cloud: Cloud) -> None:
    admin = cloud.admin
    assert ensure(admin, "flavor/larger", {"vcpus": 2, "ram": 128}).json["changed"]
    assert not ensure(admin, "flavor/larger", {"vcpus": 2, "ram": 128}).json["changed"]
    ensure(admin, "server/grow", WEB)
    refused = ensure(admin, "server/grow", {"flavor": "larger"})
    assert refused.status == 409 and "allow_reboot" in refused.json["error"]["message"]
    found = ensure(admin, "server/grow", {"flavor": "larger"}, allow_reboot=True)
    assert verbs(found) == ["record", "stop", "define", "drive", "start"]
    assert found.json["resource"]["flavor"]["ram"] == 128 and found.json["resource"]["status"] == "ACTIVE"
    for same in ("larger", {"ram": 128}, {"vcpus": 2}):
        assert not ensure(admin, "server/grow", {"flavor": same}).json["changed"]
    for key, flavor, why in (("grow", {"ram": 129}, "no flavor of this cloud"),
                             ("none", {"ram": 128}, "flavor.vcpus: is required to make a server")):
        refused = ensure(admin, f"server/{key}", WEB | {"flavor": flavor})
        assert refused.status == 400 and why in refused.json["error"]["message"]
    admin.delete("/v1/server/grow")


def test_what_is_fixed(cloud: Cloud) -> None:
    admin = cloud.admin
    admin.image("other")
    ensure(admin, "server/fixed", WEB)
    refused = ensure(admin, "server/fixed", {"image": "other"})
    assert refused.status == 409 and refused.json["error"]["code"] == "immutable"
    ignored = ensure(admin, "server/fixed", {"image": "other"}, on_immutable="ignore")
    assert not ignored.json["changed"] and "ignored" in ignored.json["warnings"][0]
    rebuilt = ensure(admin, "server/fixed", {"image": "other"}, on_immutable="rebuild")
    assert verbs(rebuilt) == ["record", "stop", "wipe", "disks", "define", "drive", "rebuilt", "start"]
    assert rebuilt.json["resource"]["image"]["name"] == "other"
    old = rebuilt.json["resource"]["id"]
    anew = ensure(admin, "server/fixed", {"image": "cirros"}, on_immutable="recreate")
    assert anew.json["changed"] and anew.json["resource"]["id"] != old, anew
    admin.delete("/v1/server/fixed")


def test_nics_and_rescue(cloud: Cloud) -> None:
    admin = cloud.admin
    made = ensure(admin, "network/lan", {"cidr": "192.168.77.0/24"})
    assert made.json["changed"], made
    assert not ensure(admin, "network/lan", {"cidr": "192.168.77.0/24"}).json["changed"]
    ensure(admin, "server/nics", WEB)
    more = ensure(admin, "server/nics", {"networks": [{"network": "default"}, {"network": "lan"}]})
    assert verbs(more) == ["record", "plug"]
    assert [nic["network"] for nic in more.json["resource"]["networks"]] == ["default", "lan"]
    less = ensure(admin, "server/nics", {"networks": [{"network": "lan"}]})
    assert [nic["network"] for nic in less.json["resource"]["networks"]] == ["lan"]
    assert ensure(admin, "server/nics", {"rescue": {}}, dry_run=True).json["resource"]["status"] == "RESCUE"
    assert ensure(admin, "server/nics", {"rescue": {}}).json["resource"]["status"] == "RESCUE"
    assert not ensure(admin, "server/nics", {"rescue": {}}).json["changed"]
    assert ensure(admin, "server/nics", {"rescue": None}, dry_run=True).json["resource"]["status"] == "ACTIVE"
    assert ensure(admin, "server/nics", {"rescue": None}).json["resource"]["status"] == "ACTIVE"
    admin.delete("/v1/server/nics")
    assert admin.delete("/v1/network/lan").json["changed"]


def test_never_two(cloud: Cloud) -> None:
    admin, request_id = cloud.admin, f"req-{uuid.uuid4()}"
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda id: ensure(admin, "server/once", WEB, id), [request_id] * 3 + [None]))
    assert {reply.status for reply in found} == {200}, found
    assert len({reply.json["resource"]["id"] for reply in found}) == 1
    assert len(admin.get("/v1/server?name=once").json["servers"]) == 1
    again = ensure(admin, "server/once", WEB, request_id)
    assert again.json["resource"]["id"] == found[0].json["resource"]["id"]
    admin.delete("/v1/server/once")


def test_a_change_that_is_sent_again(cloud: Cloud) -> None:
    """A client whose operation is gone asks for the same under the same id, and is told what was done."""
    admin, request_id = cloud.admin, f"req-{uuid.uuid4()}"
    ensure(admin, "server/again", WEB)
    for _twice in range(2):
        assert verbs(ensure(admin, "server/again", {"power": "off"}, request_id)) == ["record", "stop"]
    assert verbs(ensure(admin, "server/again", {"power": "off"})) == []
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda name: ensure(admin, f"network/{name}", {"cidr": "192.168.70.0/24"}), ["one"] * 4))
    assert sorted(reply.json["changed"] for reply in found) == [False, False, False, True]
    admin.delete("/v1/server/again")
    admin.delete("/v1/network/one")


def test_projects_are_apart(cloud: Cloud) -> None:
    admin, other = cloud.admin, cloud.caller("ann", "shop")
    ensure(admin, "server/mine", WEB)
    id = admin.get("/v1/server/mine").json["id"]
    assert other.get("/v1/server/mine").status == other.get(f"/v1/server/{id}").status == 404
    assert not other.delete(f"/v1/server/{id}").json["changed"]
    assert other.get("/v1/server").json["servers"] == []
    assert ensure(other, "flavor/own", {"vcpus": 1, "ram": 64}).status == 403
    assert ensure(other, f"server/{id}", WEB | {"name": "theirs"}).status in (400, 409)
    admin.delete("/v1/server/mine")


def test_many(cloud: Cloud) -> None:
    items = [{"key": f"many{at}", "want": WEB} for at in range(3)] + [{"key": "bad", "want": {"flavor": "none"}}]
    found = cloud.admin.call("PUT", "/v1/server?wait=20", items).json["results"]
    assert [one.get("changed") for one in found] == [True, True, True, None]
    assert found[3]["error"]["code"] == "invalid-field"
    gone = cloud.admin.call("PUT", "/v1/server?wait=20", [{"key": f"many{at}", "want": None} for at in range(3)])
    assert all(one["changed"] for one in gone.json["results"])


def test_check_mode_gets_through(cloud: Cloud) -> None:
    found = ensure(cloud.admin, "server/later", WEB | {"flavor": "not yet", "image": "not yet"}, dry_run=True)
    assert verbs(found) == MADE and len(found.json["warnings"]) == 2
    assert ensure(cloud.admin, "server/later", WEB | {"flavor": "not yet"}).status == 400


def test_events(cloud: Cloud) -> None:
    admin = cloud.admin
    ensure(admin, "server/ev", WEB)
    body = {"event": "reboot", "args": {"type": "hard"}, "request_id": f"req-{uuid.uuid4()}"}
    for _again in range(2):
        found = admin.post("/v1/server/ev/events?wait=20", body)
        assert found.status == 200 and found.json["done"], found
    actions = admin.get(f"/v2.1/servers/{found.json['resource']['id']}/os-instance-actions").json["instanceActions"]
    assert [one["action"] for one in actions].count("reboot") == 1
    made = admin.post("/v1/server/ev/events?wait=20", {"event": "create_image", "args": {"name": "copy"}})
    assert made.json["image"]["name"] == "copy", made
    assert admin.get("/v1/image/copy").json["status"] == "active"
    assert admin.get("/v1/server/ev/console?format=json&lines=5").status == 200
    admin.delete("/v1/server/ev")


def test_who_asks(cloud: Cloud) -> None:
    stranger = Caller(cloud.port, "magnetar-token-of-an-agent")
    found = stranger.get("/v1/server")
    assert found.status == 401 and "token of an agent" in found.json["error"]["message"]
    bearer = Caller(cloud.port).call("GET", "/v1", headers={"Authorization": f"Bearer {cloud.admin.token}"})
    assert bearer.status == 200
    assert Caller(cloud.port).get("/v1").status == 401


def test_operations(cloud: Cloud) -> None:
    admin = cloud.admin
    begun = ensure(admin, "server/slow", WEB, wait=0)
    assert begun.status == 202, begun
    id = begun.json["operation"]["id"]
    ended = admin.get(f"/v1/operations/{id}?wait=20").json
    assert ended["status"] == "succeeded" and ended["result"]["resource"]["name"] == "slow"
    assert cloud.caller("ann", "shop").get(f"/v1/operations/{id}").status == 404
    admin.delete("/v1/server/slow")


def test_filters_of_lists(cloud: Cloud) -> None:
    admin = cloud.admin
    made = ensure(admin, "server/found", WEB).json["resource"]

    def names(query: str) -> list[str]:
        reply = admin.get(f"/v1/server?{query}")
        assert reply.status == 200, (query, reply)
        return [one["name"] for one in reply.json["servers"]]

    for query in ("image=cirros", f"image={made['image']['id']}", "status=ACTIVE,SHUTOFF", f"id={made['id']}",
                  "status=ACTIVE&image=cirros", f"host={made['host']}"):
        assert "found" in names(query), query
    for query in ("image=none", "status=SHUTOFF,PAUSED", "name=other"):
        assert "found" not in names(query), query
    refused = admin.get("/v1/server?status=NOPE")
    assert refused.status == 400 and "SHUTOFF" in refused.json["error"]["message"], refused
    assert admin.get("/v1/server?metadata=x").status == 400
    assert admin.delete("/v1/server/found").json["changed"]


@pytest.mark.parametrize("role", ["admin", "member", "reader"])
def test_both_apis_tell_the_same_of_hosts(cloud: Cloud, role: str) -> None:
    """Who does not read the extended attributes of a server in the Compute API does not read them here."""
    member = cloud.caller("owner", "shared")
    image = member.image("theirs")
    ensure(cloud.admin, "flavor/one", {"vcpus": 1, "ram": 64, "disk": 1})  # without a disk it is for administrators
    want = {"flavor": "one", "image": image, "networks": []}
    id = ensure(member, "server/told", want).json["resource"]["id"]
    who = cloud.caller(f"a-{role}", "shared", role)
    nova = who.server(id)
    mine, = (one for one in who.get("/v1/server").json["servers"] if one["id"] == id)
    for one in (mine, who.get(f"/v1/server/{id}").json):
        for name in ("host", "instance_name"):
            assert one[name] == nova.get(f"OS-EXT-SRV-ATTR:{name}", ""), (role, name)
    assert bool(mine["host"]) == (role == "admin")
    assert not ensure(member, "server/planned", want, dry_run=True).json["resource"]["host"]
    done = ensure(member, "server/told", {"description": "a"}).json["resource"]
    assert (done["host"], done["instance_name"]) == ("", "")
    assert member.delete("/v1/server/told").json["changed"]
