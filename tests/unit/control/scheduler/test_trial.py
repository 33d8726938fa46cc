# SPDX-License-Identifier: GPL-3.0-or-later
"""Trials: servers are placed in memory as the scheduler would, and everything is taken back."""

from random import Random

import pytest

from magnetar_control.scheduler.trial import Trial
from magnetar_control.store.claims.allocations import Amounts
from magnetar_core.hardware.numa import numa_needs

from .fleet import plainly, request, row, states, told_cell

SIZES = [Amounts(1, 1024, 10), Amounts(2, 4096, 20), Amounts(4, 16384, 40), Amounts(8, 40000, 100)]


def tried(hosts, requests):
    """Place *requests*; each place is one that the filters allow then, and none only if they allow none."""
    trial, places = Trial(hosts, {}), []
    for spec in requests:
        allowed = {name for _weight, name in plainly(hosts, spec)}
        place = trial.place(spec)
        assert place in allowed if allowed else place is None
        places.append(place)
    return trial, places


@pytest.mark.parametrize("seed", range(4))
def test_places_are_those_that_the_filters_allow(seed):
    random = Random(seed)
    hosts = states(*(row(f"kvm{at}", memory_mb_used=random.randint(0, 90000), vcpus_used=random.randint(0, 200))
                     for at in range(40)), down={"kvm3", "kvm4"})
    before = {name: host.numbers for name, host in hosts.hosts.items()}
    trial, places = tried(hosts, [request(server_id=f"s{at}", amounts=random.choice(SIZES),
                                          ignored=frozenset(["kvm0"])) for at in range(200)])
    assert None in places and len({*places}) > 5 and not {*places} & {"kvm0", "kvm3", "kvm4"}
    trial.undo()
    assert {name: host.numbers for name, host in hosts.hosts.items()} == before
    assert [trial.place(request(amounts=SIZES[0], ignored=frozenset([name]))) == name for name in before] == [
        False] * len(before)


def test_numa_cells_and_devices_are_taken_and_given_back():
    info = {"numa_cells": [told_cell(0, "4-5")], "pcpus": 2,
            "pci_devices": {"gpu": {"total": 1, "free": 1}}}
    hosts = states(row("kvm1", info=info, pcpus=2))
    pinned = request(amounts=Amounts(0, 1024, 10, 2), numa=numa_needs({"cpu_policy": "dedicated"}, 2, 1024))
    device = request(devices={"gpu": 1})
    trial = Trial(hosts, {})
    for spec in (pinned, device):
        for _round in range(2):
            assert trial.place(spec) == "kvm1"
            assert trial.place(spec) is None
            trial.undo()


def test_the_reason_names_the_filters():
    trial = Trial(states(row("kvm1"), row("kvm2", memory_mb_used=98000)), {})
    spec = request(amounts=SIZES[1], ignored=frozenset(["kvm1"]))
    assert trial.place(spec) is None
    assert "RamFilter 1" in trial.why_not(spec) and "RetryFilter 1" in trial.why_not(spec)
