# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of guests' frames, as tables of nftables: one of family bridge for the frames, one of family inet for the
host.

Rules name taps. The chains are the same for all; sets hold the permissions of each tap, so a NIC that is added or
removed changes elements and no rule. A tap with the agent's prefix that the sets do not know sends and receives
nothing: a guest may start before the agent knows of it. In the order of the chains:

* a frame comes from the NIC's MAC, and is ARP, IPv4, IPv6 or RARP (which QEMU sends after a migration);
* ARP, IPv4 and neighbour advertisements come from addresses of the NIC; no guest is DHCP server or router;
* an address that the host's DHCP gives is learned from its answer, on the way to the tap;
* frames from a tap get ``MARK``, so that the host knows their origin when they are sent to it.

A tap in Open vSwitch is on no bridge, and OVN filters its frames. If ovs-vswitchd forwards by itself (datapath netdev),
the kernel sees the tap's packets too, as of any device, and would take packets to the tap's own MAC address: the host
drops all of them.

``group_filter`` adds the rules of security groups.
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

#: A bit of packets' marks that no other known program uses.
MARK = "0x40000000"
#: The priority: before the metadata service's table at -300, as frames that have not passed this table may be forged.
PRIORITY = -310
#: The time for which a DHCP address belongs to a NIC: twice a lease of dnsmasq, which is renewed after half of it.
LEASE = "2h"
#: Seconds that ``nft`` may take.
TIMEOUT = 20.0
#: Sets with the type of their elements, of family bridge. A field without a type in nftables is named by its offset:
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
#: Named counters of dropped packets, in both tables.
DROPS = ("unknown_tap", "false_mac", "other_protocol", "false_arp", "false_ipv4", "false_ipv6", "false_neighbour",
         "dhcp_server", "router")
CLOSED = "closed_port"
Element = tuple[str, str]
#: Constants of netlink (linux/netlink.h, linux/netfilter/nfnetlink.h): joining a group, the group of nftables, and its
#: message that a table was removed, with the size of its header and the number of its name.
_NETLINK, _JOIN, _GROUP, _TABLE_GONE, _TABLE_HEADER, _TABLE_NAME = 270, 1, 7, (10 << 8) | 2, 4, 1
#: The beginning of the tables' names.
TABLES = "magnetar_ports_"


def table_name(prefix: str) -> str:
    """Return the name that two nftables tables (family bridge and inet) have in common: those that filter taps whose
    names begin with *prefix*."""
    return f"{TABLES}{prefix}"


# Elements of the sets ------------------------------------------------------------------------------------------------
def port_elements(desired: PortFilter) -> frozenset[Element]:
    """Return pairs (set name, element) of all nftables set elements for the filter *desired*."""
    return frozenset([*(element for port in desired.ports for element in _of_port(port)),
                      *(("bridges", f'"{name}"') for name in desired.bridges), *group_filter.group_elements(desired)])


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
    for blocked_address in port.not_from:
        yield "not4", f"{tap} . {blocked_address}"
    for address in port.ipv4 or ():
        yield ("range4" if "/" in address else "own4"), f"{tap} . {address}"
    if port.ipv6 is None:
        yield "any6", tap
        return
    for address in dict.fromkeys((link_local(port.mac), *port.ipv6)):
        if "/" in address:
            yield "range6", f"{tap} . {ip_network(address)}"
            yield "networks6", tap
        else:
            yield "own6", f"{tap} . {address}"
            yield "targets", f"{tap} . {int(IPv6Address(address)):#034x}"


# Scripts for nft -----------------------------------------------------------------------------------------------------
def removal_script(prefix: str) -> str:
    """Return an nftables script that removes the two tables (bridge and inet) for taps whose names begin with *prefix*.
    """
    return "".join(f"add table {family} {table_name(prefix)}\ndelete table {family} {table_name(prefix)}\n"
                   for family in ("bridge", "inet"))


