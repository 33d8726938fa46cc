# SPDX-License-Identifier: GPL-3.0-or-later
"""After a boot of the host, servers of a cloud wait for its word: they may have been evacuated."""

from __future__ import annotations

import pytest

from magnetar_agent.reconcile import reconcile
from magnetar_agent.reconcile.documents import CLOUD, HELD
from magnetar_core.ensure import check_permissions
from magnetar_core.errors import Conflict
from magnetar_core.kinds import Server
from magnetar_core.operations import Operation
from tests.unit.agent.conftest import Host


def asked(host: Host, name: str, **want: object) -> None:
    """A cloud asks for it."""
    reconcile.ensure_resource(host.agent.drivers, Server, name, host.said("server", name, dict(want)),
                              check_permissions({}), False, Operation("test", cloud=True))


def boots(host: Host) -> None:
    """The power was away."""
    host.agent.close()
    host.reboot()


@pytest.fixture
def cloudy(host: Host) -> Host:
    """A host with a server of a cloud, web1, and one of nobody, own."""
    host.server("own")
    asked(host, "web1", flavor={"vcpus": 1, "ram": 64})
    assert host.show()["power_state"] == "running"
    return host


def held(host: Host) -> bool:
    """Whether web1 waits."""
    document = host.agent.host.documents.find("server", "web1")
    assert document is not None and document.state[CLOUD]
    return HELD in document.state


def test_it_starts_when_the_cloud_asks_something_of_it(cloudy: Host) -> None:
    boots(cloudy)
    assert cloudy.show("own")["power_state"] == "running"
    assert (cloudy.show()["power_state"], cloudy.show()["power"]) == ("off", "running") and held(cloudy)
    cloudy.restart()  # the agent only
    assert (cloudy.show()["power_state"], cloudy.show()["power"]) == ("off", "running") and held(cloudy)
    asked(cloudy, "web1")
    assert cloudy.show()["power_state"] == "running" and not held(cloudy)


def test_nobody_else_starts_it(cloudy: Host) -> None:
    boots(cloudy)
    for power in ("running", "paused"):
        with pytest.raises(Conflict, match="belongs to a cloud"):
            cloudy.server(power=power)
    assert cloudy.show()["power_state"] == "off" and held(cloudy)


def test_a_change_that_was_cut_short_waits_too(cloudy: Host) -> None:
    document = cloudy.agent.host.documents.find("server", "web1")
    assert document is not None
    document.state["unfinished"] = True
    cloudy.agent.host.documents.write(document)
    boots(cloudy)
    assert cloudy.show()["power_state"] == "off" and held(cloudy)
    asked(cloudy, "web1")
    assert cloudy.show()["power_state"] == "running"


def test_a_restart_of_the_agent_or_of_libvirt_holds_nothing(cloudy: Host) -> None:
    cloudy.restart()
    cloudy.fake.disconnect()
    cloudy.fake.reconnect()
    cloudy.settled()
    assert cloudy.show()["power_state"] == "running" and not held(cloudy)


def test_one_that_stays_off_after_a_boot_is_off(cloudy: Host) -> None:
    asked(cloudy, "web1", resume_on_host_boot=False)
    boots(cloudy)
    assert (cloudy.show()["power"], held(cloudy)) == ("off", False)
