# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that will not return: its service can be removed, though servers were evacuated from it."""

import pytest

from tests.unit.control.moves.clouds import claims

from .evacuating import ENGINES

pytestmark = [ENGINES, pytest.mark.slow]


def test_a_host_that_will_not_return_is_removed(admin):
    id = admin.server(flavorRef="small")["id"]
    host = admin.host_of(id)
    admin.down(host)
    there = admin.evacuated(id)["OS-EXT-SRV-ATTR:host"]
    assert admin.call.call("DELETE", f"/v2.1/os-services/{admin.limits(host).id}", None, "2.53").status == 204
    assert admin.statuses(id) == [("evacuation", host, there, "completed")]
    assert claims(admin.cloud, id).keys() == {"server"} and admin.limits(host) is None
    del admin.cloud.hosts[host]
