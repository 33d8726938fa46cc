# SPDX-License-Identifier: GPL-3.0-or-later
"""Three hosts in containers, installed by the role, with their servers, and the playbooks and faults that tests share.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_core.errors import MagnetarError
from magnetar_core.flows.migrate import Migrate, Side
from magnetar_core.http.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.lab.bare import Site


NAMES = ("bare1", "bare2", "bare3")
COUNT = """#!/bin/sh
dd if=/dev/urandom of=/pattern bs=1M count=4 2>/dev/null
dd if=/pattern of=/dev/vdb bs=1M 2>/dev/null
sync
want=$(md5sum </pattern)
( n=0
  while :; do
    n=$((n + 1))
    echo 3 >/proc/sys/vm/drop_caches
    have=$(dd if=/dev/vdb bs=1M count=4 2>/dev/null | md5sum)
    [ "$have" = "$want" ] && is=whole || is=BROKEN
    echo "GUEST count $n $is" >/dev/console
    sleep 1
  done ) &
"""
HTTPS = """
- hosts: bare1
  connection: local
  gather_facts: false
  module_defaults:
    group/magnetar.compute.all: &by_certificate
      endpoint: "https://{{ ansible_host }}"
      ca_cert: "{{ pki }}/ca.pem"
      client_cert: "{{ pki }}/clients/admin.pem"
      client_key: "{{ pki }}/clients/admin.key"
      direct: always
  tasks:
"""
MAKE = HTTPS + """
    - magnetar.compute.image: {name: tiny, filename: "{{ disk }}"}
    - magnetar.compute.flavor:  # it is bound to a NUMA cell of each host that it comes to
        {name: tiny, vcpus: 1, ram: 128, disk: 1, ephemeral: 1, extra_specs: {"hw:numa_nodes": "1"}}
    - magnetar.compute.server: {name: counter, image: tiny, flavor: tiny, userdata: "{{ count }}"}
"""


class Fleet:
    """The hosts, the clients of their agents, and the server ``counter``."""

    def __init__(self, site: Site) -> None:
        self.site, self.hosts = site, site.hosts

    def client(self, name: str, timeout: float = 300) -> Client:
        """Return a client of the agent of host *name*, with an administrator's certificate."""
        pki = self.site.folder / "magnetar-pki"
        return Client(f"https://{self.hosts[name].address}", ca_cert=str(pki / "ca.pem"), timeout=timeout,
                      client_cert=str(pki / "clients/admin.pem"), client_key=str(pki / "clients/admin.key"))

    def clear(self) -> None:
        """Remove everything that a test made on the hosts."""
        for noun in ("server", "volume", "flavor", "image"):
            for name in NAMES:
                client = self.client(name)
                for found in client.list(noun):
                    client.delete(noun, found["id"])

    def play(self, text: str, *words: str) -> dict[str, int]:
        """Run a playbook; return the number of changed tasks by host."""
        path = self.site.folder / "fleet.yml"
        path.write_text(text)
        said = self.site.play(path, *words)
        return {name: int(count) for name, count in re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", said, re.MULTILINE)}

    def flow(self, source: str, target: str, **wish: Any) -> Migrate:
        """Return a migration of the server ``counter``."""
        return Migrate(Side(self.client(source)), Side(self.client(target)), "counter", wish)

    def go(self, source: str, target: str, **wish: Any) -> list[str]:
        """Migrate the server ``counter``."""
        return [step.verb for step in self.flow(source, target, **wish).steps()]

    def where(self) -> str:
        """Return the host of the server ``counter``. Checks that it is on exactly one host, and that migrations have
        left nothing.
        """
        found = [name for name in NAMES if Side(self.client(name)).find("counter")]
        domains = [name for name in NAMES if "magnetar-" in self.virsh(name, "list", "--all", "--name")]
        assert found == domains
        assert len(found) == 1
        for name in NAMES:
            assert self.client(name).get("host")["orphans"] == {"domains": [], "files": []}
            left = self.hosts[name].run(["sh", "-c", "ls /run/magnetar/links 2>/dev/null"], check=False).stdout
            assert left == ""
        return found[0]

    def virsh(self, name: str, *words: str) -> str:
        """Return the output of virsh on a host."""
        return self.hosts[name].run(["virsh", "-q", "-c", "qemu:///system", *words]).stdout

    def counted(self, name: str) -> int:
        """Return the number to which the guest has counted. Checks that it has started only once, and that the pattern
        was whole each time.
        """
        said = self.hosts[name].run(["sh", "-c", "cat /var/lib/magnetar/servers/*/console.log"]).stdout
        found = re.findall(r"GUEST count (\d+) (\w+)\s", said)  # lines that are complete
        numbers = [int(number) for number, _is in found]
        assert numbers == list(range(1, len(numbers) + 1)), said[-3000:]
        assert {word for _number, word in found} <= {"whole"}
        return len(numbers)

    def goes_on(self, name: str, limit: float = 240) -> None:
        """Wait until the guest has counted further."""
        start, end = self.counted(name), time.monotonic() + limit
        while self.counted(name) <= start:
            assert time.monotonic() < end, f"the guest stands at {start} on {name}"
            time.sleep(0.2)


#: Mark of tests that repeat on other hosts what slow tests do on one: all hosts behave alike.
DEEP = pytest.mark.deep(shard="pairs of hosts")


def systemctl(fleet: Fleet, name: str, *words: str) -> None:
    fleet.hosts[name].run(["systemctl", *words])


def killed(unit: str) -> Callable[[Fleet, str], None]:
    return lambda fleet, name: systemctl(fleet, name, "kill", "--kill-whom=main", "-s", "KILL", unit)


def settled(fleet: Fleet, *names: str) -> None:
    """Wait until the agents and libvirt of these hosts answer, and no operation runs."""
    end = time.monotonic() + 240
    for name in names:
        while time.monotonic() < end:
            with suppress(MagnetarError):
                client = fleet.client(name, 5)
                if client.get("host")["connected"] and not client.list("operations", status="running"):
                    break
            time.sleep(0.2)
