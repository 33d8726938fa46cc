# SPDX-License-Identifier: GPL-3.0-or-later
"""Network agents are the agents of compute hosts, for administrators."""

from __future__ import annotations

from magnetar_control.api.network.app import network_application
from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.store.hosts.services import COMPUTE, Service
from tests.support.control.serving import ADMIN, ALICE, Asker, authenticate

HOSTS = [Service("a1", 1, COMPUTE, "kvm1", "nova", "cell1", up=True, seen_at="2026-11-25T12:00:00.250000Z"),
         Service("a2", 2, COMPUTE, "kvm2", "east", "cell1", up=False, disabled=True, disabled_reason="disk")]


def test_each_compute_host_is_one(sqlite_service: EmbeddedNetworks) -> None:
    ask = Asker(network_application(sqlite_service, authenticate, lambda: HOSTS), ADMIN)
    found = ask("GET", "/v2.0/agents")["agents"]
    assert [(one["host"], one["alive"], one["admin_state_up"], one["availability_zone"]) for one in found] == [
        ("kvm1", True, True, "nova"), ("kvm2", False, False, "east")]
    assert [one["heartbeat_timestamp"] for one in found] == ["2026-11-25T12:00:00Z", None]
    assert ask("GET", "/v2.0/agents/a2")["agent"] == found[1]
    for query, hosts in (("host=kvm2", ["kvm2"]), ("alive=True", ["kvm1"]), ("host=kvm1&host=kvm2", ["kvm1", "kvm2"]),
                         ("agent_type=L3+agent", [])):
        assert [one["host"] for one in ask("GET", f"/v2.0/agents?{query}")["agents"]] == hosts, query
    for method in ("PUT", "DELETE"):
        said = ask(method, "/v2.0/agents/a1", {"agent": {}}, status=400)["NeutronError"]["message"]
        assert "openstack compute service" in said
    member = ask.as_(ALICE)
    assert member("GET", "/v2.0/agents") == {"agents": []}
    assert member("GET", "/v2.0/agents/a1", status=404)["NeutronError"]["type"] == "AgentNotFound"
    member("DELETE", "/v2.0/agents/a1", status=403)
