# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfers and moves of volumes as OpenStack's own client commands them."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar_control.services import Context
from tests.support.clients import Clients, play, story
from tests.support.control.cloud import Cloud

pytestmark = pytest.mark.slow


def test_volumes_go_to_another_project(tmp_path: Path) -> None:
    with Cloud(hosts=1) as cloud:
        text = (Path(cloud.parts.settings.state_dir) / "clouds.yaml").read_text()
        (tmp_path / "clouds.yaml").write_text(text.replace("127.0.0.1:8774", f"127.0.0.1:{cloud.port}"))
        wrong = play(Clients(tmp_path / "clouds.yaml", tmp_path), story("volume_transfers"))
    assert not wrong, "\n\n".join(wrong)


def test_volumes_move_between_hosts_and_pools(tmp_path: Path) -> None:
    pools = {"fast": {"type": "dir", "path": str(tmp_path / "fast")}}
    with Cloud(hosts=2, links=True, agent={"pools": pools}, volume_pools=["default", "fast"]) as cloud:
        text = (Path(cloud.parts.settings.state_dir) / "clouds.yaml").read_text()
        (tmp_path / "clouds.yaml").write_text(text.replace("127.0.0.1:8774", f"127.0.0.1:{cloud.port}"))
        service = cloud.services.volume
        caller = Context(cloud.admin.user_id, cloud.admin.project_id, frozenset({"admin", "member"}))
        volume = service.create(caller, 1, name="data", host="kvm1")
        assert service.wait(volume["id"], 60)["host"] == "kvm1"
        wrong = play(Clients(tmp_path / "clouds.yaml", tmp_path), story("volume_moves"))
        assert not wrong, "\n\n".join(wrong)
        assert not list((tmp_path / "fast").glob("*"))
