# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of openstack.cloud for networks, subnets, routers, ports, floating IPs and security groups."""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.fields import Field, Record
from ..core.options import name_options
from ..core.values import Boolean, Choices, Integer, ListOf, MapOf, Text, Uuid, Value
from .words import ConvertedOption, FilterOption, RefusedOption, RenamedOption

OWN_PROJECT = "a task works in the project of its login; use a cloud of clouds.yaml with that project"
ADMIN_DOWN = "use admin_state_up of its ports"
NONE = "none"


def _pools(params):
    """In the module parameters *params*, replace the options allocation_pool_start and allocation_pool_end of
    openstack.cloud by the option allocation_pools.
    """
    ends = {"start": params.pop("allocation_pool_start", None), "end": params.pop("allocation_pool_end", None)}
    for end, value in ends.items():
        if value is None:
            raise InvalidField("allocation_pool_" + end, "is required with the other end of the pool")
    if params.get("allocation_pools") is not None:
        raise InvalidField("allocation_pool_start", "cannot be combined with allocation_pools; give one or the other")
    params["allocation_pools"] = [ends]


def _no_gateway(params):
    if params["disable_gateway_ip"]:
        if params.get("gateway_ip") not in (None, NONE):
            raise InvalidField("disable_gateway_ip", "cannot be combined with gateway_ip; give one or the other")
        params["gateway_ip"] = NONE


def _version(params):
    """Raise ``InvalidField`` unless ip_version in the module parameters *params* is the IP version of cidr."""
    cidr = params.get("cidr")
    if params["ip_version"] not in (4, 6):
        raise InvalidField("ip_version", "must be 4 or 6", params["ip_version"])
    if cidr and (":" in cidr) != (params["ip_version"] == 6):
        raise InvalidField("ip_version", "is not the version of cidr, %s" % cidr, params["ip_version"])


def _gateway(params):
    """In the module parameters *params*, replace the option external_gateway_info of openstack.cloud by
    external_network and enable_snat.
    """
    for name, value in params["external_gateway_info"].items():
        target = {"network": "external_network"}.get(name, name)
        if value is None:
            continue
        if params.get(target) not in (None, value):
            raise InvalidField("external_gateway_info." + name, "differs from %s; give one or the other" % target)
        params[target] = value


def _rules(value, _params):
    """Return *value*, the option security_group_rules of openstack.cloud, in the form of this collection's option
    rules. Old playbooks write the port -1 for any port.
    """
    ports = ("port_range_min", "port_range_max")
    return [{"ethertype" if name == "ether_type" else name: None if name in ports and part == -1 else part
             for name, part in rule.items() if part is not None} for rule in value]


def _no_groups(params):
    if params["no_security_groups"]:
        if params.get("security_groups"):
            raise InvalidField("no_security_groups", "cannot be combined with security_groups; give one or the other")
        params["security_groups"] = []


def _uuid(name):
    """Return a function that returns its argument in normal form if it is a uuid, and otherwise raises an error that
    names the option *name*.
    """
    return lambda value: Uuid().check(value, name)


RULE = Record(
    direction=Field(Choices("ingress", "egress"), "To the ports, or from them."),
    ether_type=Field(Choices("IPv4", "IPv6"), "IP version.", aliases=("ethertype",)),
    protocol=Field(Text(), "Name or number of the IP protocol; any when omitted."),
    port_range_min=Field(Integer(-1), "The first port, or the type of ICMP; V(-1) for any."),
    port_range_max=Field(Integer(-1), "The last port, or the code of ICMP; V(-1) for any."),
    remote_ip_prefix=Field(Text(), "From or to these addresses only."),
    remote_group=Field(Text(), "From or to ports of this security group only."),
    description=Field(Text(), "Free text."))
GATEWAY = Record(
    network=Field(Text(), "The external network."), enable_snat=Field(Boolean(), "See O(enable_snat)."),
    external_fixed_ips=Field(ListOf(Value()), "Refused, see O(external_fixed_ips)."))

