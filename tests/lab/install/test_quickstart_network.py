# SPDX-License-Identifier: GPL-3.0-or-later
"""What `./quickstart --site` ends with: a whole cloud on one host by playbooks/site.yml, whose networks are
OVN's, and servers of two projects there."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.lab import bare
from tests.support.lab.hosts import CHECKOUT, command

sys.path.insert(0, str(CHECKOUT / "tools"))
import labhosts

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.lab, pytest.mark.deep(shard="quickstart on OVN"),
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]  # fmt: skip

BOOK = "magnetar.compute.quickstart_network"


def changed(said: str) -> str:
    """How many tasks of the host changed anything, from the recap."""
    return re.findall(r"^cloud1 +: ok=\d+ +changed=(\d+)", said, re.MULTILINE)[-1]


def test_a_cloud_on_one_host(tmp_path: Path, guest_image: dict[str, Path]) -> None:
    with bare.Site(tmp_path, ["cloud1"], labhosts.cloud_groups("cloud1"), packed=["cloud1"], ovn=True,
                   **labhosts.OVN) as site:
        (host,) = site.hosts.values()
        link = host.link("ext", "eth1")
        try:
            bare.checksums(host.bridge)
            site.play("magnetar.compute.site")
            said = site.play(BOOK, "-e", f"guest_disk={guest_image['disk']}")
            assert f'"{site.machine_address} answers"' in said and "0% packet loss" in said, said
            assert changed(site.play(BOOK, "-e", f"guest_disk={guest_image['disk']}")) == "0"
            assert changed(site.play("magnetar.compute.site")) == "0"
        finally:
            command("ip", "link", "delete", link)
