# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures for tests with real guests and real hosts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import guest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lab: starts real guests or lab hosts (QEMU, libvirt, systemd-nspawn)")


@pytest.fixture(scope="session")
def guest_image() -> dict[str, Path]:
    """The tiny guest's files: keys disk, kernel, ramdisk."""
    return guest.build()
