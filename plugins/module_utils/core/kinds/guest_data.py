# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cloud has guests told in place of what their host knows (MD-22 to MD-28, MD-43, MD-60): values of the kind
``server``. Neither modules nor answers have them."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any, Optional

from ..errors import InvalidField
from ..fields import Field, Record
from ..values import Choices, Integer, ListOf, Mac, MapOf, Nullable, Text, Uuid, Value
from ..versions import Version


class GuestAddress(Text):
    """An IP address; with *network*, one of a network, with its prefix; with *interface*, an address with a prefix."""

    def __init__(self, network: bool = False, interface: bool = False) -> None:
        super().__init__(2, 49)
        self.read: Callable[[str], Any] = ip_network if network else ip_interface if interface else ip_address
        self.words = "must be an IP %s" % ("network such as 192.0.2.0/24" if network else "address")

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        """The text as it is."""
        found = super().check(value, path, version)
        try:
            self.read(found)
        except ValueError:
            raise InvalidField(path, self.words, value) from None
        return found


LABEL, ADDRESS, ROUTED = Text(0, 255), GuestAddress(), GuestAddress(network=True)
#: The longest password that Nova takes.
PASSWORD = Nullable(Text(1, 255))
#: Most name servers and routes of a NIC.
MOST = 64
#: Most tags of VLANs.
VLANS = 4094


def _of_nic(known: bool = False, **more: Field) -> Record:
    """*known*: network and port are always said."""
    return Record(
        network_id=Field(Uuid(), "The network, as its users know it.", required=known),
        port_id=Field(Uuid(), "The port.", required=known),
        gateway=Field(Nullable(ADDRESS), "Gateway of the subnet."),
        mtu=Field(Integer(0, 65535), "MTU of the network."),
        dns_nameservers=Field(ListOf(ADDRESS, MOST), "Name servers of the subnet."),
        host_routes=Field(ListOf(Record(destination=Field(ROUTED, "A network.", required=True),
                                        nexthop=Field(ADDRESS, "The gateway to it.", required=True)), MOST),
                          "Routes of the subnet."),
        ipv6=Field(ListOf(Record(
            address=Field(GuestAddress(interface=True), "An address of IPv6, with its prefix.", required=True),
            mode=Field(Nullable(Choices("slaac", "dhcpv6-stateful", "dhcpv6-stateless")), "How the guest gets it; "
                       "null: it sets it itself."),
            gateway=Field(Nullable(ADDRESS), "Gateway of its subnet."),
            dns_nameservers=Field(ListOf(ADDRESS, MOST), "Name servers of its subnet.")), MOST),
            "Its addresses of IPv6."),
        **more)


def told() -> Record:
    """Of a NIC."""
    return _of_nic(vlans=Field(ListOf(_of_nic(
        True,
        segmentation_id=Field(Integer(1, VLANS), "The tag that the guest gives its packets.", required=True),
        mac=Field(Mac(), "Its MAC address.", required=True),
        address=Field(GuestAddress(interface=True), "Its address of IPv4, with a prefix where the guest sets it "
                      "itself.")), VLANS), "Ports that it carries as VLANs, by tag."))


GUEST_DATA = Nullable(Record(
    name=Field(LABEL, "The server's name, as users see it.", required=True),
    hostname=Field(Text(0, 1024), "Its host name, with a domain where there is one.", required=True),
    project_id=Field(LABEL, "Its project.", required=True),
    launch_index=Field(Integer(0, 100_000), "Which one it is of those made with one request.", required=True),
    reservation_id=Field(LABEL, "Their reservation.", required=True),
    flavor=Field(LABEL, "Name of the flavor.", required=True),
    availability_zone=Field(LABEL, "That of the host that it is on.", required=True),
    keys=Field(ListOf(Record(name=Field(LABEL, "As its user calls it.", required=True),
                             type=Field(Choices("ssh", "x509"), "What it is.", required=True),
                             data=Field(Text(1, 65535), "The public key.", required=True)), 1), "Its key.",
               required=True),
    drive_format=Field(Choices("iso9660", "vfat"), "File system of the config drive; as the host's settings say when "
                       "omitted."),
    security_groups=Field(ListOf(LABEL, 1024), "Names of its security groups.", required=True),
    public_ipv4=Field(ADDRESS, "The floating IP by which it is reached; left out when there is none."),
))
VENDOR_DATA = Nullable(Record(static=Field(MapOf(Text(0, 255), Value(), 1024), "vendor_data.json."),
                              dynamic=Field(MapOf(Text(0, 255), Value(), 1024), "vendor_data2.json.")))
