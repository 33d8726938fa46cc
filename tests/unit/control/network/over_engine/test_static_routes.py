# SPDX-License-Identifier: GPL-3.0-or-later
"""Static routes of routers that lead to each other."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import event

from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.network.routers import static_routes
from magnetar_core.errors import Conflict, MagnetarError
from tests.support.control.serving import ADMIN, ALICE, BOB, Asker

FAR = "10.9.0.0/16"


class Lab:
    """Routers on a common network, 10.0.0.0/24: router n has 10.0.0.10 + n there."""

    def __init__(self, ask: Asker) -> None:
        self.ask = ask
        self.net = ask("POST", "/v2.0/networks", {"network": {"name": "between"}})["network"]["id"]
        self.subnet = self._subnet(self.net, "10.0.0.0/24")

    def _subnet(self, network: str, cidr: str) -> str:
        return self.ask("POST", "/v2.0/subnets", {"subnet": {"network_id": network, "cidr": cidr}})["subnet"]["id"]

    def own(self, router: str, cidr: str) -> str:
        """A subnet behind the router; returns its id."""
        network = self.ask("POST", "/v2.0/networks", {"network": {"name": "own"}})["network"]["id"]
        subnet = self._subnet(network, cidr)
        self.attach(router, subnet_id=subnet)
        return subnet

    def attach(self, router: str, status: int | None = None, **wish) -> dict:
        return self.ask("PUT", f"/v2.0/routers/{router}/add_router_interface", wish, status)

    def port(self, number: int) -> str:
        return self.ask("POST", "/v2.0/ports", {"port": {
            "network_id": self.net, "fixed_ips": [{"ip_address": f"10.0.0.{10 + number}"}]}})["port"]["id"]

    def router(self, number: int, **fields) -> str:
        id = self.ask("POST", "/v2.0/routers", {"router": {"name": f"r{number}", **fields}})["router"]["id"]
        self.attach(id, port_id=self.port(number))
        return str(id)

    def route(self, router: str, *ways: tuple[str, int], status: int | None = None) -> str:
        """Set routes: (destination, number of the router that is the next hop); returns the message."""
        answer = self.ask("PUT", f"/v2.0/routers/{router}", {"router": {"routes": [
            {"destination": to, "nexthop": f"10.0.0.{10 + by}"} for to, by in ways]}}, status)
        return answer["NeutronError"]["message"] if "NeutronError" in answer else ""

    def routes(self, router: str) -> list[dict]:
        return self.ask("GET", f"/v2.0/routers/{router}")["router"]["routes"]


@pytest.fixture
def lab(ask) -> Lab:
    return Lab(ask)


def test_two_routers_do_not_send_to_each_other(lab):
    one, two = lab.router(1), lab.router(2)
    lab.route(one, (FAR, 2))
    said = lab.route(two, (FAR, 1), status=409)
    for word in (f"router r1 ({one})", f"router r2 ({two})", FAR, "10.0.0.11", "10.0.0.12", "Take the route out"):
        assert word in said
    assert lab.routes(two) == []
    lab.route(two, ("10.8.0.0/16", 1))  # another destination
    lab.route(two, ("10.8.0.0/16", 1), (FAR, 9))  # nobody's address


def test_three_routers_do_not_send_round(lab):
    one, two, three = (lab.router(number) for number in (1, 2, 3))
    lab.route(one, (FAR, 2))
    lab.route(two, (FAR, 3))
    said = lab.route(three, (FAR, 1), status=409)
    assert all(f"router r{number} (" in said for number in (1, 2, 3))
    lab.route(three, ("0.0.0.0/0", 9), (FAR, 9))


def test_the_longest_match_counts(lab):
    one, two = lab.router(1), lab.router(2)
    lab.own(two, "10.9.1.0/24")
    lab.route(two, ("0.0.0.0/0", 1))
    lab.route(one, ("10.9.1.0/24", 2))  # what the other one has itself
    lab.route(one, ("10.9.1.128/25", 2), status=None)
    lab.route(one, (FAR, 2))  # of which the other one has a part
    lab.route(one, ("10.8.0.0/16", 2))  # and of that nothing yet: its subnet may come after the route
    lab.route(one, ("0.0.0.0/0", 2), status=409)  # the same route as the other one's
    lab.own(two, "10.9.2.0/25")
    lab.own(two, "10.9.2.128/25")
    lab.route(one, ("10.9.2.0/24", 2))  # of which it has all
    lab.route(two, ("0.0.0.0/0", 1), ("10.9.3.0/24", 7))
    lab.route(one, ("10.9.3.0/24", 2))
    lab.route(one, ("10.9.3.0/24", 2), ("10.9.3.7/32", 2))
    lab.route(two, ("10.9.3.0/24", 7), ("10.9.3.6/31", 1), status=409)


def test_of_routes_of_one_destination_each_counts(lab):
    one, two, three = (lab.router(number) for number in (1, 2, 3))
    lab.route(one, (FAR, 2), (FAR, 3))
    lab.route(two, (FAR, 9))
    assert "router r3" in lab.route(three, (FAR, 9), (FAR, 1), status=409)


def test_what_ended_in_a_subnet_does_not_go_back(lab):
    """An interface that goes."""
    one, two = lab.router(1), lab.router(2)
    subnet = lab.own(two, "10.9.1.0/24")
    lab.route(two, (FAR, 1))
    lab.route(one, ("10.9.1.0/24", 2))
    path = f"/v2.0/routers/{two}/remove_router_interface"
    assert "loop" in lab.ask("PUT", path, {"subnet_id": subnet}, 409)["NeutronError"]["message"]
    assert len(lab.ask("GET", f"/v2.0/ports?device_id={two}")["ports"]) == 2
    lab.route(one)
    lab.ask("PUT", path, {"subnet_id": subnet})


def test_a_part_of_a_range_goes(lab):
    """A spoke may give up one of its subnets, while the hub sends the whole range there."""
    hub, spoke = lab.router(1), lab.router(2)
    subnets = [lab.own(spoke, f"10.9.{at}.0/24") for at in (1, 2)]
    lab.route(spoke, ("0.0.0.0/0", 1))
    lab.route(hub, (FAR, 2))
    lab.ask("PUT", f"/v2.0/routers/{spoke}/remove_router_interface", {"subnet_id": subnets[0]})


def test_an_address_that_is_a_next_hop_already(lab):
    """An interface that comes: to where one router sends, and from where another sends to that."""
    one = lab.router(1)
    network = lab.ask("GET", f"/v2.0/subnets/{lab.own(one, '10.5.0.0/24')}")["subnet"]["network_id"]
    lab.route(one, (FAR, 2))  # which nobody has yet
    two = lab.ask("POST", "/v2.0/routers", {"router": {"name": "r2"}})["router"]["id"]
    lab.attach(two, port_id=lab.ask("POST", "/v2.0/ports", {"port": {"network_id": network}})["port"]["id"])
    lab.ask("PUT", f"/v2.0/routers/{two}", {"router": {"routes": [{"destination": FAR, "nexthop": "10.5.0.1"}]}})
    port = lab.port(2)
    assert "loop" in lab.attach(two, 409, port_id=port)["NeutronError"]["message"]
    assert lab.ask("GET", f"/v2.0/ports/{port}")["port"]["device_id"] == ""
    lab.attach(two, port_id=lab.port(3))


def test_loops_of_before_are_in_nobodys_way(lab, monkeypatch):
    """Until routes are set: interfaces come and go, but for what would be another loop."""
    one, two = lab.router(1), lab.router(2)
    subnet = lab.own(two, "10.8.1.0/24")
    with monkeypatch.context() as patch:
        patch.setattr(static_routes, "check_loops", lambda *_given, **_more: None)
        lab.route(one, (FAR, 2))
        lab.route(two, ("0.0.0.0/0", 1))
    other = lab.own(two, "10.7.0.0/24")
    lab.attach(one, port_id=lab.ask("POST", "/v2.0/ports", {"port": {"network_id": lab.ask(
        "GET", f"/v2.0/subnets/{lab.own(lab.router(3), '10.6.0.0/24')}")["subnet"]["network_id"]}})["port"]["id"])
    for gone in (subnet, other):
        lab.ask("PUT", f"/v2.0/routers/{two}/remove_router_interface", {"subnet_id": gone})
    lab.ask("PUT", f"/v2.0/routers/{two}", {"router": {"name": "other"}})
    assert "loop" in lab.route(two, (FAR, 1), ("10.5.0.0/16", 9), status=409)
    lab.route(two)


def test_gateways_are_next_hops_too(lab, outside, ask):
    admin = ask.as_(ADMIN)
    ids = []
    for number, project in ((5, "red"), (6, "blue")):
        made = admin("POST", "/v2.0/routers", {"router": {
            "name": f"g{number}", "project_id": project, "external_gateway_info": {
                "network_id": outside["id"], "external_fixed_ips": [{"ip_address": f"192.0.2.{number}"}]}}})
        ids.append(made["router"]["id"])
    ask.as_(BOB)("PUT", f"/v2.0/routers/{ids[1]}", {"router": {"routes": [
        {"destination": FAR, "nexthop": "192.0.2.5"}]}})
    body = {"router": {"routes": [{"destination": FAR, "nexthop": "192.0.2.6"}]}}
    said = ask("PUT", f"/v2.0/routers/{ids[0]}", body, 409)["NeutronError"]["message"]
    assert "a router of another project" in said
    assert ids[1] not in said
    assert "192.0.2.5" not in said
    assert ids[1] in admin("PUT", f"/v2.0/routers/{ids[0]}", body, 409)["NeutronError"]["message"]
    body["router"]["routes"][0]["destination"] = "10.8.0.0/15"  # of which only the other project's router knows a part
    said = ask("PUT", f"/v2.0/routers/{ids[0]}", body, 409)["NeutronError"]["message"]
    assert said.startswith("Some packets to 10.8.0.0/15 would go round")
    assert FAR not in said
    assert f"Packets to {FAR} would" in admin("PUT", f"/v2.0/routers/{ids[0]}", body, 409)["NeutronError"]["message"]
    refused = admin("POST", "/v2.0/routers", {"router": {"external_gateway_info": {
        "network_id": outside["id"], "external_fixed_ips": [{"ip_address": "192.0.2.7"}]},
        "routes": [{"destination": FAR, "nexthop": "192.0.2.7"}]}}, 400)
    assert "address of the router itself" in refused["NeutronError"]["message"]


def test_ipv6(lab):
    six = lab.ask("POST", "/v2.0/subnets", {"subnet": {
        "network_id": lab.net, "cidr": "fd00:1::/64", "ip_version": 6}})["subnet"]["id"]
    routers = []
    for number in (1, 2):
        id = lab.ask("POST", "/v2.0/routers", {"router": {"name": f"r{number}"}})["router"]["id"]
        lab.attach(id, port_id=lab.ask("POST", "/v2.0/ports", {"port": {"network_id": lab.net, "fixed_ips": [
            {"subnet_id": six, "ip_address": f"fd00:1::{number}0"}]}})["port"]["id"])
        routers.append(id)

    def route(router: str, by: str, status: int | None = None) -> dict:
        return lab.ask("PUT", f"/v2.0/routers/{router}", {"router": {"routes": [
            {"destination": "fd00:9::/32", "nexthop": by}]}}, status)

    route(routers[0], "fd00:1::20")
    assert "loop" in route(routers[1], "fd00:1::10", 409)["NeutronError"]["message"]


def test_it_is_followed_so_far_and_no_farther(lab, monkeypatch):
    monkeypatch.setattr(static_routes, "DEPTH", 2)
    one, two, three = (lab.router(number) for number in (1, 2, 3))
    lab.route(three, (FAR, 9))
    lab.route(two, (FAR, 3))
    assert "more than 2 routers one after another" in lab.route(one, (FAR, 2), status=409)
    assert lab.routes(one) == []


def test_what_has_no_routes_costs_nothing_more(lab, service):
    asked: list[str] = []
    event.listen(service.database.engine, "before_cursor_execute",
                 lambda _connection, _cursor, statement, *_rest: asked.append(statement))

    def followed() -> int:
        found = sum("JOIN routers" in one for one in asked)
        asked.clear()
        return found

    one, two = lab.router(1), lab.router(2)
    lab.own(one, "10.1.0.0/24")
    lab.ask("PUT", f"/v2.0/routers/{one}", {"router": {"name": "other", "routes": []}})
    assert followed() == 0
    lab.route(one, (FAR, 2))
    assert followed() == 1
    lab.ask("PUT", f"/v2.0/routers/{one}", {"router": {"name": "another"}})
    assert followed() == 0
    lab.route(two, ("10.8.0.0/16", 1))  # whose other routes lead elsewhere
    assert followed() == 1


def test_the_external_networks_own_subnet_is_no_place_for_an_interface(ask, outside):
    admin = ask.as_(ADMIN)
    router = admin("POST", "/v2.0/routers", {"router": {"name": "r", "external_gateway_info": {
        "network_id": outside["id"]}}})["router"]["id"]
    (subnet,) = admin("GET", f"/v2.0/subnets?network_id={outside['id']}")["subnets"]
    refused = admin("PUT", f"/v2.0/routers/{router}/add_router_interface", {"subnet_id": subnet["id"]}, 400)
    assert f"network {outside['id']} is external" in refused["NeutronError"]["message"]


def test_a_network_with_interfaces_does_not_become_external(ask):
    admin = ask.as_(ADMIN)
    network = admin("POST", "/v2.0/networks", {"network": {
        "name": "n", "provider:network_type": "flat", "provider:physical_network": "p"}})["network"]["id"]
    subnet = admin("POST", "/v2.0/subnets", {"subnet": {"network_id": network, "cidr": "10.1.0.0/24"}})["subnet"]
    router = admin("POST", "/v2.0/routers", {"router": {"name": "r"}})["router"]["id"]
    admin("PUT", f"/v2.0/routers/{router}/add_router_interface", {"subnet_id": subnet["id"]})
    refused = admin("PUT", f"/v2.0/networks/{network}", {"network": {"router:external": True}}, 409)
    assert "while routers have interfaces in it" in refused["NeutronError"]["message"]
    admin("PUT", f"/v2.0/routers/{router}/remove_router_interface", {"subnet_id": subnet["id"]})
    admin("PUT", f"/v2.0/networks/{network}", {"network": {"router:external": True}})


def test_two_changes_at_once_make_no_loop(lab, service: EmbeddedNetworks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has checked its own routes before the other one's are there."""
    ids = [lab.router(number) for number in (1, 2)]
    both, done = threading.Barrier(2), []
    check = static_routes.check_static_routes
    monkeypatch.setattr(static_routes, "check_static_routes", lambda *given: (_meet(both), check(*given))[1])

    def change(at: int) -> None:
        try:
            done.append(service.resources["routers"].update(ALICE, ids[at], {"routes": [
                {"destination": FAR, "nexthop": f"10.0.0.{12 - at}"}]}))
        except MagnetarError as error:
            done.append(error)

    threads = [threading.Thread(target=change, args=(at,)) for at in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(isinstance(one, Conflict) for one in done) == [False, True], done


def _meet(both: Any) -> None:
    try:
        both.wait(0.5)
    except threading.BrokenBarrierError:  # the other one waits for this one (SQLite), or tries again
        return
