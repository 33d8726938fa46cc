# SPDX-License-Identifier: GPL-3.0-or-later
"""Extra specs and image properties that nothing on a host acts on: refused by name, or a warning in the answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_core.errors import InvalidField
from tests.support.agent.hardware import flavor, image
from tests.unit.agent.conftest import SMALL, Host

ENCRYPTED = "extra spec hw:sound_model=usb: guests have no sound"


@pytest.fixture
def lenient(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path, specs_without_effect="warn")
    made.start()
    yield made
    made.agent.close()


def test_a_flavor_of_a_spec_without_effect_makes_no_server(host: Host) -> None:
    want = flavor(host, "pinned", hw__sound_model="usb")
    for dry_run in (True, False):
        with pytest.raises(InvalidField, match="guests have no sound") as refused:
            host.ensure("server", "web1", want, dry_run=dry_run)
        assert refused.value.details["field"] == "flavor" and ENCRYPTED in refused.value.message
    want = flavor(host, "scheduled", capabilities__cpu_model="EPYC")
    with pytest.raises(InvalidField, match="only a cloud's scheduler acts on it"):
        host.ensure("server", "web1", want)
    assert host.agent.host.documents.find("server", "web1") is None


@pytest.mark.parametrize(("properties", "named"), [
    ({"hw_firmware_type": "coreboot"}, "image property hw_firmware_type=coreboot: guests boot by BIOS or UEFI"),
    ({"hw_architecture": "aarch64"}, "image property hw_architecture=aarch64: the host has i686, x86_64"),
    ({"img_hv_type": "hyperv"}, "image property img_hv_type=hyperv: the host has fake, qemu")])
def test_an_image_that_asks_for_another_machine_makes_no_server(host: Host, properties: dict[str, str],
                                                                named: str) -> None:
    want = image(host, **properties)
    with pytest.raises(InvalidField, match="image") as refused:
        host.ensure("server", "web1", want)
    assert named in refused.value.message
    assert host.agent.host.documents.find("server", "web1") is None


def test_what_acts_or_asks_for_what_there_is_passes(host: Host) -> None:
    want = {**image(host, architecture="AMD64", hw_vm_mode="hvm", os_distro="debian", img_config_drive="mandatory"),
            **flavor(host, "usual", hw__cpu_policy="shared", ours__colour="red")}
    made = host.ensure("server", "web1", want)
    assert made.resource and made.resource["config_drive"] and not made.warnings
    host.ensure("flavor", "usual", {"extra_specs": {"hw:sound_model": "usb"}})
    assert not host.ensure("server", "web1", want).changed  # it keeps what it was made with


def test_a_resize_is_refused_as_a_create_is(host: Host) -> None:
    host.server(power="off")
    with pytest.raises(InvalidField, match="guests have no sound"):
        host.ensure("server", "web1", flavor(host, "pinned", hw__sound_model="usb"))


def test_the_settings_let_it_pass_with_a_warning(lenient: Host) -> None:
    made = lenient.ensure("server", "web1", flavor(lenient, "pinned", hw__sound_model="usb"))
    assert made.changed and made.warnings == [f"What would do nothing here: flavor 'pinned', {ENCRYPTED}."]


@pytest.mark.parametrize(("sizes", "why"), [
    ({"ram": 98305}, "no more than 98304 MiB of ram: the host has 65536 MiB, and its agent's ram_allocation_ratio"),
    ({"vcpus": 257}, "no more than 256 of vcpus"), ({"disk": 100_000}, "GiB of disks"),
    ({"ephemeral": 100_000}, "GiB of disks"), ({"swap": 1 << 26}, "GiB of disks")], ids=str)
def test_what_the_host_could_never_give(host: Host, sizes: dict[str, int], why: str) -> None:
    """It is refused before anything is done, in check mode too; a resize likewise."""
    for dry_run in (True, False):
        with pytest.raises(InvalidField, match=why):
            host.ensure("server", "web1", {"flavor": {**SMALL, **sizes}}, dry_run=dry_run)
    assert host.agent.host.documents.list("server") == []
    host.server(power="off")
    with pytest.raises(InvalidField, match=why):
        host.ensure("server", "web1", {"flavor": sizes}, dry_run=True)


def test_volumes_that_no_pool_could_hold(host: Host) -> None:
    for dry_run in (True, False):
        with pytest.raises(InvalidField, match="size: must be no more than .* disk_allocation_ratio is 1"):
            host.ensure("volume", "data", {"size": 100_000}, dry_run=dry_run)
    host.ensure("volume", "data", {"size": 1})
    with pytest.raises(InvalidField, match="size: must be no more than"):
        host.ensure("volume", "data", {"size": 100_000})


def test_more_may_be_promised(tmp_path: Path) -> None:
    made = Host(tmp_path, ram_allocation_ratio=2.0, disk_allocation_ratio=1000.0, cpu_allocation_ratio=20.0)
    made.start()
    made.ensure("server", "web1", {"flavor": {"vcpus": 300, "ram": 131072, "disk": 100_000}, "power": "off"})
    made.agent.close()
