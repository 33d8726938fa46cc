# SPDX-License-Identifier: GPL-3.0-or-later
"""limits and quotas: that they bind, and how many queries they are."""

import pytest

from magnetar_control.compute import quotas
from magnetar_control.compute.caller import Caller
from magnetar_core.errors import MagnetarError

from .compute import WHO

OF_RED = "/os-quota-sets/red"


def test_limits_bind_projects_and_users(compute):
    def room(who):
        return quotas.check_servers(Caller(compute.cloud, WHO[who], "req-1"), {"vcpus": 2, "ram": 512}, 1, 100)

    compute.server(user="alice")
    assert (room("alice"), room("rita")) == (9, 9)
    compute.admin.put(f"{OF_RED}?user_id=alice", {"quota_set": {"cores": 4}})
    assert (room("alice"), room("rita")) == (1, 9)
    compute.admin.put(OF_RED, {"quota_set": {"ram": 512}})
    with pytest.raises(MagnetarError) as refused:
        room("rita")
    assert (refused.value.status, refused.value.message) == (
        403, "Quota exceeded for ram: Requested 512, but already used 512 of 512 ram")


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
