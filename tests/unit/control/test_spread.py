# SPDX-License-Identifier: GPL-3.0-or-later
"""API and conductors in processes of their own: content of images by HTTP, one request id everywhere, health, figures,
an orderly end. The tests of this file share one cloud of two cells, and run in their order."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import delete

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import allocations
from tests.support.control.cloud import Caller
from tests.support.control.spread import Spread


@pytest.fixture(scope="module")
def spread(cluster) -> Iterator[Spread]:
    with Spread(cluster, {"cell1": ("kvm1",), "cell2": ("kvm2",)}) as made:
        yield made


def test_a_server_in_each_cell(spread):
    """The conductors have the image's content from the API; the agents' logs name the request."""
    for host in spread.hosts:
        reply = spread.admin.post("/v2.1/servers", {"server": {
            "name": f"on-{host}", "flavorRef": "1", "imageRef": spread.admin.image(), "networks": "auto",
            "availability_zone": f"nova:{host}"}}, "2.60")
        assert reply.status == 202, reply
        found = spread.admin.settled(reply.json["server"]["id"])
        assert found and found["status"] == "ACTIVE" and found["OS-EXT-SRV-ATTR:host"] == host, json.dumps(found)
        request = reply.headers["x-openstack-request-id"]
        conductor = "cell1" if host == "kvm1" else "cell2"
        for name in ("api", conductor, host):
            assert any(line.get("request_id") == request for line in spread.log(name)), (name, request)
    listed = spread.admin.get("/v2.1/servers").json["servers"]
    assert sorted(server["name"] for server in listed) == ["on-kvm1", "on-kvm2"]


def test_an_image_of_a_server_goes_to_the_api(spread):
    server = spread.admin.get("/v2.1/servers?name=on-kvm1").json["servers"][0]
    reply = spread.admin.act(server["id"], "createImage", {"name": "kept"}, "2.45")
    assert reply.status == 202, reply
    deadline = time.monotonic() + 120
    while (image := spread.admin.get(f"/image/v2/images/{reply.json['image_id']}").json)["status"] != "active":
        assert time.monotonic() < deadline, image
        time.sleep(0.05)
    assert image["size"] > 0
    assert (spread.folder / "api/state/images").exists() and not (spread.folder / "cell1/state/images").exists()


def test_health_of_api_and_conductor(spread):
    whole = {"status": "ok", "database": "up", "cells": {"up": 2, "down": 0}, "conductors": 2,
             "hosts": {"up": 2, "down": 0, "disabled": 0}}
    conductor = {"cell": "cell1", "works": True, "sees_hosts": 2}
    for port, right in ((spread.port, whole), (spread.health["cell1"], {**whole, "conductor": conductor})):
        deadline = time.monotonic() + 120
        while (said := spread.healthz(port)) != right:
            assert time.monotonic() < deadline, said  # what is seen is believed for some seconds
            time.sleep(0.1)


def test_figures_of_the_api_are_for_administrators(spread):
    assert Caller(spread.port).get("/metrics").status == 401
    assert spread.caller("reader1", "p1", "reader").get("/metrics").status == 403
    deadline = time.monotonic() + 120
    while "magnetar_claims 2.0" not in (text := spread.admin.get("/metrics").content.decode()):
        assert time.monotonic() < deadline, text  # what is seen is believed for some seconds
        time.sleep(0.1)
    for line in ('magnetar_hosts{cell="cell1",state="up"} 1.0', 'magnetar_conductors{cell="cell2"} 1.0',
                 'magnetar_queue_actions{cell="cell1",state="queued"} 0.0', "magnetar_claims 2.0",
                 'magnetar_claimed{cell="cell1",resource="vcpus"} 1.0',
                 'magnetar_requests_total{method="POST",route="/servers",service="",status="202"} 2.0'):
        assert line in text.splitlines(), text
    assert 'magnetar_request_seconds_bucket{le="0.005",method="GET",route="/servers/{server_id}"' in text


def test_figures_of_a_conductor(spread):
    text = Caller(spread.health["cell2"]).get("/metrics").content.decode()
    assert 'magnetar_actions_total{action="create",result="done"} 1.0' in text
    assert Caller(spread.health["cell2"]).get("/").status == 404


def test_a_conductor_that_ends_gives_its_work_back(spread):
    """SIGTERM: at once when nothing is in hand, and no other waits for leases."""
    assert spread.end("cell1") < 8
    services = spread.admin.get("/v2.1/os-services?binary=nova-conductor").json["services"]
    assert "cell1" not in [service["host"] for service in services]
    server = spread.admin.get("/v2.1/servers?name=on-kvm1").json["servers"][0]
    assert spread.admin.act(server["id"], "os-stop").status == 202
    spread.conduct("cell1", ("kvm1",))
    found = spread.admin.settled(server["id"])
    assert found and found["status"] == "SHUTOFF"


def test_the_api_ends_in_order(spread):
    assert spread.end("api", signal.SIGTERM) < 8
    spread.start("api", "api", listen=f"127.0.0.1:{spread.port}")
    spread._await(spread.port)
    assert len(spread.admin.get("/v2.1/servers").json["servers"]) == 2


def test_commands_change_nothing_twice(spread):
    again = spread.magnetar("api", "cell", "create", "cell1", "--database-url", "-", stdin=spread.url("cell1"))
    assert again.endswith("as it was\n")
    said = spread.magnetar("api", "db", "upgrade").splitlines()
    assert said == [f"{name}: as this version wants it" for name in ("api", "cell0", "cell1", "cell2")]
    assert "password" not in json.dumps(spread.magnetar("api", "cell", "list"))


def test_the_audit_finds_nothing_and_then_something(spread):
    said = spread.magnetar("cell1", "audit", "--json")
    assert "[]" in said and "Nothing is amiss: 2 servers on 2 hosts." in said
    with Database(spread.url("api")).write() as connection:
        connection.execute(delete(allocations))
    for words in ((), ("--json",)):
        with pytest.raises(AssertionError, match="unclaimed"):
            spread.magnetar("cell1", "audit", *words)
    spread.kill_agent("kvm2")
    with pytest.raises(AssertionError, match="host kvm2 does not answer, and was not looked at"):
        spread.magnetar("cell1", "audit")
