# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures of guests and of the host: the same cases against the fake and, marked ``lab``, this host's libvirt."""

from __future__ import annotations

import re
import uuid as uuids
from dataclasses import replace

import pytest

from magnetar_agent.host.hypervisor import DISK_COUNTERS, NIC_COUNTERS
from magnetar_agent.host.networks import NetworkSpec, Nic
from magnetar_core.errors import Conflict

from .place import Place

MAC = "52:54:00:00:0f:01"


def test_what_a_guest_has_used(place: Place) -> None:
    hypervisor, name = place.hypervisor, place.prefix
    hypervisor.make_network(NetworkSpec(str(uuids.uuid4()), name, "isolated", name[:14], "192.168.218.1", 24))
    uuid = place.defined(vcpus=2, nics=(Nic(MAC, network=name),))
    assert hypervisor.statistics(uuid) is None
    hypervisor.start(uuid)
    found = hypervisor.statistics(uuid)
    assert set(found) == {"virt_type", "uptime", "cpus", "memory", "disks", "nics"}
    assert found["virt_type"] == "qemu" and 0 <= found["uptime"] < 86400
    assert [cpu["id"] for cpu in found["cpus"]] == [0, 1] and all(cpu["time"] >= 0 for cpu in found["cpus"])
    assert found["memory"]["maximum"] == found["memory"]["actual"] == 32 * 1024 and found["memory"]["rss"] > 0
    (disk,), (nic,) = found["disks"], found["nics"]
    assert set(disk) == {"device", *DISK_COUNTERS} and disk.pop("device") == "vda"
    assert disk.pop("errors") is None and all(count >= 0 for count in disk.values())
    assert set(nic) == {"device", "mac", *NIC_COUNTERS} and nic.pop("mac") == MAC
    assert re.fullmatch(r"vnet\d+", nic.pop("device")) and all(count >= 0 for count in nic.values())
    hypervisor.pause(uuid)
    assert hypervisor.statistics(uuid)["memory"]["maximum"] == 32 * 1024
    hypervisor.destroy(uuid)
    assert hypervisor.statistics(uuid) is None and hypervisor.statistics(str(uuids.uuid4())) is None


def test_usages_of_running_guests(place: Place) -> None:
    uuid, other = place.defined(), place.spec()
    place.foreign(replace(other, title=""))
    assert uuid not in place.hypervisor.guest_usages()
    place.hypervisor.start(uuid)
    usages = place.hypervisor.guest_usages()
    assert usages[uuid].cpu_seconds >= 0 and usages[uuid].memory_kib > 1024 and other.uuid not in usages
    place.hypervisor.destroy(uuid)
    assert uuid not in place.hypervisor.guest_usages()


def test_figures_of_somebody_elses_domain_are_not_told(place: Place) -> None:
    spec = place.spec()
    place.foreign(replace(spec, title=""))
    with pytest.raises(Conflict, match="not made by Magnetar"):
        place.hypervisor.statistics(spec.uuid)


def test_uptime_of_the_host(place: Place) -> None:
    found = place.hypervisor.uptime()
    assert re.fullmatch(r"[0-2]\d:[0-5]\d:[0-6]\d", found.pop("time"))
    assert found.pop("uptime") > 0 and found.pop("users") >= 0
    assert len(found["load_average"]) == 3 and all(load >= 0 for load in found.pop("load_average")) and not found
