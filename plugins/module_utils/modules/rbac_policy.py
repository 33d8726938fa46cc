# SPDX-License-Identifier: GPL-3.0-or-later
"""The module rbac_policy. Its policies have no names: their fields identify them."""

from __future__ import annotations

from ..core.kinds import RbacPolicy
from ..core.options import Option, name_options
from .resource import ResourceModule

#: Options that every policy has.
SAID = ("object_type", "target_project", "object")


class RbacPolicyModule(ResourceModule):
    """The module rbac_policy, which allows a project to use a resource of another project, or revokes this permission.
    """

    kind = RbacPolicy
    rules = {}
    replaced = SAID
    own = name_options(**{name: Option(RbacPolicy.field(name).value, RbacPolicy.field(name).doc, required=True,
                                       aliases=RbacPolicy.field(name).aliases) for name in SAID})
    state_doc = "V(present) allows the project to use it. V(absent) ends that."

    def key(self, params):
        action = params["action"] or self.kind.field("action").default
        return ":".join((params["object_type"], action, params["target_project"], params["object"]))

    def want(self, params):
        """Override ``ResourceModule.want``: return no fields, because all of them are in the key."""
        return {}
