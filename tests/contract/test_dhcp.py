# SPDX-License-Identifier: GPL-3.0-or-later
"""What a DHCP client really gets on a network of the agent's: its reserved address, also after somebody else."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_agent.host.networks import NetworkSpec
from magnetar_agent.virt.network import dhcp

ONE, OTHER, ADDRESS = "52:54:00:00:0d:01", "52:54:00:00:0d:02", "192.168.219.7"
NAME = "mtdhcp" + uuid.uuid4().hex[:6]


def do(*words: str, check: bool = True) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=check)
    return done.stdout + done.stderr


@pytest.fixture
def client() -> Iterator[str]:
    """The name of a network namespace, for a client that has a card called nic."""
    do("ip", "netns", "add", NAME)
    yield NAME
    do("ip", "netns", "del", NAME)


def ask(client: str, mac: str) -> str:
    """What the DHCP client with this MAC says."""
    inside = ("ip", "netns", "exec", client)
    for words in (("down",), ("address", mac), ("up",)):
        do(*inside, "ip", "link", "set", "nic", *words)
    return do(*inside, "busybox", "udhcpc", "-i", "nic", "-n", "-q", "-f", "-t", "8", "-T", "1", "-s", "/bin/true",
              check=False)


@pytest.mark.lab
@pytest.mark.parametrize("file", [True, False], ids=["in the file", "as networks of earlier releases have it"])
def test_an_address_goes_from_one_to_the_next(
    client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: bool
) -> None:
    from magnetar_agent.virt import LibvirtHypervisor
    from magnetar_agent.virt.network import reservations

    if not file:
        monkeypatch.setattr(reservations, "reads_reservations", lambda _name, _xml: False)
    hypervisor = LibvirtHypervisor("qemu:///system", tmp_path)
    try:
        hypervisor.make_network(NetworkSpec(str(uuid.uuid4()), NAME, "isolated", NAME, "192.168.219.1", 24,
                                            "192.168.219.2", "192.168.219.254"))
        do("ip", "link", "add", f"{NAME}v", "type", "veth", "peer", "name", "nic", "netns", client)
        do("ip", "link", "set", f"{NAME}v", "master", NAME, "up")
        for mac in (ONE, OTHER, ONE):
            hypervisor.reserve(NAME, mac, ADDRESS)
            assert f"lease of {ADDRESS} obtained" in ask(client, mac)
            hypervisor.release(NAME, mac)
    finally:
        hypervisor.remove_network(NAME)
        hypervisor.close()


def test_the_message_is_that_of_the_rfc() -> None:
    found = dhcp.release_packet(ONE, ADDRESS, "192.168.219.1", b"\1\2\3\4")
    assert len(found) == 300 and found[:8] == b"\x01\x01\x06\x00\1\2\3\4"
    assert found[12:16] == bytes((192, 168, 219, 7)) and found[28:34] == bytes.fromhex("525400000d01")
    assert found[236:251] == b"\x63\x82\x53\x63\x35\x01\x07\x36\x04" + bytes((192, 168, 219, 1)) + b"\xff\0"


@pytest.mark.lab
def test_a_file_that_may_not_be_written_leaves_it_to_libvirt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from magnetar_agent.virt import LibvirtHypervisor
    from magnetar_agent.virt.network import reservations

    (tmp_path / "file").touch()
    monkeypatch.setattr(reservations, "FOLDER", tmp_path / "file")
    hypervisor = LibvirtHypervisor("qemu:///system", tmp_path)
    try:
        hypervisor.make_network(NetworkSpec(str(uuid.uuid4()), NAME, "isolated", NAME, "192.168.219.1", 24,
                                            "192.168.219.2", "192.168.219.254", hosts=((OTHER, "192.168.219.9"),)))
        hypervisor.reserve(NAME, ONE, ADDRESS)
        xml = do("virsh", "net-dumpxml", NAME)
        assert ADDRESS in xml and "192.168.219.9" in xml and "hostsfile" not in xml
    finally:
        hypervisor.remove_network(NAME)
        hypervisor.close()
