# SPDX-License-Identifier: GPL-3.0-or-later
"""The balance over /v1, and by the modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_core.errors import HypervisorError
from tests.unit.control.drains.draining import Draining
from tests.unit.control.moves.clouds import check, flavors, remove, row
from tests.unit.control.moves.inside import Inside
from tests.unit.control.v1.play import play, prepared

from .balancing import Balancing

BALANCE = "/v1/balance/cell1"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Inside]:
    with Inside(hosts=3, host_down_after=600.0) as made:
        flavors(made)
        yield made


@pytest.fixture
def admin(cloud: Inside) -> Iterator[Balancing]:
    """All hosts are without servers afterwards."""
    made = Balancing(cloud)
    yield made
    remove(cloud, [server["id"] for server in cloud.admin.get("/v2.1/servers?all_tenants=1").json["servers"]])


def test_moves_are_shown_predicted_and_done(cloud: Inside, admin: Balancing) -> None:
    ids = [admin.loaded("kvm1", 3.0, name=f"web{at}") for at in range(3)]
    shown = cloud.admin.get(BALANCE).json
    assert (shown["name"], shown["state"], shown["dropped"], shown["unmeasured"]) == ("cell1", "unbalanced", 0, [])
    assert {host["name"]: host["load"] for host in shown["hosts"]} == {"kvm1": 0.9, "kvm2": 0.0, "kvm3": 0.0}
    assert [(move["source"], move["target"]) for move in shown["moves"]] == [("kvm1", "kvm2"), ("kvm1", "kvm3")]
    planned = cloud.admin.put(f"{BALANCE}?dry_run=true", {"max_moves": 1}).json
    assert [step["verb"] for step in planned["steps"]] == ["record", "move"] and planned["changed"]
    assert len(planned["resource"]["moves"]) == 1 and planned["resource"]["state"] == "unbalanced"
    assert [row(cloud, id).host for id in ids] == ["kvm1"] * 3
    done = cloud.admin.put(f"{BALANCE}?wait=120", {"state": "balanced"}).json
    assert done["changed"] and done["resource"]["state"] == "balanced" and done["resource"]["moves"] == [], done
    assert sorted(row(cloud, id).host for id in ids) == ["kvm1", "kvm2", "kvm3"]
    for id in ids:
        assert check(cloud, id)["power_state"] == "running"
    again = cloud.admin.put(f"{BALANCE}?wait=120", {}).json
    assert (again["steps"], again["changed"]) == ([], False)


def test_a_failed_move_is_an_error(cloud: Inside, admin: Balancing) -> None:
    for at in range(3):
        admin.loaded("kvm1", 3.0, name=f"web{at}")
    cloud.kvm["kvm1"].fake.fail_next("migrate", HypervisorError("the line is cut"))
    reply = cloud.admin.put(f"{BALANCE}?wait=120", {})
    assert reply.status == 409 and "the line is cut" in str(reply.json), reply


def test_requests_that_are_refused(cloud: Inside) -> None:
    admin = cloud.admin
    assert admin.get("/v1/balance/cell9").status == 404
    assert admin.put("/v1/balance/cell9", {}).status == 404
    assert admin.put(BALANCE, {"free_host": "kvm9"}).status == 404
    for body in ({"max_moves": 0}, {"max_moves": 1001}, {"state": "even"}, {"hosts": []}, {"limit": 3}):
        reply = admin.put(BALANCE, body)
        assert reply.status == 400 and next(iter(body)) in str(reply.json), reply
    assert admin.delete(BALANCE).status == 400
    bob = Draining(cloud)
    bob.admin = cloud.caller("bob", "blue")
    assert [bob.admin.get(BALANCE).status, bob.admin.put(BALANCE, {}).status] == [403, 403]


@pytest.mark.slow
def test_by_modules(cloud: Inside, admin: Balancing, tmp_path: Path) -> None:
    ids = [admin.loaded("kvm2", 1.0, name=f"web{at}") for at in range(2)]
    folder = prepared(tmp_path, cloud)
    task = {"balance": {"name": "cell1", "free_host": "kvm2", "timeout": 300}}
    [would] = play(folder, [task], {"cloud": "magnetar"}, "--check", "--diff")
    assert would["changed"] and would["actions"] == ["record", "move", "move"]
    assert [move["source"] for move in would["balance"]["moves"]] == ["kvm2"] * 2
    assert [row(cloud, id).host for id in ids] == ["kvm2"] * 2
    [info, done, again] = play(folder, [{"balance_info": {"free_host": "kvm2"}}, task, task], {"cloud": "magnetar"})
    assert len(info["balances"][0]["moves"]) == 2 and not info["changed"]
    assert done["changed"] and not again["changed"]
    assert "kvm2" not in [row(cloud, id).host for id in ids]
