# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules security_group_rule and security_group_rule_info: single rules of a security group."""

from __future__ import annotations

from ipaddress import ip_network

from ..core.errors import NotFound
from ..core.kinds.common import REFERENCE
from ..core.options import WAITING, Option, name_options
from ..core.values import Choices, Integer, Text
from ..foreign.network import OWN_PROJECT
from ..foreign.words import RefusedOption
from ..modules import results
from ..modules.module import ABSENT, PRESENT, Module

ANY = ("any", "0")
#: IP protocols whose ports are types and codes.
ICMP = ("icmp", "icmpv6", "ipv6-icmp", "1", "58")
NUMBERS = {"1": "icmp", "6": "tcp", "17": "udp", "58": "ipv6-icmp", "icmpv6": "ipv6-icmp"}


def _rule_options(direction=None, ether_type=None):
    """Return the options that describe a rule. *direction*, *ether_type*: their defaults."""
    defaults = [{} if default is None else {"default": default} for default in (direction, ether_type)]
    return dict(
        direction=Option(Choices("ingress", "egress"), "To the ports, or from them.", **defaults[0]),
        ether_type=Option(Choices("IPv4", "IPv6"), "IP version.", aliases=("ethertype",), **defaults[1]),
        protocol=Option(Text(), "Name or number of the IP protocol. Any when omitted, or V(any)."),
        port_range_min=Option(Integer(-1, 65535), "The first port, or the type of ICMP. Any when omitted, or V(-1)."),
        port_range_max=Option(Integer(-1, 65535), "The last port, or the code of ICMP. Any when omitted, or V(-1)."),
        remote_ip_prefix=Option(Text(), "From or to these addresses only."),
        remote_group=Option(REFERENCE, "From or to ports of this security group only, by name or uuid."),
        description=Option(Text(0, 255), "Free text. It is not part of what identifies a rule."),
    )


class SecurityGroupRuleModule(Module):
    """The module security_group_rule, which adds one rule to a security group, or removes it. Other rules stay."""

    name, cloud_only = "security_group_rule", True
    foreign = name_options(project=RefusedOption(OWN_PROJECT))
    options = name_options(
        security_group=Option(REFERENCE, "The security group, by name or uuid.", required=True),
        **_rule_options("ingress", "IPv4"),
        state=Option(Choices(PRESENT, ABSENT), "V(present) adds the rule unless the group has it. V(absent) removes "
                     "it.", default=PRESENT)) + WAITING + foreign
    rules = {"mutually_exclusive": [["remote_ip_prefix", "remote_group"]]}

    def execute(self, params, check_mode, diff_mode, client):
        key = REFERENCE.check(params["security_group"], "security_group")
        present = params["state"] == PRESENT
        group = _find_group(client, key, present and not check_mode)
        requested_rule = _requested_rule(client, params)
        matching = [rule for rule in (group or {}).get("rules") or () if _identity(rule) == _identity(requested_rule)]
        if present == bool(matching):
            return _result(group, requested_rule if present else None, matching, {}, diff_mode)
        if group is None:
            return _result(None, requested_rule, [], {"changed": present}, diff_mode)
        waiting = {"dry_run": check_mode, "wait": params["wait"], "timeout": params["timeout"]}
        if present:
            answer = client.ensure("security_group", group["id"], {"rules": [requested_rule]}, merge=["rules"],
                                   **waiting)
        else:
            remaining = [rule for rule in group["rules"] if rule not in matching]
            answer = client.ensure("security_group", group["id"], {"rules": remaining}, **waiting)
        return _result(group, requested_rule if present else None, matching, answer, diff_mode)


