# SPDX-License-Identifier: GPL-3.0-or-later
"""How many queries a request makes is the same with ten servers as with two hundred, on both engines. Of each cell what
spans cells asks once more, and nothing else."""

import dataclasses
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest
from sqlalchemy import insert, update

from magnetar_control.api.v1 import V1Application
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.tables import volumes
from magnetar_control.store.accounts import keypairs
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import server_group_members, servers
from magnetar_control.store.servers import server_groups
from magnetar_control.web import Request
from magnetar_control.web.quick import RunIn
from tests.support.control.queries import WANTED, furnished

ASKED = {
    "list": lambda caller, _id: caller.get("/servers", "2.96"),
    "detail": lambda caller, _id: caller.get("/servers/detail", "2.96"),
    "page": lambda caller, id: caller.get(f"/servers/detail?limit=5&marker={id}&status=ACTIVE", "2.96"),
    "show": lambda caller, id: caller.get(f"/servers/{id}", "2.96"),
    "create": lambda caller, _id: caller.post("/servers", WANTED, "2.96"),
    "delete": lambda caller, id: caller.delete(f"/servers/{id}", "2.96"),
}
#: Statements that a request sends to each cell (to others than the server's, where it is about one).
TO_EACH = {"list": 1, "detail": 1, "page": 1, "show": 0, "create": 1, "delete": 0}


@pytest.fixture(autouse=True)
def _kept(monkeypatch):
    """What is known of hosts and cells is read again when a test asks for it, not because the machine was slow."""
    for where in ("compute.cloud", "store.store"):
        monkeypatch.setattr(f"magnetar_control.{where}.FRESH", 3600.0)


@pytest.fixture
def cloud(compute):
    return furnished(compute)


def warm(cloud):
    cloud.cloud.hosts.all(fresh=True)
    cloud.store.cells(fresh=True)


def asked(cloud, what):
    """The statements of one request, when the caches of hosts and cells are warm."""
    id = cloud.server(host="kvm1")
    warm(cloud)
    with cloud.counted() as seen:
        reply = ASKED[what](cloud.alice, id)
    assert reply.status < 300, reply
    return seen


def test_more_servers_are_not_more_queries(cloud):
    for _at in range(10):
        cloud.server(host="kvm1")
    few = {what: asked(cloud, what) for what in ASKED}
    for _at in range(190):
        cloud.server(host="kvm1")
    many = {what: asked(cloud, what) for what in ASKED}
    assert {what: len(seen) for what, seen in many.items()} == {what: len(seen) for what, seen in few.items()}, many


def test_more_cells_are_one_query_more_for_each(computes):
    """The API database and cell0 are asked the same; a cell is sent the same whatever others there are, and however
    many servers are in it."""
    told = {}
    for count in (1, 2, 3):
        compute = furnished(computes(count))
        cells = [f"cell{at}" for at in range(1, count + 1)]
        for cell in cells[1:]:
            compute.host(f"kvm-{cell}", cell=cell)
        for servers_each in (3, 20):
            for cell in cells:
                for _at in range(servers_each):
                    compute.server(host=f"kvm-{cell}" if cell != "cell1" else "kvm1", cell=cell)
            for what in ASKED:
                asked(compute, what)
                told[what, count, servers_each] = compute.sent
                assert {compute.sent[cell] for cell in cells[1:]} <= {TO_EACH[what]}, (what, compute.sent)
    for what in ASKED:
        mine = {(sent["api"], sent["cell0"], sent["cell1"]) for key, sent in told.items() if key[0] == what}
        assert len(mine) == 1, (what, told)


def test_reading_is_a_handful_of_queries(cloud):
    assert len(asked(cloud, "detail")) == 2  # cell0 and the cell
    assert len(asked(cloud, "show")) == 2  # where it is, and the server


