# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts a list of resource providers reads."""

import pytest
from sqlalchemy import delete

from magnetar_control.compute.placement.placement import Placement
from magnetar_control.store.engine import tables
from magnetar_control.store.hosts import hosts as stored_hosts


@pytest.mark.parametrize(("name", "hosts"), [
    ("kvm", ["kvm"]), ("kvm_1", ["kvm", "kvm_1"]), ("kvm_1_NUMA0", ["kvm", "kvm_1"]), ("kvm2_NUMA0", ["kvm2"]),
    ("kv", []), ("_", [])])
def test_a_name_may_be_that_of_a_host_or_of_a_part(small, name, hosts):
    for host in ("kvm", "kvm_1", "kvm2"):
        small.host(host)
    assert [root.name for root in Placement(small.cloud).roots_of_name(name)] == hosts


def _report(*parts, **more):
    return {"vcpus": 4, "memory_mb": 4096, "disk_gb": 40, **more, "providers": [
        {"name": part, "parent": parent, "traits": [], "held": {}, "inventories": {}} for part, parent in parts]}


def test_a_list_of_all_follows_the_reports_and_reads_new_ones_only(small, monkeypatch):
    for host in ("kvm2", "kvm1", "kvm3"):
        small.host(host)
    placement = Placement(small.cloud)

    def listed():
        shown = placement.listed_providers()
        assert shown == [(each.id, each.name, each.generation, each.parent_id, each.root_id)
                         for each in placement.providers()]
        return [provider.name for provider in shown]

    reports = {"kvm1 kvm2 kvm3": _report(), "kvm1 kvm1_A kvm2 kvm3": _report(("A", "")),
               "kvm1 kvm1_A kvm1_B kvm2 kvm3": _report(("A", ""), ("B", "A")),
               "kvm1 kvm1_B kvm1_physnet1 kvm2 kvm3": _report(("B", ""), bandwidths={
                   "physnet1": {"egress": 1000, "ingress": 1000}})}
    for names, report in reports.items():
        with small.cloud.store.api.write() as connection:
            stored_hosts.save_host_inventory(connection, "kvm1", report)
        assert listed() == names.split()
    with small.cloud.store.api.write() as connection:
        connection.execute(delete(tables.hosts).where(tables.hosts.c.name == "kvm3"))
    assert listed() == ["kvm1", "kvm1_B", "kvm1_physnet1", "kvm2"]
    monkeypatch.setattr(placement, "read_roots", None)
    assert len(placement.listed_providers()) == 4
