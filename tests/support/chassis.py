# SPDX-License-Identifier: GPL-3.0-or-later
"""A host of OVN in a folder of a test: Open vSwitch with its datapath for tests (no root, no device), and
ovn-controller. Tests send packets to ports as bytes, and count the packets that leave by a port."""

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
    """A running host of OVN. *south*: the URL of the southbound database; *name* and *number*: the host's own in that
    database. ``bridge``: the integration bridge, in the form for ``ovs-ofctl``."""

    def __init__(self, folder: Path, south: str, name: str = "h1", number: int = 1) -> None:
        super().__init__(folder)
        self.south, self.name, self.number = south, name, number
        self.bridge = f"unix:{folder}/{BRIDGE}.mgmt"
        self._controller = str(unpacked() / "usr/bin/ovn-controller")

    def start(self) -> LabChassis:
        """Start the database, ovs-vswitchd and ovn-controller."""
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
        """End all processes. The database ends last, because the others wait for it."""
        for name in ("controller", "vswitchd", "ovsdb"):
            if name in self._processes:
                self.end(name)

    def vsctl(self, *words: str) -> str:
        """Return the output of ``ovs-vsctl``."""
        return self._run("ovs-vsctl", f"--db=unix:{self.folder}/ovsdb.sock", "--timeout=30", *words)

    def plug(self, port: str, device: str = "") -> None:
        """Bind the OVN port *port* to this host, with a device named *device* or like the port."""
        device = device or port
        self.vsctl("add-port", BRIDGE, device, "--", "set", "interface", device, "type=dummy",
                   f"external_ids:iface-id={port}")

    def send(self, port: str, frame: bytes) -> None:
        """Send *frame* as the guest at *port*."""
        self._run("ovs-appctl", "-t", f"{self.folder}/vswitchd.ctl", "netdev-dummy/receive", port, frame.hex())

    def left(self, port: str) -> int:
        """Return the number of packets that were sent out of *port*, to its guest."""
        said = self._run("ovs-ofctl", "dump-ports", self.bridge, port)
        found = re.search(r"tx pkts=(\d+)", said)
        assert found, said
        return int(found[1])

    def flows(self, match: str) -> list[str]:
        """Return the flows of the bridge that match; none while the bridge does not exist."""
        done = subprocess.run(["ovs-ofctl", "dump-flows", self.bridge, match], env=self.environment,  # noqa: PLW1510
                              capture_output=True, text=True, timeout=60)
        return done.stdout.splitlines()[1:]

    def dropped(self, match: str) -> int:
        """Return the number of packets that the matching flows have had since their creation."""
        return sum(int(one.partition("n_packets=")[2].partition(",")[0]) for one in self.flows(match))

    def forget(self, match: str) -> None:
        """Remove the matching flows, as if another program did."""
        self._run("ovs-ofctl", "del-flows", self.bridge, match)


def advertisement(mac: str, to: str = "33:33:00:00:00:01", target: str = "ff02::1") -> bytes:
    """Return an Ethernet frame with a router advertisement (RFC 4861, section 4.2) from the link-local address of
    *mac*."""
    said = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
    ends = IPv6Address(link_local(mac)).packed + IPv6Address(target).packed
    said = said[:2] + struct.pack("!H", _checksum(ends + struct.pack("!II", len(said), 58) + said)) + said[4:]
    header = struct.pack("!IHBB", 6 << 28, len(said), 58, 255) + ends
    return bytes.fromhex(f"{to}{mac}".replace(":", "")) + b"\x86\xdd" + header + said


def _checksum(octets: bytes) -> int:
    """Return the Internet checksum (RFC 1071) of the bytes."""
    total = sum(struct.unpack(f"!{len(octets) // 2}H", octets))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
