# SPDX-License-Identifier: GPL-3.0-or-later
"""What guests may send, as tables of nftables: one of family bridge for their frames, one of family inet for the host.

Everything is said of taps by name. The chains are the same for all; sets have what each tap may do, so a NIC that comes
or goes changes elements and no rule. A tap with the agent's prefix that the sets do not know sends and hears nothing: a
guest may start before the agent has heard of it. In the order of the chains:

* a frame comes from the NIC's MAC, and is ARP, IPv4, IPv6 or RARP (QEMU's word after a migration);
* ARP, IPv4 and neighbour advertisements come from addresses of the NIC; nobody is DHCP server or router;
* an address that the host's DHCP gives is learned from its answer, on the way to the tap;
* what has come from a tap bears ``MARK``, so that the host knows it when it is meant itself.

A tap that Open vSwitch has is on no bridge, and OVN says what may come from it. Where ovs-vswitchd forwards by itself
(datapath netdev) the kernel sees its packets too, as of any device, and would take what is sent to the tap's own MAC
address: the host drops that, whatever it is.

What security groups say of taps is in ``group_filter``.
"""

from __future__ import annotations

import json
import logging
import select
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_network
from pathlib import Path

from magnetar_agent.host.networks import Port, PortFilter
from magnetar_core.addresses import link_local
from magnetar_core.errors import HypervisorError

from . import conntrack, group_filter, netlink

log = logging.getLogger(__name__)

#: A bit of the mark of packets that no other program is known to use.
MARK = "0x40000000"
#: What passes before this table may be no frame of the guest's; the metadata service's table looks at them at -300.
PRIORITY = -310
#: How long an address that DHCP gave is a NIC's: twice a lease of dnsmasq's, which is renewed after half of it.
LEASE = "2h"
#: Seconds that ``nft`` may take.
TIMEOUT = 20.0
#: Set to the type of its elements, of family bridge. Where nftables has no type for a field it is named by its place:
#: the hardware address of a DHCP request, the target of a neighbour advertisement, the address in a DHCP answer.
SETS = {
    "taps": "type ifname;", "open": "type ifname;", "any4": "type ifname;", "any6": "type ifname;",
    "leased": "type ifname;", "networks6": "type ifname;",
    "macs": "type ifname . ether_addr;", "cards": "typeof iifname . @th,288,48;",
    "own4": "type ifname . ipv4_addr;", "own6": "type ifname . ipv6_addr;", "targets": "typeof iifname . @th,64,128;",
    "range4": "type ifname . ipv4_addr; flags interval;", "range6": "type ifname . ipv6_addr; flags interval;",
    "not4": "type ifname . ipv4_addr;",
}
LEARNED = f"typeof oifname . @th,192,32; flags dynamic,timeout; timeout {LEASE}; size 65536;"
#: Named counters of what is dropped, in both tables.
DROPS = ("unknown_tap", "false_mac", "other_protocol", "false_arp", "false_ipv4", "false_ipv6", "false_neighbour",
         "dhcp_server", "router")
CLOSED = "closed_port"
Element = tuple[str, str]
#: Of netlink (linux/netlink.h, linux/netfilter/nfnetlink.h): how to hear a group, the group of nftables,
#: and its message that a table is gone.
_NETLINK, _JOIN, _GROUP, _TABLE_GONE = 270, 1, 7, (10 << 8) | 2


def table(prefix: str) -> str:
    """The name of both tables."""
    return f"magnetar_ports_{prefix}"


# What is in the sets -------------------------------------------------------------------------------------------------
def elements(wanted: PortFilter) -> frozenset[Element]:
    """(set, element) of all that the sets are to have; ``bridges`` is of the table of family inet."""
    return frozenset([*(one for port in wanted.ports for one in _of_port(port)),
                      *(("bridges", f'"{name}"') for name in wanted.bridges), *group_filter.elements(wanted)])


def _of_port(port: Port) -> Iterable[Element]:
    if port.switched:
        return
    tap = f'"{port.tap}"'
    yield "taps", tap
    if not port.secure:
        yield "open", tap
        return
    yield "macs", f"{tap} . {port.mac}"
    yield "cards", f"{tap} . 0x{port.mac.replace(':', '')}"
    if port.ipv4 is None:
        yield "any4", tap
    if port.dhcp:
        yield "leased", tap
    for one in port.not_from:
        yield "not4", f"{tap} . {one}"
    for given in port.ipv4 or ():
        yield ("range4" if "/" in given else "own4"), f"{tap} . {given}"
    if port.ipv6 is None:
        yield "any6", tap
        return
    for given in dict.fromkeys((link_local(port.mac), *port.ipv6)):
        if "/" in given:
            yield "range6", f"{tap} . {ip_network(given)}"
            yield "networks6", tap
        else:
            yield "own6", f"{tap} . {given}"
            yield "targets", f"{tap} . {int(IPv6Address(given)):#034x}"


