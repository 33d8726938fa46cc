# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts with PCI devices: the heaviest that has them is chosen, and no more are looked at than needed."""

from random import Random

import pytest

from magnetar_control.scheduler.choose import NoValidHost, choose_hosts
from magnetar_control.scheduler.pci import HostPci

from .fleet import plainly, request, row, states


def a_host(name, total, free, **more):
    pools = [{"aliases": ["gpu"], "numa_node": -1, "total": total, "free": free}]
    return row(name, info={"pci_devices": {"gpu": {"total": total, "free": free}}, "pci_pools": pools} if total else {},
               **more)


@pytest.fixture
def looked_at(monkeypatch):
    """How many hosts' devices are looked at."""
    seen, plain = [], HostPci.lacks
    monkeypatch.setattr(HostPci, "lacks", lambda *args: seen.append(1) or plain(*args))
    return seen


@pytest.mark.parametrize("seed", range(5))
def test_of_many_hosts_one_is_chosen_whenever_one_fits(seed, looked_at):
    chance, rows = Random(seed), []
    for at in range(300):
        total = chance.choice((0, 2, 4))
        rows.append(a_host(f"kvm{at:03}", total, chance.randrange(total + 1), memory_mb_used=chance.randrange(60000)))
    found = states(*rows)
    for _round in range(10):
        wish = request(devices={"gpu": chance.choice((1, 1, 2, 4))})
        fits = {name for _weight, name in plainly(found, wish)}
        looked_at.clear()
        chosen = choose_hosts(found, wish, 5, random=chance)
        assert {one.host for one in chosen} <= fits and len(chosen) == min(5, len(fits))
        assert len(looked_at) < 250, "those without devices are not looked at"
        found.used(chosen[0].host, wish.amounts, devices=wish.devices)


def test_a_few_of_those_that_have_them_are_looked_at(looked_at):
    """Of hosts with equal devices; before, all were looked at."""
    found = states(*(a_host(f"kvm{at:03}", 4, 4, memory_mb_used=at) for at in range(300)))
    assert [one.host for one in choose_hosts(found, request(devices={"gpu": 1}), 3)] == ["kvm000", "kvm001", "kvm002"]
    assert len(looked_at) == 3
    looked_at.clear()
    with pytest.raises(NoValidHost) as told:
        choose_hosts(found, request(devices={"gpu": 5}))
    assert told.value.refused == {"PciPassthroughFilter": 300}
