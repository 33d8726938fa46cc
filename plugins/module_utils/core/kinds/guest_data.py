# SPDX-License-Identifier: GPL-3.0-or-later
"""Network data and metadata that a cloud sends for its guests: fields of the kind ``server`` that replace the data of
the host. Modules do not have these fields, and answers do not show them.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any, Optional

from ..errors import InvalidField
from ..fields import Field, Record
from ..values import Choices, Integer, ListOf, Mac, MapOf, Nullable, Text, Uuid, Value
from ..versions import Version


class GuestAddress(Text):
    """The value type of IP addresses; with *network*, of IP networks (``192.0.2.0/24``); with *interface*, of IP
    addresses with a prefix length (``192.0.2.5/24``).
    """

    def __init__(self, network: bool = False, interface: bool = False) -> None:
        super().__init__(2, 49)
        self.read: Callable[[str], Any] = ip_network if network else ip_interface if interface else ip_address
        self.words = "must be an IP %s" % ("network such as 192.0.2.0/24" if network else "address")

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        """Override ``Text.check``: return *value* unchanged. Raises ``InvalidField`` if it is not a valid address."""
        text = super().check(value, path, version)
        try:
            self.read(text)
        except ValueError:
            raise InvalidField(path, self.words, value) from None
        return text


LABEL, ADDRESS, ROUTED = Text(0, 255), GuestAddress(), GuestAddress(network=True)
#: The longest password that Nova accepts.
PASSWORD = Nullable(Text(1, 255))
#: Maximum number of name servers and routes of a NIC.
MOST = 64
#: Maximum number of VLAN tags.
VLANS = 4094


def _of_nic(required: bool = False, **more: Field) -> Record:
    """Return the value type of the network data of a NIC or VLAN. *required*: whether network and port must be set.
    *more*: further fields.
    """
    return Record(
        network_id=Field(Uuid(), "The network, as its users know it.", required=required),
        port_id=Field(Uuid(), "The port.", required=required),
        gateway=Field(Nullable(ADDRESS), "Gateway of the subnet."),
        mtu=Field(Integer(0, 65535), "MTU of the network."),
        dns_nameservers=Field(ListOf(ADDRESS, MOST), "Name servers of the subnet."),
        host_routes=Field(ListOf(Record(destination=Field(ROUTED, "A network.", required=True),
                                        nexthop=Field(ADDRESS, "The gateway to it.", required=True)), MOST),
                          "Routes of the subnet."),
        ipv6=Field(ListOf(Record(
            address=Field(GuestAddress(interface=True), "An address of IPv6, with its prefix.", required=True),
            mode=Field(Nullable(Choices("slaac", "dhcpv6-stateful", "dhcpv6-stateless")), "Source of the guest's "
                       "address; null: the guest sets it itself."),
            gateway=Field(Nullable(ADDRESS), "Gateway of its subnet."),
            dns_nameservers=Field(ListOf(ADDRESS, MOST), "Name servers of its subnet.")), MOST),
            "Its addresses of IPv6."),
        **more)


def nic_guest_data() -> Record:
    """Return the value type of the network data of a NIC and of its VLANs."""
    return _of_nic(vlans=Field(ListOf(_of_nic(
        True,
        segmentation_id=Field(Integer(1, VLANS), "VLAN tag of its packets in the guest.", required=True),
        mac=Field(Mac(), "Its MAC address.", required=True),
        address=Field(GuestAddress(interface=True), "Its address of IPv4, with a prefix where the guest sets it "
                      "itself.")), VLANS), "Ports that it carries as VLANs, by tag."))


GUEST_DATA = Nullable(Record(
    name=Field(LABEL, "The server's name, as users see it.", required=True),
    hostname=Field(Text(0, 1024), "Its host name, with its domain if it has one.", required=True),
    project_id=Field(LABEL, "Its project.", required=True),
    launch_index=Field(Integer(0, 100_000), "Number among the servers of one request.", required=True),
    reservation_id=Field(LABEL, "Their reservation.", required=True),
    flavor=Field(LABEL, "Name of the flavor.", required=True),
    availability_zone=Field(LABEL, "Availability zone of its host.", required=True),
    keys=Field(ListOf(Record(name=Field(LABEL, "Its name.", required=True),
                             type=Field(Choices("ssh", "x509"), "Its type.", required=True),
                             data=Field(Text(1, 65535), "The public key.", required=True)), 1), "Its key.",
               required=True),
    drive_format=Field(Choices("iso9660", "vfat"), "File system of the config drive; as the host's settings say when "
                       "omitted."),
    security_groups=Field(ListOf(LABEL, 1024), "Names of its security groups.", required=True),
    public_ipv4=Field(ADDRESS, "Its floating IP; missing when it has none."),
))
VENDOR_DATA = Nullable(Record(static=Field(MapOf(Text(0, 255), Value(), 1024), "vendor_data.json."),
                              dynamic=Field(MapOf(Text(0, 255), Value(), 1024), "vendor_data2.json.")))
