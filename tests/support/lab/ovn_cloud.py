# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud on a real OVN: API, conductor and network service on the machine, agents on hosts of a `bare.Site`.

    with cloud_of(folder, ["bare1", "bare2"], guest_image["disk"]) as cloud:
        cloud.project("alpha")
        cloud.of["alpha"].ask("network create lan")
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from tests.support.lab import bare
from tests.support.lab.clients import Clients
from tests.support.lab.ovn import Guests, Ovn
from tests.support.lab.plane import LabControl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

#: Seconds within which an emulated guest answers, even on a busy machine.
PATIENCE = 3.0
#: Addresses of servers by project and name, of which the first letters are the same; one is in two projects.
ADDRESSES = {"alpha": {"a1": "10.5.0.11", "a2": "10.5.0.12"}, "beta": {"b1": "10.5.0.12"}}


class Beside(NamedTuple):
    """What a control plane needs of its surroundings: a folder, the endpoint of an agent, the range of its first
    network.
    """

    folder: Path
    endpoint: str
    cidr: str


class Server(NamedTuple):
    """The host of a server, and the server's address."""

    host: str
    id: str
    address: str


class Cloud:
    """The hosts, their agents, OVN, the control plane, and a client for each project and one for the administrator."""

    def __init__(self, site: bare.Site, ovn: Ovn, control: LabControl) -> None:
        self.site, self.ovn, self.control, self.guests = site, ovn, control, Guests(site)
        self.admin = Clients(control.folder / "clouds.yaml", site.folder)
        self.of: dict[str, Clients] = {}
        #: The floating IP of a1.
        self.floating = ""

    def project(self, name: str) -> None:
        """Create a project, and a user of the same name who is a member of it."""
        self.admin.ask(f"project create {name}")
        self.admin.ask(f"user create --project {name} --password {name}-secret {name}")
        self.admin.ask(f"role add --project {name} --user {name} member")
        path = self.site.folder / f"{name}.yaml"
        known = yaml.safe_load(self.admin.clouds.read_text())
        known["clouds"]["magnetar"]["auth"].update(username=name, project_name=name, password=f"{name}-secret")
        path.write_text(yaml.safe_dump(known))
        self.of[name] = Clients(path, self.site.folder)

    def server(self, name: str) -> Server:
        """Return host and address of the server *name*, whose project's name begins with the same letter."""
        (project,) = (one for one in self.of if one[0] == name[0])
        (row,) = (one for one in self.admin.json("server list --all-projects --long") if one["Name"] == name)
        assert row["Status"] == "ACTIVE", self.admin.json(f"server show {row['ID']}").get("fault")
        return Server(row["Host"], row["ID"], ADDRESSES[project][name])

    def json_of(self, name: str) -> dict[str, Any]:
        """Return the document of the server *name* as the administrator sees it."""
        (row,) = (one for one in self.admin.json("server list --all-projects") if one["Name"] == name)
        shown: dict[str, Any] = self.admin.json(f"server show {row['ID']}")
        return shown

    def sh(self, name: str, script: str) -> str:
        """Return the output of a script in the server's guest."""
        at = self.server(name)
        return self.guests.sh(at.host, at.id, script)

    def reaches(self, name: str, address: str) -> bool:
        """Return whether pings of the guest to *address* are answered."""
        return "bytes from" in self.sh(name, f"ping -c 2 -W 1 {address}")

    def pinging(self, name: str, address: str) -> None:
        """Let the guest ping *address* five times a second until ``unanswered``."""
        self.sh(name, f"ping -i 0.2 {address} >/run/pings 2>&1 & true")

    def unanswered(self, name: str) -> tuple[int, int]:
        """End the pings of the guest. Return the largest number in a row without an answer, and the number of all
        answers.
        """
        came = [int(one) for one in self.sh(
            name, "kill -INT $(pidof ping); sleep 1; sed -n 's/.* seq=\\([0-9]*\\) .*/\\1/p' /run/pings").split()]
        return max(after - before for before, after in pairwise(came)) - 1, len(came)

    def says(self, name: str, address: str) -> str:
        """Return the text that *address* sends to the guest by TCP from port 77."""
        return self.sh(name, f"sleep 2 | nc -w 5 {address} 77 2>/dev/null").strip()

    def outside(self) -> None:
        """Create the external network ext, whose gateway is this machine."""
        machine = self.site.machine_address
        net = machine.rpartition(".")[0]
        self.admin.ask("network create ext --external --provider-network-type flat --provider-physical-network public")
        self.admin.ask(f"subnet create --network ext --subnet-range {net}.0/24 --gateway {machine} --no-dhcp "
                       f"--allocation-pool start={net}.200,end={net}.250 ext-v4")

    def pings(self) -> bool:
        """Return whether the floating IP answers pings of this machine."""
        return answer(self.floating) is not None

    def dials(self, address: str, port: int) -> str:
        """Return the text that *address* sends to this machine by TCP; "" when nothing answers."""
        try:
            with socket.create_connection((address, port), 5) as line:
                return line.recv(100).decode().strip()
        except OSError:
            return ""


