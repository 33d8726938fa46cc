# SPDX-License-Identifier: GPL-3.0-or-later
"""The module default_security_group_rule. Its rules have no names: their fields identify them."""

from __future__ import annotations

from ..core.kinds import DefaultSecurityGroupRule
from .resource import ResourceModule


class DefaultSecurityGroupRuleModule(ResourceModule):
    """The module default_security_group_rule, which adds or removes a rule that new security groups have from the
    beginning.
    """

    kind = DefaultSecurityGroupRule
    rules = {}
    state_doc = "V(present) creates the rule for new security groups. V(absent) removes it."
    on_immutable_doc = "V(recreate) removes the rule and creates it again."

    def want(self, params):
        """Override ``ResourceModule.want``, which returns the desired fields: return only ``description``, if it is
        given, because all other fields are part of the rule's key.
        """
        return {} if params["description"] is None else {"description": params["description"]}

    def key(self, params):
        value = {field.name: field.default if params[field.name] is None else params[field.name]
                 for field in self.fields}
        uses = [scope for scope, name in (("default", "used_in_default_sg"), ("other", "used_in_non_default_sg"))
                if value[name]]
        remotes = (("", "remote_ip_prefix"), ("group=", "remote_group"), ("addresses=", "remote_address_group"))
        remote = [prefix + value[name] for prefix, name in remotes if value[name]]
        parts = (value["direction"], value["ethertype"], value["protocol"], value["port_range_min"],
                 value["port_range_max"])
        return ",".join(["+".join(uses), *("" if part is None else str(part) for part in parts), "+".join(remote)])
