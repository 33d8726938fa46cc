# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation fragments out of the faces."""

from __future__ import annotations

import json

from ansible_collections.magnetar.compute.plugins.module_utils.core.options import documentation


def fragment(face):
    """The text of a documentation fragment (JSON, which is YAML) with the options of *face*."""
    options = documentation(face.options)
    if "servers" in options:
        options["servers"]["suboptions"] = documentation(face.item_options)
    return json.dumps({"options": options})
