# SPDX-License-Identifier: GPL-3.0-or-later
"""What Neutron has and nothing here acts on: refused by name with the reason, but for what is so anyway."""

from __future__ import annotations

import pytest

from magnetar_control.api.network import lacking
from tests.unit.control.serving import ADMIN

#: Word, path and attributes of each resource.
RESOURCES = {"network": ("networks", lacking.NETWORK), "subnet": ("subnets", lacking.SUBNET),
             "port": ("ports", lacking.PORT), "router": ("routers", lacking.ROUTER),
             "floatingip": ("floatingips", lacking.FLOATING_IP)}


@pytest.fixture
def needs(ask, outside, lan) -> dict[str, dict]:
    """What a new one of each must have."""
    network = lan(ask)["id"]
    return {"subnet": {"network_id": network, "cidr": "10.9.0.0/24"}, "port": {"network_id": network},
            "floatingip": {"floating_network_id": outside["id"]}}


@pytest.mark.parametrize("word", RESOURCES)
def test_an_attribute_that_nothing_acts_on_says_why(ask, needs, word):
    path, attributes = RESOURCES[word]
    need, admin = needs.get(word, {}), ask.as_(ADMIN)
    made = admin("POST", f"/v2.0/{path}", {word: {
        **need, **{name: value.usual[-1] for name, value in attributes.items()}}})[word]
    for name, value in attributes.items():
        for wrong in ("blue", 7, 0, 1, ["blue"], not value.usual[-1]):
            if isinstance(wrong, bool) and any(wrong is usual for usual in value.usual):
                continue
            for method, where, besides in (("POST", path, need), ("PUT", f"{path}/{made['id']}", {})):
                refused = admin(method, f"/v2.0/{where}", {word: {**besides, name: wrong}}, status=400)
                assert f"{word}.{name}: {value.why} (got" in refused["NeutronError"]["message"]
        for usual in value.usual:
            admin("PUT", f"/v2.0/{path}/{made['id']}", {word: {name: usual}})


def test_a_gateway_has_no_qos_policy(ask, outside):
    gateway = {"network_id": outside["id"], "qos_policy_id": None}
    router = ask("POST", "/v2.0/routers", {"router": {"external_gateway_info": gateway}})["router"]
    gateway["qos_policy_id"] = "0e5d0f4a-0000-4000-8000-000000000000"
    refused = ask("PUT", f"/v2.0/routers/{router['id']}", {"router": {"external_gateway_info": gateway}}, status=400)
    assert "external_gateway_info.qos_policy_id: must be null: QoS policies" in refused["NeutronError"]["message"]
