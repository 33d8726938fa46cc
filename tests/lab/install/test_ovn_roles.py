# SPDX-License-Identifier: GPL-3.0-or-later
"""The roles make a central of OVN and its hosts, change nothing the second time, and take a host out again."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.lab import bare
from tests.support.lab.agent import eventually
from tests.support.lab.hosts import LabError
from tests.support.lab.ovn import KEYS, SOUTHBOUND

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.lab, pytest.mark.deep(shard="roles of OVN"),
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]  # fmt: skip

NAMES = ("bare1", "bare2")
#: Where the control plane comes in to the southbound database.
RELAY = 6645
SITE = """
- {hosts: magnetar_network, become: true, gather_facts: false, roles: [magnetar.compute.network]}
- {hosts: magnetar, become: true, gather_facts: false, roles: [magnetar.compute.agent]}
"""
LEAVE = """
- hosts: bare2
  become: true
  gather_facts: false
  tasks: [{ansible.builtin.include_role: {name: magnetar.compute.agent, tasks_from: uninstall}}]
- hosts: magnetar_network
  become: true
  gather_facts: false
  tasks: [{ansible.builtin.include_role: {name: magnetar.compute.network, tasks_from: uninstall}}]
"""


def changed(said: str) -> dict[str, int]:
    """Changed tasks by host."""
    return {name: int(count) for name, count in re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", said, re.MULTILINE)}


def test_a_site(tmp_path: Path) -> None:
    site_file, leave_file = tmp_path / "site.yml", tmp_path / "leave.yml"
    site_file.write_text(SITE)
    leave_file.write_text(LEAVE)
    groups = {"magnetar": {"hosts": {name: {} for name in NAMES}}, "magnetar_network": {"hosts": {"bare1": {}}}}
    with bare.Site(tmp_path, NAMES, groups, packed=NAMES, ovn=True, agent_ovn=True,
                   agent_ovn_datapath="netdev") as site:  # fmt: skip
        site.play(site_file)
        assert changed(site.play(site_file)) == dict.fromkeys(NAMES, 0)
        central, other = (site.hosts[name] for name in NAMES)
        assert set(re.findall(r"^Chassis (\S+)", central.run(["ovn-sbctl", "show"]).stdout, re.MULTILINE)) == {*NAMES}
        assert f"ovn: ok - br-int, datapath netdev, {other.name}" in other.run(["magnetar", "host", "check"]).stdout
        # The control plane comes in to both databases by a CA that no host has a certificate of.
        both = ["-e", "network_northbound=true", "-e", "network_southbound=true"]
        site.play(site_file, *both)
        assert changed(site.play(site_file, *both)) == dict.fromkeys(NAMES, 0)
        own = [f"/etc/magnetar-network/northbound/{name}" for name in ("service.key", "service.pem", "ca.pem")]
        for tool, port in (("ovn-nbctl", 6641), ("ovn-sbctl", RELAY)):
            ask = [tool, "--timeout=5", "--no-leader-only", f"--db=ssl:{central.address}:{port}"]
            central.run([*ask, "-p", own[0], "-c", own[1], "-C", own[2], "show"])
            assert other.run([*ask, "-p", KEYS[0], "-c", KEYS[1], "-C", KEYS[2], "show"], check=False).returncode
        # The connection of the northbound database goes, and the unit of the southbound one: stopped, and removed.
        assert sum(changed(site.play(site_file)).values()) == 3
        assert not re.search(rf":{RELAY}\s", central.run(["ss", "-Hltn"]).stdout)
        # What is a host's to write is what its certificate says; the northbound database listens nowhere.
        sb = ["ovn-sbctl", "--timeout=20", f"--db=ssl:{central.address}:{SOUTHBOUND}", "-p", KEYS[0], "-c", KEYS[1],
              "-C", KEYS[2]]  # fmt: skip
        assert "Chassis" in other.run([*sb, "show"]).stdout
        with pytest.raises(LabError, match="permission"):
            other.run([*sb, "chassis-del", "bare1"])
        assert not re.search(r":6641\s", central.run(["ss", "-Hltn"]).stdout)
        site.play(leave_file, "-e", "network_purge=true")
        assert "ovn-remote" not in other.run(["ovs-vsctl", "get", "open_vswitch", ".", "external_ids"]).stdout
        eventually(lambda: not re.search(rf":{SOUTHBOUND}\s", central.run(["ss", "-Hltn"]).stdout), "nothing listens")
