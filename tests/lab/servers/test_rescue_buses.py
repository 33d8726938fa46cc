# SPDX-License-Identifier: GPL-3.0-or-later
"""Rescue disks that guests boot from on USB, IDE and as a floppy, beside all of their own disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.lab.agent import LabAgent, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.lab

SIZES = {"vcpus": 1, "ram": 128, "disk": 1}
TEXT = b"booted from the floppy\r\n\0"
#: A boot sector that writes TEXT to the serial port, a character whenever that has room, and halts.
SECTOR = bytes.fromhex("fa31c08ed8be227cac84c0741288c3bafd03eca82074fbbaf80388d8eeebe9f4ebfd") + TEXT


@pytest.fixture(scope="module")
def lab(guest_image: dict[str, Path]) -> Iterator[LabAgent]:
    """An agent with a server of each machine type, and images for rescue."""
    with LabAgent(shutdown_timeout=5) as made:
        made.import_image("disk", guest_image["disk"])
        for bus in ("usb", "ide"):
            made.import_image(bus, guest_image["disk"], properties={"hw_rescue_bus": bus})
        floppy = made.folder / "floppy.raw"
        floppy.write_bytes((SECTOR.ljust(510, b"\0") + b"\x55\xaa").ljust(1440 * 1024, b"\0"))
        made.import_image("floppy", floppy, disk_format="raw", properties={"hw_rescue_device": "floppy"})
        for machine in ("q35", "pc"):
            made.ensure("server", machine, {"flavor": SIZES, "image": "disk", "machine": machine})
        for machine in ("q35", "pc"):
            made.up(machine)
        yield made


#: The others are deep: tests/cases/xml has the disks of each machine.
DEEP = pytest.mark.deep(shard="rescues of one host")


@pytest.mark.parametrize(("server", "bus"), [
    ("q35", "usb"), pytest.param("pc", "usb", marks=DEEP), pytest.param("pc", "ide", marks=DEEP)])
def test_a_disk(lab: LabAgent, server: str, bus: str) -> None:
    boots, before = lab.boots(server), lab.domain(server).XMLDesc().count("<disk ")
    lab.sh(server, "echo rescue-me | dd of=/dev/vda bs=512 seek=2000000 count=1 conv=sync,fsync")
    lab.ensure("server", server, {"rescue": {"image": bus}})
    lab.up(server, boots + 1)
    found = lab.domain(server).XMLDesc()
    assert found.count("<disk ") == before + 1 and f"bus='{bus}'" in found
    said = lab.sh(server, "dd if=/dev/vda bs=512 skip=2000000 count=1 2>/dev/null | tr -d '\\000' | head -n 1")
    assert said.startswith("rescue-me")  # its own root disk is where it was
    lab.ensure("server", server, {"rescue": None})
    lab.up(server, boots + 2)
    assert f"bus='{bus}'" not in lab.domain(server).XMLDesc()


@DEEP
@pytest.mark.parametrize("server", ["q35", "pc"])
def test_a_floppy(lab: LabAgent, server: str) -> None:
    lab.ensure("server", server, {"rescue": {"image": "floppy"}})
    eventually(lambda: TEXT.decode().strip("\r\n\0") in lab.console(server), "the boot sector speaks")
    boots = lab.boots(server)
    lab.ensure("server", server, {"rescue": None})
    lab.up(server, boots + 1)
