# SPDX-License-Identifier: GPL-3.0-or-later
"""The contract of hypervisors: storage pools and block devices. See ``test_hypervisor``."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar_agent.host import zeros
from magnetar_agent.host.storage import Disk
from magnetar_agent.link.rpc import Rpc
from magnetar_agent.migrations import transfer
from magnetar_core.errors import Conflict, HypervisorError, NoSpace

from .place import MIB, LibvirtOutside, Place


def test_a_storage_pool(place: Place) -> None:
    hypervisor, pool = place.hypervisor, f"{place.prefix}-pool"
    with pytest.raises(Conflict, match="has no storage pool"):
        hypervisor.check_pool(pool)
    folder = place.outside.pool(pool, 16 * MIB)
    hypervisor.check_pool(pool)
    total, free = hypervisor.pool_room(pool)
    assert 12 * MIB < free <= total <= 16 * MIB
    assert hypervisor.contents(pool) == {} and hypervisor.content(pool, "one") is None
    hypervisor.make_content(pool, "one", 4 * MIB)
    with pytest.raises(Conflict, match="has content called one already"):
        hypervisor.make_content(pool, "one", 4 * MIB)
    found = hypervisor.content(pool, "one")
    assert found is not None and found.size == 4 * MIB and hypervisor.contents(pool) == {"one": found}
    assert (found.disk.format, found.disk.target, found.disk.path) == ("raw", "", folder / "one")
    for _time in range(2):
        hypervisor.grow_content(pool, "one", 8 * MIB)
    hypervisor.grow_content(pool, "one", 4 * MIB)
    assert hypervisor.content(pool, "one").size == 8 * MIB
    with pytest.raises(HypervisorError, match="gone"):
        hypervisor.grow_content(pool, "two", 8 * MIB)
    with pytest.raises(NoSpace):
        hypervisor.make_content(pool, "two", 64 * MIB)
    assert list(hypervisor.contents(pool)) == ["one"] and hypervisor.content(pool, "one").size == 8 * MIB
    (folder / "other").write_bytes(bytes(MIB))  # another host's
    assert hypervisor.content(pool, "other").size == MIB
    assert hypervisor.pool_room(pool)[1] <= free
    for wipe in (0, MIB, None):
        hypervisor.remove_content(pool, "one", wipe)
    assert list(hypervisor.contents(pool)) == ["other"]


@pytest.mark.parametrize(("wipe", "zeros"), [(0, 4 * MIB), (MIB, MIB), (8 * MIB, 4 * MIB), (None, 0)])
def test_what_is_removed_is_overwritten(place: Place, wipe: int | None, zeros: int) -> None:
    hypervisor, pool = place.hypervisor, f"{place.prefix}-pool"
    path = place.outside.pool(pool, 16 * MIB) / "one"
    hypervisor.make_content(pool, "one", 4 * MIB)
    path.write_bytes(b"x" * 4 * MIB)
    with path.open("rb") as held:
        hypervisor.remove_content(pool, "one", wipe)
        if isinstance(place.outside, LibvirtOutside):
            assert held.read() == bytes(zeros) + b"x" * (4 * MIB - zeros)
    assert not path.exists()


def test_copies_into_a_storage_pool(place: Place) -> None:
    hypervisor, pool, source = place.hypervisor, f"{place.prefix}-pool", place.folder / "source"
    place.outside.pool(pool, 16 * MIB)
    hypervisor.make_content(pool, "one", 4 * MIB)
    target = hypervisor.content(pool, "one").disk
    target.path.write_bytes(b"x" * 4 * MIB)
    source.write_bytes(b"magnetar" * 1024 + bytes(MIB))
    told: list[tuple[int, int]] = []
    hypervisor.copy_into(source, "raw", target, lambda done, total: told.append((done, total)))
    assert told and told == sorted(told) and told[-1][0] == told[-1][1]
    assert target.path.read_bytes()[:source.stat().st_size] == source.read_bytes()
    assert target.path.stat().st_size == 4 * MIB
    source.write_bytes(bytes(8 * MIB))
    with pytest.raises(HypervisorError):
        hypervisor.copy_into(source, "raw", target, lambda done, total: None)
    with pytest.raises(HypervisorError, match="nothing-here"):
        hypervisor.copy_into(place.folder / "nothing-here", "raw", target, lambda done, total: None)


@pytest.fixture
def device(place: Place) -> Iterator[Path]:
    """A block device of 16 MiB, which is not zero; for the fake a file."""
    path = place.folder / "content"
    path.write_bytes(b"\xa5" * 16 * MIB)
    if not isinstance(place.outside, LibvirtOutside):
        yield path
        return
    made = subprocess.run(["losetup", "-f", "--show", path], check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield Path(made)
    finally:
        subprocess.run(["losetup", "-d", made], check=True)


def test_a_disk_that_is_a_link_to_a_block_device(place: Place, device: Path) -> None:
    """As servers have logical volumes: filled, in a domain, copied while it runs and when it is off."""
    hypervisor, source, real = place.hypervisor, place.folder / "source", isinstance(place.outside, LibvirtOutside)
    source.write_bytes(b"magnetar" * 1024 + bytes(15 * MIB))
    hypervisor.copy_into(source, "raw", Disk(device, "", "raw", block_device=real), lambda done, total: None)
    size = source.stat().st_size
    with device.open("rb") as content:
        assert content.read(size) == source.read_bytes()
    spec = place.spec()
    link = spec.disks[0].path.with_name("link")
    link.symlink_to(device)
    disk = Disk(link, "vda", "raw", block_device=real)
    hypervisor.define(replace(spec, disks=(disk,)))
    hypervisor.start(spec.uuid)
    assert replace(hypervisor.running(spec.uuid).disks[0], tag=None) == disk
    for copy in ("runs", "off"):
        path = link.with_name(copy)
        if copy == "runs":
            hypervisor.begin_copy(spec.uuid, "vda", path)
            hypervisor.finish_copy(spec.uuid, path, lambda done, total: None)
            hypervisor.destroy(spec.uuid)
        else:
            hypervisor.copy_disk(link, "raw", path, "qcow2", lambda done, total: None)
        assert hypervisor.disk(path, "qcow2").virtual_size == 16 * MIB
        if real:
            said = subprocess.run(["qemu-img", "compare", "-f", "qcow2", "-F", "raw", path, device],
                                  capture_output=True, text=True, check=False)
            assert said.returncode == 0, said
    hypervisor.undefine(spec.uuid)


def test_zeros_in_a_block_device(place: Place, device: Path) -> None:
    if not isinstance(place.outside, LibvirtOutside):
        pytest.skip("there is no block device")
    with device.open("r+b") as file:
        assert zeros.open_file_size(file.fileno()) == 16 * MIB
        zeros.write_zeros(file.fileno(), 512, 3 * MIB + 512)  # which the kernel does
        zeros.write_zeros(file.fileno(), 5 * MIB + 1, 6 * MIB)
    assert transfer.stored_bytes(device) == 16 * MIB
    with device.open("rb") as file:
        found = file.read()
    wanted = bytearray(b"\xa5" * 16 * MIB)
    wanted[512:3 * MIB + 512], wanted[5 * MIB + 1:6 * MIB] = bytes(3 * MIB), bytes(MIB - 1)
    assert found == wanted
    source = place.folder / "source"
    source.write_bytes(os.urandom(MIB) + bytes(7 * MIB) + b"end" * 1000)
    os.truncate(source, 16 * MIB)
    near, far = (Rpc(sock) for sock in socket.socketpair())
    link = place.folder / "disk"
    link.with_name("disk.part").symlink_to(device)
    with closing(near), closing(far):  # nothing of before shines through
        sending = threading.Thread(target=transfer.send_file_frames, args=(near, source, 0, lambda _count: None))
        sending.start()
        transfer.receive_file_frames(far, link, 0, state="s", linked=True)
        sending.join(60)
        assert link.is_symlink() and device.read_bytes() == source.read_bytes()
        went: list[int] = []
        again = place.folder / "again"
        sending = threading.Thread(target=transfer.send_file_frames, args=(near, link, 0, went.append))
        sending.start()
        transfer.receive_file_frames(far, again, 0)
        sending.join(60)
    assert again.read_bytes() == source.read_bytes() and sum(went) == 16 * MIB
    assert again.stat().st_blocks * 512 < 4 * MIB  # zeros of a device are not sent
