# SPDX-License-Identifier: GPL-3.0-or-later
"""``POST /reshaper`` of Placement's API: what is held goes with its inventory from host to host, all of it or nothing.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from magnetar_control.compute.placement import consumers
from magnetar_control.store.claims import host_counters
from tests.support.control.cloud import Cloud
from tests.support.control.engines import engines
from tests.support.control.placement import call

pytestmark = [engines("volumes and images, postgres"), pytest.mark.slow]
KIND = "CUSTOM_SEAT"
Held = Mapping[str, Mapping[str, int]]


@pytest.fixture(scope="module")
def cloud(databases: Mapping[str, str]) -> Iterator[Cloud]:
    with Cloud(hosts=2, databases=databases) as made:
        assert call(made, "PUT", f"/resource_classes/{KIND}").status == 201
        assert call(made, "PUT", "/resource_classes/CUSTOM_OTHER").status == 201
        yield made
        with made.parts.api_database.write() as connection:
            assert host_counters.audit_host_counters(connection) == []


@pytest.fixture
def ids(cloud: Cloud) -> Iterator[dict[str, str]]:
    """Hosts, and two consumers that hold two and one of three seats of kvm1; kvm2 has none."""
    found = {one["name"]: one["uuid"] for one in call(cloud, "GET", "/resource_providers").json["resource_providers"]}
    found |= {name: str(uuid.uuid4()) for name in ("ann", "bob")}
    made = reshape(cloud, found, {"kvm1": {KIND: 3}, "kvm2": {}}, {"ann": {"kvm1": 2}, "bob": {"kvm1": 1}})
    assert made.status == 204
    yield found
    for name in ("ann", "bob"):
        call(cloud, "DELETE", f"/allocations/{found[name]}")
    assert reshape(cloud, found, {"kvm1": {}, "kvm2": {}}, {}).status == 204


def generation(cloud: Cloud, id: str) -> int:
    return int(call(cloud, "GET", f"/resource_providers/{id}").json["generation"])


def reshape(cloud: Cloud, ids: Mapping[str, str], totals: Held, held: Held, version: str = "1.39",
            **seen: int | None) -> Any:
    """Have hosts have only these inventories of what operators give them, and consumers so many seats. *seen*: other
    generations than those that there are."""
    wishes = {}
    for name, amounts in held.items():
        now = call(cloud, "GET", f"/allocations/{ids[name]}").json.get("consumer_generation")
        wishes[ids[name]] = {
            "allocations": {ids[host]: {"resources": {KIND: n}} for host, n in amounts.items()},
            "project_id": "p", "user_id": "u", "consumer_generation": seen.get(name, now),
            **({"consumer_type": "GUEST"} if version >= "1.38" else {})}
    providers = {ids[host]: {"resource_provider_generation": seen.get(host, generation(cloud, ids[host])),
                             "inventories": {kind: {"total": n} for kind, n in mine.items()}}
                 for host, mine in totals.items()}
    return call(cloud, "POST", "/reshaper", {"inventories": providers, "allocations": wishes}, version)


def state(cloud: Cloud, ids: Mapping[str, str]) -> dict[str, tuple[int | None, int]]:
    """Of each host how many seats there are, and how many are used."""
    found = {}
    for host in ("kvm1", "kvm2"):
        there = call(cloud, "GET", f"/resource_providers/{ids[host]}/inventories").json["inventories"]
        used = call(cloud, "GET", f"/resource_providers/{ids[host]}/usages").json["usages"]
        found[host] = there.get(KIND, {}).get("total"), used.get(KIND, 0)
    return found


BEFORE = {"kvm1": (3, 3), "kvm2": (None, 0)}


@pytest.mark.parametrize("version", ["1.30", "1.34", "1.39"])
def test_what_is_held_goes_with_its_inventory(cloud: Cloud, ids: dict[str, str], version: str) -> None:
    """Neither one by one could do it: the inventory is in use where it was, and nothing is left where it goes."""
    before = {host: generation(cloud, ids[host]) for host in ("kvm1", "kvm2")}
    reply = reshape(cloud, ids, {"kvm1": {}, "kvm2": {KIND: 3}}, {"ann": {"kvm2": 2}, "bob": {"kvm2": 1}}, version)
    assert reply.status == 204 and state(cloud, ids) == {"kvm1": (None, 0), "kvm2": (3, 3)}
    assert all(generation(cloud, ids[host]) > had for host, had in before.items())
    shown = call(cloud, "GET", f"/allocations/{ids['ann']}").json
    assert shown["allocations"].keys() == {ids["kvm2"]} and shown["consumer_generation"] == 2
    part = reshape(cloud, ids, {"kvm1": {KIND: 1}, "kvm2": {KIND: 2}}, {"bob": {"kvm1": 1}})
    assert part.status == 204 and state(cloud, ids) == {"kvm1": (1, 1), "kvm2": (2, 2)}  # ann holds what she held


@pytest.mark.parametrize(("totals", "held", "seen", "status", "says"), [
    ({"kvm1": {}, "kvm2": {KIND: 3}}, {"ann": {"kvm2": 2}}, {}, 409, "in use: 1 of it are claimed"),  # bob stays
    ({"kvm1": {}, "kvm2": {KIND: 2}}, {"ann": {"kvm2": 2}, "bob": {"kvm2": 1}}, {}, 409, "Unable to allocate"),
    ({"kvm1": {KIND: 2}}, {"ann": {"kvm1": 2}, "bob": {"kvm1": 1}}, {}, 409, "Unable to allocate"),  # all as it was
    ({"kvm1": {KIND: 2}}, {"bob": {"kvm1": 1}}, {}, 409, "Unable to allocate"),
    ({"kvm1": {}, "kvm2": {KIND: 3}}, {"ann": {"kvm2": 2}, "bob": {"kvm2": 1}}, {"kvm2": 0}, 409,
     "Resource provider generation conflict"),
    ({"kvm1": {}, "kvm2": {KIND: 3}}, {"ann": {"kvm2": 2}, "bob": {"kvm2": 1}}, {"bob": None}, 409,
     "consumer generation conflict"),
    ({"kvm1": {}, "kvm2": {KIND: 3, "CUSTOM_NONE": 1}}, {"ann": {"kvm2": 2}, "bob": {"kvm2": 1}}, {}, 400,
     "Unknown resource class"),
    ({"kvm1": {}, "kvm2": {KIND: 3, "VCPU": 1}}, {"ann": {"kvm2": 2}, "bob": {"kvm2": 1}}, {}, 400,
     "as the agent of kvm2 tells"),
    ({"kvm1": {}, "kvm2": {KIND: 3}, "kvm2_NUMA0": {KIND: 1}}, {"ann": {"kvm2": 2}, "bob": {"kvm2": 1}}, {}, 400,
     "is a part of host kvm2"),
    ({"kvm1": {}, "kvm2": {KIND: 3}}, {"ann": {"kvm2": 2}, "bob": {"kvm2_NUMA0": 1}}, {}, 400, "is a NUMA cell"),
])
def test_all_or_nothing(cloud: Cloud, ids: dict[str, str], totals: Held, held: Held, seen: dict[str, int | None],
                        status: int, says: str) -> None:
    before = {host: generation(cloud, ids[host]) for host in ("kvm1", "kvm2")}
    reply = reshape(cloud, ids, totals, held, **seen)
    assert reply.status == status and says in reply.json["errors"][0]["detail"], reply
    assert state(cloud, ids) == BEFORE
    assert {host: generation(cloud, ids[host]) for host in before} == before
    for name, n in (("ann", 2), ("bob", 1)):
        found = call(cloud, "GET", f"/allocations/{ids[name]}").json
        assert found["consumer_generation"] == 1
        assert {id: one["resources"] for id, one in found["allocations"].items()} == {ids["kvm1"]: {KIND: n}}


def test_what_is_no_uuid_is_no_provider(cloud: Cloud, ids: dict[str, str]) -> None:
    reply = reshape(cloud, {**ids, "odd": "odd"}, {}, {"ann": {"odd": 1}})
    assert reply.status == 400 and "does not exist" in reply.json["errors"][0]["detail"], reply.json
    reply = call(cloud, "POST", "/reshaper", {"inventories": {"odd": {
        "resource_provider_generation": 1, "inventories": {}}}, "allocations": {}})
    assert reply.status == 400 and "It is named in inventories" in reply.json["errors"][0]["detail"], reply.json


def test_what_is_not_named_stays(cloud: Cloud, ids: dict[str, str]) -> None:
    """As PUT of all inventories: of others goes what operators have set, and what agents tell is there."""
    assert reshape(cloud, ids, {"kvm1": {KIND: 3, "CUSTOM_OTHER": 1}}, {}).status == 204
    assert reshape(cloud, ids, {}, {"bob": {}}).status == 204
    assert state(cloud, ids) == {"kvm1": (3, 2), "kvm2": (None, 0)}
    assert reshape(cloud, ids, {"kvm1": {KIND: 2}}, {}).status == 204
    found = call(cloud, "GET", f"/resource_providers/{ids['kvm1']}/inventories").json["inventories"]
    assert found.keys() == {"VCPU", "MEMORY_MB", "DISK_GB", KIND} and found["VCPU"]["total"] == 16


def test_of_two_at_once_one_is_too_late(cloud: Cloud, ids: dict[str, str]) -> None:
    """Both have seen the same generations, and turn hosts and consumers round."""
    seen: dict[str, int | None] = {host: generation(cloud, ids[host]) for host in ("kvm1", "kvm2")}
    seen |= {"ann": 1, "bob": 1}
    replies: list[int] = []

    def move(turned: bool) -> None:
        totals: dict[str, dict[str, int]] = {"kvm1": {}, "kvm2": {KIND: 3}}
        held = {"ann": {"kvm2": 2}, "bob": {"kvm2": 1}}
        if turned:
            totals, held = (dict(reversed(one.items())) for one in (totals, held))  # type: ignore[assignment]
        replies.append(reshape(cloud, ids, totals, held, **seen).status)

    threads = [threading.Thread(target=move, args=(bool(at % 2),)) for at in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    assert sorted(replies) == [204, *[409] * 5] and state(cloud, ids) == {"kvm1": (None, 0), "kvm2": (3, 3)}


@pytest.mark.parametrize("hosts", [("kvm1", "kvm1"), ("kvm1", "kvm2")], ids=["on the same host", "on two hosts"])
def test_of_two_that_make_a_consumer_at_once_one_is_too_late(cloud: Cloud, ids: dict[str, str], hosts: tuple[str, str],
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have been let go on before either of them claims something, where nothing keeps them from that."""
    assert reshape(cloud, ids, {"kvm1": {KIND: 9}, "kvm2": {KIND: 9}}, {"ann": {}, "bob": {}}).status == 204
    ids["cid"], both, check = str(uuid.uuid4()), threading.Barrier(2), consumers._check_generation
    replies: list[Any] = []

    def checked(*args: Any) -> None:
        check(*args)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)

    def make(host: str) -> None:
        replies.append(call(cloud, "PUT", f"/allocations/{ids['cid']}", {
            "allocations": {ids[host]: {"resources": {KIND: 1}}}, "project_id": "p", "user_id": "u",
            "consumer_generation": None, "consumer_type": "GUEST"}))

    monkeypatch.setattr(consumers, "_check_generation", checked)
    threads = [threading.Thread(target=make, args=(host,)) for host in hosts]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    good, late = sorted(replies, key=lambda reply: int(reply.status))
    assert (good.status, late.status) == (204, 409), replies
    assert late.json["errors"][0]["code"] == "placement.concurrent_update"
    assert "consumer generation conflict - expected 1 but got null" in late.json["errors"][0]["detail"]
    found = call(cloud, "GET", f"/allocations/{ids['cid']}").json
    assert found["consumer_generation"] == 1 and len(found["allocations"]) == 1
    assert call(cloud, "DELETE", f"/allocations/{ids['cid']}").status == 204


