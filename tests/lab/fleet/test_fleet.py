# SPDX-License-Identifier: GPL-3.0-or-later
"""Three hosts, installed by nothing but the role: servers go from one to another, and whatever dies on the way, the
guest is there exactly once, runs if it ran, and its disks are whole.

The tests of this file share the hosts and one server, which counts on its console and checks a pattern on its disk.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_core.errors import Conflict, MagnetarError
from magnetar_core.flows.migrate import Side, abort_host_migration
from tests.support.lab.fleet import COUNT, DEEP, HTTPS, MAKE, Fleet, killed, settled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.lab.bare import Site

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]

GO = HTTPS + """
    - magnetar.compute.migration:
        {server: counter, destination: "https://{{ hostvars.bare2.ansible_host }}", timeout: 300}
      register: gone
    - ansible.builtin.assert: {that: gone.server.host == 'bare2' or ansible_check_mode}
"""


@pytest.fixture(scope="module")
def fleet(three_hosts: Site) -> Iterator[Fleet]:
    made = Fleet(three_hosts)
    made.play(MAKE, "-e", json.dumps({"count": COUNT}))
    made.goes_on("bare1")
    yield made
    made.clear()


def test_live_by_a_playbook(fleet: Fleet) -> None:
    before = fleet.virsh("bare1", "dominfo", fleet.virsh("bare1", "list", "--name").strip())
    assert fleet.play(GO, "--check", "--diff") == {"bare1": 1}
    assert fleet.where() == "bare1"
    began = time.monotonic()
    assert fleet.play(GO) == {"bare1": 1}
    print(f"\nfleet: live migration by a playbook in {time.monotonic() - began:.1f} s")
    assert fleet.where() == "bare2"
    fleet.goes_on("bare2")
    assert fleet.play(GO) == {"bare1": 0}
    after = fleet.virsh("bare2", "dominfo", fleet.virsh("bare2", "list", "--name").strip())
    assert [line for line in before.splitlines() if line.startswith(("Name", "UUID", "Max memory"))] == \
        [line for line in after.splitlines() if line.startswith(("Name", "UUID", "Max memory"))]
    answer = fleet.client("bare2").ensure("server", "counter", {"flavor": "tiny"})
    assert not answer["changed"], answer


class Going(threading.Thread):
    """A live migration under way, slow enough to be hit. ``error`` is what it ended with."""

    def __init__(self, fleet: Fleet, source: str, target: str, **wish: Any) -> None:
        super().__init__(daemon=True)
        self.flow = fleet.flow(source, target, type="live", **{"bandwidth": 12, **wish})
        self.client = fleet.client(source)
        self.error: MagnetarError | None = None

    def run(self) -> None:
        try:
            for _step in self.flow.steps():
                pass
        except MagnetarError as error:
            self.error = error

    def until_half(self) -> None:
        """Wait until memory flows."""
        self.start()
        end = time.monotonic() + 240
        while time.monotonic() < end and self.is_alive():
            with suppress(MagnetarError):
                for half in self.client.list("migration", status="running"):
                    if (half["progress"] or {}).get("phase") == "memory and disks" and half["progress"]["done"]:
                        return
            time.sleep(0.05)
        raise AssertionError(f"no memory flows: {self.error}")


@pytest.mark.parametrize(("unit", "side"), [
    ("magnetar-agent", "source"), pytest.param("magnetar-agent", "target", marks=DEEP),
    pytest.param("libvirtd", "source", marks=DEEP), ("libvirtd", "target"),
])
def test_something_dies_on_the_way(fleet: Fleet, unit: str, side: str) -> None:
    source = fleet.where()
    target = "bare1" if source == "bare2" else "bare2"
    before = fleet.counted(source)
    going = Going(fleet, source, target)
    going.until_half()
    killed(unit)(fleet, source if side == "source" else target)
    going.join(300)
    assert not going.is_alive()
    settled(fleet, source, target)
    if fleet.client(source).list("server"):
        fleet.goes_on(source)
        fleet.go(source, target)
    assert fleet.where() == target
    fleet.goes_on(target)
    assert fleet.counted(target) > before


def test_the_coordinator_dies(fleet: Fleet) -> None:
    source = fleet.where()
    target = "bare1" if source == "bare2" else "bare2"
    for at in ("claim", "move", "settle", "leave"):
        for step in fleet.flow(source, target).steps():
            if step.verb == at:
                break
        fleet.go(source, target)
        assert fleet.where() == target
        fleet.goes_on(target)
        source, target = target, source


def test_aborted_on_the_way(fleet: Fleet) -> None:
    source = fleet.where()
    target = "bare1" if source == "bare2" else "bare2"
    going = Going(fleet, source, target)
    going.until_half()
    steps = abort_host_migration(Side(fleet.client(source)), Side(fleet.client(target)), "counter")
    going.join(300)
    assert [step.verb for step in steps] == ["abort", "abort"]
    assert going.error is not None and going.error.code == "cancelled"
    assert fleet.where() == source
    fleet.goes_on(source)


def test_two_at_once(fleet: Fleet) -> None:
    """The first has it; the other is refused at once, and so is a change of the server."""
    source = fleet.where()
    target = "bare1" if source == "bare2" else "bare2"
    going = Going(fleet, source, target)
    going.until_half()
    with pytest.raises(Conflict, match=f"on its way to {target}"):
        fleet.go(source, "bare3")
    with pytest.raises(Conflict, match="is being migrated"):
        fleet.client(source).ensure("server", "counter", {"power": "off"})
    going.join(300)
    assert going.error is None
    assert fleet.where() == target
    fleet.goes_on(target)


def test_paused_and_suspended(fleet: Fleet) -> None:
    """Paused it goes live and stays paused; suspended it is refused."""
    source = fleet.where()
    target = "bare1" if source == "bare2" else "bare2"
    fleet.client(source).ensure("server", "counter", {"power": "suspended"})
    with pytest.raises(Conflict, match="Resume or stop it first"):
        fleet.go(source, target)
    fleet.client(source).ensure("server", "counter", {"power": "paused"})
    fleet.go(source, target)
    assert fleet.where() == target
    assert fleet.client(target).get("server", "counter")["status"] == "PAUSED"
    fleet.client(target).ensure("server", "counter", {"power": "running"})
    fleet.goes_on(target)


@DEEP
def test_libvirt_takes_a_guest_without_a_nic_that_its_definition_has(fleet: Fleet) -> None:
    """As guests are while they move, or are suspended, that have let go of NICs which are devices of their host. Such
    devices are in no machine of the lab; so this NIC is another, of which the guest lets go behind the agent's back."""
    source = fleet.where()
    target, mac = "bare1" if source == "bare2" else "bare2", "52:54:00:ca:4d:01"
    for name in (source, target):
        fleet.hosts[name].run(["ip", "link", "add", "br-cards", "type", "bridge"], check=False)
    networks = fleet.client(source).get("server", "counter")["networks"]
    fleet.client(source).ensure("server", "counter", {"networks": [*networks, {"bridge": "br-cards", "mac": mac}]})
    domain = fleet.virsh(source, "list", "--name").strip()
    fleet.virsh(source, "detach-interface", domain, "bridge", "--mac", mac, "--live")
    end = time.monotonic() + 60
    while mac in fleet.virsh(source, "domiflist", domain):
        assert time.monotonic() < end, "the guest does not let go of it"
        time.sleep(0.2)
    fleet.go(source, target, type="live")
    assert fleet.where() == target
    fleet.goes_on(target)
    for power in ("suspended", "running"):
        fleet.client(target).ensure("server", "counter", {"power": power})
    fleet.goes_on(target)
    assert mac not in fleet.virsh(target, "domiflist", domain)
    assert mac in fleet.virsh(target, "domiflist", domain, "--inactive")
    fleet.client(target).ensure("server", "counter", {"networks": networks, "power": "running"})
    fleet.goes_on(target)