def answer(address: str, identifier: int | None = None) -> int | None:
    """Return the DSCP of the answer to an echo request (RFC 792) of this machine, which need not have ``ping``;
    ``None`` when there is no answer within `PATIENCE`. Requests with the same *identifier*, by default this process's,
    belong to one connection.
    """
    head = struct.pack("!BBHHH", 8, 0, 0, os.getpid() & 0xFFFF if identifier is None else identifier, 1)
    total = sum(struct.unpack("!4H", head))
    request = head[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + head[4:]
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as line:
        line.sendto(request, (address, 0))
        end = time.monotonic() + PATIENCE
        while (left := end - time.monotonic()) > 0:
            line.settimeout(left)
            try:
                said, (sender, _port) = line.recvfrom(1500)
            except TimeoutError:
                break
            body = said[(said[0] & 15) * 4:]
            if sender == address and body[0] == 0 and body[4:8] == head[4:8]:
                return said[1] >> 2
    return None


@contextmanager
def cloud_of(folder: Path, names: Sequence[str], disk: Path, **settings: object) -> Iterator[Cloud]:
    """Run a cloud on hosts with these names, the first of which also runs OVN's central. Print the control plane's log
    at the end.
    """
    with ExitStack() as stack:
        site = stack.enter_context(bare.Site(folder, names, packed=names, ovn=True))
        site.play("magnetar.compute.agents")
        ovn = stack.enter_context(Ovn(site, physical="public"))
        ovn.central.run(["ovn-nbctl", "set-connection", "ptcp:6641"])
        pki = folder / "magnetar-pki"
        control = stack.enter_context(LabControl(
            Beside(folder, "", "10.20.0.0/16"),
            hosts={name: f"https://{host.address}:6553" for name, host in site.hosts.items()},
            agent_ca_cert=str(pki / "ca.pem"), agent_client_cert=str(pki / "clients/admin.pem"),
            agent_client_key=str(pki / "clients/admin.key"), ovn_northbound=f"tcp:{ovn.central.address}:6641",
            ovn_wait=5.0, **settings))
        found = Cloud(site, ovn, control)
        admin = found.admin
        admin.ask(f"image create tiny --public --disk-format qcow2 --container-format bare --file {disk}")
        admin.ask("flavor create tiny --vcpus 1 --ram 128 --disk 1")
        yield found
        print("".join(one for one in control.log.read_text().splitlines(keepends=True) if '"info"' not in one)[-6000:])


@contextmanager
def knocking(address: str, port: int) -> Iterator[list[str]]:
    """Connect to *address* by TCP again and again within the context; yield a list of the texts that it sends."""
    over, said = threading.Event(), list[str]()

    def knock() -> None:
        while not over.is_set():
            with suppress(OSError), socket.create_connection((address, port), 0.5) as line:
                said.append(line.recv(100).decode())

    thread = threading.Thread(target=knock)
    thread.start()
    try:
        yield said
    finally:
        over.set()
        thread.join()
