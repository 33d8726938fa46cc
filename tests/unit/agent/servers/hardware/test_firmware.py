# SPDX-License-Identifier: GPL-3.0-or-later
"""Firmware of servers on the fake: what a host lacks for it, and how long the variables of UEFI stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magnetar_core.errors import Conflict, InvalidField
from tests.support.agent.hardware import image
from tests.support.agent.pair import Pair
from tests.support.agent.server_hardware import domain
from tests.unit.agent.conftest import SMALL, Host

WRITTEN = b"what the guest told its firmware"


@pytest.mark.parametrize(("there", "hardware", "field", "lacks"), [
    ({"firmware": ("bios",), "secure_boot": False}, {"firmware": "uefi"}, "firmware", "a UEFI firmware that libvirt"),
    ({"secure_boot": False}, {"firmware": "uefi", "secure_boot": "required"}, "secure_boot",
     "a UEFI firmware with secure boot")], ids=str)
def test_what_the_host_cannot_give_is_refused_with_what_it_lacks(
        host: Host, there: dict[str, Any], hardware: dict[str, str], field: str, lacks: str) -> None:
    vars(host.fake).update(there)
    with pytest.raises(InvalidField, match=f"which lacks {lacks}.* ovmf has it. Install it") as refused:
        host.server(hardware=hardware)
    assert refused.value.details["field"] == f"hardware.{field}"
    assert host.agent.host.documents.find("server", "web1") is None


@pytest.mark.parametrize(("can", "machine", "name"), [
    (True, "q35", "uefi.secure"), (True, "pc", "uefi"), (False, "q35", "uefi")])
def test_secure_boot_that_is_optional_is_had_where_it_can_be(host: Host, can: bool, machine: str, name: str) -> None:
    host.fake.secure_boot = can
    host.server(hardware={"firmware": "uefi", "secure_boot": "optional"}, machine=machine)
    assert (domain(host).findtext("os/nvram") or "").endswith(f"/{name}")


def test_the_variables_of_uefi_stay_until_the_server_goes(host: Host) -> None:
    want = {"hardware": {"firmware": "uefi"}, **image(host)}
    host.server(**want)
    variables = Path(domain(host).findtext("os/nvram") or "")
    variables.write_bytes(WRITTEN)
    host.ensure("server", "web1", {"power": "off"})
    host.ensure("server", "web1", {"power": "running"})
    host.ensure("server", "web1", {"flavor": {**SMALL, "ram": 128}}, allow_reboot=True)
    host.ensure("server", "web1", {"user_data": "YQ=="}, on_immutable="rebuild")
    assert variables.read_bytes() == WRITTEN
    host.ensure("server", "web1", None)
    assert not variables.exists()


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_the_variables_of_uefi_move_with_the_server(pair: Pair, kind: str) -> None:
    id = pair.make(hardware={"firmware": "uefi"})
    there = [host.agent.host.settings.state_dir / "servers" / id / "uefi" for host in (pair.one, pair.two)]
    there[0].write_bytes(WRITTEN)
    pair.migrate(type=kind)
    pair.check(id, pair.two)
    assert there[1].read_bytes() == WRITTEN and not there[0].exists()
    assert str(there[1]) in pair.two.fake.xml(id)


def test_a_host_without_the_firmware_is_no_target(pair: Pair) -> None:
    pair.make(hardware={"firmware": "uefi", "secure_boot": "optional"})
    pair.two.fake.secure_boot = False
    with pytest.raises(Conflict, match=r"hardware secure_boot \(required\) cannot be had on the target, which lacks"):
        pair.migrate(type="live")
    pair.two.fake.firmware = ("bios",)
    with pytest.raises(Conflict, match=r"hardware firmware \(uefi\) cannot be had on the target"):
        pair.migrate(type="cold")
    assert pair.one.fake.domains()