@pytest.mark.parametrize("several", [False, True], ids=["reshaper", "allocations"])
def test_nobody_waits_for_who_waits_for_it(cloud: Cloud, ids: dict[str, str], caplog: pytest.LogCaptureFixture,
                                           several: bool) -> None:
    """Hosts are locked before what is held of them: else the database ends who changes one, or the other."""
    replies: list[int] = []

    def allocate(**held: int) -> int:
        found = {ids[name]: {"allocations": {ids["kvm1"]: {"resources": {KIND: n}}} if n else {}, "project_id": "p",
                             "user_id": "u"} for name, n in held.items()}
        return int(call(cloud, "POST", "/allocations", found, "1.27").status)

    def shape() -> None:
        for turn in [True, False] * 12:
            held = {"ann": {"kvm1": 2}} if turn else {"ann": {}}
            status = allocate(ann=2 * turn, cid=2 * (not turn)) if several else reshape(
                cloud, ids, {"kvm1": {KIND: 3}}, held).status
            replies.append(status)

    def change() -> None:
        for at in range(60):
            reply = call(cloud, "PUT", f"/resource_providers/{ids['kvm1']}/inventories/{KIND}", {
                "resource_provider_generation": generation(cloud, ids["kvm1"]), "total": 3 + at % 2})
            replies.append(reply.status)

    ids["cid"] = str(uuid.uuid4())
    threads = [threading.Thread(target=one) for one in (shape, change)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    call(cloud, "DELETE", f"/allocations/{ids['cid']}")
    assert {*replies} <= {200, 204, 409} and "trying again" not in caplog.text, (replies, caplog.text)
