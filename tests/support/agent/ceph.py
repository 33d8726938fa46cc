# SPDX-License-Identifier: GPL-3.0-or-later
"""Fake hosts that have one pool of Ceph together, in which the disks of their servers are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from magnetar_core.errors import HypervisorError

from .pair import Kvm

#: The agent's pools; the first one is for disks.
POOLS: Mapping[str, Any] = {"ceph": {"type": "rbd", "libvirt_pool": "rbd0"},
                            "vg": {"type": "lvm", "libvirt_pool": "vg0"}}
#: Bytes of an image that tests look at.
START = 16384
SETTINGS: Mapping[str, Any] = {"pools": POOLS, "root_pool": "ceph", "root_format": "rbd"}


def share_ceph(root: Path, hosts: Iterable[Kvm]) -> Path:
    """Give all *hosts* the pool, and start their agents anew. Return the folder with its images."""
    pool = root / "ceph" / "pool-rbd0"
    pool.mkdir(parents=True)
    for kvm in hosts:
        kvm.fake._folder = root / f"libvirt-{kvm.name}"
        kvm.fake._folder.mkdir(parents=True, exist_ok=True)
        (kvm.fake._folder / "pool-rbd0").symlink_to(pool)
        kvm.more = {**kvm.more, **SETTINGS}
        kvm.restart()
    return pool


def images_of(pool: Path, id: str) -> dict[str, bytes]:
    """The beginning and the size of a server's images, by name."""
    found = {}
    for path in pool.glob(f"{id}_*"):
        if "@" not in path.name:
            with path.open("rb") as image:
                found[path.name] = image.read(START) + str(path.stat().st_size).encode()
    return found


def owner_of(pool: Path, id: str) -> str:
    """The host that the record of a server's images names."""
    path, = pool.with_name(f"{pool.name}@notes").glob(f"{id}_*")
    return str(json.loads(path.read_text())["host"])


@contextmanager
def dead_after(kvm: Kvm, number: int) -> Iterator[list[str]]:
    """Let all calls of the host's hypervisor and of Ceph fail from the *number*-th call of Ceph on. Yields the calls
    that failed."""
    call, seen, failed = kvm.fake._call, list[str](), list[str]()

    def fails(name: str) -> Any:
        if name.startswith("rbd_"):
            seen.append(name)
        if len(seen) >= number:
            failed.append(name)
            raise HypervisorError("The host is dead.")
        return call(name)

    kvm.fake._call = fails  # type: ignore[method-assign]
    try:
        yield failed
    finally:
        del kvm.fake._call  # type: ignore[misc]