def change_script(loaded: PortFilter, desired: PortFilter) -> str:
    """Return an nftables script that changes the loaded tables from the filter *loaded* to *desired*, in one
    transaction. Only possible if ``is_a_change`` returns true."""
    had, has = (port_elements(replace(port_filter, ports=port_filter.ports - other.ports,
                                      groups=port_filter.groups - other.groups))
                for port_filter, other in ((loaded, desired), (desired, loaded)))
    first, last = group_filter.group_change(table_name(desired.prefix), loaded, desired)
    return (first + _elements("delete", desired.prefix, had - has) + _elements("add", desired.prefix, has - had) + last)


def is_a_change(loaded: PortFilter, desired: PortFilter) -> bool:
    """Return whether ``change_script`` can change *loaded* to *desired*: they differ only in set elements and in chains
    of security groups. Otherwise the tables must be replaced."""
    return (bool(loaded.ports or loaded.bridges) and loaded.open_ports == desired.open_ports
            and group_filter.is_used(loaded) == group_filter.is_used(desired))


def leased_script(prefix: str, leased: Iterable[tuple[str, str]]) -> str:
    """Return an nftables script that adds DHCP addresses to the table for taps whose names begin with *prefix*. Guests
    got the addresses before this table existed, so it could not learn them. *leased*: pairs (tap, address)."""
    return _elements("add", prefix, {("learned", f'"{tap}" . {int(IPv4Address(address)):#x} timeout {LEASE}')
                                     for tap, address in leased})


def _elements(verb: str, prefix: str, elements: Iterable[Element]) -> str:
    by_set: dict[str, list[str]] = {}
    for name, element in sorted(elements):
        by_set.setdefault(name, []).append(element if verb == "add" else element.partition(" : ")[0])
    return "".join(f"{verb} element {'inet' if name == 'bridges' else 'bridge'} {table_name(prefix)} {name} "
                   f"{{ {', '.join(each)} }}\n" for name, each in by_set.items())


def replacement_script(desired: PortFilter, leased: Iterable[tuple[str, str]], bridges_follow: bool = True) -> str:
    """Return an nftables script that replaces the two tables (bridge and inet) by new ones for the filter *desired*, in
    one transaction, so that no packet passes unfiltered. *leased*: pairs (tap, address) of DHCP addresses.
    *bridges_follow*: whether the kernel tracks connections in bridges."""
    elements_by_set: dict[str, list[str]] = {}
    for set_, element in sorted(port_elements(desired)):
        elements_by_set.setdefault(set_, []).append(element)

    def filled(name: str, type: str, kind: str = "set") -> str:
        content = f"elements = {{ {', '.join(elements_by_set[name])} }}" if name in elements_by_set else ""
        return f"{kind} {name} {{ {type} {content} }}"

    groups = group_filter.is_used(desired)
    return "\n".join((
        removal_script(desired.prefix) + f"table bridge {table_name(desired.prefix)} {{",
        *(f"counter {name} {{ }}" for name in (*DROPS, *group_filter.DROPS.values())),
        *(filled(name, type) for name, type in SETS.items()), f"set learned {{ {LEARNED} }}", *_frames(desired.prefix),
        *(group_filter.fixed_chains(desired.prefix, desired.metadata, bridges_follow) if groups else ()),
        *(filled(name, type, kind) for name, (kind, type) in group_filter.group_sets(desired).items()),
        *(line for name, rules in group_filter.group_chains(desired).items()
          for line in (f"chain {name} {{", *rules, "}")),
        "}",
        f"table inet {table_name(desired.prefix)} {{", f"counter {CLOSED} {{ }}", filled("bridges", "type ifname;"),
        *_host(desired.prefix, desired.open_ports), *(group_filter.following_chains() if groups else ()), "}",
        leased_script(desired.prefix, leased)))


