# SPDX-License-Identifier: GPL-3.0-or-later
"""A host is emptied by the playbook: what can go goes, what no host takes stays, and the summary says why.

The tests of this file are one story and run in its order.
"""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_core.http.client import Client
from tests.support.lab.bare import documented
from tests.support.lab.fleet import HTTPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.lab.bare import Site

pytestmark = pytest.mark.lab

COUNT = """#!/bin/sh
( n=0; while :; do n=$((n + 1)); echo "GUEST count $n" >/dev/console; sleep 1; done ) &
"""
SOURCE, FIRST, SECOND = "bare1", "bare2", "bare3"

#: bare2 has more memory left than bare3, so it comes first; the network `lan` is on bare3 only, `own` on neither.
MAKE = HTTPS.replace("hosts: bare1", "hosts: bare1,bare3") + """
    - magnetar.compute.image: {name: tiny, filename: "{{ disk }}"}
    - magnetar.compute.flavor: {name: tiny, vcpus: 1, ram: 128, disk: 1}
    - magnetar.compute.network: {name: lan, cidr: 10.99.8.0/24}
    - magnetar.compute.server: {name: here, image: tiny, vcpus: 1, ram: 512, disk: 1}
      when: inventory_hostname == 'bare3'
    - when: inventory_hostname == 'bare1'
      block:
        - magnetar.compute.network: {name: own, cidr: 10.99.9.0/24}
        - magnetar.compute.server:
            image: tiny
            flavor: tiny
            servers:
              - {name: counter, userdata: "{{ count }}"}
              - {name: netted, networks: [lan], state: stopped}
              - {name: stuck, networks: [own], state: stopped}
        - magnetar.compute.volume: {name: data, size: 1}
        - magnetar.compute.volume_attachment: {server: netted, volume: data}
"""