# What nft is told ----------------------------------------------------------------------------------------------------
def removal(prefix: str) -> str:
    """Nothing is left."""
    return "".join(f"add table {family} {table(prefix)}\ndelete table {family} {table(prefix)}\n"
                   for family in ("bridge", "inet"))


def change(before: PortFilter, wanted: PortFilter) -> str:
    """What differs between the two, in one transaction."""
    had, has = (elements(replace(one, ports=one.ports - other.ports, groups=one.groups - other.groups))
                for one, other in ((before, wanted), (wanted, before)))
    first, after = group_filter.change(table(wanted.prefix), before, wanted)
    return (first + _elements("delete", wanted.prefix, had - has) + _elements("add", wanted.prefix, has - had) + after)


def is_a_change(before: PortFilter, wanted: PortFilter) -> bool:
    """Whether only elements, and chains of groups, differ between the two."""
    return (bool(before.ports or before.bridges) and before.open_ports == wanted.open_ports
            and group_filter.is_used(before) == group_filter.is_used(wanted))


def allowing(prefix: str, leased: Iterable[tuple[str, str]]) -> str:
    """Addresses that were given before the table was there."""
    return _elements("add", prefix, {("learned", f'"{tap}" . {int(IPv4Address(one)):#x} timeout {LEASE}')
                                     for tap, one in leased})


def _elements(verb: str, prefix: str, found: Iterable[Element]) -> str:
    by_set: dict[str, list[str]] = {}
    for name, element in sorted(found):
        by_set.setdefault(name, []).append(element if verb == "add" else element.partition(" : ")[0])
    return "".join(f"{verb} element {'inet' if name == 'bridges' else 'bridge'} {table(prefix)} {name} "
                   f"{{ {', '.join(each)} }}\n" for name, each in by_set.items())


def replacement(wanted: PortFilter, leased: Iterable[tuple[str, str]], bridges_follow: bool = True) -> str:
    """Both tables anew, in one transaction: no packet meets half of them. *bridges_follow*: see ``group_filter``."""
    found: dict[str, list[str]] = {}
    for set_, element in sorted(elements(wanted)):
        found.setdefault(set_, []).append(element)

    def filled(name: str, type: str, kind: str = "set") -> str:
        there = f"elements = {{ {', '.join(found[name])} }}" if name in found else ""
        return f"{kind} {name} {{ {type} {there} }}"

    groups = group_filter.is_used(wanted)
    return "\n".join((
        removal(wanted.prefix) + f"table bridge {table(wanted.prefix)} {{",
        *(f"counter {name} {{ }}" for name in (*DROPS, *group_filter.DROPS.values())),
        *(filled(name, type) for name, type in SETS.items()), f"set learned {{ {LEARNED} }}", *_frames(wanted.prefix),
        *(group_filter.frame(wanted.prefix, wanted.metadata, bridges_follow) if groups else ()),
        *(filled(name, type, kind) for name, (kind, type) in group_filter.sets(wanted).items()),
        *(line for name, rules in group_filter.chains(wanted).items() for line in (f"chain {name} {{", *rules, "}")),
        "}",
        f"table inet {table(wanted.prefix)} {{", f"counter {CLOSED} {{ }}", filled("bridges", "type ifname;"),
        *_host(wanted.prefix, wanted.open_ports), *(group_filter.following() if groups else ()), "}",
        allowing(wanted.prefix, leased)))


