# SPDX-License-Identifier: GPL-3.0-or-later
"""default_security_group_rule: it has no name, and is known by what it says."""

from __future__ import annotations

from ..core.kinds import DefaultSecurityGroupRule
from . import results
from .module import ABSENT
from .resource import ResourceModule


class DefaultSecurityGroupRuleModule(ResourceModule):
    """Makes new security groups begin with a rule, or no more."""

    kind = DefaultSecurityGroupRule
    rules = {}
    state_doc = "V(present) makes new security groups begin with the rule. V(absent) makes them begin without it."
    on_immutable_doc = "V(recreate) removes the rule and makes it anew."

    def execute(self, params, check_mode, diff_mode, client):
        key = self.key(params)
        waiting = {"dry_run": check_mode, "wait": params["wait"], "timeout": params["timeout"]}
        if params["state"] == ABSENT:
            answer = client.delete(self.kind.noun, key, **waiting)
        else:
            said = {} if params["description"] is None else {"description": params["description"]}
            answer = client.ensure(self.kind.noun, key, said, merge=[], **self.allowed(params), **waiting)
        return results.changed(self.kind.noun, key, answer, diff_mode)

    def key(self, params):
        """What the rule of *params* is known by."""
        value = {field.name: field.default if params[field.name] is None else params[field.name]
                 for field in self.fields}
        uses = [word for word, name in (("default", "used_in_default_sg"), ("other", "used_in_non_default_sg"))
                if value[name]]
        remotes = (("", "remote_ip_prefix"), ("group=", "remote_group"), ("addresses=", "remote_address_group"))
        remote = [word + value[name] for word, name in remotes if value[name]]
        words = (value["direction"], value["ethertype"], value["protocol"], value["port_range_min"],
                 value["port_range_max"])
        return ",".join(["+".join(uses), *("" if one is None else str(one) for one in words), "+".join(remote)])