def _frames(prefix: str) -> tuple[str, ...]:
    """Return the nftables chains of family bridge that filter frames of taps whose names begin with *prefix*."""
    def drop(name: str) -> str:
        return f"counter name {name} drop"

    new = "icmpv6 type { nd-neighbor-solicit, nd-router-solicit, mld-listener-report, mld2-listener-report }"
    return (
        f"chain from_taps {{ type filter hook prerouting priority {PRIORITY}; policy accept;",
        f'iifname "{prefix}*" goto guest', "}",
        # Answers of the host's DHCP; a broadcast passes here for each tap, and is for the tap whose card asked.
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
        # No neighbour discovery in fragments (RFC 6980): the part after the first fragment could not be checked.
        f"ip6 daddr ff00::/8 exthdr frag exists {drop('false_ipv6')}", "iifname @any6 accept",
        "icmpv6 type nd-neighbor-advert jump neighbours",
        "ip6 saddr :: icmpv6 type nd-neighbor-solicit jump neighbours",
        f"ip6 saddr :: {new} accept", "iifname . ip6 saddr @own6 accept", "iifname . ip6 saddr @range6 accept",
        drop("false_ipv6"), "}",
        "chain neighbours {", "iifname . @th,64,128 @targets return", "iifname @networks6 return",
        drop("false_neighbour"), "}")


def _host(prefix: str, open_ports: Sequence[str]) -> tuple[str, ...]:
    """Return the nftables chains of family inet that restrict guests' access to services of the host. *prefix*: the
    prefix of tap names. *open_ports*: permitted services, such as ``tcp/8080``."""
    opened = [f"{protocol} dport {ports} accept" for protocol, _slash, ports in
              (open_port.partition("/") for open_port in open_ports)]
    return (
        # For a tap on a bridge the kernel names the bridge here: a tap by name is one in Open vSwitch.
        f"chain switched {{ type filter hook prerouting priority {PRIORITY}; policy accept;",
        f'iifname "{prefix}*" counter name {CLOSED} drop', "}",
        "chain to_host { type filter hook input priority -10; policy accept;",
        f"meta mark & {MARK} == {MARK} goto guests", "iifname @bridges goto guests", "}",
        "chain guests {", "ct state established,related accept", "udp sport 68 udp dport 67 accept",
        # Only the host's address on this bridge, and none of its other addresses.
        "fib daddr . iif type local meta l4proto { tcp, udp } th dport 53 accept", "icmp type echo-request accept",
        "icmpv6 type { echo-request, nd-neighbor-solicit, nd-neighbor-advert } accept", *opened,
        f"counter name {CLOSED} drop", "}")


# The hypervisor's methods --------------------------------------------------------------------------------------------
class NftPortFilter:
    """The methods of ``LocalHypervisor`` that filter guests' network traffic with nftables."""

    _end: socket.socket | None = None

    def filter_ports(self, desired: PortFilter, loaded: PortFilter | None = None) -> None:
        """Load the filter *desired* into the kernel, in one transaction, then end connections that are no longer
        permitted. *loaded*: the filter that is loaded now; ``None`` if unknown."""
        if not desired.ports and not desired.bridges:
            _nft(removal_script(desired.prefix))
        elif loaded is None or not is_a_change(loaded, desired):
            follow = group_filter.is_used(desired) and _bridges_follow()
            _nft(replacement_script(desired, _learned(desired.prefix), follow))
            if group_filter.is_used(desired) and not follow:
                _check_layer()
        elif script := change_script(loaded, desired):
            _nft(script)
        _end_connections(loaded, desired)

    def filters_ports(self, prefix: str) -> bool:
        """Return whether the two nftables tables (bridge and inet) for taps whose names begin with *prefix* are loaded.
        """
        tables = _ran("list", "tables").stdout.splitlines()
        return all(f"table {family} {table_name(prefix)}" in tables for family in ("bridge", "inet"))

    def on_filters_gone(self, listener: Callable[[], None]) -> None:
        """Call *listener*, in a separate thread, whenever a table of this port filter is removed from the kernel."""
        bell = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.NETFILTER)
        bell.bind((0, 0))
        bell.setsockopt(_NETLINK, _JOIN, _GROUP)
        self._end, end = socket.socketpair()
        threading.Thread(target=_hear, args=(bell, end, listener), name="filters-gone", daemon=True).start()

    def end_filters(self) -> None:
        """Stop watching whether nftables tables of this port filter are removed (``on_filters_gone``). Tables in the
        kernel stay in force."""
        if self._end is not None:
            self._end.close()

    def allow_leased(self, prefix: str, leased: Sequence[tuple[str, str]]) -> None:
        """Permit taps to use the addresses that DHCP has given them. *prefix*: the prefix of tap names. *leased*: pairs
        (tap, address)."""
        if leased:
            _nft(leased_script(prefix, leased))


