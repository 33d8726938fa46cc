# SPDX-License-Identifier: GPL-3.0-or-later
"""cloudbridge, unmodified, with a cloud over OVN."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control.cloud import Cloud
from tests.support.environments import python_of
from tests.support.routed_cloud import add_outside_network, routed_cloud

pytestmark = pytest.mark.slow
LIFE = Path(__file__).parents[3] / "support" / "cloudbridge_life.py"


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with routed_cloud(tmp_path / "ovn") as made:
        made.admin.image()
        add_outside_network(made)
        yield made


def test_cloudbridge_leads_a_server_through_its_life(cloud: Cloud, tmp_path: Path) -> None:
    done = subprocess.run(
        [python_of("rally"), "-P", LIFE, f"http://127.0.0.1:{cloud.port}/identity/v3", cloud.password], check=False,
        text=True, capture_output=True, cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"})
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
