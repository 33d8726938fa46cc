# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures for tests with real guests and real hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.lab import bare, guest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def guest_image() -> dict[str, Path]:
    """The tiny guest's files: keys disk, kernel, ramdisk."""
    return guest.build()


@pytest.fixture(scope="session")
def three_hosts(tmp_path_factory: pytest.TempPathFactory, guest_image: dict[str, Path]) -> Iterator[bare.Site]:
    """Three hosts (bare1 to bare3) on which the role has installed the agent, for all tests that leave them clean.

    They had libvirt and QEMU before, which saves a minute and a half.
    """
    if os.geteuid() != 0:
        pytest.skip("lab hosts need root (systemd-nspawn, overlay mounts, a bridge)")
    folder = tmp_path_factory.mktemp("three")
    given = {"disk": str(guest_image["disk"]), "pki": f"{folder}/magnetar-pki"}
    names = ["bare1", "bare2", "bare3"]
    with bare.Site(folder, names, packed=names, **given) as site:
        site.play("magnetar.compute.agents")
        yield site