def _end_connections(loaded: PortFilter | None, desired: PortFilter) -> None:
    """End the tracked connections that *loaded* permitted and *desired* does not, because their response packets would
    still pass the filter."""
    if taps := group_filter.restricted_taps(loaded, desired):
        try:
            if over := list(group_filter.forbidden_flows(desired, taps, conntrack.list_flows())):
                log.info("%d connections of guests end, as no security group lets them begin any more",
                         conntrack.end_flows(over))
        except OSError as error:
            log.warning("answers that security groups let pass no more may go on, as connections cannot be ended: %s",
                        error)


def _hear(bell: socket.socket, end: socket.socket, listener: Callable[[], None]) -> None:
    watch = select.poll()  # select() takes no descriptor above 1,023
    with bell, end:
        for line in (bell, end):
            watch.register(line, select.POLLIN)
        while end.fileno() not in (descriptor for descriptor, _event in watch.poll()):
            try:
                message = bell.recv(1 << 16)
            except OSError:  # messages were lost; the removal may be among them
                message = b""
            if not message or _gone(message):
                listener()


def _gone(message: bytes) -> bool:
    """Return whether the netlink *message* reports the removal of a table of this port filter."""
    for kind, begin, end in netlink.unpack_messages(message):
        if kind == _TABLE_GONE:
            place = netlink.unpack_attributes(message, begin + _TABLE_HEADER, end).get(_TABLE_NAME)
            if place is None or message[slice(*place)].startswith(TABLES.encode()):
                return True
    return False


def _learned(prefix: str) -> list[tuple[str, str]]:
    """Return pairs (tap, address) that the loaded table for taps whose names begin with *prefix* has learned from DHCP
    responses."""
    done = _ran("-j", "list", "set", "bridge", table_name(prefix), "learned")
    if done.returncode:
        return []
    sets = [nft_object["set"] for nft_object in json.loads(done.stdout)["nftables"] if "set" in nft_object]
    pairs = [nft_element["elem"]["val"]["concat"] for nft_element in sets[0].get("elem", ())]
    return [(tap, str(IPv4Address(address))) for tap, address in pairs]


def _bridges_follow() -> bool:
    """Return whether the kernel can track connections in bridges (module nf_conntrack_bridge)."""
    probe = "table bridge magnetar_probe { chain one { ct state new accept; }; }"
    return _ran("-c", "-f", "-", script=probe).returncode == 0


def _check_layer() -> None:
    """Raise ``HypervisorError`` if br_netfilter does not pass bridged packets to the IP layer. Without that,
    connections between guests are not tracked, and responses would be dropped."""
    for name in ("iptables", "ip6tables"):
        switch = Path(f"/proc/sys/net/bridge/bridge-nf-call-{name}")
        if not switch.exists() or switch.read_text().strip() == "0":
            raise HypervisorError("Security groups drop answers between guests of this host: nobody follows their "
                                  "connections. Load the module nf_conntrack_bridge (Linux 5.3), or set "
                                  f"{str(switch).removeprefix('/proc/sys/').replace('/', '.')} to 1.")


def _nft(script: str) -> None:
    done = _ran("-f", "-", script=script)
    if done.returncode:
        raise HypervisorError(f"nft refuses the filter of guests' ports: {done.stderr.strip()[:500]}")


def _ran(*words: str, script: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 (a list of ours; no shell)
            ["nft", *words], input=script, check=False, capture_output=True, text=True, timeout=TIMEOUT)  # noqa: S607
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HypervisorError(f"Guests' ports are filtered by nft, which cannot be run: {error}.") from None