def test_too_slow(fleet: Fleet) -> None:
    source = fleet.where()
    target = "bare1" if source == "bare2" else "bare2"
    with pytest.raises(MagnetarError, match="took longer than 2 s"):
        fleet.go(source, target, bandwidth=8, time_limit=2)
    assert fleet.client(source).get("server", "counter")["status"] == "ACTIVE"
    fleet.goes_on(source)
    fleet.go(source, target, bandwidth=24, time_limit=2, on_time_limit="pause")
    assert fleet.where() == target
    fleet.goes_on(target)


NATIVE = """
- hosts: bare1:bare2
  become: true
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: magnetar.compute.agent, tasks_from: configure}
      vars: {agent_native_tls: "{{ native }}"}
"""


@pytest.fixture
def native(fleet: Fleet) -> Iterator[None]:
    """Two of the hosts let QEMU speak to QEMU."""
    assert min(fleet.play(NATIVE, "-e", "native=true").values()) > 0
    for name in ("bare1", "bare2"):  # libvirtd did not fail since the role has started it
        assert fleet.hosts[name].run(["systemctl", "show", "-P", "NRestarts", "libvirtd"]).stdout.strip() == "0"
    assert fleet.play(NATIVE, "-e", "native=true") == {"bare1": 0, "bare2": 0}
    yield
    fleet.play(NATIVE, "-e", "native=false")


