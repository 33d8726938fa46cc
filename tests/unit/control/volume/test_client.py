# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfers of volumes as OpenStack's own client commands them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients import Clients, play, story
from tests.support.control.cloud import Cloud

pytestmark = pytest.mark.slow


def test_volumes_go_to_another_project(tmp_path: Path) -> None:
    with Cloud(hosts=1) as cloud:
        text = (Path(cloud.parts.settings.state_dir) / "clouds.yaml").read_text()
        (tmp_path / "clouds.yaml").write_text(text.replace("127.0.0.1:8774", f"127.0.0.1:{cloud.port}"))
        wrong = play(Clients(tmp_path / "clouds.yaml", tmp_path), story("volume_transfers"))
    assert not wrong, "\n\n".join(wrong)
