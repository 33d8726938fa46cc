# SPDX-License-Identifier: GPL-3.0-or-later
"""Three hosts, installed by the role: a server with volumes of its own host and of another goes from host to host, and
writes to them all the while. No number that it says to have written is lost, and nobody else has the volumes."""

from __future__ import annotations

import json
import os
import re
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from magnetar_core.flows.attach import detach_remote_volume
from magnetar_core.flows.migrate import Migrate, Side
from tests.support.lab.fleet import DEEP, HTTPS, NAMES, Fleet, killed, settled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.lab.bare import Site

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]

ROOT = Path(__file__).resolve().parents[3]
#: The user data: for each volume, sector n holds the number n; what comes back is looked at, too.
WRITES = r"""#!/bin/sh
cat >/writes <<'EOF'
n=0
while :; do
  n=$((n + 1))
  for name in $(cd /sys/block; ls -d vd*); do
    [ "$(cat /sys/block/$name/serial | wc -c)" -ge 20 ] || continue  # the server's own disks have none
    printf '%08d' $n | dd of=/dev/$name bs=512 seek=$n conv=sync,fsync,notrunc 2>/dev/null || echo "GUEST lost $n $name"
    have=$(dd if=/dev/$name bs=512 skip=$n count=1 iflag=direct 2>/dev/null | head -c 8)
    [ "$have" = "$(printf '%08d' $n)" ] || echo "GUEST lost $n $name: $have"
  done
  echo "GUEST wrote $n"
  sleep 0.1
done
EOF
sh /writes >/dev/console 2>/dev/null </dev/null &
"""
MAKE = HTTPS + """
    - magnetar.compute.image: {name: tiny, filename: "{{ disk }}"}
    - magnetar.compute.flavor: {name: tiny, vcpus: 1, ram: 128, disk: 1}
    - magnetar.compute.server: {name: writer, image: tiny, flavor: tiny, userdata: "{{ writes }}"}
    - magnetar.compute.volume: {name: own, size: 1}
    - magnetar.compute.volume_attachment: {server: writer, volume: own}
    - magnetar.compute.volume: {name: far, size: 1, endpoint: "https://{{ hostvars.bare3.ansible_host }}"}
    - magnetar.compute.volume_attachment:
        server: writer
        volume: far
        volume_endpoint: "https://{{ hostvars.bare3.ansible_host }}"
      register: attached
    - ansible.builtin.assert: {that: attached.volume_attachment.status == 'attached'}
"""
#: The example of docs/howto/attach-a-volume-of-another-host.md with other names: it is there, so nothing changes.
AGAIN = HTTPS + textwrap.indent(
    re.search(r"```yaml\n(- [^`]*volume_endpoint[^`]*)```",
              (ROOT / "docs/howto/attach-a-volume-of-another-host.md").read_text())[1],  # type: ignore[index]
    "    ")


