# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of a dead host is built anew on another, with its ports, volumes and name; what is left on the old one goes
when that returns."""

import pytest

from tests.unit.control.moves.clouds import claims, row

from .evacuating import ENGINES

pytestmark = ENGINES


@pytest.mark.parametrize(("before", "version", "after"), [
    (None, "2.94", "ACTIVE"), (None, "2.95", "SHUTOFF"), ("os-stop", "2.94", "SHUTOFF"), ("error", "2.94", "ACTIVE")])
def test_a_server_of_a_dead_host(admin, before, version, after):
    id = admin.server(networks="auto", flavorRef="small")["id"]
    host, nics = admin.host_of(id), row(admin.cloud, id).interfaces
    if before == "os-stop":
        assert admin.call.act(id, before).status == 202
        admin.call.settled(id)
    elif before:
        assert admin.call.act(id, "os-resetState", {"state": "error"}).status == 202
    admin.down(host)
    server = admin.evacuated(id, version)
    there = server["OS-EXT-SRV-ATTR:host"]
    assert (server["status"], server.get("fault")) == (after, None) and there != host
    assert admin.statuses(id) == [("evacuation", host, there, "done")]
    assert claims(admin.cloud, id) == {"server": (there, (1, 128, 1)), "migration": (host, (1, 128, 1))}
    assert row(admin.cloud, id).interfaces == nics
    assert [(one["host"], one["port_state"]) for one in admin.cloud.services.network.ports(id)] == [(there, "ACTIVE")]
    assert admin.cloud.kvm[there].runs(id) is (after == "ACTIVE")
    admin.up(host)
    admin.clean(id, there)
    assert admin.statuses(id) == [("evacuation", host, there, "completed")]
