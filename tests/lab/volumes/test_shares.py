# SPDX-License-Identifier: GPL-3.0-or-later
"""A guest mounts a folder of its host, writes and reads there, and is without it when the share is detached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from magnetar_core.errors import Conflict
from tests.support.lab.agent import LabAgent

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.lab

SIZES = {"vcpus": 1, "ram": 128, "disk": 1}


def test_a_guest_mounts_a_folder_of_its_host(guest_image: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "hello").write_text("from the host")
    with LabAgent(shares={"files": str(tmp_path)}, shutdown_timeout=20) as lab:
        lab.import_image("disk", guest_image["disk"])
        lab.ensure("server", "web", {"flavor": SIZES, "image": "disk", "power": "off"})
        with lab.client() as client:
            with pytest.raises(Conflict, match="has no share others"):
                client.event("server", "web", "attach_share", {"share": "others", "tag": "files"})
            answer = client.event("server", "web", "attach_share", {"share": "files", "tag": "files"})
            assert answer["path"] == str(tmp_path)
        lab.ensure("server", "web", {"power": "running"})
        lab.up("web")
        lab.sh("web", "mkdir -p /share && mount -t virtiofs files /share")
        assert lab.sh("web", "cat /share/hello").strip() == "from the host"
        lab.sh("web", "echo from the guest >/share/answer")
        assert (tmp_path / "answer").read_text() == "from the guest\n"
        with lab.client() as client, pytest.raises(Conflict, match="Stop it"):
            client.event("server", "web", "detach_share", {"tag": "files"})
        lab.ensure("server", "web", {"power": "off"})
        with lab.client() as client:
            client.event("server", "web", "detach_share", {"tag": "files"})
        lab.ensure("server", "web", {"power": "running"})
        lab.up("web", 2)
        again = lab.sh("web", "mkdir -p /share; mount -t virtiofs files /share 2>/dev/null || echo none")
        assert again.strip() == "none"
