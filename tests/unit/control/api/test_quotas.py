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


def test_queries_do_not_grow(small):
    for _at in range(5):
        small.server()
    with small.counted() as seen:
        small.alice.get("/limits")
    assert len(seen) == 4
