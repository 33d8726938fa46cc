# SPDX-License-Identifier: GPL-3.0-or-later
"""A host of OVN in a folder of a test: Open vSwitch with the datapath that it has for tests of its own (no root, no
device), and ovn-controller. Packets are given to ports as octets, and those that leave by a port are counted."""

from __future__ import annotations

import re
import struct
import subprocess
from ipaddress import IPv6Address
from pathlib import Path

from magnetar_core.addresses import link_local

from .northbound import LabProcesses
from .unpacked import unpacked

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
BRIDGE = "br-int"


class LabChassis(LabProcesses):
    """See the head of this file. *south*: the southbound database's URL; *name* and *number*: its own there, of which
    each host has another. ``bridge``: the integration bridge, as ``ovs-ofctl`` takes it."""

    def __init__(self, folder: Path, south: str, name: str = "h1", number: int = 1) -> None:
        super().__init__(folder)
        self.south, self.name, self.number = south, name, number
        self.bridge = f"unix:{folder}/{BRIDGE}.mgmt"
        self._controller = str(unpacked() / "usr/bin/ovn-controller")

    def start(self) -> LabChassis:
        """All of it."""
        self._database("ovsdb", SCHEMA)
        self.vsctl("--no-wait", "init", "--", "set", "open_vswitch", ".", *(f"external-ids:{one}" for one in (
            f"system-id={self.name}", f"hostname={self.name}", f"ovn-remote={self.south}", "ovn-encap-type=geneve",
            f"ovn-encap-ip=127.0.0.{self.number}")))
        self.vsctl("--no-wait", "add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=dummy",
                   "fail_mode=secure")
        self.begin("vswitchd")
        self.begin("controller")
        return self

    def begin(self, name: str) -> None:
        """Start *vswitchd* or *controller*."""
        database = f"unix:{self.folder}/ovsdb.sock"
        if name == "vswitchd":
            self._spawn(name, "ovs-vswitchd", database, "--enable-dummy=override", "--disable-system",
                        "--disable-system-route", f"--unixctl={self.folder}/vswitchd.ctl")
        else:
            self._spawn(name, self._controller, database)

    def stop(self) -> None:
        """The database last, without which the others wait."""
        for name in ("controller", "vswitchd", "ovsdb"):
            if name in self._processes:
                self.end(name)

    def vsctl(self, *words: str) -> str:
        """What ``ovs-vsctl`` answers."""
        return self._run("ovs-vsctl", f"--db=unix:{self.folder}/ovsdb.sock", "--timeout=30", *words)

    def plug(self, port: str, device: str = "") -> None:
        """The port of OVN is here, as the *device* of its name or another one."""
        device = device or port
        self.vsctl("add-port", BRIDGE, device, "--", "set", "interface", device, "type=dummy",
                   f"external_ids:iface-id={port}")

    def send(self, port: str, frame: bytes) -> None:
        """A guest sends *frame* at *port*."""
        self._run("ovs-appctl", "-t", f"{self.folder}/vswitchd.ctl", "netdev-dummy/receive", port, frame.hex())

    def left(self, port: str) -> int:
        """How many packets have left by the port, which are the guest's then."""
        said = self._run("ovs-ofctl", "dump-ports", self.bridge, port)
        found = re.search(r"tx pkts=(\d+)", said)
        assert found, said
        return int(found[1])

    def flows(self, match: str) -> list[str]:
        """Those of the bridge; none while it is not there."""
        done = subprocess.run(["ovs-ofctl", "dump-flows", self.bridge, match], env=self.environment,  # noqa: PLW1510
                              capture_output=True, text=True, timeout=60)
        return done.stdout.splitlines()[1:]

    def dropped(self, match: str) -> int:
        """How many packets these flows have had since they are there."""
        return sum(int(one.partition("n_packets=")[2].partition(",")[0]) for one in self.flows(match))

    def forget(self, match: str) -> None:
        """Somebody removes these flows."""
        self._run("ovs-ofctl", "del-flows", self.bridge, match)


def advertisement(mac: str, to: str = "33:33:00:00:00:01", target: str = "ff02::1") -> bytes:
    """A frame with a router advertisement (RFC 4861, section 4.2) from the link-local address of *mac*."""
    said = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
    ends = IPv6Address(link_local(mac)).packed + IPv6Address(target).packed
    said = said[:2] + struct.pack("!H", _checksum(ends + struct.pack("!II", len(said), 58) + said)) + said[4:]
    header = struct.pack("!IHBB", 6 << 28, len(said), 58, 255) + ends
    return bytes.fromhex(f"{to}{mac}".replace(":", "")) + b"\x86\xdd" + header + said


def _checksum(octets: bytes) -> int:
    """The Internet's (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(octets) // 2}H", octets))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
