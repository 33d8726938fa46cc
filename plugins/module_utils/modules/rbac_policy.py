# SPDX-License-Identifier: GPL-3.0-or-later
"""rbac_policy: it has no name, and is known by what it says."""

from __future__ import annotations

from ..core.kinds import RbacPolicy
from ..core.options import Option, collect
from .resource import ResourceModule

#: Options that each policy says.
SAID = ("object_type", "target_project", "object")


class RbacPolicyModule(ResourceModule):
    """Makes a project able to use a thing, or no more."""

    kind = RbacPolicy
    rules = {}
    replaced = SAID
    own = collect(**{name: Option(RbacPolicy.field(name).value, RbacPolicy.field(name).doc, required=True,
                                  aliases=RbacPolicy.field(name).aliases) for name in SAID})
    state_doc = "V(present) makes the project able to use it. V(absent) takes that back."

    def key(self, params):
        action = params["action"] or self.kind.field("action").default
        return ":".join((params["object_type"], action, params["target_project"], params["object"]))

    def want(self, params):
        """Nothing: all of it is the key."""
        return {}
