# SPDX-License-Identifier: GPL-3.0-or-later
"""interface_attachment: a NIC of a server as a resource."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind
from ..values import Boolean, Mac, Nullable, Text, Uuid, Value
from .common import REFERENCE, TAG
from .guest_data import nic_guest_data
from .network import ALLOWED, DEVICE, GROUPS, NIC_ADDRESS, NIC_MODEL, PHYSICAL, PORT, TX_RATE, VLAN, VNIC_TYPE


class InterfaceAttachment(Kind):
    """A NIC of a server, one item of the server's ``networks``. Its key is SERVER:NIC, where NIC is a MAC address, a
    network, a bridge, a port or a physical network.
    """

    noun, plural = "interface_attachment", "interface_attachments"
    sample_actions = ("record", "plug", "define")
    sample_changes = {"address": (None, "192.168.100.57")}

    id = Field(Uuid(), "The uuid, which follows from server and MAC address.", on=READ,
               sample="5b6c0a4e-9f0a-5d0e-8a55-7b1f6a0c2d11")
    server = Field(REFERENCE, "The server, by name or uuid.", required=True, on=FIXED,
                   sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    network = Field(REFERENCE, "A network of the agent, or a libvirt network.", on=FIXED, sample="lan")
    bridge = Field(DEVICE, "A bridge of the host, in place of network.", on=FIXED, sample=None)
    port = Field(PORT, "A logical switch port of OVN, in place of network.", on=FIXED, sample=None)
    physical_network = Field(PHYSICAL, "A physical network in place of network; the NIC is a device of the host there.",
                             on=FIXED, sample=None)
    card = Field(DEVICE, "From a cloud: the card of such a virtual function, by its network device.",
                 on="create", option=False, compared=False)
    vnic_type = Field(VNIC_TYPE, "Type of such a NIC in the guest; V(direct) when omitted.", on=FIXED, sample=None)
    trusted = Field(Boolean(), "Whether the card trusts such a NIC; V(false) when omitted.", on=FIXED, sample=None)
    max_tx_rate = Field(TX_RATE, "Maximum rate of outgoing traffic of such a NIC in Mbit/s; V(0) for no limit.",
                        sample=None)
    min_tx_rate = Field(TX_RATE, "Guaranteed rate of outgoing traffic in Mbit/s; V(0) for none.", sample=None)
    vlan = Field(VLAN, "The VLAN of such a NIC.", on=FIXED, sample=None)
    mac = Field(Mac(), "MAC address; generated once when omitted.", on=FIXED, sample="52:54:00:12:34:56")
    model = Field(NIC_MODEL, "Model of the card; V(virtio) when omitted.", on=FIXED, sample="virtio")
    tag = Field(TAG, "Device tag, shown to the guest in the config drive that is made with the server.", on=FIXED,
                sample=None)
    address = Field(Nullable(NIC_ADDRESS), "IPv4 address. On a network that the agent creates, its DHCP server "
                    "assigns it; elsewhere it is only shown. Kept when omitted; null for none.", sample=None)
    port_security = Field(Boolean(), "Whether only frames from its MAC and its addresses pass, and none of a DHCP "
                          "server or router. V(true) for a new NIC when omitted.", sample=True)
    allowed_addresses = Field(ALLOWED, "Further addresses and networks that it may send from.", sample=[])
    security_groups = Field(GROUPS, "From a cloud: its security groups by uuid; null for none.", on="create update",
                            option=False, compared=False)
    told = Field(Nullable(nic_guest_data()), "From a cloud: guest metadata of this NIC.", on="create", option=False,
                 compared=False)
    server_name = Field(Text(), "The server's name.", on=READ, sample="web1")
    addresses = Field(Value(), "Its addresses as far as they are known: {addr, version, mac, source}.", on=READ,
                      sample=[{"addr": "192.168.100.57", "version": 4, "mac": "52:54:00:12:34:56", "source": "lease"}])
