# SPDX-License-Identifier: GPL-3.0-or-later
"""The fixture of the contract's tests."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from magnetar_agent.fake import FakeHypervisor

from .place import FakeOutside, LibvirtOutside, Place

if TYPE_CHECKING:
    from collections.abc import Iterator


def _within(folder: Path, kind: str) -> Iterator[Place]:
    if kind == "fake":
        fake = FakeHypervisor(folder)
        made = Place(fake, FakeOutside(fake), folder)
    else:
        from magnetar_agent.virt import LibvirtHypervisor

        outside = LibvirtOutside("qemu:///system")  # raises where libvirt does not run
        made = Place(LibvirtHypervisor("qemu:///system", folder, patience=4.0), outside, folder)
    try:
        yield made
    finally:
        made.outside.clean(made.prefix)
        made.hypervisor.close()


@pytest.fixture(params=["fake", pytest.param("libvirt", marks=pytest.mark.lab)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="magnetar-contract-", dir="/var/tmp"))
    try:
        folder.chmod(0o711)
        yield from _within(folder, request.param)
    finally:
        shutil.rmtree(folder)
    assert not any(thread.name.startswith("libvirt-") for thread in threading.enumerate())