class Story:
    """The three hosts and what is on them."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def client(self, name: str) -> Client:
        """A client of the agent of host *name*."""
        pki = self.site.folder / "magnetar-pki"
        return Client(f"https://{self.site.hosts[name].address}", ca_cert=str(pki / "ca.pem"),
                      client_cert=str(pki / "clients/admin.pem"), client_key=str(pki / "clients/admin.key"))

    def servers(self, name: str) -> dict[str, Any]:
        """Status of each server of host *name*."""
        return {found["name"]: found["status"] for found in self.client(name).list("server")}

    def drain(self, *words: str, good: bool | None = True) -> tuple[str, int]:
        """What the playbook says of SOURCE, and how much it changed."""
        said = self.site.play("magnetar.compute.drain", "--limit", SOURCE, *words, good=good)
        (changed,) = re.findall(rf"^{SOURCE} +: ok=\d+ +changed=(\d+)", said, re.MULTILINE)
        return " ".join(said.split()), int(changed)

    def until_memory_flows(self) -> None:
        """Wait until a live migration from SOURCE is under way."""
        end = time.monotonic() + 240
        while not any((half["progress"] or {}).get("phase") == "memory and disks"
                      for half in self.client(SOURCE).list("migration", status="running")):
            assert time.monotonic() < end
            time.sleep(0.1)

    def counted(self, name: str) -> int:
        """How far the guest has counted; it has started just once."""
        said = self.site.hosts[name].run(["sh", "-c", "cat /var/lib/magnetar/servers/*/console.log"], check=False)
        numbers = [int(number) for number in re.findall(r"GUEST count (\d+)\s", said.stdout)]
        assert numbers == list(range(1, len(numbers) + 1))
        return len(numbers)

    def goes_on(self, name: str, limit: float = 240) -> int:
        """Wait until the guest counts further."""
        start, end = self.counted(name), time.monotonic() + limit
        while (now := self.counted(name)) <= start:
            assert time.monotonic() < end, f"the guest stands at {start} on {name}"
            time.sleep(0.2)
        return now


@pytest.fixture(scope="module")
def story(three_hosts: Site) -> Iterator[Story]:
    path = three_hosts.folder / "make.yml"
    path.write_text(MAKE)
    three_hosts.play(path, "-e", json.dumps({"count": COUNT}))
    made = Story(three_hosts)
    yield made
    for name in three_hosts.hosts:
        client = made.client(name)
        for found in client.list("server"):
            client.delete("server", found["id"])
    for name in three_hosts.hosts:
        client = made.client(name)
        for noun in ("volume", "network", "flavor", "image"):
            for found in client.list(noun):
                client.delete(noun, found["id"])


def test_all_hosts_at_once(story: Story) -> None:
    said = story.site.play("magnetar.compute.drain", good=False)
    assert "There is no host to which the servers of bare1 could go" in " ".join(said.split())


def test_check_mode_says_where(story: Story) -> None:
    story.goes_on(SOURCE)
    said, _changed = story.drain("--check", good=False)
    assert "counter would go from bare1 to bare2, live" in said
    assert "netted would go from bare1 to bare3, cold" in said
    assert "stuck would stay on bare1: bare2: " in said
    assert "1 of 3 servers would stay on bare1: stuck" in said
    said, _changed = story.drain("--check", "-e", "agent_drain_fail=false")
    assert "stuck would stay on bare1: bare2: " in said
    assert set(story.servers(SOURCE)) == {"counter", "netted", "stuck"}
    assert not [one for one in story.client(SOURCE).list("migration") if one["status"] != "completed"]


def test_what_can_go_goes(story: Story) -> None:
    before = story.goes_on(SOURCE)
    said, changed = story.drain(good=False)
    assert re.search(r"counter went from bare1 to bare2, live, \d+\.\d s", said)
    assert re.search(r"netted went from bare1 to bare3, cold, \d+\.\d s", said)
    assert re.search(r"stuck stays on bare1: bare2: [^;]*network[^;]*own.*; bare3: [^;]*own", said)
    assert "1 of 3 servers stay on bare1: stuck" in said
    assert "use them from there: data (netted)." in " ".join(said.split())
    assert changed == 2
    assert story.servers(SOURCE) == {"stuck": "SHUTOFF"}
    assert story.servers(FIRST) == {"counter": "ACTIVE"}
    assert story.servers(SECOND) == {"here": "ACTIVE", "netted": "SHUTOFF"}
    assert story.goes_on(FIRST) > before


def test_again_with_a_network_and_without_a_host(story: Story) -> None:
    story.client(FIRST).ensure("network", "own", {"cidr": "10.99.9.0/24"})
    host = story.site.hosts[SECOND]
    host.run(["systemctl", "stop", "magnetar-agent"])
    try:
        said, changed = story.drain("-e", json.dumps({"agent_drain_to": [FIRST, SECOND]}))
    finally:
        host.run(["systemctl", "start", "magnetar-agent"])
    assert "stuck went from bare1 to bare2, cold" in said
    assert changed == 1
    assert story.servers(SOURCE) == {}


def test_an_empty_host(story: Story) -> None:
    said = story.site.job("Drain a host", "--limit", SOURCE)
    assert "bare1 has no servers." in " ".join(said.split())
    assert re.search(rf"^{SOURCE} +: ok=\d+ +changed=0 ", said, re.MULTILINE)


def test_the_example_of_the_page(story: Story) -> None:
    path = story.site.folder / "example.yml"
    text = documented("howto/drain-a-host", "tasks_from: drain")
    path.write_text(text.replace("kvm1", FIRST).replace("kvm2", SOURCE))
    said = story.site.play(path)
    assert "counter is on bare1" in said
    assert "stuck is on bare1" in said
    assert story.servers(FIRST) == {}


@pytest.mark.deep(shard="upgraded while a guest moves")  # test_fleet.py kills the agent there
def test_upgraded_in_the_middle(story: Story) -> None:
    """The agent that sends a guest is upgraded: the guest is there once, runs on, and can go afterwards."""
    site, before = story.site, story.goes_on(SOURCE)
    site.raise_version("0.98.0")
    with ThreadPoolExecutor() as threads:
        drain = threads.submit(story.drain, "-e", "agent_drain_bandwidth=2", good=None)
        story.until_memory_flows()
        site.play("magnetar.compute.upgrade", "--limit", SOURCE)
        print(f"\ndrain while its agent was upgraded: {drain.result()[0]}")
    assert site.hosts[SOURCE].run(["magnetar", "version"]).stdout == "0.98.0\n"
    (holder,) = (name for name in site.hosts if "counter" in story.servers(name))
    assert story.goes_on(holder) > before
    story.drain(good=None)
    assert set(story.servers(SOURCE)) <= {"stuck"}
    (holder,) = (name for name in site.hosts if "counter" in story.servers(name))
    assert story.goes_on(holder) > before
    for name in site.hosts:
        assert story.client(name).get("host")["orphans"] == {"domains": [], "files": []}
