# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts a list of resource providers reads."""

import pytest

from magnetar_control.compute.placement.placement import Placement


@pytest.mark.parametrize(("name", "hosts"), [
    ("kvm", ["kvm"]), ("kvm_1", ["kvm", "kvm_1"]), ("kvm_1_NUMA0", ["kvm", "kvm_1"]), ("kvm2_NUMA0", ["kvm2"]),
    ("kv", []), ("_", [])])
def test_a_name_may_be_that_of_a_host_or_of_a_part(small, name, hosts):
    for host in ("kvm", "kvm_1", "kvm2"):
        small.host(host)
    assert [root.name for root in Placement(small.cloud).roots_of_name(name)] == hosts
