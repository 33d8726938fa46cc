# SPDX-License-Identifier: GPL-3.0-or-later
"""diagnostics of servers that nobody tells of."""

import pytest

from magnetar_core.errors import HypervisorDown, NotFound, TimedOut, Unreachable

from .compute import Agents, Teller


@pytest.mark.parametrize(("told", "host", "status"), [
    (Unreachable(), "kvm1", 409), (TimedOut(), "kvm1", 409), (HypervisorDown(), "kvm1", 409),
    (NotFound("There is no server 'a'.", kind="server", key="a"), "kvm1", 409),
    (NotFound("There is no /v1/server/a/diagnostics."), "kvm1", 501), ({"power_state": "running"}, None, 409)])
def test_when_nobody_tells(small, told, host, status):
    small.host("kvm1")
    small.cloud.agents = Agents(kvm1=Teller(told))
    id = small.server(host=host)
    assert small.admin.get(f"/servers/{id}/diagnostics", "2.48").status == status
