# SPDX-License-Identifier: GPL-3.0-or-later
"""Virtual GPUs in a cloud that flavors ask for in groups, by a trait of their device. The hosts' sysfs is made up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.agent.mdevs import A, B, gpu
from tests.unit.control.moves.clouds import at, remove
from tests.unit.control.moves.inside import Inside

pytestmark = pytest.mark.slow


class Equipped(Inside):
    """A slow device on each host, and a fast one with one part on kvm2."""

    def agent_of(self, name: str) -> dict[str, Any]:
        sysfs = self.folder / f"{name}-sys"
        gpu(sysfs, A, small=1)
        if name == "kvm2":
            gpu(sysfs, B, large=1)
        return {"sysfs": sysfs, "enabled_mdev_types": [
            {"type": "large", "address": B, "traits": "fast"}, {"type": "small", "address": A}]}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Equipped]:
    with Equipped(hosts=2, host_down_after=600.0) as made:
        made.parts.working.settling = lambda: False  # type: ignore[method-assign]
        for name, specs in (("any", {"resources1:VGPU": "1"}),
                            ("fast", {"resources1:VGPU": "1", "trait1:CUSTOM_FAST": "required"}),
                            ("none", {"resources1:VGPU": "1", "trait1:CUSTOM_NONE": "required"})):
            made.admin.flavor(name, specs)
        made.admin.image()
        yield made


def test_groups(cloud: Equipped) -> None:
    made: dict[str, dict[str, Any]] = {}

    def boot(name: str, flavor: str, status: str = "ACTIVE") -> dict[str, Any]:
        made[name] = cloud.admin.boot(name, flavorRef=flavor, networks="none")
        assert made[name]["status"] == status, made[name]
        return made[name]

    def parent(name: str) -> tuple[str, str]:
        [(host, found)] = at(cloud, made[name]["id"]).items()
        return host, found["mdev"]["parent"]

    boot("first", "fast")
    assert parent("first") == ("kvm2", B)
    lacking = boot("second", "fast", "ERROR")["fault"]
    assert "a free virtual GPU of a device with trait CUSTOM_FAST: 0 of 1 are free" in str(lacking), lacking
    boot("none", "none", "ERROR")
    boot("third", "any")
    boot("fourth", "any")
    assert {parent("third"), parent("fourth")} == {("kvm1", A), ("kvm2", A)}
    boot("fifth", "any", "ERROR")
    remove(cloud, [made["first"]["id"]])
    boot("sixth", "any")
    assert parent("sixth") == ("kvm2", B)
    remove(cloud, [one["id"] for name, one in made.items() if name != "first"])
