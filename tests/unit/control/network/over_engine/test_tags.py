# SPDX-License-Identifier: GPL-3.0-or-later
"""Tags of networks, ports and all else that users name."""

from __future__ import annotations

import pytest

from tests.support.control.counting import counted
from tests.support.control.serving import ADMIN, BOB, READER

#: Path to the word of a body, and what a new one must have.
RESOURCES = {"networks": ("network", {}), "routers": ("router", {}), "security-groups": ("security_group", {}),
             "address-groups": ("address_group", {}), "address-scopes": ("address_scope", {"ip_version": 4}),
             "subnetpools": ("subnetpool", {"prefixes": ["10.20.0.0/16"]}), "qos/policies": ("policy", {})}


def _make(ask, path: str, name: str = "one") -> str:
    word, needs = RESOURCES[path]
    return ask("POST", f"/v2.0/{path}", {word: {"name": name, **needs}})[word]["id"]


def _names(ask, query: str, path: str = "networks") -> list[str]:
    return [one["name"] for one in ask("GET", f"/v2.0/{path}?{query}")[path.replace("-", "_")]]


@pytest.mark.parametrize("path", RESOURCES)
def test_all_and_single_ones(ask, path):
    admin, word = ask.as_(ADMIN), RESOURCES[path][0]
    where = f"/v2.0/{path}/{_make(admin, path)}"
    assert admin("GET", where)[word]["tags"] == []
    assert admin("PUT", f"{where}/tags", {"tags": ["blue", "a b", "blue"]}) == {"tags": ["blue", "a b"]}
    for _again in range(2):
        admin("PUT", f"{where}/tags/red", status=201)
    assert admin("GET", f"{where}/tags") == {"tags": ["blue", "a b", "red"]}
    admin("GET", f"{where}/tags/blue", status=204)
    admin("DELETE", f"{where}/tags/blue", status=204)
    for method in ("GET", "DELETE"):
        assert admin(method, f"{where}/tags/blue", status=404)["NeutronError"]["type"] == "TagNotFound"
    assert admin("GET", where)[word]["tags"] == ["a b", "red"]
    admin("DELETE", f"{where}/tags", status=204)
    assert admin("GET", where)[word]["tags"] == []


def test_of_ports_subnets_floating_ips_and_trunks(ask, lan, outside):
    port = ask("POST", "/v2.0/ports", {"port": {"network_id": lan(ask)["id"]}})["port"]["id"]
    subnet = ask("GET", "/v2.0/subnets")["subnets"][0]["id"]
    floating = ask("POST", "/v2.0/floatingips", {"floatingip": {"floating_network_id": outside["id"]}})["floatingip"]
    trunk = ask("POST", "/v2.0/trunks", {"trunk": {"port_id": port}})["trunk"]["id"]
    for plural, id in (("ports", port), ("subnets", subnet), ("floatingips", floating["id"]), ("trunks", trunk)):
        ask("PUT", f"/v2.0/{plural}/{id}/tags", {"tags": [plural]})
        assert [one["tags"] for one in ask("GET", f"/v2.0/{plural}?tags={plural}")[plural]] == [[plural]]
        assert ask("GET", f"/v2.0/{plural}?tags=other")[plural] == []
    ask("GET", "/v2.0/security-group-rules?tags=a", status=400)


def test_lists_find_by_tags(ask):
    for name, tags in (("none", []), ("a", ["a"]), ("ab", ["a", "b"]), ("A", ["A"]),
                       ("odd", ['a"', "100%", "é", 'd"c'])):
        ask("PUT", f"/v2.0/networks/{_make(ask, 'networks', name)}/tags", {"tags": tags})
    for query, found in (("tags=a", ["a", "ab"]), ("tags=a,b", ["ab"]), ("tags=a&tags=b", ["ab"]),
                         ("tags-any=A,b", ["ab", "A"]), ("not-tags=a,b", ["none", "a", "A", "odd"]),
                         ("not-tags-any=a,b", ["none", "A", "odd"]), ("tags=100%25", ["odd"]), ("tags=%C3%A9", ["odd"]),
                         ("tags=a%22", ["odd"]), ("tags=%25", []), ("tags=a&not-tags=b", ["a"]),
                         ("tags=c", []), ("tags=d%22c", ["odd"]),
                         ("tags=%FF", []), ("tags=%ED%B2%80", [])):
        assert _names(ask, query) == found, query
    many = ",".join(map(str, range(51)))
    assert "50" in ask("GET", f"/v2.0/networks?tags={many}", status=400)["NeutronError"]["message"]
    ask("GET", "/v2.0/networks?sort_key=tags-any", status=400)


def test_what_is_no_tag(ask):
    where = f"/v2.0/networks/{_make(ask, 'networks')}/tags"
    for tags, words in ((["a,b"], "comma"), ([""], "tags[0]"), (["x" * 256], "255"), ([7], "tags[0]"), ("a", "list"),
                        ([str(one) for one in range(51)], "50")):
        assert words in ask("PUT", where, {"tags": tags}, status=400)["NeutronError"]["message"], tags
    assert "comma" in ask("PUT", f"{where}/a%2Cb", status=400)["NeutronError"]["message"]
    ask("PUT", where, {"tags": [str(one) for one in range(50)]})
    assert "50" in ask("PUT", f"{where}/one-more", status=400)["NeutronError"]["message"]
    ask("PUT", f"{where}/49", status=201)


def test_whose_they_are(ask):
    id = _make(ask, "networks")
    where = f"/v2.0/networks/{id}/tags"
    ask("PUT", where, {"tags": ["ours"]})
    assert ask.as_(READER)("GET", where) == {"tags": ["ours"]}
    ask.as_(READER)("PUT", f"{where}/theirs", status=403)
    ask.as_(BOB)("GET", where, status=404)
    ask.as_(BOB)("DELETE", where, status=404)
    ask.as_(ADMIN)("POST", "/v2.0/rbac-policies", {"rbac_policy": {
        "object_type": "network", "object_id": id, "action": "access_as_shared", "target_tenant": "blue"}})
    assert ask.as_(BOB)("GET", where) == {"tags": ["ours"]}
    ask.as_(BOB)("DELETE", where, status=403)
    assert ask("GET", where) == {"tags": ["ours"]}


def test_the_engine_is_told_without_them(ask, service, lan, outside, database):
    """They may be long, and it reads everything at once."""
    network = lan(ask)["id"]
    ask("POST", "/v2.0/ports", {"port": {"network_id": network}})
    router = ask("POST", "/v2.0/routers", {"router": {"external_gateway_info": {"network_id": outside["id"]}}})
    ask("PUT", f"/v2.0/routers/{router['router']['id']}/add_router_interface", {
        "subnet_id": ask("GET", f"/v2.0/subnets?network_id={network}")["subnets"][0]["id"]})
    with counted(api=database) as asked:
        service.worker.round()
        service.differences()
    assert [one for _name, one in asked if "tags" in one] == []
