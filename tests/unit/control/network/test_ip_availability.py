# SPDX-License-Identifier: GPL-3.0-or-later
"""How many addresses networks have, and how many are given: for administrators."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar_control.api.network.app import network_application
from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from magnetar_control.store.engine.database import Database
from tests.support.control.counting import counted
from tests.support.control.serving import ADMIN, ALICE, Asker, authenticate

TOP = "/v2.0/network-ip-availabilities"
# Of whole numbers with more than 64 bits the tests' reader of JSON makes floats; others do not.


@pytest.fixture
def admin(database: Database) -> Asker:
    """With two networks: ``lan`` of IPv4 and IPv6, and ``bare`` without a subnet."""
    service = EmbeddedNetworks(database, default_cidr=None, engine=FakeEngine())
    service.bootstrap()
    return Asker(network_application(service, authenticate), ADMIN)


def lan(ask: Asker, **more: Any) -> str:
    id = str(ask("POST", "/v2.0/networks", {"network": {"name": "lan", **more}})["network"]["id"])
    for name, cidr, version in (("four", "10.9.0.0/24", 4), ("six", "2001:db8::/64", 6)):
        ask("POST", "/v2.0/subnets", {"subnet": {"network_id": id, "name": name, "cidr": cidr, "ip_version": version,
                                                "enable_dhcp": False}})
    return id


def test_what_there_is_and_what_is_given(admin: Asker) -> None:
    id, bare = lan(admin), admin("POST", "/v2.0/networks", {"network": {"name": "bare"}})["network"]["id"]
    for address in ("10.9.0.7", "10.9.0.9"):
        admin("POST", "/v2.0/ports", {"port": {"network_id": id, "fixed_ips": [{"ip_address": address}]}})
    found = {one["network_id"]: one for one in admin("GET", TOP)["network_ip_availabilities"]}
    assert set(found) == {id, bare}
    assert (found[bare]["total_ips"], found[bare]["used_ips"], found[bare]["subnet_ip_availability"]) == (0, 0, [])
    shown = found[id]
    assert shown == admin("GET", f"{TOP}/{id}")["network_ip_availability"]
    assert (shown["network_name"], shown["project_id"], shown["tenant_id"]) == ("lan", "operators", "operators")
    four, six = shown["subnet_ip_availability"]
    assert {name: four[name] for name in ("subnet_name", "cidr", "ip_version", "total_ips", "used_ips")} == {
        "subnet_name": "four", "cidr": "10.9.0.0/24", "ip_version": 4, "total_ips": 253, "used_ips": 2}
    assert (six["ip_version"], six["used_ips"]) == (6, 0)
    assert (shown["total_ips"], shown["used_ips"]) == (float(253 + six["total_ips"]), 2)
    (only,) = admin("GET", f"{TOP}?ip_version=4")["network_ip_availabilities"]  # bare has none
    assert (only["total_ips"], [one["ip_version"] for one in only["subnet_ip_availability"]]) == (253, [4])


def test_a_network_with_more_addresses_than_64_bits_count(admin: Asker) -> None:
    id = lan(admin)
    for at in (1, 2):
        admin("POST", "/v2.0/subnets", {"subnet": {"network_id": id, "cidr": f"2001:db8:{at}::/64", "ip_version": 6}})
    found = admin("GET", f"{TOP}/{id}")["network_ip_availability"]
    assert found["total_ips"] == float(sum(one["total_ips"] for one in found["subnet_ip_availability"])) > 2**65


@pytest.mark.parametrize(("query", "names"), [
    ("network_name=lan", ["lan"]), ("project_id=red", ["theirs"]), ("tenant_id=red", ["theirs"]),
    ("network_name=lan&network_name=theirs", ["lan", "theirs"]), ("ip_version=6", ["lan", "theirs"]),
    ("network_name=nobody", [])])  # fmt: skip
def test_filters(admin: Asker, query: str, names: list[str]) -> None:
    lan(admin)
    lan(admin, name="theirs", project_id="red")
    found = admin("GET", f"{TOP}?{query}")["network_ip_availabilities"]
    assert sorted(one["network_name"] for one in found) == names


def test_pages_and_fields(admin: Asker) -> None:
    ids = sorted(lan(admin) for _ in range(3))
    page = admin("GET", f"{TOP}?limit=2&fields=network_id&fields=used_ips")
    assert page["network_ip_availabilities"] == [{"network_id": id, "used_ips": 0} for id in ids[:2]]
    rest = admin("GET", TOP + "?" + page["network_ip_availabilities_links"][0]["href"].partition("?")[2])
    assert rest["network_ip_availabilities"] == [{"network_id": ids[2], "used_ips": 0}]


@pytest.mark.parametrize("query", ["name=lan", "ip_version=5", "limit=-1", "marker=nobody"])
def test_what_is_refused(admin: Asker, query: str) -> None:
    said = admin("GET", f"{TOP}?{query}", status=400)["NeutronError"]["message"]
    assert query.partition("=")[0] in said


def test_it_is_for_administrators(admin: Asker) -> None:
    id, member = lan(admin, project_id="red"), admin.as_(ALICE)
    assert member("GET", TOP) == {"network_ip_availabilities": []}
    member("GET", f"{TOP}/{id}", status=404)


def test_queries_do_not_grow(admin: Asker, database: Database) -> None:
    lan(admin)
    with counted(api=database) as few:
        admin("GET", TOP)
    for _ in range(3):
        lan(admin)
    with counted(api=database) as many:
        admin("GET", TOP)
    assert len(few) == len(many) == 2
