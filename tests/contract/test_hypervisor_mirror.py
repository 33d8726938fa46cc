# SPDX-License-Identifier: GPL-3.0-or-later
"""Other disks for running domains, as every hypervisor gives them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from magnetar_agent.host.storage import Disk, Export, Mirror, NetworkSource
from magnetar_core.errors import Conflict, HypervisorError
from tests.support.waiting import eventually

from .place import MIB, Place


def disk(place: Place, folder: Path, name: str, format: str, size: int = 8 * MIB) -> Disk:
    """A disk beside the domain's own."""
    made = Disk(folder / name, "vdb", format, serial="first")
    place.hypervisor.make_disk(made.path, format, size)
    place.hypervisor.permit([folder, made.path])
    return made


def ready(place: Place, uuid: str) -> Mirror | None:
    """The copy, when it is complete."""
    found = place.hypervisor.mirror(uuid, "vdb")
    return found if found and found.ready else None


@pytest.mark.parametrize(("format", "size"), [("qcow2", 8 * MIB), ("raw", 8 * MIB), ("raw", 16 * MIB)], ids=str)
def test_a_domain_goes_on_with_another_disk(place: Place, format: str, size: int) -> None:
    """Device and serial number stay; later starts are with the new disk too."""
    hypervisor, spec = place.hypervisor, place.spec()
    folder, uuid = spec.disks[0].path.parent, spec.uuid
    old = disk(place, folder, "old", "qcow2")
    new = disk(place, folder, "new", format, size)
    hypervisor.define(replace(spec, disks=(*spec.disks, old)))
    hypervisor.start(uuid)
    assert hypervisor.capacity(uuid, "vdb") == 8 * MIB and hypervisor.mirror(uuid, "vdb") is None
    for _time in range(2):
        hypervisor.begin_mirror(uuid, "vdb", replace(new, serial="other"))
    with pytest.raises(Conflict, match="copied already"):
        hypervisor.begin_mirror(uuid, "vdb", disk(place, folder, "third", "qcow2"))
    found = eventually(lambda: ready(place, uuid))
    assert found.path == new.path and found.done <= found.total
    assert next(one for one in hypervisor.running(uuid).disks if one.target == "vdb").path == old.path
    hypervisor.pivot(uuid, "vdb")
    assert hypervisor.mirror(uuid, "vdb") is None and hypervisor.capacity(uuid, "vdb") in (8 * MIB, size)
    for seen in (hypervisor.running(uuid), hypervisor.domain(uuid)):
        one = next(one for one in seen.disks if one.target == "vdb")
        assert (one.path, one.format, one.serial) == (new.path, format, "first")
    if format == "qcow2":
        hypervisor.resize(uuid, "vdb", 16 * MIB)
        assert hypervisor.capacity(uuid, "vdb") == 16 * MIB
    hypervisor.destroy(uuid)
    assert hypervisor.mirror(uuid, "vdb") is None
    hypervisor.start(uuid)


@pytest.mark.parametrize("size", [8 * MIB, 16 * MIB], ids=str)
def test_a_disk_of_another_host(place: Place, size: int) -> None:
    """Served at a unix socket: a domain goes on with it, and back with its own."""
    hypervisor, spec = place.hypervisor, place.spec()
    folder, uuid = spec.disks[0].path.parent, spec.uuid
    old, far = disk(place, folder, "old", "raw", size), disk(place, folder, "far", "raw", size)
    if size > 8 * MIB:
        old = disk(place, folder, "small", "raw")
    export = Export(uuid, "far", far, folder / "nbd")
    remote = Disk(export.socket, "vdb", "raw", remote=NetworkSource("nbd", "far", export.socket))
    hypervisor.define(replace(spec, disks=(*spec.disks, old)))
    hypervisor.start(uuid)
    hypervisor.serve(export)
    try:
        hypervisor.begin_mirror(uuid, "vdb", remote)
        eventually(lambda: ready(place, uuid))
        hypervisor.pivot(uuid, "vdb")
        for seen in (hypervisor.running(uuid), hypervisor.domain(uuid)):
            assert [one.remote for one in seen.disks if one.target == "vdb"] == [remote.remote]
        if size == 8 * MIB:
            hypervisor.begin_mirror(uuid, "vdb", old)
            eventually(lambda: ready(place, uuid))
            hypervisor.pivot(uuid, "vdb")
            assert [one.path for one in hypervisor.running(uuid).disks if one.target == "vdb"] == [old.path]
    finally:
        hypervisor.destroy(uuid)
        hypervisor.unserve(uuid)


def test_a_copy_that_is_given_up(place: Place) -> None:
    """The domain keeps its disk, whether the copy is ended, or the domain is."""
    hypervisor, spec = place.hypervisor, place.spec()
    folder, uuid = spec.disks[0].path.parent, spec.uuid
    old, new = disk(place, folder, "old", "raw"), disk(place, folder, "new", "qcow2")
    hypervisor.define(replace(spec, disks=(*spec.disks, old)))
    hypervisor.end_mirror(uuid, "vdb", new.path)
    with pytest.raises(HypervisorError):
        hypervisor.begin_mirror(uuid, "vdb", new)
    hypervisor.start(uuid)
    with pytest.raises(HypervisorError):
        hypervisor.pivot(uuid, "vdb")
    hypervisor.begin_mirror(uuid, "vdb", new)
    eventually(lambda: ready(place, uuid))
    hypervisor.end_mirror(uuid, "vdb", Path("/other"))
    assert ready(place, uuid)
    for _time in range(2):
        hypervisor.end_mirror(uuid, "vdb", new.path)
    assert hypervisor.mirror(uuid, "vdb") is None
    hypervisor.begin_mirror(uuid, "vdb", new)
    hypervisor.destroy(uuid)
    hypervisor.end_mirror(uuid, "vdb", new.path)
    assert hypervisor.mirror(uuid, "vdb") is None
    hypervisor.start(uuid)
    assert hypervisor.mirror(uuid, "vdb") is None
    one = next(one for one in hypervisor.running(uuid).disks if one.target == "vdb")
    assert one.path == old.path


def test_what_cannot_be_copied(place: Place) -> None:
    """Disks of another size."""
    hypervisor, spec = place.hypervisor, place.spec()
    folder, uuid = spec.disks[0].path.parent, spec.uuid
    old = disk(place, folder, "old", "raw")
    hypervisor.define(replace(spec, disks=(*spec.disks, old)))
    hypervisor.start(uuid)

    def fails(new: Disk) -> bool:
        try:
            hypervisor.begin_mirror(uuid, "vdb", new)
        except HypervisorError:
            return True
        return bool(eventually(lambda: hypervisor.mirror(uuid, "vdb") is None))

    assert fails(disk(place, folder, "small", "raw", 4 * MIB))
    assert fails(disk(place, folder, "big", "qcow2", 16 * MIB))
