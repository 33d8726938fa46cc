# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts of Debian 12 and 13 side by side: the roles install agents on both, and guests move from the older release to
the newer one, which is how hosts are upgraded. Then the roles install a control plane on Debian 13."""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.lab.bare import BareHost, LabError, Site
from tests.support.lab.fleet import HTTPS
from tests.support.lab.site_cloud import AGENTS, SETTINGS, Cloud, changes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.lab,
    pytest.mark.deep(shard="Debian 13"),  # it builds a second base image
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]

COUNT = """#!/bin/sh
( n=0; while :; do n=$((n + 1)); echo "GUEST HOST count $n" >/dev/console; sleep 1; done ) &
"""
OLDER, NEWER = "bare1", "bare2"
GROUPS = {"magnetar": {"hosts": {OLDER: {}, NEWER: {}}}, "magnetar_api": {"hosts": {NEWER: {}}},
          "magnetar_cells": {"children": {"cell1": {"hosts": {NEWER: {}}}}}}
MAKE = HTTPS.replace("hosts: bare1", "hosts: magnetar") + """
    - magnetar.compute.image: {name: tiny, filename: "{{ disk }}"}
    - magnetar.compute.flavor: {name: tiny, vcpus: 1, ram: 128, disk: 1}
    - magnetar.compute.server:
        {name: "guest-{{ inventory_hostname }}", image: tiny, flavor: tiny,
         userdata: "{{ count | replace('HOST', inventory_hostname) }}"}
"""
MOVE = HTTPS + """
    - magnetar.compute.migration: {server: guest-bare1, destination: "https://{{ hostvars['bare2'].ansible_host }}"}
"""
REMOVE = HTTPS.replace("hosts: bare1", "hosts: magnetar") + """
    - magnetar.compute.server: {name: guest-bare1, state: absent}
    - magnetar.compute.server: {name: guest-bare2, state: absent}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, guest_image: dict[str, Path]) -> Iterator[Site]:
    """A host of each release, with the OS packages of an agent."""
    folder = tmp_path_factory.mktemp("site")
    given = {"disk": str(guest_image["disk"]), "pki": f"{folder}/magnetar-pki", "count": COUNT,
             "agent_settings": {**AGENTS, "spice": False}, "api_settings": SETTINGS, "conductor_settings": SETTINGS}
    try:
        made = Site(folder, [OLDER, NEWER], packed=[OLDER, NEWER], groups=GROUPS,
                    releases={OLDER: 12, NEWER: 13}, **given)
        with made:
            yield made
    except LabError as error:
        if "debootstrap" in str(error):
            pytest.skip(f"Debian 13's packages cannot be had here: {str(error)[-300:]}")
        raise


def play(site: Site, text: str) -> str:
    """Run a playbook of this text, and return its output."""
    path = site.folder / "book.yml"
    path.write_text(text)
    return site.play(path, "-e", json.dumps({"count": COUNT}))


def counted(host: BareHost, first: str) -> int:
    """Return how far the guest that was created on *first* has counted on its console. It has started just once."""
    output = host.run(["sh", "-c", "cat /var/lib/magnetar/servers/*/console.log"], check=False).stdout
    numbers = [int(number) for number in re.findall(rf"GUEST {first} count (\d+)\s", output)]
    assert numbers == sorted(set(numbers))
    return numbers[-1] if numbers else 0


def goes_on(host: BareHost, first: str) -> int:
    """Wait until the guest that was created on *first* counts further, and return how far it is."""
    start, end = counted(host, first), time.monotonic() + 240
    while (now := counted(host, first)) <= start:
        assert time.monotonic() < end, f"the guest of {first} stands at {start} on {host.name}"
        time.sleep(0.2)
    return now


def test_the_roles_install_agents_on_both(site: Site) -> None:
    site.play("magnetar.compute.agents")
    again = site.play("magnetar.compute.agents")
    assert dict(re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", again, re.MULTILINE)) == {OLDER: "0", NEWER: "0"}
    versions = {name: host.run(["cat", "/etc/debian_version"]).stdout.split(".")[0]
                for name, host in site.hosts.items()}
    assert versions == {OLDER: "12", NEWER: "13"}
    for host in site.hosts.values():
        assert host.run(["systemctl", "is-active", "magnetar-agent"]).stdout == "active\n"


def test_guests_move_to_the_newer_release(site: Site) -> None:
    play(site, MAKE)
    before = goes_on(site.hosts[OLDER], OLDER)
    goes_on(site.hosts[NEWER], NEWER)
    play(site, MOVE)
    assert goes_on(site.hosts[NEWER], OLDER) > before
    assert counted(site.hosts[OLDER], OLDER) == 0
    play(site, REMOVE)


def test_a_control_plane_of_the_newer_release(site: Site) -> None:
    """Its own PostgreSQL and Python; it runs servers on hosts of both releases."""
    cloud = Cloud(site)
    site.play("magnetar.compute.site")
    assert changes(site.play("magnetar.compute.site")) == {OLDER: 0, NEWER: 0}
    disk = site.variables["disk"]
    cloud.ask(f"image create small --disk-format qcow2 --container-format bare --public --file {disk}")
    cloud.ask("flavor create small --vcpus 1 --ram 128 --disk 1")
    for host in (OLDER, NEWER):
        cloud.ask(f"server create on-{host} --image small --flavor small --network default "
                  f"--availability-zone nova:{host}")
    cloud.until(lambda: [row["Status"] for row in cloud.json("server list")] == ["ACTIVE"] * 2, "both are active")
    cloud.ask(f"server delete --wait on-{OLDER} on-{NEWER}")
