# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules flavor_access and image_member. The permissions that they manage have no name: each is identified by a
project and a flavor or image.
"""

from __future__ import annotations

from ..core.kinds import FlavorAccess, ImageMember
from ..core.options import Option, name_options
from .module import ABSENT, PRESENT, checked_key_part
from .resource import ResourceModule


def _required(kind, *names):
    """Return the fields *names* of the resource type *kind* as required module options."""
    return name_options(**{name: Option(kind.field(name).value, kind.field(name).doc, required=True,
                                        aliases=kind.field(name).aliases) for name in names})


class FlavorAccessModule(ResourceModule):
    """The module flavor_access, which allows a project to use a flavor, or revokes this permission."""

    kind = FlavorAccess
    rules = {}
    replaced = ("flavor", "project")
    own = _required(FlavorAccess, "flavor", "project")
    state_doc = "V(present) allows the project to use the flavor. V(absent) ends that; servers stay."

    def key(self, params):
        return "%s:%s" % (checked_key_part(params, "project"), checked_key_part(params, "flavor"))

    def want(self, params):
        """Override ``ResourceModule.want``: return no fields, because all of them are in the key."""
        return {}


class ImageMemberModule(ResourceModule):
    """The module image_member, which shares an image with a project, ends the sharing, or accepts or rejects the shared
    image on behalf of the project.
    """

    kind = ImageMember
    rules = {"required_if": [["state", state, ["project"]] for state in (PRESENT, ABSENT)]}
    replaced = ("image",)
    own = _required(ImageMember, "image")
    states = {PRESENT: {}, "accepted": {"status": "accepted"}, "rejected": {"status": "rejected"},
              "pending": {"status": "pending"}}
    state_doc = ("V(present) shares the image with the project, and leaves its answer. V(accepted), V(rejected) and "
                 "V(pending) are the answers of the project, which only its users and administrators give. V(absent) "
                 "ends the sharing; servers stay.")

    def key(self, params):
        project = "" if params["project"] is None else checked_key_part(params, "project")
        return "%s:%s" % (project, checked_key_part(params, "image"))

    def want(self, params):
        """Override ``ResourceModule.want``: return only the status, because image and project are in the key."""
        return dict(self.states[params["state"]])
