# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages of two releases, from which tests start processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import machine, release, releases


@pytest.fixture(scope="module")
def previous() -> Path:
    """The packages of the previous release, as a PYTHONPATH."""
    version = list(releases.released_commits())[-1]
    tree = releases.unpack_release(version, machine.CACHE / "releases")
    if tree is None:
        pytest.skip(f"this clone has no commit of {version} (a shallow one): git fetch --unshallow")
    return tree


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of this checkout with its version, as a PYTHONPATH."""
    return releases.link_packages(releases.ROOT, tmp_path_factory.mktemp("current"), release.release_version())
