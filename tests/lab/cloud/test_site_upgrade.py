# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of two cells is upgraded under running guests by one playbook; a release that fails is taken back.

The tests of this file are one story and run in its order.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.lab.bare import Site
from tests.support.lab.site_cloud import AGENTS, SETTINGS, Cloud, changes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.lab,
    pytest.mark.deep(shard="upgrades of the control plane"),  # test_site.py installs a release, and plays it twice
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]

#: Each has a cell's database and conductor, a the API as well; both are compute hosts.
GROUPS = {
    "magnetar_api": {"hosts": {"a": {}}},
    "magnetar_cells": {"children": {"cell1": {"hosts": {"a": {}}}, "cell2": {"hosts": {"b": {}}}}},
    "magnetar": {"hosts": {"a": {"magnetar_cell": "cell1"}, "b": {"magnetar_cell": "cell2"}}},
}
UPGRADE = "magnetar.compute.upgrade"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, guest_image: dict[str, Path]) -> Iterator[Cloud]:
    given = {"api_settings": SETTINGS, "conductor_settings": SETTINGS, "agent_settings": AGENTS}
    with Site(tmp_path_factory.mktemp("upgraded"), tuple("ab"), groups=GROUPS, packed=tuple("ab"), **given) as site:
        made = Cloud(site)
        site.play("magnetar.compute.site")
        made.ask(f"image create tiny --disk-format qcow2 --container-format bare --file {guest_image['disk']}")
        made.ask("flavor create tiny --vcpus 1 --ram 128 --disk 1")
        for host in ("a", "b"):
            made.ask(f"server create --wait on-{host} --image tiny --flavor tiny --network default "
                     f"--availability-zone nova:{host}")
        yield made
        made.ask("server delete --wait on-a on-b")


def test_upgrade_of_the_control_plane(cloud: Cloud) -> None:
    cloud.site.raise_version("0.99.0")
    before = cloud.release("b")
    assert changes(cloud.site.play(UPGRADE, "--check", "--limit", "b"))["b"] > 0
    assert cloud.release("b") == before
    began = time.monotonic()
    cloud.site.play(UPGRADE)
    print(f"\nsite: agents, API and conductors upgraded in {time.monotonic() - began:.1f} s")
    for name in ("a", "b"):
        assert cloud.hosts[name].run(["magnetar-control", "version"]).stdout == "0.99.0\n"
        assert cloud.hosts[name].run(["magnetar", "version"]).stdout == "0.99.0\n"
    assert {row["Status"] for row in cloud.json("server list")} == {"ACTIVE"}
    cloud.until(lambda: {row["State"] for row in cloud.json("compute service list")} == {"up"}, "services are up")


def test_a_release_that_fails_is_taken_back(cloud: Cloud) -> None:
    """Its conductor does not come up."""
    source = cloud.site.collection / "control/magnetar_control/serve.py"
    good, before = source.read_text(), cloud.release("b")
    source.write_text(good + "\nraise SystemExit('this release is broken')\n")
    try:
        said = cloud.site.play(UPGRADE, "--limit", "b", good=False)
    finally:
        source.write_text(good)
    assert "The release before is back in use" in said.replace("\n", " ")
    assert cloud.release("b") == before
    cloud.until(lambda: {row["State"] for row in cloud.json("compute service list")} == {"up"}, "services are up")
    assert {row["Status"] for row in cloud.json("server list")} == {"ACTIVE"}
