# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernel rules, made with ``ip`` and ``nft``, that bring guests' requests to the metadata service.

Each bridge with guests has one device of a veth pair; its peer is in a network namespace of the service, so the host
itself gets no further address, and no open port. A table of family bridge identifies guests by the index of the tap
that a packet comes from. No guest can choose this index, and the kernel never uses one again:

* Packets to 169.254.169.254, port 80, are redirected to the bridge's device, even if their next hop is a router.
* Their destination is replaced by the address of the tap (``metadata.tap_addresses``), which identifies the guest to
  the service.
* An answer from that address goes to that tap only, regardless of the ARP replies of other guests.
* All packets but these, ARP and neighbour discovery are dropped: other ports, guests of other programs, other hosts.

An Open vSwitch tap is on no bridge of the kernel. It has its own device and namespace. A table of family netdev takes
packets to the service off the tap before Open vSwitch gets them, and puts answers into the tap. (If ovs-vswitchd
itself forwards packets, it gets them too; then the network service's rules drop them.)

The namespace accepts only requests from the *seal*, a source MAC address that the table sets: without the table no
guest gets an answer.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path

from magnetar_core.errors import HypervisorError

from . import ADDRESS, ADDRESS6, PORT, TAPS, TAPS6, tap_addresses

#: The name of a device's other end, within a namespace.
INNER = "guests"
#: New connections of one guest: per second, and in a burst.
RATE, BURST = 500, 1000
#: The kernel's folder of devices.
DEVICES = Path("/sys/class/net")
#: Families of nftables that have a table.
FAMILIES = ("bridge", "netdev")
#: Seconds that ``ip`` or ``nft`` may take.
TIMEOUT = 20.0


@dataclass(frozen=True)
class Steering:
    """The names of the kernel objects of one agent's metadata service, which differ between several agents on a
    machine. *table*: the name of the service's nftables tables. *device*: the name prefix of the service's veth
    devices."""

    table: str
    device: str

    @classmethod
    def of(cls, state_dir: Path) -> Steering:
        """Return the names for the agent with the folder *state_dir*."""
        mark = hashlib.sha256(bytes(state_dir)).hexdigest()[:6]
        return cls(f"magnetar_metadata_{mark}", f"mg{mark}")

    def load(self, taps: Sequence[SteeredTap], seal: str) -> bool:
        """Replace the nftables rules by rules for *taps*. *seal*: the secret source MAC that the rules give to guests'
        requests, so that the service recognises requests that have passed the rules. Return ``False`` if an Open
        vSwitch tap has disappeared meanwhile; in this case no requests from Open vSwitch taps reach the service until
        the next call."""
        bridged = bridge_rules(self, [tap for tap in taps if not tap.switched], seal)
        switched = [tap for tap in taps if tap.switched]
        if not switched:  # one process is enough
            run_network_program(["nft", "-f", "-"], bridged + switched_rules(self, (), seal))
            return True
        run_network_program(["nft", "-f", "-"], bridged)
        try:
            run_network_program(["nft", "-f", "-"], switched_rules(self, switched, seal))
        except HypervisorError:
            if all((DEVICES / tap.switched).exists() for tap in switched):
                raise
            run_network_program(["nft", "-f", "-"], switched_rules(self, (), seal))
            return False
        return True

    def loaded(self) -> bool:
        """Return whether the nftables tables exist. A reload of the host's firewall may have flushed them."""
        tables = _ran(["nft", "list", "tables"]).stdout.splitlines()
        return all(f"table {family} {self.table}" in tables for family in FAMILIES)

    def unload(self) -> None:
        """Remove the nftables tables, if they exist."""
        run_network_program(["nft", "-f", "-"], "".join(_without(family, self.table) for family in FAMILIES))

    def attach(self, bridge: str | None, index: int, namespace: int) -> None:
        """Create the veth device number *index* and connect it to *bridge* (``None``: to no bridge). Its peer is put
        into the network namespace with the descriptor *namespace*."""
        device = f"{self.device}{index}"
        self.detach(index)
        # On no bridge, the host itself must not use it as a link of its own.
        place = f"master {bridge}" if bridge else "addrgenmode none"
        run_network_program(["ip", "-batch", "-"],
                            f"link add {device} type veth peer name {INNER} netns /proc/self/fd/{namespace}\n"
                            f"link set {device} {place}\nlink set {device} up\n", (namespace,))

    def detach(self, index: int) -> None:
        """Remove the veth device number *index*, if it exists."""
        _ran(["ip", "link", "delete", f"{self.device}{index}"])


@dataclass(frozen=True)
class SteeredTap:
    """A tap device whose guest can use the metadata service. *index*: its interface index. *number*: the argument of
    ``tap_addresses``. *service_mac*: the MAC of the service on the tap's bridge. *switched*: the tap's name if it is in
    Open vSwitch, otherwise empty."""

    index: int
    number: int
    service_mac: str
    switched: str = ""


def bridge_rules(names: Steering, taps: Sequence[SteeredTap], seal: str) -> str:
    """Return input for ``nft`` that replaces the table of family bridge by rules for *taps*, which are on kernel
    bridges. *names*: has the table's name. *seal*: the secret source MAC that the rules give to guests' requests, so
    that the service recognises requests that have passed the rules."""
    steered = [(tap.index, *tap_addresses(tap.number), tap.service_mac) for tap in taps]
    to = ADDRESS, ADDRESS6
    sides = [
        (f"arp operation request arp daddr ip {to[0]} accept", "arp operation reply accept"),
        ("icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",),
        (f"tcp dport != {PORT} drop", "tcp flags & (syn | ack) == syn update @new { iif limit rate over "
         f"{RATE}/second burst {BURST} packets }} drop"),
        (f"ip daddr {to[0]} tcp dport {PORT} ether saddr set {seal} ip daddr set iif map @own accept",
         f"ip6 daddr {to[1]} tcp dport {PORT} ether saddr set {seal} ip6 daddr set iif map @own6 accept", "drop"),
    ]
    return "\n".join((
        _without("bridge", names.table), f"table bridge {names.table} {{",
        _set("set taps", "iface_index", (str(index) for index, *_rest in steered)),
        _set("map gate", "iface_index : ether_addr",
             (f"{index} : {service_mac}" for index, _four, _six, service_mac in steered)),
        _set("map own", "iface_index : ipv4_addr", (f"{index} : {four}" for index, four, _six, _gate in steered)),
        _set("map own6", "iface_index : ipv6_addr", (f"{index} : {six}" for index, _four, six, _gate in steered)),
        _set("set back", "ipv4_addr . iface_index", (f"{four} . {index}" for index, four, _six, _gate in steered)),
        _set("set back6", "ipv6_addr . iface_index", (f"{six} . {index}" for index, _four, six, _gate in steered)),
        "set new { type iface_index; flags dynamic, timeout; timeout 10s; size 65536; }",
        "chain steer { type filter hook prerouting priority -300; policy accept;",
        # If bridged packets pass the host's own rules (br_netfilter), libvirt's masquerading would take them otherwise.
        f"ip daddr {to[0]} tcp dport {PORT} notrack ether daddr set iif map @gate",
        f"ip6 daddr {to[1]} tcp dport {PORT} notrack", f'iifname "{names.device}*" notrack', "}",
        "chain pass { type filter hook forward priority -300; policy accept;",
        f'oifname "{names.device}*" goto into', f'iifname "{names.device}*" goto out', "}",
        # The service's own devices and the host exchange no packets.
        "chain host { type filter hook input priority -300; policy accept;", f'iifname "{names.device}*" drop', "}",
        "chain own_host { type filter hook output priority -300; policy accept;",
        f'oifname "{names.device}*" drop', "}",
        "chain into {", "iif != @taps drop", *(line for side in sides for line in side), "}",
        "chain out {", "oif != @taps drop", f"ether type arp arp saddr ip set {to[0]} accept",
        "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",
        f"tcp sport {PORT} ip saddr . oif @back ip saddr set {to[0]} accept",
        f"tcp sport {PORT} ip6 saddr . oif @back6 ip6 saddr set {to[1]} accept", "drop", "}", "}", ""))


def switched_rules(names: Steering, taps: Sequence[SteeredTap], seal: str) -> str:
    """Return input for ``nft`` that replaces the table of family netdev by rules for *taps*, which are in Open vSwitch.
    *names*: has the table's name. *seal*: the secret source MAC that the rules give to guests' requests, so that the
    service recognises requests that have passed the rules."""
    lines = [_without("netdev", names.table), f"table netdev {names.table} {{"]
    target = f"@th,64,128 {int(IPv6Address(ADDRESS6)):#034x}"
    for tap in taps:
        device, (four, six) = f"{names.device}{tap.index}", tap_addresses(tap.number)
        to, back = f'fwd to "{device}"', f'fwd to "{tap.switched}"'
        request_rules = (f"tcp flags & (syn | ack) == syn limit rate over {RATE}/second burst {BURST} packets drop",
                         f"ether saddr set {seal} ether daddr set {tap.service_mac}")
        lines += [
            f"chain of_{tap.index} {{", *request_rules, f"ip daddr {ADDRESS} ip daddr set {four} {to}",
            f"ip6 daddr {ADDRESS6} ip6 daddr set {six} {to}", "drop", "}",
            f'chain from_{tap.index} {{ type filter hook ingress device "{tap.switched}" priority -300; policy accept;',
            f"arp operation request arp daddr ip {ADDRESS} {to}",
            f"arp operation reply ether daddr {tap.service_mac} {to}",
            f"icmpv6 type nd-neighbor-solicit {target} {to}",
            f"icmpv6 type nd-neighbor-advert ether daddr {tap.service_mac} {to}",
            f"ip daddr {ADDRESS} tcp dport {PORT} goto of_{tap.index}",
            f"ip6 daddr {ADDRESS6} tcp dport {PORT} goto of_{tap.index}", "}",
            f'chain to_{tap.index} {{ type filter hook ingress device "{device}" priority -300; policy drop;',
            f"ether type arp arp saddr ip {ADDRESS} {back}",
            f"icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} {back}",
            f"tcp sport {PORT} ip saddr {four} ip saddr set {ADDRESS} {back}",
            f"tcp sport {PORT} ip6 saddr {six} ip6 saddr set {ADDRESS6} {back}", "}"]
    return "\n".join((*lines, "}", ""))


def _without(family: str, table: str) -> str:
    """Return input for ``nft`` that removes *table* of the nftables *family*, without an error if there is none."""
    return f"add table {family} {table}\ndelete table {family} {table}\n"


def _set(name: str, type: str, elements: Iterable[str]) -> str:
    element_text = ", ".join(elements)
    return f"{name} {{ type {type}; {f'elements = {{ {element_text} }}' if element_text else ''} }}"


def namespace_setup(seal: str) -> tuple[str, str]:
    """Return the input for ``ip -batch`` and the input for ``nft`` that configure a network namespace of the service,
    after the veth peer was put into it. *seal*: the secret source MAC that the nftables rules give to guests' requests,
    so that the service recognises requests that have passed the rules."""
    links = (
        "link set lo up", f"addr add {ADDRESS}/32 dev {INNER}", f"addr add {ADDRESS6}/64 dev {INNER} nodad",
        f"link set {INNER} up", f"route add default dev {INNER}", f"route add local {TAPS}/4 dev lo",
        f"route add local {TAPS6}/64 dev lo", f"route add ::/0 dev {INNER}")
    rules = ("table inet magnetar {", "chain input { type filter hook input priority 0; policy drop;",
             f"iif {INNER} ether saddr {seal} tcp dport {PORT} accept",
             "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept", "}",
             "chain forward { type filter hook forward priority 0; policy drop; }", "}", "")
    return "\n".join(links) + "\n", "\n".join(rules)


# Running programs ---------------------------------------------------------------------------------------------------
def run_network_program(words: Sequence[str], input_text: str = "", descriptors: Sequence[int] = ()) -> str:
    """Run a program (*words*: its name and arguments) with *input_text* as input, and return its output. *descriptors*:
    open files for the program to inherit. Raises ``HypervisorError`` with its error output if it fails."""
    done = _ran(words, input_text, descriptors)
    if done.returncode:
        raise HypervisorError(f"{words[0]} refuses what the metadata service needs: {done.stderr.strip()[:500]}")
    return done.stdout


def _ran(words: Sequence[str], input_text: str = "",
         descriptors: Sequence[int] = ()) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 (a list of ours; no shell)
            list(words), input=input_text, check=False, capture_output=True, text=True, timeout=TIMEOUT,
            pass_fds=tuple(descriptors))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HypervisorError(f"The metadata service needs {words[0]}, which cannot be run: {error}.") from None
