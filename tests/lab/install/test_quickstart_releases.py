# SPDX-License-Identifier: GPL-3.0-or-later
"""`./quickstart` on a fresh machine with each supported release of Debian: the servers boot, a repetition is quick and
changes nothing, and `--down` removes everything."""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.lab.fresh_machine import CLONE, FreshMachine, fresh_machine
from tests.support.lab.hosts import PYTHON, LabError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]

RELEASES = [pytest.param(number, id=f"debian{number}", marks=pytest.mark.deep(shard=f"quickstart on Debian {number}"))
            for number in PYTHON]
#: What `--down` must remove, besides the domains and networks.
MADE = ("/opt/magnetar", "/run/magnetar", "/var/lib/magnetar", "/usr/local/bin/magnetar", f"{CLONE}/.venv",
        f"{CLONE}/.cache", *(f"/etc/systemd/system/magnetar-{name}" for name in (
            "agent.service", "serve.service", "metadata.service", "metadata.socket")))  # fmt: skip
#: Seconds that a repetition may take, where the first run took minutes.
REPEATED = 60


@pytest.fixture
def machine(release: int) -> Iterator[FreshMachine]:
    try:
        with fresh_machine(release) as made:
            yield made
    except LabError as error:
        if "debootstrap" in str(error):
            pytest.skip(f"packages of Debian {release} cannot be had here: {str(error)[-300:]}")
        raise


def quickstart(machine: FreshMachine, *options: str) -> str:
    return machine.run([f"{CLONE}/quickstart", *options], timeout=1800).stdout


def changes(output: str) -> list[str]:
    """Return how many tasks changed anything, of each playbook in the *output*."""
    return re.findall(r"^localhost +: ok=\d+ +changed=(\d+) +unreachable=0 +failed=0", output, re.MULTILINE)


def servers_of_the_cloud(machine: FreshMachine) -> dict[str, str]:
    """Return the status of each server by its name, as OpenStack's client shows it."""
    clouds = "OS_CLIENT_CONFIG_FILE=/var/lib/magnetar/control/clouds.yaml"
    shown = machine.run(["env", clouds, "OS_CLOUD=magnetar", f"{CLONE}/.venv/bin/openstack", "server", "list", "-f",
                         "json"]).stdout
    return {row["Name"]: row["Status"] for row in json.loads(shown)}


def domains(machine: FreshMachine, *words: str) -> list[str]:
    return machine.run(["virsh", "-q", "-c", "qemu:///system", *words]).stdout.split()


@pytest.mark.parametrize("release", RELEASES)
def test_a_fresh_machine(machine: FreshMachine, release: int) -> None:
    assert machine.run(["cat", "/etc/debian_version"]).stdout.startswith(f"{release}.")
    assert len(changes(quickstart(machine))) == 2
    assert servers_of_the_cloud(machine) == {"cloud-1": "ACTIVE"}
    assert len(domains(machine, "list", "--name")) == 3
    said = machine.run(["sh", "-c", "cat /var/lib/magnetar/servers/*/console.log"]).stdout
    assert {"Hello from quick-1", "Hello from quick-2"} <= {*re.findall(r"Hello from quick-\d", said)}

    began = time.monotonic()
    assert changes(quickstart(machine)) == ["0", "0"]
    assert time.monotonic() - began < REPEATED

    assert machine.exists(*MADE) == [*MADE]
    quickstart(machine, "--down")
    assert machine.exists(*MADE) == []
    assert domains(machine, "list", "--all", "--name") == []
    assert not [name for name in domains(machine, "net-list", "--all", "--name") if name != "default"]
    names = machine.run(["sh", "-c", "cat /etc/passwd /etc/group; ps -e -o args="]).stdout
    assert not re.search("magnetar|qemu-system", names.replace("cat /etc", "")), names
