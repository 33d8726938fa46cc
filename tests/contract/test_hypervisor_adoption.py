# SPDX-License-Identifier: GPL-3.0-or-later
"""Domains of other programs on every ``LocalHypervisor``: read, marked, run and undefined, without another change."""

from __future__ import annotations

import os
import re
import uuid as uuids
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.virt.domain import tpm
from magnetar_core.errors import Conflict
from magnetar_core.power import OFF, PAUSED, RUNNING, SUSPENDED
from tests.support.agent import foreign

from .place import FakeOutside, Place


def defined(place: Place, metadata: str = foreign.OSINFO, devices: str = "", **more: Any) -> str:
    """The uuid of a domain of another program."""
    uuid, folder = str(uuids.uuid4()), place.folder / "images"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    disk = foreign.overlay(folder, f"{uuid}.qcow2")
    place.outside.define(foreign.foreign_xml(f"{place.prefix}-{uuid[:8]}", foreign.file_disk(disk) + foreign.file_disk(
        foreign.raw(folder, f"{uuid}.img"), "sda", "sata", "raw") + devices, uuid, metadata, **more))
    return uuid


def xml(place: Place, uuid: str) -> str:
    """The definition; libvirt leaves an empty element where it has removed the only note."""
    definition = place.hypervisor.definition(uuid)
    assert definition is not None
    return re.sub(r"\s*<metadata/>", "", definition.xml)


def power_on(place: Place, uuid: str, power: str) -> None:
    """Another program brings its domain into this state."""
    if isinstance(place.outside, FakeOutside):
        place.hypervisor.defined_outside(place.hypervisor.xml(uuid), power)
    elif power != OFF:
        place.outside.start(uuid)
        if power == PAUSED:
            place.outside.conn.lookupByUUIDString(uuid).suspend()


@pytest.mark.parametrize("metadata", [foreign.OSINFO, foreign.OSINFO + foreign.COCKPIT, ""], ids=["one", "two", "no"])
@pytest.mark.parametrize("power", [OFF, RUNNING, PAUSED])
def test_a_mark_changes_nothing_else(place: Place, metadata: str, power: str) -> None:
    uuid = defined(place, metadata)
    power_on(place, uuid, power)
    before, seen = xml(place, uuid), place.hypervisor.domain(uuid)
    assert not seen.owned and not seen.adopted
    for _again in range(2):
        place.hypervisor.mark(uuid)
        marked = place.hypervisor.domain(uuid)
        assert marked.owned and marked.adopted and place.hypervisor.domains()[uuid] == marked
        assert (marked.state, marked.disks, marked.nics, marked.machine) == (power, seen.disks, seen.nics, seen.machine)
    for _again in range(2):
        place.hypervisor.unmark(uuid)
        assert xml(place, uuid) == before and place.hypervisor.domain(uuid) == seen


def test_a_marked_domain_is_run_as_it_is(place: Place) -> None:
    uuid = defined(place)
    place.hypervisor.mark(uuid)
    before = xml(place, uuid)
    place.hypervisor.start(uuid)
    assert place.state(uuid) == RUNNING and place.hypervisor.statistics(uuid)["virt_type"] == "qemu"
    place.hypervisor.open_graphics(uuid, "vnc").close()
    os.close(place.hypervisor.open_serial(uuid))
    place.hypervisor.pause(uuid)
    place.hypervisor.resume(uuid)
    place.hypervisor.reboot(uuid)
    place.hypervisor.save(uuid)
    assert place.state(uuid) == SUSPENDED
    place.hypervisor.start(uuid)
    place.hypervisor.shutdown(uuid)
    place.hypervisor.destroy(uuid)
    # libvirt sorts the controllers anew when it restores a guest
    assert place.state(uuid) == OFF and sorted(xml(place, uuid).splitlines()) == sorted(before.splitlines())


def test_a_marked_domain_is_never_defined_anew(place: Place) -> None:
    uuid = defined(place)
    place.hypervisor.mark(uuid)
    before = xml(place, uuid)
    with pytest.raises(Conflict, match="adopted"):
        place.hypervisor.define(place.spec(uuid=uuid))
    assert xml(place, uuid) == before


def test_an_undefined_one_leaves_disks_and_variables(place: Place) -> None:
    variables = place.folder / "variables.fd"
    variables.write_bytes(b"v" * 4096)
    uuid = defined(place, firmware="<loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE_4M.fd</loader>"
                   f"<nvram>{variables}</nvram>")
    place.hypervisor.mark(uuid)
    paths = [disk.path for disk in place.hypervisor.domain(uuid).disks]
    place.hypervisor.undefine(uuid)
    assert place.hypervisor.domain(uuid) is None and variables.exists() and all(map(Path.exists, paths))


def test_an_undefined_one_leaves_its_tpm(place: Place) -> None:
    """Its state is not encrypted, as other programs define it, and the next definition of the domain finds it again."""
    uuid = defined(place, devices="<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>")
    place.hypervisor.mark(uuid)
    place.hypervisor.start(uuid)
    place.hypervisor.destroy(uuid)
    place.hypervisor.undefine(uuid)
    assert isinstance(place.outside, FakeOutside) or (tpm.SWTPM / uuid).is_dir()
    tpm.forget_tpm(uuid)


def test_what_cannot_be_marked(place: Place) -> None:
    ours = place.defined()
    with pytest.raises(Conflict, match="was made by Magnetar"):
        place.hypervisor.mark(ours)
    place.hypervisor.unmark(ours)
    assert place.hypervisor.domain(ours).owned
    with pytest.raises(Conflict, match="is gone"):
        place.hypervisor.mark(str(uuids.uuid4()))
    place.hypervisor.unmark(str(uuids.uuid4()))
    assert place.hypervisor.definition(str(uuids.uuid4())) is None