def _frames(prefix: str) -> tuple[str, ...]:
    """The chains of family bridge."""
    def drop(name: str) -> str:
        return f"counter name {name} drop"

    new = "icmpv6 type { nd-neighbor-solicit, nd-router-solicit, mld-listener-report, mld2-listener-report }"
    return (
        f"chain from_taps {{ type filter hook prerouting priority {PRIORITY}; policy accept;",
        f'iifname "{prefix}*" goto guest', "}",
        # What DHCP of the host answers; a broadcast passes here for each tap, and is for the one whose card asked.
        "chain to_taps { type filter hook output priority 0; policy accept;",
        f'oifname "{prefix}*" udp sport 67 udp dport 68 oifname . @th,288,48 @cards '
        f"update @learned {{ oifname . @th,192,32 timeout {LEASE} }}", "}",
        f"chain to_unknown {{ type filter hook postrouting priority {group_filter.JUDGED}; policy accept;",
        f'oifname "{prefix}*" oifname != @taps {drop("unknown_tap")}', "}",
        "chain guest {", f"iifname != @taps {drop('unknown_tap')}", f"meta mark set meta mark | {MARK}",
        "iifname @open accept", f"iifname . ether saddr != @macs {drop('false_mac')}",
        "ether type vmap { arp : goto arp_frames, ip : goto ipv4_frames, ip6 : goto ipv6_frames, 0x8035 : accept }",
        drop("other_protocol"), "}",
        "chain arp_frames {", f"arp htype != 1 {drop('false_arp')}", f"arp ptype != ip {drop('false_arp')}",
        f"arp hlen != 6 {drop('false_arp')}", f"arp plen != 4 {drop('false_arp')}",
        f"iifname . arp saddr ether != @macs {drop('false_arp')}", "arp saddr ip 0.0.0.0 arp operation request accept",
        f"iifname . arp saddr ip @not4 {drop('false_arp')}", "iifname . arp saddr ip @own4 accept",
        "iifname @leased iifname . @nh,112,32 @learned accept", "iifname . arp saddr ip @range4 accept",
        "iifname @any4 accept", drop("false_arp"), "}",
        "chain ipv4_frames {", f"udp dport 68 {drop('dhcp_server')}",
        f"udp dport 67 iifname . @th,288,48 != @cards {drop('false_mac')}",
        "ip saddr 0.0.0.0 udp sport 68 udp dport 67 accept", f"iifname . ip saddr @not4 {drop('false_ipv4')}",
        "iifname . ip saddr @own4 accept", "iifname @leased iifname . @nh,96,32 @learned accept",
        "iifname . ip saddr @range4 accept", "iifname @any4 accept", drop("false_ipv4"), "}",
        "chain ipv6_frames {", f"icmpv6 type {{ nd-router-advert, nd-redirect }} {drop('router')}",
        f"udp dport 546 {drop('dhcp_server')}",
        # No neighbour discovery in pieces (RFC 6980): what is behind the first piece could not be looked at.
        f"ip6 daddr ff00::/8 exthdr frag exists {drop('false_ipv6')}", "iifname @any6 accept",
        "icmpv6 type nd-neighbor-advert jump neighbours",
        "ip6 saddr :: icmpv6 type nd-neighbor-solicit jump neighbours",
        f"ip6 saddr :: {new} accept", "iifname . ip6 saddr @own6 accept", "iifname . ip6 saddr @range6 accept",
        drop("false_ipv6"), "}",
        "chain neighbours {", "iifname . @th,64,128 @targets return", "iifname @networks6 return",
        drop("false_neighbour"), "}")


def _host(prefix: str, open_ports: Sequence[str]) -> tuple[str, ...]:
    """The chains of family inet: what guests reach of the host. A drop here is final, whatever other tables accept."""
    opened = [f"{protocol} dport {ports} accept" for protocol, _slash, ports in
              (one.partition("/") for one in open_ports)]
    return (
        # Of what is on a bridge the kernel names the bridge here: a tap itself is one of Open vSwitch's.
        f"chain switched {{ type filter hook prerouting priority {PRIORITY}; policy accept;",
        f'iifname "{prefix}*" counter name {CLOSED} drop', "}",
        "chain to_host { type filter hook input priority -10; policy accept;",
        f"meta mark & {MARK} == {MARK} goto guests", "iifname @bridges goto guests", "}",
        "chain guests {", "ct state established,related accept", "udp sport 68 udp dport 67 accept",
        # The host's address on the very bridge, and no other of its addresses.
        "fib daddr . iif type local meta l4proto { tcp, udp } th dport 53 accept", "icmp type echo-request accept",
        "icmpv6 type { echo-request, nd-neighbor-solicit, nd-neighbor-advert } accept", *opened,
        f"counter name {CLOSED} drop", "}")


