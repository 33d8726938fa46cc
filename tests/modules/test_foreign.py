# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of openstack.cloud: refused by name with the reason, or replaced by options of this collection."""

from __future__ import annotations

from importlib import import_module

import pytest
import yaml

from ansible_collections.magnetar.compute.plugins.module_utils.core.errors import InvalidField
from tools.foreign_page import COLLECTION, foreign_options

from .conftest import ROOT

ROUTING = yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["plugin_routing"]["modules"]
OPTIONS = list(foreign_options(ROUTING))
REFUSED = [(name, option) for name, option in OPTIONS if hasattr(option, "reason")]
#: Module, options of openstack.cloud, and the options that they become.
CONVERTED = [
    ("network", {"dns_domain": "lab.example."}, {"domain": "lab.example"}),
    ("subnet", {"allocation_pool_start": "10.1.0.5", "allocation_pool_end": "10.1.0.9"},
     {"allocation_pools": [{"start": "10.1.0.5", "end": "10.1.0.9"}]}),
    ("subnet", {"disable_gateway_ip": True}, {"gateway_ip": "none"}),
    ("subnet", {"disable_gateway_ip": False, "gateway_ip": "10.1.0.1"}, {"gateway_ip": "10.1.0.1"}),
    ("subnet", {"ip_version": 4, "cidr": "10.1.0.0/24"}, {"cidr": "10.1.0.0/24"}),
    ("router", {"external_gateway_info": {"network": "ext", "enable_snat": False, "external_fixed_ips": None}},
     {"external_network": "ext", "enable_snat": False}),
    ("port", {"no_security_groups": True}, {"security_groups": []}),
    ("security_group", {"security_group_rules": [{"ether_type": "IPv6", "protocol": "icmp", "port_range_min": -1}]},
     {"rules": [{"ethertype": "IPv6", "protocol": "icmp", "port_range_min": None}]}),
    ("compute_service_info", {"host": "kvm1", "binary": "nova-compute"},
     {"name": "kvm1", "filters": {"binary": "nova-compute"}}),
    ("image", {"is_public": True}, {"visibility": "public"}),
    ("image", {"is_public": False, "visibility": "community"}, {"visibility": "community"}),
    ("volume", {"is_bootable": True, "image": "debian"}, {"image": "debian"}),
    ("volume_info", {"status": "in-use", "details": True}, {"filters": {"status": "in-use"}}),
    ("floating_ip_info", {"status": "active", "description": "x", "filters": {"description": "x"}},
     {"filters": {"status": "ACTIVE", "description": "x"}}),
]
#: Module, options, and the option that the error names.
WRONG = [
    ("network", {"dns_domain": "a.example", "domain": "b.example"}, "dns_domain"),
    ("subnet", {"allocation_pool_end": "10.1.0.9"}, "allocation_pool_start"),
    ("subnet", {"allocation_pool_start": "10.1.0.9"}, "allocation_pool_end"),
    ("subnet", {"ip_version": 6, "cidr": "10.1.0.0/24"}, "ip_version"),
    ("subnet", {"ip_version": 5}, "ip_version"),
    ("subnet", {"disable_gateway_ip": True, "gateway_ip": "10.1.0.1"}, "disable_gateway_ip"),
    ("router", {"external_gateway_info": {"network": "ext"}, "external_network": "other"},
     "external_gateway_info.network"),
    ("router", {"external_gateway_info": {"external_fixed_ips": [{"ip_address": "192.0.2.9"}]}}, "external_fixed_ips"),
    ("port", {"no_security_groups": True, "security_groups": ["web"]}, "no_security_groups"),
    ("security_group", {"security_group_rules": [], "rules": []}, "security_group_rules"),
    ("volume", {"is_bootable": True}, "is_bootable"),
    ("floating_ip_info", {"floating_network": "ext"}, "floating_network"),
    ("floating_ip_info", {"description": "x", "filters": {"description": "y"}}, "description"),
]


def translated(module, options):
    """Return the parameters that differ from omitted ones, without those of openstack.cloud."""
    module = import_module(f"{COLLECTION}.modules.{module}").MODULE
    foreign = {option.option for option in module.foreign}
    params = module.translate(options)
    return {name: value for name, value in params.items() if name not in foreign and value is not None}


@pytest.mark.parametrize(("module", "option"), REFUSED, ids=lambda each: getattr(each, "option", each))
def test_a_refused_option_is_named_with_the_reason(module, option):
    with pytest.raises(InvalidField) as caught:
        translated(module, {option.option: "surely not"})
    assert caught.value.details["field"] == option.option and option.reason in caught.value.message
    for harmless in option.harmless:
        assert translated(module, {option.option: harmless}) == {}


@pytest.mark.parametrize(("module", "options", "expected"), CONVERTED)
def test_a_converted_option(module, options, expected):
    assert translated(module, options) == expected
    assert translated(module, dict.fromkeys(options)) == {}


@pytest.mark.parametrize(("module", "options", "field"), WRONG)
def test_wrong_options_are_named(module, options, field):
    with pytest.raises(InvalidField) as caught:
        translated(module, options)
    assert caught.value.details["field"] == field


def test_the_order_of_options_does_not_matter():
    """A conversion may set an option that a later entry of the table refuses, and must not leave one behind."""
    names = [option.option for _name, option in OPTIONS]
    assert {"external_gateway_info", "external_fixed_ips"} <= set(names)
    assert names.index("external_gateway_info") < names.index("external_fixed_ips")
