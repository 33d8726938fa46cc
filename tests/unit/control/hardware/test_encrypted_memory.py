# SPDX-License-Identifier: GPL-3.0-or-later
"""Encrypted memory in a cloud: on hosts that can, as many as they have keys for. The hosts' CPUs are made up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.control.encrypted_memory import used
from tests.support.control.hardware import LIVE, act
from tests.support.control.specs import image
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import at, remove
from tests.unit.control.moves.inside import Inside

pytestmark = pytest.mark.slow
SEV = {"guests": 1, "cbitpos": 47, "reduced_phys_bits": 1}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Inside]:
    with Inside(hosts=3, host_down_after=600.0) as made:
        made.parts.working.settling = lambda: False  # type: ignore[method-assign]
        made.admin.flavor("hidden", {"hw:mem_encryption": "true"})
        made.admin.flavor("plain")
        yield made


def test_all_of_it(cloud: Inside) -> None:
    caller, efi = cloud.admin, image(cloud.admin, "efi", hw_firmware_type="uefi")

    def refused(**more: Any) -> str:
        body = {"name": "odd", "flavorRef": "hidden", "networks": "none", "imageRef": efi, **more}
        reply = caller.post("/v2.1/servers", {"server": body}, "2.60")
        assert reply.status == 400, reply
        return str(reply.json["badRequest"]["message"])

    assert "no host here has a CPU that encrypts it" in refused()
    hiding = image(caller, "hiding", hw_firmware_type="uefi", hw_mem_encryption="true")
    assert "no host here has a CPU that encrypts it" in refused(flavorRef="plain", imageRef=hiding)
    for name in ("kvm2", "kvm3"):
        cloud.kvm[name].fake.memory_encryption, cloud.kvm[name].fake._kvm = {"amd-sev": SEV}, True
    eventually(lambda: used(cloud) == {"kvm2": (1, 0), "kvm3": (1, 0)})
    assert "needs firmware uefi" in refused(imageRef=image(caller, "bios"))
    eventually(lambda: all("memory_encryption" in cloud.parts.working.states.hosts[name].profile.capabilities
                      for name in ("kvm2", "kvm3")))
    made = [caller.boot(f"s{number}", flavorRef=flavor, imageRef=ref, networks="none")
            for number, (flavor, ref) in enumerate((("hidden", efi), ("plain", hiding), ("hidden", efi)))]
    assert [one["status"] for one in made] == ["ACTIVE", "ACTIVE", "ERROR"], made
    assert used(cloud) == {"kvm2": (1, 1), "kvm3": (1, 1)}
    assert {next(iter(at(cloud, one["id"]))) for one in made[:2]} == {"kvm2", "kvm3"}
    for action, args in (("os-migrateLive", LIVE), ("suspend", None)):
        reply = caller.act(made[1]["id"], action, args)
        assert reply.status == 409 and "which has encrypted memory (hw:mem_encryption)" in str(reply.json), reply
    reply = caller.act(made[1]["id"], "rebuild", {"imageRef": efi})
    assert reply.status == 400 and "memory is encrypted, and with what, cannot be changed" in str(reply.json)
    other = image(caller, "other", hw_firmware_type="uefi", hw_mem_encryption_model="amd-sev-es")
    reply = caller.act(made[0]["id"], "rebuild", {"imageRef": other})
    assert reply.status == 400 and "memory is encrypted, and with what, cannot be changed" in str(reply.json), reply
    act(caller, made[0]["id"], "reboot", {"type": "HARD"}, "ACTIVE")
    remove(cloud, [one["id"] for one in made])
    assert used(cloud) == {"kvm2": (1, 0), "kvm3": (1, 0)}
