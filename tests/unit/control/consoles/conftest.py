# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud with consoles."""

from __future__ import annotations

import pytest

from tests.unit.control.moves.clouds import flavors
from tests.unit.control.moves.inside import Inside

from .sockets import nothing_open


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    """Agents in this process, over TLS; a noVNC and a spice-html5 of one file each."""
    folder = tmp_path_factory.mktemp("novnc")
    (folder / "vnc.html").write_text("<title>noVNC</title>")
    (folder / "main.js").write_text("export {};")
    with Inside(novnc_dir=str(folder), spice_dir=str(folder), console_connections=8,
                console_allowed_origins=["https://dashboard.example"], project_share=0.5) as found:
        flavors(found)
        yield found


@pytest.fixture
def server(cloud):
    """The uuid of a running server."""
    found = cloud.admin.boot(flavorRef="small")
    yield found["id"]
    cloud.admin.delete(f"/v2.1/servers/{found['id']}")
    assert cloud.admin.settled(found["id"]) is None
    nothing_open(cloud)