NETWORK = {
    "network": name_options(
        dns_domain=RenamedOption(Text(), "domain", convert=lambda value, _params: value.rstrip(".")),
        admin_state_up=RefusedOption(ADMIN_DOWN, Boolean(), harmless=(True,)),
        port_security_enabled=RefusedOption("use port_security_enabled of its ports", Boolean(), harmless=(True,)),
        is_default=RefusedOption("floating IPs and routers name their external network", Boolean(), harmless=(False,)),
        is_vlan_transparent=RefusedOption("use trunks for VLANs of guests", Boolean(), harmless=(False,)),
        project=RefusedOption(OWN_PROJECT),
    ),
    "subnet": name_options(
        allocation_pool_start=ConvertedOption(Text(), "With O(allocation_pool_end), the only range of "
                                              "O(allocation_pools).",
                                              _pools),
        allocation_pool_end=ConvertedOption(Text(), "See O(allocation_pool_start).", _pools),
        disable_gateway_ip=ConvertedOption(Boolean(), "When V(true), the same as O(gateway_ip=none).", _no_gateway,
                                           aliases=("no_gateway_ip",)),
        ip_version=ConvertedOption(Integer(), "The IP version of O(cidr), which says it already.", _version),
        extra_attrs=RefusedOption("use the options of this module", MapOf(Text(), Value()), harmless=({},),
                                  aliases=("extra_specs",)),
        network_segment=RefusedOption("networks have one segment"),
        use_default_subnet_pool=RefusedOption("name the pool in subnet_pool", Boolean(), harmless=(False,),
                                              aliases=("use_default_subnetpool",)),
        project=RefusedOption(OWN_PROJECT),
    ),
    "router": name_options(
        external_gateway_info=ConvertedOption(GATEWAY, "O(external_network) and O(enable_snat) as a mapping.",
                                              _gateway),
        external_fixed_ips=RefusedOption("the router gets a free address of the external network", ListOf(Value()),
                                         harmless=([],)),
        project=RefusedOption(OWN_PROJECT),
    ),
    "port": name_options(
        no_security_groups=ConvertedOption(Boolean(), "When V(true), the same as an empty list of O(security_groups).",
                                           _no_groups),
        binding_profile=RefusedOption("the cloud writes it", MapOf(Text(), Value()), harmless=({},)),
        device_id=RefusedOption("a server takes the port with its networks, or with interface_attachment"),
        device_owner=RefusedOption("a server takes the port with its networks, or with interface_attachment"),
        dns_domain=RefusedOption("use domain of the network"),
        extra_dhcp_opts=RefusedOption("guests get the DHCP options of their subnet", ListOf(Value()), harmless=([],)),
    ),
    "floating_ip_info": name_options(
        description=FilterOption(Text()), fixed_ip_address=FilterOption(Text()),
        floating_ip_address=FilterOption(Text()),
        floating_network=FilterOption(Text(), "network", _uuid("floating_network")),
        port=FilterOption(Text(), convert=_uuid("port")), router=FilterOption(Text(), convert=_uuid("router")),
        status=FilterOption(Choices("active", "down", "ACTIVE", "DOWN"), convert=lambda value: value.upper()),
        project=RefusedOption("only floating IPs of the login's project are reported", aliases=("project_id",)),
    ),
    "security_group": name_options(
        security_group_rules=RenamedOption(ListOf(RULE), "rules", "C(ether_type) is C(ethertype) there", _rules),
        project=RefusedOption(OWN_PROJECT),
    ),
    "security_group_info": name_options(
        description=FilterOption(Text()),
        **{name: RefusedOption("security groups have no tags here", ListOf(Text()))
           for name in ("tags", "any_tags", "not_tags", "not_any_tags")},
        project_id=RefusedOption("only security groups of the login's project are reported"),
        revision_number=RefusedOption("name the group in name", Integer()),
    ),
}