# Doing it ------------------------------------------------------------------------------------------------------------
class NftPortFilter:
    """The part of ``LocalHypervisor`` for port filters."""

    _end: socket.socket | None = None

    def filter_ports(self, wanted: PortFilter, before: PortFilter | None = None) -> None:
        """``nft -f``, one transaction."""
        if not wanted.ports and not wanted.bridges:
            _nft(removal(wanted.prefix))
        elif before is None or not is_a_change(before, wanted):
            follow = group_filter.is_used(wanted) and _bridges_follow()
            _nft(replacement(wanted, _learned(wanted.prefix), follow))
            if group_filter.is_used(wanted) and not follow:
                _check_layer()
        elif script := change(before, wanted):
            _nft(script)
        _end_connections(before, wanted)

    def filters_ports(self, prefix: str) -> bool:
        """``nft list``, of both tables."""
        return all(_ran("-t", "list", "table", family, table(prefix)).returncode == 0 for family in ("bridge", "inet"))

    def on_filters_gone(self, listener: Callable[[], None]) -> None:
        """What netlink tells of nftables: the removal of any table."""
        bell = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.NETFILTER)
        bell.bind((0, 0))
        bell.setsockopt(_NETLINK, _JOIN, _GROUP)
        self._end, end = socket.socketpair()
        threading.Thread(target=_hear, args=(bell, end, listener), name="filters-gone", daemon=True).start()

    def end_filters(self) -> None:
        """Hear of nothing more."""
        if self._end is not None:
            self._end.close()

    def allow_leased(self, prefix: str, leased: Sequence[tuple[str, str]]) -> None:
        """``nft add element``."""
        if leased:
            _nft(allowing(prefix, leased))


def _end_connections(before: PortFilter | None, wanted: PortFilter) -> None:
    """Have the kernel forget what is not let begin any more: answers pass by its word alone."""
    if taps := group_filter.lessened(before, wanted):
        try:
            if over := list(group_filter.ended(wanted, taps, conntrack.flows())):
                log.info("%d connections of guests end, as no security group lets them begin any more",
                         conntrack.end(over))
        except OSError as error:
            log.warning("answers that security groups let pass no more may go on, as connections cannot be ended: %s",
                        error)


def _hear(bell: socket.socket, end: socket.socket, listener: Callable[[], None]) -> None:
    watch = select.poll()  # select() takes no descriptor above 1,023
    with bell, end:
        for one in (bell, end):
            watch.register(one, select.POLLIN)
        while end.fileno() not in (descriptor for descriptor, _event in watch.poll()):
            try:
                said = bell.recv(1 << 16)
            except OSError:  # too much was said at once; perhaps that, too
                said = b""
            if not said or _gone(said):
                listener()


def _gone(said: bytes) -> bool:
    """Whether one of the messages says that a table is gone."""
    return any(kind == _TABLE_GONE for kind, _begin, _end in netlink.messages(said))


def _learned(prefix: str) -> list[tuple[str, str]]:
    """Taps and addresses that the loaded table has learned from answers of DHCP."""
    done = _ran("-j", "list", "set", "bridge", table(prefix), "learned")
    if done.returncode:
        return []
    sets = [one["set"] for one in json.loads(done.stdout)["nftables"] if "set" in one]
    found = [one["elem"]["val"]["concat"] for one in sets[0].get("elem", ())]
    return [(tap, str(IPv4Address(address))) for tap, address in found]


def _bridges_follow() -> bool:
    """Whether bridges follow connections of themselves."""
    probe = "table bridge magnetar_probe { chain one { ct state new accept; }; }"
    return _ran("-c", "-f", "-", given=probe).returncode == 0


def _check_layer() -> None:
    """Raise ``HypervisorError`` where the IP layer does not see bridged packets either: answers between guests of a
    bridge need rules there."""
    for name in ("iptables", "ip6tables"):
        switch = Path(f"/proc/sys/net/bridge/bridge-nf-call-{name}")
        if not switch.exists() or switch.read_text().strip() == "0":
            raise HypervisorError("Security groups drop answers between guests of this host: nobody follows their "
                                  "connections. Load the module nf_conntrack_bridge (Linux 5.3), or set "
                                  f"{str(switch).removeprefix('/proc/sys/').replace('/', '.')} to 1.")


def _nft(script: str) -> None:
    done = _ran("-f", "-", given=script)
    if done.returncode:
        raise HypervisorError(f"nft refuses the filter of guests' ports: {done.stderr.strip()[:500]}")


def _ran(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 (a list of ours; no shell)
            ["nft", *words], input=given, check=False, capture_output=True, text=True, timeout=TIMEOUT)  # noqa: S607
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HypervisorError(f"Guests' ports are filtered by nft, which cannot be run: {error}.") from None