class SecurityGroupRuleInfoModule(Module):
    """The module security_group_rule_info, which reports the rules of security groups."""

    name, cloud_only = "security_group_rule_info", True
    foreign = name_options(
        project=RefusedOption("only rules of the login's project are reported"),
        id=RefusedOption("rules have no ids here; say what they allow", aliases=("rule",)),
        revision_number=RefusedOption("rules have no revisions here", Integer()))
    options = name_options(
        security_group=Option(REFERENCE, "Only the rules of this security group, by name or uuid."),
        **_rule_options()) + foreign

    def execute(self, params, check_mode, diff_mode, client):
        if params["security_group"] is None:
            groups = client.list("security_group")
        else:
            group = _find_group(client, REFERENCE.check(params["security_group"], "security_group"), False)
            groups = [] if group is None else [group]
        requested_rule = _requested_rule(client, params)
        set_options = {name for name in _identity(requested_rule) if params.get(
            {"ethertype": "ether_type"}.get(name, name)) is not None}
        conditions = {name: value for name, value in _identity(requested_rule).items() if name in set_options}
        return {"changed": False, "security_group_rules": [
            shown_rule(rule, group) for group in groups for rule in group["rules"]
            if all(_identity(rule)[name] == value for name, value in conditions.items())
            and params["description"] in (None, rule["description"])]}


def _find_group(client, key, needed):
    """Return the security group with the name or uuid *key*. If there is none, return ``None``, or raise ``NotFound``
    if *needed* is true."""
    try:
        return client.get("security_group", key)
    except NotFound as error:
        if needed:
            raise NotFound("There is no security group %s in this project. Create it with the module security_group "
                           "first." % key, **error.details) from None
        return None


def _requested_rule(client, params):
    """Return the rule that the module parameters *params* describe, as the field ``rules`` of a security group has it.
    """
    ports = {name: None if params[name] in (None, -1) else params[name]
             for name in ("port_range_min", "port_range_max")}
    rule = dict(ports, direction=params["direction"], ethertype=params["ether_type"],
                protocol=None if params["protocol"] in (None, *ANY) else params["protocol"],
                remote_ip_prefix=params["remote_ip_prefix"], remote_group=params["remote_group"],
                description=params["description"])
    if rule["remote_group"] is not None:
        group = _find_group(client, REFERENCE.check(rule["remote_group"], "remote_group"), False)
        rule["remote_group"] = rule["remote_group"] if group is None else group["id"]
    return {name: value for name, value in rule.items() if value is not None}


def _identity(rule):
    """Return what identifies *rule* in its group, in normal form: all but the description."""
    protocol = rule.get("protocol")
    protocol = None if protocol is None else str(protocol).lower()
    least, most = rule.get("port_range_min"), rule.get("port_range_max")
    return {"direction": rule.get("direction"), "ethertype": rule.get("ethertype"),
            "protocol": NUMBERS.get(protocol, protocol), "port_range_min": least,
            "port_range_max": least if most is None and protocol not in ICMP else most,
            "remote_ip_prefix": _network(rule.get("remote_ip_prefix")), "remote_group": rule.get("remote_group"),
            "remote_address_group": rule.get("remote_address_group")}


def _network(prefix):
    try:
        return None if prefix is None else str(ip_network(prefix, strict=False))
    except ValueError:
        return prefix  # the API refuses it


def shown_rule(rule, group):
    """Return *rule* of the security group *group* with the names of fields that openstack.cloud has."""
    names = ("direction", "protocol", "port_range_min", "port_range_max", "remote_ip_prefix")
    return dict({name: rule.get(name) for name in names}, ether_type=rule.get("ethertype"),
                remote_group_id=rule.get("remote_group"), remote_address_group_id=rule.get("remote_address_group"),
                description=rule.get("description") or "", security_group_id=(group or {}).get("id"))


def _result(group, wanted, matching, answer, diff_mode):
    """Return the module result. *group*: the security group before the task. *wanted*: the rule that it will have;
    ``None``: the rule was removed. *matching*: the rules of *group* that equal the task's rule. *answer*: the answer of
    ``Client.ensure``; without a request, ``{"changed": …}`` or an empty mapping.
    """
    if answer.get("operation"):
        return results.module_result("security_group", "", answer, diff_mode)
    label = (group or {}).get("name") or ""
    result = results.module_result("security_group", label, dict({"changed": False}, **answer), diff_mode)
    after = result.pop("security_group") or group
    rules = [rule for rule in (after or {}).get("rules") or () if wanted and _identity(rule) == _identity(wanted)]
    rule = (rules or matching or ([wanted] if wanted else [])) or [None]
    result["rule"] = None if rule[0] is None else shown_rule(rule[0], after)
    return result