@pytest.mark.deep(shard="native TLS")  # an option: all others go over the agents' TLS
def test_straight_from_qemu_to_qemu(fleet: Fleet, native: None) -> None:
    """TLS-01, TLS-04, TLS-06: memory and disks under QEMU's own TLS; the guest is whole whatever happens."""
    source, target = (fleet.where(), "bare1" if fleet.where() == "bare2" else "bare2")

    def way() -> bool | None:
        halves = fleet.client(source).list("migration")
        return max(halves, key=lambda half: str(half["created_at"]))["native_tls"]

    going = Going(fleet, source, target)
    going.until_half()
    straight = fleet.hosts[target].run(["ss", "-Htn", "sport >= 49152 and sport <= 49215"]).stdout
    assert fleet.hosts[source].address in straight
    abort_host_migration(Side(fleet.client(source)), Side(fleet.client(target)), "counter")
    going.join(300)
    assert fleet.where() == source
    fleet.goes_on(source)

    ca = "/etc/magnetar/qemu/ca-cert.pem"
    fleet.hosts[target].run(["sh", "-c", f"cp {ca} {ca}.good && cp /etc/magnetar/tls/ca.pem {ca}"])
    with pytest.raises(MagnetarError, match="native_tls"):
        fleet.go(source, target)
    fleet.goes_on(source)
    fleet.hosts[target].run(["mv", f"{ca}.good", ca])

    going = Going(fleet, source, target)
    going.until_half()
    killed("magnetar-agent")(fleet, source)
    going.join(300)
    settled(fleet, source, target)
    if fleet.client(source).list("server"):
        fleet.goes_on(source)
        fleet.go(source, target)
    assert (fleet.where(), way()) == (target, True)
    fleet.goes_on(target)
    source = target
    fleet.go(source, "bare3")
    assert (fleet.where(), way()) == ("bare3", False)  # that host does not say so
    fleet.go("bare3", source)
    fleet.goes_on(source)


def test_cold_with_a_running_guest(fleet: Fleet) -> None:
    source = fleet.where()
    fleet.go(source, "bare3", type="cold")
    assert fleet.where() == "bare3"
    end = time.monotonic() + 240  # it has booted again: user data is for the first boot only
    while fleet.client("bare3").get("server", "counter")["status"] != "ACTIVE":
        assert time.monotonic() < end
        time.sleep(0.5)
    steps = fleet.go("bare3", "bare1")
    assert steps == ["prepare", "claim", "move", "settle", "leave"]
    assert fleet.where() == "bare1"