class Writer(Fleet):
    """The hosts, and the server ``writer`` with the volumes ``own`` (of the first host) and ``far`` (of the third)."""

    def go(self, source: str, target: str, **wish: object) -> list[str]:
        flow = Migrate(Side(self.client(source)), Side(self.client(target)), "writer", wish)
        return [step.verb for step in flow.steps()]

    def at(self, name: str) -> None:
        """Have the server on host *name*: migrate it there unless it is there."""
        (source,) = (one for one in NAMES if Side(self.client(one)).find("writer"))
        if source != name:
            self.go(source, name, type="live")

    def wrote(self, name: str) -> int:
        """How often the guest wrote, as its console on host *name* says; nothing was lost."""
        said = self.hosts[name].run(["sh", "-c", "cat /var/lib/magnetar/servers/*/console.log"]).stdout
        # Linux takes the disks away before it powers off, and whoever still writes is told of errors.
        said = re.sub(r"GUEST poweroff.*?(?=GUEST config_drive|\Z)", "", said, flags=re.DOTALL)
        assert "GUEST lost" not in said, said[-3000:]
        assert "Kernel panic" not in said
        return said.count("GUEST wrote")

    def goes_on(self, name: str, limit: float = 240) -> None:
        start, end = self.wrote(name), time.monotonic() + limit
        while self.wrote(name) <= start + 2:
            assert time.monotonic() < end, f"the guest stands at {start} on {name}"
            time.sleep(0.2)

    def check(self, at: str) -> None:
        """The server is at *at*, has both volumes, and only its host is let in."""
        assert [bool(Side(self.client(name)).find("writer")) for name in NAMES] == [name == at for name in NAMES]
        self.goes_on(at)
        shown = self.client(at).get("server", "writer")
        assert shown["status"] == "ACTIVE" and len(shown["volumes_attached"]) == 2
        for home, volume in ((NAMES[0], "own"), (NAMES[2], "far")):
            assert self.client(home).get("volume", volume)["status"] == "in-use"
            for export in self.client(home).list("volume_export"):
                assert (export["peers"], export["status"]) == ([at], "open")
        for name in NAMES:
            assert self.client(name).get("host")["orphans"] == {"domains": [], "files": []}
            given = self.client(name).list("volume_attachment")
            assert len(given) == (2 if name == at else 0)


@pytest.fixture(scope="module")
def fleet(three_hosts: Site) -> Iterator[Writer]:
    made = Writer(three_hosts)
    made.play(MAKE, "-e", json.dumps({"writes": WRITES}))
    yield made
    made.clear()


def test_attached_by_a_playbook(fleet: Writer) -> None:
    fleet.check(NAMES[0])
    again = AGAIN.replace("web1", "writer").replace(": data", ": far")
    for name, host in (("kvm1", NAMES[0]), ("kvm2", NAMES[2])):
        again = again.replace(f"{name}.example.org", fleet.hosts[host].address)
    assert fleet.play(again) == {NAMES[0]: 0}


@pytest.mark.parametrize(("source", "target"), [(0, 1), pytest.param(1, 2, marks=DEEP), pytest.param(2, 0, marks=DEEP)])
def test_live_migration_takes_the_volumes_along(fleet: Writer, source: int, target: int) -> None:
    fleet.at(NAMES[source])
    began = time.monotonic()
    fleet.go(NAMES[source], NAMES[target], type="live")
    print(f"\nfleet: live migration with two volumes in {time.monotonic() - began:.1f} s")
    fleet.check(NAMES[target])


@pytest.mark.parametrize("dies", [pytest.param(0, marks=DEEP), 1, 2])
def test_an_agent_dies_and_the_guest_writes_on(fleet: Writer, dies: int) -> None:
    fleet.at(NAMES[1])
    killed("magnetar-agent")(fleet, NAMES[dies])
    settled(fleet, *NAMES)
    fleet.check(NAMES[1])


@pytest.mark.parametrize("reboots", [2, pytest.param(1, marks=DEEP)])
def test_a_host_reboots(fleet: Writer, reboots: int) -> None:
    """That of a volume: the guest waits for it. Its own: it starts with its volumes."""
    fleet.at(NAMES[1])
    fleet.hosts[NAMES[reboots]].reboot()
    settled(fleet, *NAMES)
    fleet.check(NAMES[1])


def test_cold_and_detached(fleet: Writer) -> None:
    fleet.at(NAMES[1])
    fleet.go(NAMES[1], NAMES[2], type="cold")
    assert fleet.client(NAMES[2]).get("server", "writer")["status"] == "ACTIVE"
    fleet.check(NAMES[2])
    for volume, home in (("own", NAMES[0]), ("far", NAMES[2])):
        detach_remote_volume(Side(fleet.client(NAMES[2])), Side(fleet.client(home)), "writer", volume)
        assert fleet.client(home).get("volume", volume)["status"] == "available"
    for name in NAMES:
        assert not fleet.client(name).list("volume_export")
        left = fleet.hosts[name].run(["sh", "-c", "ls /run/magnetar/links 2>/dev/null"], check=False).stdout
        assert left == ""
