# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of hosts with cards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.waiting import eventually
from tests.unit.agent.cards.made_up import netdev
from tests.unit.control.moves.clouds import remove

from .equipped import Equipped, Functions, found_nothing, free, have_told, held, serving


@pytest.fixture(scope="module")
def cloud() -> Iterator[Equipped]:
    with serving(Equipped, hosts=3) as made:
        for name in ("kvm1", "kvm3"):
            made.kvm[name].fake.cards = {f"0000:a{name[-1]}:00.0": f"CARD-{name}"}
        yield made


@pytest.fixture
def some(cloud: Equipped) -> Iterator[Functions]:
    found = Functions(cloud)
    have_told(cloud)
    yield found
    remove(cloud, found.servers)
    for id in found.made:
        assert cloud.admin.delete(f"/network/v2.0/ports/{id}").status == 204
    assert held(cloud) == {}
    eventually(lambda: found_nothing(cloud))
    assert free(cloud) == {"kvm1": 2, "kvm2": 1}
    # The next test begins with what agents have told, and nothing that came and went before they told of it.
    have_told(cloud)
    for host in cloud.parts.working.states.hosts.values():
        host.pci.freed()
        host.pci.refused()


@pytest.fixture
def more(cloud: Equipped, some: Functions) -> Functions:
    """The virtual function of kvm2 has a network device, too."""
    sysfs = cloud.kvm["kvm2"].agent.host.settings.sysfs
    if not (sysfs / "bus/pci/devices/0000:21:02.0/net").exists():
        netdev(sysfs, "0000:21:02.0", "ens1f0v0")
    told = cloud.parts.working.states.hosts["kvm2"].pci
    eventually(lambda: told.reported.get("vdpa:rp_tunnelled", {}).get("free") == 1)
    return some