def test_more_attachments_are_not_more_queries(cloud):
    """Lists of /v1 of what servers have: volumes are asked for all at once, and no image."""
    volume = EmbeddedVolumes(cloud.api, list, None, lambda _host, _image: None)
    cloud.cloud.services = dataclasses.replace(cloud.cloud.services, volume=volume)

    v1 = V1Application(cloud.cloud)

    def more(count):
        for _at in range(count):
            id, image = str(uuid.uuid4()), str(uuid.uuid4())
            with cloud.api.write() as connection:
                connection.execute(insert(volumes).values(
                    id=id, project_id="red", user_id="alice", name="data", size=1, status="in-use",
                    created_at=utc_now(),
                    volume_type="default", availability_zone="nova"))
            cloud.server(host="kvm1", image_id=image, volumes=orjson.dumps([{
                "volume_id": id, "attachment_id": str(uuid.uuid4()), "device": "/dev/vdb", "tag": None,
                "boot_index": None, "delete_on_termination": False}]).decode(), interfaces=orjson.dumps([{
                    "port_id": str(uuid.uuid4()), "network_id": id, "network": "lan", "mac": "02:00:00:00:00:01",
                    "fixed_ips": []}]).decode())

    def listed(kind, count):
        warm(cloud)
        with cloud.counted() as seen:
            answer = v1.handle(Request("GET", f"/v1/{kind}", "", {"x-auth-token": "alice"}, b"", "http://cloud"))
        found = orjson.loads(answer.body())[f"{kind}s"]
        assert len(found) == count and found[0].get("volume_name", "data") == "data", found
        return len(seen)

    more(2)
    kinds = ("volume_attachment", "interface_attachment")
    few = {kind: listed(kind, 2) for kind in kinds}
    more(20)
    assert {kind: listed(kind, 22) for kind in kinds} == few


def test_where_a_server_was_found_is_remembered(cloud):
    id = cloud.server(host="kvm1")
    with cloud.counted() as first:
        assert cloud.alice.get(f"/servers/{id}", "2.96").status == 200
    warm(cloud)
    with cloud.counted() as again:
        assert cloud.alice.get(f"/servers/{id}", "2.96").status == 200
    assert len(again) == 1 < len(first)
    with cloud.store.databases()[1][1].write() as connection:
        connection.execute(update(servers).where(servers.c.id == id).values(deleted_at=utc_now()))
    assert cloud.alice.get(f"/servers/{id}", "2.96").status == 404


def test_the_group_of_a_server_is_shown(cloud):
    group = cloud.alice.post("/os-server-groups", {"server_group": {
        "name": "apart", "policy": "anti-affinity"}}, "2.64").json["server_group"]["id"]
    id = cloud.server(host="kvm1", hints=f'{{"group":"{group}"}}')
    with cloud.api.write() as connection:
        connection.execute(insert(server_group_members).values(group_id=group, server_id=id))
    assert cloud.alice.get(f"/servers/{id}", "2.71").json["server"]["server_groups"] == [group]
    cloud.alice.delete(f"/os-server-groups/{group}", "2.64")
    assert cloud.alice.get(f"/servers/{id}", "2.71").json["server"]["server_groups"] == []


def test_what_asks_little_keeps_no_thread_busy(cloud):
    def run_in(path, method="GET", query=""):
        return cloud.application.run_in(Request(method, path, query, {}))

    quick = RunIn.EVENT_LOOP if cloud.api.kind == "sqlite" else RunIn.FEW_THREADS
    assert run_in("/v2.1/servers/detail") is quick
    assert run_in("/v2.1/0123456789abcdef0123456789abcdef/flavors") is quick
    assert run_in("/v2.1/servers/detail",
                  query="name=x") is (RunIn.ONE_THREAD if cloud.api.kind == "sqlite" else RunIn.FEW_THREADS)
    for path, method in (("/v2.1/servers", "POST"), ("/v2.1", "GET"), ("/v2.1/servers/1/tags", "GET")):
        assert run_in(path, method) is RunIn.THREAD
    for path, method in (("/servers/1/diagnostics", "GET"), ("/servers/1/os-interface", "POST"),
                         ("/os-hypervisors/1/uptime", "GET")):
        assert run_in(f"/v2.1{path}", method) is run_in(f"/v2/project{path}", method) is RunIn.WAIT


