# SPDX-License-Identifier: GPL-3.0-or-later
"""default_security_group_rule: it has no name, and is known by what it says."""

from __future__ import annotations

from ..core.kinds import DefaultSecurityGroupRule
from .resource import ResourceModule


class DefaultSecurityGroupRuleModule(ResourceModule):
    """Makes new security groups begin with a rule, or no more."""

    kind = DefaultSecurityGroupRule
    rules = {}
    state_doc = "V(present) makes new security groups begin with the rule. V(absent) makes them begin without it."
    on_immutable_doc = "V(recreate) removes the rule and makes it anew."

    def want(self, params):
        """What is no part of the key."""
        return {} if params["description"] is None else {"description": params["description"]}

    def key(self, params):
        value = {field.name: field.default if params[field.name] is None else params[field.name]
                 for field in self.fields}
        uses = [word for word, name in (("default", "used_in_default_sg"), ("other", "used_in_non_default_sg"))
                if value[name]]
        remotes = (("", "remote_ip_prefix"), ("group=", "remote_group"), ("addresses=", "remote_address_group"))
        remote = [word + value[name] for word, name in remotes if value[name]]
        words = (value["direction"], value["ethertype"], value["protocol"], value["port_range_min"],
                 value["port_range_max"])
        return ",".join(["+".join(uses), *("" if one is None else str(one) for one in words), "+".join(remote)])
