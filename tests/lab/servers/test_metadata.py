# SPDX-License-Identifier: GPL-3.0-or-later
"""Real guests ask 169.254.169.254 through their NICs: each gets its own data, whatever it says it is."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.lab import guest
from tests.support.lab.agent import LabAgent, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def lab(guest_image: dict[str, Path]) -> Iterator[LabAgent]:
    """Guests one and two on a network of the agent's."""
    with LabAgent() as made:
        made.import_image("ramdisk", guest_image["ramdisk"], disk_format="ari")
        made.import_image("kernel", guest_image["kernel"], disk_format="aki", ramdisk="ramdisk",
                          cmdline=guest.KERNEL_ARGS)  # fmt: skip
        made.ensure("network", f"net-{made.mark}", {"mode": "nat", "cidr": made.cidr})
        for name in ("one", "two"):
            made.ensure("server", name, {
                "flavor": {"vcpus": 1, "ram": 128, "disk": 0}, "image": "kernel", "metadata": {"is": name},
                "networks": [{"network": f"net-{made.mark}"}]})  # fmt: skip
        for name in ("one", "two"):
            made.up(name)
            eventually(lambda name=name: any(line.startswith("nic ") for line in made.markers(name)), "a lease")
        yield made


def asked(lab: LabAgent, name: str, path: str, *headers: str, body: str | None = None) -> tuple[str, str]:
    """The status and the body of an answer; busybox's own client would need libraries to look up the port's name."""
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.0", *headers]
    lines += [] if body is None else [f"Content-Length: {len(body)}"]
    text = "\\r\\n".join((*lines, "", body or ""))
    said = str(lab.ask(name, f"sh printf '{text}' | nc -w 5 169.254.169.254 80")["output"]).replace("\r", "")
    head, _empty, found = said.partition("\n\n")
    return (head.split(" ")[1] if head.startswith("HTTP/") else said), found


def who(lab: LabAgent, name: str, *headers: str) -> str:
    _status, said = asked(lab, name, "/openstack/latest/meta_data.json", *headers)
    return str(json.loads(said)["meta"]["is"]) if said else ""


def test_each_guest_is_told_what_it_is(lab: LabAgent) -> None:
    assert [who(lab, name) for name in ("one", "two")] == ["one", "two"]
    assert who(lab, "one", f"X-Instance-ID: {lab.show('server', 'two')['id']}", "X-Forwarded-For: 10.0.0.1") == "one"
    assert asked(lab, "one", "/latest/meta-data/instance-id")[1].startswith("i-")
    there = lab.show("host")["metadata_service"]
    assert there["reason"] == "" and len(there["bridges"]) == 1
    # The host has neither an address nor a port more.
    assert "169.254.169.254" not in subprocess.run(["ip", "addr"], check=True, capture_output=True, text=True).stdout


def test_a_password_is_left_once(lab: LabAgent) -> None:
    path = "/openstack/latest/password"
    assert asked(lab, "one", path, body="sealed")[0] == "200" and asked(lab, "one", path) == ("200", "sealed")
    assert asked(lab, "one", path, body="other")[0] == "409" and asked(lab, "two", path) == ("200", "")
    assert lab.show("server", "one")["guest_password"] == "sealed"


def test_it_is_back_after_the_agent_was_killed(lab: LabAgent) -> None:
    lab.kill()
    lab.start()
    eventually(lambda: who(lab, "one") == "one", "guests are answered again")
    assert asked(lab, "one", "/openstack/latest/password") == ("200", "sealed")


def test_a_guest_with_the_address_of_another(lab: LabAgent) -> None:
    """The last test: guest two takes address and MAC of guest one."""
    nic = lab.ask("one", "nics")["nics"][0]
    lab.sh("two", f"killall udhcpc; ip link set eth0 down; ip link set eth0 address {nic['mac']}; ip link set eth0 up; "
           f"ip addr flush dev eth0; ip addr add {nic['ip']}/24 dev eth0; "
           "ip route replace 169.254.169.254 dev eth0")  # fmt: skip
    for _time in range(3):
        assert who(lab, "two") in ("two", "")
        assert who(lab, "one") in ("one", "")