@pytest.mark.parametrize(("body", "waits"), [
    (b'{"os-getConsoleOutput": {}}', True), (b'\n { "changePassword" : null}', True), (b'{"os\\u002dget": 1}', True),
    (b"", True), (b'{"os-stop": null}', False), (b'{"lock": {"reason": "os-getConsoleOutput"}}', False)])
def test_an_action_that_waits_for_the_host_has_a_thread_of_those(small, body, waits):
    request = Request("POST", "/v2.1/servers/1/action", "", {}, body)
    assert small.application.run_in(request) is (RunIn.WAIT if waits else RunIn.THREAD)


def test_many_at_once_do_not_exceed_a_quota(cloud):
    cloud.cloud.settings = dataclasses.replace(cloud.cloud.settings, quota_instances=4)
    for user, limit in (("alice", 4), ("bob", 3)):
        caller = getattr(cloud, user)
        if limit < 4:
            assert cloud.admin.put(f"/os-quota-sets/{caller.context.project_id}", {"quota_set": {
                "instances": limit}}).status == 200
        with ThreadPoolExecutor(12) as threads:
            replies = list(threads.map(lambda _at, caller=caller: caller.post("/servers", WANTED, "2.96"), range(24)))
        assert Counter(reply.status for reply in replies) == {202: limit, 403: 24 - limit}
        assert len(caller.get("/servers").json["servers"]) == limit


def test_what_a_quota_costs(cloud):
    """To count in each cell, and on PostgreSQL one statement for the turn; nothing where there is no limit."""
    limited = len(asked(cloud, "create"))
    cloud.cloud.settings = dataclasses.replace(cloud.cloud.settings, quota_instances=-1, quota_cores=-1, quota_ram=-1)
    assert limited - len(asked(cloud, "create")) == (2 if cloud.api.kind == "sqlite" else 3)


@pytest.mark.parametrize(("counts", "named", "status"), [
    ({"min_count": 2**31 - 1}, "min_count", 400), ({"max_count": 2**31 - 1}, "max_count", 400),
    ({"min_count": 6, "max_count": 7}, "min_count", 400), ({"max_count": 6}, "max_count", 400),
    ({"max_count": 5}, None, 202)])
def test_one_request_makes_so_many_servers_at_most(cloud, counts, named, status):
    """Where no quota bounds them; where one does, it is that which counts, as in Nova."""
    for most in (-1, 3):
        cloud.cloud.settings = dataclasses.replace(cloud.cloud.settings, quota_instances=most, quota_cores=-1,
                                                   quota_ram=-1, max_servers_at_once=5)
        reply = cloud.alice.post("/servers", {"server": {**WANTED["server"], **counts}}, "2.96")
        if most < 0:
            assert reply.status == status and (named is None or reply.message.startswith(f"server.{named}: ")), reply
        elif "min_count" not in counts:
            assert reply.status in (202, 403), reply
    if named == "max_count":
        assert len(cloud.alice.get("/servers").json["servers"]) == 3


@pytest.mark.parametrize(("path", "body", "limit", "counter"), [
    ("/os-keypairs", {"keypair": {"public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJSCq7WS4EYA0lxFHlPGPf+"
                                                "dLZkBNpUlsqEyT9iIUNvC a"}}, "quota_key_pairs",
     (keypairs, "count_keypair_rows")),
    ("/os-server-groups", {"server_group": {"policies": ["affinity"]}}, "quota_server_groups",
     (server_groups, "count_server_group_rows"))])
def test_many_at_once_do_not_exceed_other_quotas(cloud, monkeypatch, path, body, limit, counter):
    count = getattr(*counter)

    def slowly(*asked):  # so that all have counted before one is made, unless they wait for each other
        found = count(*asked)
        time.sleep(0.05)
        return found

    monkeypatch.setattr(*counter, slowly)
    cloud.cloud.settings = dataclasses.replace(cloud.cloud.settings, **{limit: 3})
    ((key, wanted),) = body.items()
    with ThreadPoolExecutor(12) as threads:
        replies = list(threads.map(lambda at: cloud.alice.post(path, {key: {**wanted, "name": f"n{at}"}}), range(24)))
    statuses = Counter(reply.status for reply in replies)
    assert statuses[403] == 21 and sum(statuses.values()) - statuses[403] == 3, replies
