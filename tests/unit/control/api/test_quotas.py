# SPDX-License-Identifier: GPL-3.0-or-later
"""limits and quotas: that they bind, and how many queries they are."""

import dataclasses

import pytest

from magnetar_control.compute.accounts import quotas
from magnetar_control.compute.caller import Caller, Owner
from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.store.accounts import quotas as limits
from magnetar_core.errors import MagnetarError
from tests.support.control.queries import WANTED, furnished

from .compute import WHO

OF_RED = "/os-quota-sets/red"


def test_limits_bind_projects_and_users(compute):
    def room(who):
        return quotas.check_server_quota(Caller(compute.cloud, WHO[who], "req-1"), {"vcpus": 2, "ram": 512}, 1, 100)

    compute.server(user="alice")
    assert (room("alice"), room("rita")) == (9, 9)
    compute.admin.put(f"{OF_RED}?user_id=alice", {"quota_set": {"cores": 4}})
    assert (room("alice"), room("rita")) == (1, 9)
    compute.admin.put(OF_RED, {"quota_set": {"ram": 512}})
    with pytest.raises(MagnetarError) as refused:
        room("rita")
    assert (refused.value.status, refused.value.message) == (
        403, "Quota exceeded for ram: Requested 512, but already used 512 of 512 ram")


def test_the_limits_of_another_owner_bind(compute):
    """An administrator asks; neither the own limits nor those of the own user matter."""
    compute.admin.put(OF_RED, {"quota_set": {"cores": 6}})
    compute.admin.put(f"{OF_RED}?user_id=alice", {"quota_set": {"cores": 4}})
    caller = Caller(compute.cloud, WHO["admin"], "req-1")
    for owner, room in ((Owner("red", "alice"), 2), (Owner("red", "rita"), 3), (Owner(), 10)):
        assert quotas.check_server_quota(caller, {"vcpus": 2, "ram": 512}, 1, 100, owner=owner) == room, owner


def flavor(compute, id, **more):
    body = {"flavor": {"id": id, "name": id, "vcpus": 8, "ram": 512, "disk": 1, **more}}
    assert compute.admin.post("/flavors", body).status == 200


def test_a_resize_counts_where_the_server_is(compute):
    """An administrator asks; the quota is that of the server's project and user."""
    compute.host()
    flavor(compute, "large")
    id = compute.server(user="alice", host="kvm1")
    ask = {"resize": {"flavorRef": "large"}}
    for quota in (OF_RED, f"{OF_RED}?user_id=alice"):
        compute.admin.put(quota, {"quota_set": {"cores": 7}})
        refused = compute.admin.post(f"/servers/{id}/action", ask)
        assert refused.status == 403 and "Requested 6, but already used 2 of 7 cores" in refused.message
        compute.admin.put(quota, {"quota_set": {"cores": 8}})
    compute.admin.put("/os-quota-sets/operators", {"quota_set": {"cores": 0}})
    assert compute.admin.post(f"/servers/{id}/action", ask).status == 202


def test_a_resize_is_to_a_flavor_of_the_servers_project(compute):
    compute.host()
    flavor(compute, "secret", vcpus=1, **{"os-flavor-access:is_public": False})
    theirs, own = compute.server(host="kvm1"), compute.server(host="kvm1", project="operators")
    ask = {"resize": {"flavorRef": "secret"}}
    refused = compute.admin.post(f"/servers/{theirs}/action", ask)
    assert (refused.status, refused.message) == (400, "Flavor secret could not be found.")
    assert compute.admin.post(f"/servers/{own}/action", ask).status == 202
    granted = compute.admin.post("/flavors/secret/action", {"addTenantAccess": {"tenant": "red"}})
    assert granted.status == 200
    assert compute.admin.post(f"/servers/{theirs}/action", ask).status == 202


def test_queries_do_not_grow(small):
    for _at in range(5):
        small.server()
    with small.counted() as seen:
        small.alice.get("/limits")
    assert len(seen) == 4


def test_what_nova_resets_are_novas_limits(compute):
    """Those of other services are in the same table."""
    with compute.api.write() as connection:
        for holder in ("red", "red/alice"):
            limits.upsert_quota_rows(connection, holder, {"volumes": 3, "cores": 4})
    assert compute.admin.delete(OF_RED).status == 202
    with compute.api.read() as connection:
        assert limits.fetch_quota_limits(connection, ("red", "red/alice")) == {"red": {"volumes": 3},
                                                                               "red/alice": {"volumes": 3}}


@pytest.fixture
def networked(compute):
    """A cloud whose projects may have five ports."""
    networks = EmbeddedNetworks(compute.api, limits={"port": 5})
    networks.bootstrap()
    furnished(compute)
    compute.cloud.services = dataclasses.replace(compute.cloud.services, network=networks)
    return compute


def create(compute, **wanted):
    return compute.alice.post("/servers", {"server": {**WANTED["server"], "networks": "auto", **wanted}}, "2.60")


def test_servers_need_ports(networked):
    (net,) = networked.cloud.services.network.resources["networks"].list(WHO["admin"])
    two = [{"uuid": net["id"]}] * 2
    for wanted in ({"min_count": 6}, {"min_count": 3, "networks": two}):
        refused = create(networked, **wanted)
        assert refused.status == 403 and refused.message.startswith("Maximum number of ports exceeded"), refused
    assert create(networked, max_count=9, networks=two).status == 202  # as many as there is room for
    assert len(networked.alice.get("/servers").json["servers"]) == 2
    with networked.api.write() as connection:
        limits.upsert_quota_rows(connection, "red", {"port": 0})
    assert create(networked).status == 403
    assert create(networked, networks="none").status == 202


def test_an_interface_needs_a_port(networked):
    id = networked.server(host="kvm1")
    with networked.api.write() as connection:
        limits.upsert_quota_rows(connection, "red", {"port": 0})
    refused = networked.alice.post(f"/servers/{id}/os-interface", {"interfaceAttachment": {}})
    assert refused.status == 403 and refused.message.startswith("Maximum number of ports exceeded"), refused
    assert networked.alice.get(f"/servers/{id}").json["server"]["OS-EXT-STS:task_state"] is None


def test_a_port_more_is_one_query(networked):
    """To count, where there is a limit: limits are looked for anyway."""
    seen = []
    for networks in ("none", "auto"):
        create(networked, networks=networks)
        with networked.counted() as asked:
            create(networked, networks=networks)
        seen.append(len([one for _name, one in asked if "quotas" in one or "count" in one]))
    assert seen[1] - seen[0] == 1
