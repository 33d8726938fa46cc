# SPDX-License-Identifier: GPL-3.0-or-later
"""Attributes of Neutron's resources that have no effect here, and the reasons (API reference, Networking v2.0). Values
that describe the actual state are accepted, because clients send them."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar_control.services.lacking import Lacking
from magnetar_core.values import Value

#: The only zone of networks and routers, as lists of zones show it.
ZONES: tuple[list[str], ...] = ([], ["nova"])
NETWORK: Mapping[str, Value] = {
    "availability_zone_hints": Lacking("must be empty, or nova: a network is on all hosts", *ZONES),
    "segments": Lacking("must be left out: a network is in one place, which provider:network_type, "
                        "provider:physical_network and provider:segmentation_id say"),
    **dict.fromkeys(("vlan_transparent", "vlan_qinq"), Lacking(
        "must be false: OVN passes no VLAN tags of guests. A trunk gives a NIC further networks by tags", False)),
    "pvlan": Lacking("must be false: security groups say which ports of a network hear each other", False)}
SUBNET: Mapping[str, Value] = {
    "service_types": Lacking("must be empty: a subnet is for the ports of every owner. Give ports that need another "
                             "range a network of their own", []),
    "dns_publish_fixed_ip": Lacking("must be false: no DNS outside of the cloud is told of ports", False),
    "segment_id": Lacking("must be null: networks have no segments")}
PORT: Mapping[str, Value] = {
    "extra_dhcp_opts": Lacking("must be empty: DHCP tells a guest what its network and subnet say (mtu, dns_domain, "
                               "dns_nameservers, host_routes)", []),
    "dns_domain": Lacking("must be empty: names of ports are in the dns_domain of their network", ""),
    "propagate_uplink_status": Lacking("must be false: the link of a guest does not follow that of the host", False),
    "numa_affinity_policy": Lacking("must be null: the flavor says how near to its cards a server is "
                                    "(hw:pci_numa_affinity_policy)"),
    "mac_learning_enabled": Lacking("must be false: a port has the MAC that it shows, and those of its "
                                    "allowed_address_pairs", False),
    "device_profile": Lacking("must be empty: no host here gives ports an accelerator", ""),
    "hints": Lacking("must be empty: nothing here reads them", {}),
    "data_plane_status": Lacking("must be null: the status of a port says whether its server has it"),
    "trusted": Lacking("must be left out: for a virtual function say trusted in binding:profile"),
    "hardware_offload_type": Lacking("must be null: binding:vnic_type says how a port reaches its server"),
    **dict.fromkeys(("pvlan_type", "pvlan_community"), Lacking(
        "must be null: security groups say which ports of a network hear each other"))}
ROUTER: Mapping[str, Value] = {
    "ha": Lacking("must be true, or left out: when the host of a router's gateway fails, another one has it", True),
    "distributed": Lacking("must be true, or left out: each floating IP is at its server's host, and what has none "
                           "goes out by the gateway's", True),
    "availability_zone_hints": Lacking("must be empty, or nova: the setting ovn_gateway_hosts says where gateways are",
                                       *ZONES),
    "flavor_id": Lacking("must be null: all routers are OVN's"),
    "evpn_vni": Lacking("must be null: routers announce nothing by BGP"),
    "external_gateways": Lacking("must be left out: a router has one way out, external_gateway_info", []),
    "enable_ndp_proxy": Lacking("must be false: who is outside reaches addresses of IPv6 by a route to the router",
                                False),
    **dict.fromkeys(("enable_default_route_bfd", "enable_default_route_ecmp"), Lacking(
        "must be false: a router has one way out", False))}
#: Attributes of a router's gateway and of a floating IP.
OUTSIDE: Mapping[str, Value] = {
    "qos_policy_id": Lacking("must be null: QoS policies count for ports of servers and their networks, also for what "
                             "comes by a router")}
FLOATING_IP: Mapping[str, Value] = {
    "router_id": Lacking("must be left out: the router is the one that leads from the port's subnet to the external "
                         "network"),
    **OUTSIDE, **dict.fromkeys(("dns_name", "dns_domain"), Lacking(
        "must be empty: no DNS outside of the cloud is told of floating IPs", ""))}
#: Attributes of a port forwarding.
PORT_FORWARDING: Mapping[str, Value] = {
    f"{side}_port_range": Lacking(f"must be left out: a forwarding is of one port, which {side}_port says")
    for side in ("internal", "external")}
#: Attributes of an interface of a router.
INTERFACE: Mapping[str, Value] = {"advertise_host": Lacking("must be false: routers announce nothing by BGP", False)}
