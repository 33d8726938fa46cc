# SPDX-License-Identifier: GPL-3.0-or-later
"""Candidates of one host with many devices: what there is for all groups is found, however many ways there are to
choose."""

from __future__ import annotations

from itertools import islice

import orjson
import pytest

from magnetar_control.compute.placement.candidates import CandidateRequest, RequestGroup, _candidates_of_tree
from magnetar_control.compute.placement.provider_tree import Provider
from magnetar_control.store.claims.allocations import Ratios
from magnetar_control.store.hosts.host_row import HostRow

GPU, DEVICES = "CUSTOM_GPU", 16


@pytest.fixture
def root() -> Provider:
    """A host of one GPU at each of sixteen addresses."""
    inventories = {GPU: {"total": 1, "reserved": 0, "max_unit": 1}}
    info = {"providers": [{"name": f"0000:{at:02x}:00.0", "parent": "", "traits": [], "held": {},
                           "inventories": inventories} for at in range(DEVICES)]}
    row = HostRow.of_values({"id": "1", "name": "kvm1", "info": orjson.dumps(info), "generation": 1})
    return Provider(row, [], Ratios(), {})


@pytest.mark.parametrize("groups", [1, 2, 6, 8, DEVICES])
def test_a_group_for_each_device(root: Provider, groups: int) -> None:
    """As Nova asks for PCI devices: they may be of one provider, and none has two."""
    wanted = CandidateRequest([RequestGroup(str(at), {GPU: 1}) for at in range(groups)])
    found = list(islice(_candidates_of_tree(root, wanted), 3))
    assert len(found) == 3
    for one in found:
        assert len(one.held) == groups and all(held == {GPU: 1} for held in one.held.values())


def test_more_groups_than_devices(root: Provider) -> None:
    wanted = CandidateRequest([RequestGroup(str(at), {GPU: 1}) for at in range(DEVICES + 1)])
    assert list(_candidates_of_tree(root, wanted)) == []
